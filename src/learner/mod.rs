//! Floor 7: the loop that learns. For each batch of the log, in this order: score it (so that quality is
//! measured on events the model has not seen), train on it, update node memory, publish. Readers and the loop never
//! wait for each other. Readers see node memory after every batch, and weights that have passed the [`gate`].
//!
//! Events from before the learning began, with nothing learned, are history. History is trained on, however long
//! that takes, unless the settings leave it out: a model is to learn from the past it is given. All later events
//! are live, also those that a restart or an outage left behind. When the learner lags behind live events by more
//! than a set number or time, it skips their gradient steps, never memory updates, and reports how many events it
//! skipped; replays of old events are skipped first. A step whose loss is not finite is skipped the same way. A
//! batch whose rows cannot be read waits until they can.
//!
//! The destinations for negatives, those by type, rows of nodes and the EdgeBank baseline are functions of the log up
//! to the cursor. They are in the checkpoint all the same, so that a start need not read the log up to there; where the
//! settings ask for others, it does. Quality begins anew.

mod ahead;
mod catch_up;
pub mod checkpoint;
mod checkpointing;
mod error;
mod feed;
mod follower;
pub mod gate;
mod gpu;
mod learned;
mod measure;
mod node_rows;
mod operations;
mod options;
mod pace;
mod pairs;
mod publish;
mod publisher;
mod quality;
mod reflected;
mod replay;
mod requests;
mod status;
mod step;
mod stream_state;
#[cfg(test)]
mod tests;
mod threads;
mod time_unit;
mod unusual;

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

pub use catch_up::CatchUp;
pub use checkpoint::{CheckpointError, CheckpointFile, CheckpointHead};
pub use error::LearnerError;
pub use feed::{Feed, FeedMark, LearnBatch};
pub use follower::follow;
pub use gate::{
    BeforePromotion, Decision, Figures, Gate, GateOptions, NO_GATE, Predicted, Verdict, Versions,
};
pub use learned::Learned;
pub use operations::{Operated, Operation, OperationError};
pub use options::{CheckpointRecorder, DecisionRecorder, DeviceLost, LearnerOptions, Recorders, Shared};
pub use quality::{BatchQuality, QualityWindow};
pub use requests::{NoResponse, Reply, Requests};
pub use status::{Durable, GateReport, LearnerBytes, LearnerReport, LearnerStatus, WantedCheckpoint};
pub use stream_state::{Around, StreamState};
pub use threads::{step_thread_count, step_threads};

use self::ahead::{Ahead, Preparation};
use self::measure::{BesideStep, RANKS_AT_ONCE, quality_window, timed};
use self::publisher::Publisher;
use self::reflected::{Owed, Unpublished};
use self::unusual::Unjudged;
use crate::device::exchange::Exchange;
use crate::event::{EdgeId, NodeId};
use crate::feature::FeatureStore;
use crate::log::{LogError, LogReaders};
use crate::model::walk::WalkState;
use crate::sampler::DeviceSampler;
use crate::train::edgebank::EdgeBank;
use crate::train::lookahead::Helper;
use crate::train::share::Share;
use crate::train::{PreparedBatch, StepMode, StreamNegatives, TrainError, Trainer};

/// How long the loop waits for events before it checks for checkpoints, GPU failures and a stop.
const IDLE: Duration = Duration::from_millis(100);

/// How long the loop waits before it retries a batch that could not be read from storage.
const STORAGE_RETRY: Duration = Duration::from_secs(1);

