//! [`MessageRows`]: the edge rows of the messages that wait for the nodes of a pass, on the CPU or on a GPU.

use super::{EMPTY_SLOT, EdgePlaces};
use crate::nn::{Tape, Tensor, Var};

/// The edge rows of some nodes' pending messages.
#[derive(Clone, Copy, Debug, Default)]
pub struct MessageRows<'a> {
    pub(super) rows: Option<&'a Tensor>,
    pub(super) types: &'a [u32],
    pub(super) numbers: &'a [u32],
    pub(super) places: Option<&'a EdgePlaces>,
}

impl<'a> MessageRows<'a> {
    /// Of the message that waits for the node at `place` the number of the edge's type, 0 if no types are known, and
    /// its features, none if edges have none; `None` if nothing was fetched for it.
    pub(super) fn of(&self, place: usize) -> Option<(u32, &'a [f32])> {
        if self.rows.is_none() && self.types.is_empty() {
            return Some((0, &[]));
        }
        let number = *self.numbers.get(place)? as usize;
        let kind = if self.types.is_empty() { 0 } else { *self.types.get(number)? };
        let Some(rows) = self.rows else { return Some((kind, &[])) };
        (number < rows.rows()).then(|| (kind, rows.row(number)))
    }

    /// Whether they are of no node.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.numbers.is_empty()
    }

    /// The same rows, which are on a GPU too.
    #[must_use]
    pub fn at(self, places: Option<&'a EdgePlaces>) -> Self {
        Self { places, ..self }
    }

    /// The features of the edges of the messages that wait for the nodes at these places, as a value of `tape`, where
    /// they are on its GPU.
    pub(super) fn on_gpu(&self, tape: &mut Tape<'_>, nodes: &[u32]) -> Option<Var> {
        // Only rows that exist have places.
        let places = self.places?;
        let number = |&node: &u32| self.numbers.get(node as usize).copied().unwrap_or(EMPTY_SLOT);
        let rows = nodes.iter().map(|node| places.of(number(node))).collect::<Vec<u32>>();
        Some(tape.rows_at(places.table(), &rows))
    }

    /// The same without the first `count` nodes.
    #[must_use]
    pub fn from(self, count: usize) -> Self {
        Self { numbers: self.numbers.get(count..).unwrap_or_default(), ..self }
    }
}
