//! What is copied of a data directory: files that fit together, held open, so that they stay as they are while the
//! daemon writes new ones and removes these.
//!
//! Segments of the log and dead letters are appended to, up to the length of now; all other files never change. The
//! order in which they are taken makes them fit:
//!
//! - The checkpoints, then the snapshots, then the log, which is so ahead of both.
//! - With retention, a checkpoint needs a snapshot that was written before it. The daemon removes that only after the
//!   next checkpoint. So if the checkpoints are still the same once all snapshots are open, the snapshots that they
//!   need are among them. If not, all is opened anew.
//! - Only then is anything read through, which takes long: the newest checkpoint and the snapshots that are intact are
//!   copied.
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
    /// A file of a data directory; `None` if it is not there.
    fn open(data: &Path, path: String) -> Result<Option<Self>> {
        let whole = data.join(&path);
        let (about, file) = match File::open(&whole).and_then(|file| Ok((file.metadata()?, file))) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            opened => opened.with_context(|| format!("cannot open {}", whole.display()))?,
        };
        let modified_unix_ns =
            Some(i128::from(about.mtime()) * 1_000_000_000 + i128::from(about.mtime_nsec()));
        let content = Content::File(Arc::new(file));
        Ok(Some(Self { path, bytes: about.len(), modified_unix_ns, content }))
    }

    fn made(path: String, bytes: Vec<u8>) -> Self {
        let length = bytes.len() as u64;
        Self { path, bytes: length, modified_unix_ns: None, content: Content::Bytes(bytes.into()) }
    }

    /// The checksum that ends the list of a checkpoint; `None` if it cannot be read.
    fn ending_checksum(&self) -> Option<u32> {
        let (Content::File(file), mut end) = (&self.content, [0; 4]) else { return None };
        file.read_exact_at(&mut end, self.bytes.checked_sub(4)?).ok()?;
        Some(u32::from_le_bytes(end))
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
        let [checkpoints, snapshots] = ["checkpoints", "snapshots"].map(|folder| data.join(folder));
        let listed = checkpoint_names(&checkpoints)?;
        let (Some(saved), Some(indexes)) =
            (open_all(data, "checkpoints", &listed)?, open_snapshots(data, &snapshots)?)
        else {
            return Ok(None);
        };
        if checkpoint_names(&checkpoints)? != listed {
            return Ok(None);
        }
        let mut files = Vec::new();
        let Some(checkpoint) = newest_intact(saved, data, &mut files) else { return Ok(None) };
        // One that cannot be read may be on its way out, after a newer checkpoint.
        let is_same = || checkpoint_names(&checkpoints).is_ok_and(|names| names == listed);
        let Some(snapshots) = intact(indexes, (&snapshots, &is_same), &mut files) else { return Ok(None) };
        let catalog = Catalog::open_read_only(&data.join(CATALOG))?.copy()?;
        files.push(ImageFile::made(CATALOG.to_owned(), catalog));
        open_dead_letters(data, &mut files)?;
        let log = log::files(&data.join("log"))?;
        let first = snapshots.iter().min().copied();
        let needed = first.zip(checkpoint).map(|(snapshot, checkpoint)| snapshot.min(checkpoint));
        let wanted = if whole_log { &log.segments[..] } else { log.from(needed.unwrap_or_default()) };
        for segment in wanted {
            // What was written since does not need one that was cut off since.
            let file = ImageFile::open(data, format!("log/{}", segment.name))?;
            let Some(file) = file else { return Ok(None) };
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

/// Names of the checkpoints, the newest first: their names sort as positions do.
fn checkpoint_names(folder: &Path) -> Result<Vec<String>> {
    let mut names = names_in(folder)?;
    names.retain(|name| name.ends_with(checkpoint::SUFFIX));
    names.reverse();
    Ok(names)
}

/// These files of a folder; `None` if one went meanwhile.
fn open_all(data: &Path, folder: &str, names: &[String]) -> Result<Option<Vec<ImageFile>>> {
    names.iter().map(|name| ImageFile::open(data, format!("{folder}/{name}"))).collect()
}

/// A snapshot with its files.
type OpenSnapshot = (EdgeId, Vec<ImageFile>);

/// The snapshots, the newest first; `None` if one went meanwhile.
fn open_snapshots(data: &Path, folder: &Path) -> Result<Option<Vec<OpenSnapshot>>> {
    let mut opened = Vec::new();
    if !folder.is_dir() {
        return Ok(Some(opened));
    }
    let unreadable = || format!("cannot read the folder {}", folder.display());
    for position in snapshot::positions(folder).with_context(unreadable)?.into_iter().rev() {
        let name = snapshot::name(position);
        let names = match names_in(&folder.join(&name)) {
            Err(_) if !folder.join(&name).exists() => return Ok(None),
            names => names?,
        };
        let Some(files) = open_all(data, &format!("snapshots/{name}"), &names)? else { return Ok(None) };
        opened.push((position, files));
    }
    Ok(Some(opened))
}

/// Position of the newest intact checkpoint, which becomes one of `files`; `Some(None)` if there is none, and `None` if
/// one went or was replaced meanwhile.
#[allow(clippy::option_option, reason = "without a checkpoint there is a backup, too")]
fn newest_intact(opened: Vec<ImageFile>, data: &Path, files: &mut Vec<ImageFile>) -> Option<Option<EdgeId>> {
    for file in opened {
        let path = data.join(&file.path);
        match checkpoint::open(&path) {
            Ok(found) => {
                // Another took its place since it was opened, with pages of its own.
                if file.ending_checksum() != Some(found.file.crc32c) {
                    return None;
                }
                files.push(file);
                for name in &found.file.pages {
                    // Pages that went did so with a checkpoint that went.
                    files.push(ImageFile::open(data, format!("checkpoints/{name}")).ok()??);
                }
                return Some(Some(found.file.head.position));
            }
            Err(_) if !path.exists() => return None,
            Err(error) => tracing::warn!(%error, "the checkpoint is left out of the backup"),
        }
    }
    Some(None)
}

/// Positions of the intact snapshots that are needed; their files become some of `files`. `None` if one went meanwhile,
/// or may be about to because the checkpoints are not the same any more.
fn intact(
    opened: Vec<OpenSnapshot>,
    (folder, is_same): (&Path, &dyn Fn() -> bool),
    files: &mut Vec<ImageFile>,
) -> Option<Vec<EdgeId>> {
    let mut taken = Vec::new();
    for (position, opened) in opened {
        let path = folder.join(snapshot::name(position));
        let read = snapshot::open(&path, ClockRules::default());
        match read.and_then(|head| head.verify().map(|()| head)) {
            Ok(head) => {
                files.extend(opened);
                taken.push(position);
                // Nothing was released: it fits every checkpoint, and no older one is needed.
                let RetentionBounds { since, first, .. } = head.capture.released;
                let nothing = RetentionBounds::default();
                if (since, first) == (nothing.since, nothing.first) {
                    break;
                }
            }
            Err(_) if !path.exists() || !is_same() => return None,
            Err(error) => tracing::warn!(%error, "the snapshot is left out of the backup"),
        }
    }
    Some(taken)
}

fn open_dead_letters(data: &Path, files: &mut Vec<ImageFile>) -> Result<()> {
    let folder = data.join("dead-letters");
    if folder.is_dir() {
        // The older files are renamed, and the oldest removed, while one looks.
        for name in names_in(&folder)? {
            files.extend(ImageFile::open(data, format!("dead-letters/{name}"))?);
        }
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

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;
    use crate::device::disk::Pace;
    use crate::learner::checkpoint::CheckpointHead;

    #[test]
    fn a_checkpoint_that_was_replaced_after_it_was_opened_is_not_taken() {
        let data = tempfile::tempdir().unwrap();
        let folder = data.path().join("checkpoints");
        std::fs::create_dir(&folder).unwrap();
        let head = CheckpointHead { position: EdgeId(7), ..CheckpointHead::default() };
        let write = |payload: &[u8]| {
            checkpoint::write(&folder, head, Pace::unlimited(), |sink| sink.write_all(payload)).unwrap();
        };
        let open = || {
            let names = checkpoint_names(&folder).unwrap();
            open_all(data.path(), "checkpoints", &names).unwrap().unwrap()
        };
        write(b"payload");
        let (opened, mut files) = (open(), Vec::new());
        write(b"another");
        assert_eq!(newest_intact(opened, data.path(), &mut files), None);
        assert_eq!(newest_intact(open(), data.path(), &mut files), Some(Some(EdgeId(7))));
        assert_eq!(files.len(), 2, "the list and its pages");
    }
}
