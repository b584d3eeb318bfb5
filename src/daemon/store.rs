//! Opens the data directory: the log, what is rebuilt from it, and the newest checkpoint that fits.
//!
//! ```text
//! data.dir/log/            segments of the event log
//! data.dir/checkpoints/    what was learned
//! data.dir/catalog.sqlite  which checkpoints there are, settings that may not change
//! data.dir/dead-letters/   rejected events
//! ```

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use parking_lot::Mutex;

use crate::appender::{Index, replay};
use crate::catalog::{Catalog, CheckpointRow};
use crate::config::Config;
use crate::event::EdgeId;
use crate::graph::{GraphOptions, GraphStore};
use crate::learner::{BatchQuality, CheckpointFile, CheckpointRecorder, checkpoint};
use crate::log::{Log, LogOptions};

/// The open data directory.
pub struct Store {
    /// The event log.
    pub log: Log,
    /// What the log means.
    pub index: Index,
    /// The catalog, shared with the learner's checkpoint recorder.
    pub catalog: Arc<Mutex<Catalog>>,
    /// Folder of the checkpoints.
    pub checkpoint_dir: PathBuf,
}

/// What a checkpoint holds.
pub struct Learned {
    /// Log position it stands at.
    pub position: EdgeId,
    /// What the trainer saved.
    pub payload: Vec<u8>,
    /// File it came from.
    pub path: PathBuf,
}

impl Store {
    /// Opens `data.dir`, making it if it is not there, and rebuilds the index from the log.
    ///
    /// # Errors
    /// When a folder cannot be made, another process holds the log, a part is damaged, or a setting
    /// differs from what the directory was made with.
    pub fn open(config: &Config) -> Result<Self> {
        let dir = &config.data.dir;
        let checkpoint_dir = dir.join("checkpoints");
        for folder in [dir, &checkpoint_dir] {
            std::fs::create_dir_all(folder)
                .with_context(|| format!("data.dir: cannot make the folder {}", folder.display()))?;
        }
        let options = LogOptions { dir: dir.join("log"), segment_bytes: config.log.segment_bytes };
        let (log, recovery) = Log::open(options)?;
        if recovery.truncated_bytes > 0 {
            tracing::warn!(
                bytes = recovery.truncated_bytes,
                "the last write was cut short by a crash and was removed; nothing acknowledged is lost"
            );
        }
        let catalog = Catalog::open(&dir.join("catalog.sqlite"))?;
        hold_dimensions(&catalog, config)?;
        Ok(Self { log, index: empty_index(config), catalog: Arc::new(Mutex::new(catalog)), checkpoint_dir })
    }

    /// Rebuilds the index from the log.
    ///
    /// # Errors
    /// When the log cannot be read or is damaged.
    pub fn rebuild(&mut self) -> Result<()> {
        let end = self.log.durable_end();
        let started = Instant::now();
        replay(&self.log, &mut self.index, |at| {
            tracing::info!(position = at.0, end = end.0, "rebuilding the graph from the log");
        })
        .context("the event log cannot be replayed")?;
        if end > EdgeId(0) {
            tracing::info!(
                records = end.0,
                seconds = started.elapsed().as_secs_f64(),
                "the graph is rebuilt"
            );
        }
        Ok(())
    }

    /// The newest checkpoint that is whole and not ahead of the log; damaged ones are named and passed
    /// over.
    ///
    /// # Errors
    /// When the catalog cannot be read.
    pub fn newest_checkpoint(&self) -> Result<Option<Learned>> {
        for row in self.catalog.lock().checkpoints()? {
            let path = self.checkpoint_dir.join(&row.file);
            if row.position > self.log.durable_end().0 {
                let (path, position) = (path.display(), row.position);
                tracing::warn!(%path, position, "the checkpoint is ahead of the log and is passed over");
                continue;
            }
            match checkpoint::read(&path) {
                Ok((position, payload)) => return Ok(Some(Learned { position, payload, path })),
                Err(error) => tracing::error!(%error, "the checkpoint is passed over"),
            }
        }
        Ok(None)
    }

    /// Records checkpoints in the catalog and removes all but the newest `keep`.
    #[must_use]
    pub fn recorder(&self, keep: usize) -> CheckpointRecorder {
        let (catalog, dir) = (self.catalog.clone(), self.checkpoint_dir.clone());
        Box::new(move |file, model_version, quality| {
            if let Err(error) = record(&catalog.lock(), &dir, keep, file, model_version, quality) {
                tracing::error!(%error, "the checkpoint {} is written but not recorded", file.name);
            }
        })
    }
}

fn record(
    catalog: &Catalog,
    dir: &Path,
    keep: usize,
    file: &CheckpointFile,
    model_version: u64,
    quality: Option<BatchQuality>,
) -> Result<()> {
    let created = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
    catalog.add_checkpoint(&CheckpointRow {
        position: file.position.0,
        model_version,
        file: file.name.clone(),
        bytes: file.bytes,
        crc32c: file.crc32c,
        average_precision: quality.map(|quality| quality.average_precision),
        baseline: quality.map(|quality| quality.baseline),
        created_unix_ms: i64::try_from(created).unwrap_or(i64::MAX),
    })?;
    for old in catalog.checkpoints()?.iter().skip(keep) {
        catalog.forget_checkpoint(&old.file)?;
        let path = dir.join(&old.file);
        if let Err(error) = std::fs::remove_file(&path) {
            tracing::warn!(path = %path.display(), %error, "an old checkpoint could not be removed");
        }
    }
    Ok(())
}

fn hold_dimensions(catalog: &Catalog, config: &Config) -> Result<()> {
    for (name, value) in fixed_settings(config) {
        catalog.hold_setting(name, &value)?;
    }
    Ok(())
}

/// Settings that may not change in the life of a data directory.
#[must_use]
pub fn fixed_settings(config: &Config) -> [(&'static str, String); 2] {
    let stream = &config.stream;
    [
        ("stream.edge_feature_dimension", stream.edge_feature_dimension.to_string()),
        ("stream.node_feature_dimension", stream.node_feature_dimension.to_string()),
    ]
}

fn empty_index(config: &Config) -> Index {
    let options =
        GraphOptions { shards: config.graph.shards, page_entries_max: config.graph.page_entries_max };
    Index::new(
        GraphStore::new(options),
        config.stream.edge_feature_dimension,
        config.stream.node_feature_dimension,
        config.ingest.idempotency_keys_max,
    )
}
