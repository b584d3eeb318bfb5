//! Retention by age: which part of a stream is kept, and the release of the rest.
//!
//! A store with a retention of `age` shows of a node before time t only what happened in `[t - age, t)`, whatever the
//! store still holds. A reader that follows the order of the log, as the learner does, is also limited by the
//! [`RetentionBounds`] at its position in the log: nothing before the newest event so far less the age, less the
//! lateness that events may have; how new the newest is, a [`StreamClock`] judges. That bound follows from the log
//! alone and only grows, so older edges can be released at any time from then on without changing a result.
//!
//! Edges are released in whole blocks: a block whose every entry is before the bound is released unread, because the
//! start of the next block bounds it; only a list's last block may have to be read. Of those, chunks on disk are read
//! [`GROUP`] at a time, and are evicted before the next group. Other edges before the bound stay for some time, in no
//! view.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;

use parking_lot::RwLock;

use super::fault::{Entries, Fault};
use super::spill::{GROUP, SpillError};
use super::store::{GraphStore, Shard};
use crate::event::{ClockRules, EdgeId, EventTime, StreamClock};

/// Edge ids per block; the [`RetentionClock`] keeps one latest time per block.
const ROW_BLOCK: u64 = 4096;

/// How long edges are kept, in the stream's unit of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    /// How far back a view sees, at least 1.
    pub age: i64,
    /// How far behind the newest event an event may be and still see as far back; not negative.
    pub lateness: i64,
}

/// What may be read from some position in the log on. The default is everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetentionBounds {
    /// Edges before this time are not seen.
    pub since: EventTime,
    /// Edges that are seen have this id at least.
    pub first: EdgeId,
    /// The position in the log: one past the last edge that was observed.
    pub end: EdgeId,
}

/// What a start keeps of the log that it reads.
#[derive(Clone, Copy, Debug)]
pub enum Keeping {
    /// What a learner that continues at this position still reads; that follows from the log, if all of it is read
    /// now.
    For(EdgeId),
    /// What is inside these bounds.
    Within(RetentionBounds),
}

impl Default for RetentionBounds {
    fn default() -> Self {
        Self { since: EventTime::MIN, first: EdgeId(0), end: EdgeId(0) }
    }
}

/// Computes the bounds at each position in the log from its edges, in order. Without a retention everything is kept.
#[derive(Clone, Debug)]
pub struct RetentionClock {
    retention: Option<Retention>,
    stream: StreamClock,
    end: EdgeId,
    /// The first block of ids that is kept.
    block: u64,
    /// The latest time in each block from there on; the last is not complete.
    latest_in_block: VecDeque<i64>,
    /// Blocks before this one hold no time beyond the clock: an edge from far ahead grows old with those around it.
    settled: u64,
    /// The latest time in a block of which no edge was observed.
    unseen: i64,
}

impl RetentionClock {
    /// A clock at the begin of the log.
    #[must_use]
    pub fn new(retention: Option<Retention>) -> Self {
        let stream = StreamClock::default();
        let latest_in_block = VecDeque::new();
        Self { retention, stream, end: EdgeId(0), block: 0, latest_in_block, settled: 0, unseen: i64::MIN }
    }

    /// The same, in the midst of a log: edges before the first that is observed count as those of the latest time
    /// there, so none of them grows old too early.
    #[must_use]
    pub fn after(self, latest: Option<EventTime>) -> Self {
        Self { unseen: latest.map_or(i64::MIN, |latest| latest.0), ..self }
    }

    /// The same, which judges times by these rules.
    #[must_use]
    pub fn with_rules(self, rules: ClockRules) -> Self {
        Self { stream: StreamClock::new(rules), ..self }
    }

    /// Observes an edge, whose id is above those before it.
    pub fn observe(&mut self, edge: EdgeId, time: EventTime) {
        if self.retention.is_none() {
            return;
        }
        self.stream.observe(edge, time);
        self.end = EdgeId(edge.0 + 1);
        let place = usize::try_from((edge.0 / ROW_BLOCK).saturating_sub(self.block)).unwrap_or(usize::MAX);
        if place >= self.latest_in_block.len() {
            self.latest_in_block.resize(place + 1, self.unseen);
            self.settle();
        }
        let latest = &mut self.latest_in_block[place];
        *latest = time.0.max(*latest);
    }

