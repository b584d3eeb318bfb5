//! Tables of numbers as bytes, little-endian, each behind its length: what state and trainer files are
//! made of. A length is never trusted with an allocation: reading grows with the bytes that arrive, so a
//! damaged file ends in an error, not in an abort. Knows nothing of what the numbers mean.

use std::io::{Error, ErrorKind, Read, Result, Write};

use bytemuck::Pod;

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
    let length = read_u64(input)?;
    let total = usize::try_from(length).ok().and_then(|length| length.checked_mul(size_of::<T>()));
    let Some(mut left) = total else {
        return Err(Error::new(ErrorKind::InvalidData, format!("a table of {length} values cannot be")));
    };
    let per_chunk = (CHUNK_BYTES / size_of::<T>()).max(1);
    let mut values = Vec::new();
    while left > 0 {
        let filled = values.len();
        values.resize(filled + per_chunk.min(left / size_of::<T>()), T::zeroed());
        let chunk: &mut [u8] = bytemuck::cast_slice_mut(&mut values[filled..]);
        input.read_exact(chunk)?;
        left -= chunk.len();
    }
    Ok(values)
}

#[cfg(test)]
mod tests {
    use super::*;

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
