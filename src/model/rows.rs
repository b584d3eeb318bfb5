//! [`NodeRows`]: a growing table of rows by node, the memory under [`NodeMemory`](super::NodeMemory) and
//! [`Mailbox`](super::Mailbox).
//!
//! A row gets its place when it is first written: in most streams many nodes occur once and are never updated. Places
//! come in chunks that never move, so a table that grows with the stream neither holds room for twice its nodes nor
//! is copied. A row that is cleared gives its place back for the next row: ids of nodes are never reused, places are,
//! so a stream whose nodes come and go holds the rows of those that are there. As bytes it is a table by node of whose
//! rows are not zeros, and these rows one after another.
//!
//! A copy of a table shares its chunks until one of both writes a row, and copies only the chunk of that, as
//! [`NodeTable`] does.

use std::io::{Error, ErrorKind, Read, Result, Write};

use triomphe::Arc;

use super::tables;
use crate::device::{Device, DeviceBuffer, prefetch};
use crate::event::{NodeId, NodeTable};

/// Rows of a chunk.
const CHUNK_ROWS: usize = 32;

/// Nodes whose rows stand together in bytes.
const GROUP_NODES: u32 = 4096;

/// Values of a cache line.
const LINE_VALUES: usize = 16;

/// Stands in for the place of a row that was never written.
const NOWHERE: u32 = u32::MAX;

/// Rows of equal width by node; a row that was never written is zeros.
#[derive(Clone, Debug)]
pub(super) struct NodeRows {
    dimension: usize,
    /// By node; every node beyond has the zero row.
    places: NodeTable<u32>,
    /// Places given so far.
    used: usize,
    /// Those of them that were given back; their rows are zeros.
    free: Vec<u32>,
    /// Aligned, so that a vector that begins on a multiple of 16 values lies in whole cache lines.
    chunks: Vec<Arc<DeviceBuffer<f32>>>,
}

impl NodeRows {
    /// No rows yet.
    pub fn new(dimension: usize) -> Self {
        Self { dimension, places: NodeTable::new(NOWHERE), used: 0, free: Vec::new(), chunks: Vec::new() }
    }

    /// Values per row.
    pub fn dimension(&self) -> usize {
        self.dimension
    }

    /// The row of `node`; `None` means zeros.
    pub fn get(&self, node: NodeId) -> Option<&[f32]> {
        let place = self.places.get(node) as usize;
        let chunk = self.chunks.get(place / CHUNK_ROWS)?;
        chunk.as_slice().get(place % CHUNK_ROWS * self.dimension..)?.get(..self.dimension)
    }

    /// Prefetches the row of `node`. Changes nothing but time.
    pub fn expect(&self, node: NodeId) {
        if let Some(row) = self.get(node) {
            row.chunks(LINE_VALUES).for_each(prefetch);
        }
    }

    /// The row of `node` for writing.
    pub fn get_mut(&mut self, node: NodeId) -> &mut [f32] {
        let (chunk, at) = self.place(node);
        &mut Arc::make_mut(&mut self.chunks[chunk]).as_mut_slice()[at..][..self.dimension]
    }

    /// The rows of two nodes for writing; `None` if they are one node.
    pub fn get_two_mut(&mut self, a: NodeId, b: NodeId) -> Option<[&mut [f32]; 2]> {
        let ((chunk_a, at_a), (chunk_b, at_b), dimension) = (self.place(a), self.place(b), self.dimension);
        let [range_a, range_b] = [at_a, at_b].map(|at| at..at + dimension);
        if chunk_a == chunk_b {
            let chunk = Arc::make_mut(&mut self.chunks[chunk_a]);
            return chunk.as_mut_slice().get_disjoint_mut([range_a, range_b]).ok();
        }
        let chunks = self.chunks.get_disjoint_mut([chunk_a, chunk_b]).ok()?;
        let [chunk_a, chunk_b] = chunks.map(Arc::make_mut);
        Some([&mut chunk_a.as_mut_slice()[range_a], &mut chunk_b.as_mut_slice()[range_b]])
    }

    /// Chunk, and place in it, of the row of `node`, which is given one if it has none.
    fn place(&mut self, node: NodeId) -> (usize, usize) {
        let mut place = self.places.get(node);
        if place == NOWHERE {
            place = self.free.pop().unwrap_or_else(|| self.next_place());
            self.places.set(node, place);
        }
        let place = place as usize;
        (place / CHUNK_ROWS, place % CHUNK_ROWS * self.dimension)
    }

    /// A place that was never given.
    fn next_place(&mut self) -> u32 {
        if self.used == self.chunks.len() * CHUNK_ROWS {
            self.chunks.push(Arc::new(DeviceBuffer::zeros(&Device::Cpu, CHUNK_ROWS * self.dimension)));
        }
        self.used += 1;
        // Fewer rows than nodes, whose ids have 32 bits.
        (self.used - 1) as u32
    }

    /// Makes the row of `node` zeros, and gives its place back.
    pub fn clear(&mut self, node: NodeId) {
        if self.get(node).is_some() {
            self.get_mut(node).fill(0.0);
            self.free.push(self.places.get(node));
            self.places.set(node, NOWHERE);
        }
    }

