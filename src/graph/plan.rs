//! The batch plan: which entries go to which node, in which order, decided once for a whole batch.
//!
//! Every edge makes two directed entries (a self loop one). Each is named by one 64-bit word: the
//! node in shard order above, the place in the batch below. A stable radix sort by node leaves each
//! node's entries in order of arrival, which is the order of time for nearly every stream; a node whose
//! run is not in order is sorted on its own. The runs of a shard are consecutive, so that each shard is locked once per
//! batch.
//!
//! The cost of an apply is not the bytes, some 90 per entry over all stages, but random access: an entry's columns are
//! anywhere in the batch, a node's list and the end of its blocks anywhere in the shard. So both are prefetched.
//!
//! Knows nothing of blocks.

use std::ops::Range;

use super::NODES_MAX;
use super::entry::{INCOMING, Record};
use crate::device::prefetch;
use crate::event::{EdgeBatch, NodeId, Op};

/// Batches smaller than this are sorted by comparison.
const RADIX_MIN: usize = 512;
const RADIX_BITS: u32 = 11;

/// How many entries ahead of its use a record is prefetched.
const AHEAD: usize = 24;

/// How node ids are distributed over shards: by their low bits.
#[derive(Clone, Copy, Debug)]
pub(super) struct ShardMap {
    bits: u32,
}

impl ShardMap {
    /// At least `shards` shards, rounded up to a power of two.
    pub fn new(shards: usize) -> Self {
        Self { bits: shards.clamp(1, 1 << 16).next_power_of_two().ilog2() }
    }

    /// Number of shards.
    pub fn shards(self) -> usize {
        1 << self.bits
    }

    /// The shard of `node` and the node's index in it.
    #[inline]
    pub fn locate(self, node: NodeId) -> (usize, usize) {
        (node.index() & ((1 << self.bits) - 1), node.index() >> self.bits)
    }

    /// How many nodes of `shard` there are among the first `nodes`.
    pub fn nodes_below(self, nodes: usize, shard: usize) -> usize {
        nodes.saturating_sub(shard).div_ceil(1 << self.bits)
    }

    /// The node with `index` in `shard`.
    #[allow(clippy::cast_possible_truncation, reason = "the inverse of `locate`")]
    pub fn node(self, shard: usize, index: usize) -> NodeId {
        NodeId((index << self.bits | shard) as u32)
    }
}

/// Sorted work of a run of edge records; its buffers are kept from batch to batch.
#[derive(Default)]
pub(super) struct BatchPlan {
    words: Vec<u64>,
    spare: Vec<u64>,
    /// Nodes per shard that the words can name, and in all shards.
    stride: usize,
    keys: usize,
    /// Record of the batch at place 0.
    first: usize,
}

impl BatchPlan {
    /// Plans the edges among the records `range` of `batch`.
    ///
    /// # Panics
    /// When an edge names a node beyond [`NODES_MAX`] or the range has more than 2^31 records.
    pub fn arrange(&mut self, batch: &EdgeBatch, range: Range<usize>, map: ShardMap) {
        self.name(batch, range, map);
        self.sort();
    }

    /// Writes the words in order of arrival.
    fn name(&mut self, batch: &EdgeBatch, range: Range<usize>, map: ShardMap) {
        assert!(range.len() <= 1 << 31, "a batch of {} records is too long", range.len());
        self.first = range.start;
        self.words.clear();
        let is_edge = |&i: &usize| batch.op[i] == Op::Edge;
        let ends = range.clone().filter(is_edge).map(|i| batch.src[i].index().max(batch.dst[i].index()));
        let Some(highest) = ends.max() else { return };
        assert!(highest < NODES_MAX, "node {highest}: ids end at {NODES_MAX}");
        self.stride = (highest >> map.bits) + 1;
        let key = |node: NodeId| {
            let (shard, index) = map.locate(node);
            ((shard * self.stride + index) as u64) << 32
        };
        self.words.reserve(2 * range.len());
        for (i, place) in range.zip(0_u64..).filter(|(i, _)| is_edge(i)) {
            let (src, dst) = (batch.src[i], batch.dst[i]);
            self.words.push(key(src) | place << 1);
            if src != dst {
                self.words.push(key(dst) | place << 1 | 1);
            }
        }
        self.keys = map.shards() * self.stride;
    }

    /// Sorts the words by key; equal keys keep their order.
    fn sort(&mut self) {
        if self.words.len() < RADIX_MIN {
            self.words.sort_unstable();
            return;
        }
        let bits = usize::BITS - self.keys.leading_zeros();
        let passes = bits.div_ceil(RADIX_BITS);
        let digit = bits.div_ceil(passes);
        let digit_of = |word: u64, pass: u32| (word >> (32 + pass * digit)) as usize & ((1 << digit) - 1);
        self.spare.resize(self.words.len(), 0);
        for pass in 0..passes {
            let mut next = [0_u32; 1 << RADIX_BITS];
            for &word in &self.words {
                next[digit_of(word, pass)] += 1;
            }
            let mut sum = 0;
            for count in &mut next {
                sum += std::mem::replace(count, sum);
            }
            for &word in &self.words {
                let place = &mut next[digit_of(word, pass)];
                self.spare[*place as usize] = word;
                *place += 1;
            }
            std::mem::swap(&mut self.words, &mut self.spare);
        }
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.words.len()
    }

