//! Keeps what recovery cuts off the log, in a file beside it: the end of a write that a crash interrupted, or all that
//! is left of damaged records. Named by a number that rises, so that names sort by age, by the segment and by the byte
//! at which it was cut. Knows nothing of frames.

use std::io;
use std::path::{Path, PathBuf};

use super::LogError;
use super::storage::{Access, LogFile, LogStorage};

const SUFFIX: &str = ".torn";

/// The oldest files beyond this number are removed.
const KEPT_MAX: usize = 16;

const COPY_BYTES: usize = 1 << 20;

/// Copies the bytes of `segment` from `offset` on into a file of their own, durably, and returns its path; `None` if
/// all of them are zeros, or if the disk has no room for them.
pub(super) fn keep(
    storage: &dyn LogStorage,
    dir: &Path,
    segment: &str,
    offset: u64,
) -> Result<Option<PathBuf>, LogError> {
    let error = |operation, name: &str, source| LogError::io(operation, dir.join(name), source);
    let source = storage.open(segment, Access::Read).map_err(|source| error("open", segment, source))?;
    if is_zeros(&*source, offset).map_err(|source| error("read", segment, source))? {
        return Ok(None);
    }
    let mut names = storage.list().map_err(|source| LogError::io("list", dir, source))?;
    names.retain(|name| name.ends_with(SUFFIX));
    names.sort_unstable();
    let number = |name: &String| name.split('-').next()?.parse::<u32>().ok();
    let next = names.iter().filter_map(number).max().map_or(1, |last| last.saturating_add(1));
    let name = format!("{next:010}-{}-{offset}{SUFFIX}", segment.trim_end_matches(".log"));
    let copied = storage.create(&name).and_then(|target| copy(&*source, offset, &*target));
    match copied.and_then(|()| storage.sync_directory()) {
        Ok(()) => {}
        Err(full) if matches!(full.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded) => {
            // The start must not depend on room for a copy.
            let _ = storage.remove(&name);
            return Ok(None);
        }
        Err(source) => return Err(error("write", &name, source)),
    }
    let surplus = (names.len() + 1).saturating_sub(KEPT_MAX);
    for old in names.iter().take(surplus) {
        storage.remove(old).map_err(|source| error("remove", old, source))?;
    }
    Ok(Some(dir.join(name)))
}

fn is_zeros(file: &dyn LogFile, offset: u64) -> io::Result<bool> {
    let mut zeros = true;
    pieces(file, offset, |_, bytes| {
        zeros = bytes.iter().all(|byte| *byte == 0);
        Ok(zeros)
    })?;
    Ok(zeros)
}

fn copy(source: &dyn LogFile, offset: u64, target: &dyn LogFile) -> io::Result<()> {
    pieces(source, offset, |at, mut bytes| {
        let mut to = at - offset;
        while !bytes.is_empty() {
            match target.write_at(bytes, to) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => {
                    bytes = bytes.get(count..).unwrap_or_default();
                    to += count as u64;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    })?;
    target.sync()
}

/// Calls `take` for the bytes from `offset` to the file's end, piece by piece, until it returns `false`.
fn pieces(
    file: &dyn LogFile,
    offset: u64,
    mut take: impl FnMut(u64, &[u8]) -> io::Result<bool>,
) -> io::Result<()> {
    let (mut at, mut buffer) = (offset, vec![0; COPY_BYTES]);
    loop {
        match file.read_at(&mut buffer, at) {
            Ok(0) => return Ok(()),
            Ok(count) => {
                if !take(at, buffer.get(..count).unwrap_or_default())? {
                    return Ok(());
                }
                at += count as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}
