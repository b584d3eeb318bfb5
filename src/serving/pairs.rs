//! When pairs of nodes were last seen, published pair by pair during training; only models of walks publish any.
//!
//! Pairs are sharded by key over [`SHARDS`] maps, each behind its own lock, so a map that grows or forgets blocks only
//! the queries about its own pairs.

use std::array;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering};

use hashbrown::{HashMap, HashSet};
use parking_lot::{Mutex, RwLock};

use crate::event::{EventTime, NodeId};
use crate::model::pair_budget::evict_oldest;
use crate::model::walk::PairTimes;

/// Number of locks; a power of two.
const SHARDS: usize = 256;

/// Published times by pair.
pub struct PairStates {
    shards: [RwLock<HashMap<u64, PairTimes>>; SHARDS],
    /// Most pairs of a shard; 0: any number.
    shard_pairs_max: AtomicUsize,
    /// Pairs that were last seen before this count as never seen.
    since: AtomicI64,
    is_followed: AtomicBool,
    /// Keys of pairs that were published since they were last taken, where somebody follows.
    changed: Mutex<HashSet<u64>>,
}

impl Default for PairStates {
    fn default() -> Self {
        Self {
            shards: array::from_fn(|_| RwLock::default()),
            shard_pairs_max: AtomicUsize::new(0),
            since: AtomicI64::new(EventTime::MIN.0),
            is_followed: AtomicBool::new(false),
            changed: Mutex::default(),
        }
    }
}

impl PairStates {
    /// Publishes `times` for the pair with this key; see [`PairTimes::key`].
    pub fn publish(&self, key: u64, times: PairTimes) {
        let mut shard = self.shard(key).write();
        shard.insert(key, times);
        evict_oldest(&mut shard, self.shard_pairs_max.load(Ordering::Relaxed), |times| times.latest());
        if self.is_followed.load(Ordering::Acquire) {
            self.changed.lock().insert(key);
        }
    }

    /// Records which pairs are published from now on.
    pub fn follow(&self) {
        self.is_followed.store(true, Ordering::Release);
    }

    /// Takes the pairs that were published since the last time; none while nobody follows.
    #[must_use]
    pub fn take_changed(&self) -> Vec<(u64, PairTimes)> {
        let changed = std::mem::take(&mut *self.changed.lock());
        let times = |key: u64| Some((key, self.shard(key).read().get(&key).copied()?));
        changed.into_iter().filter_map(times).collect()
    }

    /// Makes pairs due again that were taken.
    pub fn change_again(&self, keys: impl Iterator<Item = u64>) {
        self.changed.lock().extend(keys);
    }

    /// Holds about `most` pairs at most, those that were seen last; 0: any number.
    pub fn limit(&self, most: usize) {
        self.shard_pairs_max.store(most.div_ceil(SHARDS), Ordering::Relaxed);
    }

    /// Pairs that were last seen before `since` count as never seen from now on.
    pub fn keep_since(&self, since: EventTime) {
        self.since.fetch_max(since.0, Ordering::Relaxed);
    }

    /// Frees the pairs that count as never seen. Visits every pair.
    pub fn prune(&self) {
        let since = EventTime(self.since.load(Ordering::Relaxed));
        for shard in self.shards.iter().filter(|_| since > EventTime::MIN) {
            let mut shard = shard.write();
            shard.retain(|_, times| times.latest() >= since);
            let len = shard.len();
            shard.shrink_to(2 * len);
        }
    }

    /// The published times of a pair.
    #[must_use]
    pub fn get(&self, u: NodeId, v: NodeId) -> Option<PairTimes> {
        let key = PairTimes::key(u, v);
        let times = self.shard(key).read().get(&key).copied();
        times.filter(|times| times.latest().0 >= self.since.load(Ordering::Relaxed))
    }

    /// Forgets the pairs of nodes. Visits every pair.
    pub fn forget(&self, nodes: &[NodeId]) {
        let gone: HashSet<NodeId> = nodes.iter().copied().collect();
        for shard in self.shards.iter().filter(|_| !gone.is_empty()) {
            shard.write().retain(|&key, _| !PairTimes::is_of(key, |node| gone.contains(&node)));
        }
    }

    /// Bytes held.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let published: usize = self.shards.iter().map(|shard| shard.read().allocation_size()).sum();
        published + self.changed.lock().allocation_size()
    }

    fn shard(&self, key: u64) -> &RwLock<HashMap<u64, PairTimes>> {
        // The highest bits of a product depend on all bits of the key.
        let place = key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - SHARDS.trailing_zeros());
        &self.shards[place as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::walk::{WalkOptions, WalkState};

    #[test]
    fn pairs_come_back_in_either_order_and_go_with_their_nodes() {
        let mut state = WalkState::new(&WalkOptions::default());
        for i in 0..40 {
            state.observe(&[NodeId(i % 8)], &[NodeId(8 + i % 5)], &[EventTime(i64::from(i))]);
        }
        let published = PairStates::default();
        state.pairs().for_each(|(key, times)| published.publish(key, times));
        assert!(state.pairs().count() == 40 && published.bytes() >= 40 * 24);
        let (u, v) = (NodeId(3), NodeId(11));
        assert!(published.get(u, v).is_some() && published.get(v, u) == state.pair(u, v));
        assert_eq!(published.get(u, NodeId(4)), None);
        published.forget(&[NodeId(11), NodeId(700)]);
        assert_eq!(published.get(u, v), None);
        let left = (0..8).flat_map(|u| (8..13).map(move |v| (NodeId(u), NodeId(v))));
        assert_eq!(left.filter(|&(u, v)| published.get(u, v).is_some()).count(), 32);
        let used = published.shards.iter().filter(|shard| !shard.read().is_empty()).count();
        assert!(used > 16, "{used} of 32 pairs have a lock of their own");
    }
}
