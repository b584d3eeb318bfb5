//! The loop on a disk in memory: its replies, and what is in the log and the index after it.

#![allow(clippy::unwrap_used)]

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, bounded, unbounded};
use proptest::prelude::*;

use super::*;
use crate::device::disk::tests::faulty::{Fault, Faulty};
use crate::event::{
    EdgeBatch, EdgeEvent, EdgeId, Event, EventBatch, EventTime, Incoming, NodeId, NodeKey, SourceRange,
};
use crate::feature::FeatureStore;
use crate::graph::{GraphOptions, GraphStore, Keeping, RetentionBounds};
use crate::log::tests::faulty::MemoryDisk;
use crate::log::{Frame, LogOptions};

mod limits;
mod snapshots;

type Outcome = Result<Receipt, SubmitError>;

fn empty_index() -> Index {
    let graph = GraphOptions { shards: 2, page_entries_max: 8 };
    Index::new(GraphStore::new(graph), FeatureStore::new(1), FeatureStore::new(1), 100)
}

/// Takes what the log has behind the index into it.
fn read(log: &Log, index: &mut Index) {
    let keeping = Keeping::Within(RetentionBounds::default());
    assert!(replay(log, index, keeping, |_| ControlFlow::Continue(())).unwrap().is_continue());
}

fn appender(disk: &MemoryDisk) -> Appender {
    let options = LogOptions { dir: "log".into(), segment_bytes: 1 << 20 };
    let (log, _) = Log::open_with(options, disk.storage()).unwrap();
    let mut index = empty_index();
    read(&log, &mut index);
    let options = AppenderOptions {
        commit_events_max: 1_000,
        commit_bytes_max: 5_000,
        allowed_lateness: Some(0),
        nodes_max: 0,
    };
    Appender::new(log, index, Arc::new(Progress::new()), Arc::default(), Metrics::new(), options)
}

fn edge(src: &str, dst: &str, time: i64) -> Incoming {
    Incoming::new(Event::Edge(EdgeEvent {
        src: NodeKey::from_text(src),
        dst: NodeKey::from_text(dst),
        time: EventTime(time),
        edge_type: None,
        features: Vec::new(),
        label: None,
    }))
}

fn batch(events: Vec<Incoming>) -> EventBatch {
    EventBatch { events, ..EventBatch::default() }
}

fn submission(batch: EventBatch, replies: &Sender<Outcome>) -> Submission {
    let replies = replies.clone();
    Submission { batch, reply: Some(Box::new(move |reply| drop(replies.send(reply)))) }
}

fn submit(appender: &mut Appender, batches: impl IntoIterator<Item = EventBatch>) -> Vec<Outcome> {
    let (sender, replies) = unbounded();
    let group = batches.into_iter().map(|batch| submission(batch, &sender)).collect();
    appender.write(group, &|| ());
    drop(sender);
    replies.iter().collect()
}

fn stored(first: u64, accepted: u64) -> Outcome {
    let (first, end) = (EdgeId(first), EdgeId(first + accepted));
    Ok(Receipt { first, end, accepted, duplicates: 0 })
}

#[test]
fn a_batch_that_no_log_could_hold_is_refused_alone_and_poisons_nothing() {
    let disk = MemoryDisk::new();
    let mut appender = appender(&disk);
    appender.log.limit_payloads(1_000);
    let long = "x".repeat(2_000);
    let plain = |time| batch(vec![edge("a", "b", time)]);
    let replies = submit(&mut appender, [plain(1), batch(vec![edge(&long, "b", 2)]), plain(3)]);
    // The refused one gets its reply first, because the others wait for the disk.
    assert!(
        matches!(&replies[0], Err(SubmitError::Unstorable { events, detail })
            if events.is_empty() && detail.contains("in parts")),
        "{replies:?}"
    );
    assert_eq!(replies[1..], [stored(0, 1), stored(1, 1)]);
    assert_eq!(appender.status.state(), LogState::Writable);
    assert_eq!(submit(&mut appender, [plain(4)]), [stored(2, 1)]);
    let times: Vec<i64> = std::iter::from_fn({
        let mut reader = appender.log.reader(EdgeId(0));
        move || reader.next_frame().unwrap()
    })
    .flat_map(|frame| frame.batch.time)
    .map(|time| time.0)
    .collect();
    assert_eq!(times, [1, 3, 4]);
}

