//! The node dictionary: the [`NodeId`] of each [`NodeKey`].
//!
//! Ids are given in order of first appearance, so the list of keys is the source of truth and the tables are indexes
//! over it. One thread interns; any number of threads look up concurrently and wait only while new keys are written.
//!
//! Integers need no hash where they are dense, as most producers' are: a table by key holds the ids of small ones, and
//! grows to four times its number of keys at most. Other integers are in a hash table with their ids. Texts are stored
//! back to back in one arena; their hash table holds 32 bits of the hash beside the id, so that it grows without
//! reading them. Hashes are seeded per process, because keys come from outside.
//!
//! A forgotten key is overwritten everywhere, and its id refers to nothing from then on: ids are never reused. If the
//! same key arrives again, it is the key of a new node. The bytes of forgotten texts are given back once they are half
//! of all, and the tables by id are in pages that go when all their keys are forgotten, so where nodes come and go, a
//! pointer per page is left of them.
//!
//! Knows nothing of edges.

mod saved;
mod table;

use std::hash::{BuildHasher, RandomState};
use std::ops::Range;

use hashbrown::HashTable;
use parking_lot::{Mutex, RwLock};
use table::{IdTable, Value, node};

use super::key::{KeyRef, SparseKey, TextKey, halves, hash_halves, hash_text, widen_hash};
use crate::event::{NodeId, NodeKey, NodeNames};

/// The most nodes that the graph supports: ids are 31 bits wide, because an entry of the graph store keeps the
/// direction of its edge in the remaining bit.
pub const NODES_MAX: usize = 1 << 31;

/// Length of the table by key that is worth having for any number of keys.
const DENSE_MIN: usize = 64;

/// Bytes of forgotten texts that are worth moving the others for.
const ARENA_MIN: usize = 1 << 16;

/// Keys that are written under one lock, at most.
const WRITTEN_AT_ONCE: usize = 256;

/// Ids that are looked through under one lock.
const IDS_AT_A_TIME: usize = 8192;

/// Maps producers' node keys to dense ids and back.
pub struct NodeDictionary {
    inner: RwLock<Inner>,
    /// Keys that were forgotten since they were taken last; `None` while nobody follows.
    forgotten: Mutex<Option<Vec<NodeKey>>>,
}

struct Inner {
    seed: u64,
    /// By key, the ids of small integers; `NodeId::NONE` where there is none.
    dense: Vec<NodeId>,
    /// How many ids are in it.
    dense_keys: usize,
    /// The other integers.
    sparse: HashTable<SparseKey>,
    texts: HashTable<TextKey>,
    by_id: IdTable,
    /// Texts, each as its length in four bytes and its UTF-8 bytes.
    arena: Vec<u8>,
    /// Bytes of it that belong to forgotten texts.
    forgotten_bytes: usize,
}

