//! Names and numbers of nodes, edges and times, each a type of its own so that none is taken for
//! another.

use std::fmt;

/// The producer's name of a node: an integer or a text.
///
/// One text has one key: a text that is the canonical decimal form of an `i64` *is* that integer, so
/// `7` and `"7"` name the same node in JSON, CSV and URLs, while `"07"` and `"+7"` stay texts.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum NodeKey {
    /// An integer name.
    Int(i64),
    /// Any other name; never the canonical decimal form of an `i64`.
    Text(Box<str>),
}

impl NodeKey {
    /// The key that `text` names.
    #[must_use]
    pub fn from_text(text: &str) -> Self {
        match parse_canonical_i64(text) {
            Some(number) => Self::Int(number),
            None => Self::Text(text.into()),
        }
    }

    /// The key as a number, where every reader of JSON reads that exactly: those that read numbers as doubles, as
    /// JavaScript does, change integers beyond 2^53 - 1.
    #[must_use]
    pub fn exact_number(&self) -> Option<i64> {
        const EXACT_MAX: u64 = (1 << 53) - 1;
        match self {
            Self::Int(number) if number.unsigned_abs() <= EXACT_MAX => Some(*number),
            _ => None,
        }
    }
}

/// `text` as an integer if it is written the one canonical way: no sign but `-`, no leading zero.
fn parse_canonical_i64(text: &str) -> Option<i64> {
    let digits = text.strip_prefix('-').unwrap_or(text);
    let canonical = match digits.as_bytes() {
        [b'0'] => text.len() == 1,
        [b'1'..=b'9', rest @ ..] => rest.len() < 19 && rest.iter().all(u8::is_ascii_digit),
        _ => false,
    };
    if canonical { text.parse().ok() } else { None }
}

impl From<i64> for NodeKey {
    fn from(number: i64) -> Self {
        Self::Int(number)
    }
}

impl From<&str> for NodeKey {
    fn from(text: &str) -> Self {
        Self::from_text(text)
    }
}

impl fmt::Display for NodeKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Int(number) => number.fmt(f),
            Self::Text(text) => text.fmt(f),
        }
    }
}

/// Our dense index of a node, given in order of first appearance in the log.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, bytemuck::Pod, bytemuck::Zeroable,
)]
#[repr(transparent)]
pub struct NodeId(pub u32);

impl NodeId {
    /// Stands in the empty slots of a sample, and in a deletion that found no nodes; never the id of a node.
    pub const NONE: Self = Self(u32::MAX);

    /// The id as an index into per-node tables.
    #[must_use]
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// Position of a record in the log, which is its order of arrival. Edges, deletions and node records
/// share one numbering.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, bytemuck::Pod, bytemuck::Zeroable,
)]
#[repr(transparent)]
pub struct EdgeId(pub u64);

impl fmt::Display for EdgeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Event time in the stream's own unit. Never a float: subtract first, cast only differences.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, bytemuck::Pod, bytemuck::Zeroable,
)]
#[repr(transparent)]
pub struct EventTime(pub i64);

impl EventTime {
    /// Before every event.
    pub const MIN: Self = Self(i64::MIN);
    /// After every event.
    pub const MAX: Self = Self(i64::MAX);

    /// `self - earlier` as a number for a time encoder. The difference is taken in 64-bit integers
    /// (saturating at the ends of the range) before the cast.
    #[must_use]
    #[allow(clippy::cast_precision_loss)]
    pub fn since(self, earlier: Self) -> f32 {
        self.0.saturating_sub(earlier.0) as f32
    }
}

impl fmt::Display for EventTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_text_has_one_key() {
        let int = |text: &str| matches!(NodeKey::from_text(text), NodeKey::Int(_));
        for text in ["0", "7", "-7", "9223372036854775807", "-9223372036854775808"] {
            assert!(int(text), "{text}");
            assert_eq!(NodeKey::from_text(text).to_string(), text);
        }
        for text in
            ["", "-", "07", "+7", "-0", "7.0", " 7", "9223372036854775808", "1e3", "99999999999999999999"]
        {
            assert!(!int(text), "{text}");
            assert_eq!(NodeKey::from_text(text).to_string(), text);
        }
    }

    #[test]
    fn differences_are_taken_before_the_cast() {
        let day = EventTime(1_700_000_000);
        assert_eq!(EventTime(day.0 + 1).since(day), 1.0);
        assert!(EventTime::MAX.since(EventTime::MIN).is_finite());
    }
}
