//! The idempotency keys seen last, so that an event delivered twice is applied once. The window is a
//! ring of 128-bit hashes; it is rebuilt from the log at start, so it survives a crash with the events.

use std::collections::VecDeque;

use hashbrown::HashSet;

/// The last `capacity` idempotency keys.
#[derive(Debug)]
pub struct IdempotencyWindow {
    capacity: usize,
    order: VecDeque<u128>,
    known: HashSet<u128>,
}

impl IdempotencyWindow {
    /// An empty window over the last `capacity` keys.
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        Self { capacity, order: VecDeque::new(), known: HashSet::new() }
    }

    /// Whether the key is among the last ones.
    #[must_use]
    pub fn contains(&self, key: u128) -> bool {
        self.known.contains(&key)
    }

    /// The keys, the oldest first.
    pub fn keys(&self) -> impl Iterator<Item = u128> + '_ {
        self.order.iter().copied()
    }

    /// Records a key; the oldest one leaves when the window is full.
    pub fn insert(&mut self, key: u128) {
        if self.capacity == 0 || !self.known.insert(key) {
            return;
        }
        if self.order.len() == self.capacity
            && let Some(oldest) = self.order.pop_front()
        {
            self.known.remove(&oldest);
        }
        self.order.push_back(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_key_leaves_first() {
        let mut window = IdempotencyWindow::new(2);
        for key in [1, 2, 2, 3] {
            window.insert(key);
        }
        assert!(!window.contains(1) && window.contains(2) && window.contains(3));
    }

    #[test]
    fn a_window_of_none_remembers_nothing() {
        let mut window = IdempotencyWindow::new(0);
        window.insert(1);
        assert!(!window.contains(1));
    }
}
