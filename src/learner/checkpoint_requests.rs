//! Checkpoints on request: any thread submits a request, and the loop writes the checkpoint at its next turn.

use crossbeam_channel::{Receiver, Sender, bounded};
use parking_lot::Mutex;

use crate::event::EdgeId;

/// Most requests that wait at a time; one checkpoint completes all of them.
const WAITING_MAX: usize = 64;

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

/// The outcome of a request: the checkpoint, or why there is none.
pub type CheckpointResult = Result<Durable, String>;

/// The requests that wait for the loop's next turn.
#[derive(Debug, Default)]
pub struct CheckpointRequests(Mutex<Waiting>);

#[derive(Debug, Default)]
struct Waiting {
    replies: Vec<Sender<CheckpointResult>>,
    is_closed: bool,
}

impl CheckpointRequests {
    /// Requests a checkpoint. The result arrives once it is durable.
    ///
    /// # Errors
    /// When the loop has ended, or too many wait already.
    pub fn submit(&self) -> Result<Receiver<CheckpointResult>, String> {
        let mut waiting = self.0.lock();
        if waiting.is_closed {
            return Err("the learner has ended".to_owned());
        }
        if waiting.replies.len() >= WAITING_MAX {
            return Err(format!("{WAITING_MAX} requests for a checkpoint wait already"));
        }
        let (reply, result) = bounded(1);
        waiting.replies.push(reply);
        Ok(result)
    }

    /// Whether a request is waiting.
    pub(super) fn is_waiting(&self) -> bool {
        !self.0.lock().replies.is_empty()
    }

    /// Sends `result` to every waiting request.
    pub(super) fn complete(&self, result: &CheckpointResult) {
        for reply in std::mem::take(&mut self.0.lock().replies) {
            // A requester that gave up has dropped its receiver.
            let _ = reply.try_send(result.clone());
        }
    }

    /// Accepts no more requests; those that wait get an error.
    pub(super) fn close(&self) {
        self.0.lock().is_closed = true;
        self.complete(&Err("the learner has ended".to_owned()));
    }
}

/// Closes the requests and operations when the loop ends, however it does.
pub(super) struct Closing(pub std::sync::Arc<super::LearnerStatus>);

impl Drop for Closing {
    fn drop(&mut self) {
        self.0.requests.close();
        self.0.operations.close();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_request_gets_one_response_and_none_is_accepted_after_the_end() {
        let requests = CheckpointRequests::default();
        let (first, second) = (requests.submit().unwrap(), requests.submit().unwrap());
        assert!(requests.is_waiting());
        let made = Ok(Durable { name: "a".to_owned(), position: EdgeId(3), model_version: 1 });
        requests.complete(&made);
        assert_eq!((first.recv().unwrap(), second.recv().unwrap()), (made.clone(), made));
        assert!(!requests.is_waiting() && first.recv().is_err());
        let late = requests.submit().unwrap();
        requests.close();
        assert!(late.recv().unwrap().is_err() && requests.submit().is_err());
        let many = CheckpointRequests::default();
        let waiting: Vec<_> = (0..WAITING_MAX).map(|_| many.submit().unwrap()).collect();
        assert!(many.submit().unwrap_err().contains("64") && waiting.len() == WAITING_MAX);
    }
}
