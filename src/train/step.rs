//! What [`Trainer`] computes: steps, scores that leave no trace, and rows to publish.

use std::time::Instant;

use super::trainer::{
    Negatives, Positives, RankQuery, Scratch, StepMode, StepReport, TrainError, Trainer, World,
};
use crate::event::{EventTime, NodeId};
use crate::feature::FeatureStore;
use crate::model::{EmbeddingInput, LinkPredictor, Neighborhood, Tgn, TgnState};
use crate::nn::{Gradients, Mode, Tape, Var};
use crate::sampler::sample;

/// Gradients of a larger norm are scaled down to it. The optimizer remembers the square of a gradient for
/// thousands of steps; without a bound, one strange event would all but stop learning for that long. On the
/// UCI messages half of all norms are below 0.8 and none reaches 5, so ordinary streams are not touched.
const GRADIENT_NORM_MAX: f32 = 5.0;

/// Rows computed at a time where a request has no natural batch.
const CHUNK_ROWS: usize = 1024;

/// What a forward pass leaves on the tape.
struct Forward {
    /// `[nodes, memory_dim]`: memory of the neighborhood's nodes after their pending messages.
    fresh: Var,
    /// `[seeds, embedding_dim]`.
    embeddings: Var,
}

fn forward(
    tgn: &Tgn,
    tape: &mut Tape<'_>,
    state: &TgnState,
    neighborhood: &Neighborhood,
    world: &World<'_>,
    dropout: [u64; 2],
) -> Forward {
    let fresh = tgn.fresh_memory(tape, state, neighborhood.nodes().nodes());
    let input = EmbeddingInput { neighborhood, features: world.features(), dropout };
    let embeddings = tgn.embed(tape, fresh, &input);
    Forward { fresh, embeddings }
}

/// Seconds since `since`, which moves to now.
fn lap(since: &mut Instant) -> f64 {
    let before = std::mem::replace(since, Instant::now());
    since.duration_since(before).as_secs_f64()
}

impl Trainer {
    /// Takes one step with a batch of events and as many negatives. Events of a batch do not see one
    /// another's messages; whether they see one another as neighbors is up to the view. An empty batch
    /// is a step that does nothing.
    ///
    /// # Errors
    /// Columns or feature stores do not fit (nothing was done), or the loss or a gradient is not finite
    /// (the weights are untouched and the batch was remembered).
    pub fn step(
        &mut self,
        world: &World<'_>,
        positives: &Positives<'_>,
        negatives: &Negatives<'_>,
        mode: StepMode,
    ) -> Result<StepReport, TrainError> {
        self.check(world, positives, negatives, mode)?;
        let step = self.steps;
        self.steps += 1;
        if positives.src.is_empty() {
            return Ok(StepReport::default());
        }
        self.touched.build(positives);
        let mut report = StepReport { touched: self.touched.nodes().to_vec(), ..StepReport::default() };
        let learned = match mode {
            StepMode::Remember => {
                self.refresh_touched();
                Ok(())
            }
            StepMode::Train | StepMode::Score => {
                self.score(world, positives, negatives, mode == StepMode::Train, &mut report)
            }
        };
        let mut clock = Instant::now();
        let memory_dim = self.options.model.memory_dim;
        let fresh = &self.scratch.get_mut().fresh;
        let row = |i: usize| &fresh[i * memory_dim..][..memory_dim];
        report.refused_rows = self.state.remember(positives, &self.touched, row, world.edge_features);
        report.phases.memory += lap(&mut clock);
        match learned {
            Ok(()) => Ok(report),
            Err(what) => Err(TrainError::NonFinite { what, step }),
        }
    }

