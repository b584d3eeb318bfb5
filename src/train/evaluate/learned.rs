//! A model that learns as a contender: [`Learned`] under protocols with a training part, [`TestThenTrain`] where every
//! batch is tested and then trained on.
//!
//! While training, the model's neighbors come from an index of the masked training edges; while
//! evaluating, from an index of all edges; always strictly earlier than the event that is scored. For a model that
//! samples no neighbors there is no index.

use super::node_label::Encoder;
use super::{Contender, Epoch, EvaluationError, Scores, Trainable};
use crate::event::{EdgeBatch, EventTime, NodeId};
use crate::feature::{FeatureError, FeatureStore};
use crate::graph::{GraphOptions, GraphStore};
use crate::model::{EdgeTypes, ModelState, Weights};
use crate::sampler::DeviceSampler;
use crate::train::lookahead::{Helper, Lookahead};
use crate::train::protocol::{Batch, Populations};
use crate::train::replay::{self, ReplayOptions};
use crate::train::share::{Chosen, Share};
use crate::train::stream::Stream;
use crate::train::{PreparedBatch, Preparer, RankQuery, StepMode, StreamNegatives, Trainer, World};

/// Feature rows of a stream, by edge id and by node id.
pub struct StreamFeatures {
    edges: FeatureStore,
    nodes: FeatureStore,
}

impl StreamFeatures {
    /// The rows of all events, for a model that distinguishes these types. Events without features have zeros.
    ///
    /// # Errors
    /// When rows have different lengths.
    pub fn new(stream: &Stream, types: EdgeTypes) -> Result<Self, EvaluationError> {
        let dimension = stream.feature_dimension();
        let edges = FeatureStore::new(types.row_dim(dimension));
        let mut row = Vec::new();
        for (event, &kind) in stream.types().iter().enumerate() {
            let values = stream.features(event);
            if values.len() != dimension && !values.is_empty() {
                let (index, expected, found) = (event as u64, dimension, values.len());
                return Err(FeatureError::Dimension { index, expected, found }.into());
            }
            types.put_row(kind, values, dimension, &mut row);
            if row.iter().any(|value| *value != 0.0) {
                edges.set(event as u64, &row)?;
            }
        }
        Ok(Self { edges, nodes: FeatureStore::new(0) })
    }

    fn world<'a>(&'a self, graph: &'a Graph) -> World<'a> {
        let (view, sampler) = (graph.store.view(), graph.sampler.as_ref());
        World { view, edge_features: &self.edges, node_features: &self.nodes, sampler }
    }
}

/// A graph, and what samples it on the GPU that trains.
struct Graph {
    store: GraphStore,
    sampler: Option<DeviceSampler>,
}

impl Graph {
    /// The graph of `edges`, for `trainer`.
    fn of(trainer: &Trainer, edges: &EdgeBatch) -> Result<Self, EvaluationError> {
        let (store, sampler) = (GraphStore::new(GraphOptions::default()), trainer.device_sampler());
        store.apply(edges)?;
        sampler.iter().for_each(|sampler| sampler.open(&store));
        Ok(Self { store, sampler })
    }

    /// Adds the next edges, unless they are in.
    fn add(&self, edges: &EdgeBatch) -> Result<(), EvaluationError> {
        if self.store.apply(edges)?.skipped == 0 {
            self.sampler.iter().for_each(|sampler| sampler.follow(&self.store, edges));
        }
        Ok(())
    }
}

/// A model under a protocol with a training part.
pub struct Learned {
    trainer: Trainer,
    features: StreamFeatures,
    /// The edges that are trained on.
    training: Graph,
    /// All edges of the stream.
    everything: Graph,
    lookahead: Lookahead,
}

impl Learned {
    /// A model that is to learn from the training part of `populations`.
    ///
    /// # Errors
    /// When feature rows of the stream have different lengths.
    pub fn new(
        stream: &Stream,
        populations: &Populations,
        trainer: Trainer,
    ) -> Result<Self, EvaluationError> {
        let features = StreamFeatures::new(stream, trainer.options().model.edge_types())?;
        let (mut training, mut everything) = (EdgeBatch::default(), EdgeBatch::default());
        if samples_neighbors(&trainer) {
            let rows = 0..populations.split.validation;
            training = stream.edge_batch(rows, |row| populations.is_train(row));
            everything = stream.edge_batch(0..stream.len(), |_| true);
        }
        let (training, everything) = (Graph::of(&trainer, &training)?, Graph::of(&trainer, &everything)?);
        Ok(Self { trainer, features, training, everything, lookahead: Lookahead::new(Helper::new()) })
    }
}

impl Contender for Learned {
    fn take(&mut self, batch: &Batch, mode: StepMode) -> Result<Scores, EvaluationError> {
        let graph = if mode == StepMode::Train { &self.training } else { &self.everything };
        let world = self.features.world(graph);
        let report = self.trainer.step(&world, &batch.positives(), &batch.negatives(), mode)?;
        Ok(Scores { positive: report.positive, negative: report.negative })
    }

