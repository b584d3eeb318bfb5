//! [`Readers`]: which parts of a cut sample read the row of each distinct node, and which part computes it.
//!
//! A row is computed by a part that reads it, so that ranks, which have some of the parts each, exchange only the rows
//! that several of them read. Rows that one part reads are that part's; each of the others goes to the part with the
//! fewest rows among its readers, in order of first appearance. Parts get about equally many rows so, as long as they
//! read about equally many. All of it follows from the sample and the cut alone, so it is the same for any number of
//! ranks.

use std::io::{Read, Result, Write};
use std::ops::Range;

use super::{EMPTY_SLOT, Neighborhood};
use crate::model::Part;
use crate::model::part::of_another;
use crate::model::tables::{read_table_into, write_table};

/// Parts of a sample at most: each is a bit.
pub const PARTS_MAX: usize = u8::BITS as usize;

/// Who reads and who computes the rows of distinct nodes, which stand part by part.
#[derive(Clone, Debug, Default)]
pub struct Readers {
    /// By slot, a bit for each part that reads it; empty where there is one part.
    masks: Vec<u8>,
    /// Where the nodes of each part end.
    ends: Vec<u32>,
}

impl Readers {
    /// Those of nodes with these masks, which end so by part.
    #[cfg(test)]
    pub(crate) fn of(masks: &[u8], ends: &[u32]) -> Self {
        Self { masks: masks.to_vec(), ends: ends.to_vec() }
    }

    /// So many nodes, all of one part.
    pub(super) fn whole(&mut self, nodes: usize) {
        self.masks.clear();
        self.ends.clear();
        // Distinct nodes are counted in 32 bits.
        self.ends.push(nodes as u32);
    }

    /// How many parts there are: one, if the sample is not cut.
    #[must_use]
    pub fn parts(&self) -> usize {
        self.ends.len().max(1)
    }

    /// The slots of the nodes whose rows these parts compute.
    #[must_use]
    pub fn nodes_of(&self, parts: Range<usize>) -> Range<usize> {
        let end = |parts: usize| parts.checked_sub(1).and_then(|last| self.ends.get(last)).copied();
        let [begin, end] = [parts.start, parts.end].map(|parts| end(parts).unwrap_or_default() as usize);
        begin..end
    }

    /// Those of the nodes at these slots whose rows are read by one of these parts.
    pub fn read_by(&self, nodes: Range<usize>, parts: Range<usize>) -> impl Iterator<Item = usize> {
        let first = nodes.start;
        let masks = self.masks.get(nodes).unwrap_or_default().iter().enumerate();
        masks.filter(move |(_, mask)| **mask & bits(&parts) != 0).map(move |(i, _)| first + i)
    }

    /// Bytes held.
    pub(super) fn bytes(&self) -> usize {
        self.masks.capacity() + self.ends.capacity() * size_of::<u32>()
    }

    /// Decides which of so many parts computes each row, and with that where the nodes of each part end. Returns the
    /// new slot of each node.
    fn arrange(&mut self, parts: usize) -> Vec<u32> {
        let mut counts = [0_u32; PARTS_MAX];
        let sole = |mask: u8| (mask.count_ones() == 1).then(|| mask.trailing_zeros() as usize);
        self.masks.iter().filter_map(|mask| sole(*mask)).for_each(|part| counts[part] += 1);
        let computed_by = self.masks.iter().map(|&mask| {
            sole(mask).unwrap_or_else(|| {
                let readers = if mask == 0 { bits(&(0..parts)) } else { mask };
                let readers = (0..parts).filter(|part| readers >> part & 1 == 1);
                let part = readers.min_by_key(|part| counts[*part]).unwrap_or_default();
                counts[part] += 1;
                part
            })
        });
        let computed_by: Vec<usize> = computed_by.collect();
        let (mut next, mut end) = ([0; PARTS_MAX], 0);
        self.ends.clear();
        for part in 0..parts {
            next[part] = end;
            end += counts[part];
            self.ends.push(end);
        }
        let place = |part: usize| {
            next[part] += 1;
            next[part] - 1
        };
        computed_by.into_iter().map(place).collect()
    }
}

impl Neighborhood {
    /// Cuts a numbered sample of one layer into these parts of its seeds: the distinct nodes stand part by part from
    /// now on, each with a part that reads it, and in order of first appearance within a part.
    ///
    /// # Panics
    /// If there are more than [`PARTS_MAX`], or the sample has no layer.
    pub fn cut(&mut self, parts: &[Part]) {
        assert!(parts.len() <= PARTS_MAX, "{} parts of a sample", parts.len());
        // A GPU computes no parts.
        if parts.len() < 2 || self.on_gpu().is_some_and(|columns| columns.neighbors.is_some()) {
            return;
        }
        let Self { layers, nodes, pairs, neighbors, readers, slot_readers, .. } = self;
        *slot_readers = None;
        let fanout = layers.layers()[0].graph.fanout;
        readers.masks.clear();
        readers.masks.resize(nodes.nodes().len(), 0);
        for (i, part) in parts.iter().enumerate() {
            for run in part.runs() {
                let slots = &neighbors[run.start * fanout..run.end * fanout];
                for &slot in slots.iter().chain(&pairs[run]) {
                    // An empty slot has none.
                    if let Some(mask) = readers.masks.get_mut(slot as usize) {
                        *mask |= 1 << i;
                    }
                }
            }
        }
        let places = readers.arrange(parts.len());
        let mut masks = vec![0; places.len()];
        places.iter().zip(&readers.masks).for_each(|(place, mask)| masks[*place as usize] = *mask);
        readers.masks = masks;
        nodes.move_to(&places);
        for slot in pairs.iter_mut().chain(neighbors).filter(|slot| **slot != EMPTY_SLOT) {
            *slot = places[*slot as usize];
        }
    }

