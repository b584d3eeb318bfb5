//! The graph store and the sampler against an oracle: a plain list of edges, searched from end to end.
//!
//! Random streams with ties, self loops, late events, hubs, the ends of the time range, deletions, batch
//! cuts, page sizes and view bounds. A failing case prints its seed; `SEED=n` runs that one alone.

pub(crate) mod oracle;

use std::collections::{BTreeMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};

use evergraph::device::disk::{EngineChoice, SpillFile};
use evergraph::event::{EdgeId, EventTime, NodeId, NodeKey, Op};
use evergraph::graph::{Applied, GraphOptions, GraphStore, NodeDictionary};
use evergraph::sampler::{MessageFlowGraph, SampleRequest, SamplingPolicy, Seeds, sample};
use oracle::{
    Oracle, Random, Record, batch, batches, compare_accounts, compare_samples, random_seeds, request, stream,
};
use proptest::prelude::*;

fn one_case(seed: u64) {
    let mut random = Random(seed);
    let length = random.pick(&[0, 1, 30, 300, 1_500]);
    let records = stream(&mut random, length, true);
    let cuts: Vec<usize> = (0..20).map(|_| random.pick(&[1, 2, 7, 100, 700])).collect();
    let options =
        GraphOptions { shards: random.pick(&[1, 4, 16]), page_entries_max: random.pick(&[1, 2, 8, 64, 256]) };
    let folder = tempfile::tempdir().unwrap();
    let store = if random.chance(2) {
        GraphStore::new(options)
    } else {
        let file = SpillFile::create(folder.path(), "graph", EngineChoice::Auto).unwrap();
        GraphStore::with_budget(options, random.pick(&[0, 60_000]), Box::new(file))
    };
    let mut oracle = Oracle::default();
    let batches = batches(&records, &cuts);
    let (mut records, mut removed, mut pushed) = (records.iter(), Vec::new(), HashSet::new());
    for (i, batch) in batches.iter().enumerate() {
        let (late, deleted) = (oracle.late, oracle.deleted);
        records.by_ref().take(batch.len()).for_each(|&record| oracle.apply(record));
        let applied = store
            .apply_reporting_removed(batch, &mut |edges| removed.extend(edges.iter().map(|edge| edge.0)))
            .unwrap();
        let expected = Applied {
            end: batch.end(),
            edges: batch.op.iter().filter(|&&op| op == Op::Edge).count() as u64,
            late_edges: oracle.late - late,
            deleted_edges: oracle.deleted - deleted,
            skipped: 0,
        };
        assert_eq!(applied, expected);
        let edges = (0..batch.len()).filter(|&i| batch.op[i] == Op::Edge);
        pushed.extend(edges.map(|i| batch.id(i).0));
        if i % 40 != 0 && i + 1 != batches.len() {
            continue;
        }
        let (nodes, times) = random_seeds(&mut random, &oracle, 40);
        for bound in [u64::MAX, oracle.next, random.below(oracle.next + 1), 0] {
            let fanout = random.pick(&[0, 1, 3, 10, 400]);
            let window = random.pick(&[None, Some(0), Some(10), Some(1 << 34), Some(i64::MAX)]);
            compare_samples(&oracle, store.view_at(EdgeId(bound)), &nodes, &times, fanout, window);
        }
        let ids: Vec<u32> = nodes.iter().map(|node| node.0).collect();
        compare_accounts(&oracle, &store, &ids);
    }
    oracle.edges.iter().for_each(|edge| assert!(pushed.remove(&edge.id)));
    let mut gone: Vec<u64> = pushed.into_iter().collect();
    gone.sort_unstable();
    removed.sort_unstable();
    assert_eq!(removed, gone, "every removed edge was reported, once");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_streams_agree_with_the_oracle(seed in any::<u64>()) {
        let seed = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(seed);
        one_case(seed);
    }
}

