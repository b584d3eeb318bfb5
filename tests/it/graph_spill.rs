//! The graph with most of its entries on disk: the same samples as in memory, at any budget, under any number of
//! threads, and either the same sample or an error when the disk fails.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use evergraph::device::disk::{EngineChoice, SpillFile};
use evergraph::event::{EdgeBatch, EdgeId, EventTime, NodeId, Op};
use evergraph::graph::{GraphOptions, GraphStore, NodeDictionary, SpillError};
use evergraph::sampler::{Layers, MessageFlowGraph, SampleRequest, SamplingPolicy, Seeds, sample};

use crate::faulty_pages::{Fault, Faulty};
use crate::graph_model::oracle::Random;

const NODES: u64 = 3_000;

/// `length` edges from `first` on among the nodes below [`NODES`], some of them hubs, some edges late.
fn edges(random: &mut Random, first: u64, length: usize) -> EdgeBatch {
    let mut batch = EdgeBatch { first: EdgeId(first), ..EdgeBatch::default() };
    for id in first..first + length as u64 {
        let hub = random.chance(4);
        let src = random.below(if hub { 5 } else { NODES }) as u32;
        let late = if random.chance(30) { random.below(20_000) } else { 0 };
        let time = (id / 3).saturating_sub(late) as i64;
        batch.push_edge(NodeId(src), NodeId(random.below(NODES) as u32), EventTime(time));
    }
    batch
}

fn random_seeds(random: &mut Random, count: usize, latest: i64) -> (Vec<NodeId>, Vec<EventTime>) {
    let nodes = (0..count).map(|_| {
        let of = if random.chance(4) { 5 } else { NODES };
        NodeId(random.below(of) as u32)
    });
    let nodes = nodes.collect();
    let times = (0..count).map(|_| EventTime(random.below(latest as u64 + 2) as i64)).collect();
    (nodes, times)
}

fn request(policy: SamplingPolicy) -> SampleRequest {
    SampleRequest { policy, fanout: 10, window: None, seed: 3, batch: 1, layer: 0 }
}

fn sample_at(
    store: &GraphStore,
    bound: u64,
    (nodes, times): &(Vec<NodeId>, Vec<EventTime>),
    policy: SamplingPolicy,
) -> Result<MessageFlowGraph, SpillError> {
    let mut out = MessageFlowGraph::new();
    sample(store.view_at(EdgeId(bound)), Seeds { nodes, times }, &request(policy), &mut out)?;
    Ok(out)
}

fn options() -> GraphOptions {
    GraphOptions { shards: 8, ..GraphOptions::default() }
}

#[test]
fn a_store_with_a_budget_answers_as_one_without_and_keeps_to_it() {
    let folder = tempfile::tempdir().unwrap();
    for choice in [EngineChoice::Auto, EngineChoice::Pread] {
        let mut random = Random(9);
        let whole = GraphStore::new(options());
        for first in (0..300_000).step_by(10_000) {
            whole.apply(&edges(&mut random, first, 10_000)).unwrap();
        }
        let bytes = whole.stats().bytes;
        let budget = (bytes.total() - bytes.plan) / 4;
        let file = SpillFile::create(folder.path(), "graph", choice).unwrap();
        let store = GraphStore::with_budget(options(), budget, Box::new(file));
        let mut random = Random(9);
        for first in (0..300_000).step_by(10_000) {
            store.apply(&edges(&mut random, first, 10_000)).unwrap();
            let stats = store.spill_stats().unwrap();
            assert!(stats.table_bytes + stats.resident_bytes <= budget, "{stats:?}");
        }
        for bound in [300_000, 120_000, 77] {
            let seeds = random_seeds(&mut random, 900, bound as i64 / 3);
            for policy in [SamplingPolicy::Recent, SamplingPolicy::Uniform] {
                let expected = sample_at(&whole, bound, &seeds, policy).unwrap();
                assert_eq!(sample_at(&store, bound, &seeds, policy).unwrap(), expected);
            }
            let seeds = Seeds { nodes: &seeds.0, times: &seeds.1 };
            let (mut here, mut there) = (Layers::new(), Layers::new());
            let request = request(SamplingPolicy::Uniform);
            here.sample(store.view_at(EdgeId(bound)), seeds, &request, 2).unwrap();
            there.sample(whole.view_at(EdgeId(bound)), seeds, &request, 2).unwrap();
            assert_eq!(here.layers(), there.layers());
        }
        let keys = NodeDictionary::new();
        assert_eq!(store.digest(&keys).unwrap(), whole.digest(&keys).unwrap());
        let stats = store.spill_stats().unwrap();
        assert!(stats.table_bytes + stats.resident_bytes <= budget, "{stats:?}");
        assert!(stats.loads > 1_000 && stats.evictions > 1_000 && stats.failures == 0, "{stats:?}");
        let parts = store.stats().bytes;
        assert_eq!(parts.entries, bytes.entries);
        assert!(
            parts.on_disk >= parts.entries / 2 && parts.total() - parts.plan <= budget + 65_536,
            "{parts:?}"
        );
    }
}

