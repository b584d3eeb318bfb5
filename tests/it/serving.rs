//! Queries: the same numbers the trainer would compute from the same state, every node for itself, and no
//! waiting for or tearing by the learner that publishes meanwhile.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use evergraph::device::Device;
use evergraph::event::{EdgeId, EventTime, NodeId, NodeKey};
use evergraph::feature::FeatureStore;
use evergraph::graph::NodeDictionary;
use evergraph::model::{ModelOptions, probability};
use evergraph::serving::{
    Candidates, IndexLoop, IndexOptions, IndexPrecision, NodeEmbedding, NodeStates, PairScore, Progress,
    QueryEngine, QueryError, Source, Stores, TopRequest, TopSource, UnknownKeys,
};
use evergraph::train::{StepMode, Trainer, TrainerOptions};

use crate::faulty_pages::{Fault, Faulty};
use crate::models::models;
use crate::tgn_stream::{DESTINATIONS, SOURCES, Sight, Stream, options, trainer};

const NODES: u32 = SOURCES + DESTINATIONS;

fn key(node: u32) -> NodeKey {
    NodeKey::Int(i64::from(node) + 1000)
}

/// An engine over a stream, with keys for its nodes and two more that never interact.
fn engine(stream: &Stream) -> QueryEngine {
    engine_for(stream, options().model)
}

/// The same for any model.
fn engine_for(stream: &Stream, model: ModelOptions) -> QueryEngine {
    let keys = NodeDictionary::new();
    for node in 0..NODES + 2 {
        assert_eq!(keys.intern(&key(node)), NodeId(node));
    }
    let stores = Stores {
        graph: stream.graph.clone(),
        keys: Arc::new(keys),
        edge_features: stream.edge_features.clone(),
        node_features: stream.node_features.clone(),
        types: Arc::default(),
        rows_have_types: false,
    };
    QueryEngine::new(stores, Arc::new(NodeStates::new(model.needs().row_dim())), Arc::new(Progress::new()))
}

/// Publishes everything a trainer knows.
fn publish(trainer: &mut Trainer, engine: &QueryEngine) {
    let nodes: Vec<NodeId> = (0..NODES + 2).map(NodeId).collect();
    let publish = |node, row: &[f32], updated| engine.states.publish(node, row, updated);
    trainer.publish_rows(EventTime::MIN, &engine.stores.edge_features, &nodes, publish).unwrap();
    if let Some(walks) = &trainer.state().walks {
        engine.states.set_origin(walks.origin().unwrap());
        walks.pairs().for_each(|(key, times)| engine.states.pairs.publish(key, times));
    }
    engine.publish(trainer.weights().unwrap()).unwrap();
}

fn trained(stream: &Stream) -> Trainer {
    trained_from(stream, trainer())
}

fn trained_from(stream: &Stream, mut trainer: Trainer) -> Trainer {
    for b in 0..stream.batches() {
        stream.step(&mut trainer, b, Sight::BeforeBatch, StepMode::Train);
    }
    trainer
}

#[test]
fn responses_equal_the_trainers_output() {
    for options in models() {
        responses_equal_those_of(options);
    }
}

fn responses_equal_those_of(options: TrainerOptions) {
    let stream = Stream::new(6);
    let mut trainer = trained_from(&stream, Trainer::new(options, &Device::Cpu).unwrap());
    let engine = engine_for(&stream, options.model);
    assert_eq!(engine.embeddings(&[key(0)], None, UnknownKeys::Error), Err(QueryError::NotReady));
    publish(&mut trainer, &engine);
    engine.progress.set_learned(EdgeId(stream.src.len() as u64));

    let world = stream.world(0, Sight::Everything);
    let now = EventTime(stream.times.iter().max().unwrap().0 + 1);
    for at in [None, Some(stream.times[60])] {
        let time = at.unwrap_or(now);
        let nodes: Vec<NodeId> = (0..NODES + 2).map(NodeId).collect();
        let expected = trainer.embeddings(&world, &nodes, &vec![time; nodes.len()]).unwrap();
        let keys: Vec<NodeKey> = (0..NODES + 2).map(key).collect();
        let response = engine.embeddings(&keys, at, UnknownKeys::Error).unwrap();
        assert_eq!((response.at, response.dimension), (time, options.model.needs().embedding_dim));
        assert_eq!(response.freshness.model_version, trainer.steps());
        assert_eq!(response.freshness.applied_position, stream.src.len() as u64);
        for (node, (embedding, expected)) in
            response.embeddings.iter().zip(expected.chunks(response.dimension)).enumerate()
        {
            let NodeEmbedding::Found { vector, last_event, cold } = embedding else { panic!("{node}") };
            assert_eq!(vector, expected, "node {node} at {time}");
            assert_eq!(*last_event, stream.graph.last_event(NodeId(node as u32)).unwrap());
            assert_eq!(*cold, last_event.is_none());
        }
        let candidates: Vec<NodeId> = (SOURCES..NODES).map(NodeId).collect();
        let expected = trainer.score_candidates(&world, NodeId(3), time, &candidates).unwrap();
        let pairs: Vec<_> = (SOURCES..NODES).map(|dst| (key(3), key(dst))).collect();
        let response = engine.link_scores(&pairs, at, UnknownKeys::Error).unwrap();
        assert_eq!(response.scores.len(), expected.len());
        for (score, logit) in response.scores.iter().zip(expected) {
            let PairScore::Found { probability: found, .. } = score else { panic!("{score:?}") };
            // Memory was published for all nodes at once, and matrices of other heights round differently in the last
            // bit.
            assert!((found - probability(logit)).abs() < 1e-6, "{found}, not {}", probability(logit));
        }
    }
}

