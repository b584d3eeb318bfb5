//! A pass over a batch on the CPU, in virtual shards.
//!
//! ```text
//! V tapes    a part of the distinct nodes each: pending messages through the updater                  (the table)
//! V tapes    a part of the events each: embed, score, loss, backward
//! V tapes    a part of the nodes each: the sum of what flowed into their rows, backward through the updater
//! ```
//! The tapes of a line are computed side by side, by one thread each. The operations of a step are too short to share
//! each of them among threads: most of the time would go into waiting for one another. So the batch is cut at fixed
//! places into a number of parts that its size alone decides, each part is begun by one thread, which computes its
//! products alone, in matrices that stay in its cache, and sums over parts are made in a fixed binary tree: the same
//! bits at any number of threads. The loss is a mean over events, so a part's share in it is that of its events.
//!
//! Events of a batch do not see one another's messages, and a row of the table is of one node, hence parts are
//! independent. Where a sample has several layers or snapshots, and in a small batch, there is one part, and threads
//! share its operations.

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use rayon::prelude::*;

use super::pass::{Memory, Pass};
use super::prepare::lap;
use crate::device::matmul::Precision;
use crate::device::{Device, matmul};
use crate::model::{Needs, Part};
use crate::nn::{Gradients, Mode, Parameters, Tape, TapePool, Tensor, Var};

/// Parts of a large batch; a power of two.
const SHARDS: usize = 8;

/// Events of a part at least: fewer make small products, and nodes that several parts ask about are computed in each.
const EVENTS_MIN: usize = 100;

/// What a shard keeps from step to step.
pub(super) struct Shard {
    pool: TapePool,
    gradients: Gradients,
}

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

/// A pass whose parts are scored and, to learn, walked backward as far as the table.
pub(super) struct Sharded<'t> {
    /// The table.
    pub rows: Vec<RowPart<'t>>,
    /// What flowed into the table from each part of the events, if a gradient has to.
    flowed: Vec<Tensor>,
    precision: Precision,
    /// Mean over the events.
    pub loss: f32,
    /// Of the positives, then of the negatives.
    pub logits: Vec<f32>,
    /// Seconds of the forward and the backward part.
    pub seconds: [f64; 2],
}

/// What comes of one part.
struct Scored {
    loss: f32,
    positive: Vec<f32>,
    negative: Vec<f32>,
    flowed: Option<Tensor>,
    seconds: [f64; 2],
}

/// Into how many parts a batch of `events` is cut.
fn parts(needs: &Needs, events: usize) -> usize {
    let whole = needs.layers > 1 || needs.snapshots > 1;
    let most = if whole { 1 } else { (events / EVENTS_MIN).clamp(1, SHARDS) };
    1 << most.ilog2()
}

/// What of `count` events or nodes is in part `i` of `parts`.
fn cut(i: usize, parts: usize, count: usize) -> Range<usize> {
    count * i / parts..count * (i + 1) / parts
}

/// Runs the work of one of `parts`, with products of this precision.
fn run<R>(parts: usize, precision: Precision, work: impl FnOnce() -> R) -> R {
    matmul::in_precision(precision, || {
        // Fewer parts than threads leave some that can share a product.
        if parts >= rayon::current_num_threads() { matmul::alone(work) } else { work() }
    })
}

