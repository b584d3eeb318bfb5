//! The nodes or pairs of a request: counted while they are parsed, and kept only as far as one request may have them.
//!
//! A short body can list very many items. What is beyond the limit is read over, so that it costs no memory and the
//! error still names the number.

use std::cell::Cell;
use std::fmt;
use std::marker::PhantomData;

use serde::de::{Deserialize, Deserializer, IgnoredAny, SeqAccess, Visitor};

thread_local! {
    /// The limit of the request that this thread parses; serde has no other way to pass it.
    static MOST: Cell<usize> = const { Cell::new(usize::MAX) };
}

/// Runs `parse`, in which [`Items`] keep at most `most` items.
pub(super) fn at_most<T>(most: usize, parse: impl FnOnce() -> T) -> T {
    struct Restore(usize);
    impl Drop for Restore {
        fn drop(&mut self) {
            MOST.set(self.0);
        }
    }
    let _restore = Restore(MOST.replace(most));
    parse()
}

/// A list of which at most the allowed number of items is kept.
#[derive(Debug)]
pub struct Items<T> {
    kept: Vec<T>,
    found: usize,
}

impl<T> Items<T> {
    /// How many came. If these are more than are allowed, none is kept.
    pub(super) fn len(&self) -> usize {
        self.found
    }

    /// Those that are kept.
    pub(super) fn iter(&self) -> std::slice::Iter<'_, T> {
        self.kept.iter()
    }
}

impl<T> IntoIterator for Items<T> {
    type Item = T;
    type IntoIter = std::vec::IntoIter<T>;

    fn into_iter(self) -> Self::IntoIter {
        self.kept.into_iter()
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Items<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(Counting(PhantomData))
    }
}

struct Counting<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for Counting<T> {
    type Value = Items<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Items<T>, A::Error> {
        let most = MOST.get();
        let mut kept = Vec::new();
        while kept.len() < most {
            let Some(item) = list.next_element()? else {
                let found = kept.len();
                return Ok(Items { kept, found });
            };
            kept.push(item);
        }
        let mut found = kept.len();
        while list.next_element::<IgnoredAny>()?.is_some() {
            found += 1;
        }
        if found > most {
            kept = Vec::new();
        }
        Ok(Items { kept, found })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    thread_local! {
        static BUILT: Cell<usize> = const { Cell::new(0) };
    }

    struct Built;

    impl<'de> Deserialize<'de> for Built {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            BUILT.set(BUILT.get() + 1);
            IgnoredAny::deserialize(deserializer).map(|_| Self)
        }
    }

    #[test]
    fn items_beyond_the_limit_are_counted_and_not_built() {
        let many = format!("[{}0]", "0,".repeat(1_000_000));
        let parse = |most| at_most(most, || serde_json::from_str::<Items<Built>>(&many).unwrap());
        let items = parse(7);
        assert_eq!((items.len(), BUILT.take(), items.into_iter().count()), (1_000_001, 7, 0));
        let items = parse(1_000_001);
        assert_eq!((items.len(), BUILT.take(), items.into_iter().count()), (1_000_001, 1_000_001, 1_000_001));
        let all: Items<u8> = serde_json::from_str("[1,2,3]").unwrap();
        assert_eq!(all.into_iter().collect::<Vec<_>>(), [1, 2, 3], "outside, there is no limit");
        assert!(at_most(1, || serde_json::from_str::<Items<u8>>("[1,2,")).is_err());
        assert!(at_most(1, || serde_json::from_str::<Items<u8>>("7")).is_err());
    }
}
