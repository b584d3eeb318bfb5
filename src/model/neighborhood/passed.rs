//! A neighborhood of one layer as bytes, for a rank that reads the sample of some seeds: all seeds and distinct nodes,
//! so that places in them mean the same everywhere, and of the slots those of its part.

use std::io::{Read, Result, Write};

use super::{EMPTY_SLOT, Neighborhood};
use crate::event::{EventTime, NodeId};
use crate::model::Part;
use crate::model::part::of_another;
use crate::model::tables::{read_table, read_u64, write_table, write_u64};
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
        write_table(out, &Part::select(Some(part), &graph.counts, 1))
    }

    /// Becomes a neighborhood that has the sample of this part, and no neighbors elsewhere. Which edges they are stays
    /// unknown.
    ///
    /// # Errors
    /// The bytes are damaged or of another part.
    pub fn read_part(&mut self, part: &Part, input: &mut impl Read) -> Result<()> {
        self.clear();
        self.seed_nodes = read_table::<NodeId>(input)?;
        self.seed_times = read_table::<EventTime>(input)?;
        let (nodes, pairs) = (read_table::<NodeId>(input)?, read_table::<u32>(input)?);
        let fanout = usize::try_from(read_u64(input)?).map_err(|_| of_another("the sample"))?;
        let seeds = self.seed_nodes.len();
        let fits = self.seed_times.len() == seeds && pairs.len() == seeds;
        if !fits || part.runs().any(|run| run.end > seeds) {
            return Err(of_another("the seeds"));
        }
        self.nodes.clear();
        self.nodes.insert_all(&nodes, &mut Vec::with_capacity(nodes.len()));
        self.pairs = pairs;
        let all = Seeds { nodes: &self.seed_nodes, times: &self.seed_times };
        let graph = self.layers.one(all, fanout);
        self.neighbors.clear();
        self.neighbors.resize(graph.neighbors.len(), EMPTY_SLOT);
        part.put(&read_table::<u32>(input)?, fanout, &mut self.neighbors)?;
        part.put(&read_table::<f32>(input)?, fanout, &mut graph.deltas)?;
        part.put(&read_table::<u32>(input)?, 1, &mut graph.counts)
    }
}
