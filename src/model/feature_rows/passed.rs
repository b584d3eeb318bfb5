//! Feature rows as bytes, for a rank that reads some of them: those of its own slots, messages and nodes, each edge
//! once. They have numbers of their own there, in the order in which they are read. Rows of edges that the rank still
//! has are left out ([`kept`](super::kept)).

use std::io::{Read, Result, Write};
use std::ops::Range;
use std::sync::Arc;

use super::FeatureRows;
use super::kept::{KeptRows, SentRows};
use crate::model::part::{of_another, put_runs};
use crate::model::tables::{read_table, read_table_into, read_u64, write_table, write_u64};
use crate::model::{EMPTY_SLOT, Needs};
use crate::sampler::MessageFlowGraph;

/// Which rows of a batch one rank reads.
#[derive(Clone, Debug, Default)]
pub struct RowsOfRank {
    /// Runs of slots of the sample.
    pub slots: Vec<Range<usize>>,
    /// Nodes whose messages are applied.
    pub messages: Range<usize>,
    /// Nodes whose own features are read.
    pub nodes: Range<usize>,
    /// How many of the messages that the batch leaves are read: the first ones.
    pub next_messages: usize,
}

impl FeatureRows {
    /// Writes what [`read_part`](Self::read_part) reads, for a model with these needs, by a rank that got `sent`
    /// before.
    ///
    /// # Errors
    /// What `out` reports.
    ///
    /// # Panics
    /// If a GPU reads rows in place, or nodes are read that have no rows.
    pub fn write_part(
        &self,
        (needs, read): (&Needs, &RowsOfRank),
        sent: &mut SentRows,
        out: &mut impl Write,
    ) -> Result<()> {
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
        write_table(out, &renumbered(self.next_messages.get(..read.next_messages).unwrap_or_default()))?;
        write_table(out, &self.message_edges)?;
        write_table(out, &order.iter().map(|&number| self.edges[number]).collect::<Vec<_>>())?;
        let typed = if self.types.is_empty() { &[][..] } else { &order };
        write_table(out, &typed.iter().map(|&number| self.types[number]).collect::<Vec<_>>())?;
        let width = self.edge_rows.as_ref().map_or(0, |rows| rows.cols());
        let edges = order.iter().map(|&number| self.edges[number]);
        let missing = if width > 0 { sent.missing((self.version, width), edges) } else { Vec::new() };
        write_u64(out, self.version)?;
        write_u64(out, (missing.len() * width) as u64)?;
        if let Some(rows) = &self.edge_rows {
            let mut missing = missing.iter().map(|&place| rows.row(order[place]));
            missing.try_for_each(|row| out.write_all(bytemuck::cast_slice(row)))?;
        }
        let width = if read.nodes.is_empty() { 0 } else { needs.node_feature_dim };
        write_table(out, &self.node_rows[read.nodes.start * width..read.nodes.end * width])
    }