impl Inner {
    #[inline]
    fn key(&self, id: usize) -> Option<KeyRef<'_>> {
        self.by_id.get(id).and_then(|value| self.key_of(value))
    }

    #[inline]
    fn key_of(&self, value: Value) -> Option<KeyRef<'_>> {
        match value {
            Value::Int(number) => Some(KeyRef::Int(number)),
            Value::Text(start) => {
                self.text_at(start).and_then(|bytes| std::str::from_utf8(bytes).ok()).map(KeyRef::Text)
            }
        }
    }

    /// The keys of `ids`, ascending, without those that were forgotten.
    fn named(&self, ids: Range<usize>) -> impl Iterator<Item = (usize, KeyRef<'_>)> {
        self.by_id.named(ids).filter_map(|(id, value)| Some((id, self.key_of(value)?)))
    }

    fn text_at(&self, start: u64) -> Option<&[u8]> {
        text_in(&self.arena, start)
    }

    #[inline]
    fn find(&self, key: KeyRef<'_>) -> Option<NodeId> {
        match key {
            KeyRef::Int(number) => self.find_int(number),
            KeyRef::Text(text) => self.find_text(text, hash_text(text, self.seed)),
        }
    }

    #[inline]
    fn find_int(&self, number: i64) -> Option<NodeId> {
        let dense = usize::try_from(number).ok().and_then(|place| self.dense.get(place));
        if let Some(&id) = dense.filter(|&&id| id != NodeId::NONE) {
            return Some(id);
        }
        if self.sparse.is_empty() {
            return None;
        }
        let number = halves(number);
        let found = self.sparse.find(hash_halves(number, self.seed), |key| key.number == number);
        found.map(|key| key.id)
    }

    fn find_text(&self, text: &str, hash: u32) -> Option<NodeId> {
        let is_it = |key: &TextKey| {
            key.hash == hash && self.text_at(self.by_id.text_start(key.id)) == Some(text.as_bytes())
        };
        self.texts.find(widen_hash(hash), is_it).map(|key| key.id)
    }

    fn intern(&mut self, key: KeyRef<'_>) -> NodeId {
        match key {
            KeyRef::Int(number) => self.find_int(number).unwrap_or_else(|| self.add_int(number)),
            KeyRef::Text(text) => {
                let hash = hash_text(text, self.seed);
                self.find_text(text, hash).unwrap_or_else(|| self.add_text(text, hash))
            }
        }
    }

    /// Gives `key` the next id, even if it has one: the tables have the new one then.
    fn define(&mut self, key: KeyRef<'_>) {
        match key {
            KeyRef::Int(number) => {
                if let Some(old) = self.find_int(number) {
                    self.take_out(old.index());
                }
                self.add_int(number);
            }
            KeyRef::Text(text) => {
                let hash = hash_text(text, self.seed);
                if let Some(old) = self.find_text(text, hash) {
                    self.take_out(old.index());
                }
                self.add_text(text, hash);
            }
        }
    }

    /// Removes `id` from the table that leads to it, if any does, and overwrites its place there.
    fn take_out(&mut self, id: usize) {
        let seed = self.seed;
        match self.key(id) {
            Some(KeyRef::Int(number)) => {
                let dense = usize::try_from(number).ok().and_then(|place| self.dense.get_mut(place));
                if let Some(slot) = dense.filter(|slot| slot.index() == id) {
                    *slot = NodeId::NONE;
                    self.dense_keys -= 1;
                    return;
                }
                let hash = hash_halves(halves(number), seed);
                if let Ok(mut entry) = self.sparse.find_entry(hash, |key| key.id.index() == id) {
                    *entry.get_mut() = SparseKey { number: [0; 2], id: NodeId::NONE };
                    entry.remove();
                }
            }
            Some(KeyRef::Text(text)) => {
                let hash = widen_hash(hash_text(text, seed));
                if let Ok(mut entry) = self.texts.find_entry(hash, |key| key.id.index() == id) {
                    *entry.get_mut() = TextKey { hash: 0, id: NodeId::NONE };
                    entry.remove();
                }
            }
            None => {}
        }
    }

    fn forget(&mut self, id: usize) {
        self.take_out(id);
        let Some(value) = self.by_id.get(id) else { return };
        if let Value::Text(start) = value {
            let (start, length) = (start as usize, self.text_at(start).map_or(0, <[u8]>::len));
            self.arena[start..start + size_of::<u32>() + length].fill(0);
            self.forgotten_bytes += size_of::<u32>() + length;
        }
        self.by_id.forget(id);
        if self.forgotten_bytes > ARENA_MIN.max(self.arena.len() / 2) {
            self.compact_arena();
        }
    }

    /// Moves the texts to an arena without those that were forgotten.
    fn compact_arena(&mut self) {
        let old = std::mem::take(&mut self.arena);
        let mut arena = Vec::with_capacity(old.len() - self.forgotten_bytes);
        self.by_id.move_texts(|start| {
            let (place, text) = (arena.len() as u64, text_in(&old, start).unwrap_or_default());
            // The length before a text was made from it.
            arena.extend_from_slice(&(text.len() as u32).to_le_bytes());
            arena.extend_from_slice(text);
            place
        });
        (self.arena, self.forgotten_bytes) = (arena, 0);
    }

    fn add_int(&mut self, number: i64) -> NodeId {
        let id = self.by_id.push(Value::Int(number));
        let place = usize::try_from(number).unwrap_or(usize::MAX);
        if place >= self.dense.len() && place / 2 < self.dense_keys.max(DENSE_MIN / 2) {
            self.dense.resize((place + 1).next_power_of_two(), NodeId::NONE);
        }
        if let Some(slot) = self.dense.get_mut(place) {
            *slot = id;
            self.dense_keys += 1;
        } else {
            let (number, seed) = (halves(number), self.seed);
            let hash = |key: &SparseKey| hash_halves(key.number, seed);
            self.sparse.insert_unique(hash_halves(number, seed), SparseKey { number, id }, hash);
        }
        id
    }

    fn add_text(&mut self, text: &str, hash: u32) -> NodeId {
        let id = self.by_id.push(Value::Text(self.arena.len() as u64));
        let length = u32::try_from(text.len()).unwrap_or(u32::MAX);
        self.arena.extend_from_slice(&length.to_le_bytes());
        self.arena.extend_from_slice(text.as_bytes());
        self.texts.insert_unique(widen_hash(hash), TextKey { hash, id }, |key| widen_hash(key.hash));
        id
    }
}

