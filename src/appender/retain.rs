//! When the graph and the rows of its edges let go of what is too old.
//!
//! What may go is what the learner no longer reads: it reports that as it proceeds ([`RetentionBounds`]), and at a
//! start its checkpoint does. Letting go visits every node that may have an edge, so it is done shard by shard, and
//! between two pieces of that work events are taken in. Rows go last, when no new view shows an edge of theirs.
//!
//! It begins when a part of the age has gone by since the last time, [`SHARE`], and besides as many edges were observed
//! of, or have grown old, as pay for it, one for [`NODES_PER_EDGE`] nodes. However fast time goes by in a stream, its
//! edges cost no more than twice that many visits each. In return what is too old may stay: what grew old within that
//! part of the age or, if that is more, fewer edges than there are nodes by [`NODES_PER_EDGE`]; those whose block of
//! ids holds a younger edge are not among them, and may stay as long as that one.

use std::time::{Duration, Instant};

use super::Index;
use crate::event::{EventTime, NodeId};
use crate::graph::{GraphStore, Retention, RetentionBounds, SpillError};

/// The part of the age that has gone by since the last time, at least.
const SHARE: i64 = 16;

/// Nodes visited for an edge, at most.
const NODES_PER_EDGE: u64 = 4;

/// How long is worked at a time, about, and how many times as long a pause follows.
const WORK: Duration = Duration::from_millis(10);
const PAUSE: u32 = 4;

/// The pause after a disk that failed.
const FAILED_PAUSE: Duration = Duration::from_secs(10);

/// How far what is too old was released, and when that goes on.
pub(super) struct Releasing {
    /// The next part, while a release is under way, and what it keeps.
    under_way: Option<(usize, RetentionBounds)>,
    not_before: Instant,
    /// Nodes that have been without an edge for too long.
    pub idle: Vec<NodeId>,
}

impl Releasing {
    pub fn new() -> Self {
        Self { under_way: None, not_before: Instant::now(), idle: Vec::new() }
    }

    /// Does some parts if it is time. A disk that fails is tried again later.
    pub fn turn(&mut self, index: &mut Index, kept: RetentionBounds) {
        let begun = Instant::now();
        if begun < self.not_before {
            return;
        }
        if self.under_way.is_none() && self.idle.is_empty() && is_due(index, kept) {
            index.released = kept;
            self.under_way = Some((0, kept));
        }
        let mut pause = Duration::ZERO;
        while let Some((part, kept)) = self.under_way
            && begun.elapsed() < WORK
        {
            match release_part(index, part, kept, &mut self.idle) {
                Ok(more) => self.under_way = more.then_some((part + 1, kept)),
                Err(error) => {
                    tracing::error!(%error, "edges that are too old could not be released yet");
                    pause = FAILED_PAUSE;
                    break;
                }
            }
        }
        self.not_before = Instant::now() + pause.max(begun.elapsed() * PAUSE);
    }
}

/// Releases all that is not in `kept`, if it is time.
pub(super) fn release(index: &mut Index, kept: RetentionBounds) -> Result<(), SpillError> {
    if !is_due(index, kept) {
        return Ok(());
    }
    index.released = kept;
    // A start writes nothing: the next release finds them again.
    let (mut part, mut idle) = (0, Vec::new());
    while release_part(index, part, kept, &mut idle)? {
        part += 1;
    }
    Ok(())
}

/// Releases a part, adds the nodes to `idle` that have been without an edge for too long, and returns whether there are
/// more parts.
fn release_part(
    index: &Index,
    part: usize,
    kept: RetentionBounds,
    idle: &mut Vec<NodeId>,
) -> Result<bool, SpillError> {
    let graph = &index.stores.graph;
    let more = graph.release_part(part, kept.since)?;
    let now = now(graph, kept);
    graph.note_idle(part, (now, now.max(seen(index))), &index.stores.keys, idle);
    if !more {
        index.stores.edge_features.release_below(kept.first.0);
    }
    Ok(more)
}

/// The time of the stream where this is kept.
fn now(graph: &GraphStore, kept: RetentionBounds) -> EventTime {
    let behind = |Retention { age, lateness }| age.saturating_add(lateness);
    EventTime(kept.since.0.saturating_add(graph.retention().map_or(0, behind)))
}

/// The time of the stream after all that was taken in, by the partition that is farthest.
fn seen(index: &Index) -> EventTime {
    let mut latest = EventTime::MIN;
    index
        .positions
        .for_each_clock(|_, clock| latest = clock.confirmed().map_or(latest, |time| time.max(latest)));
    latest
}

