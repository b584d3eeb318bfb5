//! The hits of the row cache on an access, and the cost of its decisions.
//!
//! Only ids are moved, as on a host that decides for a device. The time of a round is that of all the cache's work for
//! it: announcing it, finding its rows, choosing what to bring in and what to keep.

use std::time::Instant;

use super::access::Access;
use super::rivals::Hits;
use evergraph::cli::bench::{Spread, seconds};
use evergraph::feature::FeatureStore;
use evergraph::feature::cache::{CacheCounts, CacheDirectory, Found};

/// Rounds of which the rows are copied to time a copy.
const COPIED_ROUNDS: usize = 50;

/// The cache's results.
pub struct Race {
    pub counts: CacheCounts,
    /// Rows found less those brought in before their round, by epoch.
    pub hits: Hits,
    /// Seconds per round; the median, since other work on the machine hardly changes it.
    pub round_seconds: Spread,
    /// Bytes of the host that the decisions take.
    pub host_bytes: usize,
}

/// Runs the cache over all rounds.
pub fn ours(access: &Access, slots: u32, look_ahead: u32) -> Race {
    let mut directory = CacheDirectory::new(slots, look_ahead);
    let (mut found, mut placed, mut ids) = (Found::default(), Vec::new(), Vec::new());
    let (mut times, mut hits, mut known, mut before) = (Vec::new(), Vec::new(), 0, 0);
    for round in 0..access.rounds() {
        let mut spent = 0.0;
        while directory.room() > 0 && known < access.rounds() {
            ids.clear();
            ids.extend(access.round(known).iter().map(|&row| u64::from(row)));
            let clock = Instant::now();
            directory.announce(&ids);
            spent += clock.elapsed().as_secs_f64();
            known += 1;
        }
        let (took, ()) = seconds(|| {
            directory.look_up(&mut found);
            let rows = directory.restorable(&found);
            directory.restore(&mut found, (rows, |_| true), &mut placed);
            directory.turn(&found, &mut placed);
        });
        times.push(spent + took);
        if (round + 1) % access.epoch_rounds == 0 || round + 1 == access.rounds() {
            let avoided = directory.counts().copies_avoided();
            hits.push(avoided - std::mem::replace(&mut before, avoided));
        }
    }
    Race { counts: directory.counts(), hits, round_seconds: Spread::of(times), host_bytes: directory.bytes() }
}

/// Seconds that copying a row of `dimension` values takes here, out of a store of all rows.
///
/// # Errors
/// The store fails.
#[allow(clippy::cast_precision_loss)] // counts of a benchmark fit
pub fn copy_seconds(access: &Access, dimension: usize) -> anyhow::Result<f64> {
    let store = FeatureStore::new(dimension);
    let row = vec![1.0; dimension];
    (0..access.of as u64).try_for_each(|id| store.set(id, &row))?;
    let mut out = Vec::new();
    let mut times = Vec::new();
    let step = access.rounds().div_ceil(COPIED_ROUNDS).max(1);
    for round in (0..access.rounds()).step_by(step) {
        let ids: Vec<u64> = access.round(round).iter().map(|&row| u64::from(row)).collect();
        if ids.is_empty() {
            continue;
        }
        out.resize(ids.len() * dimension, 0.0);
        let (took, done) = seconds(|| store.gather(&ids, &mut out));
        done?;
        times.push(took / ids.len() as f64);
    }
    Ok(Spread::of(times).median)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::rivals;

    #[test]
    fn with_every_round_known_it_is_the_optimum_and_epochs_add_up() {
        let round = |number: usize| (0..6).map(|i| number * (7 + i * i) % 50).collect::<Vec<_>>();
        let access = Access::of_rounds(50, 20, &(0..70).map(round).collect::<Vec<_>>());
        let next = access.next_uses();
        for slots in [1, 5, 20] {
            let best = rivals::optimum(&access, slots as usize, &next);
            let race = ours(&access, slots, 70);
            assert_eq!(race.hits, best, "{slots} slots");
            let near = ours(&access, slots, 2);
            assert!(near.hits.iter().sum::<u64>() <= best.iter().sum());
            assert_eq!(near.counts.rows, access.len() as u64);
        }
        assert!(copy_seconds(&access, 8).unwrap() > 0.0);
    }
}