/// One writer, eight readers, and what they do to one another: the store spills, shards are compacted because
/// nodes other than the seeds come and go, and every sample is compared with that of a store in memory.
#[test]
fn writer_compaction_spilling_and_eight_readers_agree() {
    let seed = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(20_261);
    eprintln!("SEED={seed}");
    let folder = tempfile::tempdir().unwrap();
    let file = SpillFile::create(folder.path(), "graph", EngineChoice::Auto).unwrap();
    let (whole, store) =
        (GraphStore::new(options()), GraphStore::with_budget(options(), 900_000, Box::new(file)));
    let (done, sampled) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let _end = scopeguard::guard((), |()| done.store(true, Ordering::Release));
        for reader in 0..8 {
            let (whole, store, done, sampled) = (&whole, &store, &done, &sampled);
            scope.spawn(move || {
                let mut random = Random(seed + 1 + reader);
                while !done.load(Ordering::Acquire) {
                    let bound = store.applied().0;
                    let bound = if random.chance(2) { bound } else { random.below(bound + 1) };
                    let seeds = random_seeds(&mut random, 300, bound as i64 / 3);
                    let policy = random.pick(&[SamplingPolicy::Recent, SamplingPolicy::Uniform]);
                    let expected = sample_at(whole, bound, &seeds, policy).unwrap();
                    assert_eq!(sample_at(store, bound, &seeds, policy).unwrap(), expected, "SEED={seed}");
                    sampled.fetch_add(300, Ordering::Relaxed);
                }
            });
        }
        let mut random = Random(seed);
        let mut first = 0;
        while first < 100_000 {
            let length = random.pick(&[1, 40, 700, 3_000]);
            let mut batch = edges(&mut random, first, length);
            // Nodes that are no seeds: edges among themselves, and their ends.
            for i in 0..length {
                let churn = (NODES + random.below(400)) as u32;
                if random.chance(3) {
                    (batch.src[i], batch.dst[i]) = (NodeId(churn), NodeId(churn ^ 1));
                }
                if random.chance(100) {
                    (batch.op[i], batch.src[i], batch.dst[i]) =
                        (Op::DeleteNode, NodeId(churn), NodeId(churn));
                }
            }
            // The store in memory is ahead, so that it knows whatever the other shows.
            whole.apply(&batch).unwrap();
            store.apply(&batch).unwrap();
            first += length as u64;
        }
    });
    let keys = NodeDictionary::new();
    assert_eq!(store.digest(&keys).unwrap(), whole.digest(&keys).unwrap());
    let stats = store.spill_stats().unwrap();
    eprintln!("{} seeds, {stats:?}", sampled.load(Ordering::Relaxed));
    assert!(sampled.load(Ordering::Relaxed) > 100_000 && stats.loads > 1_000 && stats.failures == 0);
}