#[test]
fn a_hub_of_many_pages_with_late_events_and_deletions() {
    for seed in 0..4 {
        let mut random = Random(seed);
        let mut records = Vec::new();
        for i in 0..6_000_i64 {
            let late = if random.chance(10) { random.below(4_000) as i64 } else { 0 };
            let other = random.below(50) as u32;
            let (src, dst) = if random.chance(2) { (0, other) } else { (other, 0) };
            records.push(Record::Edge { src, dst, time: i / 3 - late });
            if i % 1_500 == 1_499 {
                records.push(Record::DeleteEdge { src: 0, dst: other, until: i / 6 });
                records.push(Record::DeleteNode { node: (other + 1) % 50 + 1 });
            }
        }
        let store = GraphStore::new(GraphOptions { shards: 2, page_entries_max: 256 });
        let mut oracle = Oracle::default();
        records.iter().for_each(|&record| oracle.apply(record));
        batches(&records, &[600]).iter().for_each(|batch| {
            store.apply(batch).unwrap();
        });
        assert!(store.stats().blocks > 60, "{:?}", store.stats());
        let (nodes, times) = random_seeds(&mut random, &oracle, 60);
        for bound in [u64::MAX, 5_000, 600, 3] {
            for window in [None, Some(300)] {
                let view = store.view_at(EdgeId(bound));
                compare_samples(&oracle, view, &nodes, &times, 10, window);
                compare_samples(&oracle, view, &nodes, &times, 1_000, window);
            }
        }
        compare_accounts(&oracle, &store, &(0..50).collect::<Vec<u32>>());
    }
}

#[test]
fn uniform_sampling_is_uniform_over_edges_and_over_sets() {
    // 40 edges over several pages of which view and window leave 25; 5 drawn of them.
    let records: Vec<Record> =
        (0..40).map(|i| Record::Edge { src: 0, dst: i + 1, time: i64::from(i) }).collect();
    let store = GraphStore::new(GraphOptions { shards: 1, page_entries_max: 8 });
    store.apply(&batch(0, &records)).unwrap();
    let rounds = 20_000_u64;
    for (bound, before, window) in [(40, 35, Some(25)), (25, 1_000, None)] {
        let mut singles: BTreeMap<u32, u64> = BTreeMap::new();
        let mut pairs: BTreeMap<(u32, u32), u64> = BTreeMap::new();
        let mut out = MessageFlowGraph::new();
        let seeds = Seeds { nodes: &[NodeId(0); 4], times: &[EventTime(before); 4] };
        for batch in 0..rounds / 4 {
            let request = SampleRequest { batch, ..request(SamplingPolicy::Uniform, 5, window) };
            sample(store.view_at(EdgeId(bound)), seeds, &request, &mut out).unwrap();
            for seed in 0..4 {
                let drawn = &out.neighbors[out.filled(seed)];
                assert_eq!(drawn.len(), 5);
                drawn.iter().for_each(|node| *singles.entry(node.0).or_default() += 1);
                *pairs.entry((drawn[0].0, drawn[4].0)).or_default() += 1;
            }
        }
        assert_eq!(singles.len(), 25, "every candidate is drawn: {singles:?}");
        let expected = rounds as f64 * 5.0 / 25.0;
        // Draws without replacement vary less than independent ones: by a factor of 1 - 5/25.
        let chi_square: f64 =
            singles.values().map(|&n| (n as f64 - expected).powi(2) / expected / (1.0 - 5.0 / 25.0)).sum();
        // 24 degrees of freedom: 60 is exceeded less than once in ten thousand.
        assert!(chi_square < 60.0, "{chi_square}: {singles:?}");
        // Newest and oldest of a set drawn, g places apart: (g - 1 choose 3) sets of (25 choose 5).
        let gaps = |gap: u32| {
            let sets = u64::from(gap.saturating_sub(1) * gap.saturating_sub(2) * gap.saturating_sub(3) / 6);
            (u64::from(25 - gap) * sets) as f64 * rounds as f64 / 53_130.0
        };
        let mut chi_square = 0.0;
        for gap in 8..=24 {
            let found: u64 = pairs.iter().filter(|((new, old), _)| new - old == gap).map(|(_, n)| n).sum();
            chi_square += (found as f64 - gaps(gap)).powi(2) / gaps(gap);
        }
        assert!(chi_square < 50.0, "{chi_square}");
    }
}

#[test]
fn samples_do_not_depend_on_other_seeds_or_on_threads() {
    let mut random = Random(5);
    let records = stream(&mut random, 3_000, false);
    let store = GraphStore::new(GraphOptions::default());
    store.apply(&batch(0, &records)).unwrap();
    let mut oracle = Oracle::default();
    records.iter().for_each(|&record| oracle.apply(record));
    let (nodes, times) = random_seeds(&mut random, &oracle, 500);
    let run = || {
        let mut out = MessageFlowGraph::new();
        let seeds = Seeds { nodes: &nodes, times: &times };
        sample(store.view(), seeds, &request(SamplingPolicy::Uniform, 7, None), &mut out).unwrap();
        out
    };
    let expected = run();
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(run)).collect();
        for thread in threads {
            assert_eq!(thread.join().unwrap(), expected);
        }
    });
    for threads in [1, 3] {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        assert_eq!(pool.install(run), expected, "{threads} threads");
    }
}

