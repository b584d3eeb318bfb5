//! The node dictionary: which [`NodeId`] stands for which [`NodeKey`].
//!
//! Ids are given in order of first appearance, so the list of keys is the whole truth and the hash
//! table only an index over it. Integer keys are held as such; the bytes of text keys stand one after
//! another in one arena. One thread interns; any number look up at the same time and wait only while a
//! new key is written. The hash is seeded per process, because keys come from outside.
//!
//! Knows nothing of edges.

use std::hash::{BuildHasher, RandomState};

use hashbrown::HashTable;
use parking_lot::RwLock;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::device::rng;
use crate::event::{NodeId, NodeKey};

/// Number of nodes that the graph can tell apart: ids are 31 bits wide, because an entry of the graph
/// store keeps the direction of its edge in the remaining bit.
pub const NODES_MAX: usize = 1 << 31;

/// Maps producers' node keys to dense ids and back.
pub struct NodeDictionary {
    seed: u64,
    inner: RwLock<Inner>,
}

#[derive(Default)]
struct Inner {
    ids: HashTable<u32>,
    /// Per id: the integer, or where the text starts in `texts`.
    values: Vec<u64>,
    /// Per id, one bit: whether the key is a text.
    is_text: Vec<u64>,
    /// Texts, each as its length in four bytes and its UTF-8 bytes.
    texts: Vec<u8>,
}

/// A key without its storage.
#[derive(Clone, Copy, PartialEq)]
enum KeyRef<'a> {
    Int(i64),
    Text(&'a str),
}

impl<'a> From<&'a NodeKey> for KeyRef<'a> {
    fn from(key: &'a NodeKey) -> Self {
        match key {
            NodeKey::Int(number) => Self::Int(*number),
            NodeKey::Text(text) => Self::Text(text),
        }
    }
}

impl KeyRef<'_> {
    fn hash(self, seed: u64) -> u64 {
        match self {
            Self::Int(number) => rng::draw(seed, number.cast_unsigned()),
            Self::Text(text) => xxh3_64_with_seed(text.as_bytes(), seed),
        }
    }
}

impl Inner {
    fn key(&self, id: usize) -> Option<KeyRef<'_>> {
        let value = *self.values.get(id)?;
        if self.is_text[id / 64] >> (id % 64) & 1 == 0 {
            return Some(KeyRef::Int(value.cast_signed()));
        }
        let (length, rest) = self.texts.get(usize::try_from(value).ok()?..)?.split_first_chunk()?;
        let bytes = rest.get(..u32::from_le_bytes(*length) as usize)?;
        std::str::from_utf8(bytes).ok().map(KeyRef::Text)
    }

    fn find(&self, key: KeyRef<'_>, hash: u64) -> Option<NodeId> {
        self.ids.find(hash, |&id| self.key(id as usize) == Some(key)).map(|&id| NodeId(id))
    }

    fn add(&mut self, key: KeyRef<'_>, hash: u64, seed: u64) -> NodeId {
        let id = self.values.len();
        assert!(id < NODES_MAX, "the graph can hold no more than {NODES_MAX} nodes");
        if id.is_multiple_of(64) {
            self.is_text.push(0);
        }
        match key {
            KeyRef::Int(number) => self.values.push(number.cast_unsigned()),
            KeyRef::Text(text) => {
                let length = u32::try_from(text.len()).unwrap_or(u32::MAX);
                self.values.push(self.texts.len() as u64);
                self.is_text[id / 64] |= 1 << (id % 64);
                self.texts.extend_from_slice(&length.to_le_bytes());
                self.texts.extend_from_slice(text.as_bytes());
            }
        }
        #[allow(clippy::cast_possible_truncation, reason = "checked against NODES_MAX")]
        let id = id as u32;
        let mut ids = std::mem::take(&mut self.ids);
        ids.insert_unique(hash, id, |&id| self.key(id as usize).map_or(0, |key| key.hash(seed)));
        self.ids = ids;
        NodeId(id)
    }
}

impl NodeDictionary {
    /// A dictionary without keys.
    #[must_use]
    pub fn new() -> Self {
        Self { seed: RandomState::new().hash_one(0_u64), inner: RwLock::new(Inner::default()) }
    }

    /// The id of `key`, which gets the next free id if it has none.
    ///
    /// # Panics
    /// When [`NODES_MAX`] keys have ids already.
    pub fn intern(&self, key: &NodeKey) -> NodeId {
        let key = KeyRef::from(key);
        let hash = key.hash(self.seed);
        if let Some(id) = self.inner.read().find(key, hash) {
            return id;
        }
        let mut inner = self.inner.write();
        match inner.find(key, hash) {
            Some(id) => id,
            None => inner.add(key, hash, self.seed),
        }
    }

    /// Gives `key` the next id, as replay of the log does with the new keys of each frame; the id that
    /// it has if it is known already.
    ///
    /// # Panics
    /// When [`NODES_MAX`] keys have ids already.
    pub fn define(&self, key: NodeKey) -> NodeId {
        self.intern(&key)
    }

    /// The id of `key`, if it has one.
    #[must_use]
    pub fn lookup(&self, key: &NodeKey) -> Option<NodeId> {
        let key = KeyRef::from(key);
        self.inner.read().find(key, key.hash(self.seed))
    }

    /// The key of `id`, if there is such a node.
    #[must_use]
    pub fn key(&self, id: NodeId) -> Option<NodeKey> {
        match self.inner.read().key(id.index())? {
            KeyRef::Int(number) => Some(NodeKey::Int(number)),
            KeyRef::Text(text) => Some(NodeKey::Text(text.into())),
        }
    }

    /// Calls `f` with each id and the canonical bytes of its key, in order of ids: a tag (0 integer,
    /// 1 text) and the integer in little-endian order or the UTF-8 text. Interning waits meanwhile.
    pub fn for_each_bytes(&self, mut f: impl FnMut(NodeId, u8, &[u8])) {
        let inner = self.inner.read();
        for (index, id) in (0..inner.values.len()).zip(0_u32..) {
            match inner.key(index) {
                Some(KeyRef::Int(number)) => f(NodeId(id), 0, &number.to_le_bytes()),
                Some(KeyRef::Text(text)) => f(NodeId(id), 1, text.as_bytes()),
                None => {}
            }
        }
    }

    /// Number of keys; the next new key gets this id.
    #[must_use]
    pub fn len(&self) -> usize {
        self.inner.read().values.len()
    }

    /// Whether there is no key.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes held, unused capacity included.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let inner = self.inner.read();
        let bytes = size_of::<Self>()
            + inner.ids.allocation_size()
            + inner.values.capacity() * size_of::<u64>()
            + inner.is_text.capacity() * size_of::<u64>()
            + inner.texts.capacity();
        bytes as u64
    }
}

impl Default for NodeDictionary {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};

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
        let zero = dictionary.define(NodeKey::Int(0));
        let text = dictionary.define(NodeKey::from_text("\0\0\0\0\0\0\0\0"));
        assert_eq!([empty, zero, text], [NodeId(0), NodeId(1), NodeId(2)]);
        assert_eq!(dictionary.key(empty), Some(NodeKey::from_text("")));
        assert_eq!(dictionary.define(NodeKey::Int(0)), zero);
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
            done.store(true, Ordering::Release);
        });
        assert!(dictionary.bytes() >= 8 * total as u64);
    }
}
