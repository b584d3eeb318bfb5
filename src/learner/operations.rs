//! What operators ask of the running loop: which version of the weights is served, and whether weights are trained. Any
//! thread submits an operation; the loop carries it out at its next turn, writes a checkpoint, and only then responds:
//! what was responded to survives a crash. The gate goes on from a decision as if it were its own.

use std::collections::VecDeque;

use crossbeam_channel::{Receiver, Sender, bounded};
use parking_lot::Mutex;
use thiserror::Error;

use super::{LearnBatch, Learner, Verdict};
use crate::event::EdgeId;
use crate::model::Weights;

/// Most operations that wait at a time.
const WAITING_MAX: usize = 16;

const NO_GATE: &str = "learner.gate.enabled is false: the weights are served as they are trained";

/// What the loop is asked to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Publish a version: the candidate or the previous one; without a number, the candidate.
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
    /// The previous version until then.
    pub kept: Option<u64>,
    /// Version that is trained.
    pub candidate: u64,
}

/// Why an operation was not carried out.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum OperationError {
    /// It asks for what is not there; nothing was changed.
    #[error("{0}")]
    Refused(String),
    /// It cannot be done now.
    #[error("{0}")]
    Failed(String),
}

impl From<&str> for OperationError {
    fn from(why: &str) -> Self {
        Self::Refused(why.to_owned())
    }
}

/// The outcome of an operation.
pub type OperationResult = Result<Operated, OperationError>;

/// The operations that wait for the loop's next turn.
#[derive(Debug, Default)]
pub struct Operations(Mutex<Waiting>);

#[derive(Debug, Default)]
struct Waiting {
    operations: VecDeque<(Operation, Sender<OperationResult>)>,
    is_closed: bool,
}

impl Operations {
    /// Requests an operation.
    ///
    /// # Errors
    /// When the loop has ended, or too many wait already.
    pub fn submit(&self, operation: Operation) -> Result<Receiver<OperationResult>, OperationError> {
        let mut waiting = self.0.lock();
        if waiting.is_closed {
            return Err(ended());
        }
        if waiting.operations.len() >= WAITING_MAX {
            return Err(OperationError::Failed(format!("{WAITING_MAX} operations wait already")));
        }
        let (reply, result) = bounded(1);
        waiting.operations.push_back((operation, reply));
        Ok(result)
    }

    fn next(&self) -> Option<(Operation, Sender<OperationResult>)> {
        self.0.lock().operations.pop_front()
    }

    /// Accepts no more; those that wait get an error.
    pub(super) fn close(&self) {
        let mut waiting = self.0.lock();
        waiting.is_closed = true;
        for (_, reply) in waiting.operations.drain(..) {
            // A requester that gave up has dropped its receiver.
            let _ = reply.try_send(Err(ended()));
        }
    }
}

fn ended() -> OperationError {
    OperationError::Failed("the learner has ended".to_owned())
}

impl Learner {
    /// Carries out what operators asked for since the last turn. `batch` is what was fetched last.
    pub(super) fn operate(&mut self, batch: &LearnBatch, pulse: &dyn Fn()) {
        let status = self.shared.status.clone();
        while let Some((operation, reply)) = status.operations.next() {
            let outcome = self.perform(operation, batch, pulse);
            // A requester that gave up has dropped its receiver; the audit has its request.
            let _ = reply.try_send(outcome);
        }
    }

    fn perform(&mut self, operation: Operation, batch: &LearnBatch, pulse: &dyn Fn()) -> OperationResult {
        let version = |weights: Option<&Weights>| weights.map(|weights| weights.version);
        let gate = self.gate.as_ref();
        let (published, kept) =
            (version(gate.and_then(|gate| gate.published())), version(gate.and_then(|gate| gate.kept())));
        match operation {
            Operation::Promote(version) => self.promote_by_hand(version)?,
            Operation::RollBack => self.roll_back_by_hand()?,
            Operation::Train(train) => {
                self.options.train = train;
                self.shared.status.update(|report| report.trains = train);
            }
        }
        if !matches!(operation, Operation::Train(_)) {
            let verdict =
                if operation == Operation::RollBack { Verdict::RolledBack } else { Verdict::Promoted };
            self.publish_decision(verdict, batch, pulse)?;
        }
        let (served, candidate) = (self.version, self.trainer.steps());
        Ok(Operated { position: self.learned, served, published, kept, candidate })
    }

