//! The manifest of a backup: its files, each as a list of chunks, and a digest over all of it. What is read from a
//! repository is not trusted: a path never leads out of a data directory, and numbers agree with one another.

use std::fmt::Write as _;

use anyhow::{Context, Result, ensure};
use ring::digest::{SHA256, digest};
use serde::{Deserialize, Serialize};

use crate::log;

/// The only version of the format.
const FORMAT: u32 = 1;

/// Length of a chunk, bytes; only the last one of a file is shorter.
pub const CHUNK_BYTES: u64 = 16 << 20;

/// Longest manifest that is read, bytes.
pub(super) const MANIFEST_BYTES_MAX: u64 = 1 << 30;

/// The folders of a data directory that a backup has files of.
pub(super) const FOLDERS: [&str; 4] = ["log", "snapshots", "checkpoints", "dead-letters"];

/// The catalog's file name.
pub(super) const CATALOG: &str = "catalog.sqlite";

/// SHA-256 of a chunk, in 64 lowercase hexadecimal digits.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ChunkName(String);

impl ChunkName {
    /// The name of a chunk of these bytes.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        let digest = digest(&SHA256, bytes);
        let mut name = String::with_capacity(64);
        for byte in digest.as_ref() {
            // A string takes everything.
            let _ = write!(name, "{byte:02x}");
        }
        Self(name)
    }

    /// A name as it stands in a manifest or a repository.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        (name.len() == 64 && name.bytes().all(is_digit)).then(|| Self(name.to_owned()))
    }

    /// The digits.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// A file of a backup.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileEntry {
    /// Path inside the data directory, with `/`.
    pub path: String,
    /// Length, bytes.
    pub bytes: u64,
    /// When the file was changed last, nanoseconds since the Unix epoch; `None` where there is no such file.
    pub modified_unix_ns: Option<i128>,
    /// Its content.
    pub chunks: Vec<ChunkName>,
}

impl FileEntry {
    /// The chunks in order, each with its length, bytes.
    pub(super) fn numbered(&self) -> impl Iterator<Item = (u64, &ChunkName)> {
        let length = |number: u64| CHUNK_BYTES.min(self.bytes.saturating_sub(number * CHUNK_BYTES));
        (0..).zip(&self.chunks).map(move |(number, name)| (length(number), name))
    }
}

/// What a backup holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    format: u32,
    /// Identifies the backup; in order of time.
    pub id: String,
    /// Version of the program that made it.
    pub version: String,
    /// When it was made, milliseconds since the Unix epoch.
    pub created_unix_ms: i64,
    /// First position of the log.
    pub log_first_position: u64,
    /// One past the last position of the log.
    pub log_end_position: u64,
    /// Position of the newest snapshot, if there is one.
    pub snapshot_position: Option<u64>,
    /// Position of the newest checkpoint, if there is one.
    pub checkpoint_position: Option<u64>,
    /// Length of all files, bytes.
    pub bytes: u64,
    /// The files.
    pub files: Vec<FileEntry>,
}

/// A manifest as it is stored.
#[derive(Serialize, Deserialize)]
struct Stored {
    sha256: ChunkName,
    manifest: Box<serde_json::value::RawValue>,
}

/// What a manifest begins with, in every version.
#[derive(Deserialize)]
struct Version {
    format: u32,
}

impl Manifest {
    /// A manifest without files.
    #[must_use]
    pub fn new(id: String, created_unix_ms: i64) -> Self {
        Self {
            format: FORMAT,
            id,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            created_unix_ms,
            log_first_position: 0,
            log_end_position: 0,
            snapshot_position: None,
            checkpoint_position: None,
            bytes: 0,
            files: Vec::new(),
        }
    }

