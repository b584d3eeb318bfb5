//! The metrics of the learning loop.

use prometheus::{Gauge, HistogramVec, IntCounter, IntCounterVec, IntGauge, Registry};

use super::handle::{Handle, Spec};
use super::{MetricInfo, SHORT_SECONDS};

group! {
    /// The learning loop.
    TrainMetrics, TRAIN;
    steps: IntCounterVec ["mode"] = "train_steps_total"
        "Steps of the learner; mode is train (a gradient step), score (no gradient: weights are not trained, or the \
         learner lags and anomalies.score_all is set) or state_only (a state-only update).";
    events: IntCounter = "train_events_total" "Events the model was trained on.";
    skipped_events: IntCounter = "train_skipped_events_total"
        "Events that were to be trained on and got a state-only update: the learner lagged, or a gradient step was \
         rejected.";
    evicted_pairs: IntCounterVec ["table"] = "train_evicted_pairs_total"
        "Pairs of nodes that were dropped because learner.pairs_max was reached; table is edgebank or walk.";
    step_duration: HistogramVec ["phase"] (SHORT_SECONDS) = "train_step_duration_seconds"
        "Duration of one step by phase: sample, gather, rank, baseline, forward, backward, optimizer, settle \
         (waiting for the GPU's results), memory, gate, publish; baseline may be beside the step; hand_over, beside \
         the next steps, is the time until readers have the rows that a GPU computes for them after a step; exchange \
         is the time of a step in which a process sends shares, rows and gradients to those that train with it, and \
         waits for theirs; it overlaps forward, backward and time that is in no other phase.";
    ranks: IntGauge = "train_ranks" "Processes that compute each step together, this one included.";
    exchanged_bytes: IntCounter = "train_exchanged_bytes_total"
        "Bytes that this process has sent to those that train with it.";
    replay_steps: IntCounterVec ["result"] = "train_replay_steps_total"
        "Gradient steps on replayed events; result is trained or skipped (learner lag, or a rejected step).";
    learning_rate: Gauge = "train_learning_rate" "Learning rate of the next gradient step.";
    loss: Gauge = "train_loss" "Loss of the latest training step.";
    lag_events: IntGauge = "learner_lag_events" "Events indexed and not yet learned.";
    storage_failures: IntCounter = "train_storage_failures_total"
        "Batches delayed because their data could not be read from the disk.";
    nonfinite: IntCounter = "train_nonfinite_total"
        "Steps rejected because a loss, a gradient or a memory row was not finite.";
}

impl TrainMetrics {
    pub(super) fn start_closed_lists(&self) {
        for mode in ["train", "score", "state_only"] {
            self.steps.with_label_values(&[mode]);
        }
        for table in ["edgebank", "walk"] {
            self.evicted_pairs.with_label_values(&[table]);
        }
        for result in ["trained", "skipped"] {
            self.replay_steps.with_label_values(&[result]);
        }
    }
}