    /// Samples, embeds and scores the batch, learns from it if `learn`, and leaves the touched nodes'
    /// fresh memory in the scratch buffer. The error says what was not finite.
    fn score(
        &mut self,
        world: &World<'_>,
        positives: &Positives<'_>,
        negatives: &Negatives<'_>,
        learn: bool,
        report: &mut StepReport,
    ) -> Result<(), String> {
        let Scratch { pool, neighborhood, fresh } = self.scratch.get_mut();
        let phases = &mut report.phases;
        let mut clock = Instant::now();
        let pairs = Pairs::seed(neighborhood, positives, negatives);
        let request = self.options.model.sample_request();
        neighborhood.sample_with(|seeds, out| sample(world.view, seeds, &request, out));
        phases.sample = lap(&mut clock);
        neighborhood.number();
        phases.gather = lap(&mut clock);

        let mode = if learn { Mode::Train } else { Mode::Inference };
        let mut tape = Tape::pooled(&self.device, &self.tgn.parameters, mode, pool);
        let dropout = [self.options.seed, self.steps];
        let done = forward(&self.tgn, &mut tape, &self.state, neighborhood, world, dropout);
        let predictor = LinkPredictor::of(&self.tgn);
        let logits = predictor.logits(&mut tape, done.embeddings, pairs.src, pairs.dst);
        let n = positives.src.len();
        let (happened, made_up) = (tape.rows(logits, 0..n), tape.rows(logits, n..2 * n));
        let positive_loss = tape.bce_with_logits(happened, &vec![1.0; n]);
        let negative_loss = tape.bce_with_logits(made_up, &vec![0.0; n]);
        let loss = tape.add(positive_loss, negative_loss);
        report.loss = tape.scalar(loss);
        let scores = tape.value(logits).data();
        report.positive.extend_from_slice(&scores[..n]);
        report.negative.extend_from_slice(&scores[n..]);
        fresh.clear();
        for &node in self.touched.nodes() {
            // Positives are seeds, so each has a slot.
            let slot = neighborhood.nodes().slot(node).unwrap_or_default();
            fresh.extend_from_slice(tape.value(done.fresh).row(slot as usize));
        }
        phases.forward = lap(&mut clock);
        if !report.loss.is_finite() {
            return Err(format!("the loss ({})", report.loss));
        }
        if !learn {
            return Ok(());
        }
        self.gradients.zero();
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
            return Err(out_of_range(&self.tgn, &self.gradients));
        }
        if norm > GRADIENT_NORM_MAX {
            self.gradients.scale(GRADIENT_NORM_MAX / norm);
        }
        self.adam.step(&mut self.tgn.parameters, &self.gradients);
        Ok(())
    }

    /// Applies the touched nodes' pending messages into the scratch buffer.
    fn refresh_touched(&mut self) {
        let Scratch { pool, fresh, .. } = self.scratch.get_mut();
        let mut tape = Tape::pooled(&self.device, &self.tgn.parameters, Mode::Inference, pool);
        let rows = self.tgn.fresh_memory(&mut tape, &self.state, self.touched.nodes());
        fresh.clear();
        fresh.extend_from_slice(tape.value(rows).data());
    }

    /// Embeddings `[nodes * embedding_dim]` of `nodes`, each at the time beside it, with the weights and
    /// the state as they are. Changes nothing.
    ///
    /// # Panics
    /// If the columns differ in length.
    #[must_use]
    pub fn embeddings(&self, world: &World<'_>, nodes: &[NodeId], times: &[EventTime]) -> Vec<f32> {
        assert_eq!(nodes.len(), times.len(), "nodes and times of the seeds");
        let mut scratch = self.scratch.lock();
        let mut embeddings = Vec::with_capacity(nodes.len() * self.options.model.embedding_dim);
        for (nodes, times) in nodes.chunks(CHUNK_ROWS).zip(times.chunks(CHUNK_ROWS)) {
            scratch.neighborhood.clear();
            scratch.neighborhood.add_seeds(nodes, times);
            self.look(world, &mut scratch, |tape, rows| {
                embeddings.extend_from_slice(tape.value(rows).data());
            });
        }
        embeddings
    }

    /// Logits of an event from `src` to each of `candidates` at `time`, with the weights and the
    /// state as they are. Changes nothing, so any number of candidates is scored against one state.
    #[must_use]
    pub fn score_candidates(
        &self,
        world: &World<'_>,
        src: NodeId,
        time: EventTime,
        candidates: &[NodeId],
    ) -> Vec<f32> {
        let ask = |candidates| self.score_queries(world, &[RankQuery { src, time, candidates }]);
        candidates.chunks(CHUNK_ROWS).flat_map(ask).flatten().collect()
    }

    /// Logits of the candidates of each query, as [`Self::score_candidates`], all in one pass.
    #[must_use]
    pub fn score_queries(&self, world: &World<'_>, queries: &[RankQuery<'_>]) -> Vec<Vec<f32>> {
        let mut scratch = self.scratch.lock();
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
        if dst.is_empty() {
            return vec![Vec::new(); queries.len()];
        }
        let mut logits = Vec::new();
        self.look(world, &mut scratch, |tape, embeddings| {
            let scores = LinkPredictor::of(&self.tgn).logits(tape, embeddings, src, dst);
            logits.extend_from_slice(tape.value(scores).data());
        });
        let mut rest = logits.as_slice();
        let own =
            |query: &RankQuery<'_>| rest.split_off(..query.candidates.len()).unwrap_or_default().to_vec();
        queries.iter().map(own).collect()
    }

    /// Logits of the positives and of the negatives beside them, with the weights and the state as
    /// they are. Changes nothing: the test of test-then-train, without the dropout of a training step.
    ///
    /// # Errors
    /// Columns or feature stores do not fit.
    pub fn score_pairs(
        &self,
        world: &World<'_>,
        positives: &Positives<'_>,
        negatives: &Negatives<'_>,
    ) -> Result<(Vec<f32>, Vec<f32>), TrainError> {
        self.check(world, positives, negatives, StepMode::Score)?;
        if positives.src.is_empty() {
            return Ok((Vec::new(), Vec::new()));
        }
        let mut scratch = self.scratch.lock();
        let pairs = Pairs::seed(&mut scratch.neighborhood, positives, negatives);
        let mut positive = Vec::new();
        self.look(world, &mut scratch, |tape, embeddings| {
            let logits = LinkPredictor::of(&self.tgn).logits(tape, embeddings, pairs.src, pairs.dst);
            positive.extend_from_slice(tape.value(logits).data());
        });
        let negative = positive.split_off(positives.src.len());
        Ok((positive, negative))
    }

    /// Embeds the seeds in `scratch` without gradient and hands the tape and the embeddings to `then`.
    fn look(&self, world: &World<'_>, scratch: &mut Scratch, then: impl FnOnce(&mut Tape<'_>, Var)) {
        let Scratch { pool, neighborhood, .. } = scratch;
        let request = self.options.model.sample_request();
        neighborhood.sample_with(|seeds, out| sample(world.view, seeds, &request, out));
        neighborhood.number();
        let mut tape = Tape::pooled(&self.device, &self.tgn.parameters, Mode::Inference, pool);
        let done = forward(&self.tgn, &mut tape, &self.state, neighborhood, world, [0, 0]);
        then(&mut tape, done.embeddings);
    }

    /// Hands `f` what serving reads of each of `touched` (distinct nodes): its memory row after its
    /// pending message, computed with the weights as they are now, and the time of its last event. Nodes
    /// without any event and rows that are not finite are left out. The state does not change: the next
    /// batch applies the message again, so that its loss can train the memory updater.
    pub fn publish_rows(&mut self, touched: &[NodeId], mut f: impl FnMut(NodeId, &[f32], EventTime)) {
        let pool = &mut self.scratch.get_mut().pool;
        for nodes in touched.chunks(CHUNK_ROWS) {
            let mut tape = Tape::pooled(&self.device, &self.tgn.parameters, Mode::Inference, pool);
            let rows = self.tgn.fresh_memory(&mut tape, &self.state, nodes);
            let rows = tape.value(rows);
            for (i, &node) in nodes.iter().enumerate() {
                let Some(last) = self.state.last_event(node) else { continue };
                if rows.row(i).iter().all(|value| value.is_finite()) {
                    f(node, rows.row(i), last);
                }
            }
        }
    }

    fn check(
        &self,
        world: &World<'_>,
        positives: &Positives<'_>,
        negatives: &Negatives<'_>,
        mode: StepMode,
    ) -> Result<(), TrainError> {
        let expected = positives.src.len();
        let mut columns = vec![
            ("positives.dst", positives.dst.len()),
            ("positives.times", positives.times.len()),
            ("positives.edges", positives.edges.len()),
        ];
        if mode != StepMode::Remember {
            columns.extend([("negatives.src", negatives.src.len()), ("negatives.dst", negatives.dst.len())]);
        }
        if let Some(&(column, found)) = columns.iter().find(|(_, found)| *found != expected) {
            return Err(TrainError::Length { column, found, expected });
        }
        let model = &self.options.model;
        let stores: [(&str, &FeatureStore, usize); 2] = [
            ("edge", world.edge_features, model.edge_feature_dim),
            ("node", world.node_features, model.node_feature_dim),
        ];
        for (store, rows, expected) in stores {
            let found = rows.dimension();
            if expected != 0 && found != expected {
                return Err(TrainError::FeatureWidth { store, found, expected });
            }
        }
        Ok(())
    }
}

