//! The oracle of the graph tests, its streams, and the comparison of its results with
//! the store's.

use evergraph::event::{EdgeBatch, EdgeId, EventTime, NodeId, Op, StreamClock};
use evergraph::graph::{GraphStore, GraphView};
use evergraph::sampler::{MessageFlowGraph, SampleRequest, SamplingPolicy, Seeds, sample};

/// An edge as the oracle keeps it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Edge {
    pub(super) id: u64,
    pub(super) src: u32,
    pub(super) dst: u32,
    pub(super) time: i64,
}

/// A record of a stream.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Record {
    Edge { src: u32, dst: u32, time: i64 },
    DeleteEdge { src: u32, dst: u32, until: i64 },
    DeleteNode { node: u32 },
    Node { node: u32 },
}

#[derive(Default)]
pub(crate) struct Oracle {
    pub(super) edges: Vec<Edge>,
    pub(crate) next: u64,
    pub(super) deleted: u64,
    pub(super) late: u64,
    /// Has tests of its own.
    pub(super) clock: StreamClock,
    pub(super) highest: Option<u32>,
}

impl Oracle {
    pub(crate) fn apply(&mut self, record: Record) {
        let before = self.edges.len();
        match record {
            Record::Edge { src, dst, time } => {
                self.edges.push(Edge { id: self.next, src, dst, time });
                self.late += u64::from(self.clock.latest().is_some_and(|latest| time < latest.0));
                self.clock.observe(EdgeId(self.next), EventTime(time));
                self.highest = self.highest.max(Some(src.max(dst)));
            }
            Record::DeleteEdge { src, dst, until } => {
                self.edges.retain(|edge| !(edge.src == src && edge.dst == dst && edge.time <= until));
                self.deleted += (before - self.edges.len()) as u64;
            }
            Record::DeleteNode { node } => {
                self.edges.retain(|edge| edge.src != node && edge.dst != node);
                self.deleted += (before - self.edges.len()) as u64;
            }
            Record::Node { node } => self.highest = self.highest.max(Some(node)),
        }
        self.next += 1;
    }

    /// Edges of `node` in `from..before` with id below `bound` as (neighbor, id, time), newest first.
    pub(super) fn past(&self, node: u32, from: i64, before: i64, bound: u64) -> Vec<(u32, u64, i64)> {
        let mut found: Vec<_> = self
            .edges
            .iter()
            .filter(|edge| edge.src == node || edge.dst == node)
            .filter(|edge| edge.time < before && edge.time >= from && edge.id < bound)
            .map(|edge| (if edge.src == node { edge.dst } else { edge.src }, edge.id, edge.time))
            .collect();
        found.sort_unstable_by_key(|&(_, id, time)| std::cmp::Reverse((time, id)));
        found
    }

    pub(super) fn live(&self, node: u32) -> impl Iterator<Item = &Edge> {
        self.edges.iter().filter(move |edge| edge.src == node || edge.dst == node)
    }
}

/// The records as batches, cut after each of `cuts` (lengths, used in turn).
pub(crate) fn batches(records: &[Record], cuts: &[usize]) -> Vec<EdgeBatch> {
    let mut batches = Vec::new();
    let mut rest = records;
    let mut first = 0;
    for &cut in cuts.iter().cycle() {
        if rest.is_empty() {
            break;
        }
        let (head, tail) = rest.split_at(cut.min(rest.len()));
        batches.push(batch(first, head));
        first += head.len() as u64;
        rest = tail;
    }
    batches
}

pub(crate) fn batch(first: u64, records: &[Record]) -> EdgeBatch {
    let mut batch = EdgeBatch { first: EdgeId(first), ..EdgeBatch::default() };
    for &record in records {
        let (op, src, dst, time) = match record {
            Record::Edge { src, dst, time } => (Op::Edge, src, dst, time),
            Record::DeleteEdge { src, dst, until } => (Op::DeleteEdge, src, dst, until),
            Record::DeleteNode { node } => (Op::DeleteNode, node, node, i64::MAX),
            Record::Node { node } => (Op::Node, node, node, 0),
        };
        batch.push_edge(NodeId(src), NodeId(dst), EventTime(time));
        batch.op.pop();
        batch.op.push(op);
    }
    batch
}