#[test]
fn a_disk_that_fails_gives_errors_and_never_another_answer() {
    static UNREADABLE: AtomicBool = AtomicBool::new(false);
    static TORN: AtomicBool = AtomicBool::new(false);
    static FULL: AtomicBool = AtomicBool::new(false);
    let sick = Faulty::new(|operation| match operation.writes {
        true if FULL.load(Ordering::Acquire) => Fault::Fails(io::ErrorKind::StorageFull),
        false if UNREADABLE.load(Ordering::Acquire) => Fault::Fails(io::ErrorKind::Other),
        false if TORN.load(Ordering::Acquire) => Fault::Torn,
        _ => Fault::Works,
    });
    let budget = 700_000;
    let (whole, store) =
        (GraphStore::new(options()), GraphStore::with_budget(options(), budget, Box::new(sick)));
    let mut random = Random(5);
    let mut first = 0;
    let mut grow = |random: &mut Random| {
        let batch = edges(random, first, 20_000);
        whole.apply(&batch).unwrap();
        first += 20_000;
        batch
    };
    for _ in 0..3 {
        store.apply(&grow(&mut random)).unwrap();
    }
    let agree = |random: &mut Random| {
        let bound = store.applied().0;
        let seeds = random_seeds(random, 300, bound as i64 / 3);
        let (mut same, mut failed) = (0, 0);
        for policy in [SamplingPolicy::Recent, SamplingPolicy::Uniform] {
            match sample_at(&store, bound, &seeds, policy) {
                Ok(found) => {
                    assert_eq!(found, sample_at(&whole, bound, &seeds, policy).unwrap());
                    same += 1;
                }
                Err(error) => {
                    assert!(error.to_string().contains("the graph's entries"), "{error}");
                    failed += 1;
                }
            }
        }
        (same, failed)
    };
    assert_eq!(agree(&mut random), (2, 0));
    for trouble in [&UNREADABLE, &TORN] {
        trouble.store(true, Ordering::Release);
        let mut failures = 0;
        for _ in 0..20 {
            failures += agree(&mut random).1;
        }
        assert!(failures > 10);
        assert!(store.spill_stats().unwrap().failing.is_some());
        // A batch whose nodes are on disk cannot be taken in; once the disk is well, the same batch is.
        let batch = grow(&mut random);
        assert!(store.apply(&batch).is_err());
        assert!(store.applied() < batch.end());
        trouble.store(false, Ordering::Release);
        assert_eq!(store.apply(&batch).unwrap().end, batch.end());
        assert_eq!(agree(&mut random), (2, 0));
        assert_eq!(store.spill_stats().unwrap().failing, None, "the trouble is over");
    }
    FULL.store(true, Ordering::Release);
    for _ in 0..3 {
        store.apply(&grow(&mut random)).unwrap();
        assert_eq!(agree(&mut random), (2, 0), "a full disk costs memory, not results");
    }
    let stats = store.spill_stats().unwrap();
    assert!(stats.table_bytes + stats.resident_bytes > budget, "{stats:?}");
    assert!(stats.failing.unwrap().contains("writing"));
    FULL.store(false, Ordering::Release);
    let patience = Instant::now() + Duration::from_secs(30);
    while store.spill_stats().unwrap().failing.is_some() {
        assert!(Instant::now() < patience, "the disk is not tried again");
        store.apply(&grow(&mut random)).unwrap();
        std::thread::sleep(Duration::from_millis(100));
    }
    store.apply(&grow(&mut random)).unwrap();
    assert!(store.spill_stats().unwrap().resident_bytes <= budget);
    assert_eq!(agree(&mut random), (2, 0));
    let keys = NodeDictionary::new();
    assert_eq!(store.digest(&keys).unwrap(), whole.digest(&keys).unwrap());
}

/// A sample reads the same chunk several times: a read that fails once and then works must not leave a mixture.
#[test]
fn a_read_that_fails_is_an_error_or_makes_no_difference_whichever_it_is() {
    let failing = Arc::new(AtomicU64::new(u64::MAX));
    let number = Arc::clone(&failing);
    let disk = Faulty::new(move |operation| {
        let first = number.load(Ordering::Acquire);
        // Two in a row: what was read ahead, and the same on access.
        let fails = !operation.writes && (first..first.saturating_add(2)).contains(&operation.number);
        if fails { Fault::Fails(io::ErrorKind::Other) } else { Fault::Works }
    });
    let (whole, store) =
        (GraphStore::new(options()), GraphStore::with_budget(options(), 0, Box::new(disk.clone())));
    let mut random = Random(31);
    for first in (0..30_000).step_by(6_000) {
        let batch = edges(&mut random, first, 6_000);
        whole.apply(&batch).unwrap();
        store.apply(&batch).unwrap();
    }
    let mut failures = 0;
    // The bound lies in the middle, so that many blocks hold entries on both sides of it.
    for k in 0..150 {
        let seeds = random_seeds(&mut random, 40, 10_000);
        for policy in [SamplingPolicy::Recent, SamplingPolicy::Uniform] {
            failing.store(disk.operations().0 + k, Ordering::Release);
            match sample_at(&store, 14_000, &seeds, policy) {
                Ok(found) => assert_eq!(found, sample_at(&whole, 14_000, &seeds, policy).unwrap()),
                Err(error) => {
                    assert!(error.to_string().contains("the graph's entries"), "{error}");
                    failures += 1;
                }
            }
        }
    }
    assert!(failures > 50, "{failures}");
}
