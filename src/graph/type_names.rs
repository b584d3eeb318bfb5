//! The names of edge types and their numbers, in order of first appearance; number 0 is "none".
//!
//! One thread defines; any number of threads look up. Knows nothing of edges.

use std::sync::Arc;

use hashbrown::HashMap;
use parking_lot::RwLock;

/// Edge type names by number, and back. There are 65,535 at most; the log holds no more.
#[derive(Debug, Default)]
pub struct TypeNames {
    inner: RwLock<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    numbers: HashMap<Arc<str>, u16>,
    /// The name of number i + 1.
    names: Vec<Arc<str>>,
}

impl TypeNames {
    /// Gives a type the next number, if it has none and there is one left.
    pub fn define(&self, name: &str) {
        let Inner { numbers, names } = &mut *self.inner.write();
        let Ok(number) = u16::try_from(names.len() + 1) else { return };
        if !numbers.contains_key(name) {
            let name: Arc<str> = name.into();
            numbers.insert(name.clone(), number);
            names.push(name);
        }
    }

    /// The number of a type that was seen before.
    #[must_use]
    pub fn lookup(&self, name: &str) -> Option<u16> {
        self.inner.read().numbers.get(name).copied()
    }

    /// The name with this number; `None` of 0 and of one that was not given.
    #[must_use]
    pub fn name(&self, number: u16) -> Option<Arc<str>> {
        let place = usize::from(number).checked_sub(1)?;
        self.inner.read().names.get(place).cloned()
    }

    /// All names, by number from 1 on.
    #[must_use]
    pub fn all(&self) -> Vec<Arc<str>> {
        self.inner.read().names.clone()
    }

    /// How many types there are, "none" not counted.
    #[must_use]
    pub fn len(&self) -> usize {
        self.inner.read().names.len()
    }

    /// Whether there is no type.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_numbers_by_first_appearance_as_long_as_there_are_any() {
        let types = TypeNames::default();
        assert!(types.is_empty());
        ["buy", "sell", "buy"].iter().for_each(|name| types.define(name));
        assert_eq!((types.lookup("buy"), types.lookup("sell"), types.lookup("")), (Some(1), Some(2), None));
        assert_eq!(types.name(2).as_deref(), Some("sell"));
        assert_eq!((types.name(0), types.name(3), types.len()), (None, None, 2));
        (0..70_000).for_each(|i| types.define(&format!("t{i}")));
        assert_eq!(
            (types.len(), types.lookup("t65532"), types.lookup("t65533")),
            (65_535, Some(65_535), None)
        );
        assert_eq!(types.name(u16::MAX).as_deref(), Some("t65532"));
    }
}