    /// Makes all rows zeros and lets their memory go.
    pub fn reset(&mut self) {
        *self = Self::new(self.dimension);
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        self.chunks.len() * CHUNK_ROWS * self.dimension * size_of::<f32>()
            + self.chunks.len() * size_of::<DeviceBuffer<f32>>()
            + self.chunks.capacity() * size_of::<Arc<DeviceBuffer<f32>>>()
            + self.places.bytes()
            + self.free.capacity() * size_of::<u32>()
    }

    /// Writes the rows that are not zeros.
    pub fn write(&self, out: &mut impl Write) -> Result<()> {
        let mut there = NodeTable::new(0_u8);
        for (node, _) in self.places.iter() {
            let row = self.get(node).unwrap_or_default();
            there.set(node, u8::from(row.iter().any(|value| value.to_bits() != 0)));
        }
        tables::write_u64(out, self.dimension as u64)?;
        tables::write_nodes(out, &there, |there| there)?;
        let nodes: Vec<NodeId> = there.iter().map(|(node, _)| node).collect();
        // A row that was not there before moves only those of its group.
        for group in nodes.chunk_by(|a, b| a.0 / GROUP_NODES == b.0 / GROUP_NODES) {
            tables::apart(out, group.len() * self.dimension * size_of::<f32>(), |out| {
                let mut rows = group.iter().filter_map(|&node| self.get(node));
                rows.try_for_each(|row| out.write_all(bytemuck::cast_slice(row)))
            })?;
        }
        Ok(())
    }

    /// Reads rows of `dimension` values. Memory grows with the bytes that arrive, whatever they claim.
    pub fn read(dimension: usize, input: &mut impl Read) -> Result<Self> {
        let found = tables::read_u64(input)?;
        if found != dimension as u64 {
            let what = format!("rows of {found} values, not of {dimension}");
            return Err(Error::new(ErrorKind::InvalidData, what));
        }
        let there = tables::read_nodes(input, 0_u8)?;
        let (mut rows, mut row) = (Self::new(dimension), vec![0.0_f32; dimension]);
        for (node, _) in there.iter() {
            input.read_exact(bytemuck::cast_slice_mut(&mut row))?;
            rows.get_mut(node).copy_from_slice(&row);
        }
        Ok(rows)
    }
}

/// Equal rows are equal, wherever they stand and whether they were written or not.
impl PartialEq for NodeRows {
    fn eq(&self, other: &Self) -> bool {
        let zeros = vec![0.0; self.dimension];
        let holds = |one: &Self, other: &Self| {
            let of = |rows: &Self, node| rows.get(node).unwrap_or(&zeros).to_vec();
            one.places.iter().all(|(node, _)| of(one, node) == of(other, node))
        };
        self.dimension == other.dimension && holds(self, other) && holds(other, self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_come_back_whole_and_unwritten_ones_are_zeros() {
        let mut table = NodeRows::new(3);
        for node in [0, 255, 256, 1_000] {
            table.get_mut(NodeId(node)).fill(node as f32 + 0.5);
        }
        table.clear(NodeId(255));
        table.clear(NodeId(9_999));
        assert_eq!((table.get(NodeId(600)), table.get(NodeId(9_999))), (None, None));
        let mut rounds = NodeRows::new(3);
        for node in (0..100_000).map(NodeId) {
            assert_eq!(rounds.get_mut(node), [0.0; 3], "a place that comes back is empty");
            rounds.get_mut(node).fill(1.0);
            rounds.clear(NodeId(node.0.saturating_sub(500)));
        }
        assert!(rounds.bytes() < 3 * CHUNK_ROWS * 3 * 4 + 16_384, "{}", rounds.bytes());
        assert!(table.bytes() < CHUNK_ROWS * 3 * 4 + 1_100 * 8, "{}", table.bytes());
        let mut copy = table.clone();
        copy.get_mut(NodeId(0)).fill(7.0);
        let _ = copy.get_two_mut(NodeId(256), NodeId(1_000)).map(|[a, b]| (a.fill(7.0), b.fill(7.0)));
        copy.clear(NodeId(255));
        assert_eq!(
            (table.get(NodeId(0)), table.get(NodeId(256))),
            (Some(&[0.5; 3][..]), Some(&[256.5; 3][..]))
        );
        let mut bytes = Vec::new();
        table.write(&mut bytes).unwrap();
        // Of four pages of nodes three have rows.
        assert_eq!(bytes.len(), 8 + 16 + 4 + 3 * 256 + 3 * 12);
        let again = NodeRows::read(3, &mut &bytes[..]).unwrap();
        assert_eq!(again, table);
        assert_eq!((again.get(NodeId(600)), again.get(NodeId(1_000))), (None, Some(&[1_000.5; 3][..])));
        assert!(NodeRows::read(2, &mut &bytes[..]).is_err(), "no rows of this length");
        for other in [256, 255, 5] {
            let [a, b] = table.get_two_mut(NodeId(0), NodeId(other)).unwrap();
            (a[0], b[2]) = (7.5, 8.5);
            let found = (table.get(NodeId(0)).unwrap()[0], table.get(NodeId(other)).unwrap()[2]);
            assert_eq!(found, (7.5, 8.5), "{other}");
        }
        assert!(table.get_two_mut(NodeId(5), NodeId(5)).is_none());
        assert!(NodeRows::read(3, &mut &bytes[..bytes.len() - 1]).is_err(), "cut");
        assert_ne!(NodeRows::new(3), table);
    }
}
