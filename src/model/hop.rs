//! [`Hop`]: what one level of a network reads. Level 1 is the innermost: it reads rows of distinct nodes, for every
//! (node, time) pair of all layers of the sample. Each further level reads the rows that the level before it made, for
//! one layer of pairs less, until the last makes a row for each seed.
//!
//! ```text
//! two layers      level 1                                    level 2
//! reads           rows of distinct nodes                     rows of level 1
//! makes           a row per seed, then per pair of layer 1   a row per seed
//! ```

use std::ops::Range;
use std::sync::Arc;

use super::{FeatureRows, Neighborhood, Part};
use crate::nn::{InverseIndex, List, Places, SlotRows, Tape, Tensor, TimeEncoder, Var};

/// What one level of a network reads: `n` pairs with K slots each.
#[derive(Clone, Debug)]
pub struct Hop {
    /// The row of each pair itself, `[n]`.
    pub own: Vec<u32>,
    /// The row of the neighbor in each slot, `[n * K]`; [`EMPTY_SLOT`](super::EMPTY_SLOT) where there is none.
    pub neighbors: List<u32>,
    /// Which slots read each row that there is, where they were [listed](Neighborhood::list_slots) before.
    pub readers: Option<Arc<InverseIndex>>,
    /// Time of the pair minus time of the edge, `[n * K]`.
    pub deltas: List<f32>,
    /// Filled slots of each pair, the first ones, `[n]`.
    pub counts: Vec<u32>,
    /// Rows of features of edges, if edges have any.
    pub edge_rows: Option<Arc<Tensor>>,
    /// Which of these belongs to each slot, `[n * K]`; `None` without features.
    pub edges: Option<Places>,
    /// Number of the type of the edge in each slot, `[n * K]`, 0 in empty ones; empty if no types are known.
    pub types: Vec<u32>,
}

impl Hop {
    /// What is in each slot, `[n * K, node columns + edge_feature_dim + time_dim]`: the neighbor's row of `table`, the
    /// features of the edge and the encoding of the time since then. Empty slots are zeros.
    pub(super) fn slot_rows(self, tape: &mut Tape<'_>, table: Var, time: &TimeEncoder) -> Var {
        let edges = self.edge_rows.zip(self.edges);
        tape.slot_rows(SlotRows { nodes: table, node: self.neighbors, edges, deltas: self.deltas, time })
    }
}

impl Neighborhood {
    /// What level `level` (1 and up) of a network with as many levels as the sample has layers reads.
    ///
    /// With a `part`, of a sample of one layer, only its seeds are read.
    ///
    /// # Panics
    /// If there are fewer layers, or the rows are of another neighborhood.
    #[must_use]
    pub fn hop(&self, level: usize, rows: &FeatureRows, part: Option<&Part>) -> Hop {
        let depth = self.layers().len() + 1 - level;
        let graphs = || self.layers()[..depth].iter().map(|layer| &layer.graph);
        let (pairs, fanout) = (self.pairs_in(depth), self.layers()[0].graph.fanout);
        let (slots, on_gpu) = (pairs * fanout, self.on_gpu());
        let (own, neighbors) = match level {
            1 => {
                let here = || Part::select(part, self.neighbors(), fanout).into();
                let there = on_gpu.and_then(|columns| columns.neighbors.as_ref());
                (
                    Part::select(part, self.pairs(), 1),
                    there.map_or_else(here, |ends| List::Gpu(ends.front(slots))),
                )
            }
            // Rows of the level before are in the order of the pairs.
            _ => ((0..pairs as u32).collect(), self.next_pairs(0..depth).into()),
        };
        let deltas = match on_gpu {
            Some(columns) => List::Gpu(columns.deltas.front(slots)),
            None => column(graphs().map(|graph| &graph.deltas[..]), part, fanout).into(),
        };
        let edge_rows = rows.edge_rows();
        let listed = on_gpu.and_then(|columns| columns.edges.as_ref());
        let edges = edge_rows.as_ref().map(|_| match listed {
            Some(at) => Places::Through { at: at.front(slots), rows: rows.slots().to_vec() },
            None => Part::select(part, &rows.slots()[..slots], fanout).into(),
        });
        let types = rows.slot_types(slots);
        Hop {
            own,
            neighbors,
            readers: self.slot_readers().filter(|_| level == 1 && part.is_none()).cloned(),
            deltas,
            counts: column(graphs().map(|graph| &graph.counts[..]), part, 1),
            edge_rows,
            edges,
            types: if types.is_empty() { types } else { Part::select(part, &types, fanout) },
        }
    }

    /// For each slot of these layers, which pair it is, counted over all layers.
    fn next_pairs(&self, layers: Range<usize>) -> Vec<u32> {
        let mut places = Vec::new();
        for layer in layers {
            let first = self.pairs_in(layer + 1) as u32;
            // An empty slot stays the greatest number.
            let place = |&pair: &u32| pair.saturating_add(if pair == u32::MAX { 0 } else { first });
            places.extend(self.layers()[layer].next.iter().map(place));
        }
        places
    }
}

/// A column of all layers; of a part the seeds' alone, whose sample has one layer.
fn column<'g, T: Copy + 'g>(
    layers: impl Iterator<Item = &'g [T]>,
    part: Option<&Part>,
    width: usize,
) -> Vec<T> {
    let columns: Vec<&[T]> = layers.collect();
    match (part, &columns[..]) {
        (None, columns) => columns.concat(),
        (Some(_), [column]) => Part::select(part, column, width),
        (Some(_), columns) => panic!("a part of {} layers", columns.len()),
    }
}
