//! Feature rows as bytes, for a rank that reads some of them: those of its own slots, messages and nodes, each edge
//! once. They have numbers of their own there, in the order in which they are read.

use std::io::{Read, Result, Write};
use std::ops::Range;
use std::sync::Arc;

use super::FeatureRows;
use crate::device::Device;
use crate::event::EdgeId;
use crate::model::EMPTY_SLOT;
use crate::model::part::of_another;
use crate::model::tables::{read_table, read_u64, write_table, write_u64};
use crate::nn::Tensor;

/// Which rows of a batch one rank reads.
#[derive(Clone, Debug, Default)]
pub struct RowsOfRank {
    /// Runs of slots of the sample.
    pub slots: Vec<Range<usize>>,
    /// Nodes whose messages are applied.
    pub messages: Range<usize>,
    /// Nodes whose own features are read.
    pub nodes: Range<usize>,
    /// Whether the messages that the batch leaves are read.
    pub next_messages: bool,
}

impl FeatureRows {
    /// Writes what [`read_part`](Self::read_part) reads, of a batch of `nodes` distinct nodes.
    ///
    /// # Errors
    /// What `out` reports.
    ///
    /// # Panics
    /// If a GPU reads rows in place, or nodes are read that have no rows.
    pub fn write_part(&self, read: &RowsOfRank, nodes: usize, out: &mut impl Write) -> Result<()> {
        assert!(self.in_place.is_none(), "rows that a GPU reads in place are not passed on");
        let (mut places, mut order) = (vec![EMPTY_SLOT; self.edges.len()], Vec::<usize>::new());
        let mut renumber = |number: &u32| {
            // An empty slot has no number.
            let Some(place) = places.get_mut(*number as usize) else { return EMPTY_SLOT };
            if *place == EMPTY_SLOT {
                *place = order.len() as u32;
                order.push(*number as usize);
            }
            *place
        };
        let mut renumbered = |numbers: &[u32]| numbers.iter().map(&mut renumber).collect::<Vec<u32>>();
        let runs = read.slots.iter().filter_map(|run| self.slots.get(run.clone()));
        write_table(out, &renumbered(&runs.collect::<Vec<_>>().concat()))?;
        write_table(out, &renumbered(self.messages.get(read.messages.clone()).unwrap_or_default()))?;
        write_table(out, &renumbered(if read.next_messages { &self.next_messages } else { &[] }))?;
        write_table(out, &self.message_edges)?;
        write_table(out, &order.iter().map(|&number| self.edges[number]).collect::<Vec<_>>())?;
        let typed = if self.types.is_empty() { &[][..] } else { &order };
        write_table(out, &typed.iter().map(|&number| self.types[number]).collect::<Vec<_>>())?;
        let width = self.edge_rows.as_ref().map_or(0, |rows| rows.cols());
        write_u64(out, width as u64)?;
        write_u64(out, (order.len() * width) as u64)?;
        if let Some(rows) = &self.edge_rows {
            order.iter().try_for_each(|&number| out.write_all(bytemuck::cast_slice(rows.row(number))))?;
        }
        let width = self.node_rows.len().checked_div(nodes).unwrap_or(0);
        write_u64(out, width as u64)?;
        write_table(out, &self.node_rows[read.nodes.start * width..read.nodes.end * width])
    }

    /// Becomes the rows that were written of a batch of so many distinct `nodes` and `slots`, for a rank that reads the
    /// same.
    ///
    /// # Errors
    /// The bytes are damaged or for another rank.
    pub fn read_part(
        &mut self,
        read: &RowsOfRank,
        (nodes, slots): (usize, usize),
        input: &mut impl Read,
    ) -> Result<()> {
        self.clear();
        self.slots = placed(&read.slots, &read_table(input)?, slots)?;
        self.messages = placed(std::slice::from_ref(&read.messages), &read_table(input)?, nodes)?;
        self.next_messages = read_table(input)?;
        self.message_edges = read_table::<EdgeId>(input)?;
        (self.edges, self.types) = (read_table(input)?, read_table(input)?);
        let width = usize::try_from(read_u64(input)?).map_err(|_| of_another("rows of edges"))?;
        let (count, values) = (self.edges.len(), read_table::<f32>(input)?);
        if values.len() != count * width || ![0, count].contains(&self.types.len()) {
            return Err(of_another("rows of edges"));
        }
        let rows = || Arc::new(Tensor::from_vec(&Device::Cpu, count, width, values));
        self.edge_rows = (width > 0).then(rows);
        let width = usize::try_from(read_u64(input)?).map_err(|_| of_another("rows of nodes"))?;
        self.node_rows = vec![0.0; nodes * width];
        let own = self.node_rows.get_mut(read.nodes.start * width..read.nodes.end * width);
        let (own, found) = (own.unwrap_or_default(), read_table::<f32>(input)?);
        if own.len() != found.len() {
            return Err(of_another("rows of nodes"));
        }
        own.copy_from_slice(&found);
        Ok(())
    }
}

/// `count` numbers: those that were found in these runs, and none elsewhere; no numbers if none were found.
fn placed(runs: &[Range<usize>], found: &[u32], count: usize) -> Result<Vec<u32>> {
    if found.is_empty() {
        return Ok(Vec::new());
    }
    let (mut all, mut left) = (vec![EMPTY_SLOT; count], found);
    for run in runs {
        let places = all.get_mut(run.clone()).ok_or_else(|| of_another("numbers of rows"))?;
        let (own, others) = left.split_at_checked(run.len()).ok_or_else(|| of_another("numbers of rows"))?;
        places.copy_from_slice(own);
        left = others;
    }
    if left.is_empty() { Ok(all) } else { Err(of_another("numbers of rows")) }
}
