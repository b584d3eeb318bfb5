//! The loop over a real log and a real graph, batch by batch, on a stream that is made up.

use std::path::PathBuf;

use super::pace::Choice;
use super::*;
use crate::device::Device;
use crate::event::{EdgeBatch, EventTime, NodeKey, Op};
use crate::feature::FeatureStore;
use crate::graph::{GraphOptions, GraphStore, Retention, RetentionBounds};
use crate::log::tests::faulty::MemoryDisk;
use crate::log::{Frame, Log, LogOptions};
use crate::metrics::Metrics;
use crate::model::tgn::Aggregator;
use crate::model::{EdgeTypes, GraphMixerOptions, ModelOptions, TgnOptions};
use crate::serving::{NodeEmbedding, NodeStates, Progress, QueryEngine, Stores, UnknownKeys};
use crate::train::replay::ReplayOptions;
use crate::train::{Negatives, Positives, TrainerOptions};

mod feed;
mod gate;
mod gpu;
mod node_rows;
mod operations;
mod pace;
mod pauses;
mod received;
mod replay;
mod walk;

/// When the learner was started, Unix milliseconds.
const STARTED: i64 = 1_000;

/// What the daemon has around a learner, without the daemon.
struct Rig {
    log: Log,
    shared: Shared,
    folder: tempfile::TempDir,
}

fn tgn() -> TgnOptions {
    TgnOptions {
        memory_dim: 6,
        time_dim: 4,
        embedding_dim: 5,
        heads: 2,
        fanout: 3,
        node_feature_dim: 0,
        edge_feature_dim: 1,
        dropout: 0.0,
        ..TgnOptions::default()
    }
}

fn trainer_options() -> TrainerOptions {
    TrainerOptions { model: tgn().into(), learning_rate: 3e-3, seed: 5, ..TrainerOptions::default() }
}

fn trainer() -> Trainer {
    Trainer::new(trainer_options(), &Device::Cpu).unwrap()
}

/// Node `i` is called `i`.
fn key(node: u32) -> NodeKey {
    NodeKey::Int(i64::from(node))
}

impl Rig {
    /// An empty log and 32 nodes.
    fn new() -> Self {
        Self::over(GraphStore::new(GraphOptions::default()))
    }

    /// The same over another empty graph.
    fn over(graph: GraphStore) -> Self {
        let options = LogOptions { dir: PathBuf::from("log"), segment_bytes: 1 << 20 };
        let (log, _) = Log::open_with(options, MemoryDisk::new().storage()).unwrap();
        let stores = Stores::new(graph, FeatureStore::new(1), FeatureStore::new(0));
        for node in 0..32 {
            stores.keys.intern(&key(node));
        }
        let progress = Arc::new(Progress::new());
        let engine = QueryEngine::new(
            stores,
            Arc::new(NodeStates::new(trainer_options().model.needs().row_dim())),
            progress.clone(),
        );
        let engine = Arc::new(engine);
        let shared = Shared { engine, progress, status: Arc::default(), metrics: Metrics::new() };
        Self { log, shared, folder: tempfile::tempdir().unwrap() }
    }

    /// The same log, graph and features, with nothing published yet.
    fn restart(&mut self) {
        self.restart_for(self.shared.engine.states.dimension());
    }

    /// The same for a model with memory rows of this width.
    fn restart_for(&mut self, memory_dim: usize) {
        let (old, progress) = (self.shared.engine.clone(), Arc::new(Progress::new()));
        progress.set_indexed(self.log.end());
        let states = Arc::new(NodeStates::new(memory_dim));
        let engine = QueryEngine::new(old.stores.clone(), states, progress.clone());
        let engine = Arc::new(engine);
        self.shared = Shared { engine, progress, status: Arc::default(), metrics: Metrics::new() };
    }

    fn states(&self) -> &NodeStates {
        &self.shared.engine.states
    }

    fn options(&self) -> LearnerOptions {
        LearnerOptions {
            clock: || 1_000,
            train: true,
            train_history: true,
            batch_events: 10,
            batch_wait: Duration::ZERO,
            lag_events_max: 1_000_000,
            lag_target: Duration::ZERO,
            share_min: 0.0,
            score_all: false,
            began_unix_ms: STARTED,
            quality_window_batches: 100,
            met_share: 0.0,
            rank_queries: 2,
            rank_candidates: 5,
            pairs_max: 0,
            replay: ReplayOptions::default(),
            seed: 3,
            threads: 2,
            nice: 0,
            checkpoint_dir: self.folder.path().to_path_buf(),
            checkpoint_interval: Duration::from_secs(3600),
            checkpoint_full_every: 4,
            write_rate: Arc::default(),
        }
    }

