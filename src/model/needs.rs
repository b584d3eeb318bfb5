//! [`Needs`]: what a model wants of a batch and what it leaves behind, as plain numbers. Whoever samples, gathers,
//! stores or serves for a model knows it by these and by nothing else.

use std::ops::Range;

use thiserror::Error;

use super::EdgeTypes;
use super::walk::{WalkOptions, WalkOptionsError};
use crate::sampler::{HostColumns, HostEdges, SampleRequest, SamplingPolicy};

/// What a model wants of a batch, and what it leaves behind.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Needs {
    /// Which edges of a seed are sampled.
    pub policy: SamplingPolicy,
    /// Edges per seed and layer at most, K. With 0 there is nothing to sample.
    pub fanout: usize,
    /// Layers of neighbors: with 2, also the neighbors of neighbors, at the times of their edges. At least 1.
    pub layers: usize,
    /// Only edges of this age at most count, in the stream's unit.
    pub window: Option<i64>,
    /// Windows one behind the other that are sampled for each seed, each with its own K edges; 1 unless there is a
    /// `window`, the length of each.
    pub snapshots: usize,
    /// Values of a node's memory row. With 0 the model has no memory and leaves no messages.
    pub memory_dim: usize,
    /// Values that wait with a message: the other end's memory row, and if messages are averaged all else of them that
    /// is not learned.
    pub mailbox_dim: usize,
    /// Values of a node's feature row, 0 if the model reads none.
    pub node_feature_dim: usize,
    /// Values of an edge's stored row, 0 if the model reads none: its features, behind the number of its type if the
    /// model knows types.
    pub edge_row_dim: usize,
    /// Types of edges that the model distinguishes, 0 if none.
    pub edge_types: usize,
    /// Values of an embedding.
    pub embedding_dim: usize,
    /// How walks are counted, in a model that scores pairs by them: alone, or beside embeddings.
    pub walks: Option<WalkOptions>,
    /// Events of a part of a batch at least; a pass computes parts side by side. Smaller parts make smaller products,
    /// and rows of nodes that several parts ask about are computed in each; larger ones leave the caches.
    pub part_events: usize,
}

impl Needs {
    /// The `fanout` most recent neighbors in each of `layers` layers, rows of features of these widths by node and by
    /// edge, types of edges, and no memory.
    pub(super) fn recent(
        fanout: usize,
        layers: usize,
        [node_feature_dim, edge_feature_dim]: [usize; 2],
        types: EdgeTypes,
        embedding_dim: usize,
    ) -> Self {
        Self {
            policy: SamplingPolicy::Recent,
            fanout,
            layers,
            window: None,
            snapshots: 1,
            memory_dim: 0,
            mailbox_dim: 0,
            node_feature_dim,
            edge_row_dim: types.row_dim(edge_feature_dim),
            edge_types: types.known,
            embedding_dim,
            walks: None,
            part_events: 100,
        }
    }

    /// Whether pairs are scored by embeddings of their ends, be it not by these alone. Else they are scored by walks,
    /// and nothing is sampled.
    #[must_use]
    pub fn embeds(&self) -> bool {
        self.fanout > 0 || self.memory_dim > 0
    }

    /// Whether the rows that slots of the sample read are those of the distinct nodes, as they are, and have a
    /// gradient.
    #[must_use]
    pub fn slots_read_memory(&self) -> bool {
        self.memory_dim > 0 && self.fanout > 0 && self.edge_types == 0
    }

    /// Values of the row of a node that readers get: its memory, and behind it the row that is made of its walks.
    #[must_use]
    pub fn row_dim(&self) -> usize {
        self.memory_dim + self.walks.map_or(0, |walks| walks.row_dim())
    }

    /// Which values of such a row embeddings are made of: the memory, or in a model of walks alone all of them.
    #[must_use]
    pub fn embedded(&self) -> Range<usize> {
        0..if self.embeds() { self.memory_dim } else { self.row_dim() }
    }

    /// What is to be sampled for each seed.
    #[must_use]
    pub fn sample_request(&self) -> SampleRequest {
        let Self { policy, fanout, window, .. } = *self;
        SampleRequest { policy, fanout, window, seed: 0, batch: 0, layer: 0 }
    }

