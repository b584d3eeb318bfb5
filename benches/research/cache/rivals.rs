//! Other policies. Each counts the rows that it finds in the cache when a round begins; a round is looked up as a
//! whole, and the cache changes after it, as a cache on a device does.
//!
//! LRU, LFU and FIFO cache every row they missed. LFU counts while a row is in the cache, and among the least frequent
//! evicts the one not used for longest. The static cache holds what was read most often in epochs sampled before, with
//! other random numbers, and never changes; its initial rows are charged to the first epoch. The optimum knows all
//! rounds, and keeps of all available rows those that are needed soonest: without copying rows ahead of time, no policy
//! finds more.

use super::access::{Access, NEVER};

/// No row.
const NONE: u32 = u32::MAX;

/// Rows that were found, by epoch, less those that were brought in before they were needed.
pub type Hits = Vec<u64>;

/// Sums `hits` over rounds.
fn by_epoch(access: &Access, mut hits: impl FnMut(usize) -> usize) -> Hits {
    let mut sums = vec![0; access.rounds().div_ceil(access.epoch_rounds.max(1))];
    for round in 0..access.rounds() {
        sums[round / access.epoch_rounds.max(1)] += hits(round) as u64;
    }
    sums
}

/// Rows in a list, the newest first; rows are their own links.
struct Lists {
    newer: Vec<u32>,
    older: Vec<u32>,
    /// Newest and oldest row of each list.
    ends: Vec<(u32, u32)>,
}

impl Lists {
    fn new(rows: usize) -> Self {
        Self { newer: vec![NONE; rows], older: vec![NONE; rows], ends: Vec::new() }
    }

    fn push(&mut self, list: usize, row: u32) {
        if list >= self.ends.len() {
            self.ends.resize(list + 1, (NONE, NONE));
        }
        let (newest, oldest) = self.ends[list];
        self.newer[row as usize] = NONE;
        self.older[row as usize] = newest;
        match newest {
            NONE => self.ends[list] = (row, row),
            newest => {
                self.newer[newest as usize] = row;
                self.ends[list] = (row, oldest);
            }
        }
    }

    fn take(&mut self, list: usize, row: u32) {
        let (newer, older) = (self.newer[row as usize], self.older[row as usize]);
        match newer {
            NONE => self.ends[list].0 = older,
            newer => self.older[newer as usize] = older,
        }
        match older {
            NONE => self.ends[list].1 = newer,
            older => self.newer[older as usize] = newer,
        }
    }

    fn oldest(&self, list: usize) -> u32 {
        self.ends.get(list).map_or(NONE, |ends| ends.1)
    }
}

/// Evicts the row that was used longest ago.
pub fn lru(access: &Access, slots: usize) -> Hits {
    let (mut lists, mut held, mut count) = (Lists::new(access.of), vec![false; access.of], 0);
    by_epoch(access, |round| {
        let rows = access.round(round);
        let (hits, misses): (Vec<u32>, Vec<u32>) = rows.iter().partition(|&&row| held[row as usize]);
        for &row in &hits {
            lists.take(0, row);
            lists.push(0, row);
        }
        for &row in misses.iter().take(slots) {
            if count == slots {
                let last = lists.oldest(0);
                lists.take(0, last);
                held[last as usize] = false;
                count -= 1;
            }
            lists.push(0, row);
            held[row as usize] = true;
            count += 1;
        }
        hits.len()
    })
}

/// Evicts the row that was used least often since it came.
pub fn lfu(access: &Access, slots: usize) -> Hits {
    // A list for each number of uses; 0 is "not held".
    let (mut lists, mut uses, mut count, mut fewest) = (Lists::new(access.of), vec![0; access.of], 0, 1);
    by_epoch(access, |round| {
        let rows = access.round(round);
        let (hits, misses): (Vec<u32>, Vec<u32>) = rows.iter().partition(|&&row| uses[row as usize] > 0);
        for &row in &hits {
            let uses = &mut uses[row as usize];
            lists.take(*uses, row);
            *uses += 1;
            lists.push(*uses, row);
        }
        // Evicts first, so that the rows of one round do not evict each other.
        let fresh = &misses[..misses.len().min(slots)];
        while count + fresh.len() > slots {
            let last = lists.oldest(fewest);
            if last == NONE {
                fewest += 1;
                continue;
            }
            lists.take(fewest, last);
            uses[last as usize] = 0;
            count -= 1;
        }
        for &row in fresh {
            uses[row as usize] = 1;
            lists.push(1, row);
        }
        count += fresh.len();
        fewest = 1;
        hits.len()
    })
}

/// Evicts the row that came first.
pub fn fifo(access: &Access, slots: usize) -> Hits {
    let (mut ring, mut hand, mut held) = (vec![NONE; slots], 0, vec![false; access.of]);
    by_epoch(access, |round| {
        let misses: Vec<u32> =
            access.round(round).iter().copied().filter(|&row| !held[row as usize]).collect();
        for &row in misses.iter().take(slots) {
            let before = std::mem::replace(&mut ring[hand], row);
            if before != NONE {
                held[before as usize] = false;
            }
            held[row as usize] = true;
            hand = (hand + 1) % slots;
        }
        access.round(round).len() - misses.len()
    })
}

