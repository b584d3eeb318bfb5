//! Nodes without an edge: since when they are, and which have been for longer than `graph.node_retention`.
//!
//! The list of a node whose edges are all gone keeps a time instead: that of the stream when a pass over its shard
//! first found it so. An edge or a row of the node ends that, and the next pass begins it anew; snapshots keep it. The
//! time is that of the stream, not of the node's last event: rows are often loaded with arbitrary times. The store may
//! be ahead of the learner, so there are two such times: a pass notes by what the store has seen, which is after all
//! edges and rows of the node, and judges by what the learner has.
//!
//! Nothing is removed here. The appender deletes what has been idle for too long by records in the log, as if a
//! producer had, so every reader of the log agrees on when a node went.

use super::NodeDictionary;
use super::list::AdjacencyList;
use super::store::{GraphStore, Shard};
use crate::event::{EdgeBatch, EventTime, NodeId, Op};

impl GraphStore {
    /// The same store, in which nodes without an edge are noted, and stay for `age`, in the stream's unit.
    #[must_use]
    pub fn with_node_retention(mut self, age: i64) -> Self {
        self.node_retention = Some(age);
        self
    }

    /// How long a node without an edge stays; `None`: for ever.
    #[must_use]
    pub fn node_retention(&self) -> Option<i64> {
        self.node_retention
    }

    /// Notes the nodes of one shard that have a name and no edge, as of `seen`, the stream's time of all that was
    /// applied, and adds those to `over` that had none for too long by `now`, which is not later. Visits the nodes of
    /// the shard. To be called by the thread that applies batches.
    pub fn note_idle(
        &self,
        part: usize,
        (now, seen): (EventTime, EventTime),
        names: &NodeDictionary,
        over: &mut Vec<NodeId>,
    ) {
        let (Some(age), Some(lock)) = (self.node_retention, self.shards.get(part)) else { return };
        let (known, mut new) = (names.len(), Vec::new());
        let shard = lock.read();
        let end = self.map.nodes_below(known, part);
        for (indexes, is_there) in shard.lists.pages(end) {
            if !is_there {
                // Nobody has a list there, and nearly always nobody is left.
                let nodes = [indexes.start, indexes.end].map(|index| self.map.node(part, index));
                names.for_each_named(nodes[0]..nodes[1], self.shards.len(), |node| {
                    new.push(self.map.locate(node).1);
                });
                continue;
            }
            for index in indexes {
                match shard.lists.get(index) {
                    None | Some(AdjacencyList::Empty) if names.is_named(self.map.node(part, index)) => {
                        new.push(index);
                    }
                    // The stream's clock was set back.
                    Some(AdjacencyList::Idle(since)) if *since > seen.0 => new.push(index),
                    Some(AdjacencyList::Idle(since)) if since.saturating_add(age) < now.0 => {
                        over.push(self.map.node(part, index));
                    }
                    _ => {}
                }
            }
        }
        drop(shard);
        if !new.is_empty() {
            let mut shard = lock.write();
            new.into_iter().for_each(|index| shard.set_idle(index, seen.0));
        }
    }

    /// Whether a node is still noted as one without an edge.
    #[must_use]
    pub fn is_idle(&self, node: NodeId) -> bool {
        let (shard, index) = self.map.locate(node);
        matches!(self.shards[shard].read().lists.get(index), Some(AdjacencyList::Idle(_)))
    }

    /// Takes back the notes of nodes that got a row: those of a snapshot too, where no node is removed now.
    pub(super) fn wake_those_with_rows(&self, batch: &EdgeBatch, range: std::ops::Range<usize>) {
        range.filter(|&i| batch.op[i] == Op::Node).for_each(|i| self.wake(batch.src[i]));
    }

    /// Takes back the note of a node.
    pub(super) fn wake(&self, node: NodeId) {
        if self.is_idle(node) {
            let (shard, index) = self.map.locate(node);
            self.shards[shard].write().change(index, |list, _| *list = AdjacencyList::Empty);
        }
    }
}