/// Keeps the index of `engine` until nothing is left to do.
fn settle(engine: &Arc<QueryEngine>) {
    let mut index = IndexLoop::new(engine.clone()).unwrap();
    let far = std::time::Instant::now() + Duration::from_secs(60);
    index.turn(far, &|| true).unwrap();
    // What was touched before there was a generation was taken in by its fill.
    index.turn(far, &|| true).unwrap();
}

#[test]
fn the_top_of_every_model_is_the_best_of_all_its_scores() {
    for options in models() {
        let stream = Stream::new(6);
        let mut trainer = trained_from(&stream, Trainer::new(options, &Device::Cpu).unwrap());
        let precision = IndexPrecision::F32;
        let index = IndexOptions { bytes_max: 1 << 30, precision, cpu_share: 1.0, coalesce: Duration::ZERO };
        let engine = Arc::new(engine_for(&stream, options.model).with_index(index));
        (SOURCES..NODES).for_each(|node| engine.states.touched.set_destination(NodeId(node)));
        let request = |limit, exclude_met| {
            let candidates = Candidates { destinations: true, ..Candidates::default() };
            Arc::new(TopRequest { limit, candidates, exclude_met, ..TopRequest::default() })
        };
        let top = |limit, exclude_met| {
            let request = request(limit, exclude_met);
            let sources: Vec<_> =
                (0..SOURCES).map(|node| TopSource { key: key(node), request: request.clone() }).collect();
            Ok::<_, QueryError>(engine.top_links_of(&[&sources[..]], &engine.moment(None)?)?.remove(0))
        };
        publish(&mut trainer, &engine);
        assert!(matches!(top(3, false), Err(QueryError::IndexFilling { .. })));
        settle(&engine);
        let name = options.model.name();
        for (limit, exclude_met) in [(3, false), (3, true), (100, false)] {
            let response = top(limit, exclude_met).unwrap();
            assert!(response.coverage.exact, "{name}");
            for (src, found) in (0..SOURCES).zip(&response.results) {
                let met =
                    |dst: u32| stream.src.iter().zip(&stream.dst).any(|(s, d)| (s.0, d.0) == (src, dst));
                let pairs: Vec<_> = (SOURCES..NODES)
                    .filter(|&dst| !exclude_met || !met(dst))
                    .map(|dst| (key(src), key(dst)))
                    .collect();
                let scores = engine.link_scores(&pairs, None, UnknownKeys::Error).unwrap().scores;
                let mut scores: Vec<f32> = scores
                    .iter()
                    .map(|score| match score {
                        PairScore::Found { probability, .. } => *probability,
                        other => panic!("{other:?}"),
                    })
                    .collect();
                scores.sort_by(|a, b| b.total_cmp(a));
                assert_eq!(found.found.len(), limit.min(scores.len()), "{name}");
                for (found, expected) in found.found.iter().zip(scores) {
                    // Small matrices of other heights round differently in the last bit.
                    assert!((found.score - expected).abs() < 1e-6, "{name}: {found:?} and {expected}");
                }
            }
        }
        // A later row of one node makes it pending, until the index has taken it in.
        engine.states.publish(NodeId(SOURCES), &vec![0.25; engine.states.dimension()], EventTime(1));
        let late = top(3, false).unwrap();
        assert_eq!(late.coverage.index.unwrap().pending_nodes, 1, "{name}");
        assert!(!late.coverage.exact, "{name}");
        settle(&engine);
        assert!(top(3, false).unwrap().coverage.exact, "{name}");
    }
}