    /// Makes records durable, in one frame.
    fn write(&mut self, batch: EdgeBatch, origin_unix_ms: i64) -> Frame {
        let batch = EdgeBatch { first: self.log.end(), ..batch };
        let frame = Frame { batch, origin_unix_ms, ..Frame::default() };
        self.log.append(&frame).unwrap();
        self.log.commit().unwrap();
        frame
    }

    /// Makes records durable and puts them into the graph.
    fn append(&mut self, batch: EdgeBatch, origin_unix_ms: i64) {
        let frame = self.write(batch, origin_unix_ms);
        let engine = &self.shared.engine;
        engine
            .stores
            .graph
            .apply_reporting_removed(&frame.batch, &mut |edges| {
                edges.iter().for_each(|edge| engine.stores.edge_features.clear(edge.0));
            })
            .unwrap();
        self.shared.progress.set_indexed(frame.batch.end());
    }

    /// Edges between 0..8 and 8..16 at times from `time` on.
    fn append_edges(&mut self, count: u32, time: i64) {
        self.append(some_edges(count, time), STARTED);
    }

    fn learner(&self, options: LearnerOptions) -> Learner {
        self.learner_at(trainer(), EdgeId(0), options)
    }

    fn learner_at(&self, trainer: Trainer, position: EdgeId, options: LearnerOptions) -> Learner {
        self.learner_from(Learned { trainer, gate: None, stream: None, position }, options, Box::new(|_| ()))
    }

    fn learner_from(&self, from: Learned, options: LearnerOptions, decision: DecisionRecorder) -> Learner {
        let metrics = self.shared.metrics.clone();
        let device_lost = Box::new(move |_: &str| metrics.device.degraded.set(1));
        let record = Recorders { checkpoint: Box::new(|_, _| ()), decision, device_lost };
        let (log, proceed) = (self.log.readers(), |_| ControlFlow::Continue(()));
        Learner::new(from, log, self.shared.clone(), options, record, proceed).unwrap().unwrap()
    }
}

fn some_edges(count: u32, time: i64) -> EdgeBatch {
    edges((0..count).map(|i| (i % 8, 8 + (i * 3) % 8, time + i64::from(i))))
}

fn edges(events: impl IntoIterator<Item = (u32, u32, i64)>) -> EdgeBatch {
    let mut batch = EdgeBatch::default();
    for (src, dst, time) in events {
        batch.push_edge(NodeId(src), NodeId(dst), EventTime(time));
    }
    batch
}

/// A record without an edge.
fn record(batch: &mut EdgeBatch, op: Op, node: u32) {
    batch.push_edge(NodeId(node), NodeId(node), EventTime::MAX);
    *batch.op.last_mut().unwrap() = op;
}

impl Learner {
    /// What a checkpoint of a learner that has drained holds.
    fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.capture(&self.feed.mark()).unwrap().write(&mut bytes).unwrap();
        bytes
    }

    /// Learns all that is indexed, and returns the batches.
    fn drain(&mut self) -> Vec<LearnBatch> {
        let mut batches = Vec::new();
        let mut batch = LearnBatch::default();
        while self.feed.position() < self.shared.progress.indexed() {
            self.feed.fill(&mut batch, self.options.batch_events, IDLE, Duration::ZERO).unwrap();
            self.learn_anywhere(&batch).unwrap();
            batches.push(batch.clone());
        }
        self.settle().unwrap();
        batches
    }
}

#[test]
fn a_restart_publishes_what_was_published() {
    let mut rig = Rig::new();
    // Nodes 20 and 21 are in the last batch only: their message waits and they have no memory yet.
    rig.append_edges(10, 100);
    rig.append(edges([(20, 21, 200)]), STARTED);
    let mut learner = rig.learner(rig.options());
    learner.drain();
    let published = |rig: &Rig| {
        let mut rows = vec![0.0; 32 * trainer_options().model.needs().row_dim()];
        let nodes: Vec<NodeId> = (0..32).map(NodeId).collect();
        rig.states().gather(&nodes, 0..rig.states().dimension(), &mut rows);
        let times: Vec<_> = nodes.iter().map(|&node| rig.shared.engine.states.updated(node)).collect();
        (rows, times)
    };
    // A row is published with the weights of its step; those of the end are what a restart has.
    learner.publish_rows(RetentionBounds::default(), &(0..32).map(NodeId).collect::<Vec<_>>()).unwrap();
    let before = published(&rig);
    assert_eq!(before.1[20], Some(EventTime(200)));
    let mut bytes = Vec::new();
    learner.trainer.save(&mut bytes).unwrap();
    rig.restart();
    let restored = Trainer::load(trainer_options(), &Device::Cpu, &mut bytes.as_slice()).unwrap();
    rig.learner_at(restored, EdgeId(11), rig.options());
    assert_eq!(published(&rig), before);
}

