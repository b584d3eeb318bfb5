//! [`Weights`]: a parameter set that no longer changes, with a version.

use std::sync::Arc;

use super::{ModelError, Tgn, TgnOptions};
use crate::nn::Parameters;

/// Immutable parameters of a model of known shape. Cloning is cheap.
#[derive(Clone, Debug)]
pub struct Weights {
    /// Grows with every publication; 0 is "never published".
    pub version: u64,
    tgn: Arc<Tgn>,
}

impl Weights {
    /// The parameters of `tgn` as they are now.
    #[must_use]
    pub fn of(tgn: &Tgn, version: u64) -> Self {
        Self { version, tgn: Arc::new(tgn.clone()) }
    }

    /// Weights from parameters read elsewhere.
    ///
    /// # Errors
    /// The parameters make no model of this shape.
    pub fn new(options: TgnOptions, parameters: &Parameters, version: u64) -> Result<Self, ModelError> {
        Ok(Self { version, tgn: Arc::new(Tgn::with_parameters(options, parameters)?) })
    }

    /// The model with these weights.
    #[must_use]
    pub fn tgn(&self) -> &Tgn {
        &self.tgn
    }

    /// Shape of the model.
    #[must_use]
    pub fn options(&self) -> &TgnOptions {
        self.tgn.options()
    }

    /// The parameters by name.
    #[must_use]
    pub fn parameters(&self) -> &Parameters {
        &self.tgn.parameters
    }
}