    /// Whether a block of ids begins with this edge, the next one to observe. What [`Self::bounds`] keeps then depends
    /// on the log alone, not on when it was asked before.
    #[must_use]
    pub fn begins_block(&self, edge: EdgeId) -> bool {
        self.retention.is_some() && edge.0 / ROW_BLOCK >= self.end.0.div_ceil(ROW_BLOCK)
    }

    /// Ends the wait for the blocks before the last complete one. Since an edge of theirs a whole block went by, so a
    /// time that is still beyond the clock is confirmed by no others.
    fn settle(&mut self) {
        let Some(clock) = self.stream.confirmed() else { return };
        let end = (self.block + self.latest_in_block.len() as u64).saturating_sub(2);
        let from = usize::try_from(self.settled.saturating_sub(self.block)).unwrap_or(usize::MAX);
        let to = usize::try_from(end.saturating_sub(self.block)).unwrap_or(0);
        for latest in self.latest_in_block.iter_mut().take(to).skip(from) {
            *latest = clock.0.min(*latest);
        }
        self.settled = self.settled.max(end);
    }

    /// The bounds after the last edge that was observed.
    pub fn bounds(&mut self) -> RetentionBounds {
        let Some(Retention { age, lateness }) = self.retention else { return RetentionBounds::default() };
        let latest = self.stream.confirmed().unwrap_or(EventTime::MIN);
        let since = EventTime(latest.0.saturating_sub(age).saturating_sub(lateness));
        while self.latest_in_block.len() > 1 && self.latest_in_block[0] < since.0 {
            self.latest_in_block.pop_front();
            self.block += 1;
        }
        RetentionBounds { since, first: EdgeId(self.block * ROW_BLOCK), end: self.end }
    }

    /// The same clock under these rules; see [`StreamClock::corrected`].
    #[must_use]
    pub fn corrected(self, rules: ClockRules) -> Self {
        Self { stream: self.stream.corrected(rules), ..self }
    }

    /// The clock as numbers.
    #[must_use]
    pub fn to_numbers(&self) -> Vec<i64> {
        let stream = self.stream.to_numbers();
        let mut numbers = vec![self.end.0, self.block, self.settled, stream.len() as u64];
        numbers.push(self.latest_in_block.len() as u64);
        let mut numbers: Vec<i64> = numbers.into_iter().map(u64::cast_signed).collect();
        numbers.extend(stream);
        numbers.extend(&self.latest_in_block);
        numbers
    }

    /// The clock with these numbers; `None` if they are none.
    #[must_use]
    pub fn from_numbers(numbers: &[i64], retention: Option<Retention>, rules: ClockRules) -> Option<Self> {
        let (counts, rest) = numbers.split_first_chunk::<5>()?;
        let [end, block, settled, stream, blocks] = counts.map(i64::cast_unsigned);
        let (stream, latest) = rest.split_at_checked(usize::try_from(stream).ok()?)?;
        if latest.len() as u64 != blocks {
            return None;
        }
        Some(Self {
            retention,
            stream: StreamClock::from_numbers(stream)?.with_rules(rules),
            end: EdgeId(end),
            block,
            latest_in_block: latest.iter().copied().collect(),
            settled,
            unseen: i64::MIN,
        })
    }
}

impl GraphStore {
    /// The same store, whose views see only as far back as `retention` allows.
    #[must_use]
    pub fn with_retention(mut self, retention: Retention) -> Self {
        self.retention = Some(retention);
        self
    }

    /// The latest time that the edges so far agree on, later deleted ones included: see [`StreamClock`].
    #[must_use]
    pub fn latest_time(&self) -> Option<EventTime> {
        self.summary.read().clock.latest()
    }

    /// The same store, empty, which judges times by these rules.
    #[must_use]
    pub fn with_clock_rules(mut self, rules: ClockRules) -> Self {
        self.clock_rules = rules;
        self.summary.get_mut().clock = StreamClock::new(rules);
        self
    }

