//! [`ReceivedTypes`]: which nodes were the destination of an event of each type, as a compressed set of ids per type.
//!
//! The learner extends the sets with each batch, by the types in the log, whatever rows of edges keep: so it needs
//! neither rows nor the graph, what retention releases changes nothing, and a checkpoint keeps the sets. Pairs of a
//! node and a type that are there already, which most are, change nothing. Readers share a set until it changes next.

use std::io::{Error, ErrorKind, Read, Result, Write};
use std::sync::Arc;

use parking_lot::RwLock;
use roaring::RoaringBitmap;

use crate::event::NodeId;
use crate::model::tables::{read_table, read_u64, write_table, write_u64};

/// Numbers of types that there may be, that of "none" among them.
const TYPES_MAX: u64 = 1 << 16;

/// The destinations of each type, by the number of the type; number 0 is "none" and has no set.
#[derive(Default)]
pub struct ReceivedTypes {
    sets: RwLock<Vec<Arc<RoaringBitmap>>>,
}

impl Clone for ReceivedTypes {
    fn clone(&self) -> Self {
        Self { sets: RwLock::new(self.sets.read().clone()) }
    }
}

impl ReceivedTypes {
    /// Takes in events by their destinations and the numbers of their types.
    pub fn observe(&self, destinations: &[NodeId], types: &[u16]) {
        let typed = destinations.iter().zip(types).filter(|(_, number)| **number != 0);
        let mut sets = None;
        for (node, &number) in typed {
            let sets = sets.get_or_insert_with(|| self.sets.write());
            let place = usize::from(number);
            if place >= sets.len() {
                sets.resize_with(place + 1, Arc::default);
            }
            // A set that a reader or a checkpoint holds is copied only where it changes.
            if !sets[place].contains(node.0) {
                Arc::make_mut(&mut sets[place]).insert(node.0);
            }
        }
    }

    /// The numbers of the types of which a node was a destination. Visits every type.
    #[must_use]
    pub fn of(&self, node: NodeId) -> Vec<u16> {
        let sets = self.sets.read();
        let found = sets.iter().enumerate().filter(|(_, set)| set.contains(node.0));
        found.filter_map(|(number, _)| u16::try_from(number).ok()).collect()
    }

    /// Drops nodes that were deleted. Visits every type, so it is for many nodes at a time.
    pub fn forget(&self, nodes: &[NodeId]) {
        if nodes.is_empty() {
            return;
        }
        let gone: RoaringBitmap = nodes.iter().map(|node| node.0).collect();
        for set in self.sets.write().iter_mut().filter(|set| !set.is_disjoint(&gone)) {
            *Arc::make_mut(set) -= &gone;
        }
    }

    /// These in place of what there is.
    pub fn replace(&self, others: Self) {
        *self.sets.write() = others.sets.into_inner();
    }

    /// A bit for each node below `nodes`: whether it was the destination of an event of the type with this number.
    #[must_use]
    pub fn bits(&self, number: u16, nodes: usize) -> Vec<u64> {
        let mut bits = vec![0; nodes.div_ceil(64)];
        let set = self.sets.read().get(usize::from(number)).cloned().unwrap_or_default();
        for node in set.iter().map(NodeId) {
            // Ascending: what follows came after the nodes were counted.
            let Some(word) = bits.get_mut(node.index() / 64) else { break };
            *word |= 1 << (node.index() % 64);
        }
        bits
    }

