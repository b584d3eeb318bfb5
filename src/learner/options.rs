//! What the loop is given: settings, what it goes on from, what it shares with readers, and who hears of it.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::{BatchQuality, CheckpointFile, Decision, Gate, LearnerStatus};
use crate::event::EdgeId;
use crate::metrics::Metrics;
use crate::serving::{Progress, QueryEngine};
use crate::train::Trainer;
use crate::train::replay::ReplayOptions;

/// The loop's settings.
#[derive(Clone, Debug)]
pub struct LearnerOptions {
    /// Whether weights are trained at all.
    pub train: bool,
    /// Most edges of one batch.
    pub batch_events: usize,
    /// How long a batch that is not full waits for more.
    pub batch_wait: Duration,
    /// Records behind the log's end past which the gradient steps of live events are skipped.
    pub lag_events_max: u64,
    /// Time in the graph past which they are skipped too; zero is any time.
    pub lag_max: Duration,
    /// When the learning began, with nothing learned, Unix milliseconds: what was produced earlier is history.
    pub began_unix_ms: i64,
    /// Batches over which quality is averaged.
    pub quality_window_batches: usize,
    /// Positives of a batch that are ranked against candidates.
    pub rank_queries: usize,
    /// Candidates per ranked positive.
    pub rank_candidates: usize,
    /// What is trained on again.
    pub replay: ReplayOptions,
    /// Picks the negatives.
    pub seed: u64,
    /// Threads that compute steps, apart from those of queries; 0 is half of the cores, two at least.
    pub threads: usize,
    /// How far these stand back behind other threads: a nice value, 0 to 19.
    pub nice: u8,
    /// Folder of the checkpoints.
    pub checkpoint_dir: PathBuf,
    /// Time between two checkpoints.
    pub checkpoint_interval: Duration,
}

/// What the loop reads and publishes to; all shared with readers.
#[derive(Clone)]
pub struct Shared {
    /// The graph and rows to learn from, and where states and weights are published.
    pub engine: Arc<QueryEngine>,
    /// Positions of the loops.
    pub progress: Arc<Progress>,
    /// What the loop says of itself.
    pub status: Arc<LearnerStatus>,
    /// Metrics.
    pub metrics: Arc<Metrics>,
}

/// Hears of every written checkpoint, with the quality at that moment.
pub type CheckpointRecorder = Box<dyn FnMut(&CheckpointFile, Option<BatchQuality>) + Send>;

/// Hears of every decision of the gate.
pub type DecisionRecorder = Box<dyn FnMut(&Decision) + Send>;

/// Hears why the GPU that trained cannot go on.
pub type DeviceLost = Box<dyn FnMut(&str) + Send>;

/// Who hears of what is worth keeping or telling beside the log.
pub struct Recorders {
    /// Of checkpoints.
    pub checkpoint: CheckpointRecorder,
    /// Of decisions.
    pub decision: DecisionRecorder,
    /// Of a GPU that failed.
    pub device_lost: DeviceLost,
}

/// What the loop goes on from.
pub struct Learned {
    /// The trainer, with the weights that are the candidate.
    pub trainer: Trainer,
    /// Which weights are served; `None` serves the candidate after every step.
    pub gate: Option<Gate>,
    /// Where in the log they stand.
    pub position: EdgeId,
}
