//! Tables of numbers as bytes, little-endian, each behind its length: what state and trainer files are
//! made of. A length is never trusted with an allocation: reading grows with the bytes that arrive, so a
//! damaged file ends in an error, not in an abort. A table by node is written page by page, without those in which all
//! nodes are gone. Knows nothing of what the numbers mean.

use std::io::{Error, ErrorKind, Read, Result, Write};

use bytemuck::Pod;

use crate::event::{NodeId, NodeTable};

/// Bytes read at a time while a table arrives.
const CHUNK_BYTES: usize = 1 << 20;

/// A table of at least so many bytes stands apart.
const LONG_BYTES: usize = 64 << 10;

/// Writes one number of 64 bits.
pub(crate) fn write_u64(out: &mut impl Write, value: u64) -> Result<()> {
    out.write_all(&value.to_le_bytes())
}

/// Reads one number of 64 bits.
pub(crate) fn read_u64(input: &mut impl Read) -> Result<u64> {
    let mut bytes = [0; 8];
    input.read_exact(&mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
}

/// Writes a table behind its length.
pub(crate) fn write_table<T: Pod>(out: &mut impl Write, values: &[T]) -> Result<()> {
    write_u64(out, values.len() as u64)?;
    let bytes: &[u8] = bytemuck::cast_slice(values);
    apart(out, bytes.len(), |out| out.write_all(bytes))
}

/// Has something of this length written, with a flush before and behind it if it is long. What compares the chunks of
/// one writing with those of the next finds a long table again, however long what stands before it has become.
pub(crate) fn apart<W: Write>(
    out: &mut W,
    bytes: usize,
    write: impl FnOnce(&mut W) -> Result<()>,
) -> Result<()> {
    let is_long = bytes >= LONG_BYTES;
    if is_long {
        out.flush()?;
    }
    write(out)?;
    if is_long { out.flush() } else { Ok(()) }
}

/// Reads a table that [`write_table`] wrote.
pub(crate) fn read_table<T: Pod>(input: &mut impl Read) -> Result<Vec<T>> {
    let mut values = Vec::new();
    read_table_into(input, &mut values)?;
    Ok(values)
}

/// The same into room that is there already, in place of what it held.
pub(crate) fn read_table_into<T: Pod>(input: &mut impl Read, values: &mut Vec<T>) -> Result<()> {
    values.clear();
    let length = read_u64(input)?;
    let total = usize::try_from(length).ok().and_then(|length| length.checked_mul(size_of::<T>()));
    let Some(mut left) = total else {
        return Err(Error::new(ErrorKind::InvalidData, format!("a table of {length} values cannot be")));
    };
    let per_chunk = (CHUNK_BYTES / size_of::<T>()).max(1);
    while left > 0 {
        let filled = values.len();
        values.resize(filled + per_chunk.min(left / size_of::<T>()), T::zeroed());
        let chunk: &mut [u8] = bytemuck::cast_slice_mut(&mut values[filled..]);
        input.read_exact(chunk)?;
        left -= chunk.len();
    }
    Ok(())
}

/// Writes what `field` makes of the values of a table by node: how many nodes it has, for each page whether it is
/// there, and the values of those pages.
pub(crate) fn write_nodes<T: Copy + PartialEq, F: Pod>(
    out: &mut impl Write,
    table: &NodeTable<T>,
    field: impl Fn(T) -> F,
) -> Result<()> {
    write_u64(out, table.len() as u64)?;
    let there: Vec<u8> = table.pages().map(|page| u8::from(page.is_some())).collect();
    write_table(out, &there)?;
    let bytes = table.pages().flatten().count() * NodeTable::<T>::PAGE * size_of::<F>();
    apart(out, bytes, |out| {
        table.pages().flatten().try_for_each(|page| out.write_all(bytemuck::cast_slice(&page.map(&field))))
    })
}

/// Reads a table by node that [`write_nodes`] wrote of one whose values are `empty` by default.
pub(crate) fn read_nodes<T: Pod + PartialEq>(input: &mut impl Read, empty: T) -> Result<NodeTable<T>> {
    let malformed = || Error::new(ErrorKind::InvalidData, "a table by node is malformed");
    let len = usize::try_from(read_u64(input)?).ok().filter(|&len| len <= NodeId::NONE.index());
    let len = len.ok_or_else(malformed)?;
    let there: Vec<u8> = read_table(input)?;
    let page = NodeTable::<T>::PAGE;
    if there.len() != len.div_ceil(page) || there.iter().any(|&there| there > 1) {
        return Err(malformed());
    }
    let (mut table, mut values) = (NodeTable::new(empty), vec![empty; page]);
    for (number, _) in there.iter().enumerate().filter(|(_, there)| **there == 1) {
        input.read_exact(bytemuck::cast_slice_mut(&mut values))?;
        // Below the length, which has 32 bits.
        let nodes = (0..).map(|place| NodeId((number * page) as u32 + place));
        nodes.zip(&values).for_each(|(node, &value)| table.set(node, value));
    }
    if table.len() > len {
        return Err(malformed());
    }
    table.extend_to(len);
    Ok(table)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::EventTime;

    #[test]
    fn tables_by_node_come_back_without_what_is_gone_and_damage_is_an_error() {
        let mut table = NodeTable::new(EventTime(-1));
        (0..100_000).for_each(|node| table.set(NodeId(node), EventTime(i64::from(node) - 3)));
        (100..99_990).for_each(|node| table.set(NodeId(node), EventTime(-1)));
        (99_990..100_000).for_each(|node| table.set(NodeId(node), EventTime(-1)));
        let mut bytes = Vec::new();
        write_nodes(&mut bytes, &table, |time| time).unwrap();
        assert!(bytes.len() < 3_000, "{}", bytes.len());
        let read = |bytes: &[u8]| read_nodes(&mut &bytes[..], EventTime(-1));
        assert!(read(&bytes).unwrap() == table);
        for end in (0..bytes.len()).step_by(7) {
            assert!(read(&bytes[..end]).is_err(), "{end}");
        }
        for (at, value) in [(1, 255), (3, 1), (7, 1), (8, 0), (16, 2), (17, 1)] {
            let mut damaged = bytes.clone();
            damaged[at] = value;
            assert!(read(&damaged).is_err(), "{at}");
        }
        // A value beyond the end.
        let (mut short, mut bytes) = (NodeTable::new(0_u64), Vec::new());
        short.set(NodeId(2), 5);
        short.set(NodeId(9), 5);
        write_nodes(&mut bytes, &short, |value| value).unwrap();
        bytes[0] = 5;
        assert!(read_nodes(&mut &bytes[..], 0_u64).is_err());
    }

    #[test]
    fn tables_come_back_and_damaged_lengths_are_errors() {
        let values: Vec<f32> = (0..70_000u32).map(|i| i as f32).collect();
        let mut bytes = Vec::new();
        write_table(&mut bytes, &values).unwrap();
        write_table::<u64>(&mut bytes, &[]).unwrap();
        let mut input = &bytes[..];
        assert_eq!(read_table::<f32>(&mut input).unwrap(), values);
        assert_eq!(read_table::<u64>(&mut input).unwrap(), Vec::<u64>::new());
        for length in [u64::MAX, u64::MAX / 4, 70_001] {
            bytes[..8].copy_from_slice(&length.to_le_bytes());
            assert!(read_table::<f32>(&mut &bytes[..8 + 70_000 * 4]).is_err(), "{length}");
        }
    }
}