#[test]
fn a_model_without_memory_learns_serves_forgets_and_restarts() {
    let mixer =
        GraphMixerOptions { embedding_dim: 6, time_dim: 4, fanout: 3, ..GraphMixerOptions::default() };
    let options =
        TrainerOptions { model: ModelOptions::from(mixer).with_features(1, 0), ..trainer_options() };
    let mut rig = Rig::new();
    rig.restart_for(0);
    rig.append_edges(40, 100);
    let mut learner = rig.learner_at(Trainer::new(options, &Device::Cpu).unwrap(), EdgeId(0), rig.options());
    learner.drain();
    assert!(learner.trainer.steps() == 4 && learner.quality.mean().is_some());
    let embeddings = |rig: &Rig| {
        rig.shared.engine.embeddings(&[key(1), key(9), key(30)], None, UnknownKeys::Error).unwrap().embeddings
    };
    let cold = |found: &[NodeEmbedding]| -> Vec<bool> {
        found.iter().map(|one| matches!(one, NodeEmbedding::Found { cold: true, .. })).collect()
    };
    let before = embeddings(&rig);
    assert_eq!(cold(&before), [false, false, true]);
    assert_ne!(before[0], before[1]);

    let mut bytes = Vec::new();
    learner.trainer.save(&mut bytes).unwrap();
    rig.restart_for(0);
    let restored = Trainer::load(options, &Device::Cpu, &mut &bytes[..]).unwrap();
    let mut learner = rig.learner_at(restored, rig.log.end(), rig.options());
    assert_eq!(embeddings(&rig), before);

    let mut batch = EdgeBatch::default();
    record(&mut batch, Op::DeleteNode, 9);
    rig.append(batch, STARTED);
    learner.drain();
    assert_eq!(cold(&embeddings(&rig)), [false, true, true]);
    assert_eq!(learner.trainer.state().last_event(NodeId(9)), None);
}

/// What a trainer knows after 15,000 edges with features, some of them late. Some nodes occur again after 2,400 moments
/// only, and before half of them do, the edge of the message that waits is deleted; other edges are deleted earlier.
/// `each` sees the rig after every third batch; the learner starts anew after half of them, if `restarts`.
fn long_run(model: TgnOptions, graph: GraphStore, restarts: bool, each: impl Fn(&Rig)) -> Vec<u8> {
    let trained = TrainerOptions { model: model.into(), ..trainer_options() };
    let mut rig = Rig::over(graph);
    let replay = ReplayOptions { ratio: 0.5, ..ReplayOptions::default() };
    let options = LearnerOptions { batch_events: 100, rank_queries: 1, replay, ..rig.options() };
    let gate = || Some(Gate::new(gate::options()));
    let trainer = Trainer::new(trained, &Device::Cpu).unwrap();
    let from = Learned { trainer, gate: gate(), stream: None, position: EdgeId(0) };
    let mut learner = rig.learner_from(from, options.clone(), Box::new(|_| ()));
    let event = |round: u32, i: u32| {
        let late = if i.is_multiple_of(11) { i64::from(i % 3) * 400 } else { 0 };
        let seldom = i.is_multiple_of(199);
        let dst = if seldom { 16 + (round * 2 + i / 199) % 16 } else { 8 + (i * 3 + round) % 8 };
        (i % 8, dst, i64::from(round * 300 + i) - late)
    };
    for round in 0..50 {
        let first = rig.log.end().0;
        rig.append(edges((0..300).map(|i| event(round, i))), STARTED);
        let rows = &rig.shared.engine.stores.edge_features;
        (first..first + 300).for_each(|id| rows.set(id, &[(id % 13) as f32 - 6.0]).unwrap());
        let ago = [(2, 50), (5, 250), (6, 149), (8, 199)];
        let before = ago.into_iter().filter_map(|(ago, i)| Some(event(round.checked_sub(ago)?, i)));
        let mut deletions = edges(before);
        deletions.op.fill(Op::DeleteEdge);
        if !deletions.is_empty() {
            rig.append(deletions, STARTED);
        }
        learner.drain();
        each(&rig);
        if round == 25 && restarts {
            let from = gate::restored(&learner, trained);
            rig.restart();
            learner = rig.learner_from(from, options.clone(), Box::new(|_| ()));
        }
    }
    learner.to_bytes()
}

