//! Requests to a loop from any thread. They wait in order until the loop takes them at its next turn, and each gets one
//! response, also where the loop ends first.

use std::collections::VecDeque;
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};
use parking_lot::Mutex;
use thiserror::Error;

/// Why a request has no response from the loop.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum NoResponse {
    /// The loop did not take it: nothing was done.
    #[error("{0}")]
    NotTaken(String),
    /// It may have been done, or may still be.
    #[error("{0}")]
    Unknown(String),
}

impl From<NoResponse> for String {
    fn from(why: NoResponse) -> Self {
        why.to_string()
    }
}

/// The requests `Q` that wait for a loop; it responds with a `T`, or why there is none.
#[derive(Debug)]
pub struct Requests<Q, T, E> {
    whose: &'static str,
    waiting_max: usize,
    waiting: Mutex<Waiting<Q, T, E>>,
}

#[derive(Debug)]
struct Waiting<Q, T, E> {
    requests: VecDeque<(Q, Reply<T, E>)>,
    is_closed: bool,
}

/// Where the response to a request goes.
#[derive(Debug)]
pub struct Reply<T, E>(Sender<Result<T, E>>);

impl<T, E> Reply<T, E> {
    /// Responds.
    pub fn send(self, outcome: Result<T, E>) {
        // A requester that gave up has dropped its receiver.
        let _ = self.0.try_send(outcome);
    }
}

impl<Q, T, E: From<NoResponse>> Requests<Q, T, E> {
    /// No requests to `whose` loop; at most `waiting_max` wait at a time.
    #[must_use]
    pub fn new(whose: &'static str, waiting_max: usize) -> Self {
        let waiting = Mutex::new(Waiting { requests: VecDeque::new(), is_closed: false });
        Self { whose, waiting_max, waiting }
    }

    /// Submits a request; the response arrives at the receiver.
    ///
    /// # Errors
    /// When the loop has ended, or too many wait already.
    pub fn submit(&self, request: Q) -> Result<Receiver<Result<T, E>>, E> {
        let mut waiting = self.waiting.lock();
        if waiting.is_closed {
            return Err(self.not_taken());
        }
        if waiting.requests.len() >= self.waiting_max {
            let why = format!("{} requests to {} wait already", self.waiting_max, self.whose);
            return Err(NoResponse::NotTaken(why).into());
        }
        let (reply, outcome) = bounded(1);
        waiting.requests.push_back((request, Reply(reply)));
        Ok(outcome)
    }

    /// Submits a request and waits for the response.
    ///
    /// # Errors
    /// As [`submit`](Self::submit), why it was not done, or that it was not within `limit`.
    pub fn wait(&self, request: Q, limit: Duration) -> Result<T, E> {
        self.response(&self.submit(request)?, limit)
    }

    /// Waits for the response to a request that was submitted.
    ///
    /// # Errors
    /// Why it was not done, or that it was not within `limit`.
    pub fn response(&self, outcome: &Receiver<Result<T, E>>, limit: Duration) -> Result<T, E> {
        outcome.recv_timeout(limit).unwrap_or_else(|error| {
            let why = match error {
                RecvTimeoutError::Timeout => {
                    format!("not done within {} s; it may still be", limit.as_secs())
                }
                RecvTimeoutError::Disconnected => format!("{} has ended; it may have been done", self.whose),
            };
            Err(NoResponse::Unknown(why).into())
        })
    }

    /// Whether a request is waiting.
    #[must_use]
    pub fn is_waiting(&self) -> bool {
        !self.waiting.lock().requests.is_empty()
    }

    /// The next request.
    #[must_use]
    pub fn next(&self) -> Option<(Q, Reply<T, E>)> {
        self.waiting.lock().requests.pop_front()
    }

    /// Accepts no more requests; those that wait get an error.
    pub fn close(&self) {
        let mut waiting = self.waiting.lock();
        waiting.is_closed = true;
        waiting.requests.drain(..).for_each(|(_, reply)| reply.send(Err(self.not_taken())));
    }

    fn not_taken(&self) -> E {
        NoResponse::NotTaken(format!("{} does not run", self.whose)).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(30);

    fn requests() -> Requests<u64, u64, String> {
        Requests::new("the loop", 64)
    }

    #[test]
    fn every_request_gets_one_response_and_none_is_accepted_after_the_end() {
        let requests = requests();
        let (first, second) = (requests.submit(1).unwrap(), requests.submit(2).unwrap());
        assert!(requests.is_waiting());
        for expected in [1, 2] {
            let (request, reply) = requests.next().unwrap();
            assert_eq!(request, expected, "in order");
            reply.send(Ok(10 * request));
        }
        assert_eq!((first.recv().unwrap(), second.recv().unwrap()), (Ok(10), Ok(20)));
        assert!(!requests.is_waiting() && first.recv().is_err());
        let late = requests.submit(3).unwrap();
        assert!(late.try_recv().is_err(), "no response yet");
        requests.close();
        assert!(late.recv().unwrap().unwrap_err().contains("does not run"));
        assert!(requests.submit(4).is_err() && requests.next().is_none());
    }

    #[test]
    fn so_many_wait_and_no_more() {
        let many = requests();
        let waiting: Vec<_> = (0..64).map(|request| many.submit(request).unwrap()).collect();
        assert!(many.submit(64).unwrap_err().contains("64 requests") && waiting.len() == 64);
    }

    #[test]
    fn a_response_is_waited_for_and_who_waits_in_vain_gets_to_know() {
        let requests = std::sync::Arc::new(requests());
        let server = requests.clone();
        let thread = std::thread::spawn(move || {
            while !server.is_waiting() {
                std::thread::yield_now();
            }
            server.next().unwrap().1.send(Ok(7));
        });
        assert_eq!(requests.wait(1, LONG), Ok(7));
        thread.join().unwrap();
        let late = requests.wait(2, Duration::from_millis(1)).unwrap_err();
        assert!(late.contains("may still be"), "{late}");
        // A loop that takes a request and is gone before it responds.
        let lost = requests.submit(3).unwrap();
        while let Some(taken) = requests.next() {
            drop(taken);
        }
        assert!(requests.response(&lost, LONG).unwrap_err().contains("has ended"));
    }
}
