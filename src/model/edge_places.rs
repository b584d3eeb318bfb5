//! [`EdgePlaces`]: where the edge rows of a pass are on a GPU, if they are there. Then slots and messages name rows of
//! a table that stays on the GPU from pass to pass, and nothing but those numbers is copied there.
//!
//! The rows equal those of [`FeatureRows`](super::FeatureRows), which stay for what the CPU reads. Does not know who
//! owns the table.

use std::sync::Arc;

use super::{EMPTY_SLOT, EmbeddingInput, Hop, MessageRows};
use crate::nn::Tensor;

/// A table on a GPU, and the row there of each distinct edge of a pass.
#[derive(Clone, Debug)]
pub struct EdgePlaces {
    table: Arc<Tensor>,
    places: Arc<Vec<u32>>,
}

impl EdgePlaces {
    /// The row of edge i, as [`FeatureRows`](super::FeatureRows) numbers edges, is row `places[i]` of `table`.
    #[must_use]
    pub fn new(table: Arc<Tensor>, places: Arc<Vec<u32>>) -> Self {
        Self { table, places }
    }

    /// The table.
    pub(super) fn table(&self) -> &Tensor {
        &self.table
    }

    /// Where the row of an edge is, by its number.
    pub(super) fn of(&self, number: u32) -> u32 {
        self.places.get(number as usize).copied().unwrap_or(EMPTY_SLOT)
    }

    /// The rows of these `messages` alone, out of so many `edges`, in a table of their own.
    #[must_use]
    pub fn only(&self, messages: MessageRows<'_>, edges: usize) -> Self {
        let mut places = vec![EMPTY_SLOT; edges];
        for (row, &number) in (0..).zip(messages.numbers) {
            if let Some(place) = places.get_mut(number as usize) {
                *place = row;
            }
        }
        let rows: Vec<u32> = messages.numbers.iter().map(|&number| self.of(number)).collect();
        Self::new(self.table.rows_at(&rows).into(), places.into())
    }

    /// The same hop with edge rows of the table.
    fn lead(&self, hop: Hop) -> Hop {
        let edges = hop.edges.map(|edges| edges.moved(|number| self.of(number)));
        Hop { edge_rows: Some(self.table.clone()), edges, ..hop }
    }
}

impl EmbeddingInput<'_> {
    /// What level `level` (1 and up) of a network reads; see [`Neighborhood::hop`](super::Neighborhood::hop).
    pub(super) fn hop(&self, level: usize) -> Hop {
        let hop = self.neighborhood.hop(level, self.rows, self.part);
        match self.places {
            Some(places) => places.lead(hop),
            None => hop,
        }
    }
}
