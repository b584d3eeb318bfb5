//! A repository of backups: a folder, or a prefix of a bucket on a service that speaks S3. Knows chunks and manifests
//! and not what they mean.
//!
//! ```text
//! backups/20261124T034606.123Z.json        a manifest; written last, so what has one is complete
//! backups/20261124T034606.123Z.unfinished  a backup that is being made, or that did not get to its end
//! chunks/ab/ab12…                          bytes, named by their SHA-256
//! ```

use std::collections::HashMap;
use std::fmt;
use std::path::Path as FilePath;
use std::sync::Arc;

use anyhow::{Context, Result, anyhow, bail, ensure};
use chrono::{DateTime, Utc};
use futures_util::{StreamExt, TryStreamExt};
use object_store::aws::AmazonS3Builder;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::prefix::PrefixStore;
use object_store::{ObjectStore, ObjectStoreExt, PutPayload};
use tokio_rustls::rustls::crypto::ring;

use super::manifest::{CHUNK_BYTES, ChunkName, MANIFEST_BYTES_MAX, Manifest};

const MANIFEST_SUFFIX: &str = ".json";
const UNFINISHED_SUFFIX: &str = ".unfinished";

/// Where backups are.
pub struct Repository {
    store: Arc<dyn ObjectStore>,
    url: String,
}

impl fmt::Display for Repository {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.url)
    }
}

impl Repository {
    /// The repository at `place`: a folder, or `s3://bucket/prefix` with what the environment says of the service
    /// (`AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`, `AWS_REGION`, `AWS_ENDPOINT_URL`, `AWS_ALLOW_HTTP`, or the
    /// identity of the machine or the pod). A folder that is not there is made if `make` is set.
    ///
    /// # Errors
    /// The place is of another kind, or the folder is not there or cannot be made.
    pub fn open(place: &str, make: bool) -> Result<Self> {
        let store: Arc<dyn ObjectStore> = match place.split_once("://") {
            Some(("s3", rest)) => s3(place, rest)?,
            Some((scheme, _)) => {
                bail!("{place}: {scheme}:// is not supported; write a folder or s3://bucket/prefix")
            }
            None => folder(FilePath::new(place), make)?,
        };
        Ok(Self { store, url: place.to_owned() })
    }

    /// The backups, the oldest first.
    ///
    /// # Errors
    /// The repository cannot be listed.
    pub async fn list(&self) -> Result<Vec<String>> {
        Ok(self.named(MANIFEST_SUFFIX).await?.into_iter().map(|(id, _)| id).collect())
    }

    /// The backups that are being made, or did not get to their end, and since when.
    pub(super) async fn unfinished(&self) -> Result<Vec<(String, DateTime<Utc>)>> {
        self.named(UNFINISHED_SUFFIX).await
    }

    async fn named(&self, suffix: &str) -> Result<Vec<(String, DateTime<Utc>)>> {
        let mut found: Vec<_> = self
            .store
            .list(Some(&Path::from("backups")))
            .try_filter_map(async |object| {
                let id = object.location.filename().and_then(|name| name.strip_suffix(suffix));
                Ok(id.map(|id| (id.to_owned(), object.last_modified)))
            })
            .try_collect()
            .await
            .map_err(|error| self.fail("the backups cannot be listed", error))?;
        found.sort_unstable();
        Ok(found)
    }

    /// The manifest of a backup, by default the newest.
    ///
    /// # Errors
    /// There is none, or it cannot be read or is damaged.
    pub async fn manifest(&self, id: Option<&str>) -> Result<Manifest> {
        let all = self.list().await?;
        let id = match id {
            Some(id) if all.iter().any(|known| known == id) => id,
            Some(id) => bail!("{self}: there is no backup {id}; `evergraph backup list` lists them"),
            None => all.last().with_context(|| format!("{self}: there is no backup"))?,
        };
        let path = manifest_path(id, MANIFEST_SUFFIX);
        let whose = || format!("{self}/{path}");
        let unreadable = |error| self.fail(path.as_ref(), error);
        let found = self.store.get(&path).await.map_err(unreadable)?;
        ensure!(found.meta.size <= MANIFEST_BYTES_MAX, "{}: too long for a manifest", whose());
        let manifest = Manifest::parse(&found.bytes().await.map_err(unreadable)?).with_context(whose)?;
        ensure!(manifest.id == id, "{}: it is the manifest of {}", whose(), manifest.id);
        Ok(manifest)
    }

    /// Says that a backup is being made.
    pub(super) async fn begin(&self, id: &str) -> Result<()> {
        self.put(manifest_path(id, UNFINISHED_SUFFIX), Vec::new()).await
    }

    /// Writes the manifest of a backup whose chunks are all there.
    pub(super) async fn finish(&self, manifest: &Manifest) -> Result<()> {
        self.put(manifest_path(&manifest.id, MANIFEST_SUFFIX), manifest.to_bytes()?).await?;
        self.forget_unfinished(&manifest.id).await
    }

