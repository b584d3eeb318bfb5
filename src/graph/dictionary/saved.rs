//! Names as bytes, for a snapshot: those of the first ids, in the order of the ids. A name that is forgotten meanwhile
//! is written as forgotten, which is what the record that forgets it, read again, leads to.
//!
//! ```text
//! 0 | number 8
//! 1 | length 4 | text
//! 2 | count 4   of so many forgotten names in a row
//! ```

use std::io::{self, Error, ErrorKind};

use super::{NODES_MAX, NodeDictionary};
use crate::graph::key::KeyRef;

/// Names written under one lock.
const AT_ONCE: usize = 1 << 14;

const INT: u8 = 0;
const TEXT: u8 = 1;
const GONE: u8 = 2;

impl NodeDictionary {
    /// Writes the names of the ids below `count`: calls `out` with some thousand at a time, each of which
    /// [`restore_names`](Self::restore_names) takes as a whole and in this order.
    ///
    /// # Errors
    /// What `out` returns.
    pub fn write_names(&self, count: usize, out: &mut dyn FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
        let (mut buffer, mut next) = (Vec::new(), 0);
        for first in (0..count).step_by(AT_ONCE) {
            let inner = self.inner.read();
            for (id, key) in inner.named(first..count.min(first + AT_ONCE)) {
                put_gone(id - next, &mut buffer);
                next = id + 1;
                match key {
                    KeyRef::Int(number) => {
                        buffer.push(INT);
                        buffer.extend_from_slice(&number.to_le_bytes());
                    }
                    KeyRef::Text(text) => {
                        buffer.push(TEXT);
                        buffer.extend_from_slice(&u32::try_from(text.len()).unwrap_or(0).to_le_bytes());
                        buffer.extend_from_slice(text.as_bytes());
                    }
                }
            }
            drop(inner);
            if !buffer.is_empty() {
                out(&buffer)?;
            }
            buffer.clear();
        }
        put_gone(count - next, &mut buffer);
        if buffer.is_empty() { Ok(()) } else { out(&buffer) }
    }

    /// Takes in names that [`write_names`](Self::write_names) wrote, behind those that are there.
    ///
    /// # Errors
    /// The bytes are no names.
    pub fn restore_names(&self, mut bytes: &[u8]) -> io::Result<()> {
        let malformed = || Error::new(ErrorKind::InvalidData, "a name of a node is cut off or malformed");
        let mut inner = self.inner.write();
        while let Some((&kind, rest)) = bytes.split_first() {
            if inner.by_id.len() >= NODES_MAX {
                return Err(malformed());
            }
            bytes = match kind {
                INT => {
                    let (number, rest) = rest.split_first_chunk().ok_or_else(malformed)?;
                    inner.define(KeyRef::Int(i64::from_le_bytes(*number)));
                    rest
                }
                TEXT => {
                    let (length, rest) = rest.split_first_chunk().ok_or_else(malformed)?;
                    let length = u32::from_le_bytes(*length) as usize;
                    let (text, rest) = rest.split_at_checked(length).ok_or_else(malformed)?;
                    inner.define(KeyRef::Text(std::str::from_utf8(text).map_err(|_| malformed())?));
                    rest
                }
                GONE => {
                    let (count, rest) = rest.split_first_chunk().ok_or_else(malformed)?;
                    if !inner.by_id.push_forgotten(u32::from_le_bytes(*count) as usize) {
                        return Err(malformed());
                    }
                    rest
                }
                _ => return Err(malformed()),
            };
        }
        Ok(())
    }
}

/// Writes that the next `count` ids have no name.
fn put_gone(count: usize, out: &mut Vec<u8>) {
    if count > 0 {
        out.push(GONE);
        // Ids have 32 bits.
        out.extend_from_slice(&(count as u32).to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{NodeId, NodeKey, NodeNames};

    #[test]
    fn names_come_back_with_their_ids_also_those_that_were_forgotten_or_given_again() {
        let saved = NodeDictionary::new();
        let keys =
            ["a".into(), NodeKey::Int(7), "b".into(), NodeKey::Int(-3), "".into(), NodeKey::Int(1 << 40)];
        saved.define(&keys);
        saved.define(&(0..40_000).map(|i| NodeKey::from_text(&format!("node-{i}"))).collect::<Vec<_>>());
        [0, 1, 700].into_iter().chain(2_000..39_000).for_each(|id| saved.forget(NodeId(id)));
        saved.define(&["a".into(), "b".into(), "later".into()]);
        let count = saved.len() - 1;
        let (mut parts, loaded) = (Vec::new(), NodeDictionary::new());
        saved
            .write_names(count, &mut |part| {
                parts.push(part.to_vec());
                Ok(())
            })
            .unwrap();
        assert!(parts.iter().map(Vec::len).sum::<usize>() < 60_000, "a run of forgotten names is one");
        parts.iter().for_each(|part| loaded.restore_names(part).unwrap());
        assert_eq!(loaded.len(), count);
        for id in (0..count).map(|id| NodeId(id as u32)) {
            let key = saved.key(id);
            assert_eq!(loaded.key(id), key, "{id:?}");
            if let Some(key) = key {
                assert_eq!(loaded.lookup(&key), saved.lookup(&key), "{key:?}");
            }
        }
        assert_eq!(loaded.lookup(&"later".into()), None);
        assert_eq!(NodeNames::count(&loaded), NodeNames::count(&saved) - 1);
        // A record that forgets a name again changes nothing.
        loaded.forget(NodeId(700));
        assert_eq!(NodeNames::count(&loaded), NodeNames::count(&saved) - 1);
    }

    #[test]
    fn bytes_that_are_no_names_are_an_error() {
        let damaged: [&[u8]; 6] = [
            &[3],
            &[0, 1, 2],
            &[1, 255, 255, 255, 255, 65],
            &[1, 1, 0, 0, 0, 255],
            &[2, 1],
            &[2, 1, 0, 0, 128],
        ];
        for bytes in damaged {
            assert!(NodeDictionary::new().restore_names(bytes).is_err(), "{bytes:?}");
        }
    }
}
