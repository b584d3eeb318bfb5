//! Opens the data directory: the log, the index rebuilt from it, and the checkpoints.
//!
//! ```text
//! data.dir/log/            segments of the event log, how far it was durable (DURABLE), torn ends that were cut off
//! data.dir/checkpoints/    what was learned
//! data.dir/snapshots/      the index at a position of the log
//! data.dir/catalog.sqlite  the list of checkpoints, fixed settings
//! data.dir/dead-letters/   rejected events
//! data.dir/spill/          unnamed files of spilled data, so it appears empty
//! ```

use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, Result, ensure};

use super::checkpoints::Checkpoints;
use super::clock_correction::clock_correction;
use super::{Interrupted, Starting, backup, snapshot_files, tiers};
use crate::appender::snapshot::{Capture, SnapshotHead};
use crate::appender::{Index, Positions, replay};
use crate::catalog::Catalog;
use crate::config::Config;
use crate::event::{ClockRules, EdgeId, EventTime};
use crate::feature::FeatureStore;
use crate::graph::{Keeping, RetentionBounds};
use crate::log::{Log, LogOptions, Recovery};

/// The open data directory.
pub struct Store {
    /// The event log.
    pub log: Log,
    /// What the log means.
    pub index: Index,
    /// What was learned.
    pub checkpoints: Checkpoints,
    /// What a crash had left of the log.
    pub recovery: Recovery,
    /// The folder of the snapshots.
    snapshots: PathBuf,
}

impl Store {
    /// Opens `data.dir`, making it if it is not there; the index is empty.
    ///
    /// # Errors
    /// When a folder cannot be made, another process holds the log, a part is damaged, or a setting
    /// differs from what the directory was made with.
    pub fn open(config: &Config) -> Result<Self> {
        let dir = &config.data.dir;
        backup::hold_finished(dir)?;
        let checkpoint_dir = dir.join("checkpoints");
        let snapshots = snapshot_files::dir(config);
        for folder in [dir, &checkpoint_dir, &snapshots] {
            std::fs::create_dir_all(folder)
                .with_context(|| format!("data.dir: cannot make the folder {}", folder.display()))?;
        }
        let options = LogOptions { dir: dir.join("log"), segment_bytes: config.log.segment_bytes };
        let (log, recovery) = Log::open(options)?;
        report(&recovery);
        let catalog = Catalog::open(&dir.join("catalog.sqlite"))?;
        hold_dimensions(&catalog, config)?;
        let checkpoints = Checkpoints::new(catalog, checkpoint_dir);
        let not_after = clock_correction(&checkpoints)?;
        let rules = ClockRules { future_limit: config.stream.future_limit(), not_after };
        Ok(Self { log, index: empty_index(config, rules)?, checkpoints, recovery, snapshots })
    }

    /// How far each partition was read.
    ///
    /// # Errors
    /// When snapshots or the log cannot be read.
    pub fn positions(&self) -> Result<Positions> {
        let snapshot = self.newest_snapshot()?;
        let capture = snapshot.as_ref().map(|snapshot| &snapshot.capture);
        let mut reader = self.log.reader(capture.map_or(EdgeId(0), Capture::position));
        Positions::of_log(capture, &mut reader).context("the event log cannot be read")
    }

    /// The newest snapshot, whatever was released before it was written.
    pub(super) fn newest_snapshot(&self) -> Result<Option<SnapshotHead>> {
        let all = RetentionBounds { since: EventTime::MAX, first: EdgeId(u64::MAX), end: EdgeId(0) };
        snapshot_files::newest(&self.snapshots, &self.log.readers(), &self.index.stores, all)
    }

    /// Makes the index: from the newest snapshot that fits and the log behind it, or from the log alone. Returns the
    /// position of that snapshot, 0 without one.
    ///
    /// # Errors
    /// When the log cannot be read or is damaged, the start is interrupted, or the snapshot is damaged: it is removed
    /// then, and the index of no use.
    pub fn rebuild(&mut self, keeping: Keeping, starting: &Starting<'_>) -> Result<EdgeId> {
        let snapshot = match keeping {
            // It follows from all of the log what is kept.
            Keeping::For(_) => None,
            Keeping::Within(kept) => {
                snapshot_files::newest(&self.snapshots, &self.log.readers(), &self.index.stores, kept)?
            }
        };
        let keeping = match keeping {
            // Read from its beginning, a log shows how far the learner had come at each point.
            Keeping::Within(kept) if snapshot.is_none() => Keeping::For(kept.end),
            keeping => keeping,
        };
        self.rebuild_from(snapshot, keeping, starting)
    }