impl<'t> Sharded<'t> {
    /// Scores the batch of `pass`, which has events, by a model with these `parameters`, and in [`Mode::Train`]
    /// computes gradients into those of `shards`, which [`backward`](Self::backward) adds up. Memory of the table is
    /// from `pools`.
    pub fn run(
        pass: &Pass<'_>,
        (parameters, mode): (&'t Parameters, Mode),
        pools: &'t mut Vec<TapePool>,
        shards: &mut Vec<Shard>,
    ) -> Self {
        let mut clock = Instant::now();
        let (count, precision) = (pass.batch.scored().len(), pass.precision);
        let parts = parts(&pass.model.needs(), count);
        if shards.len() < parts {
            shards.resize_with(parts, || Shard::new(parameters));
        }
        pools.resize_with(parts.max(pools.len()), TapePool::new);
        let nodes = |i| cut(i, parts, pass.nodes());
        let part = |(i, pool): (usize, &'t mut TapePool)| {
            run(parts, precision, || {
                RowPart::new(pass, Tape::pooled(&Device::Cpu, parameters, mode, pool), nodes(i))
            })
        };
        let mut rows: Vec<RowPart<'t>> = pools[..parts].par_iter_mut().enumerate().map(part).collect();
        let table = joined(&mut rows);
        let first = lap(&mut clock);
        let part = |(i, shard): (usize, &mut Shard)| {
            run(parts, precision, || shard.run(pass, mode, &table, (i, cut(i, parts, count))))
        };
        let scored: Vec<Scored> = shards[..parts].par_iter_mut().enumerate().map(part).collect();
        if let (Some(table), [first, _, ..]) = (Arc::into_inner(table.0), &mut rows[..]) {
            first.tape.give(table);
        }
        let between = lap(&mut clock);
        let (mut loss, mut logits, mut negatives) = (0.0, Vec::with_capacity(2 * count), Vec::new());
        let (mut flowed, mut seconds) = (Vec::with_capacity(parts), [0.0; 2]);
        for done in scored {
            loss += done.loss;
            logits.extend(done.positive);
            negatives.extend(done.negative);
            flowed.extend(done.flowed);
            (0..2).for_each(|i| seconds[i] += done.seconds[i]);
        }
        logits.extend(negatives);
        // The time that passed, in the proportion in which the threads spent it.
        let forward = between * seconds[0] / (seconds[0] + seconds[1]).max(f64::MIN_POSITIVE);
        let seconds = [first + forward, between - forward + lap(&mut clock)];
        Self { rows, flowed, precision, loss, logits, seconds }
    }

    /// Walks on through the table, and takes the gradients of all parts. Returns what flowed into the leaf of each
    /// part's memory.
    pub fn backward(&mut self, shards: &mut [Shard], gradients: &mut Gradients) -> Vec<Option<Tensor>> {
        let clock = Instant::now();
        let (parts, precision, flowed) = (self.rows.len(), self.precision, std::mem::take(&mut self.flowed));
        let shards = &mut shards[..parts];
        let mut leaves = Vec::new();
        if !flowed.is_empty() {
            let walk = |(part, shard): (&mut RowPart<'_>, &mut Shard)| {
                run(parts, precision, || part.backward(&flowed, &mut shard.gradients))
            };
            leaves = self.rows.par_iter_mut().zip(shards.par_iter_mut()).map(walk).collect();
        }
        // Buffers stay with the pool that they are from.
        shards.iter_mut().zip(flowed).for_each(|(shard, flowed)| shard.pool.give(flowed));
        add_up(shards);
        if let Some(first) = shards.first_mut() {
            std::mem::swap(gradients, &mut first.gradients);
        }
        self.seconds[1] += clock.elapsed().as_secs_f64();
        leaves
    }

    /// The memory rows of the distinct nodes at these places, one after another.
    pub fn memory_rows(&self, places: impl Iterator<Item = usize>) -> impl Iterator<Item = &[f32]> {
        places.filter_map(|place| {
            let part = self.rows.iter().find(|part| part.nodes.contains(&place))?;
            Some(part.tape.value(part.memory.rows()).row(place - part.nodes.start))
        })
    }
}

impl<'t> RowPart<'t> {
    fn new(pass: &Pass<'_>, mut tape: Tape<'t>, nodes: Range<usize>) -> Self {
        let memory = pass.memory(&mut tape, nodes.clone());
        let table = pass.table(&mut tape, &memory, nodes.clone());
        Self { tape, nodes, memory, table, flows: false }
    }

