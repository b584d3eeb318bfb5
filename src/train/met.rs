//! Destinations that each source met: negatives that differ from positives by nothing but their moment.
//!
//! Against random negatives a model does well that scores every pair high that ever met, and such a model knows nothing
//! of *when* pairs meet again. A share of negatives that did meet before, but not now, makes it learn that.

use std::io::{Read, Result, Write};

use bytemuck::{Pod, Zeroable};
use hashbrown::HashSet;

use crate::device::rng;
use crate::event::{NodeId, NodeTable};
use crate::model::Needs;
use crate::model::tables::{read_nodes, write_nodes};

/// Share of such negatives for a model that needs this, unless another is set. Walks tell pairs that ever met from
/// others all too well; alone they lose more on random negatives than they do beside embeddings.
#[must_use]
pub fn met_share(needs: &Needs) -> f64 {
    match needs.walks {
        Some(_) if needs.embeds() => 0.25,
        Some(_) => 0.1,
        None => 0.0,
    }
}

/// Destinations that are kept of a source.
const KEPT: usize = 8;

/// Keeps the choice of those apart from everything else that is drawn.
const STREAM: u64 = 0x6d65_745f_6b65_7074;

/// What is kept of one source.
#[derive(Clone, Copy, Debug, PartialEq, Pod, Zeroable)]
#[repr(C)]
struct Row {
    met: [NodeId; KEPT],
    /// How often it met one that is not kept.
    others: u32,
}

const NONE: Row = Row { met: [NodeId::NONE; KEPT], others: 0 };

/// For each source, a few of the destinations that it met, of its whole past alike. A function of the events alone.
#[derive(Clone, Debug)]
pub struct MetDestinations {
    rows: NodeTable<Row>,
}

impl Default for MetDestinations {
    fn default() -> Self {
        Self { rows: NodeTable::new(NONE) }
    }
}

impl MetDestinations {
    /// Takes in events, in their order. The columns are equally long.
    pub fn observe(&mut self, src: &[NodeId], dst: &[NodeId]) {
        for (&src, &dst) in src.iter().zip(dst) {
            let mut row = self.rows.get(src);
            if row.met.contains(&dst) {
                continue;
            }
            let free = row.met.iter().position(|&met| met == NodeId::NONE);
            let place = free.unwrap_or_else(|| {
                // Each of those that came so far stays with the same probability.
                row.others = row.others.saturating_add(1);
                let came = row.others.saturating_add(KEPT as u32);
                rng::below([STREAM, u64::from(src.0), u64::from(row.others), 0], came) as usize
            });
            if let Some(met) = row.met.get_mut(place) {
                *met = dst;
            }
            self.rows.set(src, row);
        }
    }

    /// A destination that `src` met and `may_be` accepts, by `below(n)`, which draws a number in `0..n`; `None` if
    /// there is none.
    pub fn draw(
        &self,
        src: NodeId,
        may_be: impl Fn(NodeId) -> bool,
        below: impl FnOnce(usize) -> usize,
    ) -> Option<NodeId> {
        let mut row = self.rows.get(src).met;
        let mut count = 0;
        for place in 0..KEPT {
            if row[place] != NodeId::NONE && may_be(row[place]) {
                row.swap(count, place);
                count += 1;
            }
        }
        (count > 0).then(|| row[below(count)])
    }

    /// Forgets what these sources met. That others met them is up to who draws.
    pub fn forget(&mut self, sources: &[NodeId]) {
        sources.iter().for_each(|&src| self.rows.set(src, NONE));
    }

    /// Drops these nodes from what any source met.
    pub fn drop_nodes(&mut self, nodes: &[NodeId]) {
        if nodes.is_empty() {
            return;
        }
        let gone: HashSet<NodeId> = nodes.iter().copied().collect();
        self.rows.update(|_, mut row| {
            row.met.iter_mut().filter(|met| gone.contains(*met)).for_each(|met| *met = NodeId::NONE);
            row
        });
    }

    /// Bytes held.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.rows.bytes()
    }

    /// Writes all of it.
    ///
    /// # Errors
    /// What `out` reports.
    pub fn write(&self, out: &mut impl Write) -> Result<()> {
        write_nodes(out, &self.rows, |row| row)
    }

    /// What [`write`](Self::write) wrote.
    ///
    /// # Errors
    /// The bytes are damaged.
    pub fn read(input: &mut impl Read) -> Result<Self> {
        Ok(Self { rows: read_nodes(input, NONE)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(met: &MetDestinations, src: u32, may_be: impl Fn(NodeId) -> bool) -> Vec<u32> {
        let mut found: Vec<u32> = (0..KEPT)
            .filter_map(|place| met.draw(NodeId(src), &may_be, |count| place.min(count - 1)))
            .map(|node| node.0)
            .collect();
        found.dedup();
        found
    }

    #[test]
    fn what_a_source_met_is_drawn_and_comes_back_from_bytes() {
        let mut met = MetDestinations::default();
        met.observe(&[NodeId(7); 5], &[1, 2, 1, 3, 2].map(NodeId));
        assert_eq!(all(&met, 7, |_| true), [1, 2, 3]);
        assert_eq!(all(&met, 7, |node| node.0 != 2), [1, 3]);
        assert_eq!(all(&met, 8, |_| true), [0; 0]);
        let many: Vec<NodeId> = (10..30).map(NodeId).collect();
        met.observe(&[NodeId(7); 20], &many);
        assert_eq!(all(&met, 7, |_| true).len(), KEPT);
        let mut bytes = Vec::new();
        met.write(&mut bytes).unwrap();
        let mut again = MetDestinations::read(&mut &bytes[..]).unwrap();
        for both in [&mut met, &mut again] {
            both.observe(&[NodeId(7); 20], &many);
        }
        assert_eq!(all(&again, 7, |_| true), all(&met, 7, |_| true));
        let kept = all(&again, 7, |_| true);
        again.drop_nodes(&[NodeId(kept[0]), NodeId(kept[3])]);
        let left: Vec<u32> = kept.iter().copied().filter(|&dst| dst != kept[0] && dst != kept[3]).collect();
        assert_eq!(all(&again, 7, |_| true), left);
        again.forget(&[NodeId(7)]);
        assert_eq!(all(&again, 7, |_| true), [0; 0]);
        assert!((0..bytes.len()).all(|end| MetDestinations::read(&mut &bytes[..end]).is_err()));
    }

    #[test]
    fn the_whole_past_of_a_source_is_kept_alike() {
        let mut met = MetDestinations::default();
        let past: Vec<NodeId> = (0..100).map(NodeId).collect();
        (0..1_000).for_each(|src| met.observe(&[NodeId(src); 100], &past));
        let mut decades = [0; 10];
        (0..1_000).flat_map(|src| all(&met, src, |_| true)).for_each(|dst| decades[dst as usize / 10] += 1);
        assert!(decades.iter().all(|&kept| (680..=920).contains(&kept)), "{decades:?}");
    }
}
