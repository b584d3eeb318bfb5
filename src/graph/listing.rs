//! A node's edges page by page, newest first: by time, and at equal times by arrival.
//!
//! A page ends with a cursor, the place of the last edge that was read. What is older than a place does not change with
//! what arrives in order, so pages neither repeat nor leave out an edge; only late events may fall between them.

use std::ops::Range;

use super::spill::SpillError;
use super::view::GraphView;
use crate::event::{EdgeId, EventTime, NodeId};

/// Edges that are read at a time where only those of one direction are wanted.
const READ_MIN: usize = 1_024;

/// Which end of an edge a node is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// The node is its source; so is a self loop's.
    Outgoing,
    /// The node is its destination.
    Incoming,
}

/// The place of an edge among those of a node.
pub type EdgePlace = (EventTime, EdgeId);

/// Which edges of a node are listed.
#[derive(Clone, Debug)]
pub struct EdgeListing {
    /// Only those with a time in this range.
    pub times: Range<EventTime>,
    /// Only those that are older than this place.
    pub older_than: Option<EdgePlace>,
    /// Only those of one direction.
    pub direction: Option<Direction>,
    /// At most so many.
    pub most: usize,
    /// Edges of any direction that are read for a page at most.
    pub read_max: usize,
}

/// An edge of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListedEdge {
    /// The other end.
    pub neighbor: NodeId,
    /// Which end the node is.
    pub direction: Direction,
    /// When it happened.
    pub time: EventTime,
    /// The edge.
    pub edge: EdgeId,
}

/// A page of edges.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EdgePage {
    /// Newest first.
    pub edges: Vec<ListedEdge>,
    /// Where the next page begins; `None` if there are no further edges, of any direction.
    pub next: Option<EdgePlace>,
}

