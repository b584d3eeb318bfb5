//! Writes a backup into an empty data directory, and verifies backups in their place.
//!
//! A file [`RESTORING`] stands in the directory from the first byte to the last, and no daemon starts on it.

use std::collections::{BTreeSet, HashSet};
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use futures_util::{StreamExt, TryStreamExt};

use super::manifest::{CATALOG, ChunkName, FOLDERS, Manifest};
use super::repository::Repository;
use super::{PARALLEL, Progress};
use crate::catalog::Catalog;

/// Name of the file that says that a restore is not finished.
pub const RESTORING: &str = "RESTORING";

/// An error if a restore into `data` was not finished.
///
/// # Errors
/// It was not.
pub fn hold_finished(data: &Path) -> Result<()> {
    ensure!(
        !data.join(RESTORING).exists(),
        "a restore into {} was not finished: run `evergraph backup restore` again",
        data.display()
    );
    Ok(())
}

/// Reads the chunks of a backup through and compares their digests; those in `verified` were, and all are afterwards.
///
/// # Errors
/// One of them is missing or damaged.
pub async fn verify(
    repository: &Repository,
    manifest: &Manifest,
    verified: &mut HashSet<ChunkName>,
    report: &(dyn Fn(&Progress) + Sync),
) -> Result<()> {
    let mut progress = Progress { bytes_total: manifest.bytes, ..Progress::default() };
    for file in &manifest.files {
        let is_new = |(_, name): &(u64, &ChunkName)| !verified.contains(name);
        let wanted: Vec<_> = file.numbered().filter(is_new).collect();
        let mut chunks = futures_util::stream::iter(wanted)
            .map(|(length, name)| repository.chunk(name, length))
            .buffered(PARALLEL);
        while let Some(bytes) = chunks.try_next().await.with_context(|| file.path.clone())? {
            progress.bytes_done += bytes.len() as u64;
            report(&progress);
        }
        verified.extend(file.chunks.iter().cloned());
    }
    Ok(())
}

/// Writes a backup into the folder `data`, which must be empty or not there. What a restore that was not finished has
/// left there is removed first.
///
/// # Errors
/// The folder has other content or too little room, or a chunk is missing or damaged.
pub async fn restore(
    repository: &Repository,
    manifest: &Manifest,
    data: &Path,
    report: &(dyn Fn(&Progress) + Sync),
) -> Result<()> {
    prepare(data, manifest.bytes)?;
    let mut progress = Progress { bytes_total: manifest.bytes, ..Progress::default() };
    let mut folders = BTreeSet::from([data.to_path_buf()]);
    for folder in FOLDERS {
        folders.insert(make(data.join(folder))?);
    }
    for entry in &manifest.files {
        let path = data.join(&entry.path);
        let whose = || format!("cannot write {}", path.display());
        if let Some(folder) = path.parent() {
            folders.insert(make(folder.to_path_buf())?);
        }
        let mut file = File::create_new(&path).with_context(whose)?;
        let mut chunks = futures_util::stream::iter(entry.numbered())
            .map(|(length, name)| repository.chunk(name, length))
            .buffered(PARALLEL);
        while let Some(bytes) = chunks.try_next().await.with_context(|| entry.path.clone())? {
            file.write_all(&bytes).with_context(whose)?;
            progress.bytes_done += bytes.len() as u64;
            report(&progress);
        }
        file.sync_all().with_context(whose)?;
    }
    forget_missing(data)?;
    folders.iter().try_for_each(|folder| sync(folder))?;
    std::fs::remove_file(data.join(RESTORING)).and_then(|()| sync_io(data)).context("cannot finish")
}

/// Makes the folder, empty but for the file that says what happens there.
fn prepare(data: &Path, bytes: u64) -> Result<()> {
    let whose = || format!("--data {}", data.display());
    std::fs::create_dir_all(data).with_context(whose)?;
    if data.join(RESTORING).exists() {
        for folder in FOLDERS {
            accept_missing(std::fs::remove_dir_all(data.join(folder))).with_context(whose)?;
        }
        for suffix in ["", "-wal", "-shm"] {
            accept_missing(std::fs::remove_file(data.join(format!("{CATALOG}{suffix}"))))
                .with_context(whose)?;
        }
    }
    for entry in std::fs::read_dir(data).with_context(whose)? {
        let name = entry.with_context(whose)?.file_name();
        // The file system's own.
        let is_ours = name == RESTORING || name == "lost+found";
        ensure!(is_ours, "{}: a backup is restored into an empty folder, and {name:?} is there", whose());
    }
    let disk = rustix::fs::statvfs(data).with_context(whose)?;
    let free = disk.f_bavail * disk.f_frsize;
    ensure!(free > bytes, "{}: the backup has {bytes} bytes and {free} are free", whose());
    File::create(data.join(RESTORING)).and_then(|file| file.sync_all()).with_context(whose)?;
    sync(data)
}

fn accept_missing(outcome: io::Result<()>) -> io::Result<()> {
    match outcome {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

fn make(folder: PathBuf) -> Result<PathBuf> {
    std::fs::create_dir_all(&folder)
        .with_context(|| format!("cannot make the folder {}", folder.display()))?;
    Ok(folder)
}

fn sync(folder: &Path) -> Result<()> {
    sync_io(folder).with_context(|| format!("cannot sync the folder {}", folder.display()))
}

fn sync_io(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

/// Takes the checkpoints that the backup does not have out of the catalog.
fn forget_missing(data: &Path) -> Result<()> {
    let catalog = Catalog::open(&data.join(CATALOG))?;
    for row in catalog.checkpoints()? {
        if !data.join("checkpoints").join(&row.file).exists() {
            catalog.forget_checkpoint(&row.file)?;
        }
    }
    Ok(())
}
