//! What the loop is given: settings, where it resumes, what it shares with readers, and callbacks.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::{BatchQuality, CheckpointFile, Decision, LearnerStatus};
use crate::device::disk::WriteRate;
use crate::metrics::Metrics;
use crate::serving::{Progress, QueryEngine};
use crate::train::replay::ReplayOptions;

/// The loop's settings.
#[derive(Clone, Debug)]
pub struct LearnerOptions {
    /// Seconds since the Unix epoch, by which the gate decides.
    pub clock: fn() -> u64,
    /// Whether weights are trained.
    pub train: bool,
    /// Whether history is trained on, and not only remembered.
    pub train_history: bool,
    /// Most edges of one batch.
    pub batch_events: usize,
    /// How long a batch that is not full waits for more.
    pub batch_wait: Duration,
    /// Records behind the log's end past which only the least share of live events is trained on.
    pub lag_events_max: u64,
    /// Waiting time past which the share falls, to the least at twice as much; zero means no limit.
    pub lag_target: Duration,
    /// The least share of live events that are trained on, 0 to 1.
    pub share_min: f64,
    /// Whether all live events are scored, also those that are not trained on.
    pub score_all: bool,
    /// When the learning began, with nothing learned, Unix milliseconds: what was produced earlier is history.
    pub began_unix_ms: i64,
    /// Batches over which quality is averaged.
    pub quality_window_batches: usize,
    /// Positives of a full batch that are ranked against candidates.
    pub rank_queries: usize,
    /// Candidates per ranked positive.
    pub rank_candidates: usize,
    /// Pairs that EdgeBank keeps at most, and a model that knows pairs; 0: any number.
    pub pairs_max: usize,
    /// Replays of old events.
    pub replay: ReplayOptions,
    /// Share of negatives that are destinations which the source met before, 0 to 1.
    pub met_share: f64,
    /// Seed of the negatives.
    pub seed: u64,
    /// Threads that compute steps, apart from those of queries; 0 is half of the cores, two at least.
    pub threads: usize,
    /// Nice value of these threads, 0 to 19.
    pub nice: u8,
    /// Folder of the checkpoints.
    pub checkpoint_dir: PathBuf,
    /// Time between two checkpoints.
    pub checkpoint_interval: Duration,
    /// One of so many checkpoints refers to none before it.
    pub checkpoint_full_every: u64,
    /// How fast they are written, unless the loop waits for one.
    pub write_rate: Arc<WriteRate>,
}

/// What the loop reads and publishes to; all shared with readers.
#[derive(Clone)]
pub struct Shared {
    /// The graph and rows to learn from, and where states and weights are published.
    pub engine: Arc<QueryEngine>,
    /// Positions of the loops.
    pub progress: Arc<Progress>,
    /// Status of the loop.
    pub status: Arc<LearnerStatus>,
    /// Metrics.
    pub metrics: Arc<Metrics>,
}

/// Called for every written checkpoint, with the current quality.
pub type CheckpointRecorder = Box<dyn FnMut(&CheckpointFile, Option<BatchQuality>) + Send>;

/// Called for every decision about which version is served.
pub type DecisionRecorder = Box<dyn FnMut(&Decision) + Send>;

/// Called with the error when the GPU that trains fails.
pub type DeviceLost = Box<dyn FnMut(&str) + Send>;

/// Callbacks for what is recorded besides the log.
pub struct Recorders {
    /// For checkpoints.
    pub checkpoint: CheckpointRecorder,
    /// For decisions.
    pub decision: DecisionRecorder,
    /// For a failed GPU.
    pub device_lost: DeviceLost,
}