impl Shard {
    /// Notes since when the node `index`, which has no edge, has none.
    pub(super) fn set_idle(&mut self, index: usize, since: i64) {
        self.change(index, |list, _| {
            if list.blocks().is_empty() {
                *list = AdjacencyList::Idle(since);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use hashbrown::HashSet;

    use super::*;
    use crate::event::{EdgeId, NodeKey};
    use crate::graph::{GraphOptions, GraphSummary};

    fn store() -> GraphStore {
        let options = GraphOptions { shards: 2, page_entries_max: 16 };
        let store = GraphStore::new(options).with_node_retention(100);
        store.with_retention(crate::graph::Retention { age: 50, lateness: 0 })
    }

    fn names(count: i64) -> NodeDictionary {
        let names = NodeDictionary::new();
        names.define(&(0..count).map(NodeKey::Int).collect::<Vec<_>>());
        names
    }

    fn apply(store: &GraphStore, op: Op, src: u32, dst: u32, time: i64) {
        let mut batch = EdgeBatch { first: store.applied(), ..EdgeBatch::default() };
        batch.push_edge(NodeId(src), NodeId(dst), EventTime(time));
        batch.op[0] = op;
        store.apply(&batch).unwrap();
    }

    fn over(store: &GraphStore, names: &NodeDictionary, now: i64) -> Vec<u32> {
        over_of(store, names, now, now)
    }

    fn over_of(store: &GraphStore, names: &NodeDictionary, now: i64, seen: i64) -> Vec<u32> {
        let (mut over, times) = (Vec::new(), (EventTime(now), EventTime(seen)));
        (0..store.shards()).for_each(|part| store.note_idle(part, times, names, &mut over));
        over.sort_unstable();
        over.into_iter().map(|node| node.0).collect()
    }

    fn release(store: &GraphStore, before: i64) {
        (0..store.shards()).for_each(|part| _ = store.release_part(part, EventTime(before)).unwrap());
    }

    #[test]
    fn a_node_is_idle_from_the_pass_that_finds_it_without_an_edge_until_it_has_one_or_a_row() {
        let (store, names) = (store(), names(6));
        apply(&store, Op::Edge, 0, 1, 10);
        apply(&store, Op::Edge, 2, 3, 40);
        assert_eq!(over(&store, &names, 50), [0; 0]);
        release(&store, 30);
        assert_eq!(over(&store, &names, 80), [0; 0], "0 and 1 are noted at 80, 4 and 5 were at 50");
        assert_eq!(over(&store, &names, 150), [0; 0], "exactly the age");
        assert_eq!(over(&store, &names, 151), [4, 5]);
        // A row and an edge end it, whatever their times.
        apply(&store, Op::Node, 4, 4, -7);
        apply(&store, Op::Edge, 5, 5, 160);
        assert!(!store.is_idle(NodeId(4)) && !store.is_idle(NodeId(5)) && store.is_idle(NodeId(0)));
        assert_eq!(over(&store, &names, 181), [0, 1]);
        // One that is deleted, or loses its name, is not found again.
        apply(&store, Op::DeleteNode, 0, 0, i64::MAX);
        names.forget(NodeId(0));
        assert_eq!(over(&store, &names, 500), [1, 4]);
        assert_eq!(store.stats().nodes, 6);
        // Where the clock was set back, the wait begins anew.
        assert_eq!(over(&store, &names, 60), [0; 0]);
        assert_eq!(over(&store, &names, 161), [1, 4]);
    }

    #[test]
    fn a_node_stays_for_the_whole_age_after_a_row_that_the_learner_reaches_later() {
        let (store, names) = (store(), names(1));
        assert_eq!(over(&store, &names, 50), [0; 0]);
        // The stream is at 140 when the row comes, and the learner at 60.
        apply(&store, Op::Node, 0, 0, 0);
        assert_eq!(over_of(&store, &names, 60, 140), [0; 0]);
        assert_eq!(over_of(&store, &names, 200, 300), [0; 0], "noted at 140, not at 60");
        assert_eq!(over_of(&store, &names, 241, 300), [0]);
    }

    #[test]
    fn without_a_node_retention_nothing_is_noted() {
        let (store, names) = (GraphStore::new(GraphOptions::default()), names(3));
        assert_eq!(over(&store, &names, 1), [0; 0]);
        assert_eq!(over(&store, &names, i64::MAX), [0; 0]);
        assert!(!store.is_idle(NodeId(0)));
    }

    #[test]
    fn a_snapshot_keeps_since_when_nodes_are_idle() {
        let (whole, loaded, names) = (store(), store(), names(200_000));
        apply(&whole, Op::Edge, 0, 1, 10);
        assert_eq!(over(&whole, &names, 50), [0; 0]);
        let summary: GraphSummary = whole.summary();
        for shard in 0..whole.shards() {
            let mut pieces = 0;
            let mut restore = |bytes: &[u8]| {
                pieces += 1;
                loaded.restore_pieces(bytes, summary.applied, &HashSet::new())
            };
            whole.write_shard(shard, EdgeId(1), &mut restore).unwrap();
            assert!(pieces > 3, "the lock is given back in between");
        }
        loaded.restored(&summary, 0);
        let noted = over(&loaded, &names, 151);
        assert_eq!(noted, (2..200_000).collect::<Vec<_>>());
        assert_eq!(loaded.digest(&names), whole.digest(&names));
    }
}