/// A small generator of its own, so that the cases do not depend on the code under test.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let high = (self.0 >> 33) * (n >> 31) + (((self.0 >> 33) * (n & 0x7FFF_FFFF)) >> 31);
        high.min(n - 1)
    }

    pub(crate) fn chance(&mut self, one_in: u64) -> bool {
        self.below(one_in) == 0
    }

    pub(crate) fn pick<T: Copy>(&mut self, items: &[T]) -> T {
        items[self.below(items.len() as u64) as usize]
    }
}

/// A stream of `length` records. Its character (clock, lateness, hubs, deletions) is drawn too.
pub(crate) fn stream(random: &mut Random, length: usize, deletions: bool) -> Vec<Record> {
    let nodes = random.pick(&[2, 5, 40, 3_000]);
    let hub_one_in = random.pick(&[2, 10, 1 << 40]);
    let late_one_in = random.pick(&[2, 20, 1 << 40]);
    let step = random.pick(&[1, 2, 1_000, 1 << 31, 1 << 33, 1 << 40]);
    let extreme_one_in = random.pick(&[30, 1 << 40]);
    let delete_one_in = random.pick(&[15, 100, 1_000]);
    let mut clock = random.pick(&[0, -5_000, 1_700_000_000, i64::MIN + 5, i64::MAX - 3]);
    let mut records: Vec<Record> = Vec::new();
    while records.len() < length {
        clock = clock.saturating_add(random.below(step + 1) as i64);
        let mut time = clock;
        if random.chance(late_one_in) {
            time = clock.saturating_sub(random.below(step * 20 + 1) as i64);
        }
        if random.chance(extreme_one_in) {
            time = random.pick(&[i64::MIN, i64::MIN + 1, -1, 0, i64::MAX - 1, i64::MAX]);
        }
        let node = random.below(nodes) as u32;
        let src = if random.chance(hub_one_in) { 0 } else { node };
        let dst = if random.chance(25) { src } else { random.below(nodes) as u32 };
        records.push(match random.below(delete_one_in) {
            0 if deletions && random.chance(4) => Record::DeleteNode { node },
            0 if deletions => {
                let until = random.pick(&[i64::MAX, time, clock.saturating_sub(step as i64 * 10), i64::MIN]);
                match random.pick(&records_or(&records, src, dst)) {
                    Record::Edge { src, dst, .. } => Record::DeleteEdge { src, dst, until },
                    _ => Record::DeleteEdge { src, dst, until },
                }
            }
            1 if random.chance(3) => Record::Node { node },
            _ => Record::Edge { src, dst, time },
        });
    }
    records
}

/// Some earlier records to delete, or an edge that may not exist.
fn records_or(records: &[Record], src: u32, dst: u32) -> Vec<Record> {
    let mut some: Vec<Record> = records.iter().rev().take(50).copied().collect();
    some.push(Record::Edge { src, dst, time: 0 });
    some
}

pub(super) fn request(policy: SamplingPolicy, fanout: usize, window: Option<i64>) -> SampleRequest {
    SampleRequest { policy, fanout, window, seed: 42, batch: 7, layer: 1 }
}

fn slots(graph: &MessageFlowGraph, seed: usize) -> Vec<(u32, u64, i64)> {
    let filled = graph.filled(seed);
    filled.map(|i| (graph.neighbors[i].0, graph.edges[i].0, graph.times[i].0)).collect()
}

