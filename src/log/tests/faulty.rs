//! A disk in memory that fails on command: full, out of order, writing short, losing power. Other modules test with it
//! what they do when the log cannot be written, and so do the integration tests, which include this file.
//!
//! Power loss is modeled operation by operation: what was not synced may be there or not, sector by
//! sector. A failed sync loses what it was to write, even if a later sync succeeds, as Linux does.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::{Mutex, MutexGuard};

use super::{Access, LogFile, LogStorage};

/// Power loss keeps or loses this many bytes together.
const SECTOR: usize = 512;

/// An operation that can be made to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Operation {
    /// Creating a file.
    Create,
    /// Reading from a file.
    Read,
    /// Writing to a file.
    Write,
    /// Cutting a file.
    SetLength,
    /// Making a file durable.
    Sync,
    /// Making names durable.
    SyncDirectory,
    /// Removing a file.
    Remove,
}

/// A directory in memory. Clones are the same disk.
#[derive(Clone, Default)]
pub struct MemoryDisk {
    state: Arc<Mutex<State>>,
    locked: Arc<AtomicBool>,
}

#[derive(Default)]
struct State {
    files: BTreeMap<String, Contents>,
    /// Bytes that fit; `None` is no limit.
    capacity: Option<usize>,
    /// Bytes that one write writes at most; `None` is no limit.
    write_limit: Option<usize>,
    /// How often each operation is yet to fail, and how.
    failures: BTreeMap<Operation, (usize, ErrorKind)>,
}

#[derive(Clone, Default)]
struct Contents {
    /// What readers see.
    bytes: Vec<u8>,
    /// What power loss leaves for sure; `None` until the name is durable.
    synced: Option<Vec<u8>>,
    /// What it may or may not leave.
    pending: Vec<Pending>,
}

#[derive(Clone)]
enum Pending {
    Write(Range<usize>),
    Length(usize),
}

impl MemoryDisk {
    /// An empty disk without limits.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// This disk as the log wants it.
    #[must_use]
    pub fn storage(&self) -> Box<dyn LogStorage> {
        Box::new(self.clone())
    }

    /// Lets `bytes` fit on the disk in all; `None` lifts the limit.
    pub fn set_capacity(&self, bytes: Option<usize>) {
        self.state.lock().capacity = bytes;
    }

    /// Lets one write write at most `bytes`; `None` lifts the limit.
    pub fn set_write_limit(&self, bytes: Option<usize>) {
        self.state.lock().write_limit = bytes;
    }

    /// Makes the next `times` operations of this kind fail.
    pub fn fail(&self, operation: Operation, times: usize, kind: ErrorKind) {
        self.state.lock().failures.insert(operation, (times, kind));
    }

    /// Names of the files, sorted.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        self.state.lock().files.keys().cloned().collect()
    }

    /// Content of a file; empty if there is none of this name.
    #[must_use]
    pub fn content(&self, name: &str) -> Vec<u8> {
        self.state.lock().files.get(name).map(|file| file.bytes.clone()).unwrap_or_default()
    }

    /// Puts a file on the disk, durable.
    pub fn put(&self, name: &str, bytes: &[u8]) {
        let file = Contents { bytes: bytes.to_vec(), synced: Some(bytes.to_vec()), pending: Vec::new() };
        self.state.lock().files.insert(name.to_owned(), file);
    }

    /// The disk as power loss leaves it now. `keep` is called for every sector, length and name that was
    /// not synced.
    #[must_use]
    pub fn after_power_loss(&self, mut keep: impl FnMut() -> bool) -> Self {
        let disk = Self::new();
        for (name, file) in &self.state.lock().files {
            let Some(synced) = file.synced.clone().or_else(|| keep().then(Vec::new)) else { continue };
            disk.put(name, &file.settle(synced, &mut keep));
        }
        disk
    }
}

impl Contents {
    /// `synced` with those pending operations, sector by sector, that `keep` keeps.
    fn settle(&self, mut synced: Vec<u8>, keep: &mut impl FnMut() -> bool) -> Vec<u8> {
        for operation in &self.pending {
            match operation {
                Pending::Length(length) if keep() => synced.resize(*length, 0),
                Pending::Length(_) => {}
                Pending::Write(range) => {
                    let mut at = range.start;
                    let end_of_range = range.end.min(self.bytes.len());
                    while at < end_of_range {
                        let end = end_of_range.min((at / SECTOR + 1) * SECTOR);
                        if let Some(sector) = self.bytes.get(at..end).filter(|_| keep()) {
                            synced.resize(synced.len().max(end), 0);
                            synced[at..end].copy_from_slice(sector);
                        }
                        at = end;
                    }
                }
            }
        }
        synced
    }
}