#[test]
fn what_was_released_changes_no_bit_of_what_is_learned() {
    let options = GraphOptions { page_entries_max: 16, ..GraphOptions::default() };
    let graph = || GraphStore::new(options).with_retention(Retention { age: 1_500, lateness: 300 });
    // Means of messages hold rows of edges; to a model of types the one value of a row is the type.
    let typed = EdgeTypes::new(6, 2);
    let means = TgnOptions { aggregator: Aggregator::Mean, edge_types: typed, edge_feature_dim: 0, ..tgn() };
    for model in [tgn(), means] {
        released_as_whole(model, options, graph);
    }
}

fn released_as_whole(model: TgnOptions, options: GraphOptions, graph: impl Fn() -> GraphStore) {
    let whole = long_run(model, graph(), false, |_| ());
    let released = std::cell::Cell::new((0, 0));
    let release = |rig: &Rig| {
        let (engine, kept) = (&rig.shared.engine, rig.shared.progress.kept());
        (0..).take_while(|&part| engine.stores.graph.release_part(part, kept.since).unwrap()).for_each(drop);
        engine.stores.edge_features.release_below(kept.first.0);
        released.set((engine.stores.graph.stats().expired_edges, engine.stores.edge_features.first()));
    };
    assert!(long_run(model, graph(), true, release) == whole, "a release or a restart made a difference");
    assert!(released.get().0 > 10_000 && released.get().1 == 12_288, "{released:?}");
    assert!(long_run(model, GraphStore::new(options), false, |_| ()) != whole, "the age is of consequence");
}

#[test]
fn history_is_trained_on_however_long_and_live_events_only_near_the_end() {
    let mut rig = Rig::new();
    let options = LearnerOptions { lag_events_max: 20, ..rig.options() };
    rig.append(some_edges(100, 0), STARTED - 1);
    rig.append(some_edges(100, 1_000), STARTED);
    let mut learner = rig.learner(options.clone());
    let mut batch = LearnBatch::default();
    learner.feed.fill(&mut batch, 10, IDLE, Duration::ZERO).unwrap();
    learner.learn(&batch).unwrap();
    let report = rig.shared.status.report();
    assert_eq!((report.trained, report.skipped, report.history, report.behind), (10, 0, true, 190));
    learner.drain();
    let report = rig.shared.status.report();
    // The live batches that end 20 records before the end, 10 before it and at it.
    assert_eq!((report.trained, report.skipped, report.history), (100 + 30, 70, false));
    assert_eq!(report.applied, 200);
    // Without training, history is caught up with like anything else.
    rig.restart();
    let mut learner = rig.learner(LearnerOptions { train: false, ..options });
    learner.drain();
    let report = rig.shared.status.report();
    assert_eq!((report.skipped, report.applied), (0, 200), "what is not to be trained on is not skipped");
    // The age of the log at the start is not measured; what comes after is.
    assert_eq!(rig.shared.status.freshness_seconds(), None);
    rig.append(some_edges(10, 2_000), STARTED);
    learner.drain();
    assert!(rig.shared.status.freshness_seconds().is_some_and(|(median, _)| median > 1e6));
}

#[test]
fn the_first_checkpoint_comes_soon_and_the_others_at_the_interval() {
    let options = |seconds| LearnerOptions {
        checkpoint_interval: Duration::from_secs(seconds),
        ..Rig::new().options()
    };
    let some = Some(EdgeId(5));
    for (seconds, last, next) in [(300, None, 10), (300, some, 300), (2, None, 2), (2, some, 2)] {
        assert_eq!(checkpointing::interval(&options(seconds), last), Duration::from_secs(next));
    }
}

