//! [`Builder`]: how a model gets its parameters, one after another by name: fresh ones, or given ones that fit.
//!
//! A fresh parameter follows from the seed and its place in the order in which the model adds parameters, so a model
//! must not change that order. Knows nothing of what a parameter is for.

use thiserror::Error;

use super::OptionsError;
use super::link::{LinkPredictor, MergeParams};
use crate::device::Device;
use crate::nn::{ParamId, Parameters, Tensor, init};

/// Keeps initial weights apart from everything else that is drawn from one seed.
const STREAM: u64 = 0x7765_6967_6874_7321;

/// Parameters that make no model of the wanted shape.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum ModelError {
    /// The options themselves.
    #[error(transparent)]
    Options(#[from] OptionsError),
    /// The device does not compute it.
    #[error("{device} does not compute {model}: {why}; let the CPU do it (device.use = \"cpu\")")]
    Device {
        /// Name of the model.
        model: &'static str,
        /// The device.
        device: String,
        /// What it lacks.
        why: String,
    },
    /// A parameter is not there.
    #[error("parameter {name} is missing; these weights belong to another model")]
    Missing {
        /// Its name.
        name: String,
    },
    /// A parameter has another shape.
    #[error("parameter {name} is {found_rows}x{found_cols}, this model has {rows}x{cols}")]
    Shape {
        /// Its name.
        name: String,
        /// Rows found.
        found_rows: usize,
        /// Columns found.
        found_cols: usize,
        /// Rows this model has.
        rows: usize,
        /// Columns this model has.
        cols: usize,
    },
    /// There are parameters this model does not know.
    #[error("{found} parameters where this model has {expected}; these weights belong to another model")]
    Count {
        /// Number found.
        found: usize,
        /// Number this model has.
        expected: usize,
    },
    /// A weight is infinite or not a number.
    #[error("the weights hold values that are not finite")]
    NotFinite,
}

/// How a fresh parameter is filled.
#[derive(Clone, Copy, Debug)]
pub(super) enum Fill {
    /// Uniform within `1 / sqrt(fan_in)` of 0.
    Uniform { fan_in: usize },
    /// One value everywhere.
    Constant(f32),
}

/// Where parameters come from.
enum Source<'a> {
    Fresh { device: &'a Device, seed: u64 },
    Given(&'a Parameters),
}

/// Hands a model its parameters and keeps them.
pub(super) struct Builder<'a> {
    parameters: Parameters,
    source: Source<'a>,
}

impl<'a> Builder<'a> {
    /// Parameters that depend on nothing but `seed`.
    pub fn fresh(device: &'a Device, seed: u64) -> Self {
        Self { parameters: Parameters::new(), source: Source::Fresh { device, seed } }
    }

    /// Those that are `given`, whatever their order.
    pub fn given(given: &'a Parameters) -> Self {
        Self { parameters: Parameters::new(), source: Source::Given(given) }
    }

    /// The parameter `name`, `[rows, cols]`.
    ///
    /// # Errors
    /// It is not among the given ones, or has another shape there.
    pub fn add(&mut self, name: &str, rows: usize, cols: usize, fill: Fill) -> Result<ParamId, ModelError> {
        let tensor = match &self.source {
            Source::Fresh { device, seed } => {
                let key = [STREAM, *seed, self.parameters.len() as u64 + 1];
                match fill {
                    Fill::Uniform { fan_in } => {
                        init::uniform(device, rows, cols, 1.0 / (fan_in as f32).sqrt(), key)
                    }
                    Fill::Constant(value) => Tensor::from_vec(device, rows, cols, vec![value; rows * cols]),
                }
            }
            Source::Given(given) => {
                let missing = || ModelError::Missing { name: name.to_string() };
                let tensor = given.get(given.find(name).ok_or_else(missing)?);
                let (found_rows, found_cols) = tensor.shape();
                if (found_rows, found_cols) != (rows, cols) {
                    let name = name.to_string();
                    return Err(ModelError::Shape { name, found_rows, found_cols, rows, cols });
                }
                tensor.clone()
            }
        };
        Ok(self.parameters.add(name, tensor))
    }

    /// The weight of a linear layer from `cols` to `rows` values.
    ///
    /// # Errors
    /// As [`Self::add`].
    pub fn weight(&mut self, name: &str, rows: usize, cols: usize) -> Result<ParamId, ModelError> {
        self.add(name, rows, cols, Fill::Uniform { fan_in: cols })
    }

    /// Weight and bias of a linear layer from `cols` to `rows` values: `NAME.w` and `NAME.b`.
    ///
    /// # Errors
    /// As [`Self::add`].
    pub fn linear(&mut self, name: &str, rows: usize, cols: usize) -> Result<[ParamId; 2], ModelError> {
        let w = self.weight(&format!("{name}.w"), rows, cols)?;
        Ok([w, self.add(&format!("{name}.b"), 1, rows, Fill::Uniform { fan_in: cols })?])
    }

    /// Scale and shift of a layer norm over `cols` columns: `NAME.gamma` and `NAME.beta`.
    ///
    /// # Errors
    /// As [`Self::add`].
    pub fn norm(&mut self, name: &str, cols: usize) -> Result<[ParamId; 2], ModelError> {
        let gamma = self.add(&format!("{name}.gamma"), 1, cols, Fill::Constant(1.0))?;
        Ok([gamma, self.add(&format!("{name}.beta"), 1, cols, Fill::Constant(0.0))?])
    }

    /// Two linear layers, from `cols` over `hidden` to `rows` values.
    ///
    /// # Errors
    /// As [`Self::add`].
    pub fn merge(
        &mut self,
        name: &str,
        cols: usize,
        hidden: usize,
        rows: usize,
    ) -> Result<MergeParams, ModelError> {
        let (first, second) = (Fill::Uniform { fan_in: cols }, Fill::Uniform { fan_in: hidden });
        Ok(MergeParams {
            w_a: self.add(&format!("{name}.w_a"), hidden, cols, first)?,
            b_a: self.add(&format!("{name}.b_a"), 1, hidden, first)?,
            w_b: self.add(&format!("{name}.w_b"), rows, hidden, second)?,
            b_b: self.add(&format!("{name}.b_b"), 1, rows, second)?,
        })
    }

    /// The link predictor of embeddings of `dimension` values, of rows side by side.
    ///
    /// # Errors
    /// As [`Self::add`].
    pub fn link(&mut self, dimension: usize) -> Result<LinkPredictor, ModelError> {
        Ok(LinkPredictor { merge: self.merge("link", 2 * dimension, dimension, 1)?, products: false })
    }

    /// The same, of rows side by side and their products.
    ///
    /// # Errors
    /// As [`Self::add`].
    pub fn product_link(&mut self, dimension: usize) -> Result<LinkPredictor, ModelError> {
        Ok(LinkPredictor { merge: self.merge("link", 3 * dimension, dimension, 1)?, products: true })
    }

    /// All parameters that were added.
    ///
    /// # Errors
    /// More were given than that, or a value is not finite.
    pub fn finish(self) -> Result<Parameters, ModelError> {
        if let Source::Given(given) = self.source
            && given.len() != self.parameters.len()
        {
            return Err(ModelError::Count { found: given.len(), expected: self.parameters.len() });
        }
        if !self.parameters.is_finite() {
            return Err(ModelError::NotFinite);
        }
        Ok(self.parameters)
    }
}
