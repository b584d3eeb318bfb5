//! A pass over a batch on the CPU, in virtual shards.
//!
//! ```text
//! V tapes    a part of the distinct nodes each: pending messages through the updater                  (the table)
//! V tapes    a part of the events each: embed, score, loss, backward
//! V tapes    a part of the nodes each: the sum of what flowed into their rows, backward through the updater
//! ```
//! The tapes of a line are computed side by side, by one thread each. The operations of a step are too short to share
//! each of them among threads: most of the time would go into waiting for one another. So the batch is cut at fixed
//! places into a number of parts that its size and the model decide, when it is sampled; rows of the table are of a
//! part that reads them ([`Readers`](crate::model::Readers)), each part is begun by one thread, which computes its
//! products alone, in matrices that stay in its cache, and sums over parts are made in a fixed binary tree: the
//! same bits at any number of threads. With products in bf16 the gradients of weights and their sums over parts are
//! rounded to it, too. The loss is a mean over events, so a part's share in it is that of its events.
//! Where several processes train together, each begins some of the parts, and they exchange what the next line reads
//! ([`ranks`](super::ranks)).
//!
//! Events of a batch do not see one another's messages, and a row of the table is of one node, hence parts are
//! independent. Where a sample has several layers or snapshots, and in a small batch, there is one part, and threads
//! share its operations.

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use half::bf16;
use rayon::prelude::*;

use super::pass::Pass;
use super::prepare::lap;
use super::ranks::Ranks;
use super::shared_rows::SharedRows;
use super::table::{RowPart, Table};
use crate::device::exchange::ExchangeError;
use crate::device::matmul::Precision;
use crate::device::{Device, matmul};
use crate::model::{Needs, PARTS_MAX, Part};
use crate::nn::{Gradients, Mode, Number, Parameters, Tape, TapePool, Tensor, Var};

/// Parts of a large batch; a power of two.
pub(super) const SHARDS: usize = 8;
const _: () = assert!(SHARDS <= PARTS_MAX);

/// What a shard keeps from step to step.
pub(super) struct Shard {
    pool: TapePool,
    gradients: Gradients,
}

/// A pass whose parts are scored and, to learn, walked backward as far as the table.
pub(super) struct Sharded<'t> {
    /// The table; of several ranks, what this one computes of it.
    pub rows: Vec<RowPart<'t>>,
    /// Fresh memory rows of the nodes that were asked about, one after another.
    pub fresh: Vec<f32>,
    /// What flowed into the table from each part of the events that was computed here, if a gradient has to.
    flowed: Vec<Tensor>,
    /// Rows that one rank computes and another one reads, if several share the pass.
    shared: Option<SharedRows>,
    precision: Precision,
    /// Mean over the events.
    pub loss: f32,
    /// Of the positives, then of the negatives.
    pub logits: Vec<f32>,
    /// The same without dropout, if they were asked for.
    pub tested: Option<Vec<f32>>,
    /// Seconds of the forward and the backward part.
    pub seconds: [f64; 2],
}

/// What comes of one part.
struct Scored {
    flowed: Option<Tensor>,
    seconds: [f64; 2],
}

/// The scores of all parts, part by part: the loss, the logits of the positives, and those of the negatives; behind
/// them the logits without dropout, if they were asked for.
struct Scores(Vec<f32>);

/// Into how many parts a batch of `events` is cut.
pub(super) fn parts(needs: &Needs, events: usize) -> usize {
    let whole = needs.layers > 1 || needs.snapshots > 1;
    let most = if whole { 1 } else { (events / needs.part_events).clamp(1, SHARDS) };
    1 << most.ilog2()
}

