//! The one writer of a log. Frames gather in memory and become durable together: one write, one
//! `fdatasync`, then readers see them. A commit that fails leaves the log as it was before.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::Mutex;

use super::mark::{LogMark, MarkFile};
use super::reader::{Durable, LogReader, LogReaders};
use super::recovery::{self, Recovery};
use super::segment::{Segment, file_name};
use super::storage::{Access, Directory, LogFile, LogStorage};
use super::{Frame, LogError, LogOptions, frame, torn};
use crate::event::EdgeId;

/// A buffer that one large commit has grown beyond this is given back, bytes.
const BUFFER_KEPT_BYTES: usize = 8 << 20;

/// The event log, open for writing. There is one per directory.
pub struct Log {
    segment_bytes: u64,
    readers: LogReaders,
    current: Option<Current>,
    /// Encoded frames that are not durable yet.
    buffer: Vec<u8>,
    end: EdgeId,
    durable_end: EdgeId,
    /// Durable length of all segments, bytes.
    bytes: u64,
    /// Longest payload of a frame, bytes.
    payload_bytes_max: u64,
    /// Whether bytes of a failed commit may stand behind the durable length.
    tail_unclean: bool,
    mark: MarkFile,
    _lock: Box<dyn Send + Sync>,
}

/// The segment that is written.
struct Current {
    first: EdgeId,
    path: PathBuf,
    file: Box<dyn LogFile>,
    /// Durable length, bytes.
    length: u64,
}

impl Log {
    /// Opens the log in `options.dir`, which is made if it is not there, and cuts the torn tail that a
    /// crash may have left.
    ///
    /// # Errors
    /// When the directory is in use, cannot be used, or its last segment is damaged elsewhere than at
    /// its end.
    pub fn open(options: LogOptions) -> Result<(Self, Recovery), LogError> {
        match Directory::create(&options.dir) {
            Ok(directory) => Self::open_with(options, Box::new(directory)),
            Err(source) => Err(LogError::io("create", options.dir, source)),
        }
    }

