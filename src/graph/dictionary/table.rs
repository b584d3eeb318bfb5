//! [`IdTable`]: what the dictionary holds by id: an integer, or where a text starts. In pages that go when all their
//! keys are forgotten.

use std::ops::Range;

use crate::event::{NodeId, NodeTable};
use crate::graph::NODES_MAX;

/// In place of a text's position, for an id whose key was forgotten.
const FORGOTTEN: u64 = u64::MAX;

/// Ids of a page.
const PAGE: usize = NodeTable::<u64>::PAGE;

/// A key by its id.
#[derive(Clone, Copy)]
pub(super) enum Value {
    Int(i64),
    /// A text, by where it starts.
    Text(u64),
}

/// Keys by id.
pub(super) struct IdTable {
    /// Ids given.
    ids: usize,
    /// Of these, those whose keys were forgotten.
    forgotten: usize,
    values: NodeTable<u64>,
    /// Whether the key is a text, 64 ids in a word. Of an id without a key both tables have what they are empty of.
    is_text: NodeTable<u64>,
}

/// The id with this number, or a word with it.
#[allow(clippy::cast_possible_truncation, reason = "checked against NODES_MAX where ids are given")]
#[inline]
pub(super) fn node(id: usize) -> NodeId {
    NodeId(id as u32)
}

impl IdTable {
    pub fn new() -> Self {
        Self { ids: 0, forgotten: 0, values: NodeTable::new(FORGOTTEN), is_text: NodeTable::new(u64::MAX) }
    }

    /// Ids given.
    pub fn len(&self) -> usize {
        self.ids
    }

    /// Ids that have a key.
    pub fn named_count(&self) -> usize {
        self.ids - self.forgotten
    }

    /// The key of `id`, if it has one.
    #[inline]
    pub fn get(&self, id: usize) -> Option<Value> {
        if id >= self.ids {
            return None;
        }
        let value = self.values.get(node(id));
        match self.is_text.get(node(id / 64)) >> (id % 64) & 1 == 1 {
            false => Some(Value::Int(value.cast_signed())),
            true => (value != FORGOTTEN).then_some(Value::Text(value)),
        }
    }

    /// Where the text with this id starts.
    #[inline]
    pub fn text_start(&self, id: NodeId) -> u64 {
        self.values.get(id)
    }

    /// Gives a key the next id.
    ///
    /// # Panics
    /// When [`NODES_MAX`] ids are given.
    pub fn push(&mut self, key: Value) -> NodeId {
        assert!(self.ids < NODES_MAX, "the graph can hold no more than {NODES_MAX} nodes");
        let id = node(self.ids);
        match key {
            Value::Text(start) => self.values.set(id, start),
            Value::Int(number) => {
                self.values.set(id, number.cast_unsigned());
                self.set_text(self.ids, false);
            }
        }
        self.ids += 1;
        id
    }

    /// Gives `count` ids whose keys are forgotten; whether there were so many.
    pub fn push_forgotten(&mut self, count: usize) -> bool {
        let has_room = count <= NODES_MAX - self.ids;
        if has_room {
            self.ids += count;
            self.forgotten += count;
        }
        has_room
    }

    /// Forgets the key of `id`, which has one.
    pub fn forget(&mut self, id: usize) {
        self.values.set(node(id), FORGOTTEN);
        self.set_text(id, true);
        self.forgotten += 1;
    }

    fn set_text(&mut self, id: usize, is_text: bool) {
        let (word, bit) = (node(id / 64), 1 << (id % 64));
        let others = self.is_text.get(word) & !bit;
        self.is_text.set(word, if is_text { others | bit } else { others });
    }

    /// Whether no id of a page has a key.
    fn is_gone(&self, page: usize) -> bool {
        // The integer -1, which looks as if it were forgotten, holds no page of values.
        let mut words = page * (PAGE / 64)..(page + 1) * (PAGE / 64);
        !self.values.has_page(page) && words.all(|word| self.is_text.get(node(word)) == u64::MAX)
    }

    /// The keys of `ids`, ascending. Visits pages that are there, no others.
    pub fn named(&self, ids: Range<usize>) -> impl Iterator<Item = (usize, Value)> {
        let pages = (ids.start / PAGE..ids.end.div_ceil(PAGE)).filter(|&page| !self.is_gone(page));
        let ids = pages.flat_map(move |page| (page * PAGE).max(ids.start)..((page + 1) * PAGE).min(ids.end));
        ids.filter_map(|id| Some((id, self.get(id)?)))
    }

    /// Every `step`th of `ids` that has a key, ascending.
    pub fn named_by(&self, ids: Range<usize>, step: usize) -> impl Iterator<Item = usize> {
        let (mut id, end) = (ids.start, ids.end.min(self.ids));
        std::iter::from_fn(move || {
            while id < end {
                let (at, page) = (id, id / PAGE);
                if self.is_gone(page) {
                    id += ((page + 1) * PAGE - id).next_multiple_of(step);
                    continue;
                }
                id += step;
                if self.get(at).is_some() {
                    return Some(at);
                }
            }
            None
        })
    }

    /// Replaces where each text starts by what `f` makes of it.
    pub fn move_texts(&mut self, mut f: impl FnMut(u64) -> u64) {
        let is_text = &self.is_text;
        self.values.update(|id, value| {
            let is_text = is_text.get(node(id.index() / 64)) >> (id.index() % 64) & 1 == 1;
            if is_text { f(value) } else { value }
        });
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        self.values.bytes() + self.is_text.bytes()
    }

    /// Whether a value is anywhere in it.
    #[cfg(test)]
    pub fn holds(&self, value: u64) -> bool {
        self.values.iter().any(|(_, held)| held == value)
    }
}