#[test]
fn the_baseline_knows_the_pairs_that_met_and_prefers_those_that_met_later() {
    let stream = Stream::new(6);
    let (engine, mut trainer) = (engine(&stream), trained(&stream));
    publish(&mut trainer, &engine);
    engine.publish_for(trainer.weights().unwrap(), Source::Baseline).unwrap();
    let events = || stream.src.iter().zip(&stream.dst).zip(&stream.times).enumerate();
    for at in [None, Some(stream.times[60])] {
        let pairs: Vec<_> =
            (0..NODES).flat_map(|src| (0..NODES).map(move |dst| (key(src), key(dst)))).collect();
        let response = engine.link_scores(&pairs, at, UnknownKeys::Error).unwrap();
        assert_eq!((response.source, response.freshness.model_version), (Source::Baseline, 0));
        for ((src, dst), score) in
            (0..NODES).flat_map(|src| (0..NODES).map(move |dst| (src, dst))).zip(&response.scores)
        {
            let PairScore::Found { probability, .. } = score else { panic!("{score:?}") };
            let alike = events().filter(|(_, ((s, d), time))| {
                (**s, **d) == (NodeId(src), NodeId(dst)) && **time < response.at
            });
            let last = alike.max_by_key(|(i, (_, time))| (**time, *i)).map(|(i, _)| i);
            let expected = last.map_or(0.0, |i| 0.5 + 0.5 * (i + 1) as f32 / stream.src.len() as f32);
            assert!((probability - expected).abs() < 1e-6, "{src} to {dst}: {probability}, not {expected}");
        }
    }
    let (known, unknown) = (key(0), NodeKey::from_text("nobody"));
    let pairs = [(known.clone(), unknown.clone()), (unknown.clone(), known.clone())];
    let unknown = engine.link_scores(&pairs, None, UnknownKeys::Error).unwrap().scores;
    assert_eq!(unknown[0], PairScore::Unknown { src: false, dst: true });
    let prior = engine.link_scores(&pairs, None, UnknownKeys::Prior).unwrap().scores;
    assert!(
        prior
            .iter()
            .all(|score| *score == PairScore::Found { probability: 0.0, percentile: None, cold: true }),
        "{prior:?}"
    );
    let embeddings = engine.embeddings(&[known], None, UnknownKeys::Error).unwrap();
    assert_eq!((embeddings.source, embeddings.freshness.model_version), (Source::Candidate, trainer.steps()));
}

#[test]
fn unknown_keys_stand_for_themselves() {
    let stream = Stream::new(2);
    let (engine, mut trainer) = (engine(&stream), trained(&stream));
    publish(&mut trainer, &engine);
    let (known, unknown) = (key(1), NodeKey::from_text("nobody"));
    let alone = engine.embeddings(std::slice::from_ref(&known), None, UnknownKeys::Error).unwrap();
    let mixed = engine
        .embeddings(&[unknown.clone(), known.clone(), known.clone()], None, UnknownKeys::Error)
        .unwrap();
    assert_eq!(mixed.embeddings[0], NodeEmbedding::Unknown);
    assert_eq!(mixed.embeddings[1], alone.embeddings[0]);
    assert_eq!(mixed.embeddings[2], alone.embeddings[0]);
    let pairs =
        [(known.clone(), unknown.clone()), (unknown.clone(), unknown.clone()), (known.clone(), key(20))];
    let scores = engine.link_scores(&pairs, None, UnknownKeys::Error).unwrap().scores;
    assert_eq!(scores[0], PairScore::Unknown { src: false, dst: true });
    assert_eq!(scores[1], PairScore::Unknown { src: true, dst: true });
    assert!(matches!(scores[2], PairScore::Found { probability, .. } if (0.0..=1.0).contains(&probability)));
    assert!(engine.embeddings(&[], None, UnknownKeys::Error).unwrap().embeddings.is_empty());
    assert_eq!(engine.node(&unknown, 5), Ok(None));
}

#[test]
fn unknown_keys_get_the_prior_of_a_node_without_events() {
    for options in models() {
        prior_of(options);
    }
}

