//! The shape of a TGN: every number that decides which parameters exist and what they mean. Knows nothing of
//! learning rates or batches: those belong to the trainer.

use super::Aggregator;
use crate::model::needs::{Needs, OptionsError, check_heads};
use crate::model::options::options;

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

options! {
    /// Shape of a TGN. The defaults have 341,601 parameters. Where the feature rows of nodes are not of the width
    /// `memory_dim`, a learned projection maps them onto memory rows before the two are added.
    TgnOptions {
        /// Width d_m of a node's memory row; at least 1.
        memory_dim: 100,
        /// Width d_T of the time encoding; at least 1. `memory_dim + time_dim` is the attention width.
        time_dim: 100,
        /// Width of an embedding; at least 1, and `memory_dim` without attention.
        embedding_dim: 100,
        /// Attention heads; divides `memory_dim + time_dim` where there is attention.
        heads: 2,
        /// Most recent neighbors K sampled per seed; at least 1. Without attention none are.
        fanout: 10,
    }
    /// Share of values dropped while training, on attention weights and on the attention output, or on the
    /// embedding where there is no attention; in `0.0..1.0`.
    dropout: 0.1,
    choices {
        /// What turns a message into memory.
        updater: Updater = Updater::Gru,
        /// What turns memory into an embedding.
        embedding: Embedding = Embedding::Attention,
        /// Which of a batch's messages for one node waits for it.
        aggregator: Aggregator = Aggregator::Last,
    }
    widths |options| {
        if options.embedding == Embedding::Attention {
            return check_heads(options.heads, &[(options.attention_dim(), "memory_dim + time_dim")]);
        }
        let (embedding, memory) = (options.embedding_dim, options.memory_dim);
        if embedding == memory { Ok(()) } else { Err(OptionsError::EmbeddingWidth { embedding, memory }) }
    },
    // The most recent neighbors of each seed, and memory.
    needs |options| {
        let fanout = if options.embedding == Embedding::Attention { options.fanout } else { 0 };
        let averaged = match options.aggregator {
            Aggregator::Last => 0,
            Aggregator::Mean => options.edge_feature_dim + options.time_dim,
        };
        Needs {
            memory_dim: options.memory_dim,
            mailbox_dim: options.memory_dim + averaged,
            ..options.recent(fanout, 1)
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
