//! What the tables of the node dictionary hold of keys, and the hashes by which they are found.

use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::device::rng;
use crate::event::{NodeId, NodeKey};

/// An integer, as its two halves so that twelve bytes suffice, and its id.
#[derive(Clone, Copy)]
pub(super) struct SparseKey {
    pub number: [u32; 2],
    pub id: NodeId,
}

/// A text by its hash, and its id.
#[derive(Clone, Copy)]
pub(super) struct TextKey {
    pub hash: u32,
    pub id: NodeId,
}

/// A key without its storage.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum KeyRef<'a> {
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

impl From<KeyRef<'_>> for NodeKey {
    fn from(key: KeyRef<'_>) -> Self {
        match key {
            KeyRef::Int(number) => Self::Int(number),
            KeyRef::Text(text) => Self::Text(text.into()),
        }
    }
}

#[allow(clippy::cast_possible_truncation, reason = "halves of a number")]
pub(super) fn halves(number: i64) -> [u32; 2] {
    let number = number.cast_unsigned();
    [number as u32, (number >> 32) as u32]
}

pub(super) fn hash_halves(halves: [u32; 2], seed: u64) -> u64 {
    rng::draw(seed, u64::from(halves[0]) | u64::from(halves[1]) << 32)
}

#[allow(clippy::cast_possible_truncation, reason = "a part of the hash")]
pub(super) fn hash_text(text: &str, seed: u64) -> u32 {
    xxh3_64_with_seed(text.as_bytes(), seed) as u32
}

/// Widens a hash to 64 bits: the table uses the low bits as place and the high ones as tag.
pub(super) fn widen_hash(hash: u32) -> u64 {
    u64::from(hash) << 32 | u64::from(hash)
}
