//! The second half of a step: what [`Trainer`] computes with a prepared batch, and learns from it.

use std::time::Instant;

use super::prepare::{PreparedBatch, lap};
use super::trainer::{Negatives, Positives, Scratch, StepMode, StepReport, TrainError, Trainer, World};
use crate::model::walk::WalkState;
use crate::model::{EmbeddingInput, GatheredRows, Model, Neighborhood, TgnState};
use crate::nn::{Gradients, Mode, Tape, Var};

/// Gradients of a larger norm are scaled down to it. The optimizer remembers the square of a gradient for
/// thousands of steps; without a bound, one strange event would all but stop learning for that long. On the
/// UCI messages half of all norms are below 0.8 and none reaches 5, so ordinary streams are not touched.
pub(super) const GRADIENT_NORM_MAX: f32 = 5.0;

/// What a forward pass leaves on the tape.
pub(super) struct Forward {
    /// `[nodes, memory_dim]`: memory of the neighborhood's nodes after their pending messages.
    fresh: Var,
    /// `[seeds, embedding_dim]`.
    pub embeddings: Var,
}

/// What scoring the pairs of a batch leaves on the tape.
pub(super) struct Scored {
    /// `[pairs, 1]`, positives first.
    pub logits: Var,
    /// As in [`Forward`]; `None` where no memory was read.
    fresh: Option<Var>,
}

pub(super) fn forward(
    model: &Model,
    tape: &mut Tape<'_>,
    state: &TgnState,
    (neighborhood, rows): (&Neighborhood, &GatheredRows),
    dropout: [u64; 2],
) -> Forward {
    let fresh = model.fresh_memory(tape, state, neighborhood.nodes().nodes(), rows.mails());
    let last_event = &|node| state.last_event(node);
    let origin = state.walks.as_ref().and_then(WalkState::origin);
    let input = EmbeddingInput { neighborhood, rows, last_event, origin, dropout };
    let embeddings = model.embed(tape, fresh, &input);
    Forward { fresh, embeddings }
}

/// Scores the pairs of a batch: by their walks where the model counts those, else by embeddings.
pub(super) fn score_pairs(
    model: &Model,
    tape: &mut Tape<'_>,
    state: &TgnState,
    batch: &PreparedBatch,
    dropout: [u64; 2],
) -> Scored {
    if state.walks.is_some() {
        let ([src, dst], times) = batch.pairs();
        if let Some(logits) = model.walk_logits(tape, state, (&src, &dst), &times) {
            return Scored { logits, fresh: None };
        }
    }
    let done = forward(model, tape, state, batch.gathered(), dropout);
    let (src, dst) = (batch.pairs.src.clone(), batch.pairs.dst.clone());
    Scored { logits: model.logits(tape, done.embeddings, src, dst), fresh: Some(done.fresh) }
}

impl Trainer {
    /// Takes one step with a batch of events and as many negatives. Events of a batch do not see one
    /// another's messages; whether they see one another as neighbors is up to the view. An empty batch
    /// is a step that does nothing.
    ///
    /// # Errors
    /// Columns or feature stores do not fit or storage failed (nothing was done), or the loss or a gradient is
    /// not finite (the weights are untouched and the batch was remembered).
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
    /// The batch was prepared for another state (nothing was done), or the loss or a gradient is not finite (the
    /// weights are untouched and the batch was remembered).
    pub fn step_prepared(&mut self, batch: &PreparedBatch) -> Result<StepReport, TrainError> {
        self.check_order(batch)?;
        let step = self.steps;
        self.steps += 1;
        if batch.positives().src.is_empty() {
            return Ok(StepReport::default());
        }
        let mut report = StepReport { touched: batch.touched().to_vec(), ..StepReport::default() };
        report.phases.sample = batch.sample_seconds;
        report.phases.gather = batch.gather_seconds;
        let learned = match batch.mode {
            StepMode::Remember => {
                self.refresh_touched(batch);
                Ok(())
            }
            StepMode::Train | StepMode::Score => {
                let scored = self.score(batch, &mut report, [self.options.seed, step + 1]);
                if scored.is_ok() && batch.mode == StepMode::Train {
                    let state = &self.state;
                    self.model.follow(&batch.positives(), &|node| state.last_event(node));
                }
                scored
            }
        };
        let mut clock = Instant::now();
        let memory_dim = self.state.memory.dimension();
        let Scratch { pool, fresh, .. } = self.scratch.get_mut();
        let row = |i: usize| &fresh[i * memory_dim..][..memory_dim];
        let mut tape = Tape::pooled(&self.device, &self.model.parameters, Mode::Inference, pool);
        let (events, touched, rows) = (batch.positives(), &batch.touched, batch.rows.next_mails());
        report.refused_rows = self.model.remember(&mut tape, &mut self.state, &events, touched, row, rows);
        drop(tape);
        report.phases.memory += lap(&mut clock);
        match learned {
            Ok(()) => Ok(report),
            Err(what) => Err(TrainError::NonFinite { what, step }),
        }
    }