impl State {
    fn file(&mut self, name: &str) -> io::Result<&mut Contents> {
        self.files.get_mut(name).ok_or_else(|| ErrorKind::NotFound.into())
    }

    fn attempt(&mut self, operation: Operation) -> io::Result<()> {
        match self.failures.get_mut(&operation) {
            Some((times, kind)) if *times > 0 => {
                *times -= 1;
                Err((*kind).into())
            }
            _ => Ok(()),
        }
    }
}

/// The lock of a disk; free again when dropped.
struct Guard(Arc<AtomicBool>);

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

impl LogStorage for MemoryDisk {
    fn lock(&self) -> io::Result<Option<Box<dyn Send + Sync>>> {
        let held = self.locked.swap(true, Ordering::Acquire);
        Ok(if held { None } else { Some(Box::new(Guard(Arc::clone(&self.locked)))) })
    }

    fn list(&self) -> io::Result<Vec<String>> {
        Ok(self.names())
    }

    fn open(&self, name: &str, _access: Access) -> io::Result<Box<dyn LogFile>> {
        match self.state.lock().files.contains_key(name) {
            true => Ok(Box::new(MemoryFile { disk: Arc::clone(&self.state), name: name.to_owned() })),
            false => Err(ErrorKind::NotFound.into()),
        }
    }

    fn create(&self, name: &str) -> io::Result<Box<dyn LogFile>> {
        let mut state = self.state.lock();
        state.attempt(Operation::Create)?;
        let file = state.files.entry(name.to_owned()).or_default();
        file.bytes.clear();
        file.pending.push(Pending::Length(0));
        Ok(Box::new(MemoryFile { disk: Arc::clone(&self.state), name: name.to_owned() }))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut state = self.state.lock();
        state.attempt(Operation::Remove)?;
        state.files.remove(name).map(|_| ()).ok_or_else(|| ErrorKind::NotFound.into())
    }

    fn sync_directory(&self) -> io::Result<()> {
        let mut state = self.state.lock();
        state.attempt(Operation::SyncDirectory)?;
        for file in state.files.values_mut() {
            file.synced.get_or_insert_default();
        }
        Ok(())
    }
}

struct MemoryFile {
    disk: Arc<Mutex<State>>,
    name: String,
}

impl MemoryFile {
    /// The disk's state, unless this operation is to fail.
    fn attempt(&self, operation: Operation) -> io::Result<MutexGuard<'_, State>> {
        let mut state = self.disk.lock();
        state.attempt(operation)?;
        Ok(state)
    }
}

impl LogFile for MemoryFile {
    fn length(&self) -> io::Result<u64> {
        let mut state = self.disk.lock();
        Ok(state.file(&self.name)?.bytes.len() as u64)
    }

    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut state = self.attempt(Operation::Read)?;
        let content = state.file(&self.name)?.bytes.get(position(offset)..).unwrap_or_default();
        let count = content.len().min(bytes.len());
        bytes[..count].copy_from_slice(&content[..count]);
        Ok(count)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        let mut state = self.attempt(Operation::Write)?;
        let used: usize = state.files.values().map(|file| file.bytes.len()).sum();
        let free = state.capacity.map_or(usize::MAX, |capacity| capacity.saturating_sub(used));
        let limit = state.write_limit.unwrap_or(usize::MAX);
        let file = state.file(&self.name)?;
        let start = position(offset);
        let room = file.bytes.len().saturating_sub(start).saturating_add(free);
        let count = bytes.len().min(limit).min(room);
        if count == 0 && !bytes.is_empty() {
            return Err(ErrorKind::StorageFull.into());
        }
        let end = start + count;
        file.bytes.resize(file.bytes.len().max(end), 0);
        file.bytes[start..end].copy_from_slice(&bytes[..count]);
        file.pending.push(Pending::Write(start..end));
        Ok(count)
    }

    fn set_length(&self, length: u64) -> io::Result<()> {
        let mut state = self.attempt(Operation::SetLength)?;
        let file = state.file(&self.name)?;
        file.bytes.resize(position(length), 0);
        file.pending.push(Pending::Length(position(length)));
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        let mut state = self.disk.lock();
        let attempt = state.attempt(Operation::Sync);
        let file = state.file(&self.name)?;
        if attempt.is_err() {
            file.pending.retain(|operation| matches!(operation, Pending::Length(_)));
            return attempt;
        }
        // Until the name is durable, synced bytes have no file to be found in.
        if let Some(synced) = file.synced.take() {
            file.synced = Some(file.settle(synced, &mut || true));
            file.pending.clear();
        }
        Ok(())
    }
}

fn position(offset: u64) -> usize {
    usize::try_from(offset).unwrap_or(usize::MAX)
}
