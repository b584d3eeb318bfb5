//! Status of the running learner, for the status document and the terminal.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;

use super::{
    BatchQuality, CatchUp, Decision, Gate, Learner, Operated, Operation, OperationError, Requests, Verdict,
    Versions,
};
use crate::event::EdgeId;

/// Observations over which freshness is summed up.
const FRESHNESS_WINDOW: usize = 1_000;

/// Memory of the loop by purpose, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LearnerBytes {
    /// Node memory: rows and update times; walks and times of pairs.
    pub memory: u64,
    /// Messages that wait to be applied.
    pub mailbox: u64,
    /// Pairs of the EdgeBank baseline.
    pub edgebank: u64,
    /// Destinations that negatives are drawn from.
    pub destinations: u64,
    /// Feature rows of nodes as of the cursor.
    pub node_rows: u64,
    /// What the GPU's copy of the graph takes of main memory.
    pub graph_copy: u64,
    /// Page-locked copies of edge rows, which the GPU that trains reads in place.
    pub edge_rows: u64,
}

/// What the gate decided since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct GateReport {
    /// Candidates that were published.
    pub promoted: u64,
    /// Windows after which the published version stayed.
    pub held: u64,
    /// Rollbacks to an earlier version.
    pub rolled_back: u64,
    /// The latest decision.
    pub last: Option<Decision>,
    /// The versions that it has.
    pub versions: Versions,
}

impl GateReport {
    pub(super) fn count(&mut self, verdict: Verdict) -> &mut u64 {
        match verdict {
            Verdict::Promoted => &mut self.promoted,
            Verdict::Held => &mut self.held,
            Verdict::RolledBack => &mut self.rolled_back,
        }
    }
}

/// Snapshot of the learner.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LearnerReport {
    /// One past the last record it has applied.
    pub position: EdgeId,
    /// Learner lag: records indexed and not yet learned.
    pub behind: u64,
    /// Whether the latest batch was history: produced before the learning began.
    pub history: bool,
    /// Version of the published weights.
    pub model_version: u64,
    /// Events it trained on since start.
    pub trained: u64,
    /// Events that updated node memory since start.
    pub applied: u64,
    /// Events whose gradient step was skipped since start, because it lagged or numbers were not finite.
    pub skipped: u64,
    /// What it holds in memory.
    pub bytes: LearnerBytes,
    /// Loss of the latest step.
    pub loss: Option<f32>,
    /// Mean quality over the window.
    pub quality: Option<BatchQuality>,
    /// What the gate decided.
    pub gate: GateReport,
    /// Whether weights are trained.
    pub trains: bool,
    /// Where it began; `None` before that.
    pub start: Option<CatchUp>,
}

/// Most requests of a kind that wait for the loop. One checkpoint completes all that wait for one.
const CHECKPOINTS_WAITING_MAX: usize = 64;
const OPERATIONS_WAITING_MAX: usize = 16;

/// A checkpoint that holds everything that was learned when it was requested.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Durable {
    /// File name inside the checkpoint folder.
    pub name: String,
    /// The learner's position in the log.
    pub position: EdgeId,
    /// Version of the weights.
    pub model_version: u64,
}

/// What a request for a checkpoint asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WantedCheckpoint {
    /// One of all that is learned.
    Any,
    /// One that refers to no pages of earlier ones, so that these can go.
    Full,
}

/// The latest report, and requests to the loop; shared.
#[derive(Debug)]
pub struct LearnerStatus {
    report: Mutex<LearnerReport>,
    freshness: Mutex<VecDeque<f64>>,
    /// Requests for a checkpoint.
    pub requests: Requests<WantedCheckpoint, Durable, OperationError>,
    /// What operators ask for.
    pub operations: Requests<Operation, Operated, OperationError>,
}

impl Default for LearnerStatus {
    fn default() -> Self {
        let whose = "the learner";
        Self {
            report: Mutex::default(),
            freshness: Mutex::default(),
            requests: Requests::new(whose, CHECKPOINTS_WAITING_MAX),
            operations: Requests::new(whose, OPERATIONS_WAITING_MAX),
        }
    }
}

/// Closes the requests when the loop ends, however it does.
pub(super) struct Closing(pub Arc<LearnerStatus>);

impl Drop for Closing {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl LearnerStatus {
    /// Refuses requests from now on: there is no loop to take them.
    pub fn close(&self) {
        self.requests.close();
        self.operations.close();
    }

    /// The latest report.
    #[must_use]
    pub fn report(&self) -> LearnerReport {
        self.report.lock().clone()
    }

    pub(super) fn update(&self, change: impl FnOnce(&mut LearnerReport)) {
        change(&mut self.report.lock());
    }

    pub(super) fn freshness(&self, seconds: f64) {
        let mut window = self.freshness.lock();
        if window.len() == FRESHNESS_WINDOW {
            window.pop_front();
        }
        window.push_back(seconds);
    }

    /// Median and 99th percentile, in seconds, of the time from a live event's production until responses reflected it,
    /// over the latest observations.
    #[must_use]
    pub fn freshness_seconds(&self) -> Option<(f64, f64)> {
        let mut sorted: Vec<f64> = self.freshness.lock().iter().copied().collect();
        sorted.sort_by(f64::total_cmp);
        let at = |percent: usize| {
            sorted.get((sorted.len() * percent / 100).min(sorted.len().checked_sub(1)?)).copied()
        };
        Some((at(50)?, at(99)?))
    }
}

impl Learner {
    /// Shows what a learner begins with, at `position`.
    pub(super) fn report_begin(&self, position: EdgeId) {
        let (bytes, version, trains) = (self.bytes(), self.version, self.options.train);
        let versions = self.gate.as_ref().map(Gate::versions).unwrap_or_default();
        self.shared.status.update(|report| {
            report.bytes = bytes;
            report.position = position;
            report.model_version = version;
            report.gate.versions = versions;
            report.trains = trains;
            report.start = Some(self.start);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn freshness_is_summed_up_over_the_latest_observations() {
        let status = LearnerStatus::default();
        assert_eq!(status.freshness_seconds(), None);
        for i in 0..2 * FRESHNESS_WINDOW {
            status.freshness(if i < FRESHNESS_WINDOW { 1e9 } else { (i % 100) as f64 });
        }
        let (median, p99) = status.freshness_seconds().unwrap();
        assert!((median - 50.0).abs() <= 1.0 && (p99 - 99.0).abs() <= 1.0, "{median} {p99}");
    }
}
