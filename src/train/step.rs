//! The second half of a step: what [`Trainer`] computes with a prepared batch, and learns from it.

use std::time::Instant;

use super::ahead::StepAhead;
use super::fresh::take_fresh;
use super::meanwhile::Meanwhile;
use super::orders::Order;
use super::pass::{Apply, How, Memory, Pass, in_parts};
use super::prepare::{PreparedBatch, lap};
use super::ranks::RanksError;
use super::shards::{Sharded, parts};
use super::table::RowPart;
use super::trainer::{
    Negatives, PhaseSeconds, Positives, Scratch, StepMode, StepReport, TrainError, Trainer, World,
};
use super::weight_update::WeightUpdate;
use crate::device::Device;
use crate::device::exchange::ExchangeError;
use crate::event::NodeId;
use crate::model::{Deferred, EdgePlaces, StateAfter};
use crate::nn::{Mode, Tape, Tensor};

impl Trainer {
    /// Takes one step with a batch of events and as many negatives. Events of a batch do not see one
    /// another's messages; whether they see one another as neighbors is up to the view. An empty batch
    /// is a step that does nothing.
    ///
    /// # Errors
    /// Columns or feature stores do not fit or storage failed (nothing was done), or the loss or a gradient is
    /// not finite (the weights are untouched and the state was updated).
    pub fn step(
        &mut self,
        world: &World<'_>,
        positives: &Positives<'_>,
        negatives: &Negatives<'_>,
        mode: StepMode,
    ) -> Result<StepReport, TrainError> {
        let mut batch = std::mem::take(&mut self.batch);
        let prepared = self.prepare(world, positives, negatives, mode, &mut batch);
        let done = prepared.and_then(|()| self.step_prepared(&batch));
        self.batch = batch;
        done
    }

    /// Takes the step that `batch` was prepared for.
    ///
    /// # Errors
    /// The batch was prepared for another state (nothing was done), the loss or a gradient is not finite (the
    /// weights are untouched and the state was updated), or the ranks cannot go on together.
    pub fn step_prepared(&mut self, batch: &PreparedBatch) -> Result<StepReport, TrainError> {
        self.step_before(batch, None)
    }

    /// As [`step_prepared`](Self::step_prepared), where the batch whose step comes next is known: on a GPU that step
    /// may be recorded meanwhile. What is computed is the same, bit for bit.
    ///
    /// # Errors
    /// As for [`step_prepared`](Self::step_prepared).
    pub fn step_before(
        &mut self,
        batch: &PreparedBatch,
        next: Option<&PreparedBatch>,
    ) -> Result<StepReport, TrainError> {
        self.step_while(batch, Meanwhile { next, ..Meanwhile::default() })
    }

    /// As [`step_before`](Self::step_before), where nothing but the step of `next` is asked of this trainer after this
    /// one: a GPU may begin it, and the state follows this step meanwhile. Until that step is taken, whatever else
    /// would read or change what it computes with is out of order. [`finish`](Self::finish) takes it if nobody wants
    /// it any more.
    ///
    /// # Errors
    /// As for [`step_prepared`](Self::step_prepared).
    pub fn step_and_begin(
        &mut self,
        batch: &PreparedBatch,
        next: Option<&PreparedBatch>,
    ) -> Result<StepReport, TrainError> {
        self.step_while(batch, Meanwhile { next, begins: true, ..Meanwhile::default() })
    }

    pub(super) fn step_while(
        &mut self,
        batch: &PreparedBatch,
        meanwhile: Meanwhile<'_>,
    ) -> Result<StepReport, TrainError> {
        if !self.has_begun(batch) {
            self.check_order(batch)?;
        }
        self.hand_out(Order::Step, batch)?;
        self.take_step(batch, false, meanwhile)
    }

    /// Key of the dropout masks of the step that comes next.
    pub(super) fn next_dropout(&self) -> [u64; 2] {
        [self.options.seed, self.steps + 1]
    }

