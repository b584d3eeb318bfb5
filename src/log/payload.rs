//! Reading of a payload, column by column. No length is trusted: each is checked against the bytes that are left.

use bytemuck::Pod;

use crate::event::{EventTime, FeatureColumn, NodeKey, Op, SourceMark};

/// Marks an integer key.
pub(super) const KEY_INT: u8 = 0;
/// Marks a text key.
pub(super) const KEY_TEXT: u8 = 1;

/// What contradicts itself in a payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PayloadError {
    pub what: &'static str,
    pub expected: u64,
    pub found: u64,
}

/// The part of a payload that is not decoded yet.
pub(super) struct Rest<'a> {
    pub bytes: &'a [u8],
}

impl<'a> Rest<'a> {
    pub fn take(&mut self, length: usize) -> Result<&'a [u8], PayloadError> {
        let (taken, rest) = self.bytes.split_at_checked(length).ok_or(PayloadError {
            what: "number of bytes of a column",
            expected: length as u64,
            found: self.bytes.len() as u64,
        })?;
        self.bytes = rest;
        Ok(taken)
    }

    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], PayloadError> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N)?);
        Ok(array)
    }

    pub fn length(&mut self) -> Result<usize, PayloadError> {
        Ok(u32::from_le_bytes(self.array()?) as usize)
    }

    pub fn column<T: Pod>(&mut self, n: usize) -> Result<Vec<T>, PayloadError> {
        let bytes = self.take(n.saturating_mul(size_of::<T>()))?;
        let mut column = vec![T::zeroed(); n];
        bytemuck::cast_slice_mut(&mut column).copy_from_slice(bytes);
        Ok(column)
    }

    pub fn short_times(&mut self, n: usize) -> Result<Vec<EventTime>, PayloadError> {
        let base = i64::from_le_bytes(self.array()?);
        let offsets = self.take(n.saturating_mul(4))?.as_chunks::<4>().0;
        Ok(offsets
            .iter()
            .map(|&offset| EventTime(base.wrapping_add(i64::from(u32::from_le_bytes(offset)))))
            .collect())
    }

    pub fn ops(&mut self, n: usize) -> Result<Vec<Op>, PayloadError> {
        let code = |&code: &u8| {
            Op::from_code(code).ok_or(PayloadError {
                what: "operation code",
                expected: 3,
                found: u64::from(code),
            })
        };
        self.take(n)?.iter().map(code).collect()
    }

    pub fn features(&mut self, n: usize) -> Result<FeatureColumn, PayloadError> {
        let rows = self.length()?;
        let count = self.length()?;
        if rows > n {
            return Err(PayloadError {
                what: "number of feature rows",
                expected: n as u64,
                found: rows as u64,
            });
        }
        let ends: Vec<u32> = self.column(rows)?;
        let values: Vec<f32> = self.column(count)?;
        let last = ends.last().map_or(0, |&end| end as usize);
        if last != count || !ends.is_sorted() {
            return Err(PayloadError {
                what: "end of the last feature row",
                expected: count as u64,
                found: last as u64,
            });
        }
        Ok(FeatureColumn { ends, values })
    }

    pub fn text(&mut self) -> Result<&'a str, PayloadError> {
        let length = self.length()?;
        let bytes = self.take(length)?;
        std::str::from_utf8(bytes).map_err(|error| PayloadError {
            what: "number of bytes of valid UTF-8 in a name",
            expected: length as u64,
            found: error.valid_up_to() as u64,
        })
    }

    pub fn key(&mut self) -> Result<NodeKey, PayloadError> {
        match self.array()? {
            [KEY_INT] => Ok(NodeKey::Int(i64::from_le_bytes(self.array()?))),
            [KEY_TEXT] => Ok(NodeKey::from_text(self.text()?)),
            [mark] => Err(PayloadError { what: "kind of a key", expected: 1, found: u64::from(mark) }),
        }
    }

    pub fn mark(&mut self) -> Result<Option<SourceMark>, PayloadError> {
        let [is_there] = self.array()?;
        let (offset, hash) = (i64::from_le_bytes(self.array()?), u64::from_le_bytes(self.array()?));
        match (is_there, offset, hash) {
            (1, ..) => Ok(Some(SourceMark { offset, hash })),
            (0, 0, 0) => Ok(None),
            _ => Err(PayloadError { what: "kind of a mark", expected: 1, found: u64::from(is_there) }),
        }
    }

    /// A counted list of entries of at least `entry_bytes` each; empty when it is not `present`.
    pub fn list<T>(
        &mut self,
        present: u16,
        entry_bytes: usize,
        mut entry: impl FnMut(&mut Self) -> Result<T, PayloadError>,
    ) -> Result<Vec<T>, PayloadError> {
        let count = if present == 0 { 0 } else { self.length()? };
        let mut list = Vec::with_capacity(count.min(self.bytes.len() / entry_bytes));
        for _ in 0..count {
            list.push(entry(self)?);
        }
        Ok(list)
    }
}
