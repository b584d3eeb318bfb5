//! [`StepAhead`]: a step that a trainer on a GPU records while the GPU computes the step before it.
//!
//! What recording reads is known by then: the batch is prepared, and which messages wait and when memory was updated
//! follows from the batch before ([`StateAfter`]). Rows of memory, weights and the optimizer's averages are read at
//! the launch, where the step before left them. It is recorded as if that step went well. If it did not, or anything
//! else came between (other weights, another state, another batch, tables that moved), the step is recorded anew in
//! its turn.
//!
//! Edge rows of its batch stay where they were placed until the launch, so a pass over another batch meanwhile does
//! without the cache. Readers get rows of nodes that the batch before touched: what those are made of is set aside.
//!
//! Where nothing comes between two steps ([`Trainer::step_and_begin`]), the GPU begins the second as soon as the
//! results of the first are found to be good: the CPU's rows of memory and messages, which no step on a GPU reads,
//! follow the first step while the GPU computes the second.
//!
//! ```text
//! host   record n+1 | wait for n, check, launch n+1 | state after n | record n+2 | wait for n+1 ...
//! GPU    compute n ........................ |         compute n+1 ............................ |
//! ```

use super::pass::How;
use super::prepare::PreparedBatch;
use super::step::StepOutput;
use super::trainer::{PhaseSeconds, StepMode, TrainError, Trainer};
use crate::device::Device;
use crate::device::cuda::Ahead;
use crate::device::exchange::ExchangeError;
use crate::model::{EdgePlaces, StateAfter};
use crate::sampler::GpuColumns;

/// A step that was recorded, and what it was recorded for.
pub(super) struct StepAhead {
    step: Ahead<Result<StepOutput, ExchangeError>>,
    places: Option<EdgePlaces>,
    /// The rows of messages that the batch before leaves, and the number of that batch.
    aside: Option<(u64, EdgePlaces)>,
    /// What it reads of its sample, whose memory serves no other sample before.
    columns: Option<GpuColumns>,
    phases: PhaseSeconds,
    premises: Premises,
}

impl StepAhead {
    /// Seconds that recording it took.
    pub fn seconds(&self) -> f64 {
        self.phases.forward + self.phases.backward + self.phases.optimizer
    }

    /// Where the rows of messages are that `batch` leaves, if it is the one before.
    pub fn set_aside(&self, batch: &PreparedBatch) -> Option<&EdgePlaces> {
        self.aside.as_ref().filter(|(number, _)| *number == batch.number).map(|(_, places)| places)
    }
}

/// A step that a GPU has begun, perhaps before it was asked for.
pub(super) struct BegunStep {
    output: Result<StepOutput, ExchangeError>,
    phases: PhaseSeconds,
    /// Likewise.
    _columns: Option<GpuColumns>,
    /// Number of its batch.
    batch: u64,
}

/// What has to be so when the step is launched.
#[derive(PartialEq)]
struct Premises {
    /// Number of the batch.
    batch: u64,
    /// Key of the dropout masks, and whether it is scored without dropout, too.
    dropout: [u64; 2],
    tests: bool,
    /// Gradient steps that were taken, and the learning rate of the next.
    gradient_steps: u64,
    learning_rate: u32,
    /// Tables of memory and messages on the GPU.
    tables: Option<u64>,
}

impl Trainer {
    /// Whether batches should be ready a step early, for a GPU's steps to be recorded ahead.
    pub(super) fn wants_batches_early(&self) -> bool {
        matches!(&self.device, Device::Cuda(work) if work.may_look_ahead())
    }

    /// Whether the step behind the one that began last is recorded ahead, if its batch gets ready in time.
    #[must_use]
    pub fn looks_ahead(&self) -> bool {
        let looks_ahead = matches!(&self.device, Device::Cuda(work) if work.looks_ahead());
        looks_ahead && StateAfter::is_known(&self.state, &self.device)
    }

    fn premises(&self, batch: &PreparedBatch, how: How, gradient_steps: u64) -> Premises {
        Premises {
            batch: batch.number,
            dropout: how.dropout,
            tests: how.tests,
            gradient_steps,
            learning_rate: self.learning_rate_after(gradient_steps).to_bits(),
            tables: self.state.mirror.number(&self.device),
        }
    }