/// The loop and all that it owns.
pub struct Learner {
    trainer: Trainer,
    gate: Option<Gate>,
    feed: Feed,
    log: LogReaders,
    shared: Shared,
    options: LearnerOptions,
    record: Recorders,
    pool: StreamNegatives,
    bank: EdgeBank,
    /// Rows of nodes as of the cursor.
    node_rows: FeatureStore,
    /// Samples batches on the GPU that trains.
    sampler: Option<DeviceSampler>,
    /// Nodes whose pairs are to go at the next checkpoint.
    deleted: Vec<NodeId>,
    quality: QualityWindow,
    /// What of its batches it trains on where it is behind.
    share: Share,
    /// Queries to rank that are due, as far as they add up.
    ranks_due: f64,
    threads: Arc<rayon::ThreadPool>,
    /// The processes that are to train with this one, until they do.
    others: Option<Box<dyn Exchange>>,
    at_hand: Preparation,
    /// A batch of old events.
    replayed: PreparedBatch,
    ahead: Ahead,
    /// Samples ahead of the steps while the loop runs.
    helper: Option<Helper>,
    /// Whether event times were compared with the unit that the model takes them for.
    unit_is_checked: bool,
    /// Hands over to readers what a GPU computes for them.
    publisher: Publisher<Unpublished>,
    /// What it could not.
    owed: Owed,
    /// Of the weights that are served.
    version: u64,
    /// One past the last record that was learned.
    learned: EdgeId,
    start: CatchUp,
    /// What the newest checkpoint holds.
    checkpointed: Option<EdgeId>,
    checkpoint_due: Instant,
    /// Writes checkpoints; `None` before the first, and while one is being written.
    checkpoint_writer: Option<checkpoint::CheckpointWriter>,
    /// The checkpoint that is being written.
    writing: Option<checkpointing::Writing>,
}

impl Learner {
    /// A loop that goes on from what was learned. Reads the log up to there for what is rebuilt from it, and
    /// publishes the states of all nodes. `proceed` is called with the position reached and may stop the reading; then
    /// there is no loop.
    ///
    /// # Errors
    /// When the log cannot be read or threads cannot be started.
    pub fn new(
        Learned { trainer, gate, stream, position }: Learned,
        log: LogReaders,
        shared: Shared,
        options: LearnerOptions,
        record: Recorders,
        proceed: impl FnMut(EdgeId) -> ControlFlow<()>,
    ) -> Result<Option<Self>, LearnerError> {
        let knows_stream = stream.is_some() || position == EdgeId(0);
        let stream = stream.unwrap_or_else(|| StreamState::new(&shared.engine.stores, options.pairs_max));
        let StreamState { bank, pool, received, node_rows, mark, .. } = stream;
        shared.engine.states.received.replace(received);
        let feed = Feed::new(log.reader(position), shared.progress.clone(), position, mark);
        let checkpointed = checkpointing::found(&options, position);
        let sampler = trainer.device_sampler();
        let mut learner = Self {
            trainer,
            gate,
            feed,
            log,
            pool,
            bank,
            node_rows,
            sampler,
            deleted: Vec::new(),
            quality: quality_window(&options),
            share: Share::default(),
            // The first batch that there is anybody to rank in is ranked.
            ranks_due: RANKS_AT_ONCE as f64,
            threads: Arc::new(threads::step_threads(options.threads, options.nice)?),
            others: None,
            at_hand: Preparation::default(),
            replayed: PreparedBatch::default(),
            ahead: Ahead::default(),
            helper: None,
            unit_is_checked: false,
            publisher: Publisher::new(options.nice),
            owed: Owed::default(),
            version: 0,
            learned: position,
            start: CatchUp::new(position, shared.progress.indexed()),
            checkpointed,
            checkpoint_due: Instant::now() + checkpointing::interval(&options, checkpointed),
            checkpoint_writer: None,
            writing: None,
            shared,
            options,
            record,
        };
        learner.limit_pairs();
        learner.pool.keep_met(learner.options.met_share > 0.0);
        if !knows_stream && learner.rebuild(position, proceed)?.is_break() {
            return Ok(None);
        }
        let kept = learner.feed.clock().bounds();
        learner.shared.progress.set_kept(kept);
        let (nodes, touched) = (learner.trainer.state().known(), &learner.shared.engine.states.touched);
        learner.pool.known().nodes().iter().for_each(|&node| touched.set_destination(node));
        learner.publish_everything(kept, &nodes, position)?;
        learner.report_begin(position);
        Ok(Some(learner))
    }

