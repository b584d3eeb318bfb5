//! [`Weights`]: a parameter set that no longer changes, with a version.

use std::sync::Arc;

use super::{Model, ModelError, ModelOptions};
use crate::nn::Parameters;

/// Immutable parameters of a model of known shape. Cloning is cheap.
#[derive(Clone, Debug)]
pub struct Weights {
    /// Number of steps that led to them, so it grows with training; 0 is "never published". A rollback serves an
    /// earlier one again.
    pub version: u64,
    model: Arc<Model>,
}

impl Weights {
    /// Those of `model`.
    #[must_use]
    pub fn of(model: Model, version: u64) -> Self {
        Self { version, model: Arc::new(model) }
    }

    /// Weights from parameters read elsewhere.
    ///
    /// # Errors
    /// The parameters make no model of this shape.
    pub fn new(
        options: impl Into<ModelOptions>,
        parameters: &Parameters,
        version: u64,
    ) -> Result<Self, ModelError> {
        Ok(Self { version, model: Arc::new(Model::with_parameters(options, parameters)?) })
    }

    /// Whether `other` are these very weights.
    #[must_use]
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.model, &other.model)
    }

    /// The model with these weights.
    #[must_use]
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// The same, to be kept.
    #[must_use]
    pub fn shared_model(&self) -> Arc<Model> {
        self.model.clone()
    }

    /// The parameters by name.
    #[must_use]
    pub fn parameters(&self) -> &Parameters {
        &self.model.parameters
    }
}
