//! Snapshots of the index: what the log means up to a position, so that a start reads only what follows.
//!
//! The appender's thread [captures](Capture) what is small, between two frames, and goes on. Another thread then writes
//! graph, names and rows, as of the position of the capture: they grow behind it, and what is changed or removed in
//! front of it meanwhile is changed and removed again by the records that follow, which a start reads. Only an edge
//! that is deleted while its two ends are written would come back half; such edges are noted and left out.
//!
//! ```text
//! <position>.snapshot/names, node-rows, edge-rows, graph-<number of the shard>, index (written last)
//! ```
//! A folder is written under another name, made durable and renamed, so one with a final name is whole unless the disk
//! damaged it; checksums find that.

mod capture;
mod file;

use std::fs::File;
use std::io::{self, Error, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use hashbrown::HashSet;
use rayon::prelude::*;
use thiserror::Error;

pub use capture::{Capture, DeletedMeanwhile, ReadPartition};
use file::{Parts, for_each_part};

use super::Index;
use crate::device::disk::WriteRate;
use crate::event::{ClockRules, EdgeId};
use crate::model::tables::{read_table, read_u64, write_table, write_u64};
use crate::serving::Stores;

/// Ending of the folder of a snapshot.
const SUFFIX: &str = ".snapshot";
/// Ending of one that is being written, or that a crash left.
pub const UNFINISHED_SUFFIX: &str = ".snapshot.tmp";

/// A snapshot that cannot be written or read.
#[derive(Debug, Error)]
pub enum SnapshotError {
    /// The file system refuses.
    #[error("snapshot {path}: {source}")]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file is not as it was written.
    #[error("snapshot {path} is damaged: {detail}; an older one is used if there is one, or the log")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        detail: String,
    },
}

impl SnapshotError {
    /// Whether a file is not as it was written, or gone, so that the snapshot is of no use. If not, it may be intact:
    /// the system refuses to read it now, or it does not fit into this index.
    #[must_use]
    pub fn is_damage(&self) -> bool {
        match self {
            Self::Damaged { .. } => true,
            Self::Io { source, .. } => source.kind() == ErrorKind::NotFound,
        }
    }

    fn of(path: &Path, source: io::Error) -> Self {
        let path = path.to_owned();
        match source.kind() {
            ErrorKind::InvalidData | ErrorKind::UnexpectedEof => {
                Self::Damaged { path, detail: source.to_string() }
            }
            _ => Self::Io { path, source },
        }
    }
}

/// Name of the folder of a snapshot at `position`.
#[must_use]
pub fn name(position: EdgeId) -> String {
    format!("{:020}{SUFFIX}", position.0)
}

/// The positions of the snapshots in `dir`, the oldest first.
///
/// # Errors
/// When it cannot be read.
pub fn positions(dir: &Path) -> std::io::Result<Vec<EdgeId>> {
    let mut positions = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        let name = entry?.file_name();
        let digits = name.to_str().and_then(|name| name.strip_suffix(SUFFIX));
        positions.extend(digits.and_then(|digits| digits.parse().ok()).map(EdgeId));
    }
    positions.sort_unstable();
    Ok(positions)
}

/// A snapshot that was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WrittenSnapshot {
    /// Every record below this position is in it.
    pub position: EdgeId,
    /// Length of its files, bytes.
    pub bytes: u64,
    /// How long that took.
    pub took: Duration,
}

/// How fast a snapshot is written.
#[derive(Clone, Copy)]
pub struct Pace<'a> {
    /// Shared with what else is written.
    pub rate: &'a WriteRate,
    /// Set where it need not be finished.
    pub stop: &'a AtomicBool,
}

/// Writes a snapshot into `dir`, as of a capture of the index with these `stores`. `history` identifies the log up to
/// there. One of the same position, which was of no use then, is replaced. `complete` is called when all is written,
/// and before there is a snapshot.
///
/// # Errors
/// The file system refuses, rows or entries on disk cannot be read, `complete` fails, or it was stopped.
pub fn write(
    dir: &Path,
    (capture, history): (&Capture, u64),
    stores: &Stores,
    meanwhile: &DeletedMeanwhile,
    pace: Pace<'_>,
    complete: &dyn Fn() -> io::Result<()>,
) -> Result<WrittenSnapshot, SnapshotError> {
    let begun = Instant::now();
    let position = capture.position();
    let unfinished = dir.join(format!("{:020}{UNFINISHED_SUFFIX}", position.0));
    let mut writing = Writing { dir: &unfinished, bytes: 0, pace };
    let written = writing.all(capture, history, stores, meanwhile);
    // Ends the noting also where the writing failed.
    meanwhile.end();
    let renamed = written.and_then(|()| {
        let finished = dir.join(name(position));
        complete()
            .and_then(|()| replace(&unfinished, &finished))
            .and_then(|()| File::open(dir)?.sync_all())
            .map_err(|source| SnapshotError::of(&finished, source))
    });
    match renamed {
        Ok(()) => Ok(WrittenSnapshot { position, bytes: writing.bytes, took: begun.elapsed() }),
        Err(error) => {
            // Useless, and removed by the next start if not now.
            let _ = std::fs::remove_dir_all(&unfinished);
            Err(error)
        }
    }
}

