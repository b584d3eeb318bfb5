//! [`Ranks`]: what processes that train one model together exchange in a step.
//!
//! Every rank holds all memory and weights, and takes every step with the whole batch or its share of it, which it has
//! prepared or was given ([`leading`](super::leading)); of the virtual shards of a batch ([`shards`](super::shards)) it
//! computes a run of its own, at fixed places. Four rounds of a step make up the rest:
//!
//! ```text
//! 1  fresh memory of the touched nodes, to all; rows of the table   from who computed them, to who reads them
//! 2  losses and logits, to all; what flowed into rows of the table  to who computed these
//! 3  gradients of the weights, a slice of all to each rank          which adds them up
//! 4  the sums                                                       to all
//! ```
//! Sums are made in the binary tree over shards that one process has: the shards of a rank are a subtree, and ranks
//! add up the subtrees' sums in the same order, rounded alike. So any number of ranks computes the same bits as one,
//! and whatever else follows from a step (optimizer, memory, messages) each rank does for itself, to the same end. A
//! batch with fewer shards than ranks is computed whole by each, without exchange.
//!
//! In a step one of R ranks sends about `(1 - 1/R) (2 b * weights + 4 * touched * memory) + 8 / R * shared * width`
//! bytes, where b is 4, or 2 with products in bf16, and `shared` counts the rows of the table that go from the one that
//! computes them to another one that reads them ([`shared_rows`](super::shared_rows)); what flowed goes the way back.

mod gradients;

use std::ops::Range;

use thiserror::Error;

use super::orders::{Leading, Order};
use super::shards::{cut, runs};
use super::shared_rows::SharedRows;
use crate::device::exchange::{
    Exchange, ExchangeError, Message, Traffic, exchange_alike, exchange_alike_patiently,
};
use crate::model::KeptRows;
use crate::nn::Tensor;

/// The others, and room for what comes from them.
pub(super) struct Ranks {
    pub(super) exchange: Box<dyn Exchange>,
    /// Where the others follow this one.
    pub(super) leading: Option<Leading>,
    /// Rows that came from the one that leads.
    pub(super) kept: KeptRows,
    /// What flowed from the own parts into the rows that are computed here.
    flowed: Vec<f32>,
    /// Rows that go to others, or what flowed into theirs.
    sent: Vec<f32>,
    /// The same from them.
    received: Vec<f32>,
    /// What flowed from the parts of others into the rows that are computed here.
    others: Vec<f32>,
    /// Gradients of weights, or sums of them, that go to others.
    gradients_sent: Vec<f32>,
    /// The same from them.
    gradients_received: Vec<f32>,
}

/// What a rank computes of each batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Share {
    /// Its number.
    pub rank: usize,
    /// How many ranks there are.
    pub ranks: usize,
}

/// Ranks that cannot train together.
#[derive(Debug, Error)]
pub enum RanksError {
    /// Not a power of two, or more than a batch has parts.
    #[error("{ranks} ranks cannot train together: their number has to be a power of two, {most} at most")]
    Count {
        /// How many there are.
        ranks: usize,
        /// How many there may be.
        most: usize,
    },
    /// The model or its options leave nothing to share.
    #[error("several ranks cannot share the steps of this model: {0}")]
    Model(&'static str),
    /// Another rank is in another state.
    #[error(
        "the states of ranks {rank} and {other} differ after step {step}: different settings, data or kinds of CPUs; \
         restart all from one checkpoint, on identical CPUs"
    )]
    Apart {
        /// This one.
        rank: usize,
        /// The first that differs.
        other: usize,
        /// Number of the step.
        step: u64,
    },
    /// What there is to compare cannot be had.
    #[error("the state that ranks compare: {0}")]
    State(std::io::Error),
    /// What the first rank has passed on is not what is expected here.
    #[error(
        "what the first rank has passed on cannot be used: {0}; all ranks have to run one version, with one file of \
             settings"
    )]
    Passed(std::io::Error),
    /// The exchange failed.
    #[error(transparent)]
    Exchange(#[from] ExchangeError),
}

impl Ranks {
    pub fn new(exchange: Box<dyn Exchange>) -> Self {
        let [flowed, sent, received, others, gradients_sent, gradients_received] = Default::default();
        let (leading, kept) = (None, KeptRows::default());
        Self { exchange, leading, kept, flowed, sent, received, others, gradients_sent, gradients_received }
    }

    /// The others follow this one.
    pub fn leading(exchange: Box<dyn Exchange>) -> Self {
        Self { leading: Some(Leading::default()), ..Self::new(exchange) }
    }

    pub fn leave(mut self) -> Result<(), RanksError> {
        if self.leading.is_some() {
            self.give_plain(Order::End)?;
        }
        self.exchange.leave();
        Ok(())
    }

    pub fn rank(&self) -> usize {
        self.exchange.rank()
    }

    pub fn count(&self) -> usize {
        self.exchange.ranks()
    }

    pub fn traffic(&self) -> Traffic {
        self.exchange.traffic()
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        let Self { flowed, sent, received, others, gradients_sent, gradients_received, .. } = self;
        let held = [flowed, sent, received, others, gradients_sent, gradients_received].map(Vec::capacity);
        let leading = self.leading.as_ref().map_or(0, Leading::bytes);
        held.iter().sum::<usize>() * size_of::<f32>() + leading + self.kept.bytes()
    }

