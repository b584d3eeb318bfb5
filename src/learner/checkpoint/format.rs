//! The file that lists the pieces of a checkpoint's payload, as bytes. Lengths are not trusted with memory.

use super::CheckpointHead;
use crate::event::EdgeId;

/// The first bytes of a list.
pub(super) const MAGIC: &[u8; 8] = b"EVGCKPT5";

/// A file of pages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageFile {
    /// Its name, in the folder of the checkpoint.
    pub name: String,
    /// Its length.
    pub bytes: u64,
}

/// A piece of a payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Number of the file of pages.
    pub file: u32,
    /// CRC-32C of its bytes.
    pub crc32c: u32,
    /// Where it begins in that file.
    pub offset: u64,
    /// Its length.
    pub bytes: u64,
}

/// What a checkpoint lists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// The header.
    pub head: CheckpointHead,
    /// The files of pages that it refers to.
    pub files: Vec<PageFile>,
    /// Its payload, piece after piece.
    pub pieces: Vec<Piece>,
}

/// The bytes of a list, and their checksum, which ends them.
pub(super) fn encode(listed: &Listed) -> (Vec<u8>, u32) {
    let mut bytes = MAGIC.to_vec();
    let head = &listed.head;
    for word in [head.position.0, head.history, head.model_version, head.began_unix_ms.cast_unsigned()] {
        bytes.extend_from_slice(&word.to_le_bytes());
    }
    bytes.extend_from_slice(&(listed.files.len() as u32).to_le_bytes());
    for file in &listed.files {
        bytes.extend_from_slice(&(file.name.len() as u16).to_le_bytes());
        bytes.extend_from_slice(file.name.as_bytes());
        bytes.extend_from_slice(&file.bytes.to_le_bytes());
    }
    bytes.extend_from_slice(&(listed.pieces.len() as u64).to_le_bytes());
    for piece in &listed.pieces {
        bytes.extend_from_slice(&piece.file.to_le_bytes());
        bytes.extend_from_slice(&piece.crc32c.to_le_bytes());
        bytes.extend_from_slice(&piece.offset.to_le_bytes());
        bytes.extend_from_slice(&piece.bytes.to_le_bytes());
    }
    let crc32c = crc32c::crc32c(&bytes);
    bytes.extend_from_slice(&crc32c.to_le_bytes());
    (bytes, crc32c)
}

/// A list from its bytes, with their checksum, or what is wrong with them.
pub(super) fn decode(bytes: &[u8]) -> Result<(Listed, u32), String> {
    let too_few = || format!("{} bytes are too few", bytes.len());
    let magic = bytes.get(..MAGIC.len()).ok_or_else(too_few)?;
    if magic != MAGIC {
        let (found, ours) = (String::from_utf8_lossy(magic), String::from_utf8_lossy(MAGIC));
        return Err(format!("it begins with {found:?}, not with {ours:?}"));
    }
    let (content, end) = bytes.split_last_chunk::<4>().ok_or_else(too_few)?;
    let (sum, expected) = (crc32c::crc32c(content), u32::from_le_bytes(*end));
    if sum != expected {
        return Err(format!("checksum {sum:08x} where {expected:08x} is written"));
    }
    let mut rest = content.get(MAGIC.len()..).ok_or_else(too_few)?;
    let listed = read(&mut rest).ok_or_else(too_few)?;
    match rest.is_empty() && listed.pieces.iter().all(|piece| (piece.file as usize) < listed.files.len()) {
        true => Ok((listed, sum)),
        false => Err("its list of pieces does not hold together".to_owned()),
    }
}

/// The files of pages that a list refers to, from its first bytes, which no checksum covers by themselves; `None` if
/// they are too few, or none such.
pub(super) fn files(bytes: &[u8]) -> Option<Vec<PageFile>> {
    let mut rest = bytes.get(MAGIC.len()..)?;
    read_files(&mut rest).map(|(_, files)| files)
}

fn read(rest: &mut &[u8]) -> Option<Listed> {
    let (head, files) = read_files(rest)?;
    let mut pieces = Vec::new();
    for _ in 0..word(rest)? {
        let (file, crc32c) = (u32::from_le_bytes(take(rest)?), u32::from_le_bytes(take(rest)?));
        pieces.push(Piece { file, crc32c, offset: word(rest)?, bytes: word(rest)? });
    }
    Some(Listed { head, files, pieces })
}

fn read_files(rest: &mut &[u8]) -> Option<(CheckpointHead, Vec<PageFile>)> {
    let head = CheckpointHead {
        position: EdgeId(word(rest)?),
        history: word(rest)?,
        model_version: word(rest)?,
        began_unix_ms: word(rest)?.cast_signed(),
    };
    let mut files = Vec::new();
    for _ in 0..u32::from_le_bytes(take(rest)?) {
        let length = usize::from(u16::from_le_bytes(take(rest)?));
        let name = rest.split_off(..length)?;
        let name = std::str::from_utf8(name).ok().filter(|name| super::pages::is_name(name))?.to_owned();
        files.push(PageFile { name, bytes: word(rest)? });
    }
    Some((head, files))
}

fn word(rest: &mut &[u8]) -> Option<u64> {
    take(rest).map(u64::from_le_bytes)
}

fn take<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    rest.split_off(..N)?.try_into().ok()
}
