//! [`CachePlan`]: how many rows a budget of bytes pays for.

use super::table::table_bytes;

/// Values of a piece of 16 bytes; rows begin at whole ones, so that they can be moved by them.
const PIECE_VALUES: usize = 4;

/// The shape of a cache, and what it costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CachePlan {
    /// Rows that fit.
    pub slots: u32,
    /// Values per row.
    pub dimension: usize,
}

impl CachePlan {
    /// As many slots for rows of `dimension` values as `budget_bytes` pay for, with what finds them, but no more than
    /// there are `rows`. Rows without values need no slots.
    #[must_use]
    pub fn within(budget_bytes: u64, dimension: usize, rows: u64) -> Self {
        if dimension == 0 {
            return Self { slots: 0, dimension };
        }
        let most = rows.min(u64::from(u32::MAX) / 4);
        let fits = |slots: u64| Self::of(slots, dimension).bytes() <= budget_bytes;
        // The most that fit: all below `low` do, none from `high` on.
        let (mut low, mut high) = (0, most + 1);
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            if fits(middle) { low = middle } else { high = middle }
        }
        Self::of(low, dimension)
    }

    /// So many slots.
    #[allow(clippy::cast_possible_truncation)] // at most a quarter of it
    fn of(slots: u64, dimension: usize) -> Self {
        Self { slots: slots as u32, dimension }
    }

    /// Values from the begin of a row to that of the next.
    #[must_use]
    pub fn stride(&self) -> usize {
        self.dimension.next_multiple_of(PIECE_VALUES)
    }

    /// Bytes of the rows.
    #[must_use]
    pub fn row_bytes(&self) -> u64 {
        u64::from(self.slots) * (self.stride() * size_of::<f32>()) as u64
    }

    /// Bytes of what says which row is in which slot.
    #[must_use]
    pub fn table_bytes(&self) -> u64 {
        if self.slots == 0 { 0 } else { table_bytes(self.slots as usize) as u64 }
    }

    /// Bytes of both: what the cache takes on its device.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.row_bytes() + self.table_bytes()
    }
}

impl std::fmt::Display for CachePlan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { slots, dimension } = self;
        let (bytes, stride) = (self.bytes(), self.stride() * size_of::<f32>());
        let table = self.table_bytes();
        write!(
            f,
            "{slots} rows of {dimension} values: {stride} bytes each, {table} for the table, {bytes} in all"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_pays_for_rows_and_what_finds_them() {
        let plan = CachePlan::within(64 << 20, 172, u64::MAX);
        assert!(plan.bytes() <= 64 << 20 && CachePlan { slots: plan.slots + 1, ..plan }.bytes() > 64 << 20);
        assert_eq!(
            plan.to_string(),
            "92691 rows of 172 values: 688 bytes each, 3336908 for the table, 67108316 in all"
        );
        assert_eq!(CachePlan::within(64 << 20, 172, 1_000).slots, 1_000, "no more than there are");
        assert_eq!(CachePlan { slots: 3, dimension: 5 }.row_bytes(), 3 * 32);
    }

    #[test]
    fn what_is_too_little_is_nothing() {
        for plan in
            [CachePlan::within(0, 172, 9), CachePlan::within(800, 172, 9), CachePlan::within(1 << 30, 0, 9)]
        {
            assert_eq!((plan.slots, plan.bytes()), (0, 0));
        }
        assert_eq!(CachePlan::within(820, 172, 9).slots, 1);
    }
}
