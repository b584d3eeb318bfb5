//! What [`Trainer`] computes without learning: embeddings, and scores that change no state.

use super::meanwhile::Meanwhile;
use super::orders::Order;
use super::pass::{How, Pass, embed};
use super::prepare::PreparedBatch;
use super::ranks::RanksError;
use super::shards::Sharded;
use super::trainer::{
    Negatives, Positives, RankQuery, Scratch, StepMode, StepReport, TrainError, Trainer, World,
};
use crate::device::Device;
use crate::event::{EventTime, NodeId};
use crate::model::Model;
use crate::nn::{Fetched, Mode, Tape, Tensor, Var};

/// Rows computed at a time where a request has no natural batch.
pub(super) const CHUNK_ROWS: usize = 1024;

impl Trainer {
    /// Embeddings `[nodes * embedding_dim]` of `nodes`, each at the time beside it, with the weights and
    /// the state as they are. Changes nothing.
    ///
    /// # Errors
    /// Storage failed.
    ///
    /// # Panics
    /// If the columns differ in length.
    pub fn embeddings(
        &self,
        world: &World<'_>,
        nodes: &[NodeId],
        times: &[EventTime],
    ) -> Result<Vec<f32>, TrainError> {
        assert_eq!(nodes.len(), times.len(), "nodes and times of the seeds");
        let mut scratch = self.scratch.lock();
        let mut embeddings = Vec::with_capacity(nodes.len() * self.model.needs().embedding_dim);
        for (nodes, times) in nodes.chunks(CHUNK_ROWS).zip(times.chunks(CHUNK_ROWS)) {
            scratch.neighborhood.clear();
            scratch.neighborhood.add_seeds(nodes, times);
            self.with_embeddings(world, &mut scratch, |tape, rows| {
                embeddings.extend_from_slice(&tape.read(rows));
            })?;
        }
        Ok(embeddings)
    }

    /// Logits of an event from `src` to each of `candidates` at `time`, with the weights and the
    /// state as they are. Changes nothing, so any number of candidates is scored against one state.
    ///
    /// # Errors
    /// Storage failed.
    pub fn score_candidates(
        &self,
        world: &World<'_>,
        src: NodeId,
        time: EventTime,
        candidates: &[NodeId],
    ) -> Result<Vec<f32>, TrainError> {
        let mut scores = Vec::with_capacity(candidates.len());
        for candidates in candidates.chunks(CHUNK_ROWS) {
            let logits = self.score_queries(world, &[RankQuery { src, time, candidates }])?;
            scores.extend(logits.into_iter().flatten());
        }
        Ok(scores)
    }