    /// The same where nobody learns here: from the newest snapshot, whatever was released before it was written, or
    /// from the log, where what is too old by its end is released.
    ///
    /// # Errors
    /// As [`rebuild`](Self::rebuild).
    pub fn rebuild_of_replica(&mut self, starting: &Starting<'_>) -> Result<EdgeId> {
        let snapshot = self.newest_snapshot()?;
        // What is behind a snapshot does not show how old the edges before it are.
        let keeping = match &snapshot {
            Some(snapshot) => Keeping::Within(snapshot.capture.released),
            None => Keeping::For(self.log.durable_end()),
        };
        self.rebuild_from(snapshot, keeping, starting)
    }

    fn rebuild_from(
        &mut self,
        snapshot: Option<SnapshotHead>,
        keeping: Keeping,
        starting: &Starting<'_>,
    ) -> Result<EdgeId> {
        let end = self.log.durable_end();
        let started = Instant::now();
        let seconds = || started.elapsed().as_secs_f64();
        if let Some(snapshot) = &snapshot {
            snapshot_files::load(snapshot, &mut self.index)?;
            let position = snapshot.capture.position().0;
            tracing::info!(position, seconds = seconds(), "the snapshot is loaded");
        }
        let (from, first) = (self.index.end(), self.log.readers().first());
        ensure!(
            from >= first,
            "the log begins at position {first} and no snapshot can be used (see above): restore {} from a backup",
            self.snapshots.display()
        );
        let proceed = starting.proceed("reading the log into the graph", end);
        let replayed = replay(&self.log, &mut self.index, keeping, proceed)
            .context("the event log cannot be replayed")?;
        ensure!(replayed.is_continue(), Interrupted);
        if end > EdgeId(0) {
            tracing::info!(
                records = end.0,
                read = end.0 - from.0,
                seconds = seconds(),
                "the graph is complete"
            );
        }
        Ok(from)
    }
}

/// Logs what was cut off, and no more than is known about it.
fn report(recovery: &Recovery) {
    if recovery.record_unreadable {
        tracing::warn!(
            "the file DURABLE of the log cannot be read, so damage at the end of the log looks like a write that a \
             crash interrupted; it is written anew"
        );
    }
    let Some((segment, length)) = &recovery.truncated_at else { return };
    tracing::warn!(
        bytes = recovery.truncated_bytes,
        segment = %segment.display(),
        at_byte = length,
        log_ends_at = recovery.end.0,
        recorded_as_durable = recovery.recorded.map(|position| position.0),
        kept_in = recovery.kept_in.as_ref().map(|path| path.display().to_string()),
        "the log ended in the middle of a write, and that end was cut off. After a crash of the process this write was \
         never acknowledged. After a loss of power, it can also be damage to events that were acknowledged after the \
         position recorded as durable: compare with the producers of pushed events"
    );
}

fn hold_dimensions(catalog: &Catalog, config: &Config) -> Result<()> {
    for (name, value) in fixed_settings(config) {
        catalog.fix_setting(name, &value)?;
    }
    Ok(())
}

/// Settings that are fixed for the life of a data directory.
#[must_use]
pub fn fixed_settings(config: &Config) -> [(&'static str, String); 2] {
    let stream = &config.stream;
    [
        ("stream.edge_feature_dimension", stream.edge_feature_dimension.to_string()),
        ("stream.node_feature_dimension", stream.node_feature_dimension.to_string()),
    ]
}

fn empty_index(config: &Config, rules: ClockRules) -> Result<Index> {
    let node_features = FeatureStore::new(config.stream.node_feature_dimension);
    tiers::settle_pages(config);
    let budgets = tiers::Budgets::of(config);
    budgets.report();
    let graph = tiers::graph(config, rules, budgets.graph)?;
    let edge_features = tiers::edge_rows(config, budgets.rows)?;
    let index = Index::new(graph, edge_features, node_features, config.ingest.idempotency_keys_max);
    Ok(index.with_edge_types(config.model_options().edge_types()))
}