#[test]
fn what_has_waited_for_too_long_gets_a_state_only_update() {
    let mut rig = Rig::new();
    let trained = |rig: &mut Rig, lag_target| {
        let mut learner = rig.learner(LearnerOptions { lag_target, ..rig.options() });
        learner.drain();
        let report = rig.shared.status.report();
        rig.restart();
        (report.trained, report.skipped, report.applied)
    };
    rig.append(some_edges(30, 0), STARTED - 1);
    rig.append(some_edges(50, 1_000), STARTED);
    assert_eq!(trained(&mut rig, Duration::ZERO), (80, 0, 80), "no bound");
    assert_eq!(trained(&mut rig, Duration::from_secs(3_600)), (80, 0, 80), "within the bound");
    assert_eq!(
        trained(&mut rig, Duration::from_nanos(1)),
        (40, 40, 80),
        "history is trained on all the same, and so is the last batch, which nobody waits behind"
    );
}

#[test]
fn a_deleted_node_is_forgotten_in_its_place_in_the_order_of_events() {
    let mut rig = Rig::new();
    rig.append_edges(16, 100);
    // Node 9 is deleted, and 1 too, which comes back: both before the batch of ten is full.
    let mut batch = edges([(1, 9, 200), (2, 9, 201)]);
    record(&mut batch, Op::DeleteNode, 9);
    record(&mut batch, Op::DeleteNode, 1);
    batch.push_edge(NodeId(1), NodeId(10), EventTime(300));
    rig.append(batch, STARTED);
    let mut learner = rig.learner(rig.options());
    let batches = learner.drain();
    let cuts: Vec<_> = batches.iter().map(|batch| (batch.edges.len(), batch.deleted.len())).collect();
    assert_eq!(cuts, [(10, 0), (8, 2), (1, 0)]);
    let state = learner.trainer.state();
    let memory = |node| {
        let mut row = [9.0; 6];
        state.memory.row_into(NodeId(node), &mut row);
        row
    };
    assert_eq!((state.last_event(NodeId(9)), memory(9)), (None, [0.0; 6]));
    // The last event is all that is known of node 1.
    assert_eq!(state.last_event(NodeId(1)), Some(EventTime(300)));
    assert_eq!(memory(1), [0.0; 6]);
    assert!(!learner.pool.known().nodes().contains(&NodeId(9)));
    let response = rig.shared.engine.embeddings(&[key(9), key(1)], None, UnknownKeys::Error).unwrap();
    let cold = |i: usize| matches!(response.embeddings[i], NodeEmbedding::Found { cold: true, .. });
    assert_eq!((cold(0), cold(1)), (true, false));
    let mut row = [9.0; 6];
    rig.states().gather(&[NodeId(9)], 0..rig.states().dimension(), &mut row);
    assert_eq!(row, [0.0; 6], "readers have nothing left of it");

    let pool = learner.pool.known().nodes().to_vec();
    rig.restart();
    let again = rig.learner_at(trainer(), rig.log.end(), rig.options());
    assert_eq!(again.pool.known().nodes(), pool, "a restart draws the same negatives");
}

#[test]
fn a_forgotten_node_is_in_no_byte_of_a_checkpoint() {
    let mut rig = Rig::new();
    rig.append_edges(40, 100);
    let mut learner = rig.learner(rig.options());
    // Node 9 has a history of its own; then the last event of nodes 2 and 3 is with it.
    rig.append(edges([(9, 20, 200), (9, 21, 201)]), STARTED);
    learner.drain();
    rig.append(edges([(9, 20, 202), (2, 9, 203), (3, 9, 204)]), STARTED);
    learner.drain();
    let row = learner.trainer.state().memory.row(NodeId(9)).unwrap().to_vec();
    let row: &[u8] = bytemuck::cast_slice(&row);
    let traces = |learner: &Learner| {
        let mut bytes = Vec::new();
        learner.trainer.save(&mut bytes).unwrap();
        bytes.windows(row.len()).filter(|bytes| *bytes == row).count()
    };
    assert_eq!(traces(&learner), 4, "in its memory and in the messages of 2, 3 and 20");
    assert_eq!(learner.bank.score(NodeId(2), NodeId(9)), 1.0);
    let mut batch = EdgeBatch::default();
    record(&mut batch, Op::DeleteNode, 9);
    rig.append(batch, STARTED);
    learner.drain();
    assert_eq!(traces(&learner), 0);
    let (state, states) = (learner.trainer.state(), &rig.shared.engine.states);
    assert!(!state.mailbox.is_pending(NodeId(2)) && state.mailbox.is_pending(NodeId(4)));
    let mut published = [0.0; 6];
    states.gather(&[NodeId(2)], 0..states.dimension(), &mut published);
    assert_eq!(Some(&published[..]), state.memory.row(NodeId(2)), "readers see it without that message");
    assert_eq!(states.updated(NodeId(2)), Some(state.memory.updated(NodeId(2))));
    learner.checkpoint_now(&LearnBatch::default(), &|| ()).unwrap();
    assert_eq!(learner.bank.score(NodeId(2), NodeId(9)), 0.0);

    // What a restart shows is what was shown before it.
    let mut bytes = Vec::new();
    learner.trainer.save(&mut bytes).unwrap();
    let loaded = Trainer::load(trainer_options(), &Device::Cpu, &mut &bytes[..]).unwrap();
    let before: Vec<_> = (0..32).map(|node| states.updated(NodeId(node))).collect();
    rig.restart();
    let again = rig.learner_at(loaded, rig.log.end(), rig.options());
    let states = &rig.shared.engine.states;
    assert_eq!((0..32).map(|node| states.updated(NodeId(node))).collect::<Vec<_>>(), before);
    assert_eq!(again.bank.score(NodeId(2), NodeId(9)), 1.0, "its pairs go at the next checkpoint");
    assert_eq!(again.deleted, [NodeId(9)]);
}

