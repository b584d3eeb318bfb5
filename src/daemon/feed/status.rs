//! [`FeedStatus`]: the change feed from outside.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use crate::api::{FeedDocument, Health, State};
use crate::serving::ChangedRows;

/// How the feed stands, for health and for the status document, from which metrics are copied.
pub(in crate::daemon) struct FeedStatus {
    report: Mutex<Option<FeedDocument>>,
    health: Arc<Health>,
}

impl FeedStatus {
    pub(in crate::daemon) fn new(health: Arc<Health>) -> Self {
        Self { report: Mutex::new(None), health }
    }

    /// The part of the status document; `None` where there is no feed.
    pub(in crate::daemon) fn document(&self) -> Option<FeedDocument> {
        self.report.lock().clone()
    }

    /// There is a feed to this topic.
    pub(super) fn begin(&self, topic: &str) {
        let topic = topic.to_owned();
        *self.report.lock() = Some(FeedDocument { topic, ..FeedDocument::default() });
        self.running();
    }

    /// It delivers.
    pub(super) fn running(&self) {
        self.set_state("running", "");
        self.health.set("feed", State::Ok, "changes are delivered");
    }

    /// It could not deliver, for this reason, and tries again.
    pub(super) fn failing(&self, why: &str) {
        self.update(|report| report.failures += 1);
        let was_running = self.set_state("failing", why);
        self.health.set("feed", State::Degraded, format!("changes are not delivered: {why}"));
        if was_running {
            tracing::error!(why, "changes are not delivered; this is tried again until they are");
        }
    }

    /// These rows were delivered.
    pub(super) fn delivered_rows(&self, moments: &[ChangedRows]) {
        self.update(|report| {
            for ChangedRows { rows, is_indexed, .. } in moments {
                report.delivered_rows += rows.len() as u64;
                report.delivered_index_rows += if *is_indexed { rows.len() as u64 } else { 0 };
            }
        });
    }

    /// So many deleted nodes were delivered.
    pub(super) fn delivered_deletions(&self, nodes: usize) {
        self.update(|report| report.delivered_deletions += nodes as u64);
    }

    /// So many nodes are due, some of them for so long.
    pub(super) fn pending(&self, nodes: usize, behind: Duration) {
        self.update(|report| {
            (report.pending_nodes, report.behind_seconds) = (nodes as u64, behind.as_secs_f64());
        });
    }

    /// Every event below this position is in what was delivered.
    pub(super) fn complete_to(&self, position: u64) {
        self.update(|report| report.delivered_position = Some(position));
    }

    /// Whether the state was another one.
    fn set_state(&self, state: &'static str, detail: &str) -> bool {
        let mut changed = false;
        self.update(|report| {
            changed = report.state != state;
            (report.state, report.detail) = (state, detail.to_owned());
        });
        changed
    }

    fn update(&self, change: impl FnOnce(&mut FeedDocument)) {
        if let Some(report) = &mut *self.report.lock() {
            change(report);
        }
    }
}