#[test]
fn a_full_graph_refuses_edges_before_they_are_durable() {
    let disk = MemoryDisk::new();
    let mut appender = appender(&disk);
    let graph = GraphStore::new(GraphOptions { shards: 1, page_entries_max: 64 }).with_shard_units(1 << 17);
    appender.index = Index::new(graph, FeatureStore::new(1), FeatureStore::new(1), 100);
    let mut stored = 0;
    let refused = loop {
        let edges = (0..500).map(|i| edge(&format!("u{}", i % 9), &format!("i{}", i % 7), stored + i));
        match submit(&mut appender, [batch(edges.collect())]).remove(0) {
            Ok(receipt) => stored += receipt.accepted as i64,
            Err(refused) => break refused,
        }
    };
    assert!(
        matches!(&refused, SubmitError::Failed { detail } if detail.contains("graph.shards")),
        "{refused}"
    );
    assert!(stored > 10_000 && !appender.behind, "{stored}");
    assert_eq!((appender.log.durable_end().0 as i64, appender.index.end().0 as i64), (stored, stored));
    let deletion = Incoming::new(Event::DeleteNode { key: NodeKey::from_text("u3") });
    assert!(submit(&mut appender, [batch(vec![deletion])])[0].is_ok(), "deletions make room");
}

#[test]
fn a_refused_group_leaves_no_names_and_the_next_one_gets_the_same_ids() {
    let disk = MemoryDisk::new();
    let mut appender = appender(&disk);
    let typed = |round: i64, i: i64| {
        let mut incoming = edge(&format!("u{round}"), &format!("i{i}"), i);
        let Event::Edge(edge) = &mut incoming.event else { unreachable!() };
        edge.edge_type = Some(format!("t{i}").into());
        incoming
    };
    submit(&mut appender, [batch(vec![typed(0, 0)])]);
    disk.set_capacity(Some(0));
    for round in 1..50 {
        let replies = submit(&mut appender, (1..4).map(|i| batch(vec![typed(round, i)])));
        assert!(replies.iter().all(|reply| matches!(reply, Err(SubmitError::DiskFull { .. }))));
    }
    assert_eq!((appender.index.stores.keys.len(), appender.index.stores.types.len()), (2, 1));
    disk.set_capacity(None);
    let replies = submit(&mut appender, [batch(vec![typed(99, 1), typed(99, 0)]), batch(vec![typed(99, 2)])]);
    assert_eq!(replies, [stored(1, 2), stored(3, 1)]);
    let names = |appender: &Appender| {
        (0..appender.index.stores.keys.len() as u32)
            .map(|id| appender.index.stores.keys.key(crate::event::NodeId(id)).unwrap().to_string())
            .collect::<Vec<_>>()
    };
    assert_eq!(names(&appender), ["u0", "i0", "u99", "i1", "i2"]);
    assert_eq!(appender.index.stores.types.lookup("t2"), Some(3));
    let before = appender.index.stores.graph.digest(&appender.index.stores.keys).unwrap();
    drop(appender);
    let again = self::appender(&disk);
    assert_eq!((names(&again).len(), again.index.stores.types.len()), (5, 3));
    assert_eq!(
        again.index.stores.graph.digest(&again.index.stores.keys).unwrap(),
        before,
        "a replay gives the same ids"
    );
}

#[test]
fn whoever_gets_a_reply_finds_the_state_that_led_to_it() {
    let disk = MemoryDisk::new();
    let mut appender = appender(&disk);
    let mut state_at_reply = |capacity| {
        disk.set_capacity(capacity);
        let (sender, states) = unbounded();
        let status = Arc::clone(&appender.status);
        let reply = Some(Box::new(move |_: Outcome| drop(sender.send(status.state()))) as _);
        appender.write(vec![Submission { batch: batch(vec![edge("a", "b", 1)]), reply }], &|| ());
        states.recv().unwrap()
    };
    assert!(matches!(state_at_reply(Some(0)), LogState::Full(_)));
    assert_eq!(state_at_reply(None), LogState::Writable);
}

#[test]
fn a_deletion_of_what_never_was_is_not_called_accepted() {
    let disk = MemoryDisk::new();
    let mut appender = appender(&disk);
    let delete = |key: &str| Incoming::new(Event::DeleteNode { key: NodeKey::from_text(key) });
    let replies = submit(&mut appender, [batch(vec![edge("a", "b", 1), delete("a"), delete("nobody")])]);
    assert_eq!(replies, [stored(0, 2)], "a node of the same group is known");
}