#[test]
fn large_batches_are_applied_by_many_threads_as_by_one_while_many_read() {
    let mut random = Random(77);
    let records = stream(&mut random, 60_000, false);
    let mut oracle = Oracle::default();
    records.iter().take(2_000).for_each(|&record| oracle.apply(record));
    let (nodes, times) = random_seeds(&mut random, &oracle, 600);
    let at = |store: &GraphStore, bound: u64| {
        let mut out = MessageFlowGraph::new();
        let seeds = Seeds { nodes: &nodes, times: &times };
        sample(store.view_at(EdgeId(bound)), seeds, &request(SamplingPolicy::Uniform, 7, None), &mut out)
            .unwrap();
        out
    };
    let small = GraphStore::new(GraphOptions { shards: 16, page_entries_max: 64 });
    batches(&records, &[500]).iter().for_each(|batch| {
        small.apply(batch).unwrap();
    });
    let large = GraphStore::new(GraphOptions { shards: 16, page_entries_max: 64 });
    let pool = rayon::ThreadPoolBuilder::new().num_threads(3).build().unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _end = scopeguard::guard((), |()| done.store(true, Ordering::Release));
        for _ in 0..3 {
            scope.spawn(|| {
                while !done.load(Ordering::Acquire) {
                    let bound = large.applied().0;
                    assert_eq!(at(&large, bound), at(&small, bound), "below {bound}");
                }
            });
        }
        pool.install(|| {
            batches(&records, &[15_000]).iter().for_each(|batch| {
                large.apply(batch).unwrap();
            })
        });
    });
    assert_eq!(at(&large, 60_000), at(&small, 60_000));
    let keys = NodeDictionary::new();
    assert_eq!(large.digest(&keys).unwrap(), small.digest(&keys).unwrap());
    assert_eq!(large.stats().directed_entries, small.stats().directed_entries);
}

/// Sizes of pages that are compared, the default first.
const PAGES: [usize; 5] = [256, 1, 8, 32, 4_096];

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_size_of_a_page_changes_no_sample(seed in any::<u64>()) {
        let mut random = Random(seed);
        let records = stream(&mut random, 2_500, true);
        let cut = random.pick(&[1, 10, 200, 2_500]);
        let store = |page_entries_max| GraphStore::new(GraphOptions { page_entries_max, ..GraphOptions::default() });
        let stores = PAGES.map(store);
        for batch in batches(&records, &[cut]) {
            stores.iter().for_each(|store| assert_eq!(store.apply(&batch).unwrap().end, batch.end()));
        }
        let nodes: Vec<NodeId> = (0..300).map(|_| NodeId(random.below(40) as u32)).collect();
        let times: Vec<EventTime> = (0..300)
            .map(|_| match records[random.below(records.len() as u64) as usize] {
                Record::Edge { time, .. } => EventTime(time),
                _ => EventTime::MAX,
            })
            .collect();
        let seeds = Seeds { nodes: &nodes, times: &times };
        let bound = EdgeId(random.below(records.len() as u64 + 1));
        let keys = NodeDictionary::new();
        let results: Vec<_> = stores.iter().map(|store| {
            let mut out = [MessageFlowGraph::new(), MessageFlowGraph::new(), MessageFlowGraph::new()];
            sample(store.view(), seeds, &request(SamplingPolicy::Recent, 12, None), &mut out[0]).unwrap();
            sample(store.view(), seeds, &request(SamplingPolicy::Uniform, 12, None), &mut out[1]).unwrap();
            sample(store.view_at(bound), seeds, &request(SamplingPolicy::Uniform, 5, Some(1 << 20)), &mut out[2]).unwrap();
            (out, store.digest(&keys))
        }).collect();
        for (result, page) in results.iter().zip(PAGES) {
            prop_assert_eq!(result, &results[0], "pages of {}, batches of {}", page, cut);
        }
    }
}

