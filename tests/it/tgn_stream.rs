//! A small stream with everything a TGN reads, cut into batches: what the trainer's and the serving tests
//! run on. Repeating pairs, ties, a self loop now and then, edge and node features.

use std::sync::Arc;

use evergraph::device::matmul::Precision;
use evergraph::device::{Device, rng};
use evergraph::event::{EdgeBatch, EdgeId, EventTime, NodeId};
use evergraph::feature::FeatureStore;
use evergraph::graph::{GraphOptions, GraphStore};
use evergraph::model::TgnOptions;
use evergraph::train::{
    Negatives, Positives, StepMode, StepReport, TrainError, Trainer, TrainerOptions, World,
};

/// Events per batch.
pub const BATCH: usize = 20;
/// Sources are nodes `0..SOURCES`, destinations the `DESTINATIONS` nodes after them.
pub const SOURCES: u32 = 16;
/// Number of destinations.
pub const DESTINATIONS: u32 = 16;

/// How far a step's view reaches.
#[derive(Clone, Copy, PartialEq)]
pub enum Sight {
    /// To the batch's first event: its events do not see one another.
    BeforeBatch,
    /// Over all that is in the graph, later batches included.
    Everything,
}

/// The stream, its graph and its features.
pub struct Stream {
    /// Columns of all events.
    pub src: Vec<NodeId>,
    pub dst: Vec<NodeId>,
    pub times: Vec<EventTime>,
    pub edges: Vec<EdgeId>,
    /// A random destination per event.
    pub against: Vec<NodeId>,
    pub graph: Arc<GraphStore>,
    pub edge_features: Arc<FeatureStore>,
    pub node_features: Arc<FeatureStore>,
}

/// A small TGN with edge features and projected node features.
pub fn tgn() -> TgnOptions {
    TgnOptions {
        memory_dim: 12,
        time_dim: 8,
        embedding_dim: 10,
        heads: 2,
        fanout: 4,
        node_feature_dim: 3,
        edge_feature_dim: 2,
        dropout: 0.1,
        ..TgnOptions::default()
    }
}

/// What trains it.
pub fn options() -> TrainerOptions {
    TrainerOptions { model: tgn().into(), learning_rate: 3e-3, seed: 5, ..TrainerOptions::default() }
}

/// The same, wide enough for products in bf16, which it computes where the CPU can.
pub fn wide() -> TrainerOptions {
    let model = TgnOptions { memory_dim: 64, embedding_dim: 64, time_dim: 32, ..tgn() };
    TrainerOptions { model: model.into(), precision: Precision::fastest(), ..options() }
}

/// A trainer with the first of those options.
pub fn trainer() -> Trainer {
    Trainer::new(options(), &Device::Cpu).unwrap()
}

impl Stream {
    /// `batches` batches; most sources keep to one destination.
    pub fn new(batches: usize) -> Self {
        let draw = |word, i: usize, n| rng::below([77, word, i as u64, 0], n);
        let (mut src, mut dst, mut times, mut against) = (vec![], vec![], vec![], vec![]);
        let mut now = 1_600_000_000;
        for i in 0..batches * BATCH {
            let source = draw(0, i, SOURCES);
            let usual = SOURCES + (source * 7 + 3) % DESTINATIONS;
            let odd = SOURCES + draw(1, i, DESTINATIONS);
            now += i64::from(draw(2, i, 3)) * 50;
            src.push(NodeId(source));
            dst.push(NodeId(match draw(3, i, 40) {
                0 => source,
                1 => odd,
                _ => usual,
            }));
            times.push(EventTime(now));
            against.push(NodeId(SOURCES + draw(4, i, DESTINATIONS)));
        }
        Self::over(src, dst, times, against)
    }

    /// A stream of given events.
    pub fn over(src: Vec<NodeId>, dst: Vec<NodeId>, times: Vec<EventTime>, against: Vec<NodeId>) -> Self {
        let edges = (0..src.len() as u64).map(EdgeId).collect();
        let (edge_features, node_features) = (FeatureStore::new(2), FeatureStore::new(3));
        for i in 0..src.len() as u64 {
            edge_features.set(i, &[0, 1].map(|j| rng::normal_f32([78, i, j, 0]))).unwrap();
        }
        for i in 0..u64::from(SOURCES + DESTINATIONS) {
            node_features.set(i, &[0, 1, 2].map(|j| rng::normal_f32([79, i, j, 0]))).unwrap();
        }
        let graph = Arc::new(GraphStore::new(GraphOptions::default()));
        let mut batch = EdgeBatch::default();
        for i in 0..src.len() {
            batch.push_edge(src[i], dst[i], times[i]);
        }
        graph.apply(&batch).unwrap();
        let (edge_features, node_features) = (edge_features.into(), node_features.into());
        Self { src, dst, times, edges, against, graph, edge_features, node_features }
    }

    /// Number of batches.
    pub fn batches(&self) -> usize {
        self.src.len() / BATCH
    }

    /// What a step for batch `b` may see.
    pub fn world(&self, b: usize, sight: Sight) -> World<'_> {
        let bound = match sight {
            Sight::BeforeBatch => EdgeId((b * BATCH) as u64),
            Sight::Everything => EdgeId(self.src.len() as u64),
        };
        World {
            view: self.graph.view_at(bound),
            edge_features: &self.edge_features,
            node_features: &self.node_features,
            sampler: None,
        }
    }

    /// The events of batch `b`.
    pub fn positives(&self, b: usize) -> Positives<'_> {
        let range = b * BATCH..(b + 1) * BATCH;
        Positives {
            src: &self.src[range.clone()],
            dst: &self.dst[range.clone()],
            times: &self.times[range.clone()],
            edges: &self.edges[range],
        }
    }

    /// One step of `trainer` with batch `b` and the stream's own negatives.
    pub fn step(&self, trainer: &mut Trainer, b: usize, sight: Sight, mode: StepMode) -> StepReport {
        self.try_step(trainer, b, sight, mode).unwrap()
    }

    /// Like [`Self::step`], for steps that may fail.
    pub fn try_step(
        &self,
        trainer: &mut Trainer,
        b: usize,
        sight: Sight,
        mode: StepMode,
    ) -> Result<StepReport, TrainError> {
        let positives = self.positives(b);
        let negatives = Negatives { src: positives.src, dst: &self.against[b * BATCH..(b + 1) * BATCH] };
        trainer.step(&self.world(b, sight), &positives, &negatives, mode)
    }
}
