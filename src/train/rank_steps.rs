//! Steps of several ranks, as [`Trainer`] takes them: who may join, which rows a rank reads, and whether all are in one
//! state.

use std::io::Write;
use std::ops::Range;

use xxhash_rust::xxh3::Xxh3;

use super::prepare::PreparedBatch;
use super::ranks::{Ranks, RanksError, Share};
use super::shards::{SHARDS, cut, parts};
use super::trainer::{Scratch, StepMode, Trainer, TrainerOptions};
use crate::device::Device;
use crate::device::exchange::{Exchange, Traffic};
use crate::model::{EMPTY_SLOT, Needs, Part};

/// Ranks that train together at most: a batch has no more parts.
pub const RANKS_MAX: usize = SHARDS;

/// Steps between two comparisons of what the ranks have learned.
const COMPARE_STEPS: u64 = 100;

/// Distinct nodes whose rows the parts of a batch read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RowsRead {
    /// Of the whole batch.
    pub distinct: usize,
    /// Of each rank for its own events, added up.
    pub by_ranks: usize,
}

impl Trainer {
    /// Takes every step from now on together with the other ranks, each with the same batches. All have to be in one
    /// state.
    ///
    /// # Errors
    /// The ranks cannot share the model's steps, are too many or no power of two, or another one is in another state.
    pub fn join(&mut self, exchange: Box<dyn Exchange>) -> Result<(), RanksError> {
        self.hold_shared(&*exchange)?;
        let mut ranks = Ranks::new(exchange);
        if ranks.count() > 1 {
            let mut digest = Digest(Xxh3::new());
            digest.0.update(self.in_common().as_bytes());
            self.save(&mut digest).map_err(RanksError::State)?;
            ranks.compare(digest.0.digest(), self.steps)?;
        }
        self.scratch.get_mut().ranks = Some(ranks);
        Ok(())
    }

    /// What all ranks have in common beyond the saved bytes: the options, such as the learning rate, and what
    /// multiplies, on which bits depend.
    pub(super) fn in_common(&self) -> String {
        format!("{:?} {:?}", self.options, self.options.precision.unit())
    }

    /// An error if so many ranks cannot share the steps.
    pub(super) fn hold_shared(&self, exchange: &dyn Exchange) -> Result<(), RanksError> {
        let ranks = exchange.ranks();
        if !ranks.is_power_of_two() || ranks > RANKS_MAX {
            return Err(RanksError::Count { ranks, most: RANKS_MAX });
        }
        let on_gpu = (self.device != Device::Cpu).then_some("it is computed on a GPU");
        match on_gpu.or_else(|| not_shared(&self.options)) {
            Some(hindrance) if ranks > 1 => Err(RanksError::Model(hindrance)),
            _ => Ok(()),
        }
    }

    /// Takes steps alone from now on. Every rank does so when all are done; those that follow another one are.
    ///
    /// # Errors
    /// Another rank is lost.
    pub fn leave(&mut self) -> Result<(), RanksError> {
        self.scratch.get_mut().ranks.take().map_or(Ok(()), Ranks::leave)
    }

    /// Ends those that wait to [`follow`](Self::follow) a trainer that does not come.
    ///
    /// # Errors
    /// Another rank is lost.
    pub fn dismiss(exchange: Box<dyn Exchange>) -> Result<(), RanksError> {
        Ranks::leading(exchange).leave()
    }

    /// What this rank has passed to the others so far.
    #[must_use]
    pub fn traffic(&self) -> Traffic {
        self.scratch.lock().ranks.as_ref().map_or_else(Traffic::default, Ranks::traffic)
    }

    /// Whether all ranks have learned the same, bit for bit. Every rank asks at the same step; with one there is
    /// nothing to compare.
    ///
    /// # Errors
    /// Another one has learned something else, or is lost.
    pub fn compare_ranks(&mut self) -> Result<(), RanksError> {
        let Scratch { ranks: Some(ranks), fresh, .. } = self.scratch.get_mut() else { return Ok(()) };
        if ranks.count() == 1 {
            return Ok(());
        }
        let mut digest = Xxh3::new();
        digest.update(&self.steps.to_le_bytes());
        digest.update(&self.adam.steps().to_le_bytes());
        for (_, weights) in self.model.parameters.iter() {
            digest.update(bytemuck::cast_slice(weights.data()));
        }
        // The memory that the last step wrote stands for all of it: rows are made of rows and weights.
        digest.update(bytemuck::cast_slice(fresh));
        ranks.compare(digest.digest(), self.steps)
    }