#[test]
fn what_is_rebuilt_ends_at_the_checkpoint() {
    let mut rig = Rig::new();
    rig.append_edges(4, 100);
    // Records that are no edges, then edges, in one frame: the checkpoint stands between.
    let mut batch = EdgeBatch::default();
    (0..4).for_each(|node| record(&mut batch, Op::Node, node));
    (0..4).for_each(|i| batch.push_edge(NodeId(i), NodeId(28 + i), EventTime(200)));
    rig.append(batch, STARTED);
    let mut learner = rig.learner_at(trainer(), EdgeId(8), rig.options());
    let scored = |learner: &Learner| learner.bank.scores(&[0, 0].map(NodeId), &[8, 28].map(NodeId));
    assert_eq!(scored(&learner), [1.0, 0.0], "the bank holds what stands before the checkpoint");
    assert!(
        learner.pool.known().nodes().iter().all(|node| node.0 < 28),
        "{:?}",
        learner.pool.known().nodes()
    );
    let batches = learner.drain();
    assert_eq!(batches[0].first, EdgeId(8));
    assert_eq!(scored(&learner), [1.0, 1.0]);
}

#[test]
fn a_frame_that_is_not_in_the_graph_yet_does_not_hold_the_loop() {
    let mut rig = Rig::new();
    let frame = rig.write(some_edges(5, 100), STARTED);
    let mut learner = rig.learner(rig.options());
    let mut batch = LearnBatch::default();
    let mut fill = |learner: &mut Learner| {
        learner.feed.fill(&mut batch, 10, Duration::from_millis(20), Duration::ZERO).unwrap();
        batch.edges.len()
    };
    // The position covers the frame's first records: the frame is read and must be kept.
    rig.shared.progress.set_indexed(EdgeId(2));
    let begun = Instant::now();
    assert_eq!((fill(&mut learner), fill(&mut learner)), (0, 0));
    assert!(begun.elapsed() < Duration::from_secs(10));
    rig.shared.engine.stores.graph.apply(&frame.batch).unwrap();
    rig.shared.progress.set_indexed(EdgeId(5));
    assert_eq!((fill(&mut learner), fill(&mut learner)), (5, 0));
}

#[test]
fn a_refused_step_is_counted_as_skipped_and_learning_goes_on() {
    let mut rig = Rig::new();
    rig.append_edges(10, 100);
    let features = rig.shared.engine.stores.edge_features.clone();
    features.set(9, &[f32::NAN]).unwrap();
    let mut learner = rig.learner(rig.options());
    learner.drain();
    assert_eq!(rig.shared.status.report().trained, 10, "a batch does not see its own features");
    rig.append_edges(10, 200);
    learner.drain();
    let (report, metrics) = (rig.shared.status.report(), &rig.shared.metrics.train);
    assert_eq!((report.trained, report.skipped, report.applied), (10, 10, 20));
    assert_eq!((metrics.nonfinite.get(), metrics.skipped_events.get()), (1, 10));
    assert!(report.quality.is_some_and(|quality| quality.auc.is_finite()), "earlier scores are kept");
    // Once the node's bad message and neighbors are gone, so is the trouble.
    features.set(9, &[0.0]).unwrap();
    rig.append_edges(20, 300);
    learner.drain();
    assert!(rig.shared.status.report().trained >= 20, "{:?}", rig.shared.status.report());
}