/// Compares samples of `nodes` at `times` with the oracle's, both policies.
pub(crate) fn compare_samples(
    oracle: &Oracle,
    view: GraphView<'_>,
    nodes: &[NodeId],
    times: &[EventTime],
    fanout: usize,
    window: Option<i64>,
) {
    let seeds = Seeds { nodes, times };
    let (mut recent, mut uniform) = (MessageFlowGraph::new(), MessageFlowGraph::new());
    sample(view, seeds, &request(SamplingPolicy::Recent, fanout, window), &mut recent).unwrap();
    sample(view, seeds, &request(SamplingPolicy::Uniform, fanout, window), &mut uniform).unwrap();
    for (i, (&node, &time)) in nodes.iter().zip(times).enumerate() {
        let from = window.map_or(i64::MIN, |window| time.0.saturating_sub(window));
        let past = oracle.past(node.0, from, time.0, view.bound().0);
        let wanted = past.len().min(fanout);
        let what = format!("node {node:?} before {time} from {from} below {}", view.bound());
        assert_eq!(slots(&recent, i), past[..wanted], "recent, {what}");
        let drawn = slots(&uniform, i);
        assert_eq!(drawn.len(), wanted, "uniform, {what}");
        let mut candidates = past.iter();
        // Newest first, no duplicates, all of the past: a subsequence.
        assert!(drawn.iter().all(|slot| candidates.any(|c| c == slot)), "uniform {drawn:?}, {what}");
        for graph in [&recent, &uniform] {
            for slot in graph.filled(i) {
                let expected = time.0.saturating_sub(graph.times[slot].0) as f32;
                assert_eq!(graph.deltas[slot], expected, "{what}");
            }
            let empty = i * fanout + wanted..(i + 1) * fanout;
            assert!(graph.neighbors[empty.clone()].iter().all(|&n| n == NodeId::NONE), "{what}");
            assert!(graph.edges[empty.clone()].iter().all(|&e| e == MessageFlowGraph::NO_EDGE), "{what}");
            assert!(graph.deltas[empty].iter().all(|&delta| delta == 0.0), "{what}");
        }
    }
    let mut again = MessageFlowGraph::new();
    sample(view, seeds, &request(SamplingPolicy::Uniform, fanout, window), &mut again).unwrap();
    assert_eq!(again, uniform, "a sample is a function of its arguments");
}

pub(super) fn compare_accounts(oracle: &Oracle, store: &GraphStore, nodes: &[u32]) {
    let stats = store.stats();
    let loops = oracle.edges.iter().filter(|edge| edge.src == edge.dst).count();
    assert_eq!(stats.edges, oracle.edges.len() as u64);
    assert_eq!(stats.directed_entries, (2 * oracle.edges.len() - loops) as u64);
    assert_eq!(stats.deleted_edges, oracle.deleted);
    assert_eq!(stats.late_edges, oracle.late);
    assert_eq!(stats.nodes, oracle.highest.map_or(0, |node| u64::from(node) + 1));
    assert_eq!(stats.bytes.entries, stats.directed_entries * 12);
    assert_eq!(store.latest_time(), oracle.clock.latest());
    assert_eq!(store.applied(), EdgeId(oracle.next));
    for &node in nodes {
        assert_eq!(store.degree(NodeId(node)), oracle.live(node).count() as u64, "degree of {node}");
        let last = oracle.live(node).map(|edge| EventTime(edge.time)).max();
        assert_eq!(store.last_event(NodeId(node)).unwrap(), last, "last event of {node}");
    }
}

/// Nodes and times worth asking about: those of edges, just before and after, and the ends of time.
pub(super) fn random_seeds(
    random: &mut Random,
    oracle: &Oracle,
    count: usize,
) -> (Vec<NodeId>, Vec<EventTime>) {
    let pick = |random: &mut Random| match oracle.edges.len() {
        0 => Edge { id: 0, src: 0, dst: 1, time: 0 },
        len => oracle.edges[random.below(len as u64) as usize],
    };
    let draw = |_| {
        let edge = pick(random);
        let node = random.pick(&[edge.src, edge.dst, 0, 1, 5_000, u32::MAX]);
        let near = pick(random).time;
        let time = random.pick(&[near, near.saturating_add(1), near.saturating_sub(1), i64::MIN, i64::MAX]);
        (NodeId(node), EventTime(time))
    };
    (0..count).map(draw).unzip()
}