    /// Becomes the rows that were written of a batch of so many distinct `nodes` and a sample with these `neighbors`,
    /// for a rank that reads the same for a model with these needs, and that has `kept` what came before.
    ///
    /// # Errors
    /// The bytes are damaged or for another rank.
    pub fn read_part(
        &mut self,
        (needs, read): (&Needs, &RowsOfRank),
        (nodes, neighbors): (usize, &[u32]),
        kept: &mut KeptRows,
        input: &mut impl Read,
    ) -> Result<()> {
        self.clear();
        let mut found = Vec::new();
        let (has_edges, has_messages) = (needs.edge_row_dim > 0, needs.reads_messages());
        read_table_into(input, &mut found)?;
        place((has_edges, &read.slots), &found, (neighbors.len(), &mut self.slots))?;
        read_table_into(input, &mut found)?;
        let runs = std::slice::from_ref(&read.messages);
        place((has_messages, runs), &found, (nodes, &mut self.messages))?;
        read_table_into(input, &mut self.next_messages)?;
        read_table_into(input, &mut self.message_edges)?;
        read_table_into(input, &mut self.edges)?;
        read_table_into(input, &mut self.types)?;
        let (count, typed) = (self.edges.len(), needs.edge_types > 0);
        let is_there = |number: &u32| (*number as usize) < count;
        // A slot has a row if it has a neighbor.
        let mut slots = self.slots.iter().zip(neighbors);
        let waiting = self.messages.iter().zip(&self.message_edges).enumerate();
        let mut waiting = waiting.filter(|(place, (_, edge))| {
            read.messages.contains(place) && **edge != MessageFlowGraph::NO_EDGE
        });
        if !slots
            .all(|(row, neighbor)| if *neighbor == EMPTY_SLOT { *row == EMPTY_SLOT } else { is_there(row) })
            || !waiting.all(|(_, (number, _))| is_there(number))
            || !self.next_messages.iter().all(is_there)
            || self.next_messages.len() != read.next_messages
            || self.message_edges.len() != if has_messages { nodes } else { 0 }
            || self.types.len() != if typed { count } else { 0 }
            || self.types.iter().any(|kind| *kind as usize > needs.edge_types)
        {
            return Err(of_another("numbers of rows"));
        }
        let width = needs.edge_row_dim - usize::from(typed);
        let (version, values) = (read_u64(input)?, read_table::<f32>(input)?);
        let mut rows = self.take_room(width);
        let completed = match width {
            0 => values.is_empty().then_some(()),
            _ => kept.complete((version, width), (&self.edges, &values), rows.data_mut()),
        };
        completed.ok_or_else(|| of_another("rows of edges"))?;
        self.edge_rows = (width > 0).then(|| Arc::new(rows));
        read_table_into(input, &mut self.node_rows)?;
        let own = self.node_rows.len();
        let width = if read.nodes.is_empty() { 0 } else { needs.node_feature_dim };
        if own != read.nodes.len() * width {
            return Err(of_another("rows of nodes"));
        }
        // At their places among those of all nodes, of which no others are read.
        self.node_rows.resize(nodes * width, 0.0);
        self.node_rows.copy_within(..own, read.nodes.start * width);
        Ok(())
    }
}

/// Puts the numbers that were found in these runs to their places among `count`, with none elsewhere, if there are
/// to be any at all.
fn place(
    (is_read, runs): (bool, &[Range<usize>]),
    found: &[u32],
    (count, all): (usize, &mut Vec<u32>),
) -> Result<()> {
    all.clear();
    all.resize(if is_read { count } else { 0 }, EMPTY_SLOT);
    put_runs(if is_read { runs } else { &[] }, found, 1, all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Device;
    use crate::model::{EdgeTypes, GraphMixerOptions, ModelOptions};
    use crate::nn::Tensor;

    #[test]
    fn rows_that_do_not_fit_the_sample_or_the_model_are_refused() {
        let model = ModelOptions::from(GraphMixerOptions { edge_feature_dim: 2, ..Default::default() });
        let needs = model.with_edge_types(EdgeTypes::new(3, 2)).needs();
        let read = RowsOfRank { slots: vec![0..2, 2..4], ..RowsOfRank::default() };
        let result = |types: [u32; 2], neighbors: &[u32]| {
            let rows = FeatureRows {
                slots: vec![0, 1, 0, EMPTY_SLOT],
                edges: vec![5, 7],
                types: types.to_vec(),
                edge_rows: Some(Arc::new(Tensor::from_vec(&Device::Cpu, 2, 2, vec![1.0; 4]))),
                ..FeatureRows::default()
            };
            let mut bytes = Vec::new();
            rows.write_part((&needs, &read), &mut SentRows::default(), &mut bytes).unwrap();
            let (mut read_rows, mut kept) = (FeatureRows::default(), KeptRows::default());
            read_rows.read_part((&needs, &read), (3, neighbors), &mut kept, &mut &bytes[..])
        };
        let sample = [0, 2, 1, EMPTY_SLOT];
        assert!(result([0, 3], &sample).is_ok());
        assert!(result([0, 4], &sample).is_err(), "an unknown type");
        assert!(result([0, 3], &[0, 2, 1, 1]).is_err(), "a neighbor without a row");
        assert!(result([0, 3], &[0, 2, EMPTY_SLOT, EMPTY_SLOT]).is_err(), "a row without a neighbor");
    }
}