    /// Records the step of `batch`, which `tests` or not, while the GPU computes that of the batch `before`, the last
    /// one that began. `None` if it has to be asked for in its turn.
    pub(super) fn record_ahead(
        &mut self,
        (batch, tests): (&PreparedBatch, bool),
        before: &PreparedBatch,
    ) -> Option<StepAhead> {
        let Device::Cuda(work) = self.device.clone() else { return None };
        let is_ready = batch.mode == StepMode::Train && batch.has_rows() && !batch.src.is_empty();
        if !is_ready || !self.looks_ahead() {
            return None;
        }
        let after = StateAfter::batch(&self.state, &before.touched, before.positives());
        let pending = |node| after.pending_event(node);
        if self.model.needs().reads_messages() && !batch.rows.has_messages_of(pending, batch.nodes()) {
            return None;
        }
        let how = How { tests, ..How::with_dropout(self.next_dropout()) };
        let premises = self.premises(batch, how, self.adam.steps() + before.gradient_steps());
        let edges = &mut self.scratch.get_mut().edges;
        let aside = edges.set_aside(&self.device, &before.rows).map(|places| (before.number, places));
        edges.restore(&self.device);
        let places = edges.place(&self.device, &batch.rows);
        edges.begin_to_choose();
        // The step that is computed went well so far.
        if work.forgive() {
            edges.misplaced();
            return None;
        }
        let mut phases = PhaseSeconds::default();
        let step =
            work.record_ahead(|| self.compute((batch, Some(before)), places.as_ref(), &mut phases, how))?;
        let columns = batch.neighborhood.on_gpu().cloned();
        Some(StepAhead { step, places, aside, columns, phases, premises })
    }

    /// Has the GPU begin the step of `next`, which nothing comes before, if it was recorded for what is so now.
    pub(super) fn begin(&mut self, next: &PreparedBatch) {
        self.begun = self.launch_ahead(next, How::with_dropout(self.next_dropout()));
    }

    /// Whether the step of `batch` has begun.
    pub(super) fn has_begun(&self, batch: &PreparedBatch) -> bool {
        self.begun.as_ref().is_some_and(|begun| begun.batch == batch.number)
    }

    /// Whether the step of `batch` is recorded and waits for its launch.
    #[must_use]
    pub fn has_recorded(&self, batch: &PreparedBatch) -> bool {
        batch.has_rows() && self.ahead.as_ref().is_some_and(|ahead| ahead.premises.batch == batch.number)
    }

    /// Gives up the step that was recorded ahead, if one was: what it was recorded for changes.
    ///
    /// # Panics
    /// If it has begun.
    pub(super) fn give_up_ahead(&mut self) {
        self.expect_none_begun();
        self.ahead = None;
    }

    /// Weights, state and optimizer are those of the last step that was taken.
    ///
    /// # Panics
    /// If they are not, because the next one has begun.
    pub(super) fn expect_none_begun(&self) {
        assert!(self.begun.is_none(), "a step that has begun is taken before anything else");
    }

    /// Takes the step that has begun, if one has, whatever it is of. `batches` has its batch.
    ///
    /// # Errors
    /// As for [`step_prepared`](Self::step_prepared), or its batch is not there.
    pub fn finish<'b>(
        &mut self,
        batches: impl IntoIterator<Item = &'b PreparedBatch>,
    ) -> Result<(), TrainError> {
        let Some(BegunStep { batch: number, .. }) = self.begun else { return Ok(()) };
        let batch = batches.into_iter().find(|batch| batch.number == number);
        let batch = batch.ok_or(TrainError::OutOfOrder { step: self.steps })?;
        self.step_prepared(batch).map(drop)
    }

    /// What came of launching the step of `batch`, which has begun or was recorded for what is so now.
    pub(super) fn begun_or_recorded(
        &mut self,
        batch: &PreparedBatch,
        phases: &mut PhaseSeconds,
        how: How,
    ) -> Option<Result<StepOutput, ExchangeError>> {
        let begun = self.begun.take().or_else(|| self.launch_ahead(batch, how))?;
        let PhaseSeconds { forward, backward, optimizer, .. } = begun.phases;
        *phases = PhaseSeconds { forward, backward, optimizer, ..*phases };
        Some(begun.output)
    }

    /// Launches the step of `batch` if it was recorded for what is so now.
    fn launch_ahead(&mut self, batch: &PreparedBatch, how: How) -> Option<BegunStep> {
        let StepAhead { step, places, columns, phases, premises, .. } = self.ahead.take()?;
        let Device::Cuda(work) = &self.device else { return None };
        if premises != self.premises(batch, how, self.adam.steps()) {
            return None;
        }
        let output = work.launch_ahead(step);
        drop(places);
        Some(BegunStep { output: output?, phases, _columns: columns, batch: batch.number })
    }
}