    fn score_candidates(
        &self,
        src: NodeId,
        time: EventTime,
        candidates: &[NodeId],
    ) -> Result<Vec<f32>, EvaluationError> {
        let world = self.features.world(&self.everything);
        Ok(self.trainer.score_candidates(&world, src, time, candidates)?)
    }

    fn score_queries(&self, queries: &[RankQuery<'_>]) -> Result<Vec<Vec<f32>>, EvaluationError> {
        // One alone may have candidates without end.
        if let [RankQuery { src, time, candidates }] = queries {
            return Ok(vec![self.score_candidates(*src, *time, candidates)?]);
        }
        let world = self.features.world(&self.everything);
        Ok(self.trainer.score_queries(&world, queries)?)
    }
}

impl Trainable for Learned {
    type Kept = (Weights, ModelState);

    fn reset(&mut self) {
        self.trainer.reset_state();
    }

    fn train(&mut self, epoch: &mut Epoch<'_>) -> Result<(), EvaluationError> {
        let world = &self.features.world(&self.training);
        let (batches, record) = (&mut epoch.batches, &mut epoch.record);
        let mut batch = Batch::default();
        let source = |preparer: &Preparer, prepared: &mut PreparedBatch| {
            if !batches.load(&mut batch) {
                return Ok(false);
            }
            preparer.sample(world, &batch.positives(), &batch.negatives(), StepMode::Train, prepared)?;
            Ok(true)
        };
        self.lookahead.run(&mut self.trainer, world, source, |turn| {
            record.push(&turn.report.positive, &turn.report.negative, turn.seconds);
            Ok::<_, EvaluationError>(())
        })
    }

    fn keep(&self) -> Result<Self::Kept, EvaluationError> {
        Ok((self.trainer.weights()?, self.trainer.state().clone()))
    }

    fn restore(&mut self, (weights, state): &Self::Kept) -> Result<(), EvaluationError> {
        self.trainer.set_weights(weights)?;
        self.trainer.set_state(state.clone());
        Ok(())
    }
}

/// Whether the model samples neighbors.
fn samples_neighbors(trainer: &Trainer) -> bool {
    trainer.model().needs().fanout > 0
}

impl Encoder for Learned {
    /// The embedding of the source, or where pairs are scored by their walks the row of the event's pair: where a
    /// source goes describes it as much as what it did before.
    fn encode(&self, batch: &Batch, rows: &mut Vec<f32>) -> Result<(), EvaluationError> {
        if let (false, Some(walks)) = (self.trainer.model().needs().embeds(), &self.trainer.state().walks) {
            let from = rows.len();
            rows.resize(from + batch.rows.len() * walks.feature_count(), 0.0);
            walks.features(&batch.src, &batch.dst, &batch.times, &mut rows[from..]);
            return Ok(());
        }
        let world = self.features.world(&self.everything);
        rows.extend(self.trainer.embeddings(&world, &batch.src, &batch.times)?);
        Ok(())
    }
}

/// Which edges a batch's events may have as neighbors under test-then-train. Always only edges strictly
/// earlier than the event. `docs/benchmarks/prequential.md` has both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sight {
    /// Edges of earlier batches.
    EarlierBatches,
    /// Also earlier edges of the batch itself, as a daemon sees them that indexes before it learns.
    WithinBatch,
}

/// A model that scores a batch, learns it, and only then has it in its graph.
pub struct TestThenTrain<'a> {
    stream: &'a Stream,
    trainer: Trainer,
    features: StreamFeatures,
    graph: Graph,
    sight: Sight,
    batch: PreparedBatch,
    replays: ReplayOptions,
    /// More steps on each batch before it is taken in, as [`ReplayOptions::due`] counts them.
    repeats: ReplayOptions,
    /// Which share of each batch's events is learned from.
    share: (f64, Share),
    /// Events of the largest batch so far.
    full: usize,
    /// Where the negatives of replayed events come from.
    pool: StreamNegatives,
    old: Batch,
    replayed: PreparedBatch,
}

impl<'a> TestThenTrain<'a> {
    /// A model that has seen nothing of `stream`.
    ///
    /// # Errors
    /// When feature rows of the stream have different lengths.
    pub fn new(stream: &'a Stream, trainer: Trainer, sight: Sight) -> Result<Self, EvaluationError> {
        let features = StreamFeatures::new(stream, trainer.options().model.edge_types())?;
        let graph = Graph::of(&trainer, &EdgeBatch::default())?;
        let (batch, replayed) = (PreparedBatch::default(), PreparedBatch::default());
        let ([replays, repeats], pool) = ([ReplayOptions::default(); 2], StreamNegatives::new());
        let old = Batch::default();
        let share = (1.0, Share::default());
        Ok(Self {
            stream,
            trainer,
            features,
            graph,
            sight,
            batch,
            replays,
            repeats,
            share,
            full: 0,
            pool,
            old,
            replayed,
        })
    }

    /// The same, which trains on old events again too.
    #[must_use]
    pub fn replaying(self, replays: ReplayOptions) -> Self {
        Self { replays, ..self }
    }