/// The text that starts there in an arena.
fn text_in(arena: &[u8], start: u64) -> Option<&[u8]> {
    let (length, rest) = arena.get(usize::try_from(start).ok()?..)?.split_first_chunk()?;
    rest.get(..u32::from_le_bytes(*length) as usize)
}

impl NodeDictionary {
    /// A dictionary without keys.
    #[must_use]
    pub fn new() -> Self {
        let inner = Inner {
            seed: RandomState::new().hash_one(0_u64),
            dense: Vec::new(),
            dense_keys: 0,
            sparse: HashTable::new(),
            texts: HashTable::new(),
            by_id: IdTable::new(),
            arena: Vec::new(),
            forgotten_bytes: 0,
        };
        Self { inner: RwLock::new(inner), forgotten: Mutex::new(None) }
    }

    /// The id of `key`, which gets the next free id if it has none.
    ///
    /// # Panics
    /// When [`NODES_MAX`] keys have ids already.
    pub fn intern(&self, key: &NodeKey) -> NodeId {
        let key = KeyRef::from(key);
        if let Some(id) = self.inner.read().find(key) {
            return id;
        }
        self.inner.write().intern(key)
    }

    /// Gives each of `keys` the next id, in order, as for the new keys of a frame of the log. A key that has an id
    /// already belongs to a node that is about to be forgotten: [`lookup`](Self::lookup) finds the new one from then
    /// on.
    ///
    /// # Panics
    /// When [`NODES_MAX`] keys have ids already.
    pub fn define(&self, keys: &[NodeKey]) {
        for keys in keys.chunks(WRITTEN_AT_ONCE) {
            let mut inner = self.inner.write();
            for key in keys {
                inner.define(key.into());
            }
        }
    }

    /// Forgets the key of `id` and overwrites it. If the same key has a newer id, that stays.
    pub fn forget(&self, id: NodeId) {
        let mut inner = self.inner.write();
        if let Some(forgotten) = &mut *self.forgotten.lock() {
            forgotten.extend(inner.key(id.index()).map(NodeKey::from));
        }
        inner.forget(id.index());
    }

    /// Records forgotten keys from now on, for [`take_forgotten`](Self::take_forgotten).
    pub fn follow_forgotten(&self) {
        self.forgotten.lock().get_or_insert_default();
    }

