//! [`Chooser`]: decides on a thread of its own which edge rows of a foreseen batch are brought to a GPU before that
//! batch comes. It has to find every row of the batch, which takes as long as much of what the trainer's thread does
//! for a step.
//!
//! While it decides, the thread has the directory of rows; whoever asks for that waits. Nothing is decided that
//! depends on when the thread runs.

use crossbeam_channel::{Receiver, Sender, bounded};

use super::edge_cache::Foreseen;
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
    /// It ends when nobody has jobs for it any more.
    fn start() -> Option<Self> {
        let ((jobs, coming), (sender, done)) = (bounded::<Job>(1), bounded(1));
        let work = move || coming.iter().all(|job| sender.send(job.run()).is_ok());
        std::thread::Builder::new().name("choose".to_owned()).spawn(work).ok()?;
        Some(Self { jobs, done })
    }
}

impl Chooser {
    /// Of a table of so many rows of so many values.
    pub fn new(places: u64, width: usize) -> Self {
        let shape = (places, width);
        Self { rows: Some(GpuRows::new(places, width)), chosen: None, thread: None, shape }
    }

    /// Begins to choose rows of `batch`.
    pub fn choose(&mut self, batch: Foreseen) {
        self.rows();
        self.thread = self.thread.take().or_else(Thread::start);
        let Some(rows) = self.rows.take() else { return };
        let job = Job { rows, batch };
        let refused = match &self.thread {
            Some(thread) => thread.jobs.send(job).map_err(|refused| refused.0),
            None => Err(job),
        };
        if let Err(job) = refused {
            self.take(job.run());
        }
    }

    /// The batch of which rows were chosen and are to be restored, if one is, once.
    pub fn chosen(&mut self) -> Option<Foreseen> {
        self.rows();
        self.chosen.take()
    }

    /// The directory.
    pub fn rows(&mut self) -> &mut GpuRows {
        if self.rows.is_none() {
            match self.thread.as_ref().and_then(|thread| thread.done.recv().ok()) {
                Some(job) => self.take(job),
                // It panicked, and the directory is gone.
                None => self.thread = None,
            }
        }
        self.rows.get_or_insert_with(|| GpuRows::new(self.shape.0, self.shape.1))
    }

    fn take(&mut self, job: Job) {
        (self.rows, self.chosen) = (Some(job.rows), Some(job.batch));
    }
}

impl Drop for Chooser {
    fn drop(&mut self) {
        // What a GPU reads in place goes where it came from.
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
            chooser.choose(foreseen(&[round, round + 1]));
            // Nobody waits for what was chosen before.
            if round % 3 == 0 {
                chooser.choose(foreseen(&[round]));
            }
            assert_eq!(chooser.rows().places(), 100);
            let chosen = chooser.chosen().map(|batch| batch.edges.len());
            assert_eq!(
                (chosen, chooser.chosen().is_none()),
                (Some(if round % 3 == 0 { 1 } else { 2 }), true)
            );
        }
        chooser.choose(foreseen(&[7]));
    }

    #[test]
    fn a_thread_that_is_gone_costs_the_directory_and_nothing_else() {
        let mut chooser = Chooser::new(100, 1);
        chooser.choose(foreseen(&[1]));
        chooser.rows();
        let (jobs, done) = (bounded(1).0, bounded(1).1);
        chooser.thread = Some(Thread { jobs, done });
        chooser.choose(foreseen(&[2]));
        assert_eq!(chooser.chosen().map(|batch| batch.edges), Some(vec![2]), "chosen here");
        chooser.rows = None;
        assert_eq!((chooser.rows().places(), chooser.thread.is_none()), (100, true));
    }
}
