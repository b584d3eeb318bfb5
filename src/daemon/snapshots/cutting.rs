//! Cutting the log behind snapshots and checkpoints.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use anyhow::{Context, Result};
use parking_lot::Mutex;

use super::Writer;
use crate::api::OperatorError;
use crate::catalog::Catalog;
use crate::config::Config;
use crate::daemon::checkpoint_keeping::{Keeping, pages_in, remove_cut_off};
use crate::daemon::snapshot_files::newest_before;
use crate::daemon::{Parts, Store};
use crate::event::EdgeId;
use crate::learner::LearnerStatus;
use crate::log::LogReaders;
use crate::serving::Progress;

/// Who learns from the log, and what has to be kept for that.
#[derive(Clone)]
pub(super) struct Learning {
    pub status: Arc<LearnerStatus>,
    progress: Arc<Progress>,
    catalog: Arc<Mutex<Catalog>>,
    /// The folder of checkpoints.
    dir: PathBuf,
    keeping: Keeping,
}

impl Learning {
    pub fn of(config: &Config, parts: &Parts, store: &Store) -> Self {
        Self {
            status: parts.learner.clone(),
            progress: parts.progress.clone(),
            catalog: store.checkpoints.catalog(),
            dir: store.checkpoints.dir().to_path_buf(),
            keeping: Keeping::of(config),
        }
    }

    /// Removes older checkpoints that lie in what was cut off.
    fn remove_cut_off(&self, log: &LogReaders) {
        if let Err(error) = remove_cut_off(&self.catalog.lock(), &self.dir, self.keeping, log.first()) {
            let error = format!("{error:#}");
            tracing::warn!(error, "checkpoints from before the log's begin are not removed yet");
        }
    }

    /// The first position that one of the newest checkpoints or the learner needs; `None` before the first checkpoint.
    fn needed(&self) -> Result<Option<EdgeId>> {
        // Files are read below, without the lock.
        let rows = self.catalog.lock().checkpoints()?;
        let checkpoint = self.keeping.held(&rows, &pages_in(&self.dir));
        Ok(checkpoint.map(|checkpoint| checkpoint.min(self.progress.learned())))
    }
}

impl Writer {
    /// Has what nobody needs any more cut off a log that is longer or older than it is to be. Newer checkpoints may
    /// allow that long after a snapshot.
    pub(super) fn cut_if_due(&mut self) {
        let Some(learning) = self.learning.clone() else { return };
        learning.remove_cut_off(&self.log);
        let is_long =
            self.settings.log_bytes_kept > 0 && self.appender.log_bytes() > self.settings.log_bytes_kept;
        let since = self.settings.log_age_kept.and_then(|age| SystemTime::now().checked_sub(age));
        let old = since.map(|since| self.log.written_since(since)).filter(|old| *old > self.log.first());
        if !is_long && old.is_none() {
            return;
        }
        self.know_older(&learning);
        let needed = self.needed(&learning).unwrap_or_else(|error| {
            tracing::warn!(error = format!("{error:#}"), "whether the log can be cut is not known");
            None
        });
        if self.known.len() >= 2
            && let Some(needed) = needed
        {
            // The record before a cut stays, so the cut is behind the first that is not old. The appender logs what
            // comes of it.
            drop(match old {
                Some(old) => self.appender.request_cut(needed.min(EdgeId(old.0 + 1)), 0),
                None => self.appender.request_cut(needed, self.settings.log_bytes_kept),
            });
        }
    }

    /// Takes note of the snapshot before the one that the start used, which is read for it, once.
    fn know_older(&mut self, learning: &Learning) {
        if let [last] = self.known[..]
            && !std::mem::replace(&mut self.knows_older, true)
        {
            let (of, kept) = ((&self.log, &self.stores), learning.progress.kept());
            self.known.splice(..0, newest_before(last, &self.dir, of, kept, &self.stop));
        }
    }

    /// Cuts off the log what nobody needs any more.
    pub(super) fn cut_now(&mut self, learning: &Learning) -> Result<(), OperatorError> {
        self.know_older(learning);
        if self.known.len() < 2 {
            let other = match self.settings.keep {
                2.. => "write another one first",
                _ => "snapshot.keep must be at least 2",
            };
            return Err(OperatorError::Invalid(format!(
                "the log is cut behind the older of two snapshots, and there are {} that can be used; {other}",
                self.known.len()
            )));
        }
        let failed = |error: anyhow::Error| OperatorError::Failed(format!("{error:#}"));
        let nothing = "nothing is cut before the first checkpoint: write one first";
        let position = self.needed(learning).map_err(failed)?.context(nothing).map_err(failed)?;
        let cut = self.wait_for(&self.appender.request_cut(position, 0), "the appender");
        // Segments go one after another, so some may have gone.
        let outcome = cut.and_then(|cut| Ok(cut?));
        learning.remove_cut_off(&self.log);
        outcome.map_err(|error| {
            OperatorError::Unsettled(format!("{error:#}; part of the log may have been cut"))
        })
    }

    /// The first position that a kept snapshot, one of the newest checkpoints or the learner needs; `None` before the
    /// first checkpoint.
    fn needed(&self, learning: &Learning) -> Result<Option<EdgeId>> {
        Ok(learning.needed()?.zip(self.known.first()).map(|(learning, snapshot)| learning.min(*snapshot)))
    }
}