    /// The keys that were forgotten since the last call, in order.
    #[must_use]
    pub fn take_forgotten(&self) -> Vec<NodeKey> {
        self.forgotten.lock().as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// The id of `key`, if it has one.
    #[must_use]
    pub fn lookup(&self, key: &NodeKey) -> Option<NodeId> {
        self.inner.read().find(key.into())
    }

    /// The key of `id`, if there is such a node and it was not forgotten.
    #[must_use]
    pub fn key(&self, id: NodeId) -> Option<NodeKey> {
        self.inner.read().key(id.index()).map(NodeKey::from)
    }

    /// Whether `id` has a key.
    #[must_use]
    pub fn is_named(&self, id: NodeId) -> bool {
        self.inner.read().key(id.index()).is_some()
    }

    /// Calls `f` with every `step`th id of `ids` that has a key, ascending.
    pub fn for_each_named(&self, ids: Range<NodeId>, step: usize, mut f: impl FnMut(NodeId)) {
        let inner = self.inner.read();
        inner.by_id.named_by(ids.start.index()..ids.end.index(), step).for_each(|id| f(node(id)));
    }

    /// Calls `f` with each id that has a key and the canonical bytes of that, in order of ids: a tag (0 integer,
    /// 1 text) and the integer in little-endian order or the UTF-8 text. Interning waits for some thousand at a time.
    pub fn for_each_bytes(&self, mut f: impl FnMut(NodeId, u8, &[u8])) {
        for from in (0..self.len()).step_by(IDS_AT_A_TIME) {
            let inner = self.inner.read();
            for (id, key) in inner.named(from..inner.by_id.len().min(from + IDS_AT_A_TIME)) {
                match key {
                    KeyRef::Int(number) => f(node(id), 0, &number.to_le_bytes()),
                    KeyRef::Text(text) => f(node(id), 1, text.as_bytes()),
                }
            }
        }
    }

    /// Number of ids given, those of forgotten keys included; the next new key gets this id.
    #[must_use]
    pub fn len(&self) -> usize {
        self.inner.read().by_id.len()
    }

    /// Whether there never was a key.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes held, unused capacity included.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let inner = self.inner.read();
        let bytes = size_of::<Self>()
            + inner.dense.capacity() * size_of::<NodeId>()
            + inner.sparse.allocation_size()
            + inner.texts.allocation_size()
            + inner.by_id.bytes()
            + inner.arena.capacity();
        bytes as u64
    }
}

impl NodeNames for NodeDictionary {
    fn count(&self) -> usize {
        self.inner.read().by_id.named_count()
    }

    fn has(&self, key: &NodeKey) -> bool {
        self.lookup(key).is_some()
    }
}