fn prior_of(options: TrainerOptions) {
    let (stream, name) = (Stream::new(2), options.model.name());
    let engine = engine_for(&stream, options.model);
    let mut trainer = trained_from(&stream, Trainer::new(options, &Device::Cpu).unwrap());
    publish(&mut trainer, &engine);
    let (known, lonely) = (key(1), key(NODES));
    let [nobody, stranger] = ["nobody", "stranger"].map(NodeKey::from_text);
    let keys = [nobody.clone(), stranger.clone(), lonely.clone(), known.clone()];
    let response = engine.embeddings(&keys, None, UnknownKeys::Prior).unwrap().embeddings;
    let cold =
        |found: &NodeEmbedding| matches!(found, NodeEmbedding::Found { cold: true, last_event: None, .. });
    assert_eq!(response.iter().map(cold).collect::<Vec<_>>(), [true, true, true, false], "{name}");
    let pairs = keys.each_ref().map(|dst| (known.clone(), dst.clone()));
    let scores = engine.link_scores(&pairs, None, UnknownKeys::Prior).unwrap().scores;
    let cold = |score: &PairScore| matches!(score, PairScore::Found { cold: true, .. });
    assert_eq!(scores.iter().map(cold).collect::<Vec<_>>(), [true, true, true, false], "{name}");
    assert!(response[0] == response[1] && scores[0] == scores[1], "{name}: all who are unknown are alike");
    // Models that know nodes by signatures tell nodes apart that have one of their own.
    let signed = ["graphsage", "gat", "dysat"].contains(&name);
    assert_eq!((response[1] == response[2], scores[1] == scores[2]), (!signed, !signed), "{name}");
}

#[test]
fn output_that_is_not_finite_is_reported_per_node() {
    let stream = Stream::new(3);
    let (engine, mut trainer) = (engine(&stream), trained(&stream));
    publish(&mut trainer, &engine);
    let node = stream.src[0].0;
    stream.node_features.set(u64::from(node), &[f32::NAN; 3]).unwrap();
    let lonely = NODES + 1;
    let response = engine.embeddings(&[key(node), key(lonely)], None, UnknownKeys::Error).unwrap();
    assert_eq!(response.embeddings[0], NodeEmbedding::NotFinite);
    assert!(matches!(&response.embeddings[1], NodeEmbedding::Found { .. }));
    let pairs = [(key(lonely), key(node)), (key(lonely), key(NODES))];
    let scores = engine.link_scores(&pairs, None, UnknownKeys::Error).unwrap().scores;
    assert_eq!(scores[0], PairScore::NotFinite);
    assert!(matches!(scores[1], PairScore::Found { probability, .. } if (0.0..=1.0).contains(&probability)));
}

#[test]
fn a_node_shows_its_newest_neighbors() {
    let stream = Stream::new(3);
    let engine = engine(&stream);
    let node = stream.src[59];
    let response = engine.node(&key(node.0), 3).unwrap().unwrap();
    let mut own: Vec<usize> = (0..60).filter(|&i| stream.src[i] == node || stream.dst[i] == node).collect();
    assert_eq!((response.degree, response.id), (own.len() as u64, node));
    assert_eq!(response.learned_event, None);
    assert_eq!(response.last_event, Some(stream.times[*own.last().unwrap()]));
    own.sort_by_key(|&i| std::cmp::Reverse((stream.times[i], i)));
    let newest: Vec<u64> = response.neighbors.iter().map(|neighbor| neighbor.edge.0).collect();
    let expected: Vec<u64> = own.iter().take(3).map(|&i| i as u64).collect();
    assert_eq!(newest, expected);
    let other = if stream.src[own[0]] == node { stream.dst[own[0]] } else { stream.src[own[0]] };
    assert_eq!(response.neighbors[0].key, key(other.0));
    assert_eq!(engine.node(&key(NODES), usize::MAX).unwrap().unwrap().neighbors, []);
    assert_eq!(engine.node(&key(node.0), usize::MAX).unwrap().unwrap().neighbors.len(), own.len());
}

#[test]
fn a_model_of_another_shape_is_refused() {
    let stream = Stream::new(1);
    let mut engine = engine(&stream);
    engine.states = Arc::new(NodeStates::new(7));
    let refused = engine.publish(trainer().weights().unwrap());
    assert_eq!(refused, Err(QueryError::Mismatch { what: "node state", expected: 12, found: 7 }));
    assert!(engine.model().is_none());
}

#[test]
fn rows_that_cannot_be_read_are_an_error_and_never_zeros() {
    let stream = Stream::new(2);
    let (mut engine, mut trainer) = (engine(&stream), trained(&stream));
    publish(&mut trainer, &engine);
    let fault = Arc::new(AtomicBool::new(true));
    engine.stores.edge_features = Arc::new(FeatureStore::with_fault(2, fault.clone()));
    let nodes = [key(0), key(1)];
    assert!(matches!(engine.embeddings(&nodes, None, UnknownKeys::Error), Err(QueryError::Storage(_))));
    let pair = [(key(0), key(1))];
    assert!(matches!(engine.link_scores(&pair, None, UnknownKeys::Error), Err(QueryError::Storage(_))));
    assert!(engine.node(&key(0), 3).unwrap().is_some(), "adjacency needs no rows");
    fault.store(false, Ordering::Release);
    assert_eq!(engine.embeddings(&nodes, None, UnknownKeys::Error).unwrap().embeddings.len(), 2);
}