#[test]
fn a_batch_waits_for_its_storage_and_is_learned_as_if_nothing_had_been() {
    let learned = |fault: &Arc<AtomicBool>| {
        let mut rig = Rig::new();
        let old = rig.shared.engine.clone();
        let edge_features = Arc::new(FeatureStore::with_fault(1, fault.clone()));
        let stores = Stores { edge_features, ..old.stores.clone() };
        let states = Arc::new(NodeStates::new(old.states.dimension()));
        let engine = QueryEngine::new(stores, states, rig.shared.progress.clone());
        rig.shared.engine = Arc::new(engine);
        rig.append_edges(30, 0);
        let learner = rig.learner(rig.options());
        let (stop, shared) = (AtomicBool::new(false), rig.shared.clone());
        std::thread::scope(|scope| {
            let end = scopeguard::guard((), |()| stop.store(true, Ordering::Release));
            let running = scope.spawn(|| learner.run(&stop, || ()));
            if fault.load(Ordering::Acquire) {
                let begun = Instant::now();
                while shared.metrics.train.storage_failures.get() == 0 {
                    assert!(begun.elapsed() < Duration::from_secs(60), "the failure is counted");
                    std::thread::yield_now();
                }
                assert_eq!(shared.status.report().trained, 0);
                fault.store(false, Ordering::Release);
            }
            assert!(shared.progress.wait_for(EdgeId(30), Duration::from_secs(60)));
            drop(end);
            running.join().unwrap().unwrap();
        });
        let mut rows = vec![0.0; 16 * trainer_options().model.needs().row_dim()];
        let states = &shared.engine.states;
        states.gather(&(0..16).map(NodeId).collect::<Vec<_>>(), 0..states.dimension(), &mut rows);
        (rows, shared.status.report().quality)
    };
    let spared = learned(&Arc::new(AtomicBool::new(false)));
    assert_eq!(learned(&Arc::new(AtomicBool::new(true))), spared);
}

#[test]
fn preparing_the_next_batch_early_changes_nothing() {
    let learned = |helper: Option<Helper>| {
        let mut rig = Rig::new();
        for i in 0..160 {
            rig.shared.engine.stores.edge_features.set(i, &[(i % 7) as f32]).unwrap();
        }
        rig.append_edges(100, 0);
        let mut batch = edges([(2, 9, 200), (3, 9, 201)]);
        record(&mut batch, Op::DeleteNode, 9);
        (0..40).for_each(|i| batch.push_edge(NodeId(i % 8), NodeId(9 + i % 4), EventTime(300)));
        rig.append(batch, STARTED);
        let mut learner = rig.learner(rig.options());
        learner.helper = helper;
        let (mut batch, mut cuts, mut ahead) = (LearnBatch::default(), Vec::new(), 0);
        while learner.learned < rig.log.end() {
            learner.fetch(&mut batch, IDLE).unwrap();
            ahead += usize::from(learner.at_hand.sampled);
            learner.learn(&batch).unwrap();
            cuts.push((batch.first, batch.end, batch.deleted.clone()));
        }
        let mut bytes = Vec::new();
        learner.trainer.save(&mut bytes).unwrap();
        let pool = learner.pool.known().nodes().to_vec();
        (ahead, (cuts, bytes, pool, rig.shared.status.report().quality))
    };
    let (none, plain) = learned(None);
    let (some, ahead) = learned(Some(Helper::new()));
    assert!(plain == ahead, "the same batches, trainer, destinations and quality");
    assert!(none == 0 && some >= 8, "{some} batches were sampled ahead");
}

#[test]
fn the_baseline_sees_as_far_into_the_batch_as_the_model() {
    let mut rig = Rig::new();
    rig.append(edges((0..10).map(|i| (i % 2, 8 + i % 2, i64::from(i)))), STARTED);
    let mut learner = rig.learner(rig.options());
    learner.drain();
    // All but the first event of each pair repeat an earlier event of the batch.
    let baseline = rig.shared.status.report().quality.unwrap().baseline;
    assert!(baseline > 0.55, "{baseline}");
}