    /// Logits of the candidates of each query, as [`Self::score_candidates`], all in one pass.
    ///
    /// # Errors
    /// Storage failed.
    pub fn score_queries(
        &self,
        world: &World<'_>,
        queries: &[RankQuery<'_>],
    ) -> Result<Vec<Vec<f32>>, TrainError> {
        let mut scratch = self.scratch.lock();
        let (mut sources, mut candidates, mut times) = (Vec::new(), Vec::new(), Vec::new());
        for query in queries {
            candidates.extend_from_slice(query.candidates);
            sources.resize(candidates.len(), query.src);
            times.resize(candidates.len(), query.time);
        }
        if candidates.is_empty() {
            return Ok(vec![Vec::new(); queries.len()]);
        }
        let pairs = (&sources[..], &candidates[..], &times[..]);
        if !self.model.needs().embeds() {
            let (parameters, pool) = (&self.model.parameters, &mut scratch.pool);
            let mut tape = Tape::pooled(&self.device, parameters, Mode::Inference, pool);
            let scores = self.model.with_walk_logits(&mut tape, &self.state, None, pairs);
            return Ok(by_query(queries, &tape.read(scores)));
        }
        scratch.neighborhood.clear();
        let (mut src, mut dst, mut rows) = (Vec::new(), Vec::new(), 0);
        for query in queries {
            let count = query.candidates.len();
            scratch.neighborhood.add_seeds(&[query.src], &[query.time]);
            scratch.neighborhood.add_seeds(query.candidates, &vec![query.time; count]);
            src.resize(src.len() + count, rows);
            dst.extend(rows + 1..=rows + count as u32);
            rows += 1 + count as u32;
        }
        let mut logits = Vec::new();
        self.with_embeddings(world, &mut scratch, |tape, embeddings| {
            let scores = self.model.logits(tape, embeddings, src, dst);
            let scores = self.model.with_walk_logits(tape, &self.state, Some(scores), pairs);
            logits.extend_from_slice(&tape.read(scores));
        })?;
        Ok(by_query(queries, &logits))
    }

    /// Logits of the positives and of the negatives beside them, with the weights and the state as
    /// they are. Changes nothing: the test of test-then-train, without the dropout of a training step.
    ///
    /// # Errors
    /// The batch was prepared for another state.
    ///
    /// # Panics
    /// If the batch was prepared for a state-only update.
    pub fn score_prepared(&self, batch: &PreparedBatch) -> Result<(Vec<f32>, Vec<f32>), TrainError> {
        self.score_prepared_by(&self.model, batch)
    }

    /// Takes the step that `batch` was prepared for, and reports the scores of [`Self::score_prepared`] before it.
    /// Where a training step drops values, its own are others: then the pairs are embedded twice, from one table of
    /// memory rows. A pass of its own computes them where the step defers gradients.
    ///
    /// # Errors
    /// As [`Self::step_prepared`].
    pub fn test_and_step(&mut self, batch: &PreparedBatch) -> Result<StepReport, TrainError> {
        self.test_and_step_while(batch, Meanwhile::default())
    }

    /// As [`Self::test_and_step`]; while a GPU computes the step, the next batch gets ready, which this will take, too.
    ///
    /// # Errors
    /// As [`Self::step_prepared`].
    pub fn test_and_step_while(
        &mut self,
        batch: &PreparedBatch,
        meanwhile: Meanwhile<'_>,
    ) -> Result<StepReport, TrainError> {
        let defers = self.defers();
        let tests = self.options.model.dropout() > 0.0 && !defers;
        let meanwhile = Meanwhile { tests, ..meanwhile };
        if batch.mode != StepMode::Train || !(tests || defers) || batch.positives().src.is_empty() {
            return self.step_while(batch, meanwhile);
        }
        self.check_order(batch)?;
        self.hand_out(Order::TestAndStep, batch)?;
        if tests {
            return self.take_step(batch, true, meanwhile);
        }
        let asked = self.ask_scores(&self.model, batch)?;
        let report = self.take_step(batch, false, meanwhile)?;
        let (positive, negative) = batch.halves(asked);
        Ok(StepReport { positive, negative, ..report })
    }

    /// As [`Self::score_prepared`], by other weights of the same shape on the same state.
    ///
    /// # Errors
    /// The batch was prepared for another state, or ranks share it.
    ///
    /// # Panics
    /// If the batch was prepared for a state-only update, or the model has another shape.
    pub fn score_prepared_by(
        &self,
        model: &Model,
        batch: &PreparedBatch,
    ) -> Result<(Vec<f32>, Vec<f32>), TrainError> {
        assert_ne!(batch.mode, StepMode::StateOnly, "a batch without a sample has no scores");
        self.check_order(batch)?;
        // A rank has rows of its own share, and scores none of the others'.
        if batch.share.is_some() {
            return Err(TrainError::Shared);
        }
        if batch.positives().src.is_empty() {
            return Ok((Vec::new(), Vec::new()));
        }
        let scores = batch.halves(self.ask_scores(model, batch)?);
        model.device().check()?;
        Ok(scores)
    }

    /// Logits `[pairs, 1]` of a batch with events, positives first. A GPU is not waited for.
    fn ask_scores(&self, model: &Model, batch: &PreparedBatch) -> Result<Fetched, RanksError> {
        let Scratch { pool, tables, shards, edges, .. } = &mut *self.scratch.lock();
        let places = edges.place(model.device(), &batch.rows);
        let (state, places, how) = ((&self.state).into(), places.as_ref(), How::with_dropout([0, 0]));
        let precision = self.options.precision;
        let pass = Pass { model, state, batch, places, precision, how };
        let logits = if pass.has_parts() {
            let parameters = (&model.parameters, Mode::Inference);
            let logits = Sharded::run((&pass, &[]), parameters, tables, shards, None)?.logits;
            Tensor::from_vec(&Device::Cpu, logits.len(), 1, logits)
        } else {
            let mut tape = Tape::pooled(model.device(), &model.parameters, Mode::Inference, pool);
            let scored = pass.score(&mut tape);
            tape.take_value(scored.logits)
        };
        Ok(logits.fetch())
    }

    /// As [`Self::score_prepared`], for a batch that is not prepared.
    ///
    /// # Errors
    /// Columns or feature stores do not fit, or storage failed.
    pub fn score_pairs(
        &self,
        world: &World<'_>,
        positives: &Positives<'_>,
        negatives: &Negatives<'_>,
    ) -> Result<(Vec<f32>, Vec<f32>), TrainError> {
        let mut batch = PreparedBatch::default();
        self.prepare(world, positives, negatives, StepMode::Score, &mut batch)?;
        self.score_prepared(&batch)
    }

    /// Embeds the seeds in `scratch` without gradient and hands the tape and the embeddings to `then`.
    fn with_embeddings(
        &self,
        world: &World<'_>,
        scratch: &mut Scratch,
        then: impl FnOnce(&mut Tape<'_>, Var),
    ) -> Result<(), TrainError> {
        let Scratch { pool, neighborhood, rows, edges, .. } = scratch;
        let pending = |node| self.state.mailbox.pending_event(node);
        let read = (&mut *rows, self.rows.as_deref());
        world.gather(&self.model.needs(), neighborhood, read, Some(&pending))?;
        let places = edges.glance(&self.device, rows);
        let mut tape = Tape::pooled(&self.device, &self.model.parameters, Mode::Inference, pool);
        let embeddings = embed(&self.model, &mut tape, &self.state, (neighborhood, rows, places.as_ref()));
        then(&mut tape, embeddings);
        Ok(self.device.check()?)
    }
}

impl PreparedBatch {
    /// Scores of the positives, and of the negatives behind them. Waits for a GPU.
    fn halves(&self, asked: Fetched) -> (Vec<f32>, Vec<f32>) {
        let mut positive = asked.wait().0.to_vec();
        let negative = positive.split_off(self.scored().len().min(positive.len()));
        (positive, negative)
    }
}

/// The logits of each query's candidates, out of those of all.
fn by_query(queries: &[RankQuery<'_>], mut logits: &[f32]) -> Vec<Vec<f32>> {
    let own = |query: &RankQuery<'_>| logits.split_off(..query.candidates.len()).unwrap_or_default().to_vec();
    queries.iter().map(own).collect()
}
