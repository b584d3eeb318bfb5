//! [`Table`]: what the embeddings of a batch read of its distinct nodes, a row each, computed in parts ([`RowPart`])
//! that each have a tape of their own; of several ranks, each computes some and gets those of the others that it reads.

use std::ops::Range;
use std::sync::Arc;

use super::pass::{Memory, Pass};
use super::ranks::Ranks;
use super::shards::sum_in_tree;
use super::shared_rows::SharedRows;
use crate::device::exchange::ExchangeError;
use crate::nn::{Gradients, Tape, Tensor, Var};

/// A part of the table, on its tape.
pub(super) struct RowPart<'t> {
    pub tape: Tape<'t>,
    /// Which of the distinct nodes.
    pub nodes: Range<usize>,
    pub memory: Memory,
    table: Var,
    /// Whether a gradient has to flow into it.
    flows: bool,
}

/// All rows; of several ranks, those that this one computes or reads.
pub(super) struct Table {
    pub rows: Arc<Tensor>,
    /// Whether gradients have to flow into them.
    pub flows: bool,
    /// Fresh memory rows of the nodes that were asked about, one after another.
    pub fresh: Vec<f32>,
}

impl<'t> RowPart<'t> {
    /// Computes the rows of these of the distinct nodes.
    pub fn new(pass: &Pass<'_>, mut tape: Tape<'t>, nodes: Range<usize>) -> Self {
        let memory = pass.memory(&mut tape, nodes.clone());
        let table = pass.table(&mut tape, &memory, nodes.clone());
        Self { tape, nodes, memory, table, flows: false }
    }

    /// Walks back from the sum of what flowed into the rows, given from the `first` node on, and returns what flowed
    /// into the memory's leaf.
    pub fn backward(
        &mut self,
        (flowed, first): (&[&[f32]], usize),
        gradients: &mut Gradients,
    ) -> Option<Tensor> {
        if !self.flows {
            return None;
        }
        let width = self.tape.value(self.table).cols();
        let mut sum = self.tape.take(self.nodes.len(), width);
        let own = (self.nodes.start - first) * width..(self.nodes.end - first) * width;
        let flowed: Vec<&[f32]> = flowed.iter().map(|flowed| &flowed[own.clone()]).collect();
        sum_in_tree(sum.data_mut(), &flowed);
        self.tape.backward_from_to(self.memory.leaf(), (self.table, sum), gradients)
    }

    /// Copies the memory rows of those nodes at the slots `asked` that the part has to their places in `rows`.
    fn copy_memory(&self, asked: &[u32], rows: &mut [f32]) {
        let memory = self.tape.value(self.memory.rows());
        let places = rows.chunks_exact_mut(memory.cols().max(1)).zip(asked);
        for (row, slot) in places.filter(|(_, slot)| self.nodes.contains(&(**slot as usize))) {
            row.copy_from_slice(memory.row(*slot as usize - self.nodes.start));
        }
    }
}

impl Table {
    /// The rows of all parts as one tensor with a row for each of so many `nodes`, and the fresh memory of the nodes at
    /// the slots `asked`.
    ///
    /// # Errors
    /// The exchange with other ranks failed.
    pub fn of(
        parts: &mut [RowPart<'_>],
        (asked, nodes): (&[u32], usize),
        others: Option<&mut (&mut Ranks, &SharedRows)>,
    ) -> Result<Self, ExchangeError> {
        let mut shared = Vec::with_capacity(parts.len());
        for part in &mut *parts {
            let (rows, flows) = part.tape.share(part.table);
            part.flows = flows;
            shared.push(rows);
        }
        let mut flows = parts.iter().any(|part| part.flows);
        let memory_width = parts[0].tape.value(parts[0].memory.rows()).cols();
        let mut fresh = vec![0.0; asked.len() * memory_width];
        parts.iter().for_each(|part| part.copy_memory(asked, &mut fresh));
        if let ([_], None) = (&shared[..], &others) {
            return Ok(Self { rows: shared.swap_remove(0), flows, fresh });
        }
        let width = shared[0].cols();
        let mut rows = parts[0].tape.take(nodes, width);
        for (part, own) in shared.iter().zip(&*parts) {
            rows.data_mut()[own.nodes.start * width..own.nodes.end * width].copy_from_slice(part.data());
        }
        if let Some((ranks, shared)) = others {
            flows = exchange((ranks, shared), (&mut rows, flows), (asked, &mut fresh, memory_width))?;
        }
        Ok(Self { rows: Arc::new(rows), flows, fresh })
    }
}

/// Adds the rows that are read here, and the memory rows `fresh` of the nodes at the slots `asked`, of the other ranks,
/// and returns whether gradients have to flow into the rows of any.
fn exchange(
    (ranks, shared): (&mut Ranks, &SharedRows),
    (rows, flows): (&mut Tensor, bool),
    (asked, fresh, memory_width): (&[u32], &mut [f32], usize),
) -> Result<bool, ExchangeError> {
    let (own, count, width) = (ranks.rank(), ranks.count(), rows.cols());
    // Rows that are neither computed nor read here are zeros.
    let computed = &shared.computed()[own];
    rows.data_mut()[..computed.start * width].fill(0.0);
    rows.data_mut()[computed.end * width..].fill(0.0);
    // Places among those asked about, by the rank that computes them: runs that are exchanged.
    let places = |share: &Range<usize>| -> Vec<usize> {
        let slots = asked.iter().enumerate();
        slots.filter(|(_, slot)| share.contains(&(**slot as usize))).map(|(place, _)| place).collect()
    };
    let order: Vec<Vec<usize>> = shared.computed().iter().map(places).collect();
    let row = |place: &usize| place * memory_width..(place + 1) * memory_width;
    let mut by_rank = Vec::with_capacity(fresh.len());
    order.iter().flatten().for_each(|place| by_rank.extend_from_slice(&fresh[row(place)]));
    let memory = order.iter().map(|places| places.len() * memory_width).collect();
    let mut flowing = vec![0.0; count];
    flowing[own] = f32::from(u8::from(flows));
    let columns = vec![(&mut by_rank[..], memory), (&mut flowing, vec![1; count])];
    ranks.gather_rows((rows, shared), columns)?;
    let came = by_rank.chunks_exact(memory_width.max(1));
    order.iter().flatten().zip(came).for_each(|(place, came)| fresh[row(place)].copy_from_slice(came));
    Ok(flowing.iter().any(|flows| *flows > 0.0))
}
