//! [`Cleared`]: which rows of a store were cleared, the last ones of them, for copies of rows elsewhere.

use std::collections::VecDeque;

use parking_lot::Mutex;

/// Rows that are remembered. A copy that is farther behind is made anew.
const ROWS_MAX: usize = 1 << 16;

/// The last rows that were cleared, in order.
#[derive(Default)]
pub(super) struct Cleared(Mutex<Rows>);

#[derive(Default)]
struct Rows {
    /// How many were cleared in all.
    count: u64,
    last: VecDeque<u64>,
}

impl Cleared {
    /// Notes that a row was cleared.
    pub fn push(&self, row: u64) {
        let mut rows = self.0.lock();
        rows.count += 1;
        if rows.last.len() == ROWS_MAX {
            rows.last.pop_front();
        }
        rows.last.push_back(row);
    }

    /// How many were cleared in all.
    pub fn count(&self) -> u64 {
        self.0.lock().count
    }

    /// Those after the first `count`; `None` if some of them are not remembered any more.
    pub fn after(&self, count: u64) -> Option<Vec<u64>> {
        let rows = self.0.lock();
        let wanted = usize::try_from(rows.count.saturating_sub(count)).ok()?;
        let skipped = rows.last.len().checked_sub(wanted)?;
        Some(rows.last.range(skipped..).copied().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_rows_are_remembered_and_a_gap_is_told() {
        let cleared = Cleared::default();
        assert_eq!((cleared.count(), cleared.after(0)), (0, Some(vec![])));
        [5, 7, 5].into_iter().for_each(|row| cleared.push(row));
        assert_eq!((cleared.count(), cleared.after(1)), (3, Some(vec![7, 5])));
        (0..ROWS_MAX as u64).for_each(|row| cleared.push(row));
        assert_eq!(cleared.after(2), None);
        assert_eq!(cleared.after(3).map(|rows| rows.len()), Some(ROWS_MAX));
    }
}
