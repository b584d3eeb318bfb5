//! [`SentRows`] and [`KeptRows`]: the rows of edges that one rank has passed to another one, which keeps the last of
//! them. An edge is read again and again while it is recent, and its row never changes, so that each row goes once as
//! long as it is kept.
//!
//! Both ends have the same table of edges and bring it up to date by the same rule in the same order, so nothing is
//! passed about what is kept: an edge has one place, its id modulo the table's length, and whatever is read last is
//! there. Ids grow with time, so the table has about the last edges. Rows are from one version of their source: after a
//! deletion, which clears rows, both ends begin again. A row that is cleared while a batch is gathered may be used once
//! more here.

use crate::sampler::MessageFlowGraph;

/// Bytes of rows that are kept at most.
const KEPT_BYTES: usize = 64 << 20;

/// Rows that are kept at most.
const KEPT_ROWS: usize = 1 << 17;

/// Stands where no row is: no edge has it, and the rows that count as zeros are not passed.
const NOTHING: u64 = MessageFlowGraph::NO_EDGE.0;

/// What is known of the rows that are kept.
#[derive(Debug, Default)]
struct Edges {
    by_place: Vec<u64>,
    /// Version of the rows' source, and their width.
    of: (u64, usize),
}

/// What the other end keeps, known where rows are sent.
#[derive(Debug, Default)]
pub struct SentRows(Edges);

/// The rows that came.
#[derive(Debug, Default)]
pub struct KeptRows {
    edges: Edges,
    rows: Vec<f32>,
}

impl Edges {
    /// Begins to take in the rows of a batch.
    fn begin(&mut self, of: (u64, usize)) {
        if self.of != of {
            let bytes = of.1.max(1) * size_of::<f32>();
            self.of = of;
            self.by_place.clear();
            self.by_place.resize((KEPT_BYTES / bytes).clamp(1, KEPT_ROWS), NOTHING);
        }
    }

    /// The place of an edge's row, and whether the row is there; it is from now on.
    fn take_in(&mut self, edge: u64) -> (usize, bool) {
        let count = self.by_place.len() as u64;
        // Less than the length of a vector.
        let place = edge.checked_rem(count).unwrap_or_default() as usize;
        let was = self.by_place.get_mut(place).map(|at| std::mem::replace(at, edge));
        (place, was == Some(edge))
    }

    fn bytes(&self) -> usize {
        self.by_place.capacity() * size_of::<u64>()
    }
}

impl SentRows {
    /// Those of the `edges` of a batch, in this order, whose rows have to be sent, as their numbers. The rows are of
    /// this version of their source and of this width.
    pub(super) fn missing(&mut self, of: (u64, usize), edges: impl Iterator<Item = u64>) -> Vec<usize> {
        self.0.begin(of);
        let mut is_missing = |edge: u64| edge != NOTHING && !self.0.take_in(edge).1;
        edges.enumerate().filter(|(_, edge)| is_missing(*edge)).map(|(number, _)| number).collect()
    }

    /// Bytes held.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.0.bytes()
    }
}

impl KeptRows {
    /// Makes `rows` those of the `edges` of a batch, one after another, given those that [`SentRows::missing`] named
    /// there; `None` if these are more or fewer, or there is another number of `rows`.
    pub(super) fn complete(
        &mut self,
        of: (u64, usize),
        (edges, sent): (&[u64], &[f32]),
        rows: &mut [f32],
    ) -> Option<()> {
        let width = of.1;
        self.edges.begin(of);
        let room = self.edges.by_place.len() * width;
        if self.rows.len() != room {
            // Memory that becomes resident as rows come.
            self.rows = vec![0.0; room];
        }
        if rows.len() != edges.len() * width {
            return None;
        }
        let mut left = sent;
        for (row, &edge) in rows.chunks_exact_mut(width.max(1)).zip(edges) {
            if edge == NOTHING {
                row.fill(0.0);
                continue;
            }
            let (place, is_there) = self.edges.take_in(edge);
            let kept = self.rows.get_mut(place * width..(place + 1) * width)?;
            if !is_there {
                let (next, others) = left.split_at_checked(width)?;
                kept.copy_from_slice(next);
                left = others;
            }
            row.copy_from_slice(kept);
        }
        left.is_empty().then_some(())
    }

    /// Bytes held.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.edges.bytes() + self.rows.capacity() * size_of::<f32>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::rng;

    fn row(edge: u64, version: u64) -> [f32; 2] {
        if edge == NOTHING { [0.0; 2] } else { [edge as f32, version as f32] }
    }

    #[test]
    fn rows_that_are_kept_are_not_sent_again() {
        let (mut here, mut there) = (SentRows::default(), KeptRows::default());
        let mut pass = |version: u64, edges: &[u64]| {
            let missing = here.missing((version, 2), edges.iter().copied());
            let sent: Vec<f32> = missing.iter().flat_map(|&number| row(edges[number], version)).collect();
            let mut rows = vec![7.0; 2 * edges.len()];
            there.complete((version, 2), (edges, &sent), &mut rows).unwrap();
            assert_eq!(rows, edges.iter().flat_map(|&edge| row(edge, version)).collect::<Vec<_>>());
            missing.len()
        };
        let far = 7 + KEPT_ROWS as u64;
        assert_eq!(pass(1, &[3, 7, NOTHING]), 2, "zeros are not sent");
        assert_eq!(pass(1, &[7, 9, 3]), 1);
        assert_eq!(pass(1, &[far, 7, far]), 3, "they have one place");
        assert_eq!(pass(2, &[9, 3]), 2, "rows have changed");
        for batch in 0..200 {
            let edge = |i: u64| rng::below([1, batch, i, 0], 300_000).into();
            pass(3 + batch / 50, &(0..500).map(edge).collect::<Vec<_>>());
        }
    }

    #[test]
    fn rows_that_were_not_sent_are_found_out() {
        let complete = |sent: &[f32], rows: &mut [f32]| {
            KeptRows::default().complete((1, 2), (&[3, 4], sent), rows).is_some()
        };
        assert!(complete(&[1.0; 4], &mut [0.0; 4]));
        assert!(!complete(&[1.0; 3], &mut [0.0; 4]) && !complete(&[1.0; 6], &mut [0.0; 4]));
        assert!(!complete(&[1.0; 4], &mut [0.0; 5]));
        assert!(KeptRows::default().complete((1, 0), (&[3, 4], &[]), &mut []).is_some());
    }
}
