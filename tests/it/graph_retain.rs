//! Old edges are released, and a reader in the order of the log sees the same before and after.

use std::sync::atomic::{AtomicBool, Ordering};

use evergraph::device::disk::{EngineChoice, SpillFile};
use evergraph::event::{EdgeBatch, EventTime, NodeId, Op};
use evergraph::graph::{GraphOptions, GraphStore, GraphView, Retention, RetentionBounds, RetentionClock};
use evergraph::sampler::{MessageFlowGraph, SampleRequest, SamplingPolicy, Seeds, sample};

use crate::faulty_pages::{Fault, Faulty};
use crate::graph_model::oracle::{Random, Record, batches, stream};
use crate::process::{Process, Start, log_of};

fn sample_at(
    view: GraphView<'_>,
    nodes: &[NodeId],
    times: &[EventTime],
    window: Option<i64>,
) -> Vec<MessageFlowGraph> {
    let samples = [SamplingPolicy::Recent, SamplingPolicy::Uniform].map(|policy| {
        let mut out = MessageFlowGraph::new();
        let request = SampleRequest { policy, fanout: 8, window, seed: 1, batch: 2, layer: 0 };
        sample(view, Seeds { nodes, times }, &request, &mut out).unwrap();
        out
    });
    samples.into()
}

/// Everything before `time` that may go.
fn release(store: &GraphStore, time: EventTime) {
    (0..).take_while(|&part| store.release_part(part, time).unwrap()).for_each(drop);
}

fn observe(clock: &mut RetentionClock, batch: &EdgeBatch) {
    let edges = (0..batch.len()).filter(|&i| batch.op[i] == Op::Edge);
    edges.for_each(|i| clock.observe(batch.id(i), batch.time[i]));
}

/// A clock that runs on, with late events, hubs and now and then a deletion.
fn running(random: &mut Random, length: u32) -> Vec<Record> {
    let record = |i: u32| match random.below(400) {
        0 => Record::DeleteNode { node: random.below(60) as u32 },
        1 => Record::DeleteEdge { src: i % 3, dst: random.below(50) as u32, until: i64::from(i) / 2 },
        chance => {
            let late = [0, 0, 0, 0, 10, 2_000][chance as usize % 6];
            let (src, dst) = (random.below(1 + u64::from(i % 3) * 30) as u32, random.below(50) as u32);
            Record::Edge { src, dst, time: i64::from(i) - random.below(late + 1) as i64 }
        }
    };
    (0..length).map(record).collect()
}

/// What a sample at `time` may contain, from a store that keeps everything.
fn expected(
    whole: GraphView<'_>,
    node: NodeId,
    time: EventTime,
    age: i64,
    kept: RetentionBounds,
) -> Vec<MessageFlowGraph> {
    let from = time.0.saturating_sub(age).max(kept.since.0);
    // With nothing in the window an unknown node takes its place.
    let node = if from < time.0 { node } else { NodeId(1_000) };
    sample_at(whole, &[node], &[time], Some(time.0.saturating_sub(from).max(0)))
}

#[test]
fn reads_in_the_order_of_the_log_do_not_notice_what_was_released() {
    let folder = tempfile::tempdir().unwrap();
    let mut released = [0, 0];
    for seed in 0..30 {
        let mut random = Random(seed);
        let records =
            if seed % 5 == 0 { stream(&mut random, 3_000, true) } else { running(&mut random, 9_000) };
        let options =
            GraphOptions { shards: random.pick(&[1, 4]), page_entries_max: random.pick(&[8, 64, 256]) };
        let retention =
            Retention { age: random.pick(&[1, 700, 3_000]), lateness: random.pick(&[0, 20, 500]) };
        let file = SpillFile::create(folder.path(), "graph", EngineChoice::Auto).unwrap();
        let spilled = GraphStore::with_budget(options, random.pick(&[0, 100_000]), Box::new(file));
        let whole = GraphStore::new(options);
        let stores = [GraphStore::new(options), GraphStore::new(options), spilled]
            .map(|store| store.with_retention(retention));
        let mut clock = RetentionClock::new(Some(retention));
        let batches = batches(&records, &[300]);
        // The writer is some batches ahead of the reader.
        let ahead = random.below(4) as usize;
        for (i, batch) in batches.iter().enumerate() {
            whole.apply(batch).unwrap();
            for store in &stores {
                store.apply(batch).unwrap();
            }
            let Some(read) = i.checked_sub(ahead).map(|i| &batches[i]) else { continue };
            let kept = clock.bounds();
            if random.chance(3) {
                stores[1..].iter().for_each(|store| release(store, kept.since));
            }
            let bound = read.end();
            for row in (0..read.len()).step_by(7) {
                let (node, time) = (read.dst[row], read.time[row]);
                let expected = expected(whole.view_at(bound), node, time, retention.age, kept);
                for (number, store) in stores.iter().enumerate() {
                    let found = sample_at(store.view_at(bound).keeping(kept.since), &[node], &[time], None);
                    assert_eq!(found, expected, "seed {seed}, batch {i}, store {number}");
                }
                let rows = expected.iter().flat_map(|sample| &sample.edges[sample.filled(0)]);
                assert!(rows.copied().all(|edge| edge >= kept.first), "seed {seed}: {kept:?}");
            }
            observe(&mut clock, read);
        }
        let stats = [&stores[1], &stores[2]].map(GraphStore::stats);
        assert_eq!(stats[0].expired_edges, stats[1].expired_edges, "seed {seed}");
        released[usize::from(seed % 5 == 0)] += stats[0].expired_edges;
    }
    assert!(released[1] > 1_000 && released[0] > 50_000, "{released:?}");
}