    /// What this one computes, if there are others.
    pub fn share(&self) -> Option<Share> {
        let share = Share { rank: self.rank(), ranks: self.count() };
        (share.ranks > 1).then_some(share)
    }

    /// What a batch is prepared for here: all of it where the others get theirs from this one.
    pub fn share_prepared(&self) -> Option<Share> {
        if self.leading.is_some() { None } else { self.share() }
    }

    /// The parts of a batch that `rank` computes, of `parts`, which are at least as many as the ranks.
    pub fn parts_of(&self, rank: usize, parts: usize) -> Range<usize> {
        Share { rank, ranks: self.count() }.parts(parts)
    }

    /// Adds to `rows` those of the other ranks that are read here, and completes columns of values that have a run of
    /// values from each rank, one after another, of these lengths, where every rank has its own: round 1.
    pub fn gather_rows(
        &mut self,
        (rows, shared): (&mut Tensor, &SharedRows),
        columns: Vec<(&mut [f32], Vec<usize>)>,
    ) -> Result<(), ExchangeError> {
        let (own, width) = (self.rank(), rows.cols());
        let Self { exchange, sent, received, .. } = self;
        let mut messages: Vec<Message<'_>> =
            columns.into_iter().flat_map(|(values, lengths)| gathered(own, values, &lengths)).collect();
        messages.extend(shared.computed_rows((rows.data(), width), (sent, received)));
        exchange.round(&mut messages)?;
        shared.put_read(received, (rows.data_mut(), width));
        Ok(())
    }

    /// Completes `scores`, which have a run of values of these lengths from each rank. Where something flows into the
    /// table, `flowed` is what did from each of the rank's own parts, a row for each node; afterwards
    /// [`flowed`](Self::flowed) is what did from all ranks: round 2.
    pub fn gather_scores(
        &mut self,
        (scores, lengths): (&mut [f32], Vec<usize>),
        flowed: &[Tensor],
        shared: &SharedRows,
    ) -> Result<(), ExchangeError> {
        let own = self.rank();
        let mut messages = gathered(own, scores, &lengths);
        let Some(first) = flowed.first() else { return self.exchange.round(&mut messages) };
        let width = first.cols();
        let Self { exchange, flowed: sum, sent, received, others, .. } = self;
        let flowed: Vec<&[f32]> = flowed.iter().map(Tensor::data).collect();
        shared.sum_computed((&flowed, width), sum);
        messages.extend(shared.read_rows((&flowed, width), (sent, received)));
        exchange.round(&mut messages)?;
        shared.put_computed(received, (others, width));
        Ok(())
    }

    /// What flowed from the parts of each rank into the rows that this one computes.
    pub fn flowed(&self) -> Vec<&[f32]> {
        by_rank(self.rank(), &self.flowed, &self.others)
    }

    /// Compares `digest` of the state after `step` with those of the others.
    pub fn compare(&mut self, digest: u64, step: u64) -> Result<(), RanksError> {
        let mut received = digest.to_le_bytes().repeat(self.count());
        exchange_alike(&mut *self.exchange, &digest.to_le_bytes(), &mut received)?;
        self.hold_equal(digest, step, &received)
    }

    /// The same, however long the others take until they compare; `alive` is called meanwhile.
    pub fn compare_patiently(&mut self, digest: u64, step: u64, alive: &dyn Fn()) -> Result<(), RanksError> {
        let mut received = digest.to_le_bytes().repeat(self.count());
        exchange_alike_patiently(&mut *self.exchange, &digest.to_le_bytes(), &mut received, alive)?;
        self.hold_equal(digest, step, &received)
    }

    fn hold_equal(&self, digest: u64, step: u64, received: &[u8]) -> Result<(), RanksError> {
        let own = digest.to_le_bytes();
        match received.chunks_exact(own.len()).position(|other| *other != own) {
            Some(other) => Err(RanksError::Apart { rank: self.rank(), other, step }),
            None => Ok(()),
        }
    }
}

impl Share {
    /// Those of a batch's `parts` that the rank computes: all, if there are fewer parts than ranks.
    pub fn parts(self, parts: usize) -> Range<usize> {
        if self.ranks > parts { 0..parts } else { cut(self.rank, self.ranks, parts) }
    }

    /// What of `count` events, cut into `parts`, is in those.
    pub fn of(self, parts: usize, count: usize) -> Range<usize> {
        let own = self.parts(parts);
        cut(own.start, parts, count).start..cut(own.end - 1, parts, count).end
    }
}

/// Messages that pass the `own` run of values to all, and theirs here.
fn gathered<'a>(own: usize, values: &'a mut [f32], lengths: &[usize]) -> Vec<Message<'a>> {
    let mut runs = runs(values, lengths);
    let sent = &*std::mem::take::<&mut [f32]>(&mut runs[own]);
    let others = runs.into_iter().enumerate().filter(|(rank, _)| *rank != own);
    others.map(|(rank, run)| Message::of(rank, sent, run)).collect()
}

/// What each rank has of the same rows, given the `own` and those of the `others`, one after another.
fn by_rank<'a>(own: usize, values: &'a [f32], others: &'a [f32]) -> Vec<&'a [f32]> {
    let mut all: Vec<&[f32]> = others.chunks_exact(values.len().max(1)).collect();
    all.insert(own, values);
    all
}