    /// Who reads and who computes the rows of the distinct nodes.
    #[must_use]
    pub fn readers(&self) -> &Readers {
        &self.readers
    }

    pub(super) fn write_readers(&self, out: &mut impl Write) -> Result<()> {
        write_table(out, &self.readers.masks)?;
        write_table(out, &self.readers.ends)
    }

    /// Reads what was written for one who reads the rows at the slots of `part`, one of `parts` or some of them.
    ///
    /// # Errors
    /// The bytes are damaged or of another sample.
    pub(super) fn read_readers(
        &mut self,
        (part, fanout): (&Part, usize),
        (own, parts): (Range<usize>, usize),
        input: &mut impl Read,
    ) -> Result<()> {
        let Self { nodes, pairs, neighbors, readers, .. } = self;
        let Readers { masks, ends } = readers;
        read_table_into(input, masks)?;
        read_table_into(input, ends)?;
        let count = nodes.nodes().len();
        let is_cut =
            ends.len() == parts && ends.is_sorted() && ends.last().is_some_and(|end| *end as usize == count);
        let has_masks = masks.len() == if parts > 1 { count } else { 0 };
        let reads = |slot: &u32| masks.get(*slot as usize).is_none_or(|mask| mask & bits(&own) != 0);
        let slots =
            |run: Range<usize>| neighbors[run.start * fanout..run.end * fanout].iter().chain(&pairs[run]);
        match is_cut && has_masks && part.runs().flat_map(slots).all(reads) {
            true => Ok(()),
            false => Err(of_another("who reads rows")),
        }
    }
}

/// A bit for each of these parts.
fn bits(parts: &Range<usize>) -> u8 {
    // Of the lowest parts, as many as there are.
    let below = |end: usize| if end >= PARTS_MAX { u8::MAX } else { (1 << end) - 1 };
    below(parts.end) & !below(parts.start)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{EdgeBatch, EventTime, NodeId};
    use crate::graph::{GraphOptions, GraphStore};
    use crate::model::TgnOptions;
    use crate::sampler::Seeds;

    /// Seeds 1 to 4 with the neighbors 5 to 8: 1 has 5 and 6, 2 has 6, 3 has 6 and 7, 4 has 8.
    fn sampled() -> Neighborhood {
        let mut batch = EdgeBatch::default();
        for (src, dst, time) in [(1, 5, 1), (1, 6, 2), (2, 6, 3), (3, 6, 4), (3, 7, 5), (4, 8, 6)] {
            batch.push_edge(NodeId(src), NodeId(dst), EventTime(time));
        }
        let graph = GraphStore::new(GraphOptions::default());
        graph.apply(&batch).unwrap();
        let needs = TgnOptions { fanout: 2, ..TgnOptions::default() }.needs();
        let mut neighborhood = Neighborhood::default();
        neighborhood.add_seeds(&[1, 2, 3, 4].map(NodeId), &[EventTime(9); 4]);
        let request = needs.sample_request();
        let draw =
            |seeds: Seeds<'_>, out: &mut crate::sampler::Layers| out.sample(graph.view(), seeds, &request, 1);
        neighborhood.sample_with(&needs, draw).unwrap();
        neighborhood.number(&[NodeId(9)]);
        neighborhood
    }

    #[test]
    fn rows_are_computed_by_a_part_that_reads_them() {
        let mut neighborhood = sampled();
        let named = |neighborhood: &Neighborhood| -> Vec<u32> {
            let slots = neighborhood.pairs().iter().chain(neighborhood.neighbors());
            let nodes = neighborhood.nodes().nodes();
            slots.filter_map(|slot| nodes.get(*slot as usize)).map(|node| node.0).collect()
        };
        let before = named(&neighborhood);
        assert_eq!(neighborhood.readers().nodes_of(0..1), 0..9);
        neighborhood.list_slots();
        neighborhood.cut(&[0..1, 1..3, 3..4].map(|events| Part::of_events(&events, 4, 1)));
        let (nodes, readers) = (neighborhood.nodes(), neighborhood.readers());
        let of = |parts| nodes.nodes()[readers.nodes_of(parts)].iter().map(|node| node.0).collect::<Vec<_>>();
        // 1 and 5 are read by the first part, 2, 3 and 7 by the second, 4 and 8 by the third; 6 by the first two, of
        // which the first has fewer. 9 is read by none, and the third has fewest by then.
        assert_eq!([of(0..1), of(1..2), of(2..3)], [vec![1, 6, 5], vec![2, 3, 7], vec![4, 8, 9]]);
        assert_eq!((of(1..3), of(0..3).len()), (vec![2, 3, 7, 4, 8, 9], 9));
        assert_eq!(named(&neighborhood), before, "slots name the same nodes as before");
        assert!(neighborhood.slot_readers().is_none(), "by other numbers");
        let at = |node| nodes.slot(NodeId(node)).map(|slot| slot as usize);
        assert!((1..10).all(|node| at(node).is_some_and(|slot| nodes.nodes()[slot].0 == node)));
        let read: Vec<usize> = readers.read_by(readers.nodes_of(0..1), 1..3).collect();
        assert_eq!(read, [at(6).unwrap()], "the others need 6 of the first part");
        assert_eq!(readers.read_by(readers.nodes_of(1..3), 0..1).count(), 0);
    }

    #[test]
    fn bits_are_those_of_the_parts() {
        assert_eq!([0..0, 0..1, 1..3, 4..8, 0..8].map(|parts| bits(&parts)), [0, 1, 6, 0xf0, 0xff]);
    }
}
