//! What is copied of a data directory: files that fit together, held open, so that they stay as they are while the
//! daemon writes new ones and removes these.
//!
//! Segments of the log and dead letters are appended to, up to the length of now; all other files never change. The
//! order in which they are taken makes them fit:
//!
//! - The newest checkpoint, then the snapshots, then the log, which is so ahead of both.
//! - With retention, a checkpoint needs a snapshot that was written before it. The daemon removes that only after the
//!   next checkpoint. So if the checkpoint is still the newest once all snapshots are open, the one that it needs is
//!   among them. If not, all is taken anew.
//!
//! Of the log, what lies before both the checkpoint and the snapshots is left out, unless all of it is wanted.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::manifest::{CATALOG, CHUNK_BYTES};
use crate::appender::snapshot;
use crate::catalog::Catalog;
use crate::event::{ClockRules, EdgeId};
use crate::graph::RetentionBounds;
use crate::learner::checkpoint;
use crate::log;

/// How often files are taken anew that did not fit together.
const TRIES: usize = 20;

/// A file of an image.
pub struct ImageFile {
    /// Path inside the data directory, with `/`.
    pub path: String,
    /// Length of what is copied, bytes.
    pub bytes: u64,
    /// When it was changed last, nanoseconds since the Unix epoch.
    pub modified_unix_ns: Option<i128>,
    content: Content,
}

#[derive(Clone)]
enum Content {
    File(Arc<File>),
    Bytes(Arc<[u8]>),
}

/// Reads chunks of a file, from any thread.
#[derive(Clone)]
pub(super) struct ChunkReader {
    content: Content,
    bytes: u64,
}

impl ChunkReader {
    /// The bytes of the chunk of this number.
    pub fn read(&self, number: u64) -> io::Result<Vec<u8>> {
        let offset = number * CHUNK_BYTES;
        let length = usize::try_from(CHUNK_BYTES.min(self.bytes.saturating_sub(offset))).unwrap_or(0);
        match &self.content {
            Content::File(file) => {
                let mut bytes = vec![0; length];
                file.read_exact_at(&mut bytes, offset)?;
                Ok(bytes)
            }
            Content::Bytes(bytes) => {
                let from = usize::try_from(offset).unwrap_or(usize::MAX);
                Ok(bytes.get(from..).and_then(|rest| rest.get(..length)).unwrap_or_default().to_vec())
            }
        }
    }
}

impl ImageFile {
    fn open(data: &Path, path: String) -> Result<Self> {
        let whole = data.join(&path);
        let opened = File::open(&whole).and_then(|file| Ok((file.metadata()?, file)));
        let (about, file) = opened.with_context(|| format!("cannot open {}", whole.display()))?;
        let modified_unix_ns =
            Some(i128::from(about.mtime()) * 1_000_000_000 + i128::from(about.mtime_nsec()));
        Ok(Self { path, bytes: about.len(), modified_unix_ns, content: Content::File(Arc::new(file)) })
    }

    fn made(path: String, bytes: Vec<u8>) -> Self {
        let content = Content::Bytes(bytes.into());
        let bytes = match &content {
            Content::Bytes(bytes) => bytes.len() as u64,
            Content::File(_) => 0,
        };
        Self { path, bytes, modified_unix_ns: None, content }
    }

    pub(super) fn reader(&self) -> ChunkReader {
        ChunkReader { content: self.content.clone(), bytes: self.bytes }
    }
}

/// Files of a data directory that fit together.
pub struct Image {
    /// The files.
    pub files: Vec<ImageFile>,
    /// Position of the first record of the log.
    pub log_first: EdgeId,
    /// One past the last position of the log.
    pub log_end: EdgeId,
    /// Position of the newest snapshot.
    pub snapshot: Option<EdgeId>,
    /// Position of the checkpoint.
    pub checkpoint: Option<EdgeId>,
}

impl Image {
    /// The image of a data directory; all of the log is in it if `whole_log` is set. Reads the snapshots, the
    /// checkpoint and the last segment through, so that nothing damaged is copied unnoticed.
    ///
    /// # Errors
    /// It is no data directory, or what is in it cannot be read or is damaged.
    pub fn take(data: &Path, whole_log: bool) -> Result<Self> {
        ensure!(
            data.join(CATALOG).exists() && data.join("log").is_dir(),
            "{} is not a data directory; --data must be the daemon's data.dir",
            data.display()
        );
        allow_many_files();
        for _ in 0..TRIES {
            if let Some(image) = Self::try_take(data, whole_log)? {
                return Ok(image);
            }
        }
        bail!("the files of {} changed {TRIES} times while they were opened; try again", data.display())
    }

