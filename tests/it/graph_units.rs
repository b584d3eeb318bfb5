//! What a graph costs does not depend on the unit of its times: the same stream in seconds, in nanoseconds and with
//! edge ids far apart takes the same memory up to the width of an entry, and samples are those of the oracle.

use std::time::{Duration, Instant};

use evergraph::event::{EdgeBatch, EdgeId, EventTime, NodeId};
use evergraph::graph::{GraphOptions, GraphStore};

use crate::graph_model::oracle::{Oracle, Random, Record, compare_samples};

/// The unit of a stream: how far apart its times and its edge ids are.
#[derive(Clone, Copy, Debug)]
struct Unit {
    time: i64,
    jitter: u64,
    edges: u64,
}

const SECONDS: Unit = Unit { time: 1, jitter: 0, edges: 1 };

/// Units of which few entries of a node fit 32 bits, in logs of up to 2^40 edges.
const COSTS: [Unit; 4] = [
    Unit { time: 5_000_000_000, jitter: 0, edges: 1 },
    Unit { time: 5_000_000_000, jitter: 4_999_999_999, edges: 1 },
    Unit { time: 1, jitter: 0, edges: 1 << 23 },
    Unit { time: 5_000_000_000, jitter: 0, edges: 1 << 23 },
];

/// Units of which no two entries of a node fit 32 bits.
const WIDE: [Unit; 4] = [
    Unit { time: 5_000_000_000, jitter: 0, edges: 1 },
    Unit { time: 5_000_000_000, jitter: 4_999_999_999, edges: 1 },
    Unit { time: 1, jitter: 0, edges: (1 << 32) + 7 },
    Unit { time: 5_000_000_000, jitter: 0, edges: (1 << 32) + 7 },
];

/// Bytes per edge of `edges` edges from `src` to `dst`, batch by batch.
fn bytes_per_edge(unit: Unit, edges: u64, node: impl Fn(u64, u64) -> (u32, u32)) -> f64 {
    let store = GraphStore::new(GraphOptions { shards: 4, ..GraphOptions::default() });
    let (mut random, mut first) = (Random(5), 0);
    let count = if unit.edges > 1 { 1 } else { 500 };
    for begin in (0..edges).step_by(count) {
        let mut batch = EdgeBatch { first: EdgeId(first), ..EdgeBatch::default() };
        for i in begin..(begin + count as u64).min(edges) {
            let (src, dst) = node(i, random.below(1 << 20));
            let jitter = if unit.jitter > 0 { random.below(unit.jitter) as i64 } else { 0 };
            batch.push_edge(NodeId(src), NodeId(dst), EventTime(i as i64 * unit.time + jitter));
        }
        store.apply(&batch).unwrap();
        first = batch.end().0 + unit.edges - 1;
    }
    let bytes = store.stats().bytes;
    (bytes.total() - bytes.plan) as f64 / edges as f64
}

#[test]
fn a_graph_costs_the_same_memory_in_seconds_and_in_nanoseconds() {
    type Shape = (&'static str, u64, fn(u64, u64) -> (u32, u32));
    let shapes: [Shape; 4] = [
        // Around one node, or two hundred, or twenty events to a node, or three.
        ("200 nodes", 200_000, |_, draw| ((draw % 100) as u32, 100 + (draw / 100 % 100) as u32)),
        ("1000 edges", 100_000, |i, _| ((i % 100) as u32, 100 + (i / 100 % 100) as u32)),
        ("20 edges", 100_000, |_, draw| ((draw % 5_000) as u32, 5_000 + (draw / 5_000 % 5_000) as u32)),
        ("3 edges", 100_000, |_, draw| {
            ((draw % 33_000) as u32, 33_000 + (draw.wrapping_mul(77_777) >> 5) as u32 % 33_000)
        }),
    ];
    for (name, edges, shape) in shapes {
        let seconds = bytes_per_edge(SECONDS, edges, shape);
        for unit in COSTS {
            let bytes = bytes_per_edge(unit, edges, shape);
            println!("{name}: {seconds:.1} bytes per edge, {unit:?} {bytes:.1}: {:.3}", bytes / seconds);
            // An entry has 14 bytes in place of 12, or 16 where both are far apart; and a page of a node may just have
            // been begun, with room for an eighth of what it has.
            let most = if unit.time > 1 && unit.edges > 1 { 1.5 } else { 1.3 };
            assert!(bytes <= most * seconds, "{name}: {seconds} bytes per edge, {unit:?} {bytes}");
        }
    }
}

#[test]
fn samples_of_far_times_and_far_ids_are_those_of_the_oracle() {
    for (page, unit) in [(4, WIDE[1]), (64, WIDE[0]), (256, WIDE[1]), (256, WIDE[3]), (16, WIDE[2])] {
        let store = GraphStore::new(GraphOptions { shards: 2, page_entries_max: page });
        let (mut oracle, mut random) = (Oracle::default(), Random(page as u64));
        for i in 0..900_u64 {
            oracle.next += unit.edges - 1;
            // Bursts, gaps, ties, and late events.
            let clock = if i % 50 < 30 { i as i64 * unit.time } else { (i - i % 50) as i64 * unit.time };
            let late = if i % 13 == 12 { random.below(unit.time as u64 * 40) as i64 } else { 0 };
            let jitter = if i % 3 > 0 { random.below(unit.jitter + 1) as i64 } else { 0 };
            let record = Record::Edge { src: 0, dst: 1 + i as u32 % 3, time: clock - late + jitter };
            let first = oracle.next;
            oracle.apply(record);
            store.apply(&crate::graph_model::oracle::batch(first, &[record])).unwrap();
            if i % 90 == 89 {
                let bounds = [random.below(oracle.next), oracle.next - 1, oracle.next];
                let times = [0, 1, 2].map(|_| EventTime(random.below((i + 2) * unit.time as u64) as i64));
                let nodes = [NodeId(0), NodeId(0), NodeId(2)];
                for bound in bounds {
                    let view = store.view_at(EdgeId(bound));
                    compare_samples(&oracle, view, &nodes, &times, 12, None);
                    compare_samples(&oracle, view, &nodes, &times, 400, Some(unit.time * 77));
                }
            }
        }
    }
}

/// How long it takes to apply the edges of a hub at `times`.
fn time_of_hub(times: impl Iterator<Item = i64>) -> Duration {
    let store = GraphStore::new(GraphOptions { shards: 1, ..GraphOptions::default() });
    let times: Vec<i64> = times.collect();
    let begun = Instant::now();
    for times in times.chunks(4_096) {
        let mut batch = EdgeBatch { first: store.applied(), ..EdgeBatch::default() };
        for &time in times {
            batch.push_edge(NodeId(0), NodeId(1 + (time % 1_000) as u32), EventTime(time));
        }
        store.apply(&batch).unwrap();
    }
    begun.elapsed()
}

#[test]
fn two_partitions_of_a_hub_one_after_the_other_cost_no_more_than_some_times_their_merge() {
    let edges = 2_000_000;
    let merged = time_of_hub(0..edges);
    let apart = time_of_hub((0..edges).step_by(2).chain((1..edges).step_by(2)));
    println!("merged {merged:?}, apart {apart:?}");
    assert!(apart < 12 * merged + Duration::from_millis(500), "merged {merged:?}, apart {apart:?}");
}