#[test]
fn readers_at_old_bounds_see_the_past_unchanged_while_the_writer_appends() {
    for seed in 0..3 {
        let mut random = Random(1_000 + seed);
        let records = stream(&mut random, 4_000, false);
        let batches = batches(&records, &[64, 1, 300]);
        let store = GraphStore::new(GraphOptions { shards: 4, page_entries_max: 32 });
        let mut oracle = Oracle::default();
        records.iter().for_each(|&record| oracle.apply(record));
        let half = batches.len() / 2;
        batches[..half].iter().for_each(|batch| {
            store.apply(batch).unwrap();
        });
        let done = AtomicBool::new(false);
        let checks: Vec<_> = (0..3)
            .map(|_| {
                let bound = random.below(store.applied().0) + 1;
                (bound, random_seeds(&mut random, &oracle, 25))
            })
            .collect();
        std::thread::scope(|scope| {
            let _end = scopeguard::guard((), |()| done.store(true, Ordering::Release));
            for (bound, (nodes, times)) in &checks {
                scope.spawn(|| {
                    let mut rounds = 0;
                    while rounds < 3 || !done.load(Ordering::Acquire) {
                        let view = store.view_at(EdgeId(*bound));
                        compare_samples(&oracle, view, nodes, times, 10, None);
                        rounds += 1;
                    }
                });
            }
            // The newest view, fixed once, must not change either: no part of a batch shows.
            scope.spawn(|| {
                while !done.load(Ordering::Acquire) {
                    let view = store.view();
                    let (nodes, times) = &checks[0].1;
                    compare_samples(&oracle, view, nodes, times, 10, None);
                }
            });
            batches[half..].iter().for_each(|batch| {
                store.apply(batch).unwrap();
                std::thread::yield_now();
            });
        });
        assert_eq!(store.applied().0, records.len() as u64);
    }
}

#[test]
fn digest_follows_content_and_not_arrival() {
    let mut random = Random(77);
    let edges: Vec<(i64, i64, i64)> = (0..2_000)
        .map(|_| (random.below(60) as i64, random.below(60) as i64, random.below(500) as i64))
        .collect();
    let digest = |edges: &[(i64, i64, i64)], cuts: &[usize], page: usize| {
        let keys = NodeDictionary::new();
        let records: Vec<Record> = edges
            .iter()
            .map(|&(src, dst, time)| Record::Edge {
                src: keys.intern(&NodeKey::Int(src)).0,
                dst: keys.intern(&NodeKey::from_text(&format!("item {dst}"))).0,
                time,
            })
            .collect();
        let store = GraphStore::new(GraphOptions { shards: 8, page_entries_max: page });
        batches(&records, cuts).iter().for_each(|batch| {
            store.apply(batch).unwrap();
        });
        (store.digest(&keys).unwrap(), store, keys)
    };
    let (expected, store, keys) = digest(&edges, &[100], 256);
    let mut shuffled = edges.clone();
    for i in (1..shuffled.len()).rev() {
        shuffled.swap(i, random.below(i as u64 + 1) as usize);
    }
    assert_eq!(digest(&shuffled, &[3, 700], 16).0, expected);
    let mut seen = HashSet::from([expected, digest(&[], &[1], 256).0]);
    assert!(seen.insert(digest(&edges[1..], &[100], 256).0), "an edge less");
    for i in 0..50 {
        let mut changed = edges.clone();
        match i % 3 {
            0 => changed[i * 7].0 += 1_000,
            1 => changed[i * 7].1 += 1_000,
            _ => changed[i * 7].2 += 1_000 + i as i64,
        }
        assert!(seen.insert(digest(&changed, &[100], 256).0), "change {i} has no effect");
    }
    // An edge counts as often as it is there.
    let twice: Vec<_> = edges.iter().chain(&edges[5..6]).copied().collect();
    assert!(seen.insert(digest(&twice, &[100], 256).0));
    // Deletion takes out what the edge put in.
    let id = |key: NodeKey| keys.lookup(&key).unwrap().0;
    let (src, dst, _) = edges[9];
    let (src, dst) = (id(NodeKey::Int(src)), id(NodeKey::from_text(&format!("item {dst}"))));
    let first = store.applied().0;
    let (hub, time) = (keys.intern(&NodeKey::from_text("hub")).0, 9_999);
    store
        .apply(&batch(first, &[Record::Edge { src, dst: hub, time }, Record::Edge { src: hub, dst, time }]))
        .unwrap();
    assert!(seen.insert(store.digest(&keys).unwrap()));
    store.apply(&batch(first + 2, &[Record::DeleteNode { node: hub }])).unwrap();
    assert_eq!(store.digest(&keys).unwrap(), expected);
    // Direction counts.
    store.apply(&batch(first + 3, &[Record::Edge { src, dst: hub, time }])).unwrap();
    let forward = store.digest(&keys).unwrap();
    let reverse =
        [Record::DeleteEdge { src, dst: hub, until: time }, Record::Edge { src: hub, dst: src, time }];
    store.apply(&batch(first + 4, &reverse)).unwrap();
    assert_ne!(store.digest(&keys).unwrap(), forward, "an edge is not its reverse");
}