/// Gives a folder its final name, which another one may have.
fn replace(unfinished: &Path, finished: &Path) -> io::Result<()> {
    if finished.exists() {
        std::fs::remove_dir_all(finished)?;
    }
    std::fs::rename(unfinished, finished)
}

/// A folder that is being written.
struct Writing<'a> {
    dir: &'a Path,
    bytes: u64,
    pace: Pace<'a>,
}

impl Writing<'_> {
    fn all(
        &mut self,
        capture: &Capture,
        history: u64,
        stores: &Stores,
        meanwhile: &DeletedMeanwhile,
    ) -> Result<(), SnapshotError> {
        // One that a crash left.
        let _ = std::fs::remove_dir_all(self.dir);
        std::fs::create_dir(self.dir).map_err(|source| SnapshotError::of(self.dir, source))?;
        let position = capture.position();
        for shard in 0..stores.graph.shards() {
            self.file(&format!("graph-{shard:05}"), |put| stores.graph.write_shard(shard, position, put))?;
        }
        self.file("names", |put| stores.keys.write_names(capture.nodes, put))?;
        self.file("node-rows", |put| stores.node_features.write_rows(capture.nodes as u64, put))?;
        self.file("edge-rows", |put| stores.edge_features.write_rows(position.0, put))?;
        // Last: what was deleted until here is left out of what was written until here, and what was released until
        // here may be missing. A deletion that is under way is noted when it ends.
        stores.graph.wait_for_batch();
        let mut gone: Vec<u64> = meanwhile.end().into_iter().map(|edge| edge.0).collect();
        gone.sort_unstable();
        self.file("index", |put| {
            let mut bytes = Vec::new();
            write_u64(&mut bytes, history)?;
            write_u64(&mut bytes, stores.graph.shards() as u64)?;
            dimensions(stores).into_iter().try_for_each(|dimension| write_u64(&mut bytes, dimension))?;
            write_table(&mut bytes, &gone)?;
            with_released(capture, stores).write(&mut bytes)?;
            put(&bytes)
        })?;
        let synced = File::open(self.dir).and_then(|folder| folder.sync_all());
        synced.map_err(|source| SnapshotError::of(self.dir, source))
    }

    /// Writes one file of the parts that `write` puts.
    fn file(
        &mut self,
        name: &str,
        write: impl FnOnce(&mut dyn FnMut(&[u8]) -> io::Result<()>) -> io::Result<()>,
    ) -> Result<(), SnapshotError> {
        let path = self.dir.join(name);
        let written = Parts::create(&path, self.pace).and_then(|mut parts| {
            let before = self.bytes;
            write(&mut |part: &[u8]| {
                parts.put(part)?;
                self.bytes = before + parts.bytes;
                self.go_on()
            })?;
            self.bytes = before + parts.finish()?;
            Ok(())
        });
        written.map_err(|source| SnapshotError::of(&path, source))
    }

    /// An error if the writing is to stop.
    fn go_on(&self) -> io::Result<()> {
        match self.pace.stop.load(Ordering::Acquire) {
            true => Err(Error::new(ErrorKind::Interrupted, "the daemon stops")),
            false => Ok(()),
        }
    }
}

/// Values of a row of a node and of an edge.
fn dimensions(stores: &Stores) -> [u64; 2] {
    [&stores.node_features, &stores.edge_features].map(|rows| rows.dimension() as u64)
}

/// The capture with what may have been released since.
fn with_released(capture: &Capture, stores: &Stores) -> Capture {
    let mut capture = capture.clone();
    let (since, first) = (stores.graph.released_before(), EdgeId(stores.edge_features.first()));
    capture.graph.released_before = capture.graph.released_before.max(since);
    capture.released.since = capture.released.since.max(since);
    capture.released.first = capture.released.first.max(first);
    capture
}

/// The description of a snapshot.
#[derive(Debug)]
pub struct SnapshotHead {
    dir: PathBuf,
    /// The small part of the index.
    pub capture: Capture,
    /// Identifies the log up to the snapshot's position.
    pub history: u64,
    /// Files of the graph.
    shards: usize,
    dimensions: [u64; 2],
    /// Edges that were deleted while it was written.
    gone: HashSet<EdgeId>,
}