    /// Opens the log on other storage; `options.dir` is then only its name in errors.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_with(
        options: LogOptions,
        storage: Box<dyn LogStorage>,
    ) -> Result<(Self, Recovery), LogError> {
        let LogOptions { dir, segment_bytes } = options;
        let storage: Arc<dyn LogStorage> = Arc::from(storage);
        let lock = match storage.lock() {
            Ok(Some(lock)) => lock,
            Ok(None) => return Err(LogError::Locked { dir }),
            Err(source) => return Err(LogError::io("lock", dir, source)),
        };
        let (segments, mut recovery) = recovery::scan(&storage, &dir)?;
        let current = match segments.last() {
            Some(last) if recovery.truncated_bytes > 0 => {
                recovery.kept_in = torn::keep(&*storage, &dir, &file_name(last.first), last.bytes)?;
                Some(*last)
            }
            last => last.copied(),
        };
        let current = match current {
            Some(last) => Some(Current::reopen(&*storage, dir.join(file_name(last.first)), last)?),
            None => None,
        };
        let mark = MarkFile::open(&*storage, &dir)?;
        storage.sync_directory().map_err(|source| LogError::io("sync", &dir, source))?;
        let durable = Arc::new(Mutex::new(Durable { segments, removed: 0, end: recovery.end }));
        let log = Self {
            segment_bytes,
            readers: LogReaders { dir, storage, durable },
            current,
            buffer: Vec::new(),
            end: recovery.end,
            durable_end: recovery.end,
            bytes: recovery.bytes,
            payload_bytes_max: frame::PAYLOAD_BYTES_MAX,
            tail_unclean: false,
            mark,
            _lock: lock,
        };
        log.record();
        Ok((log, recovery))
    }

    /// Adds a frame to what the next [`commit`](Self::commit) makes durable.
    ///
    /// # Errors
    /// When `frame.batch.first` is not [`end`](Self::end), its columns do not agree, or it is too large.
    /// The log is unchanged then.
    pub fn append(&mut self, frame: &Frame) -> Result<(), LogError> {
        if frame.batch.first != self.end {
            return Err(LogError::OutOfOrder { expected: self.end, found: frame.batch.first });
        }
        let commit_start = match &self.current {
            Some(current) if !self.current_is_full() => current.length,
            _ => 0,
        };
        frame::encode(frame, commit_start, self.payload_bytes_max, &mut self.buffer)?;
        self.end = frame.batch.end();
        Ok(())
    }

    /// Makes every appended frame durable and visible to readers, and returns the new durable end.
    ///
    /// # Errors
    /// When they could not be written. None of them is in the log then, [`end`](Self::end) is back at
    /// [`durable_end`](Self::durable_end), and the same frames may be appended again, at once or when
    /// the cause is gone; see [`LogError::is_disk_full`].
    pub fn commit(&mut self) -> Result<EdgeId, LogError> {
        if self.buffer.is_empty() {
            return Ok(self.durable_end);
        }
        let written = self.write_buffer();
        let (length, end) = (self.buffer.len() as u64, self.end);
        self.discard();
        if let Err(error) = written {
            self.tail_unclean = true;
            // If this fails too, the next commit tries again before it writes.
            let _ = self.clean_tail();
            return Err(error);
        }
        (self.end, self.durable_end) = (end, end);
        self.bytes += length;
        self.publish(length);
        self.record();
        Ok(self.durable_end)
    }

    /// Takes back every frame appended since the last [`commit`](Self::commit).
    pub fn discard(&mut self) {
        self.buffer.clear();
        self.buffer.shrink_to(BUFFER_KEPT_BYTES);
        self.end = self.durable_end;
    }

    /// Makes frames too large that are not, so that tests need no gigabyte.
    #[cfg(test)]
    pub(crate) fn limit_payloads(&mut self, bytes: u64) {
        self.payload_bytes_max = bytes;
    }

    /// Bytes that the next [`commit`](Self::commit) will write.
    #[must_use]
    pub fn pending_bytes(&self) -> usize {
        self.buffer.len()
    }

    /// Finds out whether a commit of `bytes` would succeed now: writes as many zeros behind the log's end,
    /// makes them durable and cuts them off again. A crash in between leaves a torn tail, which recovery
    /// cuts.
    ///
    /// # Errors
    /// What that commit would fail with.
    pub fn try_room(&mut self, bytes: usize) -> Result<(), LogError> {
        let kept = std::mem::replace(&mut self.buffer, vec![0; bytes]);
        let written = self.write_buffer();
        self.buffer = kept;
        self.tail_unclean = true;
        let cleaned = self.clean_tail();
        written.and(cleaned)
    }

    /// Removes the oldest segment if all its records are below `position`, and returns how many bytes went; 0: nothing
    /// may go. The record before `position` stays, so that the history up to there is known.
    ///
    /// # Errors
    /// When the file cannot be removed; the log is as before.
    pub fn cut(&mut self, position: EdgeId) -> Result<u64, LogError> {
        let oldest = {
            let mut durable = self.readers.durable.lock();
            if durable.segments.get(1).is_none_or(|next| next.first >= position) {
                return Ok(0);
            }
            durable.removed += 1;
            durable.segments.remove(0)
        };
        let (storage, name) = (&self.readers.storage, file_name(oldest.first));
        if let Err(source) = storage.remove(&name) {
            let mut durable = self.readers.durable.lock();
            durable.removed -= 1;
            durable.segments.insert(0, oldest);
            return Err(LogError::io("remove", self.readers.dir.join(name), source));
        }
        self.bytes -= oldest.bytes;
        // A crash may bring the name back; what follows it is still there then, or this one would have been synced.
        storage.sync_directory().map_err(|source| LogError::io("sync", &self.readers.dir, source))?;
        Ok(oldest.bytes)
    }

    /// The next position to append.
    #[must_use]
    pub fn end(&self) -> EdgeId {
        self.end
    }

    /// One past the last durable position.
    #[must_use]
    pub fn durable_end(&self) -> EdgeId {
        self.durable_end
    }

    /// Length of the durable log, bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// A reader from position `from` on that follows this writer.
    #[must_use]
    pub fn reader(&self, from: EdgeId) -> LogReader {
        self.readers.reader(from)
    }

    /// Makes readers when the log itself is out of reach, in the appender's thread.
    #[must_use]
    pub fn readers(&self) -> LogReaders {
        self.readers.clone()
    }

    /// Whether the next commit begins a segment. Does not change between commits, so that frames know
    /// where their commit will stand. A segment without records is never left: the next would have its
    /// name.
    fn current_is_full(&self) -> bool {
        self.current
            .as_ref()
            .is_none_or(|current| current.length >= self.segment_bytes && self.durable_end > current.first)
    }

    fn write_buffer(&mut self) -> Result<(), LogError> {
        self.clean_tail()?;
        if self.current_is_full() {
            self.current = Some(Current::create(&self.readers, self.durable_end)?);
        }
        match &self.current {
            Some(current) => current.write(&self.buffer),
            None => Ok(()),
        }
    }

    /// Cuts what a failed commit may have left. It is made durable at once, so that frames which the
    /// caller was notified are not in the log do not come back after a crash.
    fn clean_tail(&mut self) -> Result<(), LogError> {
        if let Some(current) = self.current.as_ref().filter(|_| self.tail_unclean) {
            current.cut()?;
        }
        self.tail_unclean = false;
        Ok(())
    }

    /// Moves the mark to the durable end. If that fails the mark says less than is durable, which is true as well.
    fn record(&self) {
        let _ = self.mark.write(self.mark());
    }

    fn mark(&self) -> LogMark {
        let segment = |current: &Current| Segment { first: current.first, bytes: current.length };
        LogMark { segment: self.current.as_ref().map(segment).unwrap_or_default(), end: self.durable_end }
    }

    fn publish(&mut self, written: u64) {
        let Some(current) = &mut self.current else { return };
        current.length += written;
        let segment = Segment { first: current.first, bytes: current.length };
        let mut durable = self.readers.durable.lock();
        durable.end = self.durable_end;
        match durable.segments.last_mut() {
            Some(last) if last.first == segment.first => *last = segment,
            _ => durable.segments.push(segment),
        }
    }
}

