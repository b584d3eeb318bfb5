//! [`Tgn`]: the parameters of a temporal graph network by name, and what each is for.
//!
//! The model is that of Rossi et al. (2020) with the attention block in common use since: GRU memory,
//! identity messages, last-message aggregation, one layer of temporal attention with residual and layer
//! norm, a two-layer merge with the node's own row, and a two-layer link predictor. The time encoding is
//! fixed: trained on raw seconds its gradient is as large as the time differences and wrecks the low
//! frequencies in one step.
//!
//! The computation is in `updater` (memory), `embedding` and `link`; this file only builds and finds
//! parameters.

use thiserror::Error;

use super::{OptionsError, TgnOptions};
use crate::device::Device;
use crate::nn::{GruParams, ParamId, Parameters, Tensor, TimeEncoder, init};

/// Keeps initial weights apart from everything else that is drawn from one seed.
const STREAM: u64 = 0x7765_6967_6874_7321;

/// A temporal graph network: options, parameters, and where each parameter is.
#[derive(Clone, Debug)]
pub struct Tgn {
    options: TgnOptions,
    /// The weights.
    pub parameters: Parameters,
    pub(super) time: TimeEncoder,
    pub(super) memory: GruParams,
    pub(super) features: Option<ParamId>,
    pub(super) attention: AttentionParams,
    pub(super) merge: MergeParams,
    pub(super) link: MergeParams,
}

/// Attention without biases on its inputs, with one on its output.
#[derive(Clone, Copy, Debug)]
pub(super) struct AttentionParams {
    pub w_q: ParamId,
    pub w_k: ParamId,
    pub w_v: ParamId,
    pub w_o: ParamId,
    pub b_o: ParamId,
    pub gamma: ParamId,
    pub beta: ParamId,
}

/// Two linear layers with a ReLU between them.
#[derive(Clone, Copy, Debug)]
pub(super) struct MergeParams {
    pub w_a: ParamId,
    pub b_a: ParamId,
    pub w_b: ParamId,
    pub b_b: ParamId,
}

/// Parameters that make no TGN of the wanted shape.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum ModelError {
    /// The options themselves.
    #[error(transparent)]
    Options(#[from] OptionsError),
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

impl Tgn {
    /// A model with fresh weights that depend on nothing but `seed`.
    ///
    /// # Errors
    /// The options describe no model.
    pub fn new(options: TgnOptions, seed: u64, device: &Device) -> Result<Self, ModelError> {
        options.validate()?;
        let mut stream = 0;
        let mut parameters = Parameters::new();
        Self::build(options, |name, rows, cols, kind| {
            stream += 1;
            let tensor = kind.fresh(device, rows, cols, [seed, stream]);
            Ok(parameters.add(name, tensor))
        })
        .map(|tgn| Self { parameters, ..tgn })
    }

    /// A model with the given weights, whatever their order.
    ///
    /// # Errors
    /// The options describe no model, a parameter is missing, superfluous or of another shape, or a
    /// value is not finite.
    pub fn with_parameters(options: TgnOptions, given: &Parameters) -> Result<Self, ModelError> {
        options.validate()?;
        let mut parameters = Parameters::new();
        let tgn = Self::build(options, |name, rows, cols, _| {
            let missing = || ModelError::Missing { name: name.to_string() };
            let tensor = given.get(given.find(name).ok_or_else(missing)?);
            let (found_rows, found_cols) = tensor.shape();
            if (found_rows, found_cols) != (rows, cols) {
                let name = name.to_string();
                return Err(ModelError::Shape { name, found_rows, found_cols, rows, cols });
            }
            Ok(parameters.add(name, tensor.clone()))
        })?;
        if parameters.len() != given.len() {
            return Err(ModelError::Count { found: given.len(), expected: parameters.len() });
        }
        if !parameters.is_finite() {
            return Err(ModelError::NotFinite);
        }
        Ok(Self { parameters, ..tgn })
    }

    /// The model's shape.
    #[must_use]
    pub fn options(&self) -> &TgnOptions {
        &self.options
    }

    /// Asks `find` for every parameter in order; the parameters themselves are left empty.
    fn build(
        options: TgnOptions,
        mut find: impl FnMut(&str, usize, usize, Kind) -> Result<ParamId, ModelError>,
    ) -> Result<Self, ModelError> {
        let TgnOptions { memory_dim, embedding_dim, .. } = options;
        let (width, slot, message) = (options.attention_dim(), options.slot_dim(), options.message_dim());
        let (gates, gru) = (3 * memory_dim, Kind::Uniform { fan_in: memory_dim });
        let mut linear = |name: &str, rows, cols| find(name, rows, cols, Kind::Uniform { fan_in: cols });
        let attention_weights = [
            linear("attention.w_q", width, width)?,
            linear("attention.w_k", width, slot)?,
            linear("attention.w_v", width, slot)?,
            linear("attention.w_o", width, width)?,
        ];
        let mut merge = |name: &str, cols, hidden, rows| -> Result<MergeParams, ModelError> {
            let (first, second) = (Kind::Uniform { fan_in: cols }, Kind::Uniform { fan_in: hidden });
            Ok(MergeParams {
                w_a: find(&format!("{name}.w_a"), hidden, cols, first)?,
                b_a: find(&format!("{name}.b_a"), 1, hidden, first)?,
                w_b: find(&format!("{name}.w_b"), rows, hidden, second)?,
                b_b: find(&format!("{name}.b_b"), 1, rows, second)?,
            })
        };
        let merge_params = merge("merge", width + memory_dim, embedding_dim, embedding_dim)?;
        let link = merge("link", 2 * embedding_dim, embedding_dim, 1)?;
        let [w_q, w_k, w_v, w_o] = attention_weights;
        Ok(Self {
            options,
            parameters: Parameters::new(),
            time: TimeEncoder::fixed(options.time_dim),
            memory: GruParams {
                w_ih: find("memory.w_ih", gates, message, gru)?,
                w_hh: find("memory.w_hh", gates, memory_dim, gru)?,
                b_ih: find("memory.b_ih", 1, gates, gru)?,
                b_hh: find("memory.b_hh", 1, gates, gru)?,
            },
            features: if options.projects_node_features() {
                let kind = Kind::Uniform { fan_in: options.node_feature_dim };
                Some(find("features.w", memory_dim, options.node_feature_dim, kind)?)
            } else {
                None
            },
            attention: AttentionParams {
                w_q,
                w_k,
                w_v,
                w_o,
                b_o: find("attention.b_o", 1, width, Kind::Uniform { fan_in: width })?,
                gamma: find("attention.gamma", 1, width, Kind::Constant(1.0))?,
                beta: find("attention.beta", 1, width, Kind::Constant(0.0))?,
            },
            merge: merge_params,
            link,
        })
    }
}

/// How a fresh parameter is filled.
#[derive(Clone, Copy, Debug)]
enum Kind {
    /// Uniform within `1 / sqrt(fan_in)` of 0.
    Uniform { fan_in: usize },
    /// One value everywhere.
    Constant(f32),
}

impl Kind {
    fn fresh(self, device: &Device, rows: usize, cols: usize, key: [u64; 2]) -> Tensor {
        match self {
            Self::Uniform { fan_in } => {
                let bound = 1.0 / (fan_in as f32).sqrt();
                init::uniform(device, rows, cols, bound, [STREAM, key[0], key[1]])
            }
            Self::Constant(value) => Tensor::from_vec(device, rows, cols, vec![value; rows * cols]),
        }
    }
}