#[test]
fn memory_and_disk_of_what_is_too_old_are_given_back() {
    let folder = tempfile::tempdir().unwrap();
    let records: Vec<Record> =
        (0..60_000_u32).map(|i| Record::Edge { src: i % 3, dst: 3 + i % 50, time: i.into() }).collect();
    let options = GraphOptions { shards: 2, page_entries_max: 64 };
    let file = SpillFile::create(folder.path(), "graph", EngineChoice::Auto).unwrap();
    let retention = Retention { age: 4_000, lateness: 0 };
    let stores = [GraphStore::new(options), GraphStore::with_budget(options, 0, Box::new(file))];
    for store in stores.map(|store| store.with_retention(retention)) {
        let mut clock = RetentionClock::new(Some(retention));
        let mut most = 0;
        for batch in batches(&records, &[1_000]) {
            store.apply(&batch).unwrap();
            observe(&mut clock, &batch);
            release(&store, clock.bounds().since);
            let stats = store.stats();
            most = most.max(stats.bytes.entries + stats.bytes.slack);
            assert!(stats.edges >= 4_000.min(batch.end().0), "{stats:?}");
        }
        let stats = store.stats();
        assert_eq!(stats.edges + stats.expired_edges, 60_000);
        assert!(
            stats.edges < 8_000,
            "what is kept is the age and a part of a block for each node: {stats:?}"
        );
        assert!(most < 4 * 8_000 * 12, "{most} bytes for {} edges", stats.edges);
        if let Some(spill) = store.spill_stats() {
            assert!(spill.disk_bytes <= most && spill.disk_bytes > 0, "{spill:?}");
        }
        // Nothing of what stands beside younger edges in a block is seen.
        let now = EventTime(60_000);
        let found = sample_at(store.view(), &[NodeId(3)], &[now], None);
        assert!(
            found.iter().all(|sample| sample.times[sample.filled(0)].iter().all(|time| time.0 >= 56_000))
        );
        assert_eq!(sample_at(store.view(), &[NodeId(3)], &[EventTime(50_000)], None)[0].counts, [0]);
        release(&store, EventTime::MAX);
        let stats = store.stats();
        assert_eq!((stats.edges, stats.blocks, stats.directed_entries), (0, 0, 0));
    }
}

#[test]
fn a_disk_that_fails_puts_a_release_off_and_loses_nothing() {
    static FAILS: AtomicBool = AtomicBool::new(false);
    let disk = Faulty::new(|operation| match FAILS.load(Ordering::Acquire) && !operation.writes {
        true => Fault::Fails(std::io::ErrorKind::Other),
        false => Fault::Works,
    });
    let options = GraphOptions { shards: 1, page_entries_max: 16 };
    let retention = Retention { age: 2_000, lateness: 0 };
    let whole = GraphStore::new(options).with_retention(retention);
    let store = GraphStore::with_budget(options, 0, Box::new(disk)).with_retention(retention);
    let records = running(&mut Random(9), 20_000);
    for batch in batches(&records, &[1_000]) {
        whole.apply(&batch).unwrap();
        store.apply(&batch).unwrap();
    }
    FAILS.store(true, Ordering::Release);
    // Late enough that every list's last block has to be looked at.
    let bound = EventTime(19_900);
    let loads = || store.spill_stats().unwrap().loads;
    let before = loads();
    assert!(store.release_part(0, bound).is_err());
    assert_eq!((store.stats().expired_edges, loads()), (0, before));
    FAILS.store(false, Ordering::Release);
    release(&store, bound);
    assert!(store.stats().expired_edges > 9_000, "{:?}", store.stats());
    let kept = whole.view().keeping(bound);
    for node in (0..90).map(NodeId) {
        let times = [EventTime(20_000 - i64::from(node.0))];
        assert_eq!(sample_at(store.view(), &[node], &times, None), sample_at(kept, &[node], &times, None));
    }
}