impl Drop for Log {
    /// After this, not even a loss of power leaves the mark behind the log.
    fn drop(&mut self) {
        if self.mark.write(self.mark()).is_ok() {
            let _ = self.mark.sync();
        }
    }
}

impl Current {
    fn create(log: &LogReaders, first: EdgeId) -> Result<Self, LogError> {
        let name = file_name(first);
        let path = log.dir.join(&name);
        let file = match log.storage.create(&name) {
            Ok(file) => file,
            Err(source) => return Err(LogError::io("create", path, source)),
        };
        log.storage.sync_directory().map_err(|source| LogError::io("sync", &log.dir, source))?;
        Ok(Self { first, path, file, length: 0 })
    }

    /// Opens the last segment again, cuts its torn tail, and makes durable what stands before it: a
    /// process that was killed between its write and its sync has left frames that are whole, and that
    /// power loss could still take back.
    fn reopen(storage: &dyn LogStorage, path: PathBuf, segment: Segment) -> Result<Self, LogError> {
        let file = match storage.open(&file_name(segment.first), Access::Write) {
            Ok(file) => file,
            Err(source) => return Err(LogError::io("open", path, source)),
        };
        let current = Self { first: segment.first, path, file, length: segment.bytes };
        current.cut()?;
        Ok(current)
    }

    fn write(&self, mut bytes: &[u8]) -> Result<(), LogError> {
        let mut offset = self.length;
        while !bytes.is_empty() {
            match self.file.write_at(bytes, offset) {
                Ok(0) => return Err(self.error("write", io::ErrorKind::WriteZero.into())),
                Ok(count) => {
                    bytes = bytes.get(count..).unwrap_or_default();
                    offset += count as u64;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(source) => return Err(self.error("write", source)),
            }
        }
        self.file.sync().map_err(|source| self.error("sync", source))
    }

    fn cut(&self) -> Result<(), LogError> {
        self.file.set_length(self.length).map_err(|source| self.error("truncate", source))?;
        self.file.sync().map_err(|source| self.error("sync", source))
    }

    fn error(&self, operation: &'static str, source: io::Error) -> LogError {
        LogError::io(operation, &self.path, source)
    }
}