#[test]
fn records_applied_before_are_skipped() {
    let edge = |dst, time| Record::Edge { src: 0, dst, time };
    let store = GraphStore::new(GraphOptions::default());
    store.apply(&batch(0, &[edge(1, 1), edge(2, 2), edge(3, 3)])).unwrap();
    let again = store.apply(&batch(1, &[edge(2, 2), edge(3, 3), edge(4, 4)])).unwrap();
    assert_eq!((again.skipped, again.edges, again.end), (2, 1, EdgeId(4)));
    let old = store.apply(&batch(0, &[edge(1, 1)])).unwrap();
    assert_eq!((old.skipped, old.edges, old.end), (1, 0, EdgeId(4)));
    assert_eq!(store.degree(NodeId(0)), 4);
}

#[test]
fn a_late_event_is_hidden_from_views_below_it() {
    // Every 20th edge is followed by one that belongs far into the past; then bounds all along.
    for page in [1, 4, 16, 256] {
        let edge = |dst, time| Record::Edge { src: 0, dst, time };
        let records: Vec<Record> =
            (0..400).map(|i| edge(i % 7 + 1, if i % 20 == 19 { i * 3 / 7 } else { i }.into())).collect();
        let store = GraphStore::new(GraphOptions { shards: 1, page_entries_max: page });
        let mut oracle = Oracle::default();
        for (i, record) in records.iter().enumerate() {
            oracle.apply(*record);
            store.apply(&batch(i as u64, &[*record])).unwrap();
            let times = [30, 200, i as i64 + 1].map(EventTime);
            for bound in [i as u64, i as u64 * 6 / 7] {
                compare_samples(&oracle, store.view_at(EdgeId(bound)), &[NodeId(0); 3], &times, 5, Some(90));
                compare_samples(&oracle, store.view_at(EdgeId(bound)), &[NodeId(0); 3], &times, 500, None);
            }
        }
        assert_eq!(store.view_at(EdgeId(u64::MAX)).bound(), store.applied(), "views end at what is applied");
    }
}

#[test]
fn edge_ids_too_far_apart_for_a_block_begin_another() {
    let store = GraphStore::new(GraphOptions { shards: 1, page_entries_max: 64 });
    let mut oracle = Oracle::default();
    let mut random = Random(3);
    for i in 0..300_u64 {
        // Gaps as other nodes' events would leave them, around the reach of an entry.
        oracle.next += random.pick(&[0, 0, 0, u64::from(u32::MAX) - 1, u64::from(u32::MAX), 1 << 34]);
        let first = oracle.next;
        let time = if i % 9 == 8 { random.below(i) } else { i } as i64;
        let record = Record::Edge { src: 0, dst: 1 + i as u32 % 3, time };
        oracle.apply(record);
        store.apply(&batch(first, &[record])).unwrap();
        if i % 10 == 0 {
            let ids: Vec<u64> = oracle.edges.iter().map(|edge| edge.id).collect();
            for bound in [random.pick(&ids), random.pick(&ids) + 1, oracle.next] {
                let times = [i as i64 / 2, i as i64 + 1].map(EventTime);
                let view = store.view_at(EdgeId(bound));
                compare_samples(&oracle, view, &[NodeId(0), NodeId(1)], &times, 12, None);
                compare_samples(&oracle, view, &[NodeId(0), NodeId(1)], &times, 300, Some(40));
            }
        }
    }
    compare_accounts(&oracle, &store, &[0, 1, 2, 3]);
}

#[test]
fn shards_are_compacted_as_nodes_grow_and_shrink() {
    let store = GraphStore::new(GraphOptions { shards: 2, page_entries_max: 64 });
    let mut oracle = Oracle::default();
    let mut records = Vec::new();
    let mut random = Random(11);
    for time in 0..24_000 {
        let src = random.below(300) as u32;
        records.push(Record::Edge { src, dst: 300 + random.below(300) as u32, time });
        if time % 300 == 299 && time > 16_000 {
            records.push(Record::DeleteNode { node: src });
        }
    }
    records.iter().for_each(|&record| oracle.apply(record));
    for batch in batches(&records, &[97]) {
        store.apply(&batch).unwrap();
        let stats = store.stats();
        // Spare capacity is half of the entries at most, released slots an eighth of all that or a chunk's
        // worth; and one chunk of each shard is partly uncut.
        let fixed = 2 * 2 * 1_024 * 12;
        assert!(stats.bytes.slack <= stats.bytes.entries * 11 / 16 + fixed, "{stats:?}");
    }
    compare_accounts(&oracle, &store, &[0, 1, 2, 300, 301]);
    let (nodes, times) = random_seeds(&mut random, &oracle, 40);
    for bound in [u64::MAX, 20_000, 3_000] {
        compare_samples(&oracle, store.view_at(EdgeId(bound)), &nodes, &times, 10, None);
    }
}