    /// Which columns of a sample the host reads, where the model computes on the GPU that draws it: nodes and edges are
    /// looked up here if they have rows. Pairs of a row and a type of edge are numbered here, too, slot by slot.
    #[must_use]
    pub fn host_columns(&self) -> HostColumns {
        let neighbors = self.memory_dim > 0 || self.node_feature_dim > 0 || self.edge_types > 0;
        let edges = match (self.edge_types, self.edge_row_dim) {
            (0, 0) => HostEdges::No,
            (0, _) => HostEdges::Listed,
            _ => HostEdges::BySlot,
        };
        HostColumns { neighbors, edges }
    }

    /// Whether the rows of edges are read with the messages that these left.
    #[must_use]
    pub fn reads_messages(&self) -> bool {
        self.memory_dim > 0 && self.edge_row_dim > 0 && !self.averages()
    }

    /// Whether what waits for a node is the mean of a batch's messages, for which the rows of the batch's own edges are
    /// read.
    #[must_use]
    pub fn averages(&self) -> bool {
        self.mailbox_dim > self.memory_dim
    }
}

/// What the options of one model have beside those that all models have.
pub(super) trait Shape {
    /// What must be at least 1.
    fn counts(&self) -> Vec<(&'static str, usize)>;

    /// Checks how widths must fit one another, once all counts are at least 1.
    fn check_widths(&self) -> Result<(), OptionsError> {
        Ok(())
    }

    /// Choices among variants of the model, as numbers.
    fn choices(&self) -> Vec<(&'static str, usize)> {
        Vec::new()
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
    #[error("{heads} heads do not divide the attention width {width} ({parts}); change either")]
    Heads {
        /// Number of heads.
        heads: usize,
        /// The width.
        width: usize,
        /// What it is made of.
        parts: &'static str,
    },
    /// Two widths that must be equal are not.
    #[error("embedding_dim is {embedding} and memory_dim {memory}; without attention they must be equal")]
    EmbeddingWidth {
        /// The embedding's.
        embedding: usize,
        /// The memory's.
        memory: usize,
    },
    /// Walks cannot be counted so.
    #[error(transparent)]
    Walk(#[from] WalkOptionsError),
    /// The dropout rate is no share.
    #[error("dropout {dropout} is outside 0.0..1.0")]
    Dropout {
        /// The rate.
        dropout: f32,
    },
}

/// The options of a model as named numbers: its counts, what all models have, what more it has, and types of edges.
#[allow(clippy::cast_precision_loss)]
pub(super) fn fields(
    counts: &[(&'static str, usize)],
    [node_feature_dim, edge_feature_dim]: [usize; 2],
    dropout: f32,
    types: EdgeTypes,
    more: &[(&'static str, usize)],
) -> Vec<(&'static str, f64)> {
    let number = |&(name, value): &(&'static str, usize)| (name, value as f64);
    let features = [("node_feature_dim", node_feature_dim), ("edge_feature_dim", edge_feature_dim)];
    let mut fields: Vec<_> = counts.iter().chain(&features).map(number).collect();
    fields.push(("dropout", f64::from(dropout)));
    let types = [("edge_types", types.known), ("edge_type_dim", types.width)];
    fields.extend(more.iter().chain(&types).map(number));
    fields
}

/// Checks what the options of every model must hold: counts of at least 1, rows for the types of edges if any are
/// known, and a dropout rate that is a share.
pub(super) fn check(
    at_least_one: &[(&'static str, usize)],
    dropout: f32,
    types: EdgeTypes,
) -> Result<(), OptionsError> {
    if let Some(&(field, _)) = at_least_one.iter().find(|(_, value)| *value == 0) {
        return Err(OptionsError::Zero { field });
    }
    if types.known > 0 && types.width == 0 {
        return Err(OptionsError::Zero { field: "edge_type_dim" });
    }
    if !(0.0..1.0).contains(&dropout) {
        return Err(OptionsError::Dropout { dropout });
    }
    Ok(())
}

/// Checks that `heads`, at least 1, divides each of these widths.
pub(super) fn check_heads(heads: usize, widths: &[(usize, &'static str)]) -> Result<(), OptionsError> {
    match widths.iter().find(|(width, _)| !width.is_multiple_of(heads)) {
        Some(&(width, parts)) => Err(OptionsError::Heads { heads, width, parts }),
        None => Ok(()),
    }
}
