//! [`Chooser`]: decides on a thread of its own which edge rows of a foreseen batch are brought to a GPU before that
//! batch comes. For that it finds every row of the batch, which would be a large part of what the trainer's thread does
//! beside a step that a GPU computes.
//!
//! While it decides, the thread has the directory of rows; whoever asks for that waits. Nothing that is decided
//! depends on when the thread runs. If it panics, so does who asks.

use std::thread::JoinHandle;

use crossbeam_channel::{Receiver, Sender, bounded};

use super::foreseen::Foreseen;
use crate::feature::cache::GpuRows;

/// The directory of edge rows on a GPU, and a thread beside it.
pub(super) struct Chooser {
    /// `None` while the thread has it.
    rows: Option<GpuRows>,
    /// The batch of which rows were chosen to be restored.
    chosen: Option<Foreseen>,
    /// `None` where no thread could be had: then the caller's decides.
    thread: Option<Thread>,
    /// Places and width of the directory.
    shape: (u64, usize),
}

struct Thread {
    jobs: Sender<Job>,
    done: Receiver<Job>,
    handle: JoinHandle<()>,
}

struct Job {
    rows: GpuRows,
    batch: Foreseen,
}

impl Job {
    fn run(mut self) -> Self {
        if let Some((round, _)) = self.batch.round() {
            self.rows.choose(&round);
        }
        self
    }
}

impl Thread {
    /// One that runs jobs until nobody has any for it; `None` if none can be had.
    fn start(run: fn(Job) -> Job) -> Option<Self> {
        let ((jobs, coming), (sender, done)) = (bounded::<Job>(1), bounded(1));
        let work = move || coming.iter().for_each(|job| drop(sender.send(run(job))));
        let handle = std::thread::Builder::new().name("choose".to_owned()).spawn(work).ok()?;
        Some(Self { jobs, done, handle })
    }

    /// It has ended before its jobs were done: it panicked.
    fn end(self) {
        drop(self.jobs);
        if let Err(panic) = self.handle.join()
            && !std::thread::panicking()
        {
            std::panic::resume_unwind(panic);
        }
    }
}

impl Chooser {
    /// Of a table of so many rows of so many values.
    pub fn new(places: u64, width: usize) -> Self {
        let shape = (places, width);
        Self { rows: Some(GpuRows::new(places, width)), chosen: None, thread: None, shape }
    }

    /// Begins to choose rows of `batch`.
    pub fn begin(&mut self, batch: Foreseen) {
        self.rows();
        self.thread = self.thread.take().or_else(|| Thread::start(Job::run));
        let Some(thread) = &self.thread else { return self.choose(batch) };
        let Some(rows) = self.rows.take() else { return };
        if let Err(refused) = thread.jobs.send(Job { rows, batch }) {
            self.take(refused.0.run());
        }
    }

    /// Chooses rows of `batch` now.
    pub fn choose(&mut self, batch: Foreseen) {
        self.rows();
        if let Some(rows) = self.rows.take() {
            self.take(Job { rows, batch }.run());
        }
    }

    /// Whether rows are chosen, or are about to be, that are not [taken](Self::chosen) yet.
    pub fn has_chosen(&self) -> bool {
        self.rows.is_none() || self.chosen.is_some()
    }

    /// The batch of which rows were chosen, once.
    pub fn chosen(&mut self) -> Option<Foreseen> {
        self.rows();
        self.chosen.take()
    }

    /// The directory.
    ///
    /// # Panics
    /// If the thread did.
    pub fn rows(&mut self) -> &mut GpuRows {
        if self.rows.is_none()
            && let Some(thread) = self.thread.take()
        {
            match thread.done.recv() {
                Ok(job) => {
                    self.thread = Some(thread);
                    self.take(job);
                }
                Err(_) => thread.end(),
            }
        }
        self.rows.get_or_insert_with(|| GpuRows::new(self.shape.0, self.shape.1))
    }

    /// Bytes of host memory.
    pub fn bytes(&mut self) -> usize {
        self.rows().bytes() + self.chosen.as_ref().map_or(0, Foreseen::bytes)
    }

    fn take(&mut self, job: Job) {
        (self.rows, self.chosen) = (Some(job.rows), Some(job.batch));
    }
}

impl Drop for Chooser {
    fn drop(&mut self) {
        // Memory that a GPU reads in place must not outlive the GPU's work on the thread.
        self.rows();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn foreseen(edges: &[u64]) -> Foreseen {
        Foreseen { edges: edges.to_vec(), in_place: None, here: Vec::new() }
    }

    #[test]
    fn a_directory_is_there_whoever_had_it() {
        let mut chooser = Chooser::new(100, 1);
        for round in 0..50_u64 {
            assert!(!chooser.has_chosen());
            match round % 3 {
                0 => chooser.choose(foreseen(&[round])),
                _ => chooser.begin(foreseen(&[round])),
            }
            assert!(chooser.has_chosen());
            if round % 2 == 0 {
                assert_eq!(chooser.rows().places(), 100);
            }
            assert_eq!(chooser.chosen().map(|batch| batch.edges), Some(vec![round]));
        }
        chooser.begin(foreseen(&[7]));
    }

    #[test]
    #[should_panic(expected = "what the thread met")]
    fn a_thread_that_panics_is_heard_of() {
        let mut chooser = Chooser::new(100, 1);
        chooser.thread = Thread::start(|_| panic!("what the thread met"));
        chooser.begin(foreseen(&[1]));
        chooser.rows();
    }

    #[test]
    fn without_a_thread_the_caller_chooses() {
        let mut chooser = Chooser::new(100, 1);
        let (jobs, done) = (bounded(1).0, bounded(1).1);
        chooser.thread = Some(Thread { jobs, done, handle: std::thread::spawn(|| ()) });
        chooser.begin(foreseen(&[2]));
        assert_eq!(chooser.chosen().map(|batch| batch.edges), Some(vec![2]));
    }
}