#[test]
fn a_deletion_that_found_nothing_deletes_nothing_when_it_comes_again() {
    let disk = MemoryDisk::new();
    let mut appender = appender(&disk);
    let deletions = || {
        let [src, dst] = ["a", "b"].map(NodeKey::from_text);
        let events = [Event::DeleteNode { key: src.clone() }, Event::DeleteEdge { src, dst, until: None }];
        let keyed = |(key, event)| Incoming { idempotency: Some(key), ..Incoming::new(event) };
        batch((1..).zip(events).map(keyed).collect())
    };
    assert_eq!(submit(&mut appender, [deletions()]), [stored(0, 2)], "their keys are");
    assert_eq!(appender.index.stores.keys.len(), 0, "nobody has a name for it");
    assert_eq!(submit(&mut appender, [batch(vec![edge("a", "b", 1)])]), [stored(2, 1)]);
    let again = |appender: &mut Appender| {
        let receipt = Receipt { first: EdgeId(3), end: EdgeId(3), accepted: 0, duplicates: 2 };
        assert_eq!(submit(appender, [deletions()]), [Ok(receipt)]);
        assert_eq!(appender.index.stores.graph.stats().edges, 1);
    };
    again(&mut appender);
    drop(appender);
    again(&mut self::appender(&disk));
}

/// Everything that an index holds.
#[derive(Debug, PartialEq)]
struct Content {
    /// By id, the key.
    keys: Vec<Option<NodeKey>>,
    /// By key, the id.
    found: Vec<Option<NodeId>>,
    edge_rows: Vec<f32>,
    node_rows: Vec<f32>,
    digest: u128,
}

