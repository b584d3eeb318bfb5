//! A pass over a batch on the CPU, in virtual shards.
//!
//! ```text
//! one tape        memory rows of the distinct nodes: pending messages through the updater         (the table)
//! V tapes         a part of the events each: embed, score, loss, backward          side by side, one thread each
//! one tape        the sum of what flowed into the table: backward through the updater
//! ```
//! The operations of a step are too short to share each of them among threads: most of the time would go into waiting
//! for one another. So the batch is cut at fixed places into a number of parts that its size alone decides, each part
//! is begun by one thread, which computes its products alone, in matrices that stay in its cache, and sums over parts
//! are made in a fixed binary tree: the same bits at any number of threads. The loss is a mean over events, so a
//! part's share in it is that of its events.
//!
//! Events of a batch do not see one another's messages, hence parts are independent. Where a sample has several layers
//! or snapshots, and in a small batch, there is one part, and threads share its operations.

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use rayon::prelude::*;

use super::pass::{Memory, Pass};
use super::prepare::lap;
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

/// A pass whose parts are scored and, to learn, walked backward as far as the table.
pub(super) struct Sharded<'t> {
    /// The tape of the table.
    pub tape: Tape<'t>,
    pub memory: Memory,
    table: Var,
    /// The gradient of the table, if one has to flow there.
    flowed: Option<Tensor>,
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

/// Events of part `i` of `parts`.
fn events(i: usize, parts: usize, count: usize) -> Range<usize> {
    count * i / parts..count * (i + 1) / parts
}

impl<'t> Sharded<'t> {
    /// Scores the batch of `pass`, which has events, by a model with these `parameters`, and in [`Mode::Train`]
    /// computes gradients into the first of `shards`.
    pub fn run(
        pass: &Pass<'_>,
        (parameters, mode): (&'t Parameters, Mode),
        pool: &'t mut TapePool,
        shards: &mut Vec<Shard>,
    ) -> Self {
        let mut clock = Instant::now();
        let mut tape = Tape::pooled(&Device::Cpu, parameters, mode, pool);
        let memory = pass.memory(&mut tape);
        let table = pass.table(&mut tape, &memory);
        let shared = tape.share(table);
        let first = lap(&mut clock);
        let count = pass.batch.positives().src.len();
        let parts = parts(&pass.model.needs(), count);
        if shards.len() < parts {
            shards.resize_with(parts, || Shard::new(parameters));
        }
        // Fewer parts than threads leave some that can share a product.
        let threads = rayon::current_num_threads();
        let part = |(i, shard): (usize, &mut Shard)| {
            let mut run = || shard.run(pass, mode, &shared, (i, events(i, parts, count)));
            if parts >= threads { matmul::alone(run) } else { run() }
        };
        let scored: Vec<Scored> = shards[..parts].par_iter_mut().enumerate().map(part).collect();
        drop(shared);
        let between = lap(&mut clock);
        let (mut loss, mut logits, mut negatives) = (0.0, Vec::with_capacity(2 * count), Vec::new());
        let (mut flowed, mut seconds) = (Vec::with_capacity(parts), [0.0; 2]);
        for done in scored {
            loss += done.loss;
            logits.extend(done.positive);
            negatives.extend(done.negative);
            flowed.push(done.flowed);
            (0..2).for_each(|i| seconds[i] += done.seconds[i]);
        }
        logits.extend(negatives);
        let flowed = add_up(&mut shards[..parts], flowed).map(|sum| {
            // Buffers stay with the pool that they are from.
            let mut own = tape.take(sum.rows(), sum.cols());
            own.data_mut().copy_from_slice(sum.data());
            shards[0].pool.give(sum);
            own
        });
        // The time that passed, in the proportion in which the threads spent it.
        let forward = between * seconds[0] / (seconds[0] + seconds[1]).max(f64::MIN_POSITIVE);
        let seconds = [first + forward, between - forward + lap(&mut clock)];
        Self { tape, memory, table, flowed, loss, logits, seconds }
    }

    /// Takes the gradients of the parts, and walks on through the table. Returns what flowed into the memory's leaf.
    pub fn backward(&mut self, shards: &mut [Shard], gradients: &mut Gradients) -> Option<Tensor> {
        let clock = Instant::now();
        if let Some(first) = shards.first_mut() {
            std::mem::swap(gradients, &mut first.gradients);
        }
        let flowed = self.flowed.take()?;
        let leaf = self.tape.backward_from_to(self.memory.leaf(), (self.table, flowed), gradients);
        self.seconds[1] += clock.elapsed().as_secs_f64();
        leaf
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
        let whole = batch.positives().src.len();
        let part = (count < whole).then(|| Part::of_events(&events, whole, batch.pairs.blocks()));
        let mut tape = Tape::pooled(&Device::Cpu, &pass.model.parameters, mode, &mut self.pool);
        let leaf = tape.shared_leaf(table.clone(), *flows);
        let embeddings = pass.embed(&mut tape, leaf, (number, part.as_ref()));
        let [src, dst] = batch.pairs.of(count);
        let logits = pass.model.logits(&mut tape, embeddings, src, dst);
        let loss = pass.loss(&mut tape, logits, count);
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

/// Adds up the gradients of the parts, and what flowed into the table, in a binary tree, into those of the first.
fn add_up(shards: &mut [Shard], mut flowed: Vec<Option<Tensor>>) -> Option<Tensor> {
    let mut step = 1;
    while step < shards.len() {
        let pairs = shards.chunks_mut(2 * step).zip(flowed.chunks_mut(2 * step));
        pairs.for_each(|(shards, flowed)| {
            let ((to, from), (sum, added)) = (shards.split_at_mut(step), flowed.split_at_mut(step));
            let (Some(to), Some(from)) = (to.first_mut(), from.first_mut()) else { return };
            to.gradients.add(&from.gradients);
            let Some(added) = added.first_mut().and_then(Option::take) else { return };
            match sum.first_mut() {
                Some(Some(sum)) => {
                    sum.add(&added);
                    from.pool.give(added);
                }
                Some(sum) => *sum = Some(added),
                None => {}
            }
        });
        step *= 2;
    }
    flowed.into_iter().next().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{ModelOptions, TgatOptions, TgnOptions};

    #[test]
    fn the_size_of_a_batch_decides_its_parts() {
        let needs = |model: ModelOptions| model.needs();
        let tgn = needs(TgnOptions::default().into());
        let cut = [1, 199, 200, 399, 400, 600, 800, 100_000].map(|events| parts(&tgn, events));
        assert_eq!(cut, [1, 1, 2, 2, 4, 4, 8, 8]);
        let two_layers = needs(TgatOptions::default().into());
        assert_eq!(parts(&two_layers, 200), 1);
        let ranges: Vec<_> = (0..4).map(|i| events(i, 4, 203)).collect();
        assert_eq!(ranges, [0..50, 50..101, 101..152, 152..203]);
    }
}
