//! The shape of a TGN: every number that decides which parameters exist and what they mean.
//!
//! Two models with equal options have interchangeable weights and state; with different options they
//! have not, which is why a checkpoint carries its options and loading compares them. Knows nothing of
//! learning rates or batches: those belong to the trainer.

use thiserror::Error;

use crate::sampler::{SampleRequest, SamplingPolicy};

/// Shape of a TGN. The defaults have 341,601 parameters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TgnOptions {
    /// Width d_m of a node's memory row; at least 1.
    pub memory_dim: usize,
    /// Width d_T of the time encoding; at least 1. `memory_dim + time_dim` is the attention width.
    pub time_dim: usize,
    /// Width of an embedding; at least 1.
    pub embedding_dim: usize,
    /// Attention heads; divides `memory_dim + time_dim`.
    pub heads: usize,
    /// Most recent neighbors K looked at per seed; at least 1.
    pub fanout: usize,
    /// Width of a node's feature row; 0 means nodes have none. When it differs from `memory_dim`, a
    /// learned projection maps features onto memory rows before the two are added.
    pub node_feature_dim: usize,
    /// Width d_e of an edge's feature row; 0 means edges have none.
    pub edge_feature_dim: usize,
    /// Share of values dropped while training, on attention weights and on the attention output;
    /// in `0.0..1.0`.
    pub dropout: f32,
}

impl Default for TgnOptions {
    fn default() -> Self {
        Self {
            memory_dim: 100,
            time_dim: 100,
            embedding_dim: 100,
            heads: 2,
            fanout: 10,
            node_feature_dim: 0,
            edge_feature_dim: 0,
            dropout: 0.1,
        }
    }
}

/// Options that describe no model.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum OptionsError {
    /// A width or count is 0.
    #[error("{field} is 0; it must be at least 1")]
    Zero {
        /// Name of the option.
        field: &'static str,
    },
    /// The heads do not divide the attention width.
    #[error("{heads} heads do not divide the attention width {width} (memory_dim + time_dim); change either")]
    Heads {
        /// Number of heads.
        heads: usize,
        /// `memory_dim + time_dim`.
        width: usize,
    },
    /// The dropout rate is no share.
    #[error("dropout {dropout} is outside 0.0..1.0")]
    Dropout {
        /// The rate.
        dropout: f32,
    },
}

impl TgnOptions {
    /// Width of the attention, `memory_dim + time_dim`.
    #[must_use]
    pub fn attention_dim(&self) -> usize {
        self.memory_dim + self.time_dim
    }

    /// Width of a slot of the attention: neighbor row, edge features, time encoding.
    #[must_use]
    pub fn slot_dim(&self) -> usize {
        self.memory_dim + self.edge_feature_dim + self.time_dim
    }

    /// Width of a raw message: own row, other's row, edge features, time encoding.
    #[must_use]
    pub fn message_dim(&self) -> usize {
        2 * self.memory_dim + self.edge_feature_dim + self.time_dim
    }

    /// Width of the part of a raw message that its event brings: other's row and edge features.
    #[must_use]
    pub fn mail_dim(&self) -> usize {
        self.memory_dim + self.edge_feature_dim
    }

    /// What the model wants sampled for each seed: its `fanout` most recent neighbors.
    #[must_use]
    pub fn sample_request(&self) -> SampleRequest {
        let (policy, fanout) = (SamplingPolicy::Recent, self.fanout);
        SampleRequest { policy, fanout, window: None, seed: 0, batch: 0, layer: 0 }
    }

    /// Whether node features need a projection before they are added to memory rows.
    #[must_use]
    pub fn projects_node_features(&self) -> bool {
        self.node_feature_dim != 0 && self.node_feature_dim != self.memory_dim
    }

    /// Checks that the options describe a model.
    ///
    /// # Errors
    /// Names the first option that is out of range.
    pub fn validate(&self) -> Result<(), OptionsError> {
        let at_least_one = [
            ("memory_dim", self.memory_dim),
            ("time_dim", self.time_dim),
            ("embedding_dim", self.embedding_dim),
            ("heads", self.heads),
            ("fanout", self.fanout),
        ];
        for (field, value) in at_least_one {
            if value == 0 {
                return Err(OptionsError::Zero { field });
            }
        }
        if !self.attention_dim().is_multiple_of(self.heads) {
            return Err(OptionsError::Heads { heads: self.heads, width: self.attention_dim() });
        }
        if !(0.0..1.0).contains(&self.dropout) {
            return Err(OptionsError::Dropout { dropout: self.dropout });
        }
        Ok(())
    }

    /// The options as named numbers, in a fixed order: what a checkpoint stores and compares.
    #[must_use]
    pub fn as_fields(&self) -> [(&'static str, f64); 8] {
        #[allow(clippy::cast_precision_loss)]
        let number = |value: usize| value as f64;
        [
            ("memory_dim", number(self.memory_dim)),
            ("time_dim", number(self.time_dim)),
            ("embedding_dim", number(self.embedding_dim)),
            ("heads", number(self.heads)),
            ("fanout", number(self.fanout)),
            ("node_feature_dim", number(self.node_feature_dim)),
            ("edge_feature_dim", number(self.edge_feature_dim)),
            ("dropout", f64::from(self.dropout)),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_that_describe_no_model_are_named() {
        assert_eq!(TgnOptions::default().validate(), Ok(()));
        let zero = TgnOptions { fanout: 0, ..TgnOptions::default() };
        assert_eq!(zero.validate(), Err(OptionsError::Zero { field: "fanout" }));
        let heads = TgnOptions { heads: 3, ..TgnOptions::default() };
        assert_eq!(heads.validate(), Err(OptionsError::Heads { heads: 3, width: 200 }));
        for dropout in [1.0, -0.1, f32::NAN] {
            let options = TgnOptions { dropout, ..TgnOptions::default() };
            assert!(matches!(options.validate(), Err(OptionsError::Dropout { .. })), "{dropout}");
        }
    }
}