    pub(super) async fn forget_unfinished(&self, id: &str) -> Result<()> {
        self.delete(vec![manifest_path(id, UNFINISHED_SUFFIX)]).await
    }

    /// Removes a backup; its chunks stay.
    pub(super) async fn forget(&self, id: &str) -> Result<()> {
        self.delete(vec![manifest_path(id, MANIFEST_SUFFIX)]).await
    }

    /// All chunks with their lengths, bytes.
    pub(super) async fn chunks(&self) -> Result<HashMap<ChunkName, u64>> {
        self.store
            .list(Some(&Path::from("chunks")))
            .try_filter_map(async |object| {
                let name = object.location.filename().and_then(ChunkName::parse);
                Ok(name.map(|name| (name, object.size)))
            })
            .try_collect()
            .await
            .map_err(|error| self.fail("the chunks cannot be listed", error))
    }

    pub(super) async fn put_chunk(&self, name: &ChunkName, bytes: Vec<u8>) -> Result<()> {
        self.put(chunk_path(name), bytes).await
    }

    /// The bytes of a chunk, which has `length` of them.
    pub(super) async fn chunk(&self, name: &ChunkName, length: u64) -> Result<Vec<u8>> {
        let path = chunk_path(name);
        let whose = || format!("{self}/{path}");
        let unreadable = |error| self.fail(path.as_ref(), error);
        let found = self.store.get(&path).await.map_err(unreadable)?;
        let found_length = found.meta.size;
        ensure!(
            found_length == length && length <= CHUNK_BYTES,
            "{}: {found_length} bytes where {length} are announced: it is damaged",
            whose()
        );
        let bytes = found.bytes().await.map_err(unreadable)?;
        let name = name.clone();
        let hashed = tokio::task::spawn_blocking(move || (ChunkName::of(&bytes) == name, bytes));
        let (is_whole, bytes) = hashed.await.context("a thread ended")?;
        ensure!(is_whole, "{}: its SHA-256 differs: it is damaged", whose());
        Ok(bytes.into())
    }

    pub(super) async fn remove_chunks(&self, names: &[ChunkName]) -> Result<()> {
        self.delete(names.iter().map(chunk_path).collect()).await
    }

    /// An error of the service, whose message holds its causes already.
    fn fail(&self, what: &str, error: object_store::Error) -> anyhow::Error {
        let is_anonymous = self.url.starts_with("s3://") && std::env::var_os("AWS_ACCESS_KEY_ID").is_none();
        let hint = if is_anonymous {
            " (AWS_ACCESS_KEY_ID is not set, so the identity of the machine or the pod was asked for)"
        } else {
            ""
        };
        anyhow!("{self}: {what}: {}{hint}", error)
    }

    async fn put(&self, path: Path, bytes: Vec<u8>) -> Result<()> {
        let written = self.store.put(&path, PutPayload::from(bytes)).await;
        written.map(drop).map_err(|error| self.fail(&format!("{path} cannot be written"), error))
    }

    async fn delete(&self, paths: Vec<Path>) -> Result<()> {
        let paths = futures_util::stream::iter(paths.into_iter().map(Ok)).boxed();
        let mut deleted = self.store.delete_stream(paths);
        while let Some(outcome) = deleted.next().await {
            match outcome {
                Ok(_) | Err(object_store::Error::NotFound { .. }) => {}
                Err(error) => return Err(self.fail("cannot remove", error)),
            }
        }
        Ok(())
    }
}

fn manifest_path(id: &str, suffix: &str) -> Path {
    Path::from_iter(["backups".to_owned(), format!("{id}{suffix}")])
}

fn chunk_path(name: &ChunkName) -> Path {
    let name = name.as_str();
    Path::from_iter(["chunks", &name[..2], name])
}

fn folder(path: &FilePath, make: bool) -> Result<Arc<dyn ObjectStore>> {
    if make {
        std::fs::create_dir_all(path)
            .with_context(|| format!("cannot make the folder {}", path.display()))?;
    }
    ensure!(path.is_dir(), "{}: there is no such folder", path.display());
    let store = LocalFileSystem::new_with_prefix(path).with_context(|| path.display().to_string())?;
    Ok(Arc::new(store.with_fsync(true)))
}

fn s3(place: &str, rest: &str) -> Result<Arc<dyn ObjectStore>> {
    // The HTTP client needs to know which cryptography to use; another part may have said so already.
    let _ = ring::default_provider().install_default();
    let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
    ensure!(!bucket.is_empty(), "{place}: write it as s3://bucket/prefix");
    let store = AmazonS3Builder::from_env().with_bucket_name(bucket).build();
    let store = store.with_context(|| format!("{place}: the settings in the environment (AWS_…)"))?;
    let prefix = Path::parse(prefix.trim_end_matches('/')).with_context(|| place.to_owned())?;
    Ok(Arc::new(PrefixStore::new(store, prefix)))
}