    /// Takes the step of a batch that is in order, and that other ranks have. If it `tests`, the scores that it reports
    /// are those without dropout.
    pub(super) fn take_step(
        &mut self,
        batch: &PreparedBatch,
        tests: bool,
        meanwhile: Meanwhile<'_>,
    ) -> Result<StepReport, TrainError> {
        let (step, dropout) = (self.steps, self.next_dropout());
        self.steps += 1;
        if batch.positives().src.is_empty() {
            return Ok(StepReport::default());
        }
        let next = meanwhile.next.filter(|_| meanwhile.begins);
        let mut report = StepReport { touched: batch.touched().to_vec(), ..StepReport::default() };
        report.phases.sample = batch.sample_seconds;
        report.phases.gather = batch.gather_seconds;
        let learned = match batch.mode {
            StepMode::StateOnly => {
                self.refresh_touched(batch)?;
                Ok(())
            }
            StepMode::Train | StepMode::Score => {
                let apply = match batch.mode == StepMode::Train && self.defers() {
                    true => Apply::Due { delay: self.options.gradient_delay_batches },
                    false => Apply::All,
                };
                let how = How { apply, dropout, tests };
                let scored = self.score((batch, meanwhile), &mut report, how)?;
                if scored.is_ok() && batch.mode == StepMode::Train {
                    let state = &self.state;
                    self.model.follow(&batch.positives(), &|node| state.last_event(node));
                }
                scored
            }
        };
        let mut clock = Instant::now();
        let refuses = self.mirror_follows(batch);
        if learned.is_err() || refuses {
            // It was recorded for the state and the weights of a step that leaves all of them.
            self.ahead = None;
        }
        if let Some(next) = next {
            self.begin(next);
        }
        let memory_dim = self.state.memory.dimension();
        let Scratch { pool, fresh, .. } = self.scratch.get_mut();
        let row = |i: usize| &fresh[i * memory_dim..][..memory_dim];
        let (events, touched, rows) = (batch.positives(), &batch.touched, batch.rows.next_messages());
        let mut tape = Tape::pooled(&Device::Cpu, &self.model.parameters, Mode::Inference, pool);
        report.refused_rows =
            self.model.update_state(&mut tape, &mut self.state, &events, touched, row, rows);
        drop(tape);
        match &learned {
            Ok(()) => touched.nodes().iter().for_each(|&node| self.state.deferred.forget(node)),
            Err(_) => self.state.deferred.clear(),
        }
        self.compare_sometimes()?;
        report.phases.memory += lap(&mut clock);
        match learned {
            Ok(()) => Ok(report),
            Err(what) => Err(TrainError::NonFinite { what, step }),
        }
    }

    /// Whether the sample of `batch` is where this trainer computes, and as it computes it: a GPU that is gone may have
    /// kept a part of it, and one that was drawn for it is not cut into parts.
    #[must_use]
    pub fn can_read_sample(&self, batch: &PreparedBatch) -> bool {
        let samples = batch.mode != StepMode::StateOnly && !batch.scored.is_empty();
        if self.device != Device::Cpu || !samples || !in_parts(&self.model) {
            return true;
        }
        let (sample, cut) = (&batch.neighborhood, parts(&self.model.needs(), batch.scored.len()));
        sample.on_gpu().is_none() && sample.readers().parts() == cut
    }

    /// Whether all stages are done of preparing `batch` for the step that comes next.
    #[must_use]
    pub fn is_ready(&self, batch: &PreparedBatch) -> bool {
        batch.has_rows() && self.check_order(batch).is_ok()
    }

    /// Whether `batch` holds the rows of just those messages that a step would apply now.
    pub(super) fn check_order(&self, batch: &PreparedBatch) -> Result<(), TrainError> {
        // A batch without events reads nothing.
        let reads_rows = self.model.needs().reads_messages() && !batch.src.is_empty();
        // Rows that a GPU was to read in place are not here, nor are those that other ranks read.
        let is_elsewhere =
            self.device == Device::Cpu && batch.rows.in_place().is_some() || !self.can_read_sample(batch);
        let is_elsewhere = is_elsewhere || !batch.is_for(self.scratch.lock().ranks.as_ref());
        let pending = |node| self.state.mailbox.pending_event(node);
        if self.begun.is_some()
            || is_elsewhere
            || reads_rows && !batch.rows.has_messages_of(pending, batch.nodes())
        {
            return Err(TrainError::OutOfOrder { step: self.steps });
        }
        Ok(())
    }

