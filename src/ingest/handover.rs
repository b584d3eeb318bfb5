//! What sources share: what they are connected to, and submitting a batch to the log so that its sender always receives
//! the outcome, also when the batch is dropped because the loop that stores events has ended: it is unknown then.

use std::collections::BTreeSet;
use std::sync::Arc;

use crossbeam_channel::Sender;
use parking_lot::RwLock;

use super::admit::{Admission, AdmitCursor};
use super::dead_letter::DeadLetters;
use crate::event::{PositionLookup, Receipt, Reply, Submission, SubmitError};

/// What a source is connected to.
#[derive(Clone)]
pub struct SourceWiring {
    /// The bounded queue to the log.
    pub submissions: Sender<Submission>,
    /// Where the log stands.
    pub positions: Arc<dyn PositionLookup>,
    /// The stream's rules.
    pub admission: Arc<Admission>,
    /// Where refused events are kept.
    pub dead_letters: Arc<DeadLetters>,
    /// Sources that are paused by an operator.
    pub holds: Arc<Holds>,
}

/// The sources that an operator holds, by name. A source checks before it reads on; what it has read it submits.
#[derive(Debug, Default)]
pub struct Holds(RwLock<BTreeSet<String>>);

impl Holds {
    /// Holds a source, or lets it go on.
    pub fn set(&self, source: &str, held: bool) {
        let mut names = self.0.write();
        if held {
            names.insert(source.to_owned());
        } else {
            names.remove(source);
        }
    }

    /// Whether a source is held.
    #[must_use]
    pub fn has(&self, source: &str) -> bool {
        self.0.read().contains(source)
    }
}

impl SourceWiring {
    /// A cursor to judge the events of one partition with, which goes on where the log stands. Sources
    /// without offsets share one partition in the log.
    pub(super) fn cursor(&self, source: &Arc<str>, partition: i32, has_offsets: bool) -> AdmitCursor {
        let logged = if has_offsets { source } else { "" };
        self.admission.cursor(source, partition, self.positions.clock(logged, partition))
    }
}

/// What became of the batch that `tag` names.
pub(super) struct Outcome<T> {
    pub tag: T,
    pub result: Result<Receipt, SubmitError>,
}

/// Sends the outcome once: when it is known, or when dropped before.
struct Once<T: Send> {
    pending: Option<(Sender<Outcome<T>>, T)>,
}

impl<T: Send> Once<T> {
    fn send(&mut self, result: Result<Receipt, SubmitError>) {
        if let Some((sender, tag)) = self.pending.take() {
            // A source that has ended no longer listens.
            let _ = sender.send(Outcome { tag, result });
        }
    }
}

impl<T: Send> Drop for Once<T> {
    fn drop(&mut self) {
        self.send(Err(SubmitError::OutcomeUnknown));
    }
}

/// A reply that sends the outcome into `sender`, which must have room (unbounded, or one slot per batch).
pub(super) fn reply_into<T: Send + 'static>(sender: Sender<Outcome<T>>, tag: T) -> Reply {
    let mut once = Once { pending: Some((sender, tag)) };
    Box::new(move |result| once.send(result))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dropped_batch_has_one_outcome_which_is_unknown() {
        let (sender, outcomes) = crossbeam_channel::unbounded();
        drop(reply_into(sender.clone(), 1));
        let receipt = Receipt {
            first: crate::event::EdgeId(0),
            end: crate::event::EdgeId(3),
            accepted: 3,
            duplicates: 0,
        };
        reply_into(sender, 2)(Ok(receipt));
        let received: Vec<_> = outcomes.iter().map(|o| (o.tag, o.result)).collect();
        assert_eq!(received, [(1, Err(SubmitError::OutcomeUnknown)), (2, Ok(receipt))]);
    }
}