/// The rows that were read most often by `frequencies` stay; of equals the first row.
pub fn fixed(access: &Access, slots: usize, frequencies: &[u32]) -> Hits {
    let mut rows: Vec<usize> = (0..access.of).collect();
    rows.sort_by_key(|&row| std::cmp::Reverse(frequencies[row]));
    let mut held = vec![false; access.of];
    rows.iter().take(slots).for_each(|&row| held[row] = true);
    let mut hits =
        by_epoch(access, |round| access.round(round).iter().filter(|&&row| held[row as usize]).count());
    if let Some(first) = hits.first_mut() {
        *first = first.saturating_sub(slots.min(access.of) as u64);
    }
    hits
}

/// Every round is known; `next` is of [`Access::next_uses`].
pub fn optimum(access: &Access, slots: usize, next: &[u32]) -> Hits {
    // Held rows by the round that wants them.
    let mut wanted: Vec<u32> = vec![0; access.rounds()];
    let (mut count, mut last) = (0, 0);
    by_epoch(access, |round| {
        let hits = std::mem::take(&mut wanted[round]) as usize;
        count -= hits;
        for &next in access.part(next, round).iter().filter(|&&next| next != NEVER) {
            wanted[next as usize] += 1;
            count += 1;
            last = last.max(next as usize);
        }
        while count > slots {
            let many = (count - slots).min(wanted[last] as usize);
            #[allow(clippy::cast_possible_truncation)] // no more than the count of 32 bits
            let few = many as u32;
            wanted[last] -= few;
            count -= many;
            if wanted[last] == 0 {
                last -= 1;
            }
        }
        hits
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use evergraph::device::rng;

    /// Rounds of distinct rows; low ones are likelier.
    fn access() -> Access {
        let row = |round: u64, i| {
            let share = f64::from(rng::unit_f32([round, i, 1, 2]));
            (share * share * 60.0) as usize
        };
        let round = |number| (0..8).map(|i| row(number, i)).collect();
        Access::of_rounds(60, 50, &(0..150).map(round).collect::<Vec<Vec<usize>>>())
    }

    /// Hits of keeping, after each round, those of the rows at hand that `rank` puts first.
    fn by_search(access: &Access, slots: usize, mut rank: impl FnMut(u32, usize, bool) -> i64) -> u64 {
        let (mut held, mut hits): (Vec<u32>, u64) = (Vec::new(), 0);
        for round in 0..access.rounds() {
            let rows = access.round(round);
            hits += rows.iter().filter(|row| held.contains(row)).count() as u64;
            let mut all: Vec<(i64, u32)> = Vec::new();
            for &row in rows.iter().chain(held.iter().filter(|row| !rows.contains(row))) {
                all.push((rank(row, round, held.contains(&row)), row));
            }
            all.sort_by_key(|(rank, _)| *rank);
            held = all.into_iter().take(slots).map(|(_, row)| row).collect();
        }
        hits
    }

    fn sum(hits: &[u64]) -> u64 {
        hits.iter().sum()
    }

    #[test]
    fn the_optimum_is_what_a_search_finds_and_nobody_is_above_it() {
        let access = access();
        let next = access.next_uses();
        for slots in [1, 3, 10, 25, 60] {
            let best = optimum(&access, slots, &next);
            let found = by_search(&access, slots, |row, round, _| {
                let later = (round + 1..access.rounds()).find(|&later| access.round(later).contains(&row));
                later.map_or(i64::MAX, |later| later as i64)
            });
            assert_eq!(sum(&best), found, "{slots} slots");
            assert_eq!(best.len(), 3);
            let frequencies = access.frequencies();
            for other in [
                lru(&access, slots),
                lfu(&access, slots),
                fifo(&access, slots),
                fixed(&access, slots, &frequencies),
            ] {
                assert!(sum(&other) <= found && sum(&other) > 0, "{slots} slots: {other:?}");
            }
        }
    }

    #[test]
    fn each_gives_up_what_it_says() {
        // When 2 comes, 0 came first, 1 was used least, and 0 was used longest ago.
        let rounds = [vec![0], vec![1], vec![0], vec![0], vec![1, 2], vec![0], vec![1], vec![2]];
        let access = Access::of_rounds(3, 8, &rounds);
        assert_eq!(lru(&access, 2), [3], "0 goes for 2, 1 for 0, and 2 for 1");
        assert_eq!(lfu(&access, 2), [4], "1 goes for 2, then 2 for 1");
        assert_eq!(fifo(&access, 2), [3], "0 goes for 2, 1 for 0, and 2 for 1");
        assert_eq!(fixed(&access, 1, &[4, 3, 2]), [3], "row 0 was copied there first");
        assert_eq!(sum(&optimum(&access, 2, &access.next_uses())), 5);
    }
}
