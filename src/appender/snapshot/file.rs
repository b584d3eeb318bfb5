//! A file of a snapshot: parts of some hundred kilobytes, each with a checksum that is checked before the part is used,
//! and an end that shows that none is missing. Knows nothing of what the parts mean.
//!
//! ```text
//! "EVGSNAP2" | parts: length 4, not 0, CRC32C 4, bytes | 0 4 | number of parts 8 | CRC32C of these 12 bytes 4
//! ```

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Error, ErrorKind, Read, Write};
use std::path::Path;

use super::Pace;
use crate::device::disk::{self, PacedFile};

const MAGIC: &[u8; 8] = b"EVGSNAP2";
const BUFFER_BYTES: usize = 1 << 20;
/// Longest part, bytes.
const PART_BYTES_MAX: u32 = 1 << 30;

/// A file that is written.
pub(super) struct Parts<'a> {
    file: BufWriter<PacedFile<'a>>,
    parts: u64,
    /// Bytes written so far.
    pub bytes: u64,
}

impl<'a> Parts<'a> {
    /// Makes the file, which is written at this pace.
    pub fn create(path: &Path, pace: Pace<'a>) -> io::Result<Self> {
        let file = PacedFile::new(File::create_new(path)?, disk::Pace { rate: pace.rate, hurry: pace.stop });
        let mut file = BufWriter::with_capacity(BUFFER_BYTES, file);
        file.write_all(MAGIC)?;
        Ok(Self { file, parts: 0, bytes: MAGIC.len() as u64 })
    }

    /// Writes a part; an empty one is left out.
    pub fn put(&mut self, part: &[u8]) -> io::Result<()> {
        if part.is_empty() {
            return Ok(());
        }
        let length = u32::try_from(part.len()).ok().filter(|&length| length <= PART_BYTES_MAX);
        let length = length.ok_or_else(|| Error::new(ErrorKind::InvalidInput, "a part is too long"))?;
        self.file.write_all(&length.to_le_bytes())?;
        self.file.write_all(&crc32c::crc32c(part).to_le_bytes())?;
        self.file.write_all(part)?;
        self.parts += 1;
        self.bytes += 8 + part.len() as u64;
        Ok(())
    }

    /// Writes the end and makes the file durable. Returns its length.
    pub fn finish(mut self) -> io::Result<u64> {
        let mut end = [0; 12];
        end[4..].copy_from_slice(&self.parts.to_le_bytes());
        self.file.write_all(&end)?;
        self.file.write_all(&crc32c::crc32c(&end).to_le_bytes())?;
        self.file.into_inner().map_err(io::IntoInnerError::into_error)?.finish()?;
        Ok(self.bytes + 16)
    }
}

/// Calls `take` for each part of the file.
///
/// # Errors
/// The file cannot be read, a byte of it is not as it was written, or what `take` returns.
pub(super) fn for_each_part(path: &Path, mut take: impl FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
    let damaged = |what: &str| Error::new(ErrorKind::InvalidData, what.to_owned());
    let file = File::open(path)?;
    let length_of_file = file.metadata()?.len();
    // Parts are longer than the buffer, and most of each is read past it, into `part`.
    let mut file = BufReader::new(file);
    let mut magic = [0; MAGIC.len()];
    file.read_exact(&mut magic)?;
    if &magic != MAGIC {
        return Err(damaged("it does not begin as a file of a snapshot does"));
    }
    let (mut part, mut parts) = (Vec::new(), 0_u64);
    loop {
        let (mut length, mut crc) = ([0; 4], [0; 4]);
        file.read_exact(&mut length)?;
        let length = u32::from_le_bytes(length);
        if length == 0 {
            break;
        }
        file.read_exact(&mut crc)?;
        // No more memory than there are bytes, whatever the length says.
        let is_there = length <= PART_BYTES_MAX && u64::from(length) <= length_of_file;
        part.resize(if is_there { length as usize } else { 0 }, 0);
        file.read_exact(&mut part)?;
        if !is_there || crc32c::crc32c(&part) != u32::from_le_bytes(crc) {
            return Err(damaged(&format!("part {parts} is damaged")));
        }
        take(&part)?;
        parts += 1;
    }
    let (mut end, mut crc) = ([0; 12], [0; 4]);
    file.read_exact(&mut end[4..])?;
    file.read_exact(&mut crc)?;
    let is_whole = end[4..] == parts.to_le_bytes() && crc32c::crc32c(&end) == u32::from_le_bytes(crc);
    if is_whole && file.read(&mut [0])? == 0 {
        Ok(())
    } else {
        Err(damaged(&format!("its end is damaged, or it has not {parts} parts")))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;
    use crate::device::disk::WriteRate;

    #[test]
    fn parts_come_back_and_every_flipped_bit_and_every_cut_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        let parts = [vec![1, 2, 3], vec![], vec![7; 40], vec![0; 5]];
        let (rate, stop) = (WriteRate::default(), AtomicBool::new(false));
        let pace = Pace { rate: &rate, stop: &stop };
        let mut file = Parts::create(&path, pace).unwrap();
        parts.iter().for_each(|part| file.put(part).unwrap());
        let bytes = file.finish().unwrap();
        let read = || {
            let mut found = Vec::new();
            for_each_part(&path, |part| {
                found.push(part.to_vec());
                Ok(())
            })
            .map(|()| found)
        };
        assert_eq!(read().unwrap(), [&parts[0][..], &parts[2], &parts[3]]);
        let whole = std::fs::read(&path).unwrap();
        assert_eq!(whole.len() as u64, bytes);
        for bit in 0..whole.len() * 8 {
            let mut flipped = whole.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            std::fs::write(&path, &flipped).unwrap();
            assert!(read().is_err(), "bit {bit}");
        }
        for length in 0..whole.len() {
            std::fs::write(&path, &whole[..length]).unwrap();
            assert!(read().is_err(), "length {length}");
        }
        std::fs::write(&path, [&whole[..], &[0]].concat()).unwrap();
        assert!(read().is_err(), "longer");
        assert!(Parts::create(&path, pace).is_err(), "nothing is overwritten");
    }
}