#[test]
fn quality_is_measured_without_dropout() {
    let mut rig = Rig::new();
    rig.append_edges(20, 100);
    let mut options = trainer_options();
    options.model = options.model.with_dropout(0.5);
    let mut learner = rig.learner_at(Trainer::new(options, &Device::Cpu).unwrap(), EdgeId(0), rig.options());
    let mut batch = LearnBatch::default();
    learner.feed.fill(&mut batch, 10, IDLE, Duration::ZERO).unwrap();
    learner.learn(&batch).unwrap();
    learner.feed.fill(&mut batch, 10, IDLE, Duration::ZERO).unwrap();
    let against = learner.negatives(&batch);
    let engine = rig.shared.engine.clone();
    let world = step::world(&engine, (&engine.stores.node_features, None), &batch);
    let positives = Positives { src: &batch.src, dst: &batch.dst, times: &batch.times, edges: &batch.edges };
    let negatives = Negatives { src: &batch.src, dst: &against };
    let expected = learner.trainer.score_pairs(&world, &positives, &negatives).unwrap();
    learner.prepare(&batch, &against, &Choice::all(StepMode::Train)).unwrap();
    let taken = learner.step(&batch, &against, 0).unwrap();
    assert_eq!(taken.mode, StepMode::Train);
    assert_eq!((taken.report.positive, taken.report.negative), expected);
}

#[test]
fn quality_is_that_of_every_batch() {
    let mut rig = Rig::new();
    let mut learner = rig.learner(rig.options());
    for (batch, count) in [10, 10, 3, 10].into_iter().enumerate() {
        let before = learner.quality.mean();
        rig.append_edges(count, 100 * batch as i64);
        learner.drain();
        assert!(learner.quality.mean() != before, "{batch}");
    }
}

#[test]
fn a_true_destination_is_not_its_own_rival() {
    let mut rig = Rig::new();
    rig.append(edges((0..30).map(|i| (i % 4, 8, i64::from(i)))), STARTED);
    let mut learner = rig.learner(rig.options());
    learner.drain();
    let quality = rig.shared.status.report().quality.unwrap();
    assert_eq!(quality.mrr, None, "with one destination in the pool there is nobody to rank it against");
    rig.append(edges((0..10).map(|i| (i % 4, 9, 100 + i64::from(i)))), STARTED);
    learner.drain();
    let quality = rig.shared.status.report().quality.unwrap();
    assert!(quality.mrr.is_some_and(|mrr| (1.0 / 6.0..=1.0).contains(&mrr)), "{quality:?}");
}

#[test]
fn positives_are_ranked_some_at_once_and_none_where_none_are_asked_for() {
    let ranked = |rank_queries| {
        let mut rig = Rig::new();
        let options = LearnerOptions { batch_events: 20, rank_queries, ..rig.options() };
        let mut learner = rig.learner(options);
        let mut due = Vec::new();
        for batch in 0..20 {
            rig.append_edges(20, 100 * batch);
            learner.drain();
            due.push(learner.ranks_due);
        }
        (due, rig.shared.status.report().quality.unwrap().mrr)
    };
    let (due, mrr) = ranked(1);
    let passes = due.windows(2).filter(|pair| pair[1] < pair[0]).count();
    assert!((1..=3).contains(&passes) && mrr.is_some(), "one pass in eight batches: {due:?}");
    let (due, mrr) = ranked(0);
    assert_eq!((mrr, due.iter().all(|&due| due == 8.0)), (None, true), "{due:?}");
}

#[test]
fn memory_use_is_reported() {
    let mut rig = Rig::new();
    let mut learner = rig.learner(rig.options());
    rig.append_edges(30, 0);
    learner.drain();
    let bytes = rig.shared.status.report().bytes;
    // Sixteen nodes with six values and a time, or seven values, an edge and a time.
    assert!(bytes.memory >= 16 * 32 && bytes.mailbox >= 16 * 44, "{bytes:?}");
    assert!(bytes.edgebank > 0 && bytes.destinations > 0, "{bytes:?}");
}

#[test]
fn the_loop_runs_on_threads_of_its_own_until_it_is_stopped() {
    let mut rig = Rig::new();
    rig.append_edges(30, 0);
    let learner = rig.learner(rig.options());
    assert_eq!(learner.threads.current_num_threads(), 2);
    let (stop, shared) = (AtomicBool::new(false), rig.shared.clone());
    std::thread::scope(|scope| {
        let end = scopeguard::guard((), |()| stop.store(true, Ordering::Release));
        let running = scope.spawn(|| learner.run(&stop, || ()));
        assert!(shared.progress.wait_for(EdgeId(30), Duration::from_secs(60)));
        drop(end);
        running.join().unwrap().unwrap();
    });
    assert_eq!(shared.status.report().trained, 30);
    assert!(rig.folder.path().join(checkpoint::name(EdgeId(30))).is_file(), "a checkpoint at the end");
}
