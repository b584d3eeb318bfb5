//! The checkpoints of a data directory. The folder, the catalog and the log can disagree, and are reconciled at every
//! start.
//!
//! - A file without a row is recorded again, so a lost catalog loses nothing that was learned.
//! - A row without a file is deleted.
//! - A file that was not learned from the current log, because the log was truncated or replaced, is renamed to
//!   `*.orphan`. Otherwise it would pass for a match once the log grew past its position.
//! - One that an operator replaced by an older one is renamed to `*.superseded` and is not used either.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use parking_lot::Mutex;

use super::checkpoint_keeping::{Keeping, forget, pages_in, prune, remove};
use crate::catalog::{Catalog, CatalogError, CheckpointRow, DecisionRow};
use crate::device::disk::Pace;
use crate::event::EdgeId;
use crate::ingest::kafka::ClusterMemory;
use crate::learner::checkpoint::{self, Checkpoint, CheckpointHead, SUFFIX, Sink, UNFINISHED_SUFFIX};
use crate::learner::{
    BatchQuality, CheckpointFile, CheckpointRecorder, Decision, DecisionRecorder, Predicted, Recorders,
};
use crate::log::LogReaders;

/// Extension of a checkpoint that was replaced by an older one.
const SUPERSEDED: &str = "superseded";

/// A checkpoint that an operator restored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Restored {
    /// Its name.
    pub name: String,
    /// Its header.
    pub head: CheckpointHead,
    /// The later checkpoints that were renamed, latest first.
    pub superseded: Vec<String>,
}

/// Whether `path` has the name that `whole` has, whatever it ends with.
fn is_named(path: &Path, whole: &Path) -> bool {
    let stem = |path: &Path| path.file_name()?.to_str()?.split('.').next().map(str::to_owned);
    stem(path) == stem(whole)
}

/// Key of a topic's cluster in the catalog.
fn cluster_of(topic: &str) -> String {
    format!("kafka cluster of {topic}")
}

/// Renames a checkpoint to an unused name.
fn set_aside(path: &Path) -> Result<()> {
    let names = std::iter::once(SUPERSEDED.to_owned()).chain((2..).map(|n| format!("{SUPERSEDED}.{n}")));
    let mut free = names.map(|name| path.with_extension(name)).filter(|path| !path.exists());
    let aside = free.next().context("no name is free")?;
    std::fs::rename(path, aside).with_context(|| format!("cannot rename {}", path.display()))
}

/// The folder and its rows in the catalog.
pub struct Checkpoints {
    catalog: Arc<Mutex<Catalog>>,
    dir: PathBuf,
}

impl Checkpoints {
    pub(super) fn new(catalog: Catalog, dir: PathBuf) -> Self {
        Self { catalog: Arc::new(Mutex::new(catalog)), dir }
    }

    /// The catalog, which holds more than checkpoints.
    pub(super) fn catalog(&self) -> Arc<Mutex<Catalog>> {
        self.catalog.clone()
    }

    /// The folder.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Makes folder, catalog and log agree, and opens the newest intact checkpoint; damaged ones are
    /// logged and skipped.
    ///
    /// # Errors
    /// When folder, catalog or log cannot be read.
    pub fn newest(&self, log: &LogReaders) -> Result<Option<Checkpoint>> {
        self.settle()?;
        let mut rows = self.rows()?;
        // Among those of one history the farthest has learned most, whenever it was recorded.
        rows.sort_by_key(|row| std::cmp::Reverse(row.position));
        for row in rows {
            match checkpoint::open(&self.dir.join(&row.file)) {
                Ok(found) if self.is_of(log, &found)? => return Ok(Some(found)),
                Ok(found) => self.set_aside(&found)?,
                Err(error) => tracing::error!(%error, "the checkpoint is skipped"),
            }
        }
        Ok(None)
    }

    /// All intact checkpoints that were learned from this log, in no order.
    ///
    /// # Errors
    /// When catalog or log cannot be read.
    pub fn all(&self, log: &LogReaders) -> Result<Vec<Checkpoint>> {
        let mut all = Vec::new();
        for row in self.rows()? {
            match checkpoint::open(&self.dir.join(&row.file)) {
                Ok(found) if self.is_of(log, &found)? => all.push(found),
                Ok(_) => {}
                Err(error) => tracing::error!(%error, "the checkpoint is skipped"),
            }
        }
        Ok(all)
    }