/// What of `count` events, or values, is in part `i` of `parts`.
pub(super) fn cut(i: usize, parts: usize, count: usize) -> Range<usize> {
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
    /// from `pools`. `asked` are the slots of the nodes whose fresh memory is wanted.
    ///
    /// # Errors
    /// The exchange with other ranks failed.
    pub fn run(
        (pass, asked): (&Pass<'_>, &[u32]),
        (parameters, mode): (&'t Parameters, Mode),
        pools: &'t mut Vec<TapePool>,
        shards: &mut Vec<Shard>,
        ranks: Option<&mut Ranks>,
    ) -> Result<Self, ExchangeError> {
        let mut clock = Instant::now();
        let (count, precision) = (pass.batch.scored().len(), pass.precision);
        let readers = pass.batch.neighborhood.readers();
        let parts = readers.parts();
        let ranks = sharing(ranks, parts);
        let own = ranks.as_ref().map_or(0..parts, |ranks| ranks.parts_of(ranks.rank(), parts));
        let shared =
            ranks.as_ref().map(|ranks| SharedRows::of((ranks.rank(), ranks.count()), parts, readers));
        if shards.len() < own.len() {
            shards.resize_with(own.len(), || Shard::new(parameters));
        }
        pools.resize_with(own.len().max(pools.len()), TapePool::new);
        let part = |(i, pool): (usize, &'t mut TapePool)| {
            run(own.len(), precision, || {
                let nodes = readers.nodes_of(own.start + i..own.start + i + 1);
                RowPart::new(pass, Tape::pooled(&Device::Cpu, parameters, mode, pool), nodes)
            })
        };
        let mut rows: Vec<RowPart<'t>> = pools[..own.len()].par_iter_mut().enumerate().map(part).collect();
        let mut others = ranks.zip(shared.as_ref());
        let table = Table::of(&mut rows, (asked, pass.nodes()), others.as_mut())?;
        let first = lap(&mut clock);
        let (mut scores, lengths) = Scores::of(parts, count, pass.how.tests);
        let mut places = runs(&mut scores.0, &lengths);
        let part = |(i, (shard, scores)): (usize, (&mut Shard, &mut [f32]))| {
            let number = own.start + i;
            let events = cut(number, parts, count);
            run(own.len(), precision, || shard.run(pass, mode, &table, (number, events), scores))
        };
        let scored =
            shards[..own.len()].par_iter_mut().zip(places.par_drain(own.clone())).enumerate().map(part);
        let scored: Vec<Scored> = scored.collect();
        let Table { rows: table, fresh, .. } = table;
        if let (Some(table), [first, ..]) = (Arc::into_inner(table), &mut rows[..]) {
            first.tape.give(table);
        }
        let between = lap(&mut clock);
        let (mut flowed, mut seconds) = (Vec::with_capacity(own.len()), [0.0; 2]);
        for done in scored {
            flowed.extend(done.flowed);
            (0..2).for_each(|i| seconds[i] += done.seconds[i]);
        }
        if let Some((ranks, shared)) = others {
            let lengths = (0..ranks.count()).map(|rank| lengths[ranks.parts_of(rank, parts)].iter().sum());
            let lengths = lengths.collect();
            ranks.gather_scores((&mut scores.0, lengths), &flowed, shared)?;
        }
        let (loss, [logits, tested]) = scores.joined(&lengths, pass.how.tests);
        let tested = pass.how.tests.then_some(tested);
        // The time that passed, in the proportion in which the threads spent it.
        let forward = between * seconds[0] / (seconds[0] + seconds[1]).max(f64::MIN_POSITIVE);
        let seconds = [first + forward, between - forward + lap(&mut clock)];
        Ok(Self { rows, fresh, flowed, shared, precision, loss, logits, tested, seconds })
    }

    /// Walks on through the table, and takes the gradients of all parts. Returns what flowed into the leaf of the
    /// memory of each part that was computed here.
    ///
    /// # Errors
    /// The exchange with other ranks failed.
    pub fn backward(
        &mut self,
        shards: &mut [Shard],
        gradients: &mut Gradients,
        ranks: Option<&mut Ranks>,
    ) -> Result<Vec<Option<Tensor>>, ExchangeError> {
        let clock = Instant::now();
        let (own, precision, flowed) = (self.rows.len(), self.precision, std::mem::take(&mut self.flowed));
        let ranks = ranks.filter(|_| self.shared.is_some());
        let shards = &mut shards[..own];
        let mut leaves = Vec::new();
        if !flowed.is_empty() {
            // From all ranks, into the rows from the first that is computed here on.
            let flowed = match &ranks {
                None => flowed.iter().map(Tensor::data).collect(),
                Some(ranks) => ranks.flowed(),
            };
            let first = self.rows.first().map_or(0, |part| part.nodes.start);
            let walk = |(part, shard): (&mut RowPart<'_>, &mut Shard)| {
                run(own, precision, || part.backward((&flowed, first), &mut shard.gradients))
            };
            leaves = self.rows.par_iter_mut().zip(shards.par_iter_mut()).map(walk).collect();
        }
        // Buffers stay with the pool that they are from.
        shards.iter_mut().zip(flowed).for_each(|(shard, flowed)| shard.pool.give(flowed));
        match precision {
            Precision::F32 => add_up::<f32>(shards, gradients, ranks)?,
            Precision::Bf16 => add_up::<bf16>(shards, gradients, ranks)?,
        }
        self.seconds[1] += clock.elapsed().as_secs_f64();
        Ok(leaves)
    }
}

/// The other ranks, if a batch of so many parts is shared with them.
fn sharing(ranks: Option<&mut Ranks>, parts: usize) -> Option<&mut Ranks> {
    ranks.filter(|ranks| ranks.count() > 1 && ranks.count() <= parts)
}

impl Scores {
    /// Room for those of `count` events in so many parts, and the number of values of each part.
    fn of(parts: usize, count: usize, tests: bool) -> (Self, Vec<usize>) {
        let scores = |events: usize| 2 * events * (1 + usize::from(tests));
        let lengths: Vec<usize> = (0..parts).map(|i| 1 + scores(cut(i, parts, count).len())).collect();
        (Self(vec![0.0; lengths.iter().sum()]), lengths)
    }

    /// The loss, and the logits of all positives and of all negatives, with and without dropout.
    fn joined(&self, lengths: &[usize], tests: bool) -> (f32, [Vec<f32>; 2]) {
        let [mut logits, mut negatives] = [(); 2].map(|()| [Vec::new(), Vec::new()]);
        let (mut loss, mut left) = (0.0, &self.0[..]);
        for &length in lengths {
            let (part, others) = left.split_at(length);
            loss += part[0];
            let scores = (length - 1) / (1 + usize::from(tests));
            for (pass, scores) in part[1..].chunks_exact(scores.max(1)).enumerate() {
                let (positive, negative) = scores.split_at(scores.len() / 2);
                logits[pass].extend_from_slice(positive);
                negatives[pass].extend_from_slice(negative);
            }
            left = others;
        }
        logits.iter_mut().zip(negatives).for_each(|(logits, negatives)| logits.extend(negatives));
        (loss, logits)
    }
}

/// Runs of values of these lengths, one after another.
pub(super) fn runs<'a, T>(mut values: &'a mut [T], lengths: &[usize]) -> Vec<&'a mut [T]> {
    let run = |&length: &usize| {
        let (run, others) = std::mem::take(&mut values).split_at_mut(length);
        values = others;
        run
    };
    lengths.iter().map(run).collect()
}