impl Content {
    fn of(index: &Index) -> Self {
        let ids = 0..index.stores.keys.len() as u32;
        let rows = |store: &FeatureStore, count: u64| {
            let mut rows = vec![0.0; count as usize];
            store.gather(&(0..count).collect::<Vec<_>>(), &mut rows).unwrap();
            rows
        };
        Self {
            keys: ids.map(|id| index.stores.keys.key(NodeId(id))).collect(),
            found: (0..6).map(|i| index.stores.keys.lookup(&NodeKey::from_text(&format!("k{i}")))).collect(),
            edge_rows: rows(&index.stores.edge_features, index.end().0),
            node_rows: rows(&index.stores.node_features, index.stores.keys.len() as u64),
            digest: index.stores.graph.digest(&index.stores.keys).unwrap(),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn names_of_deleted_nodes_are_names_of_new_nodes_and_a_replay_agrees(
        events in prop::collection::vec((0_u8..8, 0_u8..6, 0_u8..6, 1_u8..9, 1_u8..9), 1..120),
    ) {
        let disk = MemoryDisk::new();
        let mut appender = appender(&disk);
        // By key its id; by position the value of an edge's row, if the edge lives; by id that of a node's row.
        let (mut ids, mut next): (HashMap<String, usize>, usize) = (HashMap::new(), 0);
        let (mut edges, mut nodes) = (Vec::<Option<(usize, usize, f32)>>::new(), Vec::new());
        let mut id_of = |ids: &mut HashMap<String, usize>, nodes: &mut Vec<f32>, key: &str| {
            *ids.entry(key.to_owned()).or_insert_with(|| {
                nodes.push(0.0);
                next += 1;
                next - 1
            })
        };
        let (mut group, mut frame) = (Vec::new(), Vec::new());
        for (what, src, dst, value, cut) in events {
            let (src, dst, value) = (format!("k{src}"), format!("k{dst}"), f32::from(value));
            frame.push(match what {
                0..=1 => {
                    if let Some(id) = ids.remove(&src) {
                        nodes[id] = 0.0;
                        edges.iter_mut().for_each(|edge| *edge = edge.filter(|e| e.0 != id && e.1 != id));
                        edges.push(None);
                    }
                    Incoming::new(Event::DeleteNode { key: NodeKey::from_text(&src) })
                }
                2 => {
                    let id = id_of(&mut ids, &mut nodes, &src);
                    nodes[id] = value;
                    edges.push(None);
                    let (key, time) = (NodeKey::from_text(&src), EventTime(1));
                    Incoming::new(Event::Node { key, time, features: vec![value] })
                }
                _ => {
                    let (from, to) = (id_of(&mut ids, &mut nodes, &src), id_of(&mut ids, &mut nodes, &dst));
                    edges.push(Some((from, to, value)));
                    let mut incoming = edge(&src, &dst, 1);
                    let Event::Edge(edge) = &mut incoming.event else { unreachable!() };
                    edge.features = vec![value];
                    incoming
                }
            });
            if cut < 4 {
                group.push(batch(std::mem::take(&mut frame)));
            }
            if cut == 1 {
                prop_assert!(submit(&mut appender, std::mem::take(&mut group)).iter().all(Result::is_ok));
            }
        }
        group.push(batch(frame));
        prop_assert!(submit(&mut appender, group).iter().all(Result::is_ok));
        let live = Content::of(&appender.index);
        drop(appender);
        let mut keys = vec![None; nodes.len()];
        ids.iter().for_each(|(key, &id)| keys[id] = Some(NodeKey::from_text(key)));
        let found = (0..6).map(|i| ids.get(&format!("k{i}")).map(|&id| NodeId(id as u32))).collect();
        let edge_rows = edges.iter().map(|edge| edge.map_or(0.0, |edge| edge.2)).collect();
        let expected = Content { keys, found, edge_rows, node_rows: nodes, digest: live.digest };
        prop_assert_eq!(&live, &expected);
        prop_assert_eq!(&Content::of(&self::appender(&disk).index), &live);
    }
}

#[test]
fn what_was_deleted_is_overwritten_part_by_part_and_not_at_every_deletion() {
    let (disk, pages) = (MemoryDisk::new(), Faulty::new(|_| Fault::Works));
    let mut appender = appender(&disk);
    let options = GraphOptions { shards: 2, page_entries_max: 64 };
    appender.index.stores.graph = Arc::new(GraphStore::with_budget(options, 0, Box::new(pages.clone())));
    // Node 1,700 is nobody's number but its own: as a neighbor it stands in four bytes.
    let names: Vec<String> = (0..2_000).map(|i| format!("n{i}")).collect();
    let mut events: Vec<Incoming> = (0..1_000).map(|i| edge(&names[2 * i], &names[2 * i + 1], 0)).collect();
    events.extend((0..1_000).map(|i| edge(&names[i % 300], &names[1_700], 1_000_000 + i as i64)));
    for events in events.chunks(100) {
        submit(&mut appender, [batch(events.to_vec())]);
    }
    let trace = 1_700_u32.to_le_bytes();
    appender.scrubbing.turn(&mut appender.index);
    assert!(pages.contains(&trace), "nothing was deleted yet");
    let delete = |name: &str| Incoming::new(Event::DeleteNode { key: NodeKey::from_text(name) });
    submit(&mut appender, [batch(vec![delete(&names[1_700])])]);
    let mut turns = 0;
    while appender.index.has_traces || appender.scrubbing.is_under_way() {
        std::thread::sleep(appender.scrubbing.not_before.saturating_duration_since(Instant::now()));
        appender.scrubbing.turn(&mut appender.index);
        turns += 1;
    }
    assert_eq!((turns, pages.contains(&trace)), (3, false), "a turn for each shard and one for the disk");
    submit(&mut appender, [batch(vec![delete(&names[0])])]);
    appender.scrubbing.turn(&mut appender.index);
    assert!(appender.index.has_traces && !appender.scrubbing.is_under_way());
    assert!(appender.scrubbing.not_before > Instant::now() + scrub::PAUSE / 2);
}

#[test]
fn a_batch_behind_a_gap_is_refused_unless_the_source_may_leave_one() {
    let disk = MemoryDisk::new();
    let mut appender = appender(&disk);
    let run = |from: i64, to: i64| EventBatch {
        events: (from..to).map(|i| edge("a", "b", i)).collect(),
        offsets: (from..to).collect(),
        ranges: vec![SourceRange { source: "kafka:t".into(), partition: 3, from, to, mark: None }],
        ..EventBatch::default()
    };
    let replies = submit(&mut appender, [run(5, 7), run(9, 10)]);
    let detail_expected = "offsets 7..9 of kafka:t, partition 3, are missing";
    assert!(
        matches!(&replies[0], Err(SubmitError::Failed { detail }) if detail.contains(detail_expected)),
        "{replies:?}"
    );
    assert_eq!(replies[1], stored(0, 2), "a source that is not known begins anywhere");
    assert!(submit(&mut appender, [run(8, 9)])[0].is_err());
    let overlap = submit(&mut appender, [run(6, 9)]);
    assert_eq!(overlap[0].as_ref().map(|receipt| (receipt.accepted, receipt.duplicates)), Ok((2, 1)));
    let lost = EventBatch { gap_allowed: true, ..run(20, 21) };
    assert_eq!(submit(&mut appender, [lost, run(21, 22)]), [stored(4, 1), stored(5, 1)]);
}

#[test]
fn a_commit_ends_at_its_bytes_and_the_rest_of_the_group_follows() {
    let disk = MemoryDisk::new();
    let mut appender = appender(&disk);
    let long = |i: i64| batch(vec![edge(&format!("{i}{}", "x".repeat(2_000)), "b", i)]);
    let replies = submit(&mut appender, (0..7).map(long));
    assert_eq!(replies, (0..7).map(|i| stored(i, 1)).collect::<Vec<_>>());
    assert_eq!(appender.metrics.log.commit_duration.get_sample_count(), 3, "three batches a commit");
    let end = appender.index.end();
    disk.set_capacity(Some(0));
    let replies = submit(&mut appender, (7..14).map(long));
    assert!(replies.iter().all(|reply| matches!(reply, Err(SubmitError::DiskFull { .. }))), "{replies:?}");
    assert_eq!((replies.len(), appender.index.end()), (7, end));
}

#[test]
fn a_panic_leaves_no_batch_without_a_reply_and_no_log_marked_writable() {
    let (queue, waiting) = bounded(8);
    let (sender, replies) = unbounded();
    (0..3).for_each(|i| queue.send(submission(batch(vec![edge("a", "b", i)]), &sender)).unwrap());
    let (appender, stop) = (appender(&MemoryDisk::new()), AtomicBool::new(false));
    let status = appender.status.clone();
    let run = std::panic::AssertUnwindSafe(|| appender.run(&waiting, &stop, || panic!("on purpose")));
    assert!(std::panic::catch_unwind(run).is_err());
    drop(sender);
    assert_eq!(replies.iter().collect::<Vec<_>>(), vec![Err(SubmitError::ShuttingDown); 3]);
    let fault = status.state().fault().unwrap();
    assert!(fault.contains("panicked") && fault.contains("restart the daemon"), "{fault}");
}

#[test]
fn a_frame_of_the_leader_that_can_never_be_written_ends_the_loop() {
    let (sender, frames) = unbounded();
    let (appender, stop) = (appender(&MemoryDisk::new()), AtomicBool::new(false));
    let status = appender.status.clone();
    let mut batch = EdgeBatch { first: EdgeId(5), ..EdgeBatch::default() };
    batch.push_edge(NodeId(0), NodeId(0), EventTime(1));
    sender.send(vec![Frame { batch, ..Frame::default() }]).unwrap();
    let ended = appender.replicate(&frames, &stop, || ()).unwrap_err();
    assert!(ended.contains("empty data.dir"), "{ended}");
    let fault = status.state().fault().unwrap();
    assert!(fault.contains("position 5 was appended where position 0 is next"), "{fault}");
    assert!(matches!(status.state(), LogState::Ended(_)), "{fault}");
    assert!(fault.contains("empty data.dir") && !fault.contains("restart"), "what helps is said: {fault}");
}

#[test]
fn the_newest_reason_is_shown_and_an_end_is_the_last() {
    let appender = appender(&MemoryDisk::new());
    let set = |state: LogState| {
        appender.set_state(state);
        appender.status.state()
    };
    for state in [LogState::Failing("one".into()), LogState::Failing("two".into()), LogState::Writable] {
        assert_eq!(set(state.clone()), state);
    }
    let ended = set(LogState::Ended("for good".into()));
    assert_eq!(set(LogState::Failing("three".into())), ended);
    assert_eq!(set(LogState::Writable), ended);
}

#[test]
fn a_stop_ends_the_loop_while_batches_keep_coming_and_every_batch_gets_a_reply() {
    let (queue, waiting): (_, Receiver<Submission>) = bounded(8);
    let (sender, replies) = unbounded();
    let (stop, ended) = (AtomicBool::new(false), AtomicBool::new(false));
    let disk = MemoryDisk::new();
    let mut sent = 0;
    std::thread::scope(|scope| {
        let appender = appender(&disk);
        let running = scope.spawn(|| {
            appender.run(&waiting, &stop, || {});
            ended.store(true, Ordering::Release);
        });
        let started = Instant::now();
        while !ended.load(Ordering::Acquire) {
            assert!(started.elapsed() < Duration::from_secs(20), "the loop did not end");
            stop.store(started.elapsed() > Duration::from_millis(50), Ordering::Release);
            let next = submission(batch(vec![edge("a", "b", sent)]), &sender);
            if queue.send_timeout(next, Duration::from_millis(20)).is_ok() {
                sent += 1;
            }
        }
        running.join().unwrap();
    });
    // What was queued between the last reply and this line gets its reply when the queue is dropped.
    drop(RefuseTheRest(&waiting));
    drop(sender);
    let replies: Vec<Outcome> = replies.iter().collect();
    assert_eq!(replies.len() as i64, sent);
    let stored = replies.iter().filter(|reply| reply.is_ok()).count() as u64;
    assert!(stored > 0);
    let refused = replies.iter().filter(|reply| **reply == Err(SubmitError::ShuttingDown)).count() as u64;
    assert_eq!(stored + refused, sent.cast_unsigned());
    assert_eq!(appender(&disk).log.end(), EdgeId(stored), "what was acknowledged is in the log");
}
