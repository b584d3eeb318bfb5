//! [`EmbeddingInput`]: what a network reads to embed seeds, or a part of them.

use std::ops::Range;

use super::{EdgePlaces, FeatureRows, Neighborhood, Part};
use crate::event::{EventTime, NodeId};
use crate::nn::{ParamId, Tape, Var};

/// Seeds to embed, with their sample.
#[derive(Clone, Copy)]
pub struct EmbeddingInput<'a> {
    /// Seeds and neighbors as slots of distinct nodes.
    pub neighborhood: &'a Neighborhood,
    /// The seeds to embed; all without it. Only of a sample of one layer.
    pub part: Option<&'a Part>,
    /// Feature rows of its slots and nodes, of each kind that the model's options give a width.
    pub rows: &'a FeatureRows,
    /// Where the edge rows are on the GPU that computes, if they are kept there.
    pub places: Option<&'a EdgePlaces>,
    /// When a node's memory row was last changed by an event, `None` if it never was. Models without memory do not call
    /// it.
    pub last_event: &'a dyn Fn(NodeId) -> Option<EventTime>,
    /// Time of the first event that walks were counted from. Other models do not read it.
    pub origin: Option<EventTime>,
    /// Names this step's dropout masks: seed and step number.
    pub dropout: [u64; 2],
}

impl EmbeddingInput<'_> {
    /// The seeds.
    pub(super) fn seeds(&self) -> Vec<(NodeId, EventTime)> {
        Part::select(self.part, &self.neighborhood.seeds().collect::<Vec<_>>(), 1)
    }

    /// Slot of the node of each seed, where no neighbors are sampled.
    pub(super) fn own(&self) -> Vec<u32> {
        Part::select(self.part, self.neighborhood.pairs(), 1)
    }

    /// Features `[nodes, dimension]` of these distinct nodes, projected if there is a `projection`.
    pub(super) fn node_features(
        &self,
        tape: &mut Tape<'_>,
        nodes: Range<usize>,
        dimension: usize,
        projection: Option<ParamId>,
    ) -> Var {
        let mut features = tape.take(nodes.len(), dimension);
        let rows = &self.rows.node_rows()[nodes.start * dimension..nodes.end * dimension];
        features.data_mut().copy_from_slice(rows);
        let features = tape.constant(features);
        match projection {
            Some(projection) => tape.linear(features, projection, None),
            None => features,
        }
    }
}