    /// Its bytes.
    ///
    /// # Errors
    /// Never in practice; it is plain data.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        let manifest = serde_json::value::to_raw_value(self)?;
        let sha256 = ChunkName::of(manifest.get().as_bytes());
        Ok(serde_json::to_vec(&Stored { sha256, manifest })?)
    }

    /// A manifest from its bytes.
    ///
    /// # Errors
    /// They are damaged, of a newer version, or name what no backup has.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        let stored: Stored = serde_json::from_slice(bytes).context("the manifest is damaged")?;
        let text = stored.manifest.get();
        ensure!(
            ChunkName::of(text.as_bytes()) == stored.sha256,
            "the manifest is damaged: its digest differs"
        );
        let Version { format } = serde_json::from_str(text).context("the manifest has no format")?;
        ensure!(
            format == FORMAT,
            "the manifest has format {format} and this version of evergraph knows {FORMAT}: use a newer one"
        );
        let manifest: Self = serde_json::from_str(text).context("the manifest is malformed")?;
        manifest.files.iter().try_for_each(check)?;
        let bytes = manifest.files.iter().try_fold(0_u64, |sum, file| sum.checked_add(file.bytes));
        ensure!(bytes == Some(manifest.bytes), "the manifest's length is not that of its files");
        Ok(manifest)
    }
}

/// Whether a file may be written into a data directory.
fn check(file: &FileEntry) -> Result<()> {
    let path = &file.path;
    let parts: Vec<&str> = path.split('/').collect();
    let is_plain = |part: &&str| {
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        !part.is_empty() && !part.starts_with('.') && part.bytes().all(is_name)
    };
    let is_known = match parts.as_slice() {
        [name] => *name == CATALOG,
        ["log", name] => log::is_file_of_log(name),
        ["snapshots", _, _] => true,
        [folder, _] => FOLDERS.contains(folder) && *folder != "snapshots",
        _ => false,
    };
    ensure!(
        is_known && parts.iter().all(is_plain),
        "the manifest names {path:?}, which no data directory has"
    );
    ensure!(
        file.chunks.len() as u64 == file.bytes.div_ceil(CHUNK_BYTES),
        "the manifest gives {path} {} bytes and {} chunks",
        file.bytes,
        file.chunks.len()
    );
    let is_name = |chunk: &ChunkName| ChunkName::parse(chunk.as_str()).is_some();
    ensure!(file.chunks.iter().all(is_name), "the manifest gives {path} a chunk without a name");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest(path: &str) -> Manifest {
        let mut manifest = Manifest::new("a".to_owned(), 7);
        let chunks = vec![ChunkName::of(b"abc")];
        manifest.files.push(FileEntry { path: path.to_owned(), bytes: 3, modified_unix_ns: Some(1), chunks });
        manifest.bytes = 3;
        manifest
    }

    #[test]
    fn a_manifest_comes_back_and_every_changed_byte_is_found() {
        let whole = manifest("log/00000000000000000000.log");
        let bytes = whole.to_bytes().unwrap();
        assert_eq!(Manifest::parse(&bytes).unwrap(), whole);
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 1;
            // The name of a key may change to one that is not read.
            assert!(Manifest::parse(&changed).is_err(), "byte {at}");
            assert!(Manifest::parse(&bytes[..at]).is_err(), "length {at}");
        }
    }

    #[test]
    fn a_path_never_leads_out_of_a_data_directory() {
        let known = [CATALOG, "log/DURABLE", "checkpoints/1.checkpoint", "snapshots/1.snapshot/names"];
        for path in known {
            Manifest::parse(&manifest(path).to_bytes().unwrap()).unwrap();
        }
        let others = [
            "/etc/passwd",
            "log/../x",
            "../x",
            "log/..",
            "log/x/y",
            "snapshots/x",
            "snapshots/../x",
            "x",
            "",
            "checkpoints/",
            "checkpoints/.hidden",
            "log/LOCK",
            "dead-letters/a b",
            "checkpoints/a\0b",
        ];
        for path in others {
            let error = Manifest::parse(&manifest(path).to_bytes().unwrap()).unwrap_err().to_string();
            assert!(error.contains("no data directory has"), "{path}: {error}");
        }
    }

    #[test]
    fn numbers_that_do_not_agree_are_refused() {
        let refused = |change: fn(&mut Manifest)| {
            let mut manifest = manifest(CATALOG);
            change(&mut manifest);
            Manifest::parse(&manifest.to_bytes().unwrap()).unwrap_err().to_string()
        };
        assert!(refused(|m| m.bytes = 4).contains("length"));
        assert!(refused(|m| m.files[0].bytes = CHUNK_BYTES + 1).contains("1 chunks"));
        assert!(
            refused(|m| m.files[0].chunks[0] = ChunkName("../../x".to_owned())).contains("without a name")
        );
        assert!(refused(|m| m.format = 2).contains("newer"));
    }
}
