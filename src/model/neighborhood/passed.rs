//! A neighborhood of one layer as bytes, for a rank that reads the sample of some seeds: all seeds and distinct nodes,
//! so that places in them mean the same everywhere, and of the slots those of its part.

use std::io::{Read, Result, Write};
use std::ops::Range;

use super::{EMPTY_SLOT, Neighborhood};
use crate::event::NodeId;
use crate::model::Part;
use crate::model::part::of_another;
use crate::model::tables::{read_table, read_table_into, read_u64, write_table, write_u64};
use crate::sampler::Seeds;

impl Neighborhood {
    /// Writes what [`read_part`](Self::read_part) reads: all seeds and nodes, and the sample of a part of the seeds.
    ///
    /// # Errors
    /// What `out` reports.
    ///
    /// # Panics
    /// If the sample has no layer.
    pub fn write_part(&self, part: &Part, out: &mut impl Write) -> Result<()> {
        let graph = &self.layers()[0].graph;
        write_table(out, &self.seed_nodes)?;
        write_table(out, &self.seed_times)?;
        write_table(out, self.nodes.nodes())?;
        write_table(out, &self.pairs)?;
        write_u64(out, graph.fanout as u64)?;
        write_table(out, &Part::select(Some(part), &self.neighbors, graph.fanout))?;
        write_table(out, &Part::select(Some(part), &graph.deltas, graph.fanout))?;
        write_table(out, &Part::select(Some(part), &graph.counts, 1))?;
        self.write_readers(out)
    }

    /// Becomes a neighborhood that has the sample of this part, `fanout` slots for each seed, and no neighbors
    /// elsewhere. Which edges they are stays unknown. `cut` says which parts of how many it is made of.
    ///
    /// # Errors
    /// The bytes are damaged or of another part.
    pub fn read_part(
        &mut self,
        (part, fanout): (&Part, usize),
        cut: (Range<usize>, usize),
        input: &mut impl Read,
    ) -> Result<()> {
        self.clear();
        read_table_into(input, &mut self.seed_nodes)?;
        read_table_into(input, &mut self.seed_times)?;
        let nodes: Vec<NodeId> = read_table(input)?;
        read_table_into(input, &mut self.pairs)?;
        let (seeds, found) = (self.seed_nodes.len(), usize::try_from(read_u64(input)?).ok());
        let fits = self.seed_times.len() == seeds && self.pairs.len() == seeds;
        if !fits || part.runs().any(|run| run.end > seeds) || found != Some(fanout) {
            return Err(of_another("the seeds"));
        }
        self.nodes.clear();
        self.nodes.insert_all(&nodes, &mut Vec::with_capacity(nodes.len()));
        let graph = self.layers.one(Seeds { nodes: &self.seed_nodes, times: &self.seed_times }, fanout);
        self.neighbors.clear();
        self.neighbors.resize(graph.neighbors.len(), EMPTY_SLOT);
        part.put(&read_table::<u32>(input)?, fanout, &mut self.neighbors)?;
        part.put(&read_table::<f32>(input)?, fanout, &mut graph.deltas)?;
        part.put(&read_table::<u32>(input)?, 1, &mut graph.counts)?;
        let count = self.nodes.nodes().len();
        let is_there = |slot: &u32| (*slot as usize) < count;
        let distinct = count == nodes.len() && self.pairs.iter().all(is_there);
        let counted = graph.counts.iter().all(|count| *count as usize <= fanout);
        let timed = graph.deltas.iter().all(|delta| delta.is_finite());
        // The first slots of a seed are filled, as many as it counts.
        let fits = |(k, slot): (usize, &u32), count: u32| match k < count as usize {
            true => is_there(slot),
            false => *slot == EMPTY_SLOT,
        };
        let mut seeds = self.neighbors.chunks(fanout.max(1)).zip(&graph.counts);
        let filled = seeds.all(|(slots, count)| slots.iter().enumerate().all(|slot| fits(slot, *count)));
        if !(distinct && counted && timed && filled) {
            return Err(of_another("the sample"));
        }
        self.read_readers((part, fanout), cut, input)
    }
}