impl Default for NodeDictionary {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};

    #[test]
    fn names_that_come_and_go_leave_nothing() {
        let dictionary = NodeDictionary::new();
        let name = |i: u32| NodeKey::from_text(&format!("a node with a name of some length: {i}"));
        for i in 0..200_000 {
            assert_eq!(dictionary.intern(&name(i)), NodeId(i));
            dictionary.forget(NodeId(i.wrapping_sub(1_000)));
        }
        assert_eq!((dictionary.count(), dictionary.len()), (1_000, 200_000));
        assert!(dictionary.bytes() < 300_000, "{}", dictionary.bytes());
        for i in 199_000..200_000 {
            assert_eq!(dictionary.lookup(&name(i)), Some(NodeId(i)));
            assert_eq!(dictionary.key(NodeId(i)), Some(name(i)));
        }
        assert!(!dictionary.has(&name(198_999)) && dictionary.key(NodeId(198_999)).is_none());
        dictionary.forget(NodeId(5));
        assert_eq!(dictionary.count(), 1_000, "once only");
    }

    fn key(i: i64) -> NodeKey {
        if i % 3 == 0 { NodeKey::Int(i - 50) } else { NodeKey::from_text(&format!("node {i} ü")) }
    }

    #[test]
    fn ids_are_dense_and_keys_come_back() {
        let dictionary = NodeDictionary::new();
        for round in 0..2 {
            for i in 0..1_000 {
                assert_eq!(dictionary.intern(&key(i)), NodeId(i as u32), "round {round}");
            }
        }
        assert_eq!(dictionary.len(), 1_000);
        for i in 0..1_000 {
            assert_eq!(dictionary.lookup(&key(i)), Some(NodeId(i as u32)));
            assert_eq!(dictionary.key(NodeId(i as u32)), Some(key(i)));
        }
        assert_eq!(dictionary.lookup(&key(1_000)), None);
        assert_eq!(dictionary.key(NodeId(1_000)), None);
        assert_eq!(dictionary.key(NodeId::NONE), None);
    }

    #[test]
    fn an_integer_and_a_text_of_the_same_bits_are_two_keys() {
        let dictionary = NodeDictionary::new();
        let empty = dictionary.intern(&NodeKey::from_text(""));
        let zero = dictionary.intern(&NodeKey::Int(0));
        let text = dictionary.intern(&NodeKey::from_text("\0\0\0\0\0\0\0\0"));
        assert_eq!([empty, zero, text], [NodeId(0), NodeId(1), NodeId(2)]);
        assert_eq!(dictionary.key(empty), Some(NodeKey::from_text("")));
        assert_eq!(dictionary.intern(&NodeKey::Int(0)), zero);
        let mut seen = Vec::new();
        dictionary.for_each_bytes(|id, tag, bytes| seen.push((id.0, tag, bytes.len())));
        assert_eq!(seen, [(0, 1, 0), (1, 0, 8), (2, 1, 8)]);
    }

    #[test]
    fn readers_look_up_while_the_writer_interns() {
        let dictionary = NodeDictionary::new();
        let done = AtomicBool::new(false);
        let total = 20_000_i64;
        std::thread::scope(|scope| {
            let _end = scopeguard::guard((), |()| done.store(true, Ordering::Release));
            for _ in 0..3 {
                scope.spawn(|| {
                    let mut checked = 0_u64;
                    while !done.load(Ordering::Acquire) || checked == 0 {
                        let known = dictionary.len() as i64;
                        for i in [0, known / 2, known - 1] {
                            if i >= 0 && i < known {
                                assert_eq!(dictionary.lookup(&key(i)), Some(NodeId(i as u32)));
                                assert_eq!(dictionary.key(NodeId(i as u32)), Some(key(i)));
                                checked += 1;
                            }
                        }
                        assert_eq!(dictionary.lookup(&key(total)), None);
                    }
                });
            }
            for i in 0..total {
                assert_eq!(dictionary.intern(&key(i)), NodeId(i as u32));
            }
        });
        assert!(dictionary.bytes() >= 8 * total as u64);
    }

    fn any_key() -> impl Strategy<Value = NodeKey> {
        prop_oneof![
            4 => (0_i64..300).prop_map(NodeKey::Int),
            2 => (0_i64..20_000).prop_map(NodeKey::Int),
            2 => any::<i64>().prop_map(NodeKey::Int),
            1 => prop::sample::select(vec![i64::MIN, -1, i64::MAX, i64::from(u32::MAX)]).prop_map(NodeKey::Int),
            4 => "[a-z]{0,3}".prop_map(|text| NodeKey::from_text(&text)),
        ]
    }

    proptest! {
        #[test]
        fn any_keys_in_any_order_have_the_ids_of_a_hash_map(
            keys in prop::collection::vec(any_key(), 1..3_000),
            at_once in 1_usize..700,
        ) {
            let (dictionary, defined) = (NodeDictionary::new(), NodeDictionary::new());
            let mut model: HashMap<NodeKey, u32> = HashMap::new();
            let mut order = Vec::new();
            for key in &keys {
                prop_assert_eq!(dictionary.lookup(key), model.get(key).map(|&id| NodeId(id)));
                let id = *model.entry(key.clone()).or_insert_with(|| {
                    order.push(key.clone());
                    order.len() as u32 - 1
                });
                prop_assert_eq!(dictionary.intern(key), NodeId(id));
            }
            order.chunks(at_once).for_each(|keys| defined.define(keys));
            for dictionary in [&dictionary, &defined] {
                prop_assert_eq!(dictionary.len(), order.len());
                for (key, &id) in &model {
                    prop_assert_eq!(dictionary.lookup(key), Some(NodeId(id)));
                    let back = dictionary.key(NodeId(id));
                    prop_assert_eq!(back.as_ref(), Some(key));
                }
                let mut bytes = Vec::new();
                dictionary.for_each_bytes(|id, tag, key| bytes.push((id.0, tag, key.to_vec())));
                let expected: Vec<_> = order.iter().zip(0..).map(|(key, id)| match key {
                    NodeKey::Int(number) => (id, 0, number.to_le_bytes().to_vec()),
                    NodeKey::Text(text) => (id, 1, text.as_bytes().to_vec()),
                }).collect();
                prop_assert_eq!(bytes, expected);
            }
        }
    }

    proptest! {
        #[test]
        fn forgotten_keys_are_gone_and_their_ids_stay_unused(
            steps in prop::collection::vec((any_key(), 0_u8..6, any::<u16>()), 1..1_500),
        ) {
            let dictionary = NodeDictionary::new();
            // By id, the key unless it was forgotten; by key, its newest id.
            let (mut keys, mut ids): (Vec<Option<NodeKey>>, HashMap<NodeKey, u32>) = Default::default();
            for (key, what, which) in steps {
                match what {
                    0 if !keys.is_empty() => {
                        let id = usize::from(which) % keys.len();
                        dictionary.forget(NodeId(id as u32));
                        if let Some(key) = keys[id].take().filter(|key| ids.get(key) == Some(&(id as u32))) {
                            ids.remove(&key);
                        }
                    }
                    1 => {
                        dictionary.define(std::slice::from_ref(&key));
                        ids.insert(key.clone(), keys.len() as u32);
                        keys.push(Some(key));
                    }
                    _ => {
                        let id = *ids.entry(key.clone()).or_insert(keys.len() as u32);
                        prop_assert_eq!(dictionary.intern(&key), NodeId(id));
                        if id as usize == keys.len() {
                            keys.push(Some(key));
                        }
                    }
                }
                prop_assert_eq!(dictionary.len(), keys.len());
            }
            for (key, id) in keys.iter().zip(0..) {
                prop_assert_eq!(&dictionary.key(NodeId(id)), key);
            }
            for (key, &id) in &ids {
                prop_assert_eq!(dictionary.lookup(key), Some(NodeId(id)));
            }
            let mut seen = Vec::new();
            dictionary.for_each_bytes(|id, _, _| seen.push(id.0));
            let named: Vec<u32> = (0..).zip(&keys).filter(|(_, key)| key.is_some()).map(|(id, _)| id).collect();
            prop_assert_eq!(&seen, &named);
            for (step, first) in [(1, 0), (1, 300), (16, 3), (700, 0)] {
                let mut seen = Vec::new();
                dictionary.for_each_named(NodeId(first)..NodeId(u32::MAX), step, |id| seen.push(id.0));
                let expected = named.iter().copied().filter(|id| *id >= first && (id - first) % step as u32 == 0);
                prop_assert_eq!(seen, expected.collect::<Vec<_>>());
            }
            let inner = dictionary.inner.read();
            let held = inner.dense.iter().filter(|id| **id != NodeId::NONE).count();
            prop_assert_eq!((held, held + inner.sparse.len() + inner.texts.len()), (inner.dense_keys, ids.len()));
        }
    }

    #[test]
    fn no_byte_of_a_forgotten_key_is_left() {
        let dictionary = NodeDictionary::new();
        let (text, number) = (NodeKey::from_text("a name to forget"), NodeKey::Int(0x1234_5678_9ABC));
        let (a, b) = (dictionary.intern(&text), dictionary.intern(&number));
        dictionary.intern(&NodeKey::from_text("another"));
        dictionary.define(std::slice::from_ref(&text));
        let found = || {
            let inner = dictionary.inner.read();
            let texts = inner.arena.windows(16).filter(|bytes| *bytes == b"a name to forget").count();
            (texts, inner.by_id.holds(0x1234_5678_9ABC))
        };
        assert_eq!(found(), (2, true));
        for id in [a, b, a, NodeId(9), NodeId::NONE] {
            dictionary.forget(id);
        }
        assert_eq!(found(), (1, false), "the newer node of the same name keeps it");
        assert_eq!((dictionary.lookup(&text), dictionary.key(a)), (Some(NodeId(3)), None));
        dictionary.forget(NodeId(3));
        assert_eq!(found(), (0, false));
        assert_eq!(dictionary.lookup(&text), None);
        assert_eq!(dictionary.key(NodeId(2)), Some(NodeKey::from_text("another")));
    }

    #[test]
    fn the_table_by_key_is_as_long_as_its_keys_are_many() {
        let dictionary = NodeDictionary::new();
        let table = || dictionary.inner.read().dense.len();
        for key in [1 << 40, 1_000_000, 5_000, -3] {
            dictionary.intern(&NodeKey::Int(key));
            assert_eq!(table(), 0, "{key}");
        }
        for key in 0..10_000 {
            dictionary.intern(&NodeKey::Int(key));
            assert!(table() <= (4 * dictionary.inner.read().dense_keys).max(2 * DENSE_MIN), "{key}");
        }
        assert_eq!(dictionary.lookup(&NodeKey::Int(5_000)), Some(NodeId(2)), "found where it was put first");
        assert_eq!(dictionary.len(), 10_003);
        assert_eq!(dictionary.lookup(&NodeKey::Int(10_000)), None);
    }
}