    /// By what times are judged.
    #[must_use]
    pub fn clock_rules(&self) -> ClockRules {
        self.clock_rules
    }

    /// How far back views see; `None` if everything is kept.
    #[must_use]
    pub fn retention(&self) -> Option<Retention> {
        self.retention
    }

    /// Edges before this time may have been released; no view that is made from now on sees one.
    #[must_use]
    pub fn released_before(&self) -> EventTime {
        EventTime(self.released_before.load(Ordering::Acquire))
    }

    /// Releases edges before `time` of one shard, all that are in blocks without later ones, and returns whether there
    /// are more shards. Edges at `time` and later are not touched. Visits every node of the shard; batches may be
    /// applied between two parts, and readers are not blocked.
    ///
    /// # Errors
    /// Entries that have to be read are on disk and cannot be; nothing of the shard was released, and the part may be
    /// tried again.
    pub fn release_part(&self, part: usize, time: EventTime) -> Result<bool, SpillError> {
        let _writer = self.writer.lock();
        let mut hand = self.hand.lock();
        self.released_before.fetch_max(time.0, Ordering::AcqRel);
        let Some(shard) = self.shards.get(part) else { return Ok(false) };
        let old = self.old_blocks(shard, time.0)?;
        if !old.is_empty() {
            let (newest, mut expired) = (self.applied().0, 0);
            let mut shard = shard.write();
            for Old { index, blocks } in old {
                expired += shard.change(index, |list, slab| list.drop_front(slab, blocks, newest));
            }
            shard.slab.give_back();
            drop(shard);
            self.summary.write().expired_entries += expired;
            self.compact(part);
        }
        self.settle(&mut hand);
        Ok(part + 1 < self.shards.len())
    }
}

/// How many blocks at the front of the list `index` of a shard are old.
struct Old {
    index: usize,
    blocks: usize,
}

/// The list `index` of a shard, whose last block is in `chunk` and has to be read.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct End {
    chunk: usize,
    index: usize,
}

impl GraphStore {
    /// The blocks of `shard` that hold nothing at `time` or later. A list may occur twice: then that many more. The
    /// caller is the one writer and has the hand.
    fn old_blocks(&self, shard: &RwLock<Shard>, time: i64) -> Result<Vec<Old>, SpillError> {
        let (mut old, mut ends) = shard.read().begun_blocks(time);
        ends.sort_unstable();
        let by_chunk: Vec<_> = ends.chunk_by(|a, b| a.chunk == b.chunk).collect();
        for ends in by_chunk.chunks(GROUP) {
            let loaded = shard.read().collect_old(ends, time, &mut old)?;
            if let Some(spill) = self.spill.as_ref().filter(|_| !loaded.is_empty()) {
                let left = shard.write().evict_unmarked(&loaded);
                spill.evicted(left);
            }
        }
        Ok(old)
    }
}

impl Shard {
    /// The blocks that are known to hold nothing at `time` or later, and the lists of which every block begins before.
    fn begun_blocks(&self, time: i64) -> (Vec<Old>, Vec<End>) {
        let (mut old, mut ends) = (Vec::new(), Vec::new());
        for (index, list) in self.lists.iter_from(0) {
            let blocks = list.blocks();
            let begun = blocks.partition_point(|block| block.start < time);
            // Every block but the last of those that begin before `time` ends before the last begins.
            if begun > 1 {
                old.push(Old { index, blocks: begun - 1 });
            }
            if begun > 0 && begun == blocks.len() {
                ends.push(End { chunk: blocks[begun - 1].chunk(&self.slab), index });
            }
        }
        (old, ends)
    }