    fn promote_by_hand(&mut self, version: Option<u64>) -> Result<(), OperationError> {
        let candidate = self.candidate()?;
        let gate = self.gate.as_mut().ok_or(NO_GATE)?;
        let version = version.unwrap_or(candidate.version);
        if gate.published().is_some_and(|weights| weights.version == version) {
            return Err(OperationError::Refused(format!("version {version} is served already")));
        }
        let at_hand = [Some(&candidate), gate.kept()];
        let found = at_hand.into_iter().flatten().find(|weights| weights.version == version).cloned();
        let Some(found) = found else {
            let previous = gate
                .kept()
                .map_or("no previous one".to_owned(), |kept| format!("the previous {}", kept.version));
            return Err(OperationError::Refused(format!(
                "version {version} is not at hand: a running daemon has the candidate {} and {previous}; for one in an \
                 older checkpoint stop it and run `evergraph model promote` without --live",
                candidate.version
            )));
        };
        gate.promote(found);
        Ok(())
    }

    fn roll_back_by_hand(&mut self) -> Result<(), OperationError> {
        self.candidate()?;
        let gate = self.gate.as_mut().ok_or(NO_GATE)?;
        if gate.kept().is_none() {
            return Err("there is no previous version to roll back to".into());
        }
        match gate.roll_back().map(|kept| self.trainer.set_weights(kept)) {
            Some(Err(error)) => Err(OperationError::Failed(format!(
                "the candidate cannot go on from the previous version, which is served: {error}"
            ))),
            _ => Ok(()),
        }
    }

    /// The weights that are trained.
    fn candidate(&mut self) -> Result<Weights, OperationError> {
        if self.learned == EdgeId(0) {
            return Err("nothing was learned yet".into());
        }
        self.fetch_gpu_weights();
        let unread = |error| OperationError::Failed(format!("the weights cannot be read: {error}"));
        self.trainer.weights().map_err(unread)
    }

    /// Publishes the weights that the gate now names, and has them outlive a crash.
    fn publish_decision(
        &mut self,
        verdict: Verdict,
        batch: &LearnBatch,
        pulse: &dyn Fn(),
    ) -> Result<(), OperationError> {
        let unpublished = |error| OperationError::Failed(format!("nothing was published: {error}"));
        self.on_gpu(Self::publish_weights).map_err(unpublished)?;
        let (version, kept) = (self.version, self.gate.as_ref().and_then(|gate| gate.kept()));
        let kept = kept.map(|kept| kept.version);
        self.shared.status.update(|report| {
            report.model_version = version;
            report.gate.kept = kept;
        });
        tracing::info!(version, previous = ?kept, "by an operator: {}", verdict.name());
        self.write_checkpoint(&self.mark(batch), pulse).map_err(|error| {
            OperationError::Failed(format!(
                "version {version} is served, but no checkpoint could be written, so a restart forgets it: {error}"
            ))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_wait_in_order_and_none_waits_for_a_loop_that_has_ended() {
        let operations = Operations::default();
        let waiting: Vec<_> = (0..WAITING_MAX as u64)
            .map(|version| operations.submit(Operation::Promote(Some(version))).unwrap())
            .collect();
        assert!(operations.submit(Operation::RollBack).unwrap_err().to_string().contains("16"));
        for version in 0..3 {
            assert_eq!(operations.next().unwrap().0, Operation::Promote(Some(version)));
        }
        assert!(waiting[0].try_recv().is_err(), "no response yet");
        operations.close();
        assert!(waiting[5].recv().unwrap().unwrap_err().to_string().contains("has ended"));
        assert!(operations.submit(Operation::Train(true)).is_err() && operations.next().is_none());
    }
}