    /// The same, with so many more steps on each new batch: what as many replays have to be compared with.
    #[must_use]
    pub fn repeating(self, ratio: f64) -> Self {
        Self { repeats: ReplayOptions { ratio, ..ReplayOptions::default() }, ..self }
    }

    /// The same, whose steps learn from this share of each batch's events, as a daemon's do that is behind.
    #[must_use]
    pub fn learning_from(self, share: f64) -> Self {
        Self { share: (share, Share::default()), ..self }
    }

    /// Scores all of a batch, and learns from a part of it.
    fn step_in_part(&mut self, batch: &Batch, first: usize) -> Result<Scores, EvaluationError> {
        let world = self.features.world(&self.graph);
        let (positives, negatives) = (batch.positives(), batch.negatives());
        self.trainer.prepare(&world, &positives, &negatives, StepMode::Score, &mut self.batch)?;
        let (positive, negative) = self.trainer.score_prepared(&self.batch)?;
        let key = [self.trainer.options().seed, first as u64];
        let (mode, places) = match self.share.1.next(key, self.share.0, (batch.rows.len(), self.full)) {
            Chosen::All => (StepMode::Train, None),
            Chosen::Part(places) => (StepMode::Train, Some(places)),
            Chosen::Nothing => (StepMode::StateOnly, None),
        };
        let preparer = self.trainer.preparer().scoring(places);
        preparer.sample(&world, &positives, &negatives, mode, &mut self.batch)?;
        preparer.expect(|node| self.trainer.state().mailbox.pending_event(node), &mut self.batch);
        preparer.gather(&world, &mut self.batch)?;
        self.trainer.step_prepared(&self.batch)?;
        Ok(Scores { positive, negative })
    }

    /// The step of the batch at hand, with its repeats, which come before it is taken in and after it is scored.
    fn step(&mut self, first: usize) -> Result<Scores, EvaluationError> {
        let due =
            if self.batch.mode() == StepMode::Train { self.repeats.due(self.trainer.steps()) } else { 0 };
        if due == 0 {
            let report = self.trainer.test_and_step(&self.batch)?;
            return Ok(Scores { positive: report.positive, negative: report.negative });
        }
        let (positive, negative) = self.trainer.score_prepared(&self.batch)?;
        for number in 0..due {
            self.trainer.replay_prepared(&self.batch, (first as u64).wrapping_add(number << 48))?;
        }
        self.trainer.step_prepared(&self.batch)?;
        Ok(Scores { positive, negative })
    }

    /// The replays that are due with the step of a batch that begins at row `first`.
    fn replay(&mut self, first: usize, length: usize) -> Result<(), EvaluationError> {
        let (now, seed) = (first as u64, self.trainer.options().seed);
        for number in 0..self.replays.due(self.trainer.steps()) {
            let history = 0..now;
            let Some(start) = self.replays.draw([seed, now, number], &history, length as u64) else { break };
            let start = start as usize;
            self.old.load(self.stream, start..start + length);
            self.old.negative_src.clone_from(&self.old.src);
            let Batch { src, dst, negative_dst, .. } = &mut self.old;
            self.pool.draw([seed ^ replay::STREAM ^ number, now], 0.0, (src, dst), negative_dst);
            let world = self.features.world(&self.graph);
            let (positives, negatives) = (self.old.positives(), self.old.negatives());
            self.trainer.prepare(&world, &positives, &negatives, StepMode::Train, &mut self.replayed)?;
            self.trainer.replay_prepared(&self.replayed, now.wrapping_add(number << 48))?;
        }
        Ok(())
    }
}

impl Contender for TestThenTrain<'_> {
    fn take(&mut self, batch: &Batch, mode: StepMode) -> Result<Scores, EvaluationError> {
        let (Some(&first), Some(&last)) = (batch.rows.first(), batch.rows.last()) else {
            return Ok(Scores::default());
        };
        let samples_neighbors = samples_neighbors(&self.trainer);
        let edges = if samples_neighbors {
            self.stream.edge_batch(first..last + 1, |_| true)
        } else {
            EdgeBatch::default()
        };
        if self.sight == Sight::WithinBatch {
            self.graph.add(&edges)?;
        }
        self.full = self.full.max(batch.rows.len());
        let scores = if mode == StepMode::Train && self.share.0 < 1.0 {
            self.step_in_part(batch, first)?
        } else {
            let world = self.features.world(&self.graph);
            self.trainer.prepare(&world, &batch.positives(), &batch.negatives(), mode, &mut self.batch)?;
            self.step(first)?
        };
        self.graph.add(&edges)?;
        self.pool.observe(&batch.src, &batch.dst, &[]);
        if mode == StepMode::Train {
            self.replay(first, batch.rows.len())?;
        }
        Ok(scores)
    }

    fn score_candidates(
        &self,
        src: NodeId,
        time: EventTime,
        candidates: &[NodeId],
    ) -> Result<Vec<f32>, EvaluationError> {
        let world = self.features.world(&self.graph);
        Ok(self.trainer.score_candidates(&world, src, time, candidates)?)
    }
}
