//! Gathering rows: the request that copies them.

use super::RowError;
use super::fetch::UnitRequest;
use super::shape::Shape;
use super::shared::Shared;
use super::stats::{add, add_time};
use super::unit_cache::UnitCache;

struct Gather<'a> {
    shape: Shape,
    indices: &'a [u64],
    out: &'a mut [f32],
    announced: usize,
    unset: usize,
}

/// Copies the rows of `indices` into `out`, which has room for them.
pub(super) fn gather(shared: &Shared, indices: &[u64], out: &mut [f32]) -> Result<(), RowError> {
    let mut gather = Gather { shape: shared.shape, indices, out, announced: 0, unset: 0 };
    let fetched = shared.fetch(indices.len(), &mut gather)?;
    let counters = &shared.counters;
    add(&counters.hits, indices.len().saturating_sub(gather.unset + fetched.missed));
    add(&counters.announced_hits, gather.announced);
    add(&counters.misses, fetched.missed);
    add_time(&counters.gather_wait_nanos, fetched.waited);
    Ok(())
}

impl Gather<'_> {
    fn row(&self, i: usize) -> usize {
        self.shape.locate(self.indices[i]).1
    }

    fn out(&mut self, i: usize) -> &mut [f32] {
        let dimension = self.shape.dimension;
        &mut self.out[i * dimension..][..dimension]
    }

    fn copy(&mut self, i: usize, values: &[f32]) {
        let begin = self.row(i) * self.shape.dimension;
        let end = begin + self.shape.dimension;
        self.out(i).copy_from_slice(&values[begin..end]);
    }
}

impl UnitRequest for Gather<'_> {
    fn unit(&self, i: usize) -> (u64, u128) {
        let (unit, row) = self.shape.locate(self.indices[i]);
        (unit, 1 << row)
    }

    fn found(&mut self, i: usize, cache: &UnitCache, slot: u32) {
        self.announced += usize::from(cache.touch(slot));
        self.copy(i, cache.values(slot));
    }

    fn unset(&mut self, i: usize) {
        self.unset += 1;
        self.out(i).fill(0.0);
    }

    fn read(&mut self, i: usize, values: &[f32]) {
        self.copy(i, values);
    }
}