    /// Bytes held, about.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.sets.read().iter().map(|set| set.serialized_size()).sum()
    }

    /// Writes the sets.
    ///
    /// # Errors
    /// What `out` reports.
    pub fn write(&self, out: &mut impl Write) -> Result<()> {
        let sets = self.sets.read().clone();
        write_u64(out, sets.len() as u64)?;
        let mut bytes = Vec::new();
        for set in &sets {
            bytes.clear();
            set.serialize_into(&mut bytes)?;
            write_table(out, &bytes)?;
        }
        Ok(())
    }

    /// Reads what [`write`](Self::write) wrote.
    ///
    /// # Errors
    /// The bytes are damaged.
    pub fn read(input: &mut impl Read) -> Result<Self> {
        let malformed =
            |what: String| Error::new(ErrorKind::InvalidData, format!("destinations by type: {what}"));
        let count = read_u64(input)?;
        if count > TYPES_MAX {
            return Err(malformed(format!("{count} types, of which there are {TYPES_MAX} at most")));
        }
        let mut sets = Vec::new();
        for number in 0..count {
            let bytes: Vec<u8> = read_table(input)?;
            let mut rest = &bytes[..];
            let set = RoaringBitmap::deserialize_from(&mut rest)
                .map_err(|error| malformed(format!("those of type {number} cannot be read: {error}")))?;
            if !rest.is_empty() {
                let (read, found) = (bytes.len() - rest.len(), bytes.len());
                return Err(malformed(format!("those of type {number} end after {read} of {found} bytes")));
            }
            sets.push(Arc::new(set));
        }
        Ok(Self { sets: RwLock::new(sets) })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::device::rng::below;

    fn nodes(bits: &[u64]) -> Vec<u32> {
        let is_set = |node: &u32| bits[*node as usize / 64] >> (node % 64) & 1 == 1;
        (0..bits.len() as u32 * 64).filter(is_set).collect()
    }

    #[test]
    fn sets_are_those_of_all_pairs_one_by_one_through_deletions_and_bytes() {
        const NODES: u32 = 200_000;
        let draw = |i: u32, word, bound| below([3, u64::from(i), word, 0], bound);
        let (mut received, mut pairs) = (ReceivedTypes::default(), BTreeSet::new());
        for batch in 0..40 {
            let event =
                |i: u32| (NodeId(draw(i, 0, NODES) / (1 + draw(i, 1, 9))), draw(i, 2, 4) as u16 * 300);
            let (dst, types): (Vec<_>, Vec<_>) = (batch * 1_000..(batch + 1) * 1_000).map(event).unzip();
            received.observe(&dst, &types);
            pairs.extend(types.iter().copied().zip(dst.iter().map(|node| node.0)));
            if batch % 10 == 9 {
                let gone: Vec<NodeId> = pairs.iter().step_by(7).map(|&(_, node)| NodeId(node)).collect();
                received.forget(&gone);
                pairs.retain(|(_, node)| !gone.contains(&NodeId(*node)));
                let mut bytes = Vec::new();
                received.write(&mut bytes).unwrap();
                received = ReceivedTypes::read(&mut &bytes[..]).unwrap();
            }
        }
        for number in [300, 600, 900] {
            let of_type = pairs.iter().filter(|(of, _)| *of == number).map(|&(_, node)| node);
            let expected: Vec<u32> = of_type.collect();
            assert!(expected.len() > 1_000 && nodes(&received.bits(number, NODES as usize)) == expected);
            // Nodes that came later than those that are asked for are left out.
            let few: Vec<u32> = expected.iter().copied().filter(|node| *node < 640).collect();
            assert_eq!(nodes(&received.bits(number, 640)), few);
        }
        for none in [0, 1, 901, u16::MAX] {
            assert!(nodes(&received.bits(none, NODES as usize)).is_empty(), "{none}");
        }
        assert!(received.bytes() < 4 * pairs.len(), "{} of {} pairs", received.bytes(), pairs.len());
    }

    #[test]
    fn a_copy_stays_as_it_was() {
        let received = ReceivedTypes::default();
        received.observe(&[1, 2, 3].map(NodeId), &[1, 1, 2]);
        let copy = received.clone();
        received.observe(&[NodeId(5)], &[1]);
        received.forget(&[NodeId(3)]);
        let both = |of: &ReceivedTypes| [1, 2].map(|number| nodes(&of.bits(number, 64)));
        assert_eq!(both(&copy), [vec![1, 2], vec![3]]);
        assert_eq!(both(&received), [vec![1, 2, 5], vec![]]);
        copy.replace(received);
        assert_eq!(both(&copy), [vec![1, 2, 5], vec![]]);
    }

    #[test]
    fn damaged_sets_are_errors() {
        let received = ReceivedTypes::default();
        received.observe(&[NodeId(7), NodeId(70_000)], &[1, 2]);
        let (mut bytes, read) = (Vec::new(), |bytes: &[u8]| ReceivedTypes::read(&mut &bytes[..]));
        received.write(&mut bytes).unwrap();
        assert!(read(&bytes).is_ok());
        assert!((0..bytes.len()).all(|end| read(&bytes[..end]).is_err()));
        // The number of types, the cookie of a set, and the length of one, which ends early then.
        for (at, value) in [(2, 2), (16, 0), (8, 9)] {
            let mut damaged = bytes.clone();
            damaged[at] = value;
            if at == 8 {
                damaged.insert(24, 0);
            }
            let error = read(&damaged).err().map(|error| error.to_string());
            assert!(error.is_some_and(|error| error.contains("destinations by type")), "{at}");
        }
    }
}