/// The pairs of a batch, positives first, as rows of the seeds' embeddings.
struct Pairs {
    src: Vec<u32>,
    dst: Vec<u32>,
}

impl Pairs {
    /// Makes the batch's nodes the seeds of `neighborhood`. Negatives that share the positives' sources
    /// share their embeddings too.
    fn seed(neighborhood: &mut Neighborhood, positives: &Positives<'_>, negatives: &Negatives<'_>) -> Self {
        let n = positives.src.len() as u32;
        neighborhood.clear();
        for nodes in [positives.src, positives.dst, negatives.dst] {
            neighborhood.add_seeds(nodes, positives.times);
        }
        let mut negative_src = 0..n;
        if negatives.src != positives.src {
            neighborhood.add_seeds(negatives.src, positives.times);
            negative_src = 3 * n..4 * n;
        }
        Self { src: (0..n).chain(negative_src).collect(), dst: (n..3 * n).collect() }
    }
}

/// Names the first gradient that is not finite or, if all are, their size.
fn out_of_range(tgn: &Tgn, gradients: &Gradients) -> String {
    let finite = |name: &str| {
        let id = tgn.parameters.find(name);
        id.is_none_or(|id| gradients.get(id).data().iter().all(|value| value.is_finite()))
    };
    match tgn.parameters.iter().find(|(name, _)| !finite(name)) {
        Some((name, _)) => format!("the gradient of {name}"),
        None => "the gradients' norm".to_owned(),
    }
}
