//! [`Ranks`]: the rows of a round by their next use, soonest first, in one pass over them and one over the rounds.

use super::order::NextUse;

/// Rows in order.
#[derive(Default)]
pub(super) struct Ranks {
    /// Where the rows of each next use begin: in a round, two, …, and those of unknown use.
    starts: Vec<u32>,
    sorted: Vec<u32>,
}

impl Ranks {
    /// For next uses in at most `rounds` rounds.
    pub fn new(rounds: u32) -> Self {
        Self { starts: vec![0; rounds as usize + 2], sorted: Vec::new() }
    }

    /// Sorts `rows`; rows of the same next use keep their order.
    pub fn sort(&mut self, rows: &[u32], next: impl Fn(u32) -> NextUse) {
        let last = self.starts.len() - 1;
        let rank = |row| match next(row) {
            NextUse::In(rounds) => rounds as usize,
            NextUse::Unknown => last,
        };
        self.starts.fill(0);
        rows.iter().for_each(|&row| self.starts[rank(row)] += 1);
        let mut before = 0;
        for start in &mut self.starts {
            before += std::mem::replace(start, before);
        }
        self.sorted.clear();
        self.sorted.resize(rows.len(), 0);
        for &row in rows {
            let place = &mut self.starts[rank(row)];
            self.sorted[*place as usize] = row;
            *place += 1;
        }
    }

    /// What was sorted.
    pub fn sorted(&self) -> &[u32] {
        &self.sorted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_soonest_come_first_and_equals_stay_in_order() {
        let next = |row: u32| match row % 4 {
            3 => NextUse::Unknown,
            rounds => NextUse::In(2 - rounds),
        };
        let mut ranks = Ranks::new(2);
        ranks.sort(&[0, 1, 2, 3, 5, 6, 7, 8], next);
        assert_eq!(ranks.sorted(), [2, 6, 1, 5, 0, 8, 3, 7]);
        ranks.sort(&[], next);
        assert!(ranks.sorted().is_empty());
    }
}
