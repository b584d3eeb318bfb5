//! Makes a backup of an image: sends the chunks that the repository lacks, then the manifest.

use std::collections::HashMap;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result, ensure};
use chrono::DateTime;
use futures_util::{StreamExt, TryStreamExt};

use super::image::{Image, ImageFile};
use super::manifest::{CHUNK_BYTES, ChunkName, FileEntry, Manifest};
use super::repository::Repository;
use super::{PARALLEL, Progress};
use crate::daemon::checkpoints::unix_ms;

/// How a backup is made.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pace {
    /// Bytes that are read a second at most; 0: as many as there are.
    pub bytes_per_second_max: u64,
}

/// A backup that was made.
#[derive(Clone, Debug)]
pub struct Created {
    /// What it holds.
    pub manifest: Manifest,
    /// What was done for it.
    pub progress: Progress,
}

/// Makes a backup and returns when all of it is stored.
///
/// # Errors
/// A file cannot be read, or the repository refuses. What was sent by then is not sent again the next time.
pub async fn create(
    image: &Image,
    repository: &Repository,
    pace: Pace,
    report: &(dyn Fn(&Progress) + Sync),
) -> Result<Created> {
    let created_unix_ms = unix_ms(SystemTime::now());
    let id = identify(created_unix_ms)?;
    // Before the look at what is there, so that nobody removes it.
    repository.begin(&id).await?;
    let known = repository.chunks().await?;
    let before = files_before(repository).await;
    let mut sending = Sending { repository, before, known, pace, begun: Instant::now(), read: 0, report };
    let mut manifest = Manifest::new(id, created_unix_ms);
    let bytes_total = image.files.iter().map(|file| file.bytes).sum();
    let mut progress = Progress { bytes_total, ..Progress::default() };
    for file in &image.files {
        manifest.files.push(sending.file(file, &mut progress).await?);
    }
    manifest.bytes = bytes_total;
    (manifest.log_first_position, manifest.log_end_position) = (image.log_first.0, image.log_end.0);
    manifest.snapshot_position = image.snapshot.map(|position| position.0);
    manifest.checkpoint_position = image.checkpoint.map(|position| position.0);
    repository.finish(&manifest).await?;
    hold_complete(repository, &manifest).await?;
    Ok(Created { manifest, progress })
}

/// An identity that follows from the time, so that identities sort as times do.
fn identify(unix_ms: i64) -> Result<String> {
    let time = DateTime::from_timestamp_millis(unix_ms).context("the clock of this machine is wrong")?;
    Ok(time.format("%Y%m%dT%H%M%S%.3fZ").to_string())
}

/// The files of the newest backup by their paths. One that cannot be read only saves no work.
async fn files_before(repository: &Repository) -> HashMap<String, FileEntry> {
    let newest = match repository.list().await {
        Ok(all) if all.is_empty() => return HashMap::new(),
        _ => repository.manifest(None).await,
    };
    match newest {
        Ok(manifest) => manifest.files.into_iter().map(|file| (file.path.clone(), file)).collect(),
        Err(error) => {
            tracing::warn!(
                error = format!("{error:#}"),
                "the newest backup cannot be read; all files are read anew"
            );
            HashMap::new()
        }
    }
}

/// An error if a chunk of the backup is not there, because somebody removed it meanwhile.
async fn hold_complete(repository: &Repository, manifest: &Manifest) -> Result<()> {
    let found = repository.chunks().await?;
    let is_there = |chunk: &ChunkName| found.contains_key(chunk);
    if !manifest.files.iter().flat_map(|file| &file.chunks).all(is_there) {
        repository.forget(&manifest.id).await?;
        ensure!(false, "{repository}: chunks were removed while the backup was made; make it again");
    }
    Ok(())
}

struct Sending<'a> {
    repository: &'a Repository,
    /// Files of the newest backup.
    before: HashMap<String, FileEntry>,
    /// The chunks that are there, with their lengths.
    known: HashMap<ChunkName, u64>,
    pace: Pace,
    begun: Instant,
    /// Bytes read of the files before.
    read: u64,
    report: &'a (dyn Fn(&Progress) + Sync),
}

impl Sending<'_> {
    async fn file(&mut self, file: &ImageFile, progress: &mut Progress) -> Result<FileEntry> {
        let chunks = match self.unchanged(file) {
            Some(chunks) => {
                progress.bytes_done += file.bytes;
                chunks
            }
            None => self.chunks(file, progress).await?,
        };
        (self.report)(progress);
        let modified_unix_ns = file.modified_unix_ns;
        Ok(FileEntry { path: file.path.clone(), bytes: file.bytes, modified_unix_ns, chunks })
    }

    /// The chunks of a file that was not changed since the newest backup, and which need not be read.
    fn unchanged(&self, file: &ImageFile) -> Option<Vec<ChunkName>> {
        let before = self.before.get(&file.path)?;
        let is_same = file.modified_unix_ns.is_some()
            && (before.bytes, before.modified_unix_ns) == (file.bytes, file.modified_unix_ns)
            && before.chunks.iter().all(|chunk| self.known.contains_key(chunk));
        is_same.then(|| before.chunks.clone())
    }

    /// Reads a file and sends what of it is not there.
    async fn chunks(&mut self, file: &ImageFile, progress: &mut Progress) -> Result<Vec<ChunkName>> {
        let (reader, known, repository) = (file.reader(), &self.known, self.repository);
        let (begun, read, pace) = (self.begun, self.read, self.pace.bytes_per_second_max);
        let one = |number: u64| {
            let reader = reader.clone();
            async move {
                pause(begun, read + number * CHUNK_BYTES, pace).await;
                let read = tokio::task::spawn_blocking(move || {
                    reader.read(number).map(|bytes| (ChunkName::of(&bytes), bytes))
                });
                let (name, bytes) =
                    read.await.context("a thread ended")?.with_context(|| file.path.clone())?;
                let length = bytes.len() as u64;
                let is_there = known.get(&name) == Some(&length);
                if !is_there {
                    repository.put_chunk(&name, bytes).await?;
                }
                anyhow::Ok((name, length, !is_there))
            }
        };
        let mut sent =
            futures_util::stream::iter(0..file.bytes.div_ceil(CHUNK_BYTES)).map(one).buffered(PARALLEL);
        let mut names = Vec::new();
        while let Some((name, length, is_new)) = sent.try_next().await? {
            progress.bytes_done += length;
            progress.bytes_sent += if is_new { length } else { 0 };
            (self.report)(progress);
            names.push(name);
        }
        self.read += file.bytes;
        Ok(names)
    }
}

/// Waits until `bytes` were due.
async fn pause(begun: Instant, bytes: u64, bytes_per_second_max: u64) {
    if bytes_per_second_max > 0 {
        #[allow(clippy::cast_precision_loss)]
        let due = Duration::from_secs_f64(bytes as f64 / bytes_per_second_max as f64);
        tokio::time::sleep(due.saturating_sub(begun.elapsed())).await;
    }
}
