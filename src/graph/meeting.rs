//! When two nodes last met: the newest edge from one to the other.
//!
//! Both ends of an edge have it in their lists, so the shorter list is searched, from its newest entry backward and no
//! farther than the caller allows. A pair that met lately is found in the first few entries, whatever the lengths.

use hashbrown::HashSet;

use super::spill::SpillError;
use super::view::GraphView;
use crate::event::{EdgeId, EventTime, NodeId};

/// Entries that are searched first; then eight times as many, and so on.
const FIRST: usize = 64;

impl GraphView<'_> {
    /// The nodes that `src` had an edge to with a time before `before`, among its newest `most` edges in either
    /// direction: each once, the one that was met last first.
    ///
    /// # Errors
    /// Entries are on disk and cannot be read.
    pub fn destinations(
        self,
        src: NodeId,
        before: EventTime,
        most: usize,
    ) -> Result<Vec<NodeId>, SpillError> {
        let reader = self.reader(&[src]);
        let (times, mut seen, mut met) = (EventTime::MIN..before, HashSet::new(), Vec::new());
        reader.expect_newest(&[src], std::iter::once(times.clone()), most);
        reader.past(src, times).horizon().newest(most, |run| {
            let outgoing = run.records().filter(|record| !record.is_incoming());
            met.extend(outgoing.map(|record| record.neighbor()).filter(|node| seen.insert(*node)));
        });
        reader.finish()?;
        Ok(met)
    }

    /// The newest edge from `src` to `dst` with a time before `before`, if it is among the newest `most` edges of the
    /// end that has fewer. Nodes that the graph does not know have met nobody.
    ///
    /// # Errors
    /// Entries are on disk and cannot be read.
    pub fn latest_edge(
        self,
        src: NodeId,
        dst: NodeId,
        before: EventTime,
        most: usize,
    ) -> Result<Option<EdgeId>, SpillError> {
        let degree = |node| usize::try_from(self.degree(node)).unwrap_or(usize::MAX);
        let (of_src, of_dst) = (degree(src), degree(dst));
        let (node, other, incoming) = if of_src <= of_dst { (src, dst, false) } else { (dst, src, true) };
        let most = most.min(of_src.min(of_dst));
        let (mut found, mut searched) = (None, 0);
        while found.is_none() && searched < most {
            let reach = (searched * 8).clamp(FIRST.min(most), most);
            let reader = self.reader(&[node]);
            let times = EventTime::MIN..before;
            reader.expect_newest(&[node], std::iter::once(times.clone()), reach);
            reader.past(node, times).horizon().newest(reach, |run| {
                let mut met = run.records().filter(|record| record.neighbor() == other);
                // A self loop has one entry, which is outgoing.
                let met = met.find(|record| record.is_incoming() == (incoming && src != dst));
                found = found.or(met.map(|record| EdgeId(record.edge)));
            });
            reader.finish()?;
            searched = reach;
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::rng::below;
    use crate::event::EdgeBatch;
    use crate::graph::{GraphOptions, GraphStore};

    fn store(events: impl IntoIterator<Item = (u32, u32, i64)>) -> GraphStore {
        let mut batch = EdgeBatch::default();
        for (src, dst, time) in events {
            batch.push_edge(NodeId(src), NodeId(dst), EventTime(time));
        }
        let store = GraphStore::new(GraphOptions { shards: 2, page_entries_max: 8 });
        store.apply(&batch).unwrap();
        store
    }

    #[test]
    fn the_newest_edge_of_a_pair_is_found_as_by_reading_all_events() {
        let draw = |i: u64, word| below([11, i, 0, word], 12);
        let events: Vec<_> = (0..600).map(|i| (draw(i, 0), draw(i, 1), i64::from(draw(i, 2)) * 20)).collect();
        let store = store(events.iter().copied());
        for bound in [600, 250] {
            for (src, dst) in (0..13).flat_map(|src| (0..13).map(move |dst| (src, dst))) {
                for before in [0, 41, 500] {
                    let alike = events[..bound]
                        .iter()
                        .enumerate()
                        .filter(|(_, event)| (event.0, event.1) == (src, dst) && event.2 < before);
                    let expected =
                        alike.max_by_key(|(i, event)| (event.2, *i)).map(|(i, _)| EdgeId(i as u64));
                    let view = store.view_at(EdgeId(bound as u64));
                    let found = view.latest_edge(NodeId(src), NodeId(dst), EventTime(before), 1_000).unwrap();
                    assert_eq!(found, expected, "{src} to {dst} before {before}, {bound} events");
                }
            }
            for src in 0..13 {
                let view = store.view_at(EdgeId(bound as u64));
                let events =
                    events[..bound].iter().enumerate().filter(|(_, event)| event.0 == src && event.2 < 90);
                let mut met: Vec<_> = events.map(|(i, event)| (event.2, i, NodeId(event.1))).collect();
                met.sort_unstable();
                let mut expected: Vec<NodeId> = Vec::new();
                for (.., node) in met.into_iter().rev() {
                    if !expected.contains(&node) {
                        expected.push(node);
                    }
                }
                assert_eq!(view.destinations(NodeId(src), EventTime(90), 1_000).unwrap(), expected);
                assert!(view.destinations(NodeId(src), EventTime(90), 1).unwrap().len() <= 1);
            }
        }
    }

    #[test]
    fn the_end_with_fewer_edges_is_searched_as_far_as_allowed() {
        // Node 0 meets everybody; node 1 met it first, and then node 2 a hundred times.
        let events = std::iter::once((1, 0, 1)).chain((0..100).map(|i| (1, 2, 2 + i)));
        let store = store(events.chain((0..500).map(|i| (10 + i, 0, 200 + i64::from(i)))));
        let met = |src, dst, most| {
            store.view().latest_edge(NodeId(src), NodeId(dst), EventTime(10_000), most).unwrap()
        };
        assert_eq!(met(1, 0, 101), Some(EdgeId(0)), "its own list of 101 edges is the shorter one");
        assert_eq!(met(1, 0, 100), None, "it is one too far back");
        assert_eq!((met(0, 1, 101), met(0, 0, 9)), (None, None), "pairs have a direction");
        assert_eq!(met(10, 0, 1), Some(EdgeId(101)), "one edge, however many the other end has");
        assert_eq!((met(7_000, 0, 9), met(0, 7_000, 9)), (None, None));
    }
}