/// `sum` = the sum of equally long `parts`, of which there is one at least, in a binary tree.
pub(super) fn sum_in_tree(sum: &mut [f32], parts: &[&[f32]]) {
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
        table: &Table,
        (number, events): (usize, Range<usize>),
        scores: &mut [f32],
    ) -> Scored {
        let mut clock = Instant::now();
        let (count, batch) = (events.len(), pass.batch);
        let whole = batch.scored().len();
        let part = (count < whole).then(|| Part::of_events(&events, whole, batch.pairs.blocks()));
        let logits_of =
            |tape: &mut Tape<'_>, leaf: Var| pass.pair_logits(tape, leaf, (number, part.as_ref()), &events);
        let mut tape = Tape::pooled(&Device::Cpu, &pass.model.parameters, mode, &mut self.pool);
        let leaf = tape.shared_leaf(table.rows.clone(), table.flows);
        let logits = logits_of(&mut tape, leaf);
        let loss = tape.pair_loss(logits, count);
        #[allow(clippy::cast_precision_loss)] // events of a batch
        let share = count as f32 / whole as f32;
        let forward = lap(&mut clock);
        let mut flowed = None;
        if mode == Mode::Train {
            self.gradients.start_over();
            flowed = tape.backward_to(Some(leaf), (loss, share), &mut self.gradients);
            if table.flows && flowed.is_none() {
                // Of all parts alike, whether anything did: sums have one shape.
                let (rows, cols) = table.rows.shape();
                flowed = Some(tape.take_zeroed(rows, cols));
            }
        }
        scores[0] = share * tape.scalar(loss);
        let (trained, tested) = scores[1..].split_at_mut(2 * count);
        trained.copy_from_slice(tape.value(logits).data());
        drop(tape);
        let backward = lap(&mut clock);
        if pass.how.tests {
            let parameters = &pass.model.parameters;
            let mut tape = Tape::pooled(&Device::Cpu, parameters, Mode::Inference, &mut self.pool);
            let leaf = tape.shared_leaf(table.rows.clone(), false);
            let logits = logits_of(&mut tape, leaf);
            tested.copy_from_slice(tape.value(logits).data());
        }
        Scored { flowed, seconds: [forward + lap(&mut clock), backward] }
    }
}

/// Makes `gradients` the sum of those of the parts, in a binary tree, over all ranks that share them. Where there are
/// several parts, each term and each sum is rounded.
fn add_up<N: Number>(
    shards: &mut [Shard],
    gradients: &mut Gradients,
    ranks: Option<&mut Ranks>,
) -> Result<(), ExchangeError> {
    let mut step = 1;
    while step < shards.len() {
        shards.par_chunks_mut(2 * step).for_each(|pair| {
            let (to, from) = pair.split_at_mut(step);
            if let (Some(to), Some(from)) = (to.first_mut(), from.first()) {
                to.gradients.add::<N>(&from.gradients);
            }
        });
        step *= 2;
    }
    if let Some(first) = shards.first_mut() {
        std::mem::swap(gradients, &mut first.gradients);
    }
    ranks.map_or(Ok(()), |ranks| ranks.add_up::<N>(gradients))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{GraphMixerOptions, ModelOptions, TgatOptions, TgnOptions};

    #[test]
    fn the_size_of_a_batch_and_the_model_decide_its_parts() {
        let needs = |model: ModelOptions| model.needs();
        let tgn = needs(TgnOptions::default().into());
        let numbers = [1, 199, 200, 399, 400, 600, 800, 100_000].map(|events| parts(&tgn, events));
        assert_eq!(numbers, [1, 1, 2, 2, 4, 4, 8, 8]);
        let mixer = needs(GraphMixerOptions::default().into());
        assert_eq!([49, 50, 100, 200, 600].map(|events| parts(&mixer, events)), [1, 2, 4, 8, 8]);
        let two_layers = needs(TgatOptions::default().into());
        assert_eq!(parts(&two_layers, 200), 1);
        let ranges: Vec<_> = (0..4).map(|i| cut(i, 4, 203)).collect();
        assert_eq!(ranges, [0..50, 50..101, 101..152, 152..203]);
    }
}