    /// The same loop, which leads the steps of other processes that [`follow`] it.
    #[must_use]
    pub fn leading(self, others: Option<Box<dyn Exchange>>) -> Self {
        Self { others, ..self }
    }

    /// Replays what quality measurement, the clock of retention and rows of nodes need, up to `position`.
    fn rebuild(
        &mut self,
        position: EdgeId,
        mut proceed: impl FnMut(EdgeId) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>, LogError> {
        let reader = self.log.reader(EdgeId(0));
        let (progress, begin) = (self.shared.progress.clone(), self.feed.mark());
        let mut feed = Feed::new(reader, progress, EdgeId(0), begin).up_to(position);
        let mut batch = LearnBatch::default();
        while feed.position() < position {
            feed.fill(&mut batch, self.options.batch_events, IDLE, Duration::ZERO)?;
            self.bank.observe(&batch.src, &batch.dst, &batch.times);
            self.bank.keep_since(batch.kept.since);
            self.observe_destinations(&batch);
            self.shared.engine.states.received.observe(&batch.dst, &batch.kinds);
            batch.node_rows.set_seen(&self.node_rows);
            batch.node_rows.set_later(&self.node_rows);
            batch.deleted.iter().for_each(|node| self.node_rows.clear(u64::from(node.0)));
            self.deleted.extend_from_slice(&batch.deleted);
            if proceed(feed.position()).is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        self.feed.resume(feed.mark());
        Ok(ControlFlow::Continue(()))
    }

    /// Learns until `stop` is set, then writes a last checkpoint. Calls `pulse` at every turn.
    ///
    /// # Errors
    /// When the log cannot be read or the trainer cannot go on.
    pub fn run(mut self, stop: &AtomicBool, pulse: impl Fn()) -> Result<(), LearnerError> {
        let mut batch = LearnBatch::default();
        let _closing = status::Closing(self.shared.status.clone());
        threads::yield_to_serving(self.options.nice);
        self.helper = Some(Helper::new());
        self.meet_others(&pulse)?;
        while !stop.load(Ordering::Acquire) {
            pulse();
            if batch.end <= self.learned {
                self.fetch(&mut batch, IDLE)?;
            }
            match self.turn(&batch) {
                Err(LearnerError::Train(error @ TrainError::Storage(_))) => {
                    self.wait_for_storage(&error, batch.first, "the batch waits for its storage");
                }
                done => done?,
            }
            self.operate(&batch, &pulse);
            self.checkpoint_if_due(&batch);
        }
        if let Err(error) = self.settle() {
            tracing::error!(%error, "rows of the last batches could not be published");
        }
        self.checkpoint_at_end(&batch, &pulse);
        self.trainer.leave().map_err(TrainError::from)?;
        Ok(())
    }

    /// Learns `batch`, if it is not learned, and sees to what could not be published.
    fn turn(&mut self, batch: &LearnBatch) -> Result<(), LearnerError> {
        if batch.end > self.learned {
            self.learn_anywhere(batch)?;
        }
        match self.publish_owed() {
            Err(error @ TrainError::Storage(_)) => {
                let what = "rows of nodes are published when storage works again";
                self.wait_for_storage(&error, self.learned, what);
                Ok(())
            }
            done => Ok(done?),
        }
    }

    /// Reports what waits for storage, and waits before that is tried again.
    fn wait_for_storage(&self, error: &TrainError, position: EdgeId, what: &str) {
        self.shared.metrics.train.storage_failures.inc();
        tracing::error!(%error, position = position.0, "{what}");
        std::thread::sleep(STORAGE_RETRY);
    }

    /// Has the processes that train with this one go on from what it has learned.
    fn meet_others(&mut self, pulse: &dyn Fn()) -> Result<(), TrainError> {
        let others = self.others.take();
        let ranks = others.as_ref().map_or(1, |others| others.ranks());
        crate::metrics::set_count(&self.shared.metrics.train.ranks, ranks as u64);
        let Some(others) = others else { return Ok(()) };
        self.trainer.lead(others, pulse)?;
        tracing::info!(ranks, "training together with other processes");
        Ok(())
    }

    /// Score, train, update state, publish, replay: one batch. A storage failure leaves everything as it was.
    fn learn(&mut self, batch: &LearnBatch) -> Result<(), LearnerError> {
        let behind = self.shared.progress.indexed().0.saturating_sub(batch.end.0);
        batch.node_rows.set_seen(&self.node_rows);
        self.bring_copies(batch)?;
        if !batch.edges.is_empty() {
            self.check_time_unit(batch);
            let choice = self.decide(batch, behind);
            let negatives = self.negatives(batch);
            self.prepare(batch, &negatives, &choice)?;
            let mut beside = BesideStep::default();
            let rank = timed(&mut beside.rank, || self.mean_reciprocal_rank(batch))?;
            self.keep_pairs_since(batch.kept.since);
            // The next batch draws from these, possibly during this batch's step.
            if !std::mem::replace(&mut self.at_hand.observed, true) {
                self.observe_destinations(batch);
            }
            let exchanged = self.trainer.traffic();
            let taken = match self.step(batch, &negatives, behind) {
                // It was scored before the step, so only the step is retried.
                Err(LearnerError::Train(error @ TrainError::Gpu(_))) => {
                    self.leave_gpu(error)?;
                    self.prepare(batch, &negatives, &choice)?;
                    self.step(batch, &negatives, behind)?
                }
                done => done?,
            };
            let baseline = self.at_hand.baseline;
            beside.baseline = baseline.map_or(0.0, |baseline| baseline.seconds);
            let baseline = baseline.and_then(|baseline| baseline.average_precision);
            self.foresee();
            self.count_exchanged(exchanged, taken.mode);
            self.measure(batch, baseline, &taken.report, taken.mode, rank);
            let scored = self.scored(batch, &taken.report.positive);
            let clock = Instant::now();
            if let Err(error) = self.promote(batch, &taken, baseline) {
                // The verdict concerns weights that are lost.
                self.leave_gpu(error)?;
            }
            self.publish(batch, scored)?;
            beside.publish = clock.elapsed().as_secs_f64();
            self.observe_phases(&taken, &beside);
            if taken.mode == StepMode::Train {
                match self.replay(batch, behind) {
                    // The batch is learned; its replay is not retried.
                    Err(LearnerError::Train(error @ TrainError::Gpu(_))) => self.leave_gpu(error)?,
                    done => done?,
                }
            }
        } else {
            self.publish(batch, Unjudged::default())?;
        }
        self.at_hand.begin_anew();
        self.shared.metrics.train.lag_events.set(behind.cast_signed());
        let bytes = self.bytes();
        self.shared.status.update(|report| {
            report.bytes = bytes;
            report.behind = behind;
            report.history = batch.is_history(self.options.began_unix_ms);
            report.model_version = self.version;
        });
        Ok(())
    }

    fn bytes(&self) -> LearnerBytes {
        let state = self.trainer.state();
        LearnerBytes {
            memory: (state.memory.bytes()
                + state.deferred.bytes()
                + state.walks.as_ref().map_or(0, WalkState::bytes)) as u64,
            mailbox: state.mailbox.bytes() as u64,
            edgebank: self.bank.bytes() as u64,
            destinations: self.pool.bytes() as u64,
            node_rows: self.node_rows.bytes(),
            graph_copy: self.sampler.as_ref().map_or(0, DeviceSampler::host_bytes),
            edge_rows: self.trainer.pinned_row_bytes(),
        }
    }
}