    /// The same after every hundredth step.
    pub(super) fn compare_sometimes(&mut self) -> Result<(), RanksError> {
        if self.steps.is_multiple_of(COMPARE_STEPS) { self.compare_ranks() } else { Ok(()) }
    }
}

/// Why several ranks cannot share the steps of a trainer with these options on the CPU, if they cannot.
#[must_use]
pub fn not_shared(options: &TrainerOptions) -> Option<&'static str> {
    let needs = options.model.needs();
    match () {
        () if !needs.embeds() => Some("it has no embeddings, so there is next to nothing to compute"),
        () if needs.layers > 1 || needs.snapshots > 1 => Some("its samples have several layers or snapshots"),
        () if options.gradient_delay_batches > 0 && needs.memory_dim > 0 => {
            Some("gradient_delay_batches is not 0")
        }
        () => None,
    }
}

/// A digest of what is written.
struct Digest(Xxh3);

impl Write for Digest {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl PreparedBatch {
    /// Cuts the sample into the parts that a pass computes, if it computes any.
    pub(super) fn cut(&mut self, needs: &Needs, in_parts: bool) {
        let events = self.scored.len();
        let count = if in_parts { parts(needs, events) } else { 1 };
        let part = |i| Part::of_events(&cut(i, count, events), events, self.pairs.blocks());
        self.neighborhood.cut(&(0..count).map(part).collect::<Vec<_>>());
    }

    /// Numbers the edges in the slots of all seeds, or of those that are computed here.
    pub(super) fn number_slots(&mut self, needs: &Needs) {
        let own = self.share.map(|share| self.own_seeds(needs, share));
        let Self { neighborhood, rows, .. } = self;
        match (own, neighborhood.layers()) {
            (Some(own), [layer]) => {
                rows.number_some_slots(&layer.graph, Self::slots_of(&own, layer.graph.fanout));
            }
            _ => rows.number_sample(neighborhood),
        }
    }

    /// Those of `count` nodes whose messages are applied by a rank with this share.
    pub(super) fn nodes_read(&self, share: Option<Share>, count: usize) -> Range<usize> {
        match share {
            // In a state-only step every rank computes all memory rows.
            Some(share) if self.mode != StepMode::StateOnly => {
                let readers = self.neighborhood.readers();
                readers.nodes_of(share.parts(readers.parts()))
            }
            _ => 0..count,
        }
    }

    /// Whether the batch has the rows that a step by `ranks` reads here.
    pub(super) fn is_for(&self, ranks: Option<&Ranks>) -> bool {
        self.share == ranks.and_then(Ranks::share_prepared)
    }

    /// The rows that this batch reads, whole and cut among so many `ranks`, if its sample has one layer.
    #[must_use]
    pub fn rows_read(&self, ranks: usize) -> RowsRead {
        let (events, blocks) = (self.scored().len(), self.pairs.blocks());
        let (pairs, neighbors) = (self.neighborhood.pairs(), self.neighborhood.neighbors());
        let fanout = neighbors.len() / pairs.len().max(1);
        let mut reader = vec![usize::MAX; self.neighborhood.nodes().nodes().len()];
        let read = |rank: usize, marks: &mut [usize]| {
            let own = Part::of_events(&cut(rank, ranks, events), events, blocks);
            let mut count = 0;
            for seed in own.runs().flatten() {
                let slots = neighbors[seed * fanout..][..fanout].iter().chain(&pairs[seed..=seed]);
                for &slot in slots.filter(|slot| **slot != EMPTY_SLOT) {
                    let mark = &mut marks[slot as usize];
                    count += usize::from(std::mem::replace(mark, rank) != rank);
                }
            }
            count
        };
        let by_ranks = (0..ranks).map(|rank| read(rank, &mut reader)).sum();
        RowsRead { distinct: reader.iter().filter(|mark| **mark != usize::MAX).count(), by_ranks }
    }
}