#[test]
fn queries_go_on_while_the_learner_publishes() {
    let stream = Stream::new(12);
    let (engine, done) = (engine(&stream), AtomicBool::new(false));
    let mut trainer = trainer();
    publish(&mut trainer, &engine);
    std::thread::scope(|scope| {
        let end = scopeguard::guard((), |()| done.store(true, Ordering::Release));
        let ask = || {
            let (mut requested, mut version) = (0, 0);
            let keys: Vec<NodeKey> = (0..NODES + 3).map(key).collect();
            let pairs: Vec<_> = (0..SOURCES).map(|src| (key(src), key(src + SOURCES))).collect();
            while !done.load(Ordering::Acquire) || requested == 0 {
                let response = engine.embeddings(&keys, None, UnknownKeys::Error).unwrap();
                for embedding in &response.embeddings[..NODES as usize] {
                    let NodeEmbedding::Found { vector, .. } = embedding else { panic!("{embedding:?}") };
                    assert!(vector.iter().all(|value| value.is_finite()));
                }
                assert!(response.freshness.model_version >= version, "versions only grow");
                version = response.freshness.model_version;
                assert_eq!(
                    engine.link_scores(&pairs, None, UnknownKeys::Error).unwrap().scores.len(),
                    pairs.len()
                );
                assert!(engine.node(&key(0), 10).unwrap().is_some());
                requested += 1;
            }
        };
        let askers = [scope.spawn(ask), scope.spawn(ask), scope.spawn(ask)];
        for b in 0..stream.batches() {
            let report = stream.step(&mut trainer, b, Sight::BeforeBatch, StepMode::Train);
            let publish = |node, row: &[f32], updated| engine.states.publish(node, row, updated);
            trainer.publish_rows(EventTime::MIN, &stream.edge_features, &report.touched, publish).unwrap();
            engine.publish(trainer.weights().unwrap()).unwrap();
            let end = EdgeId(stream.positives(b).edges.last().unwrap().0 + 1);
            engine.progress.set_learned(end);
            assert!(engine.progress.wait_for(end, Duration::ZERO));
        }
        drop(end);
        for asker in askers {
            asker.join().unwrap();
        }
    });
    assert_eq!(engine.freshness().applied_position, stream.src.len() as u64);
}

#[test]
fn a_query_whose_rows_are_released_meanwhile_is_retried() {
    let (mut stream, armed) = (Stream::new(6), Arc::new(AtomicBool::new(false)));
    let end = stream.src.len() as u64;
    let rows = Arc::new(OnceLock::<Weak<FeatureStore>>::new());
    let (graph, known, once) = (stream.graph.clone(), rows.clone(), armed.clone());
    // All goes when first a row is read: the sample that asks for it was drawn before.
    let disk = Faulty::new(move |operation| {
        if !operation.writes && once.swap(false, Ordering::AcqRel) {
            assert!((0..).take_while(|&part| graph.release_part(part, EventTime::MAX).unwrap()).count() > 0);
            known.get().and_then(Weak::upgrade).unwrap().release_below(end);
        }
        Fault::Works
    });
    let store = Arc::new(FeatureStore::with_budget(2, 0, Box::new(disk)).unwrap());
    assert!(rows.set(Arc::downgrade(&store)).is_ok());
    // So many that those of the stream are on disk alone.
    (0..2_000_000).for_each(|index| store.set(index, &[index as f32, 1.0]).unwrap());
    stream.edge_features = store;
    let (engine, mut trainer) = (engine(&stream), trainer());
    publish(&mut trainer, &engine);
    let keys = [key(0), key(SOURCES)];
    let before = engine.embeddings(&keys, None, UnknownKeys::Error).unwrap();
    (0..2_000_000).for_each(|index| engine.stores.edge_features.set(end + index, &[0.0, 1.0]).unwrap());
    armed.store(true, Ordering::Release);
    let during = engine.embeddings(&keys, None, UnknownKeys::Error).unwrap();
    assert!(!armed.load(Ordering::Acquire), "rows were read");
    let after = engine.embeddings(&keys, None, UnknownKeys::Error).unwrap();
    assert!(during.embeddings == after.embeddings && during.embeddings != before.embeddings);
}
