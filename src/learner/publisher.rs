//! [`Publisher`]: hands over to readers what a GPU still computes, on a thread of its own, so that the loop goes on.
//!
//! ```text
//! loop       step n, ask for its rows | prepare n + 1 | step n + 1, ask for its rows | …
//! GPU        step n        | rows n |                 | step n + 1  | rows n + 1 |
//! publisher                         | publish rows n, then position n            | publish rows n + 1, …
//! ```
//!
//! All is handed over in order, each position behind its rows. When the GPU fails, that and all behind it goes back to
//! the loop, which publishes it in another way.

use std::collections::VecDeque;
use std::thread::JoinHandle;

use crossbeam_channel::{Receiver, Sender, TryRecvError, bounded};

use super::threads::yield_to_serving;
use crate::train::TrainError;

/// Something that may have to be waited for before readers can have it.
pub(super) trait Pending: Send + 'static {
    /// Waits for it, and hands it over.
    ///
    /// # Errors
    /// It cannot be had, and readers do not have it.
    fn hand_over(&mut self) -> Result<(), TrainError>;
}

/// What was not handed over, and why, if it was tried.
pub(super) type Failed<T> = (T, Option<TrainError>);

/// The thread, what it was given, and what failed.
pub(super) struct Publisher<T> {
    /// Of the thread, when it starts.
    nice: u8,
    thread: Option<Thread<T>>,
    under_way: usize,
    failed: VecDeque<Failed<T>>,
}

struct Thread<T> {
    to_do: Sender<T>,
    done: Receiver<Result<(), Failed<T>>>,
    handle: JoinHandle<()>,
}

impl<T: Pending> Publisher<T> {
    /// What may be under way when more comes: a loop that is faster than its readers' rows waits.
    const DEPTH: usize = 2;

    /// Has no thread before it is given something.
    pub fn new(nice: u8) -> Self {
        Self { nice, thread: None, under_way: 0, failed: VecDeque::new() }
    }

    /// Hands `pending` over after all before it, and does not wait for that.
    pub fn push(&mut self, mut pending: T) {
        if self.thread.is_none() {
            self.thread = Thread::start(self.nice);
        }
        match &self.thread {
            Some(thread) => {
                // A thread that is gone is noticed when its outcomes are read.
                let _ = thread.to_do.send(pending);
                self.under_way += 1;
                self.look(Self::DEPTH);
            }
            None => {
                let failed = pending.hand_over().err();
                self.failed.extend(failed.map(|error| (pending, Some(error))));
            }
        }
    }

    /// Waits until all was handed over, or failed.
    pub fn settle(&mut self) {
        self.look(0);
    }

    /// The first that failed by now, which is no longer known then. No later one was handed over.
    pub fn take_failed(&mut self) -> Option<Failed<T>> {
        self.look(usize::MAX);
        self.failed.pop_front()
    }

    /// Takes note of what is done, until at most so many are under way.
    fn look(&mut self, most: usize) {
        let Some(thread) = &self.thread else { return };
        let mut is_gone = false;
        while self.under_way > 0 && !is_gone {
            let must_wait = self.under_way > most;
            let outcome =
                if must_wait { thread.done.recv().map_err(Into::into) } else { thread.done.try_recv() };
            match outcome {
                Ok(outcome) => {
                    self.under_way -= 1;
                    self.failed.extend(outcome.err());
                }
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => is_gone = true,
            }
        }
        if let Some(thread) = self.thread.take_if(|_| is_gone) {
            thread.end();
        }
    }
}

impl<T: Pending> Thread<T> {
    /// `None` where no thread can be had.
    fn start(nice: u8) -> Option<Self> {
        let room = Publisher::<T>::DEPTH + 1;
        let ((to_do, next), (outcomes, done)) = (bounded::<T>(room), bounded(room));
        let work = move || {
            yield_to_serving(nice);
            let mut is_broken = false;
            for mut pending in next {
                let outcome = match is_broken {
                    true => Err((pending, None)),
                    false => match pending.hand_over() {
                        Ok(()) => Ok(()),
                        Err(error) => Err((pending, Some(error))),
                    },
                };
                is_broken |= outcome.is_err();
                if outcomes.send(outcome).is_err() {
                    return;
                }
            }
        };
        let handle = std::thread::Builder::new().name("publish".to_owned()).spawn(work).ok()?;
        Some(Self { to_do, done, handle })
    }

    /// Goes on with the panic of a thread that is gone.
    fn end(self) -> ! {
        drop((self.to_do, self.done));
        match self.handle.join() {
            Err(panic) => std::panic::resume_unwind(panic),
            Ok(()) => unreachable!("the thread ends when nobody can give it anything"),
        }
    }
}

impl<T> Drop for Publisher<T> {
    /// Waits until the thread has handed over what it was given.
    fn drop(&mut self) {
        if let Some(Thread { to_do, done, handle }) = self.thread.take() {
            drop(to_do);
            // A panic was reported where it happened.
            let _ = handle.join();
            drop(done);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use parking_lot::Mutex;

    use super::*;

    /// Notes its number where it is handed over, unless it fails.
    struct Number(u64, Arc<Mutex<Vec<u64>>>, Option<Receiver<()>>);

    impl Pending for Number {
        fn hand_over(&mut self) -> Result<(), TrainError> {
            self.2.iter().for_each(|go| go.recv().unwrap());
            if self.0 % 10 == 9 {
                return Err(TrainError::OutOfOrder { step: self.0 });
            }
            std::thread::sleep(Duration::from_millis(1));
            self.1.lock().push(self.0);
            Ok(())
        }
    }

    #[test]
    fn all_is_handed_over_in_order_and_after_a_failure_nothing_is() {
        let (seen, mut publisher) = (Arc::default(), Publisher::new(0));
        let number = |number| Number(number, Arc::clone(&seen), None);
        for i in 0..9 {
            publisher.push(number(i));
            assert!(seen.lock().len() as u64 + Publisher::<Number>::DEPTH as u64 > i, "it waits at last");
        }
        publisher.settle();
        assert!(publisher.take_failed().is_none());
        assert_eq!(*seen.lock(), (0..9).collect::<Vec<_>>());
        (9..20).for_each(|i| publisher.push(number(i)));
        publisher.settle();
        let (first, error) = publisher.take_failed().unwrap();
        assert!(first.0 == 9 && error.is_some());
        let failed: Vec<_> = std::iter::from_fn(|| publisher.take_failed()).collect();
        assert!(
            failed.iter().map(|(number, _)| number.0).eq(10..20)
                && failed.iter().all(|(_, why)| why.is_none())
        );
        assert_eq!(seen.lock().len(), 9);
    }

    #[test]
    fn it_does_not_wait_for_what_was_pushed() {
        let (seen, mut publisher) = (Arc::default(), Publisher::new(0));
        let (go, gone) = bounded(1);
        publisher.push(Number(1, Arc::clone(&seen), Some(gone)));
        publisher.push(Number(2, Arc::clone(&seen), None));
        assert!(seen.lock().is_empty() && publisher.take_failed().is_none());
        go.send(()).unwrap();
        publisher.settle();
        assert_eq!(*seen.lock(), [1, 2]);
    }
}
