//! What others may see of the appender while it runs.

use std::sync::atomic::{AtomicU64, Ordering};

use crossbeam_channel::{Receiver, Sender, bounded};
use parking_lot::{Mutex, RwLock};

use super::snapshot::{Capture, DeletedMeanwhile};
use crate::event::{EdgeId, SourceRange};
use crate::log::LogError;

/// Whether the log takes events.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum LogState {
    /// It does.
    #[default]
    Writable,
    /// The disk has no room; the text is the operating system's.
    Full(String),
    /// It cannot be written for another reason.
    Failing(String),
    /// Nothing is taken any more; the text says what is to be done.
    Ended(String),
}

impl LogState {
    pub(super) fn of(error: &LogError) -> Self {
        if error.is_disk_full() { Self::Full(error.to_string()) } else { Self::Failing(error.to_string()) }
    }

    /// Why it cannot be written, if so.
    #[must_use]
    pub fn fault(&self) -> Option<String> {
        match self {
            Self::Writable => None,
            Self::Full(detail) => Some(format!("the log's disk is full: {detail}")),
            Self::Failing(detail) => Some(format!("the log cannot be written: {detail}")),
            Self::Ended(detail) => Some(format!("ingest has ended: {detail}")),
        }
    }
}

/// What others may see of the appender while it runs.
#[derive(Debug, Default)]
pub struct AppenderStatus {
    pub(super) state: RwLock<LogState>,
    pub(super) accepted: AtomicU64,
    pub(super) duplicates: AtomicU64,
    pub(super) bytes: AtomicU64,
    /// Who waits for a capture of the index.
    pub(super) capture: Mutex<Option<Sender<Captured>>>,
    /// A request to cut the log.
    pub(super) cut: Mutex<Option<Cut>>,
    /// Where somebody reads the log whom a cut must not overtake.
    held_from: Mutex<Option<EdgeId>>,
    /// A request to move a source.
    pub(super) moved: Mutex<Option<Move>>,
}

/// A request to take partitions of a source to other positions.
#[derive(Debug)]
pub(super) struct Move {
    pub sources: Vec<SourceRange>,
    pub origin_unix_ms: i64,
    pub reply: Sender<Result<(), LogError>>,
}

/// A request to cut the log: segments below `position` go while it has more than `bytes_kept` bytes.
#[derive(Debug)]
pub(super) struct Cut {
    pub position: EdgeId,
    pub bytes_kept: u64,
    pub reply: Sender<Result<(), LogError>>,
}

/// A capture of the index for a snapshot.
pub struct Captured {
    /// The small part of the index.
    pub capture: Capture,
    /// The edges that are deleted from then on.
    pub meanwhile: DeletedMeanwhile,
}

impl AppenderStatus {
    /// Whether the log takes events.
    #[must_use]
    pub fn state(&self) -> LogState {
        self.state.read().clone()
    }

    /// Events written since start.
    #[must_use]
    pub fn accepted(&self) -> u64 {
        self.accepted.load(Ordering::Relaxed)
    }

    /// Events left out since start because they had been written before.
    #[must_use]
    pub fn duplicates(&self) -> u64 {
        self.duplicates.load(Ordering::Relaxed)
    }

    /// Asks for a capture of the index; it arrives between two frames. Who waited before does not get one.
    #[must_use]
    pub fn request_capture(&self) -> Receiver<Captured> {
        let (reply, captured) = bounded(1);
        *self.capture.lock() = Some(reply);
        captured
    }

    /// Has the log cut, between two frames: segments below `position` go while it has more than `bytes_kept` bytes. The
    /// outcome arrives when it is done. An earlier request that is not done is given up.
    pub fn request_cut(&self, position: EdgeId, bytes_kept: u64) -> Receiver<Result<(), LogError>> {
        let (reply, done) = bounded(1);
        *self.cut.lock() = Some(Cut { position, bytes_kept, reply });
        done
    }

    /// Keeps the log from `position` on, whatever cuts are asked for. Called again, it keeps less.
    pub fn hold_from(&self, position: EdgeId) {
        *self.held_from.lock() = Some(position);
    }

    /// As much of a cut at `position` as may be.
    pub(super) fn allowed_cut(&self, position: EdgeId) -> EdgeId {
        self.held_from.lock().map_or(position, |held| held.min(position))
    }

    /// Has partitions of a source, which is not running, taken to the ends of these runs by a frame without events. The
    /// outcome arrives when that is durable. An earlier request that is not done is given up.
    pub fn request_move(
        &self,
        sources: Vec<SourceRange>,
        origin_unix_ms: i64,
    ) -> Receiver<Result<(), LogError>> {
        let (reply, done) = bounded(1);
        *self.moved.lock() = Some(Move { sources, origin_unix_ms, reply });
        done
    }

    /// Takes back a request to move a source; `false` if it is being carried out, or was.
    #[must_use]
    pub fn withdraw_move(&self) -> bool {
        self.moved.lock().take().is_some()
    }

    /// Size of the log on disk in bytes.
    #[must_use]
    pub fn log_bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }
}
