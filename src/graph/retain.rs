//! Retention by age: what is kept of a stream, and letting go of the rest.
//!
//! A store with a retention of `age` shows of a node before time t only what happened in `[t - age, t)`, whoever asks
//! and whatever the store still holds. Somebody whose questions come in the order of the log, as the learner's do,
//! bounds them besides by what is [`Kept`] at his place in the log: nothing before the newest event by then less the
//! age, less the lateness that events may have. That bound follows from the log alone and only grows, so what lies
//! before it can be released at any time from then on, and no answer of his tells whether it was.
//!
//! Edges go in whole blocks: a block whose every entry is before the bound is released unread, because the block
//! behind it tells where it ends; only a list's last block may have to be looked at. What else is before the bound
//! stays for some time and is in no view.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;

use super::fault::{Entries, Fault};
use super::list::AdjacencyList;
use super::spill::SpillError;
use super::store::{GraphStore, Shard};
use crate::event::{EdgeId, EventTime};

/// Edge ids of which the [`RetentionClock`] knows the latest time together.
const ROW_BLOCK: u64 = 4096;

/// How long edges are kept, in the stream's unit of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    /// How far back a question sees, at least 1.
    pub age: i64,
    /// How far behind the newest event an event may be and still see as far back; not negative.
    pub lateness: i64,
}

/// What may be asked for from some place in the log on. The default is everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kept {
    /// Edges before this time are not seen.
    pub since: EventTime,
    /// Edges that are seen have this id at least.
    pub first: EdgeId,
}

impl Default for Kept {
    fn default() -> Self {
        Self { since: EventTime::MIN, first: EdgeId(0) }
    }
}

/// Says what is kept at each place in the log; hears of its edges in order. Without a retention that is everything.
#[derive(Clone, Debug)]
pub struct RetentionClock {
    retention: Option<Retention>,
    latest: EventTime,
    /// The first block of ids that is kept.
    block: u64,
    /// The latest time in each block from there on; the last is not complete.
    latest_in_block: VecDeque<i64>,
}

impl RetentionClock {
    /// A clock at the begin of the log.
    #[must_use]
    pub fn new(retention: Option<Retention>) -> Self {
        Self { retention, latest: EventTime::MIN, block: 0, latest_in_block: VecDeque::new() }
    }

    /// Hears of an edge, whose id is above those before it.
    pub fn hear(&mut self, edge: EdgeId, time: EventTime) {
        if self.retention.is_none() {
            return;
        }
        self.latest = self.latest.max(time);
        let place = usize::try_from((edge.0 / ROW_BLOCK).saturating_sub(self.block)).unwrap_or(usize::MAX);
        if place >= self.latest_in_block.len() {
            self.latest_in_block.resize(place + 1, i64::MIN);
        }
        let latest = &mut self.latest_in_block[place];
        *latest = time.0.max(*latest);
    }

    /// What is kept behind the last edge that was heard of.
    pub fn kept(&mut self) -> Kept {
        let Some(Retention { age, lateness }) = self.retention else { return Kept::default() };
        let since = EventTime(self.latest.0.saturating_sub(age).saturating_sub(lateness));
        while self.latest_in_block.len() > 1 && self.latest_in_block[0] < since.0 {
            self.latest_in_block.pop_front();
            self.block += 1;
        }
        Kept { since, first: EdgeId(self.block * ROW_BLOCK) }
    }
}

impl GraphStore {
    /// The same store, of which every view sees as far back as `retention` says.
    #[must_use]
    pub fn with_retention(mut self, retention: Retention) -> Self {
        self.retention = Some(retention);
        self
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

    /// Releases edges before `time` of one shard, all that stand in blocks without later ones, and says whether there
    /// are more shards. Edges at `time` and later are not touched. Visits every node of the shard; batches may be
    /// applied between two parts, and readers go on meanwhile.
    ///
    /// # Errors
    /// Entries that have to be looked at are on disk and cannot be read; nothing of the shard went, and the part
    /// may be tried again.
    pub fn release_part(&self, part: usize, time: EventTime) -> Result<bool, SpillError> {
        let _writer = self.writer.lock();
        let mut hand = self.hand.lock();
        self.released_before.fetch_max(time.0, Ordering::AcqRel);
        let Some(shard) = self.shards.get(part) else { return Ok(false) };
        let old = shard.read().old_blocks(time.0)?;
        if !old.is_empty() {
            let (newest, mut expired) = (self.applied().0, 0);
            let mut shard = shard.write();
            for (index, blocks) in old {
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

impl Shard {
    /// The lists with blocks that hold nothing at `time` or later, and how many those are.
    fn old_blocks(&self, time: i64) -> Result<Vec<(usize, usize)>, SpillError> {
        // Every block but the last of those that begin before `time` ends before the last begins.
        let (mut old, mut ends) = (Vec::new(), Vec::new());
        for (index, list) in self.lists.iter().enumerate() {
            let blocks = list.blocks();
            let begun = blocks.partition_point(|block| block.start < time);
            if begun > 0 {
                old.push((index, begun - 1));
            }
            if begun > 0 && begun == blocks.len() {
                ends.push(blocks[begun - 1].chunk(&self.slab));
            }
        }
        self.slab.load(ends)?;
        let fault = Fault::default();
        let entries = Entries::new(&self.slab, &fault);
        for (index, blocks) in &mut old {
            let list: &AdjacencyList = &self.lists[*index];
            let ended = *blocks + 1 == list.blocks().len();
            *blocks += usize::from(ended && list.last(entries).is_some_and(|last| last.time < time));
        }
        old.retain(|&(_, blocks)| blocks > 0);
        fault.check(old)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_keeps_every_edge_that_is_young_enough() {
        let retention = Retention { age: 500, lateness: 20 };
        let mut clock = RetentionClock::new(Some(retention));
        assert_eq!(clock.kept(), Kept { since: EventTime(i64::MIN), first: EdgeId(0) });
        let time = |id: u64| (id / 40) as i64 - if id.is_multiple_of(9) { 300 } else { 0 };
        for id in (0..60_000).filter(|id| id % 7 != 3) {
            clock.hear(EdgeId(id), EventTime(time(id)));
            if id % 1_000 == 0 {
                let kept = clock.kept();
                let latest = (0..=id).filter(|id| id % 7 != 3).map(time).max().unwrap();
                assert_eq!(kept.since.0, latest - 520);
                let young = (0..=id).find(|&id| id % 7 != 3 && time(id) >= kept.since.0).unwrap();
                assert!(kept.first.0 <= young && kept.first.0 + 2 * ROW_BLOCK > young, "{kept:?} at {id}");
            }
        }
        assert!(clock.latest_in_block.len() < 10);
        let mut everything = RetentionClock::new(None);
        everything.hear(EdgeId(1 << 40), EventTime::MAX);
        assert_eq!(everything.kept(), Kept::default());
    }

    #[test]
    fn ids_without_edges_and_times_at_the_ends_are_no_trouble() {
        let mut clock = RetentionClock::new(Some(Retention { age: i64::MAX, lateness: i64::MAX }));
        clock.hear(EdgeId(3 * ROW_BLOCK), EventTime::MIN);
        assert_eq!(clock.kept().since, EventTime::MIN);
        clock.hear(EdgeId(9 * ROW_BLOCK), EventTime::MAX);
        let kept = clock.kept();
        assert_eq!(kept, Kept { since: EventTime(-i64::MAX), first: EdgeId(9 * ROW_BLOCK) });
    }
}