/// A visit a moment, `from..from + 1,000`, as lines.
fn visits(from: u64) -> String {
    let line = |i: u64| {
        let (src, dst, late) = (i % 40, 40 + i * 7 % 60, if i.is_multiple_of(50) { 90 } else { 0 });
        format!("{{\"src\":{src},\"dst\":{dst},\"ts\":{},\"features\":[0.5,{}]}}", 100 + i - late, i % 9)
    };
    (from..from + 1_000).map(line).collect::<Vec<_>>().join("\n")
}

#[test]
fn a_daemon_with_a_retention_stays_bounded_and_goes_on_after_a_restart() {
    let data = tempfile::tempdir().unwrap();
    let start = || {
        let start = Start::in_dir(data.path()).set("graph.retention=3000").set("stream.allowed_lateness=100");
        let start = start.set("graph.shards=4").set("graph.page_entries_max=16").set("learner.train=false");
        start.set("stream.edge_feature_dimension=2").set("learner.batch_events=500")
    };
    let push = |process: &Process, events: std::ops::Range<u64>| {
        for from in events.step_by(1_000) {
            let (status, response) =
                process.post("/v1/events", "application/x-ndjson", &visits(from)).unwrap();
            assert_eq!(status, 200, "{response}");
        }
    };
    let bounded = |process: &Process, pushed: u64| {
        let edges = |status: &serde_json::Value| status["graph"]["edges"].as_u64().unwrap();
        let status = process.wait_until("learned and released", |status| {
            status["learner"]["applied_position"] == pushed && edges(status) < 6_000
        });
        assert!(edges(&status) >= 3_000, "{status:#}");
        let bytes = |part: &str| status["graph"]["bytes"][part].as_u64().unwrap();
        assert!(bytes("entries") + bytes("slack") < 4 * 6_000 * 12, "{status:#}");
        let expired = status["graph"]["expired_edges"].as_u64().unwrap();
        assert!(expired + 6_000 >= pushed, "{status:#}");
        let metrics = process.get("/metrics").unwrap().1;
        let metrics = metrics.as_str().unwrap();
        let line = metrics.lines().find(|line| line.starts_with("evergraph_graph_expired_edges_total "));
        assert!(line.unwrap().split(' ').next_back().unwrap().parse::<u64>().unwrap() >= expired, "{line:?}");
        // Nothing older is in a response, though its page may be there.
        let node = process.get("/v1/nodes/7?neighbors=1000").unwrap().1;
        let times = node["neighbors"].as_array().unwrap().iter().map(|edge| edge["time"].as_u64().unwrap());
        let times: Vec<u64> = times.collect();
        assert!(times.len() > 60 && times.iter().all(|&time| time + 3_000 > pushed + 90), "{times:?}");
        for at in ["", ",\"at\":1000", ",\"at\":20000"] {
            let body = format!("{{\"nodes\":[7,50]{at}}}");
            let (status, response) = process.post("/v1/embeddings", "application/json", &body).unwrap();
            assert_eq!(status, 200, "{response}");
        }
    };
    let process = start().ready();
    push(&process, 0..30_000);
    bounded(&process, 30_000);
    assert!(process.terminate().success());
    let process = start().set("memory.graph_bytes_max=1048576").set("memory.rows_bytes_max=1048576").ready();
    let edges = process.status()["graph"]["edges"].as_u64().unwrap();
    assert!(edges < 6_000, "the replay kept {edges} edges");
    bounded(&process, 30_000);
    push(&process, 30_000..50_000);
    bounded(&process, 50_000);
    assert!(process.terminate().success());
    assert_eq!(log_of(data.path())["edges"], 50_000, "the log keeps them all");
}