/// Reads the description of the snapshot in the folder `dir`; its clocks get these rules but for the correction.
///
/// # Errors
/// The description cannot be read or is damaged.
pub fn open(dir: &Path, rules: ClockRules) -> Result<SnapshotHead, SnapshotError> {
    let path = dir.join("index");
    let mut bytes = Vec::new();
    let read = for_each_part(&path, |part| {
        bytes.extend_from_slice(part);
        Ok(())
    });
    let parsed = read.and_then(|()| {
        let mut input = &bytes[..];
        let (history, shards) = (read_u64(&mut input)?, read_u64(&mut input)?);
        let dimensions = [read_u64(&mut input)?, read_u64(&mut input)?];
        let gone: Vec<u64> = read_table(&mut input)?;
        let capture = Capture::read(&mut input, rules)?;
        let gone = gone.into_iter().map(EdgeId).collect();
        let shards = usize::try_from(shards).ok().filter(|&shards| shards <= 1 << 16);
        let shards =
            shards.ok_or_else(|| Error::new(ErrorKind::InvalidData, "impossible number of shards"))?;
        Ok(SnapshotHead { dir: dir.to_owned(), capture, history, shards, dimensions, gone })
    });
    parsed.map_err(|source| SnapshotError::of(&path, source))
}

impl SnapshotHead {
    /// The folder.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.dir
    }

    /// Values of a row of a node and of an edge.
    #[must_use]
    pub fn row_dimensions(&self) -> [u64; 2] {
        self.dimensions
    }

    /// Whether these stores have rows as long as those of the snapshot.
    #[must_use]
    pub fn fits(&self, stores: &Stores) -> bool {
        self.dimensions == dimensions(stores)
    }

    /// Names of the files besides the description, the longest to load first.
    fn files(&self) -> Vec<String> {
        let others = ["names", "edge-rows", "node-rows"].map(str::to_owned);
        others.into_iter().chain((0..self.shards).map(|shard| format!("graph-{shard:05}"))).collect()
    }

    /// Reads every file through, so that a damaged snapshot is found before something relies on it.
    ///
    /// # Errors
    /// A file cannot be read or is damaged.
    pub fn verify(&self) -> Result<(), SnapshotError> {
        self.verify_until(&AtomicBool::new(false))
    }

    /// The same, but ends with an error when `stop` is set.
    ///
    /// # Errors
    /// As [`verify`](Self::verify), and when it was stopped.
    pub fn verify_until(&self, stop: &AtomicBool) -> Result<(), SnapshotError> {
        let proceed = || match stop.load(Ordering::Acquire) {
            true => Err(Error::new(ErrorKind::Interrupted, "the daemon stops")),
            false => Ok(()),
        };
        self.files().par_iter().with_max_len(1).try_for_each(|name| {
            let path = self.dir.join(name);
            for_each_part(&path, |_| proceed()).map_err(|source| SnapshotError::of(&path, source))
        })
    }

    /// Loads the snapshot into an empty index, all its files at a time. A part of a file is used when it is known to be
    /// whole.
    ///
    /// # Errors
    /// A file cannot be read or is damaged, or does not fit the settings. The index is useless then.
    pub fn load(&self, index: &mut Index) -> Result<(), SnapshotError> {
        let (stores, position) = (&index.stores, self.capture.position());
        let nodes = self.capture.nodes as u64;
        self.files().par_iter().with_max_len(1).try_for_each(|name| {
            let path = self.dir.join(name);
            let read = match name.as_str() {
                "names" => for_each_part(&path, |part| stores.keys.restore_names(part)),
                "node-rows" => for_each_part(&path, |part| stores.node_features.restore_rows(part, nodes)),
                "edge-rows" => {
                    for_each_part(&path, |part| stores.edge_features.restore_rows(part, position.0))
                }
                _ => for_each_part(&path, |part| stores.graph.restore_pieces(part, position, &self.gone)),
            };
            read.map_err(|source| SnapshotError::of(&path, source))
        })?;
        if stores.keys.len() != self.capture.nodes {
            let detail = format!("{} names in place of {}", stores.keys.len(), self.capture.nodes);
            return Err(SnapshotError::Damaged { path: self.dir.join("names"), detail });
        }
        self.gone.iter().for_each(|edge| stores.edge_features.clear(edge.0));
        stores.edge_features.release_below(self.capture.released.first.0);
        stores.graph.restored(&self.capture.graph, self.gone.len() as u64);
        index.take_capture(&self.capture);
        Ok(())
    }
}