    /// Embeds and scores the batch, learns from it if that is its mode, and leaves the touched nodes'
    /// fresh memory in the scratch buffer. What was not finite is the inner error.
    ///
    /// On a GPU all work is enqueued first and waited for once; meanwhile the next batch gets ready, and its step is
    /// recorded, if that is known.
    pub(super) fn score(
        &mut self,
        (batch, meanwhile): (&PreparedBatch, Meanwhile<'_>),
        report: &mut StepReport,
        how: How,
    ) -> Result<Result<(), String>, TrainError> {
        let (device, phases) = (self.device.clone(), &mut report.phases);
        if self.begun.is_none() {
            self.state.mirror.bring_up_to_date(&device, &self.state.memory, &self.state.mailbox);
        }
        let launched = self.begun_or_recorded(batch, phases, how);
        let asked = launched.unwrap_or_else(|| self.ask(batch, phases, how));
        let StepOutput { loss, logits, tested, fresh, update } = asked.map_err(RanksError::from)?;
        let [loss, logits] = [loss, logits].map(Tensor::fetch);
        let (tested, fresh) = (tested.map(Tensor::fetch), fresh.map(Tensor::fetch));
        let update = update.fetch();
        let mut clock = Instant::now();
        let (begins, tests) = (meanwhile.begins, meanwhile.tests);
        let (next, gathering) = self.next_batch(meanwhile).unzip();
        self.scratch.get_mut().edges.begin_to_choose();
        let ahead = next.and_then(|next| self.record_ahead((next, tests), batch));
        // The next step has the time of its own gathering and recording.
        let ahead_seconds = gathering.unwrap_or(0.0) + ahead.as_ref().map_or(0.0, StepAhead::seconds);
        let [loss, logits] = [loss, logits].map(|coming| coming.wait().0);
        let n = batch.scored().len();
        report.loss = loss.data().first().copied().unwrap_or_default();
        let tested = tested.map(|coming| coming.wait().0);
        let scores = tested.as_ref().unwrap_or(&logits);
        report.positive.extend_from_slice(&scores.data()[..n]);
        report.negative.extend_from_slice(&scores.data()[n..]);
        let learned = self.check_update(update, report.loss);
        let Scratch { pool, fresh: kept, .. } = self.scratch.get_mut();
        kept.clear();
        self.fresh_on_gpu = fresh.and_then(|rows| take_fresh(rows, kept, pool));
        [loss, logits].into_iter().chain(tested).for_each(|tensor| pool.give(tensor));
        device.check()?;
        if let (Device::Cuda(work), true) =
            (&device, begins && next.is_some_and(|next| next.gradient_steps() > 0))
        {
            // The next one comes behind it at once, in whatever way it is launched.
            work.step_begins();
        }
        self.restore_rows();
        self.ahead = ahead;
        report.phases.settle = lap(&mut clock) - ahead_seconds;
        Ok(learned)
    }

    /// Asks for all of a step.
    fn ask(
        &mut self,
        batch: &PreparedBatch,
        phases: &mut PhaseSeconds,
        how: How,
    ) -> Result<StepOutput, ExchangeError> {
        let device = self.device.clone();
        if let (Device::Cuda(work), StepMode::Train) = (&device, batch.mode) {
            work.step_begins();
        }
        // What is kept on the GPU for later batches is not part of the graph of this one.
        let places = self.scratch.get_mut().edges.place(&device, &batch.rows);
        let mut compute = || self.compute((batch, None), places.as_ref(), phases, how);
        // Steps that learn are all of one shape.
        if batch.mode == StepMode::Train { device.record(compute) } else { compute() }
    }

    /// Computes scores and, to learn, gradients and new weights; on a GPU, enqueues that. State and optimizer are as
    /// they are or, if the step of a batch before this one is still computed, as that will leave them.
    pub(super) fn compute(
        &mut self,
        (batch, before): (&PreparedBatch, Option<&PreparedBatch>),
        places: Option<&EdgePlaces>,
        phases: &mut PhaseSeconds,
        how: How,
    ) -> Result<StepOutput, ExchangeError> {
        let learn = batch.mode == StepMode::Train;
        let mode = if learn { Mode::Train } else { Mode::Inference };
        let precision = self.options.precision;
        let state = before.map_or_else(
            || (&self.state).into(),
            |before| StateAfter::batch(&self.state, &before.touched, before.positives()),
        );
        let pass = Pass { model: &self.model, state, batch, places, precision, how };
        debug_assert!(!how.tests || matches!(how.apply, Apply::All), "a test of other rows");
        // Positives are seeds, so each touched node has a slot.
        let slot = |&node: &NodeId| batch.neighborhood.nodes().slot(node).unwrap_or_default();
        let touched = || batch.touched().iter().map(slot).collect::<Vec<u32>>();
        let Scratch { pool, tables, shards, ranks, .. } = self.scratch.get_mut();
        let (loss, logits, tested, fresh) = if pass.has_parts() {
            let (asked, parameters) = (touched(), (&self.model.parameters, mode));
            let mut done = Sharded::run((&pass, &asked), parameters, tables, shards, ranks.as_mut())?;
            if learn {
                let leaves = done.backward(shards, &mut self.gradients, ranks.as_mut())?;
                settle(&mut self.state.deferred, &mut done.rows, batch, leaves);
            }
            [phases.forward, phases.backward] = done.seconds;
            let mut matrix = |values: &[f32], rows: usize| {
                let mut matrix = pool.take(&Device::Cpu, rows, values.len() / rows.max(1));
                matrix.data_mut().copy_from_slice(values);
                matrix
            };
            let fresh = matrix(&done.fresh, asked.len());
            let logits = matrix(&done.logits, done.logits.len());
            let tested = done.tested.map(|tested| matrix(&tested, tested.len()));
            (matrix(&[done.loss], 1), logits, tested, Some(fresh))
        } else {
            let mut clock = Instant::now();
            let mut tape = Tape::pooled(&self.device, &self.model.parameters, mode, pool);
            let scored = pass.score(&mut tape);
            let loss = tape.pair_loss(scored.logits, batch.scored().len());
            let fresh = scored.fresh.map(|rows| tape.gather(rows, touched()));
            let table = scored.table.filter(|_| how.tests).map(|table| tape.share(table).0);
            phases.forward = lap(&mut clock);
            if learn {
                self.gradients.start_over();
                tape.backward(loss, &mut self.gradients);
                phases.backward = lap(&mut clock);
            }
            let [loss, logits] = [loss, scored.logits].map(|var| tape.take_value(var));
            let fresh = fresh.map(|var| tape.take_value(var));
            drop(tape);
            let tested = table.map(|table| {
                let mut tape = Tape::pooled(&self.device, &self.model.parameters, Mode::Inference, pool);
                let table = tape.shared_leaf(table, false);
                let all = 0..batch.scored().len();
                let logits = pass.pair_logits(&mut tape, table, (0, None), &all);
                tape.take_value(logits)
            });
            phases.forward += lap(&mut clock);
            (loss, logits, tested, fresh)
        };
        let mut clock = Instant::now();
        let gradient_steps = self.adam.steps() + before.map_or(0, PreparedBatch::gradient_steps);
        let update = if learn { self.update_weights(&loss, gradient_steps) } else { WeightUpdate::Nothing };
        phases.optimizer = lap(&mut clock);
        Ok(StepOutput { loss, logits, tested, fresh, update })
    }
}

/// Notes what the pass over a batch owes the rows that were kept, and keeps those that it computed, but for the nodes
/// that the batch touches: their messages are consumed. Does nothing where all messages were applied.
fn settle(
    rows: &mut Deferred,
    parts: &mut [RowPart<'_>],
    batch: &PreparedBatch,
    leaves: Vec<Option<Tensor>>,
) {
    let mut leaves = leaves.into_iter();
    let mut defers = false;
    for RowPart { tape, nodes, memory, .. } in parts {
        let owed = leaves.next().flatten();
        let Memory::Due(memory) = memory else { continue };
        defers = true;
        let nodes = &batch.neighborhood.nodes().nodes()[nodes.clone()];
        if let Some(owed) = owed {
            memory.kept.iter().for_each(|&slot| rows.owe(nodes[slot as usize], owed.row(slot as usize)));
            tape.give(owed);
        }
        if let Some(updated) = memory.updated.map(|updated| tape.value(updated)) {
            let applied = memory.applied.iter().map(|&slot| nodes[slot as usize]).enumerate();
            let applied = applied.filter(|&(_, node)| !batch.is_touched(node));
            applied.for_each(|(i, node)| rows.keep(node, updated.row(i)));
        }
    }
    if defers {
        rows.advance();
    }
}

/// Tensors of a step, on the device that computes.
pub(super) struct StepOutput {
    /// `[1, 1]`.
    loss: Tensor,
    /// `[pairs, 1]`, positives first.
    logits: Tensor,
    /// The same without dropout, if they were asked for and come of the same pass.
    tested: Option<Tensor>,
    /// `[touched nodes, memory_dim]`; none where no memory was read.
    fresh: Option<Tensor>,
    update: WeightUpdate,
}