    /// Writes a checkpoint in place of the one of the same position; what was measured of that one stays its own.
    ///
    /// # Errors
    /// When the file system, `save` or the catalog refuses.
    pub fn replace(
        &self,
        head: CheckpointHead,
        save: impl FnOnce(&mut Sink<'_>) -> std::io::Result<()>,
    ) -> Result<()> {
        let file = checkpoint::write(&self.dir, head, Pace::unlimited(), save)?;
        let old = self.rows()?.into_iter().find(|old| old.file == file.name);
        let (average_precision, baseline) =
            old.map_or((None, None), |old| (old.average_precision, old.baseline));
        let row = CheckpointRow { average_precision, baseline, ..row(&file, SystemTime::now(), None) };
        Ok(self.catalog.lock().add_checkpoint(&row)?)
    }

    /// Makes the next start continue from a checkpoint. Later ones are renamed, and can be restored by their names,
    /// too.
    /// `usable` checks whether its content fits the settings.
    ///
    /// # Errors
    /// When there is no such checkpoint, it is damaged, was learned from another log or is not usable, or files cannot
    /// be renamed.
    pub fn restore(
        &self,
        log: &LogReaders,
        name: &str,
        usable: impl FnOnce(Checkpoint) -> Result<()>,
    ) -> Result<Restored> {
        self.settle()?;
        let path = self.named(name)?;
        let found = checkpoint::open(&path).with_context(|| format!("{name} cannot be restored"))?;
        let head = found.file.head;
        let whole = self.dir.join(checkpoint::name(head.position));
        ensure!(is_named(&path, &whole), "{} is that of position {}", path.display(), head.position);
        ensure!(self.is_of(log, &found)?, "{} was learned from another history of the log", path.display());
        usable(found)?;
        if path != whole {
            if whole.exists() {
                set_aside(&whole)?;
            }
            std::fs::rename(&path, &whole).with_context(|| format!("cannot rename {}", path.display()))?;
            self.settle()?;
        }
        let mut farther = self.rows()?;
        farther.retain(|row| row.position > head.position.0);
        farther.sort_by_key(|row| std::cmp::Reverse(row.position));
        for row in &farther {
            set_aside(&self.dir.join(&row.file))?;
            self.catalog.lock().forget_checkpoint(&row.file)?;
        }
        std::fs::File::open(&self.dir)?.sync_all()?;
        let superseded = farther.into_iter().map(|row| row.file).collect();
        Ok(Restored { name: checkpoint::name(head.position), head, superseded })
    }

    /// The file of a named checkpoint. A superseded one is also found by its original name.
    fn named(&self, name: &str) -> Result<PathBuf> {
        let is_name = Path::new(name).file_name() == Some(OsStr::new(name));
        ensure!(is_name, "{name}: not the name of a checkpoint; `evergraph checkpoint list` lists them");
        let stem = name.strip_suffix(SUFFIX).unwrap_or(name);
        let names = [name.to_owned(), format!("{stem}{SUFFIX}"), format!("{stem}.{SUPERSEDED}")];
        let mut places = names.into_iter().map(|name| self.dir.join(name));
        places.find(|path| path.exists()).with_context(|| {
            let known: Vec<_> = self.rows().unwrap_or_default().into_iter().map(|row| row.file).collect();
            format!("there is no checkpoint {name} in {}; there are {known:?}", self.dir.display())
        })
    }

    /// Records an operator's decision. Returns its row.
    ///
    /// # Errors
    /// When the catalog refuses.
    pub fn record_decision(&self, decision: &Decision) -> Result<DecisionRow> {
        let row = decision_row(decision, SystemTime::now());
        self.catalog.lock().add_decision(&row)?;
        Ok(row)
    }

    fn rows(&self) -> Result<Vec<CheckpointRow>> {
        Ok(self.catalog.lock().checkpoints()?)
    }

    /// Removes unfinished files, and reconciles rows and files.
    fn settle(&self) -> Result<()> {
        let unreadable = || format!("cannot read the folder {}", self.dir.display());
        let mut files = BTreeSet::new();
        for entry in std::fs::read_dir(&self.dir).with_context(unreadable)? {
            let name = entry.with_context(unreadable)?.file_name();
            let Some(name) = name.to_str() else { continue };
            if name.ends_with(UNFINISHED_SUFFIX) {
                remove(&self.dir.join(name));
            } else if name.ends_with(SUFFIX) {
                files.insert(name.to_owned());
            }
        }
        for row in self.rows()? {
            if !files.remove(&row.file) {
                tracing::warn!(file = row.file, "a recorded checkpoint is missing");
                self.catalog.lock().forget_checkpoint(&row.file)?;
            }
        }
        for name in files {
            let path = self.dir.join(&name);
            match checkpoint::open(&path) {
                Ok(found) => {
                    tracing::warn!(path = %path.display(), "an unrecorded checkpoint was found and recorded");
                    let written = std::fs::metadata(&path).and_then(|facts| facts.modified());
                    let row = row(&found.file, written.unwrap_or_else(|_| SystemTime::now()), None);
                    self.catalog.lock().add_checkpoint(&row)?;
                }
                Err(error) => tracing::error!(%error, "an unrecorded checkpoint cannot be used"),
            }
        }
        prune(&self.dir);
        Ok(())
    }

    /// Whether a checkpoint was learned from this log.
    fn is_of(&self, log: &LogReaders, found: &Checkpoint) -> Result<bool> {
        let head = found.file.head;
        let ahead = head.position > log.durable_end();
        let behind = head.position > EdgeId(0) && head.position <= log.first();
        Ok(!ahead
            && !behind
            && log.history(head.position).context("the event log cannot be read")? == head.history)
    }

    fn set_aside(&self, found: &Checkpoint) -> Result<()> {
        let path = self.dir.join(&found.file.name);
        let orphan = path.with_extension("orphan");
        tracing::warn!(
            path = %orphan.display(), position = found.file.head.position.0,
            "a checkpoint was learned from another history of the log; it is renamed and ignored"
        );
        std::fs::rename(&path, &orphan).with_context(|| format!("cannot rename {}", path.display()))?;
        Ok(self.catalog.lock().forget_checkpoint(&found.file.name)?)
    }

    /// Records the learner's checkpoints and decisions, and removes checkpoints that are not kept.
    #[must_use]
    pub fn recorders(&self, keep: Keeping) -> Recorders {
        let device_lost = Box::new(|_: &str| ());
        Recorders { checkpoint: self.recorder(keep), decision: self.decision_recorder(), device_lost }
    }

    /// Records the Kafka cluster of each topic in the catalog. A catalog that fails stops no source.
    #[must_use]
    pub fn clusters(&self) -> ClusterMemory {
        let catalog = self.catalog.clone();
        ClusterMemory(Arc::new(move |topic, cluster| {
            catalog.lock().fix_value(&cluster_of(topic), cluster).unwrap_or_else(|error| {
                tracing::error!(%error, topic, cluster, "the cluster of the topic is not recorded");
                None
            })
        }))
    }

    /// The cluster that `topic` was read from, if it is another one than `cluster`.
    ///
    /// # Errors
    /// When the catalog refuses.
    pub fn other_cluster(&self, topic: &str, cluster: &str) -> Result<Option<String>> {
        match self.catalog.lock().compare_setting(&cluster_of(topic), cluster) {
            Ok(_) => Ok(None),
            Err(CatalogError::FixedSetting { fixed, .. }) => Ok(Some(fixed)),
            Err(error) => Err(error.into()),
        }
    }

    /// The catalog's connection.
    pub(super) fn with_catalog<T>(&self, f: impl FnOnce(&Catalog) -> Result<T, CatalogError>) -> Result<T> {
        Ok(f(&self.catalog.lock())?)
    }

    /// Records decisions in the catalog. After a failure, the decision is in the daemon's log only.
    fn decision_recorder(&self) -> DecisionRecorder {
        let catalog = self.catalog.clone();
        Box::new(move |decision| {
            let row = decision_row(decision, SystemTime::now());
            if let Err(error) = catalog.lock().add_decision(&row) {
                tracing::error!(%error, position = row.position, "a decision about the served version is not recorded");
            }
        })
    }

    /// Records checkpoints in the catalog and removes those that are not kept. What could not be recorded is retried
    /// with the next one, and found by the next start at the latest.
    fn recorder(&self, keep: Keeping) -> CheckpointRecorder {
        let (catalog, dir) = (self.catalog.clone(), self.dir.clone());
        let mut unrecorded = Vec::new();
        Box::new(move |file, quality| {
            // One at the same position has replaced it.
            unrecorded.retain(|old: &CheckpointRow| old.file != file.name);
            unrecorded.push(row(file, SystemTime::now(), quality));
            if let Err(error) = record(&catalog.lock(), &dir, keep, &mut unrecorded) {
                tracing::error!(%error, "the checkpoint {} is written but not recorded", file.name);
            }
            // The folder stays bounded while the catalog fails.
            for old in unrecorded.drain(..unrecorded.len().saturating_sub(keep.newest)) {
                remove(&dir.join(&old.file));
            }
            prune(&dir);
        })
    }
}

/// Milliseconds since the Unix epoch.
pub(super) fn unix_ms(time: SystemTime) -> i64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

fn decision_row(decision: &Decision, decided: SystemTime) -> DecisionRow {
    let (figures, versions) = (decision.figures, decision.versions);
    let ap = |of: Option<Predicted>| of.map(|of| of.average_precision);
    DecisionRow {
        position: decision.position,
        verdict: decision.verdict.name().to_owned(),
        candidate: decision.candidate,
        published: versions.published,
        kept: versions.kept,
        anchor: versions.anchor,
        candidate_ap: ap(figures.map(|figures| figures.candidate)),
        published_ap: ap(figures.and_then(|figures| figures.published)),
        kept_ap: None,
        anchor_ap: ap(figures.and_then(|figures| figures.anchor)),
        edgebank_ap: figures.map(|figures| figures.edgebank),
        created_unix_ms: unix_ms(decided),
    }
}

fn row(file: &CheckpointFile, written: SystemTime, quality: Option<BatchQuality>) -> CheckpointRow {
    CheckpointRow {
        position: file.head.position.0,
        model_version: file.head.model_version,
        file: file.name.clone(),
        bytes: file.bytes,
        crc32c: file.crc32c,
        average_precision: quality.map(|quality| quality.average_precision),
        baseline: quality.map(|quality| quality.baseline),
        created_unix_ms: unix_ms(written),
    }
}

fn record(catalog: &Catalog, dir: &Path, keep: Keeping, rows: &mut Vec<CheckpointRow>) -> Result<()> {
    while let Some(row) = rows.first() {
        catalog.add_checkpoint(row)?;
        rows.remove(0);
    }
    let rows = catalog.checkpoints()?;
    let gone = keep.surplus(&rows, unix_ms(SystemTime::now()), &pages_in(dir));
    gone.into_iter().try_for_each(|row| forget(catalog, dir, row))
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::time::Duration;

    use super::super::checkpoint_keeping::remove_cut_off;
    use super::*;
    use crate::event::{EdgeBatch, EdgeId, EventTime, NodeId};
    use crate::learner::checkpoint::PAGES_SUFFIX;
    use crate::learner::{Figures, Verdict, Versions};
    use crate::log::{Frame, Log, LogOptions};

    /// A data directory; `salt` distinguishes histories of the log.
    struct Data(tempfile::TempDir);

    impl Data {
        fn new() -> Self {
            let data = Self(tempfile::tempdir().unwrap());
            std::fs::create_dir(data.0.path().join("checkpoints")).unwrap();
            data
        }

        fn log(&self, frames: u64, salt: i64) -> Log {
            let options = LogOptions { dir: self.0.path().join("log"), segment_bytes: 300 };
            let (mut log, _) = Log::open(options).unwrap();
            while log.end() < EdgeId(frames * 10) {
                let mut batch = EdgeBatch { first: log.end(), ..EdgeBatch::default() };
                (0..10).for_each(|i| batch.push_edge(NodeId(0), NodeId(1), EventTime(i + salt)));
                log.append(&Frame { batch, ..Frame::default() }).unwrap();
                log.commit().unwrap();
            }
            log
        }

        fn cut_log(&self) {
            std::fs::remove_dir_all(self.0.path().join("log")).unwrap();
        }

        fn checkpoints(&self) -> Checkpoints {
            let catalog = Catalog::open(&self.0.path().join("catalog.sqlite")).unwrap();
            Checkpoints::new(catalog, self.0.path().join("checkpoints"))
        }

        fn write(&self, log: &Log, position: u64) -> CheckpointFile {
            let (position, model_version) = (EdgeId(position), position + 1);
            let history = log.readers().history(position).unwrap();
            let head = CheckpointHead { position, history, model_version, ..CheckpointHead::default() };
            let dir = self.0.path().join("checkpoints");
            checkpoint::write(&dir, head, Pace::unlimited(), |sink| sink.write_all(&position.0.to_le_bytes()))
                .unwrap()
        }

        fn files(&self) -> Vec<String> {
            let entries = std::fs::read_dir(self.0.path().join("checkpoints")).unwrap();
            let mut names: Vec<_> = entries
                .map(|entry| entry.unwrap().file_name().to_str().unwrap().trim_start_matches('0').to_owned())
                .collect();
            names.retain(|name| !name.ends_with(PAGES_SUFFIX));
            names.sort_unstable();
            names
        }
    }

    fn newest(checkpoints: &Checkpoints, log: &Log) -> Option<u64> {
        let mut found = checkpoints.newest(&log.readers()).unwrap()?;
        let mut payload = Vec::new();
        found.payload.read_to_end(&mut payload).unwrap();
        assert_eq!(payload, found.file.head.position.0.to_le_bytes());
        Some(found.file.head.position.0)
    }

    #[test]
    fn a_checkpoint_of_a_discarded_history_is_never_loaded_and_drives_no_other_out() {
        let data = Data::new();
        let log = data.log(5, 0);
        let checkpoints = data.checkpoints();
        checkpoints.recorder(Keeping::newest(1))(&data.write(&log, 45), None);
        assert_eq!(newest(&checkpoints, &log), Some(45));
        drop(log);
        data.cut_log();

        let log = data.log(2, 7);
        assert_eq!(newest(&checkpoints, &log), None);
        checkpoints.recorder(Keeping::newest(1))(&data.write(&log, 15), None);
        assert_eq!(data.files(), ["15.checkpoint", "45.orphan"]);
        drop(log);
        let log = data.log(9, 7);
        assert_eq!(newest(&checkpoints, &log), Some(15));
    }

    #[test]
    fn older_checkpoints_are_kept_until_they_are_old_or_the_log_behind_them_is_cut() {
        let data = Data::new();
        let log = data.log(8, 0);
        let checkpoints = data.checkpoints();
        let (newest, second) = (2, Duration::from_secs(1));
        let keep = Keeping { newest, age: Duration::from_secs(3_600), every: Duration::from_nanos(1) };
        let mut record = checkpoints.recorder(keep);
        for position in [10, 20, 30, 40] {
            record(&data.write(&log, position), None);
            std::thread::sleep(Duration::from_millis(2));
        }
        assert_eq!(checkpoints.rows().unwrap().len(), 4);
        let cut = |first| remove_cut_off(&checkpoints.catalog.lock(), checkpoints.dir(), keep, EdgeId(first));
        cut(10).unwrap();
        assert_eq!(data.files(), ["20.checkpoint", "30.checkpoint", "40.checkpoint"]);
        cut(35).unwrap();
        assert_eq!(data.files(), ["30.checkpoint", "40.checkpoint"], "the newest hold the log");
        let mut record = checkpoints.recorder(Keeping { newest, age: Duration::ZERO, every: second });
        record(&data.write(&log, 50), None);
        assert_eq!(data.files(), ["40.checkpoint", "50.checkpoint"]);
        assert_eq!(checkpoints.rows().unwrap().len(), 2);
    }

    #[test]
    fn a_log_that_was_replaced_and_has_grown_past_is_recognized() {
        let data = Data::new();
        let log = data.log(4, 0);
        let checkpoints = data.checkpoints();
        let mut record = checkpoints.recorder(Keeping::newest(3));
        for position in [10, 20, 33] {
            record(&data.write(&log, position), None);
        }
        drop(log);
        // The first two frames stay, what follows is another story.
        data.cut_log();
        drop(data.log(2, 0));
        let log = data.log(8, 7);
        assert_eq!(newest(&checkpoints, &log), Some(20), "what is before the cut still holds");
        assert_eq!(data.files(), ["10.checkpoint", "20.checkpoint", "33.orphan"]);
    }

    #[test]
    fn a_lost_catalog_loses_nothing_and_unfinished_files_go() {
        let data = Data::new();
        let log = data.log(4, 0);
        let checkpoints = data.checkpoints();
        let mut record = checkpoints.recorder(Keeping::newest(3));
        [10, 20, 30].into_iter().for_each(|position| record(&data.write(&log, position), None));
        let folder = data.0.path().join("checkpoints");
        std::fs::write(folder.join("00000000000000000040.checkpoint.tmp"), "half").unwrap();
        drop((checkpoints, record));
        std::fs::remove_file(data.0.path().join("catalog.sqlite")).unwrap();

        let checkpoints = data.checkpoints();
        assert_eq!(newest(&checkpoints, &log), Some(30));
        assert_eq!(data.files(), ["10.checkpoint", "20.checkpoint", "30.checkpoint"]);
        let versions: Vec<_> = checkpoints.rows().unwrap().iter().map(|row| row.model_version).collect();
        assert_eq!(versions, [31, 21, 11]);
        std::fs::remove_file(folder.join("00000000000000000030.checkpoint")).unwrap();
        assert_eq!(newest(&checkpoints, &log), Some(20));
        assert_eq!(checkpoints.rows().unwrap().len(), 2, "a row without its file is forgotten");
    }

    #[test]
    fn decisions_are_recorded_with_all_their_figures() {
        let data = Data::new();
        let checkpoints = data.checkpoints();
        let mut record = checkpoints.recorders(Keeping::newest(1)).decision;
        let of = |average_precision| Predicted { average_precision, log_loss: 0.3 };
        let (published, anchor) = (Some(of(0.6)), Some(of(0.9)));
        let figures = Figures { candidate: of(0.5), published, anchor, edgebank: 0.7 };
        let versions = Versions { published: Some(20), kept: Some(10), anchor: Some(15) };
        for verdict in [Verdict::Promoted, Verdict::Held, Verdict::RolledBack] {
            record(&Decision { verdict, figures: Some(figures), candidate: 30, versions, position: 4 });
        }
        drop((checkpoints, record));
        let rows = data.checkpoints().catalog.lock().decisions(9).unwrap();
        let decisions: Vec<_> = rows.iter().map(|row| (row.verdict.as_str(), row.served())).collect();
        assert_eq!(decisions, [("rolled_back", Some(15)), ("held", Some(20)), ("promoted", Some(30))]);
        let row = &rows[0];
        assert_eq!((row.position, row.candidate), (4, 30));
        assert_eq!((row.published, row.kept, row.anchor), (Some(20), Some(10), Some(15)));
        assert_eq!((row.candidate_ap, row.published_ap), (Some(0.5), Some(0.6)));
        assert_eq!((row.anchor_ap, row.edgebank_ap), (Some(0.9), Some(0.7)));
        assert!(row.created_unix_ms > 1_600_000_000_000);
    }

    #[test]
    fn what_the_catalog_did_not_take_is_recorded_with_the_next_one() {
        let data = Data::new();
        let log = data.log(8, 0);
        let checkpoints = data.checkpoints();
        let mut record = checkpoints.recorder(Keeping::newest(2));
        let other = rusqlite::Connection::open(data.0.path().join("catalog.sqlite")).unwrap();
        record(&data.write(&log, 5), None);
        other.execute_batch("ALTER TABLE checkpoint RENAME TO away").unwrap();
        for position in [10, 20, 30] {
            record(&data.write(&log, position), None);
        }
        assert_eq!(data.files(), ["20.checkpoint", "30.checkpoint", "5.checkpoint"]);
        // One in the place of the last, as an operator's decision has it, is the same file and not one more.
        record(&data.write(&log, 30), None);
        assert_eq!(data.files(), ["20.checkpoint", "30.checkpoint", "5.checkpoint"]);
        other.execute_batch("ALTER TABLE away RENAME TO checkpoint").unwrap();
        record(&data.write(&log, 40), None);
        assert_eq!(data.files(), ["30.checkpoint", "40.checkpoint"]);
        assert_eq!(newest(&checkpoints, &log), Some(40));
    }
}