    /// Walks back from the sum of what flowed into the rows, and returns what flowed into the memory's leaf.
    fn backward(&mut self, flowed: &[Tensor], gradients: &mut Gradients) -> Option<Tensor> {
        if !self.flows {
            return None;
        }
        let width = self.tape.value(self.table).cols();
        let mut sum = self.tape.take(self.nodes.len(), width);
        let own = self.nodes.start * width..self.nodes.end * width;
        let flowed: Vec<&[f32]> = flowed.iter().map(|flowed| &flowed.data()[own.clone()]).collect();
        sum_in_tree(sum.data_mut(), &flowed);
        self.tape.backward_from_to(self.memory.leaf(), (self.table, sum), gradients)
    }
}

/// The rows of all parts as one tensor, and whether gradients have to flow into it.
fn joined(rows: &mut [RowPart<'_>]) -> (Arc<Tensor>, bool) {
    let mut shared = Vec::with_capacity(rows.len());
    for part in &mut *rows {
        let (table, flows) = part.tape.share(part.table);
        part.flows = flows;
        shared.push(table);
    }
    let flows = rows.iter().any(|part| part.flows);
    if let [_] = shared[..] {
        return (shared.swap_remove(0), flows);
    }
    let (count, width) = (rows.iter().map(|part| part.nodes.len()).sum(), shared[0].cols());
    let mut all = rows[0].tape.take(count, width);
    let mut left = all.data_mut();
    for part in &shared {
        let (own, others) = left.split_at_mut(part.data_len());
        own.copy_from_slice(part.data());
        left = others;
    }
    (Arc::new(all), flows)
}

/// `sum` = the sum of equally long `parts`, of which there is one at least, in a binary tree.
fn sum_in_tree(sum: &mut [f32], parts: &[&[f32]]) {
    match parts {
        [] => {}
        [one] => sum.copy_from_slice(one),
        [one, other] => sum.iter_mut().zip(one.iter().zip(*other)).for_each(|(sum, (a, b))| *sum = a + b),
        more => {
            let (first, second) = more.split_at(more.len() / 2);
            let mut other = vec![0.0; sum.len()];
            sum_in_tree(sum, first);
            sum_in_tree(&mut other, second);
            sum.iter_mut().zip(other).for_each(|(sum, value)| *sum += value);
        }
    }
}

impl Shard {
    fn new(parameters: &Parameters) -> Self {
        Self { pool: TapePool::new(), gradients: Gradients::new(&Device::Cpu, parameters) }
    }

    /// Bytes of the buffers that wait.
    pub fn bytes(&self) -> usize {
        self.pool.bytes()
    }

    fn run(
        &mut self,
        pass: &Pass<'_>,
        mode: Mode,
        (table, flows): &(Arc<Tensor>, bool),
        (number, events): (usize, Range<usize>),
    ) -> Scored {
        let mut clock = Instant::now();
        let (count, batch) = (events.len(), pass.batch);
        let whole = batch.scored().len();
        let part = (count < whole).then(|| Part::of_events(&events, whole, batch.pairs.blocks()));
        let mut tape = Tape::pooled(&Device::Cpu, &pass.model.parameters, mode, &mut self.pool);
        let leaf = tape.shared_leaf(table.clone(), *flows);
        let embeddings = pass.embed(&mut tape, leaf, (number, part.as_ref()));
        let [src, dst] = batch.pairs.of(count);
        let logits = pass.model.logits(&mut tape, embeddings, src, dst);
        let logits = pass.logits(&mut tape, Some(logits), &events);
        let loss = tape.pair_loss(logits, count);
        #[allow(clippy::cast_precision_loss)] // events of a batch
        let share = count as f32 / whole as f32;
        let forward = lap(&mut clock);
        let flowed = (mode == Mode::Train).then(|| {
            self.gradients.start_over();
            tape.backward_to(Some(leaf), (loss, share), &mut self.gradients)
        });
        let (positive, negative) = tape.value(logits).data().split_at(count);
        Scored {
            loss: share * tape.scalar(loss),
            positive: positive.to_vec(),
            negative: negative.to_vec(),
            flowed: flowed.flatten(),
            seconds: [forward, lap(&mut clock)],
        }
    }
}

/// Adds up the gradients of the parts, in a binary tree, into those of the first.
fn add_up(shards: &mut [Shard]) {
    let mut step = 1;
    while step < shards.len() {
        shards.par_chunks_mut(2 * step).for_each(|pair| {
            let (to, from) = pair.split_at_mut(step);
            if let (Some(to), Some(from)) = (to.first_mut(), from.first()) {
                to.gradients.add(&from.gradients);
            }
        });
        step *= 2;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{ModelOptions, TgatOptions, TgnOptions};

    #[test]
    fn the_size_of_a_batch_decides_its_parts() {
        let needs = |model: ModelOptions| model.needs();
        let tgn = needs(TgnOptions::default().into());
        let numbers = [1, 199, 200, 399, 400, 600, 800, 100_000].map(|events| parts(&tgn, events));
        assert_eq!(numbers, [1, 1, 2, 2, 4, 4, 8, 8]);
        let two_layers = needs(TgatOptions::default().into());
        assert_eq!(parts(&two_layers, 200), 1);
        let ranges: Vec<_> = (0..4).map(|i| cut(i, 4, 203)).collect();
        assert_eq!(ranges, [0..50, 50..101, 101..152, 152..203]);
    }
}