    /// Adds to `old` the last block of each list in `ends` that holds nothing at `time` or later, and returns which
    /// chunks were loaded for that. Those in `ends` are grouped by chunk.
    fn collect_old(&self, ends: &[&[End]], time: i64, old: &mut Vec<Old>) -> Result<Vec<usize>, SpillError> {
        let loaded = self.slab.load_unmarked(ends.iter().map(|ends| ends[0].chunk))?;
        let fault = Fault::default();
        let entries = Entries::new(&self.slab, &fault);
        for &End { index, .. } in ends.iter().copied().flatten() {
            let last = self.lists.get(index).and_then(|list| list.last(entries));
            if last.is_some_and(|last| last.time < time) {
                old.push(Old { index, blocks: 1 });
            }
        }
        fault.check(loaded)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;
    use std::sync::{Arc, OnceLock, Weak};

    use super::*;
    use crate::device::disk::tests::faulty::{Fault as DiskFault, Faulty};
    use crate::event::{EdgeBatch, NodeId};
    use crate::graph::GraphOptions;

    #[test]
    fn the_clock_keeps_every_edge_that_is_young_enough() {
        let retention = Retention { age: 500, lateness: 20 };
        let mut clock = RetentionClock::new(Some(retention));
        assert_eq!(clock.bounds(), RetentionBounds::default());
        let time = |id: u64| (id / 40) as i64 - if id.is_multiple_of(9) { 300 } else { 0 };
        for id in (0..60_000).filter(|id| id % 7 != 3) {
            clock.observe(EdgeId(id), EventTime(time(id)));
            if id > 0 && id % 1_000 == 0 {
                let kept = clock.bounds();
                let latest = (0..=id).filter(|id| id % 7 != 3).map(time).max().unwrap();
                assert_eq!((kept.since.0, kept.end.0), (latest - 520, if id % 7 == 3 { id } else { id + 1 }));
                let young = (0..=id).find(|&id| id % 7 != 3 && time(id) >= kept.since.0).unwrap();
                assert!(kept.first.0 <= young && kept.first.0 + 2 * ROW_BLOCK > young, "{kept:?} at {id}");
            }
        }
        assert!(clock.latest_in_block.len() < 10);
        let mut everything = RetentionClock::new(None);
        everything.observe(EdgeId(1 << 40), EventTime::MAX);
        assert_eq!(everything.bounds(), RetentionBounds::default());
    }

    #[test]
    fn a_clock_in_the_midst_of_a_log_lets_nothing_go_too_early() {
        let (begun, time) = (10 * ROW_BLOCK, |id: u64| EventTime(id as i64 / 8));
        let clock = RetentionClock::new(Some(Retention { age: 500, lateness: 20 }));
        let mut clock = clock.after(Some(time(begun - 1)));
        (begun..begun + ROW_BLOCK).for_each(|id| clock.observe(EdgeId(id), time(id)));
        assert_eq!(clock.bounds().first, EdgeId(0), "512 units of time went by");
        (begun + ROW_BLOCK..begun + 2 * ROW_BLOCK).for_each(|id| clock.observe(EdgeId(id), time(id)));
        assert_eq!(clock.bounds().first, EdgeId(begun), "all before is too old");
    }

    #[test]
    fn one_time_far_ahead_takes_nothing_away() {
        for place in [0, 3, 50] {
            let mut clock = RetentionClock::new(Some(Retention { age: 500, lateness: 20 }));
            for id in 0..100 {
                let wild = id == place;
                let time = if wild { 4_000_000_000_000_000_000 } else { 10_000 + id as i64 };
                clock.observe(EdgeId(id), EventTime(time));
            }
            assert_eq!(clock.bounds().since, EventTime(10_099 - 520), "{place}");
            let store = GraphStore::new(GraphOptions::default());
            for id in 0..100_u64 {
                let mut batch = EdgeBatch { first: EdgeId(id), ..EdgeBatch::default() };
                let time = if id == place { 4_000_000_000_000_000_000 } else { 10_000 + id as i64 };
                batch.push_edge(NodeId(0), NodeId(1), EventTime(time));
                store.apply(&batch).unwrap();
            }
            assert_eq!(store.latest_time(), Some(EventTime(10_099)), "{place}");
        }
    }

    #[test]
    fn rows_are_released_behind_an_edge_from_far_ahead() {
        let wild = [3, ROW_BLOCK + 7, 5 * ROW_BLOCK - 1];
        let run = |wild: &[u64]| {
            let mut clock = RetentionClock::new(Some(Retention { age: 500, lateness: 20 }));
            let mut first = Vec::new();
            for id in 0..20 * ROW_BLOCK {
                let time = if wild.contains(&id) { 4_000_000_000_000_000_000 } else { id as i64 / 8 };
                clock.observe(EdgeId(id), EventTime(time));
                if id % 500 == 0 {
                    first.push(clock.bounds().first.0);
                }
            }
            (first, clock.latest_in_block.len())
        };
        let ((plain, _), (spoilt, blocks)) = (run(&[]), run(&wild));
        assert!(plain[plain.len() - 1] > 17 * ROW_BLOCK && blocks < 5, "{plain:?}");
        let behind = plain.iter().zip(&spoilt).map(|(plain, spoilt)| plain - spoilt).max();
        assert!(behind <= Some(2 * ROW_BLOCK), "{behind:?}");
        // Nine after a gap are not wild: more confirm them, and all are kept.
        let mut clock = RetentionClock::new(Some(Retention { age: 500, lateness: 20 }));
        for id in 0..9 * ROW_BLOCK {
            let time = if id + 9 < 4 * ROW_BLOCK { id as i64 / 1_000 } else { 900_000 };
            clock.observe(EdgeId(id), EventTime(time));
            assert!(clock.bounds().first.0 <= 4 * ROW_BLOCK - 9, "at {id}");
        }
        assert_eq!(clock.bounds().first.0, 3 * ROW_BLOCK);
    }

    #[test]
    fn ids_without_edges_and_times_at_the_ends_are_no_trouble() {
        let mut clock = RetentionClock::new(Some(Retention { age: i64::MAX, lateness: i64::MAX }));
        clock.observe(EdgeId(3 * ROW_BLOCK), EventTime::MIN);
        assert_eq!(clock.bounds().since, EventTime::MIN);
        (0..20).for_each(|i| clock.observe(EdgeId(9 * ROW_BLOCK + i), EventTime::MAX));
        let (first, end) = (EdgeId(9 * ROW_BLOCK), EdgeId(9 * ROW_BLOCK + 20));
        assert_eq!(clock.bounds(), RetentionBounds { since: EventTime(-i64::MAX), first, end });
    }

    #[test]
    fn a_release_looks_at_the_disk_in_groups_and_keeps_nothing_of_it_in_memory() {
        let (known, most) = (Arc::new(OnceLock::<Weak<GraphStore>>::new()), Arc::new(AtomicU64::new(0)));
        let (store, resident) = (known.clone(), most.clone());
        let disk = Faulty::new(move |operation| {
            if let Some(store) = store.get().and_then(Weak::upgrade).filter(|_| !operation.writes) {
                resident.fetch_max(store.spill_stats().unwrap().resident_bytes, Ordering::AcqRel);
            }
            DiskFault::Works
        });
        let options = GraphOptions { shards: 1, page_entries_max: 16 };
        let store = Arc::new(GraphStore::with_budget(options, 6 << 20, Box::new(disk)));
        assert!(known.set(Arc::downgrade(&store)).is_ok());
        // Every node meets another once at first and three times later: a list is one block.
        let nodes = 100_000;
        for round in 0..4 {
            let mut batch = EdgeBatch { first: store.applied(), ..EdgeBatch::default() };
            for node in (0..nodes).step_by(2) {
                let time = i64::from(node) + if round > 0 { 200_000 } else { 0 };
                batch.push_edge(NodeId(node), NodeId(node + 1), EventTime(time));
            }
            store.apply(&batch).unwrap();
        }
        let stats = || store.spill_stats().unwrap();
        let before = stats();
        most.store(0, Ordering::Release);
        assert!(!store.release_part(0, EventTime(150_000)).unwrap());
        let after = stats();
        assert_eq!(store.stats().expired_edges, 0);
        assert!(after.loads > before.loads + 2 * GROUP as u64, "{before:?} {after:?}");
        assert_eq!(after.resident_bytes, before.resident_bytes, "what was requested stays in memory");
        assert_eq!(most.load(Ordering::Acquire), before.resident_bytes, "at the begin of each read");
        assert!(!store.release_part(0, EventTime(400_000)).unwrap());
        assert_eq!((store.stats().edges, store.stats().expired_edges), (0, 4 * u64::from(nodes) / 2));
    }
}
