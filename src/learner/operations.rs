//! What operators ask of the running loop: which version of the weights is served, and whether weights are trained. Any
//! thread submits an operation; the loop carries it out at its next turn, writes a checkpoint, and only then responds:
//! what was responded to survives a crash. The gate goes on from a decision as if it were its own.

use thiserror::Error;

use super::{Decision, Gate, LearnBatch, Learner, NO_GATE, NoResponse, Verdict, Versions};
use crate::event::EdgeId;
use crate::model::Weights;

/// What the loop is asked to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Publish a version: the candidate, the previous one or the anchor; without a number, the candidate.
    Promote(Option<u64>),
    /// Publish the previous version again, and train on from it.
    RollBack,
    /// Train weights, or only score and remember.
    Train(bool),
}

/// What was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operated {
    /// What the learner reflects: every log position below.
    pub position: EdgeId,
    /// Version that is served.
    pub served: u64,
    /// Version that was served before.
    pub published: Option<u64>,
    /// Version that is trained.
    pub candidate: u64,
}

/// Why an operation was not carried out.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum OperationError {
    /// It asks for what is not there; nothing was changed.
    #[error("{0}")]
    Refused(String),
    /// It cannot be done now; nothing was changed.
    #[error("{0}")]
    Failed(String),
    /// It may have been done, or was done and a restart forgets it.
    #[error("{0}")]
    Unsettled(String),
}

impl From<NoResponse> for OperationError {
    fn from(why: NoResponse) -> Self {
        match why {
            NoResponse::NotTaken(why) => Self::Failed(why),
            NoResponse::Unknown(why) => Self::Unsettled(why),
        }
    }
}

fn refused(why: &str) -> OperationError {
    OperationError::Refused(why.to_owned())
}

impl Learner {
    /// Carries out what operators asked for since the last turn. `batch` is what was fetched last.
    pub(super) fn operate(&mut self, batch: &LearnBatch, pulse: &dyn Fn()) {
        let status = self.shared.status.clone();
        while let Some((operation, reply)) = status.operations.next() {
            reply.send(self.perform(operation, batch, pulse));
        }
    }

    fn perform(
        &mut self,
        operation: Operation,
        batch: &LearnBatch,
        pulse: &dyn Fn(),
    ) -> Result<Operated, OperationError> {
        let before = self.gate.as_ref().map(Gate::versions).unwrap_or_default();
        let verdict = match operation {
            Operation::Promote(version) => {
                self.promote_by_hand(version)?;
                Some(Verdict::Promoted)
            }
            Operation::RollBack => {
                self.roll_back_by_hand()?;
                Some(Verdict::RolledBack)
            }
            Operation::Train(train) => {
                self.options.train = train;
                self.shared.status.update(|report| report.trains = train);
                None
            }
        };
        if let Some(verdict) = verdict {
            self.publish_decision(verdict, before, batch, pulse)?;
        }
        let (served, candidate) = (self.version, self.trainer.steps());
        Ok(Operated { position: self.learned, served, published: before.published, candidate })
    }

    fn promote_by_hand(&mut self, version: Option<u64>) -> Result<(), OperationError> {
        let candidate = self.candidate()?;
        let gate = self.gate.as_mut().ok_or_else(|| refused(NO_GATE))?;
        let version = version.unwrap_or(candidate.version);
        if gate.published().is_some_and(|weights| weights.version == version) {
            return Err(OperationError::Refused(format!("version {version} is served already")));
        }
        let at_hand = [Some(&candidate), gate.kept(), gate.anchor()];
        let found = at_hand.into_iter().flatten().find(|weights| weights.version == version).cloned();
        let Some(found) = found else {
            let mut others: Vec<u64> = at_hand[1..].iter().flatten().map(|weights| weights.version).collect();
            others.dedup();
            return Err(OperationError::Refused(format!(
                "version {version} is not at hand: a running daemon has the candidate {} and {others:?}; for one in an \
                 older checkpoint stop it and run `evergraph model promote` without --live",
                candidate.version
            )));
        };
        gate.promote(found, (self.options.clock)());
        Ok(())
    }

    fn roll_back_by_hand(&mut self) -> Result<(), OperationError> {
        self.candidate()?;
        let gate = self.gate.as_mut().ok_or_else(|| refused(NO_GATE))?;
        if gate.kept().is_none() {
            return Err(refused("there is no previous version to roll back to"));
        }
        gate.roll_back(&mut self.trainer, (self.options.clock)()).map_err(|error| {
            OperationError::Failed(format!(
                "nothing was changed: the candidate cannot go on from the previous version: {error}"
            ))
        })
    }

    /// The weights that are trained.
    fn candidate(&mut self) -> Result<Weights, OperationError> {
        if self.trainer.steps() == 0 {
            return Err(refused("nothing was learned yet"));
        }
        self.fetch_gpu_weights();
        let unread = |error| OperationError::Failed(format!("the weights cannot be read: {error}"));
        self.trainer.weights().map_err(unread)
    }

    /// Publishes the weights that the gate now names, records the decision, and has it outlive a crash. The gate named
    /// the versions `before` until then.
    fn publish_decision(
        &mut self,
        verdict: Verdict,
        before: Versions,
        batch: &LearnBatch,
        pulse: &dyn Fn(),
    ) -> Result<(), OperationError> {
        let unpublished = |error| OperationError::Failed(format!("nothing was published: {error}"));
        self.on_gpu(Self::publish_weights).map_err(unpublished)?;
        let (version, versions) = (self.version, self.gate.as_ref().map(Gate::versions).unwrap_or_default());
        self.shared.status.update(|report| {
            report.model_version = version;
            report.gate.versions = versions;
        });
        let memory = "node memory is as the candidates wrote it";
        tracing::info!(version, previous = ?versions.kept, "by an operator: {}; {memory}", verdict.name());
        let written = self.checkpoint_now(batch, pulse);
        let candidate = if verdict == Verdict::Promoted { version } else { self.trainer.steps() };
        let (versions, position) = (before, self.learned.0);
        (self.record.decision)(&Decision { verdict, figures: None, candidate, versions, position });
        written.map_err(|error| {
            OperationError::Unsettled(format!(
                "version {version} is served, but no checkpoint could be written, so a restart forgets it: {error}"
            ))
        })
    }
}