/// Whether enough time has gone by in the stream since the last release, and enough edges.
fn is_due(index: &Index, kept: RetentionBounds) -> bool {
    let (last, Some(retention)) = (index.released, index.stores.graph.retention()) else { return false };
    let gone_by = kept.since.0.saturating_sub(last.since.0);
    let new_edges = kept.end.0.saturating_sub(last.end.0);
    let grown_old = kept.first.0.saturating_sub(last.first.0);
    gone_by >= (retention.age / SHARE).max(1)
        && new_edges.max(grown_old) >= index.stores.graph.visited_nodes() / NODES_PER_EDGE
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{ClockRules, EdgeBatch, EdgeId, EventTime, NodeId};
    use crate::feature::FeatureStore;
    use crate::graph::{GraphOptions, GraphStore, Retention, RetentionClock};
    use crate::log::Frame;

    /// A stream that is replayed frame by frame.
    struct Replay {
        index: Index,
        clock: RetentionClock,
        end: u64,
        releases: u64,
    }

    impl Replay {
        fn new(retention: Retention) -> Self {
            let options = GraphOptions { page_entries_max: 8, ..GraphOptions::default() };
            let graph = GraphStore::new(options).with_retention(retention);
            let index = Index::new(graph, FeatureStore::new(0), FeatureStore::new(0), 0);
            Self { index, clock: RetentionClock::new(Some(retention)), end: 0, releases: 0 }
        }

        /// Takes in a frame and releases what may go.
        fn frame(&mut self, edges: impl Iterator<Item = (u32, u32, i64)>) {
            let mut batch = EdgeBatch { first: EdgeId(self.end), ..EdgeBatch::default() };
            for (src, dst, time) in edges {
                batch.push_edge(NodeId(src), NodeId(dst), EventTime(time));
                self.clock.observe(EdgeId(self.end), EventTime(time));
                self.end += 1;
            }
            self.index.absorb(&Frame { batch, ..Frame::default() }).unwrap();
            let before = self.index.stores.graph.released_before();
            release(&mut self.index, self.clock.bounds()).unwrap();
            self.releases += u64::from(self.index.stores.graph.released_before() > before);
        }
    }

    #[test]
    fn a_stream_that_runs_fast_is_not_visited_as_a_whole_for_every_edge() {
        let mut replay = Replay::new(Retention { age: 160, lateness: 0 });
        // A sixteenth of the age between any two edges; 4,000 nodes in pairs, then ten of them.
        (0..2_000).for_each(|i: u32| replay.frame(std::iter::once((2 * i, 2 * i + 1, i64::from(i) * 10))));
        assert!((5..40).contains(&replay.releases), "{}", replay.releases);
        let before = replay.releases;
        for i in 2_000..6_000_u32 {
            replay.frame(std::iter::once((i % 10, (i + 1) % 10, i64::from(i) * 10)));
            // What is kept, what did not pay for a visit yet, and parts of pages.
            let edges = replay.index.stores.graph.stats().edges;
            assert!(i < 3_000 || edges <= 17 + 640 + 10 * 8, "{edges}");
        }
        // One for every 640 edges, or a few edges more, as 10 of 16 shards still have the page of their first nodes;
        // and one for the first block of ids that is old.
        assert!((6..=8).contains(&(replay.releases - before)), "{}", replay.releases - before);
    }

    #[test]
    fn what_grew_old_at_once_goes_though_few_edges_follow() {
        let retention = Retention { age: 160, lateness: 0 };
        let mut replay = Replay::new(retention);
        // Edges that all have one time show no span that would vouch for a later one.
        let rules = ClockRules { future_limit: Some(1_000), ..ClockRules::default() };
        replay.clock = RetentionClock::new(Some(retention)).with_rules(rules);
        replay.frame((0..20_000).map(|i| (i, i + 1, 1_000)));
        let before = replay.releases;
        replay.frame(std::iter::once((0, 1, 1_100)));
        assert_eq!(
            (replay.releases, replay.index.stores.graph.stats().edges),
            (before, 20_001),
            "nothing is old"
        );
        replay.frame(std::iter::once((0, 1, 1_170)));
        assert_eq!(replay.releases, before + 1);
        assert!(replay.index.stores.graph.stats().edges < 10, "{:?}", replay.index.stores.graph.stats());
        replay.frame(std::iter::once((0, 1, 1_270)));
        assert_eq!(replay.releases, before + 1, "nothing that would pay for a visit");
    }
}