    fn try_take(data: &Path, whole_log: bool) -> Result<Option<Self>> {
        let mut files = Vec::new();
        let checkpoint = newest_checkpoint(data, &mut files)?;
        let Some(snapshots) = open_snapshots(data, &mut files)? else { return Ok(None) };
        if newest_checkpoint(data, &mut Vec::new())? != checkpoint {
            return Ok(None);
        }
        let catalog = Catalog::open_read_only(&data.join(CATALOG))?.copy()?;
        files.push(ImageFile::made(CATALOG.to_owned(), catalog));
        open_dead_letters(data, &mut files)?;
        let log = log::files(&data.join("log"))?;
        let first = snapshots.iter().min().copied();
        let needed = first.zip(checkpoint).map(|(snapshot, checkpoint)| snapshot.min(checkpoint));
        let wanted = if whole_log { &log.segments[..] } else { log.from(needed.unwrap_or_default()) };
        for segment in wanted {
            // One that was cut off since would have been needed.
            let Ok(file) = ImageFile::open(data, format!("log/{}", segment.name)) else { return Ok(None) };
            files.push(ImageFile { bytes: segment.bytes, ..file });
        }
        files.push(ImageFile::made(format!("log/{}", log::MARK_NAME), log.mark.clone()));
        let log_first = wanted.first().map_or(log.end, |segment| segment.first);
        let covered = first.map_or(log_first == EdgeId(0), |first| log_first <= first);
        ensure!(covered, "the log begins at position {log_first} and no intact snapshot reaches there");
        let snapshot = snapshots.iter().max().copied();
        Ok(Some(Self { files, log_first, log_end: log.end, snapshot, checkpoint }))
    }
}

/// Position of the newest intact checkpoint, which becomes one of `files`.
fn newest_checkpoint(data: &Path, files: &mut Vec<ImageFile>) -> Result<Option<EdgeId>> {
    let folder = data.join("checkpoints");
    let mut names = names_in(&folder)?;
    names.retain(|name| name.ends_with(checkpoint::SUFFIX));
    // Their names sort as positions do.
    names.sort_unstable_by(|a, b| b.cmp(a));
    for name in names {
        let Ok(file) = ImageFile::open(data, format!("checkpoints/{name}")) else { continue };
        match checkpoint::open(&folder.join(&name)) {
            Ok(found) => {
                files.push(file);
                return Ok(Some(found.file.head.position));
            }
            Err(error) => tracing::warn!(%error, "the checkpoint is left out of the backup"),
        }
    }
    Ok(None)
}

/// Positions of the intact snapshots that are needed; their files become some of `files`. `None` if one went meanwhile.
fn open_snapshots(data: &Path, files: &mut Vec<ImageFile>) -> Result<Option<Vec<EdgeId>>> {
    let folder = data.join("snapshots");
    let mut taken = Vec::new();
    if !folder.is_dir() {
        return Ok(Some(taken));
    }
    let all = snapshot::positions(&folder)
        .with_context(|| format!("cannot read the folder {}", folder.display()))?;
    for position in all.into_iter().rev() {
        let name = snapshot::name(position);
        let path = folder.join(&name);
        let opened = names_in(&path).and_then(|names| {
            let open = |file: String| ImageFile::open(data, format!("snapshots/{name}/{file}"));
            names.into_iter().map(open).collect::<Result<Vec<_>>>()
        });
        let verified =
            snapshot::open(&path, ClockRules::default()).and_then(|head| head.verify().map(|()| head));
        match (opened, verified) {
            (Ok(opened), Ok(head)) => {
                files.extend(opened);
                taken.push(position);
                // Nothing was released: it fits every checkpoint, and no older one is needed.
                let RetentionBounds { since, first, .. } = head.capture.released;
                let nothing = RetentionBounds::default();
                if (since, first) == (nothing.since, nothing.first) {
                    break;
                }
            }
            _ if !path.exists() => return Ok(None),
            (Err(error), _) => return Err(error),
            (_, Err(error)) => tracing::warn!(%error, "the snapshot is left out of the backup"),
        }
    }
    Ok(Some(taken))
}

fn open_dead_letters(data: &Path, files: &mut Vec<ImageFile>) -> Result<()> {
    let folder = data.join("dead-letters");
    if folder.is_dir() {
        // The older files are renamed, and the oldest removed, while one looks.
        let opened =
            names_in(&folder)?.into_iter().map(|name| ImageFile::open(data, format!("dead-letters/{name}")));
        files.extend(opened.filter_map(Result::ok));
    }
    Ok(())
}

/// Names of the plain files in a folder.
fn names_in(folder: &Path) -> Result<Vec<String>> {
    let whose = || format!("cannot read the folder {}", folder.display());
    let mut names = Vec::new();
    for entry in std::fs::read_dir(folder).with_context(whose)? {
        let entry = entry.with_context(whose)?;
        if entry.file_type().with_context(whose)?.is_file() {
            names.extend(entry.file_name().to_str().map(str::to_owned));
        }
    }
    names.sort_unstable();
    Ok(names)
}

/// A long log has more segments than a process may open by default.
fn allow_many_files() {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    // Where that is refused, opening says what is missing.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
}
