//! A message as it comes to a mapping, and what it is then.

use std::fmt;

use crate::event::Incoming;
use crate::ingest::document::Document;

/// A message as it came.
#[derive(Clone, Copy)]
pub struct Message<'a> {
    /// The key, if the source has keys.
    pub key: Option<&'a [u8]>,
    /// The value.
    pub value: &'a [u8],
    /// Finds a header by its name.
    pub header: &'a dyn Fn(&str) -> Option<&'a [u8]>,
}

impl<'a> Message<'a> {
    /// A message that is nothing but its value.
    #[must_use]
    pub fn of_value(value: &'a [u8]) -> Self {
        Self { key: None, value, header: &|_| None }
    }
}

impl fmt::Debug for Message<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Message").field("key", &self.key).field("value", &self.value).finish_non_exhaustive()
    }
}

/// What comes with a message's value.
#[derive(Clone, Copy)]
pub(super) struct Around<'a> {
    /// The key.
    pub key: Option<&'a Document<'a>>,
    /// Finds a header by its name.
    pub header: &'a dyn Fn(&str) -> Option<&'a [u8]>,
}

impl Around<'_> {
    /// What comes with a value alone.
    pub const NOTHING: Self = Self { key: None, header: &|_| None };
}

/// What a message is.
#[derive(Clone, Debug, PartialEq)]
pub enum Decoded {
    /// One event.
    One(Incoming),
    /// Several events, in their order.
    Many(Vec<Incoming>),
    /// Nothing that is stored.
    Ignored,
}

impl Decoded {
    /// The events.
    pub fn into_events(self) -> impl Iterator<Item = Incoming> {
        let (one, many) = match self {
            Self::One(incoming) => (Some(incoming), Vec::new()),
            Self::Many(events) => (None, events),
            Self::Ignored => (None, Vec::new()),
        };
        one.into_iter().chain(many)
    }
}