    /// Bytes of the buffers.
    pub fn bytes(&self) -> usize {
        (self.words.capacity() + self.spare.capacity()) * size_of::<u64>()
    }

    /// Each shard that gets entries, and its runs.
    pub fn shards(&self) -> impl Iterator<Item = (usize, &[u64])> {
        let mut rest = self.words.as_slice();
        std::iter::from_fn(move || {
            let shard = (*rest.first()? >> 32) as usize / self.stride;
            let end = ((shard + 1) * self.stride) as u64;
            let (runs, behind) = rest.split_at(rest.partition_point(|word| word >> 32 < end));
            rest = behind;
            Some((shard, runs))
        })
    }

    /// The index in its shard of each node that gets entries, in the order of [`for_each_node`](Self::for_each_node).
    pub fn nodes<'a>(&'a self, words: &'a [u64]) -> impl Iterator<Item = usize> + 'a {
        words.chunk_by(|a, b| a >> 32 == b >> 32).map(|run| (run[0] >> 32) as usize % self.stride)
    }

    /// Calls `f` with the index of each node in its shard and its records, ascending, from the words
    /// that [`shards`](Self::shards) gave.
    pub fn for_each_node(
        &self,
        batch: &EdgeBatch,
        words: &[u64],
        records: &mut Vec<Record>,
        mut f: impl FnMut(usize, &[Record]),
    ) {
        let mut ahead = words.iter().skip(AHEAD);
        for run in words.chunk_by(|a, b| a >> 32 == b >> 32) {
            records.clear();
            records.extend(run.iter().map(|&word| {
                if let Some(&word) = ahead.next() {
                    self.announce(batch, word);
                }
                self.record(batch, word)
            }));
            if !records.is_sorted_by_key(|record| record.key()) {
                records.sort_unstable_by_key(|record| record.key());
            }
            f((run[0] >> 32) as usize % self.stride, records);
        }
    }

    /// Prefetches `record`.
    #[inline]
    fn announce(&self, batch: &EdgeBatch, word: u64) {
        let i = self.first + ((word & 0xFFFF_FFFF) >> 1) as usize;
        if word & 1 == 0 {
            prefetch(&batch.dst[i]);
        } else {
            prefetch(&batch.src[i]);
        }
        prefetch(&batch.time[i]);
    }

    #[inline]
    fn record(&self, batch: &EdgeBatch, word: u64) -> Record {
        let i = self.first + ((word & 0xFFFF_FFFF) >> 1) as usize;
        let packed = if word & 1 == 0 { batch.dst[i].0 } else { batch.src[i].0 | INCOMING };
        Record { time: batch.time[i].0, edge: batch.id(i).0, packed }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::rng;
    use crate::event::{EdgeId, EventTime};

    #[test]
    fn nodes_are_found_where_they_were_put() {
        for shards in [0, 1, 3, 16, 1 << 20] {
            let map = ShardMap::new(shards);
            for node in [0, 1, 15, 16, 70_000, u32::MAX >> 1].map(NodeId) {
                let (shard, index) = map.locate(node);
                assert!(shard < map.shards());
                assert_eq!(map.node(shard, index), node);
                let below = [node.index(), node.index() + 1].map(|nodes| map.nodes_below(nodes, shard));
                assert_eq!(below, [index, index + 1]);
            }
        }
    }

    /// All entries of a plan as (shard, index, time, edge, packed), in the plan's order.
    fn entries(batch: &EdgeBatch, range: Range<usize>, map: ShardMap) -> Vec<(usize, usize, Record)> {
        let mut plan = BatchPlan::default();
        plan.arrange(batch, range, map);
        let mut found = Vec::new();
        let mut records = Vec::new();
        for (shard, words) in plan.shards() {
            plan.for_each_node(batch, words, &mut records, |index, records| {
                found.extend(records.iter().map(|&record| (shard, index, record)));
            });
        }
        found
    }

    #[test]
    fn entries_come_by_shard_node_time_and_edge() {
        for (len, nodes, shards) in
            [(10, 3, 4), (255, 9, 2), (5_000, 7, 16), (5_000, 3_000_000, 16), (300, 1, 1)]
        {
            let mut batch = EdgeBatch { first: EdgeId(1 << 40), ..EdgeBatch::default() };
            for i in 0..len {
                let draw = |word, n| rng::below([len, word, i, 0], n);
                let (src, dst) = (NodeId(draw(0, nodes)), NodeId(draw(1, nodes)));
                batch.push_edge(src, dst, EventTime(i64::from(draw(2, 50)) - 25));
                if i % 10 == 9 {
                    batch.op[i as usize] = Op::Node;
                }
            }
            let map = ShardMap::new(shards);
            let range = 3..len as usize - 2;
            let mut expected = Vec::new();
            for i in range.clone().filter(|&i| batch.op[i] == Op::Edge) {
                let (src, dst, time, edge) = (batch.src[i], batch.dst[i], batch.time[i].0, batch.id(i).0);
                let (shard, index) = map.locate(src);
                expected.push((shard, index, Record { time, edge, packed: dst.0 }));
                if src != dst {
                    let (shard, index) = map.locate(dst);
                    expected.push((shard, index, Record { time, edge, packed: src.0 | INCOMING }));
                }
            }
            expected.sort_unstable();
            assert_eq!(entries(&batch, range, map), expected, "{len} edges among {nodes} nodes");
        }
        assert!(entries(&EdgeBatch::default(), 0..0, ShardMap::new(4)).is_empty());
    }
}
