//! Where the time of [`GraphStore::apply`] goes: the same parts, called one after another on one thread with a
//! clock between them. Production code carries no clock.

use std::time::Instant;

use super::block::Record;
use super::plan::BatchPlan;
use super::store::{GraphStore, Summary};
use super::{Applied, GraphOptions};
use crate::event::{EdgeBatch, Op};

/// Seconds of each part of the batches applied so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct StageSeconds {
    /// Counting records and late edges.
    pub count: f64,
    /// Writing the plan's words.
    pub name: f64,
    /// Sorting them.
    pub sort: f64,
    /// Taking and leaving the shards' locks.
    pub lock: f64,
    /// Adding entries to lists, in all shards together.
    pub fill: f64,
}

impl StageSeconds {
    /// Of all parts.
    #[must_use]
    pub fn total(&self) -> f64 {
        self.count + self.name + self.sort + self.lock + self.fill
    }
}

/// A store that is filled by the parts of [`GraphStore::apply`], each timed. It is there to be filled: nothing is
/// published in it.
pub struct StagedStore {
    store: GraphStore,
    summary: Summary,
    plan: BatchPlan,
    records: Vec<Record>,
    seconds: StageSeconds,
}

impl StagedStore {
    /// An empty store.
    #[must_use]
    pub fn new(options: GraphOptions) -> Self {
        Self {
            store: GraphStore::new(options),
            summary: Summary::default(),
            plan: BatchPlan::default(),
            records: Vec::new(),
            seconds: StageSeconds::default(),
        }
    }

    /// Adds the edges of `batch`, which has no deletions and comes after the batches before it.
    pub fn apply(&mut self, batch: &EdgeBatch) {
        debug_assert!(batch.op.iter().all(|op| matches!(op, Op::Edge | Op::Node)));
        let Self { store, summary, plan, records, seconds } = self;
        let mut last = Instant::now();
        let mut lap = |stage: &mut f64| {
            let now = Instant::now();
            *stage += (now - last).as_secs_f64();
            last = now;
        };
        summary.count(batch, 0..batch.len(), &mut Applied::default());
        lap(&mut seconds.count);
        plan.name(batch, 0..batch.len(), store.map);
        lap(&mut seconds.name);
        plan.sort();
        lap(&mut seconds.sort);
        for (number, words) in plan.shards() {
            let mut shard = store.shards[number].write();
            lap(&mut seconds.lock);
            shard.fill(plan, batch, words, records, store.growth);
            lap(&mut seconds.fill);
            drop(shard);
            lap(&mut seconds.lock);
            store.compact(number);
            lap(&mut seconds.fill);
        }
        lap(&mut seconds.lock);
    }

    /// Seconds so far.
    #[must_use]
    pub fn seconds(&self) -> StageSeconds {
        self.seconds
    }

    /// Entries so far: two per edge, one per self loop.
    #[must_use]
    pub fn entries(&self) -> u64 {
        self.store.stats().directed_entries
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{EventTime, NodeId};

    #[test]
    fn parts_make_the_whole() {
        let options = GraphOptions { shards: 4, ..GraphOptions::default() };
        let (mut staged, whole) = (StagedStore::new(options), GraphStore::new(options));
        let mut batch = EdgeBatch::default();
        for _ in 0..3 {
            let edges =
                (0..700_u32).map(|i| (NodeId(i * i % 90), NodeId(i % 50), EventTime(i64::from(i / 3))));
            batch.restart(batch.end());
            edges.for_each(|(src, dst, time)| batch.push_edge(src, dst, time));
            staged.apply(&batch);
            whole.apply(&batch).unwrap();
        }
        let (ours, theirs) = (staged.store.stats(), whole.stats());
        assert_eq!(staged.entries(), theirs.directed_entries);
        assert_eq!((ours.blocks, ours.bytes.slack), (theirs.blocks, theirs.bytes.slack));
        let seconds = staged.seconds();
        assert!(
            [seconds.count, seconds.name, seconds.sort, seconds.lock, seconds.fill].iter().all(|&s| s > 0.0)
        );
    }
}
