//! Keeps tables of pairs within a budget: where one has more pairs than it may, the quarter that was not seen for the
//! longest time goes at once, so an event costs a constant time on average. Which pairs go follows from the table
//! alone: from their times, and of equal times from their keys.

use hashbrown::HashMap;

use crate::event::EventTime;

/// Removes the oldest pairs of a table with more than `most` entries, until it has three quarters of that, and returns
/// how many went. `most` = 0: no limit. `time_of` states when a pair was last seen.
pub fn evict_oldest<V>(table: &mut HashMap<u64, V>, most: usize, time_of: impl Fn(&V) -> EventTime) -> u64 {
    if most == 0 || table.len() <= most {
        return 0;
    }
    let before = table.len();
    let gone = before - (most - most / 4);
    let mut ages: Vec<(EventTime, u64)> = table.iter().map(|(&key, value)| (time_of(value), key)).collect();
    if let Some(last) = gone.checked_sub(1).filter(|&last| last < ages.len()) {
        let (_, &mut bound, _) = ages.select_nth_unstable(last);
        table.retain(|&key, value| (time_of(value), key) > bound);
    }
    (before - table.len()) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_go_and_a_table_stays_within_its_budget() {
        let (mut table, mut evicted) = (HashMap::new(), 0);
        for i in 0..10_000_u64 {
            table.insert(i, EventTime(i as i64 / 3));
            evicted += evict_oldest(&mut table, 100, |&time| time);
            assert!(table.len() <= 100);
        }
        assert_eq!(evicted as usize + table.len(), 10_000);
        assert!((9_925..10_000).all(|key| table.contains_key(&key)) && !table.contains_key(&9_800));
        assert_eq!(evict_oldest(&mut table, 0, |&time| time), 0);
        for most in 1..6 {
            let mut table: HashMap<u64, EventTime> = (0..6).map(|key| (key, EventTime(0))).collect();
            assert_eq!(evict_oldest(&mut table, most, |&time| time) as usize + table.len(), 6);
            assert!(table.len() <= most, "{} of {most}", table.len());
        }
    }
}