impl GraphView<'_> {
    /// A page of a node's edges; under retention, of those before `now` that the view keeps as of then. Nodes that the
    /// graph does not know have none.
    ///
    /// # Errors
    /// Entries are on disk and cannot be read.
    pub fn list_edges(
        self,
        node: NodeId,
        listing: &EdgeListing,
        now: EventTime,
    ) -> Result<EdgePage, SpillError> {
        let mut page = EdgePage { next: listing.older_than, ..EdgePage::default() };
        let mut times = listing.times.clone();
        // The age of an edge is judged as of now, not as of the page's end.
        if let Some(age) = self.age() {
            times.end = times.end.min(now);
            times.start = times.start.max(EventTime(now.0.saturating_sub(age)));
        }
        let wanted = |edge: &ListedEdge| listing.direction.is_none_or(|wanted| wanted == edge.direction);
        let mut left = listing.read_max;
        while page.edges.len() < listing.most && left > 0 {
            // Few of those that are read may have the wanted direction: then many are read at a time.
            let missing = listing.most - page.edges.len();
            let step = left.min(if listing.direction.is_some() { missing.max(READ_MIN) } else { missing });
            let read = self.edges_older_than(node, times.clone(), page.next, step)?;
            left -= step;
            let ended = read.len() < step;
            for edge in read {
                page.next = Some((edge.time, edge.edge));
                page.edges.extend(wanted(&edge).then_some(edge));
                if page.edges.len() == listing.most {
                    break;
                }
            }
            if ended {
                break;
            }
        }
        // An edge behind the last one, of any direction, shows that there is a further page.
        if self.edges_older_than(node, times, page.next, 1)?.is_empty() {
            page.next = None;
        }
        Ok(page)
    }

    /// The newest `most` edges in a range of times that are older than a place.
    fn edges_older_than(
        self,
        node: NodeId,
        times: Range<EventTime>,
        place: Option<EdgePlace>,
        most: usize,
    ) -> Result<Vec<ListedEdge>, SpillError> {
        let mut edges = Vec::new();
        let Some((time, edge)) = place else {
            self.newest_edges(node, times, most, &mut edges)?;
            return Ok(edges);
        };
        if times.contains(&time) {
            let at_once = time..EventTime(time.0.saturating_add(1));
            self.below(edge).newest_edges(node, at_once, most, &mut edges)?;
        }
        let earlier = times.start..times.end.min(time);
        self.newest_edges(node, earlier, most - edges.len(), &mut edges)?;
        Ok(edges)
    }

    fn newest_edges(
        self,
        node: NodeId,
        times: Range<EventTime>,
        most: usize,
        edges: &mut Vec<ListedEdge>,
    ) -> Result<(), SpillError> {
        if most == 0 || times.is_empty() {
            return Ok(());
        }
        let reader = self.reader(&[node]);
        reader.expect_newest(&[node], std::iter::once(times.clone()), most);
        reader.past(node, times).horizon().newest(most, |run| {
            edges.extend(run.records().map(|record| ListedEdge {
                neighbor: record.neighbor(),
                direction: if record.is_incoming() { Direction::Incoming } else { Direction::Outgoing },
                time: EventTime(record.time),
                edge: EdgeId(record.edge),
            }));
        });
        reader.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::rng::below;
    use crate::event::{EdgeBatch, Op};
    use crate::graph::{GraphOptions, GraphStore, Retention};

    const NODES: u32 = 5;

    fn events() -> Vec<(u32, u32, i64)> {
        let draw = |i: u64, word, bound| below([17, i, 0, word], bound);
        (0..700).map(|i| (draw(i, 0, NODES), draw(i, 1, NODES), i64::from(draw(i, 2, 40)))).collect()
    }

    fn store(events: &[(u32, u32, i64)]) -> GraphStore {
        let mut batch = EdgeBatch::default();
        for &(src, dst, time) in events {
            batch.push_edge(NodeId(src), NodeId(dst), EventTime(time));
        }
        let store = GraphStore::new(GraphOptions { shards: 2, page_entries_max: 8 });
        store.apply(&batch).unwrap();
        store
    }

    /// The same by reading all events.
    fn expected(events: &[(u32, u32, i64)], node: u32, listing: &EdgeListing) -> Vec<ListedEdge> {
        let edge = |(i, &(src, dst, time)): (usize, &(u32, u32, i64))| {
            let (time, edge) = (EventTime(time), EdgeId(i as u64));
            let end = |neighbor, direction| ListedEdge { neighbor: NodeId(neighbor), direction, time, edge };
            let ends = [
                (src == node).then(|| end(dst, Direction::Outgoing)),
                (dst == node && src != node).then(|| end(src, Direction::Incoming)),
            ];
            ends.into_iter().flatten()
        };
        let mut all: Vec<_> = events.iter().enumerate().flat_map(edge).collect();
        all.retain(|edge| {
            listing.times.contains(&edge.time) && listing.direction.is_none_or(|one| one == edge.direction)
        });
        all.sort_by_key(|edge| std::cmp::Reverse((edge.time, edge.edge)));
        all
    }

    #[test]
    fn pages_together_are_all_edges_of_a_node_each_once() {
        let events = events();
        let store = store(&events);
        let windows = [(i64::MIN, i64::MAX), (7, 21), (21, 21), (39, 100)];
        for (node, (from, before)) in (0..=NODES).flat_map(|node| windows.map(|window| (node, window))) {
            for direction in [None, Some(Direction::Outgoing), Some(Direction::Incoming)] {
                for (most, read_max) in [(1, 9), (7, 7), (50, 20), (3, 5_000), (1_000, 2_000)] {
                    let times = EventTime(from)..EventTime(before);
                    let mut listing = EdgeListing { times, older_than: None, direction, most, read_max };
                    let mut found = Vec::new();
                    loop {
                        let page = store.view().list_edges(NodeId(node), &listing, EventTime(15)).unwrap();
                        assert!(page.edges.len() <= most);
                        found.extend(page.edges);
                        let Some(next) = page.next else { break };
                        assert_ne!(listing.older_than, Some(next), "a page goes on");
                        listing.older_than = Some(next);
                    }
                    assert_eq!(found, expected(&events, node, &listing), "node {node}, {listing:?}");
                }
            }
        }
    }

    #[test]
    fn a_page_that_ends_with_the_last_edge_says_so() {
        let store = store(&[(0, 1, 1), (0, 1, 1), (0, 1, 2)]);
        let times = EventTime::MIN..EventTime(10);
        let listing = EdgeListing { times, older_than: None, direction: None, most: 2, read_max: 100 };
        let first = store.view().list_edges(NodeId(0), &listing, EventTime(10)).unwrap();
        assert_eq!(first.next, Some((EventTime(1), EdgeId(1))));
        let listing = EdgeListing { older_than: first.next, ..listing };
        let second = store.view().list_edges(NodeId(0), &listing, EventTime(10)).unwrap();
        assert_eq!((second.edges.len(), second.next), (1, None));
    }

    #[test]
    fn what_is_too_old_now_is_on_no_page() {
        let mut batch = EdgeBatch::default();
        (0..100).for_each(|time| batch.push_edge(NodeId(0), NodeId(1), EventTime(time)));
        let store =
            GraphStore::new(GraphOptions::default()).with_retention(Retention { age: 30, lateness: 0 });
        store.apply(&batch).unwrap();
        let times = EventTime::MIN..EventTime(i64::MAX);
        let mut listing = EdgeListing { times, older_than: None, direction: None, most: 7, read_max: 100 };
        let mut found = Vec::new();
        loop {
            let page = store.view().list_edges(NodeId(0), &listing, EventTime(100)).unwrap();
            found.extend(page.edges.iter().map(|edge| edge.time.0));
            listing.older_than = page.next;
            if page.next.is_none() {
                break;
            }
        }
        assert_eq!(found, (70..100).rev().collect::<Vec<_>>());
    }

    #[test]
    fn any_place_is_one_to_go_on_from_and_deleted_edges_are_on_no_page() {
        let events: Vec<_> = (0..50).map(|i| (0, 1 + i % 2, i64::from(i / 5))).collect();
        let store = store(&events);
        let listed = |times: Range<i64>, older_than, most| {
            let times = EventTime(times.start)..EventTime(times.end);
            let listing = EdgeListing { times, older_than, direction: None, most, read_max: 100 };
            store.view().list_edges(NodeId(0), &listing, EventTime(i64::MAX)).unwrap()
        };
        let all = i64::MIN..i64::MAX;
        for (time, edge, count) in [
            (i64::MAX, u64::MAX, 50),
            (i64::MAX, 0, 50),
            (i64::MIN, 0, 0),
            (i64::MIN, u64::MAX, 0),
            (3, 17, 17),
        ] {
            let page = listed(all.clone(), Some((EventTime(time), EdgeId(edge))), 100);
            assert_eq!((page.edges.len(), page.next), (count, None), "{time}:{edge}");
        }
        assert_eq!(listed(Range { start: 9, end: 3 }, None, 100), EdgePage::default());
        let first = listed(all.clone(), None, 20);
        let mut deletion = EdgeBatch { first: EdgeId(50), ..EdgeBatch::default() };
        deletion.push_edge(NodeId(1), NodeId(1), EventTime(i64::MAX));
        deletion.op = vec![Op::DeleteNode];
        store.apply(&deletion).unwrap();
        let rest = listed(all, first.next, 100);
        assert!(rest.edges.iter().all(|edge| edge.neighbor == NodeId(2) && edge.edge < first.edges[19].edge));
        assert_eq!(rest.edges.len(), 15);
    }
}
