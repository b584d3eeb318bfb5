//! What operators ask of the thread that writes snapshots: one at once, or a shorter log.

use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, bounded};

use crate::api::OperatorError;
use crate::event::EdgeId;

/// Most requests that wait at a time.
const WAITING_MAX: usize = 16;

/// What is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wanted {
    /// A snapshot of what is in the log now.
    Snapshot,
    /// That the log is cut behind the kept snapshots and checkpoints.
    Cut,
}

/// What there is afterwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Kept {
    /// Position of the newest snapshot.
    pub snapshot: EdgeId,
    /// The first position of the log.
    pub log_first: EdgeId,
    /// Bytes of the log.
    pub log_bytes: u64,
}

/// The outcome of a request.
pub(super) type Outcome = Result<Kept, OperatorError>;

/// The requests that wait for the thread.
#[derive(Clone)]
pub(super) struct SnapshotRequests {
    sender: Sender<(Wanted, Sender<Outcome>)>,
    receiver: Receiver<(Wanted, Sender<Outcome>)>,
}

impl SnapshotRequests {
    pub fn new() -> Self {
        let (sender, receiver) = bounded(WAITING_MAX);
        Self { sender, receiver }
    }

    /// Submits a request and waits for its outcome.
    ///
    /// # Errors
    /// Why it was not done, or not within `limit`.
    pub fn submit(&self, wanted: Wanted, limit: Duration) -> Outcome {
        let (reply, outcome) = bounded(1);
        let many = |_| OperatorError::Failed(format!("{WAITING_MAX} requests wait already"));
        self.sender.try_send((wanted, reply)).map_err(many)?;
        let seconds = limit.as_secs();
        let late = |_| OperatorError::Failed(format!("not done within {seconds} s; it may still be"));
        outcome.recv_timeout(limit).map_err(late)?
    }

    /// The next request, waited for at most `pause`.
    pub fn next(&self, pause: Duration) -> Option<(Wanted, Sender<Outcome>)> {
        self.receiver.recv_timeout(pause).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_gets_its_outcome_or_says_that_it_is_late() {
        let requests = SnapshotRequests::new();
        assert!(requests.next(Duration::from_millis(1)).is_none());
        let server = requests.clone();
        let kept = Kept { snapshot: EdgeId(7), log_first: EdgeId(3), log_bytes: 9 };
        let thread = std::thread::spawn(move || {
            let (wanted, reply) = server.next(Duration::from_secs(30)).unwrap();
            assert_eq!(wanted, Wanted::Cut);
            reply.send(Ok(kept)).unwrap();
        });
        assert_eq!(requests.submit(Wanted::Cut, Duration::from_secs(30)).unwrap(), kept);
        thread.join().unwrap();
        let short = Duration::from_millis(1);
        let late = requests.submit(Wanted::Snapshot, short).unwrap_err();
        assert!(late.to_string().contains("may still be"), "{late}");
        let more: Vec<_> = (0..WAITING_MAX).map(|_| requests.submit(Wanted::Snapshot, short)).collect();
        let full = more.last().unwrap().as_ref().unwrap_err();
        assert!(full.to_string().contains("wait already"), "{full}");
    }
}
