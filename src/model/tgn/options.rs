//! The shape of a TGN: every number that decides which parameters exist and what they mean. Knows nothing of
//! learning rates or batches: those belong to the trainer.

use super::Aggregator;
use crate::model::EdgeTypes;
use crate::model::needs::{Needs, OptionsError, Shape, check_heads};

/// What turns a message into memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Updater {
    /// A gated recurrent unit.
    Gru,
    /// A plain recurrent cell, as in JODIE and DyRep.
    Rnn,
}

/// What turns memory into an embedding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Embedding {
    /// Attention over recent neighbors.
    Attention,
    /// The memory row as it is.
    Identity,
    /// The memory row drifts with the time since the node's last event, as in JODIE.
    Time,
}

/// Shape of a TGN. The defaults have 341,601 parameters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TgnOptions {
    /// Width d_m of a node's memory row; at least 1.
    pub memory_dim: usize,
    /// Width d_T of the time encoding; at least 1. `memory_dim + time_dim` is the attention width.
    pub time_dim: usize,
    /// Width of an embedding; at least 1, and `memory_dim` without attention.
    pub embedding_dim: usize,
    /// Attention heads; divides `memory_dim + time_dim` where there is attention.
    pub heads: usize,
    /// Most recent neighbors K sampled per seed; at least 1. Without attention none are.
    pub fanout: usize,
    /// Width of a node's feature row; 0 means nodes have none. When it differs from `memory_dim`, a
    /// learned projection maps features onto memory rows before the two are added.
    pub node_feature_dim: usize,
    /// Width d_e of an edge's feature row; 0 means edges have none.
    pub edge_feature_dim: usize,
    /// Types of edges that are distinguished.
    pub edge_types: EdgeTypes,
    /// Share of values dropped while training, on attention weights and on the attention output, or on the
    /// embedding where there is no attention; in `0.0..1.0`.
    pub dropout: f32,
    /// Which of a batch's messages for one node waits for it.
    pub aggregator: Aggregator,
    /// What turns a message into memory.
    pub updater: Updater,
    /// What turns memory into an embedding.
    pub embedding: Embedding,
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
            edge_types: EdgeTypes::default(),
            dropout: 0.1,
            aggregator: Aggregator::Last,
            updater: Updater::Gru,
            embedding: Embedding::Attention,
        }
    }
}

impl TgnOptions {
    /// JODIE (Kumar et al., 2019) as TGN states it: a plain recurrent cell and an embedding that drifts with time. It
    /// samples no neighbors.
    #[must_use]
    pub fn jodie() -> Self {
        Self { updater: Updater::Rnn, embedding: Embedding::Time, ..Self::default() }
    }

    /// Width of the attention, `memory_dim + time_dim`.
    #[must_use]
    pub fn attention_dim(&self) -> usize {
        self.memory_dim + self.time_dim
    }

    /// Width of a slot of the attention: neighbor row, type and features of the edge, time encoding.
    #[must_use]
    pub fn slot_dim(&self) -> usize {
        self.memory_dim + self.edge_types.width + self.edge_feature_dim + self.time_dim
    }

    /// Width of a raw message: own row, other's row, type and features of the edge, time encoding.
    #[must_use]
    pub fn message_dim(&self) -> usize {
        2 * self.memory_dim + self.edge_types.width + self.edge_feature_dim + self.time_dim
    }

    /// Whether node features need a projection before they are added to memory rows.
    #[must_use]
    pub fn projects_node_features(&self) -> bool {
        self.node_feature_dim != 0 && self.node_feature_dim != self.memory_dim
    }

    /// What the model wants of a batch: the most recent neighbors of each seed, and memory.
    #[must_use]
    pub fn needs(&self) -> Needs {
        let fanout = if self.embedding == Embedding::Attention { self.fanout } else { 0 };
        let features = [self.node_feature_dim, self.edge_feature_dim];
        let shown = Needs::recent(fanout, 1, features, self.edge_types, self.embedding_dim);
        let averaged = match self.aggregator {
            Aggregator::Last => 0,
            Aggregator::Mean => self.edge_feature_dim + self.time_dim,
        };
        Needs { memory_dim: self.memory_dim, mailbox_dim: self.memory_dim + averaged, ..shown }
    }
}

impl Shape for TgnOptions {
    fn counts(&self) -> Vec<(&'static str, usize)> {
        vec![
            ("memory_dim", self.memory_dim),
            ("time_dim", self.time_dim),
            ("embedding_dim", self.embedding_dim),
            ("heads", self.heads),
            ("fanout", self.fanout),
        ]
    }

    fn check_widths(&self) -> Result<(), OptionsError> {
        if self.embedding == Embedding::Attention {
            return check_heads(self.heads, &[(self.attention_dim(), "memory_dim + time_dim")]);
        }
        let (embedding, memory) = (self.embedding_dim, self.memory_dim);
        if embedding == memory { Ok(()) } else { Err(OptionsError::EmbeddingWidth { embedding, memory }) }
    }

    fn choices(&self) -> Vec<(&'static str, usize)> {
        vec![
            ("updater", self.updater as usize),
            ("embedding", self.embedding as usize),
            ("aggregator", self.aggregator as usize),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::ModelOptions;

    #[test]
    fn options_that_describe_no_model_are_named() {
        assert_eq!(ModelOptions::from(TgnOptions::default()).validate(), Ok(()));
        assert_eq!(ModelOptions::from(TgnOptions::jodie()).validate(), Ok(()));
        let zero = TgnOptions { fanout: 0, ..TgnOptions::default() };
        assert_eq!(ModelOptions::from(zero).validate(), Err(OptionsError::Zero { field: "fanout" }));
        let heads = TgnOptions { heads: 3, ..TgnOptions::default() };
        assert!(matches!(
            ModelOptions::from(heads).validate(),
            Err(OptionsError::Heads { heads: 3, width: 200, .. })
        ));
        for dropout in [1.0, -0.1, f32::NAN] {
            let options = TgnOptions { dropout, ..TgnOptions::default() };
            assert!(
                matches!(ModelOptions::from(options).validate(), Err(OptionsError::Dropout { .. })),
                "{dropout}"
            );
        }
        let narrow = TgnOptions { embedding_dim: 7, ..TgnOptions::jodie() };
        assert_eq!(
            ModelOptions::from(narrow).validate(),
            Err(OptionsError::EmbeddingWidth { embedding: 7, memory: 100 })
        );
    }
}
