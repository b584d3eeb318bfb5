//! The threads for large requests. What takes long to parse, to compute, to write or to compress is done here, at a
//! lower priority than what serves small requests: on a busy machine, single reads go first.
//!
//! Jobs begin in the order in which they came. Computing is cut into pieces, between which other requests have their
//! turn; parsing, writing and compressing are one job each. A request has at most one job for each thread at a time,
//! and permits bound the requests, so the queue is bounded.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, unbounded};
use tokio::sync::oneshot;

use super::envelope::{Permit, within};
use super::error::ApiError;
use crate::device::stand_back;
use crate::serving::compute_alone;

type Job = Box<dyn FnOnce() + Send>;

/// The threads, which end with the last handle.
pub struct Bulk {
    jobs: Sender<Job>,
    threads: usize,
}

impl Bulk {
    /// Starts a thread for each core but one, and one at least, with the nice value `nice`.
    ///
    /// # Errors
    /// The system refuses a thread.
    pub fn start(nice: u8) -> std::io::Result<Arc<Self>> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Self::with_threads(cores.saturating_sub(1).max(1), nice)
    }

    /// Starts `threads` threads.
    pub(super) fn with_threads(threads: usize, nice: u8) -> std::io::Result<Arc<Self>> {
        let (jobs, queue) = unbounded::<Job>();
        for number in 0..threads {
            let queue = queue.clone();
            let name = format!("bulk-{number}");
            std::thread::Builder::new().name(name).spawn(move || work(&queue, nice))?;
        }
        Ok(Arc::new(Self { jobs, threads }))
    }

    /// Number of threads.
    pub(super) fn threads(&self) -> usize {
        self.threads
    }

    /// Queues a job. After a panic, which the panic hook has logged, what it holds is dropped.
    pub(super) fn spawn(&self, job: impl FnOnce() + Send + 'static) {
        // The threads end only when no handle is left.
        let _ = self.jobs.send(Box::new(job));
    }

    /// Does `work` under the permit of its request. After `limit` the client gets a timeout error; work that has begun
    /// continues and keeps its permit.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        permit: Option<Permit>,
        limit: Duration,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, ApiError> {
        let (reply, received) = oneshot::channel();
        self.spawn(move || {
            let _permit = permit;
            if !reply.is_closed() {
                // Sending fails only if the client has gone.
                let _ = reply.send(work());
            }
        });
        within(limit, received).await
    }
}

/// A thread: its jobs run on it alone, also where they would share work with a pool of threads of another priority.
/// What a job leaves to `rayon::spawn` would never run here.
fn work(queue: &Receiver<Job>, nice: u8) {
    stand_back(nice, "learner.nice");
    let _alone = compute_alone("large requests");
    for job in queue {
        // The hook for panics has logged it.
        let _ = catch_unwind(AssertUnwindSafe(job));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::thread;

    use rayon::prelude::*;
    use rustix::process::getpriority_process;
    use rustix::thread::gettid;

    use super::*;

    const LONG: Duration = Duration::from_secs(30);

    #[tokio::test]
    async fn jobs_run_in_order_on_threads_that_stand_back_and_share_them_with_nobody() {
        let bulk = Bulk::with_threads(1, 19).unwrap();
        let nice = || getpriority_process(Some(gettid())).unwrap();
        let before = nice();
        assert_eq!(bulk.run(None, LONG, nice).await.unwrap(), 19);
        assert_eq!(nice(), before);
        let parts = || {
            let own = thread::current().id();
            (0..1_000).into_par_iter().all(|_| thread::current().id() == own)
        };
        assert!(bulk.run(None, LONG, parts).await.unwrap());
        let order = Arc::new(Mutex::new(Vec::new()));
        let seen = bulk.run(None, LONG, || thread::current().name().map(str::to_owned)).await.unwrap();
        assert!(seen.unwrap().starts_with("bulk-"));
        for number in 0..10 {
            let order = Arc::clone(&order);
            bulk.spawn(move || order.lock().unwrap().push(number));
        }
        bulk.run(None, LONG, || ()).await.unwrap();
        assert_eq!(*order.lock().unwrap(), (0..10).collect::<Vec<_>>());
    }

    #[tokio::test]
    async fn a_panic_fails_its_request_only_and_late_work_is_a_timeout() {
        let bulk = Bulk::start(0).unwrap();
        let failed = bulk.run::<()>(None, LONG, || panic!("on purpose")).await;
        assert!(matches!(failed, Err(ApiError::Internal)), "{failed:?}");
        let slow = || thread::sleep(Duration::from_millis(200));
        let late = bulk.run(None, Duration::from_millis(5), slow).await;
        assert!(matches!(late, Err(ApiError::WorkTimeout { .. })), "{late:?}");
        assert_eq!(bulk.run(None, LONG, || 5).await.unwrap(), 5);
    }
}
