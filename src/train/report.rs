//! [`StepReport`]: what a step did, and where its time went.

#[cfg(doc)]
use super::trainer::StepMode;
use crate::event::NodeId;

/// Seconds a step spent, by phase.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PhaseSeconds {
    /// Drawing neighbors, while the batch was prepared.
    pub sample: f64,
    /// Finding distinct nodes and edges and copying their feature rows, while the batch was prepared.
    pub gather: f64,
    /// Memory updater, embedding, scores and loss.
    pub forward: f64,
    /// Gradients.
    pub backward: f64,
    /// Changing the weights.
    pub optimizer: f64,
    /// Reading the results. A GPU computes until then: there the three phases before are the time that asking takes,
    /// which for a step that was recorded ahead was during the `settle` of the one before, as its `gather` may have
    /// been. Neither is in that.
    pub settle: f64,
    /// Writing memory and messages.
    pub memory: f64,
}

/// What a step did.
#[derive(Clone, Debug, Default)]
pub struct StepReport {
    /// Logit of each positive; empty in [`StepMode::StateOnly`]. Those of [`StepMode::Train`] are with dropout and,
    /// where gradients are deferred, of the rows that were kept. Scores are ranked as logits: from about 17 on, all of
    /// them are a probability of 1 in 32 bits, which would be a tie.
    pub positive: Vec<f32>,
    /// Logit of each negative; empty in [`StepMode::StateOnly`].
    pub negative: Vec<f32>,
    /// Mean binary cross entropy of the positives plus that of the negatives, before learning; 0 in
    /// [`StepMode::StateOnly`].
    pub loss: f32,
    /// Where the time went.
    pub phases: PhaseSeconds,
    /// The distinct nodes whose memory or messages changed.
    pub touched: Vec<NodeId>,
    /// How many of them kept the memory they had, because the new row was not finite. Scores and weights
    /// are sound all the same.
    pub refused_rows: usize,
}