    /// Whether `batch` holds the rows of just those messages that a step would apply now.
    pub(super) fn check_order(&self, batch: &PreparedBatch) -> Result<(), TrainError> {
        let reads_rows = self.model.needs().reads_mails();
        if reads_rows && !batch.rows.has_mails_of(&self.state.mailbox, batch.nodes()) {
            return Err(TrainError::OutOfOrder { step: self.steps });
        }
        Ok(())
    }

    /// Embeds and scores the batch, learns from it if that is its mode, and leaves the touched nodes'
    /// fresh memory in the scratch buffer. `dropout` is the key of its masks. The error says what was not finite.
    pub(super) fn score(
        &mut self,
        batch: &PreparedBatch,
        report: &mut StepReport,
        dropout: [u64; 2],
    ) -> Result<(), String> {
        let Scratch { pool, fresh, .. } = self.scratch.get_mut();
        let phases = &mut report.phases;
        let mut clock = Instant::now();
        let learn = batch.mode == StepMode::Train;
        let mode = if learn { Mode::Train } else { Mode::Inference };
        let mut tape = Tape::pooled(&self.device, &self.model.parameters, mode, pool);
        let scored = score_pairs(&self.model, &mut tape, &self.state, batch, dropout);
        let logits = scored.logits;
        let n = batch.positives().src.len();
        let (happened, made_up) = (tape.rows(logits, 0..n), tape.rows(logits, n..2 * n));
        let positive_loss = tape.bce_with_logits(happened, &vec![1.0; n]);
        let negative_loss = tape.bce_with_logits(made_up, &vec![0.0; n]);
        let loss = tape.add(positive_loss, negative_loss);
        report.loss = tape.scalar(loss);
        let scores = tape.value(logits).data();
        report.positive.extend_from_slice(&scores[..n]);
        report.negative.extend_from_slice(&scores[n..]);
        fresh.clear();
        if let Some(rows) = scored.fresh.map(|rows| tape.value(rows)) {
            for &node in batch.touched() {
                // Positives are seeds, so each has a slot.
                let slot = batch.neighborhood.nodes().slot(node).unwrap_or_default();
                fresh.extend_from_slice(rows.row(slot as usize));
            }
        }
        phases.forward = lap(&mut clock);
        if !report.loss.is_finite() {
            return Err(format!("the loss ({})", report.loss));
        }
        if !learn {
            return Ok(());
        }
        self.gradients.start_over();
        tape.backward(loss, &mut self.gradients);
        drop(tape);
        phases.backward = lap(&mut clock);
        let learned = self.learn();
        phases.optimizer = lap(&mut clock);
        learned
    }

    /// Changes the weights by the gradients at hand, bounded, if those are finite.
    fn learn(&mut self) -> Result<(), String> {
        let norm = self.gradients.norm();
        if !norm.is_finite() {
            return Err(out_of_range(&self.model, &self.gradients));
        }
        if norm > GRADIENT_NORM_MAX {
            self.gradients.scale(GRADIENT_NORM_MAX / norm);
        }
        self.adam.options.learning_rate = self.learning_rate();
        self.adam.step(&mut self.model.parameters, &self.gradients);
        Ok(())
    }

    /// Applies the touched nodes' pending messages into the scratch buffer.
    fn refresh_touched(&mut self, batch: &PreparedBatch) {
        if self.state.memory.dimension() == 0 {
            return;
        }
        let Scratch { pool, fresh, .. } = self.scratch.get_mut();
        let mut tape = Tape::pooled(&self.device, &self.model.parameters, Mode::Inference, pool);
        let mails = batch.rows.mails();
        let rows = self.model.fresh_memory(&mut tape, &self.state, batch.touched(), mails);
        fresh.clear();
        fresh.extend_from_slice(tape.value(rows).data());
    }
}

/// Names the first gradient that is not finite or, if all are, their size.
fn out_of_range(model: &Model, gradients: &Gradients) -> String {
    let finite = |name: &str| {
        let id = model.parameters.find(name);
        id.is_none_or(|id| gradients.get(id).data().iter().all(|value| value.is_finite()))
    };
    match model.parameters.iter().find(|(name, _)| !finite(name)) {
        Some((name, _)) => format!("the gradient of {name}"),
        None => "the gradients' norm".to_owned(),
    }
}
