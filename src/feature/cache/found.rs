//! [`Found`]: where the rows of a round are, as [`CacheDirectory`](super::CacheDirectory) looked them up.

/// Where the rows of the current round are.
#[derive(Clone, Debug, Default)]
pub struct Found {
    pub(super) slots: Vec<u32>,
    pub(super) misses: Vec<u32>,
    /// The state of the directory that it was found in.
    pub(super) changes: Option<u64>,
}

impl Found {
    /// Means "in no slot".
    pub const MISS: u32 = u32::MAX;

    /// Nothing is found yet.
    pub(super) fn start_over(&mut self) {
        self.slots.clear();
        self.misses.clear();
        self.changes = None;
    }

    /// The next row is in `slot`, or in none.
    #[allow(clippy::cast_possible_truncation)] // fewer rows than that
    pub(super) fn push(&mut self, slot: Option<u32>) {
        if slot.is_none() {
            self.misses.push(self.slots.len() as u32);
        }
        self.slots.push(slot.unwrap_or(Self::MISS));
    }

    /// Bytes held.
    pub(super) fn bytes(&self) -> usize {
        (self.slots.capacity() + self.misses.capacity()) * size_of::<u32>()
    }

    /// The slot of each row, or [`Self::MISS`].
    #[must_use]
    pub fn slots(&self) -> &[u32] {
        &self.slots
    }

    /// Places in the round of the rows that are in no slot, ascending.
    #[must_use]
    pub fn misses(&self) -> &[u32] {
        &self.misses
    }
}
