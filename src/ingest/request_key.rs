//! Idempotency keys of events whose request has one.
//!
//! An event's key comes from the key of its request, its own bytes, and how many equal events precede it in the body.
//! So a request that is sent again is stored once, also if it is sent again without the events that were rejected;
//! equal events of one body are all stored; and another event under a key that is used twice by mistake is not lost.

use std::collections::HashMap;

use xxhash_rust::xxh3::xxh3_128;

/// The key of a request, and what was seen of it.
pub(super) struct RequestKey {
    key: u128,
    seen: HashMap<u128, u32>,
}

impl RequestKey {
    pub(super) fn new(key: &str) -> Self {
        Self { key: xxh3_128(key.as_bytes()), seen: HashMap::new() }
    }

    /// The content of a message, from which the keys of its events come.
    pub(super) fn content(raw: &[u8]) -> u128 {
        xxh3_128(raw)
    }

    /// The hash of the key of the next event with this content; never 0, which stands for "none".
    pub(super) fn of_event(&mut self, content: u128) -> u128 {
        let before = self.seen.entry(content).or_insert(0);
        let mut parts = [0; 36];
        parts[..16].copy_from_slice(&self.key.to_le_bytes());
        parts[16..32].copy_from_slice(&content.to_le_bytes());
        parts[32..].copy_from_slice(&before.to_le_bytes());
        *before += 1;
        xxh3_128(&parts).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_of_a_request_keeps_its_key_and_equal_ones_differ() {
        let keys = |key: &str, events: &[&str]| -> Vec<u128> {
            let mut request = RequestKey::new(key);
            events.iter().map(|raw| request.of_event(RequestKey::content(raw.as_bytes()))).collect()
        };
        let first = keys("a", &["x", "y", "x", "x"]);
        assert_eq!(first, keys("a", &["x", "y", "x", "x"]));
        assert_eq!(first[2..], keys("a", &["x", "x", "x"])[1..], "without what was rejected");
        let mut all = [first, keys("b", &["x", "y", "x", "x"]), keys("a", &["z"])].concat();
        let count = all.len();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), count);
    }
}
