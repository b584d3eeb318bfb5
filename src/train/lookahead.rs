//! [`Lookahead`]: prepares the next batches while one is trained on, wherever the next batches are known.
//!
//! ```text
//! step thread   | note messages of i+1 |  step i                                           | note messages of i+2 | …
//! other thread  |                      |  number those, sample i+2, announce, gather i+1   |                      | …
//! ```
//!
//! A batch is sampled two steps before its own and gathered one step before: between the two, the feature store knows
//! which rows will be wanted, so that a disk can work meanwhile. Where a GPU's steps may be recorded ahead, both are
//! done a step earlier: then the next batch is there when a step begins, and its own can be recorded meanwhile. What
//! is prepared is what would have been prepared at the batch's turn, bit for bit: the source fixes each batch's view,
//! a sample depends on nothing else, and the messages that will wait by then are those that the batches between
//! leave, or else those that wait now.
//!
//! Preparing has one thread of its own because sampling may wait for a disk: a thread that waits takes no
//! CPU from the step's matrix products, a worker of their pool that waits would.

use std::collections::VecDeque;
use std::time::Instant;

use crossbeam_channel::Sender;

use super::foreseen::Foreseen;
use super::prepare::{PreparedBatch, Preparer};
use super::trainer::{StepReport, TrainError, Trainer, World};

/// A thread that prepares beside a step.
pub struct Helper {
    /// A pool of one, so that what it runs in parallel stays on it. `None` where no thread could be had: then
    /// everything is done in turn, with the same results.
    thread: Option<rayon::ThreadPool>,
}

impl Helper {
    /// Starts the thread.
    #[must_use]
    pub fn new() -> Self {
        let name = |_| "prepare".to_owned();
        Self { thread: rayon::ThreadPoolBuilder::new().num_threads(1).thread_name(name).build().ok() }
    }

    /// Does everything in turn, on the thread that asks.
    #[must_use]
    pub fn in_turn() -> Self {
        Self { thread: None }
    }

    /// Runs `prepare` on the thread and `step` on this one, and returns how many seconds this one waited for the
    /// other at the end.
    pub fn beside<A: Send, B>(
        &self,
        prepare: impl FnOnce() -> A + Send,
        step: impl FnOnce() -> B,
    ) -> (A, B, f64) {
        let begun = Instant::now();
        let Some(thread) = &self.thread else {
            let prepared = prepare();
            let waited = begun.elapsed().as_secs_f64();
            return (prepared, step(), waited);
        };
        let mut prepared = None;
        let (stepped, since) = thread.in_place_scope(|scope| {
            scope.spawn(|_| prepared = Some(prepare()));
            (step(), Instant::now())
        });
        let waited = since.elapsed().as_secs_f64();
        match prepared {
            Some(prepared) => (prepared, stepped, waited),
            None => unreachable!("a scope ends after all that was spawned in it"),
        }
    }
}

impl Default for Helper {
    fn default() -> Self {
        Self::new()
    }
}

/// Samples the next batch into the buffers given; `false` when there is none.
pub trait Source: FnMut(&Preparer, &mut PreparedBatch) -> Result<bool, TrainError> + Send {}

impl<F: FnMut(&Preparer, &mut PreparedBatch) -> Result<bool, TrainError> + Send> Source for F {}

/// Batches on their way to their steps.
pub struct Lookahead {
    helper: Helper,
    publishes: bool,
    /// The batch whose step comes next and, where batches are ready early, the one behind it.
    ready: VecDeque<PreparedBatch>,
    /// Behind those, in order: all are sampled, and only the first may be gathered.
    queue: VecDeque<PreparedBatch>,
    spare: Vec<PreparedBatch>,
}

/// One step of a run.
#[derive(Debug)]
pub struct Turn<'a> {
    /// The batch.
    pub batch: &'a PreparedBatch,
    /// What its step did.
    pub report: StepReport,
    /// Seconds of the turn: of the step, and of all that it waited for.
    pub seconds: f64,
    /// Seconds of those in which the step waited for its preparation, or for that of the next batch.
    pub waited_seconds: f64,
}

impl Lookahead {
    /// Prepares with `helper`.
    #[must_use]
    pub fn new(helper: Helper) -> Self {
        let (ready, queue) = (VecDeque::new(), VecDeque::new());
        Self { helper, publishes: false, ready, queue, spare: Vec::new() }
    }

    /// The same, for steps whose nodes are published.
    #[must_use]
    pub fn publishing(self) -> Self {
        Self { publishes: true, ..self }
    }

    /// Takes a step with every batch of `source`, in order, and calls `each` after it. `world` is where rows are
    /// read from; `source` may sample each batch in a view of its own.
    ///
    /// # Errors
    /// What `source`, a step or `each` returns; a step that a GPU began before it was its turn is taken, and the other
    /// batches that were prepared are given up.
    pub fn run<E: From<TrainError>>(
        &mut self,
        trainer: &mut Trainer,
        world: &World<'_>,
        source: impl Source,
        each: impl FnMut(Turn<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        self.run_by(trainer, world, source, Trainer::step_and_begin, each)
    }

    /// As [`Self::run`], with `step` in place of the trainer's own, which it takes among what else it does; it gets the
    /// batch and, where that is ready, the next one.
    ///
    /// # Errors
    /// As [`Self::run`].
    pub fn run_by<E: From<TrainError>>(
        &mut self,
        trainer: &mut Trainer,
        world: &World<'_>,
        source: impl Source,
        step: impl FnMut(&mut Trainer, &PreparedBatch, Option<&PreparedBatch>) -> Result<StepReport, TrainError>,
        each: impl FnMut(Turn<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        self.spare.extend(self.ready.drain(..).chain(self.queue.drain(..)));
        let ended = self.turns(trainer, world, source, step, each);
        if let Err(error) = trainer.finish(&self.ready) {
            // What ended the run counts for more.
            tracing::warn!(%error, "the step that the GPU had begun could not be completed");
        }
        ended
    }

    fn turns<E: From<TrainError>>(
        &mut self,
        trainer: &mut Trainer,
        world: &World<'_>,
        mut source: impl Source,
        mut step: impl FnMut(
            &mut Trainer,
            &PreparedBatch,
            Option<&PreparedBatch>,
        ) -> Result<StepReport, TrainError>,
        mut each: impl FnMut(Turn<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let preparer = trainer.preparer();
        let preparer = if self.publishes { preparer.publishing() } else { preparer };
        let at_hand = if trainer.wants_batches_early() { 2 } else { 1 };
        loop {
            let mut clock = Instant::now();
            if self.ready.is_empty() {
                let known = self.queue.pop_front();
                let Some(batch) =
                    known.map_or_else(|| self.first(&preparer, &mut source), |b| Ok(Some(b)))?
                else {
                    return Ok(());
                };
                self.ready.push_back(batch);
            }
            if self.ready.len() < at_hand {
                self.ready.extend(self.queue.pop_front());
            }
            self.make_ready(trainer, &preparer, world)?;
            let mut foreseen = None;
            if let Some(next) = self.queue.front_mut() {
                let before = self.ready.iter().rev().collect::<Vec<_>>();
                preparer.note_behind(&before, &trainer.state().mailbox, next);
                foreseen = trainer.foresee_by();
            }
            let late = clock.elapsed().as_secs_f64();
            let Self { helper, ready, queue, spare, .. } = self;
            let [batch, next] = [0, 1].map(|place| ready.get(place));
            let Some(batch) = batch else { return Ok(()) };
            let prepare = || ahead(&preparer, world, (queue, spare), &mut source, foreseen);
            let (prepared, report, waited) = helper.beside(prepare, || step(trainer, batch, next));
            let seconds = super::prepare::lap(&mut clock);
            each(Turn { batch, report: report?, seconds, waited_seconds: late + waited })?;
            prepared?;
            spare.extend(ready.pop_front());
        }
    }

    /// Gathers the rows of what is to be ready.
    fn make_ready(
        &mut self,
        trainer: &mut Trainer,
        preparer: &Preparer,
        world: &World<'_>,
    ) -> Result<(), TrainError> {
        for place in 0..self.ready.len() {
            let (before, batches) = self.ready.make_contiguous().split_at_mut(place);
            let Some(batch) = batches.first_mut().filter(|batch| !batch.has_rows()) else { continue };
            let before = before.iter().rev().collect::<Vec<_>>();
            preparer.expect_behind(&before, &trainer.state().mailbox, batch);
            if place > 0 {
                trainer.foresee(world.edge_features, batch);
            }
            preparer.gather(world, batch)?;
        }
        Ok(())
    }

    /// Bytes that the buffers of all batches hold.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.ready.iter().chain(&self.queue).chain(&self.spare).map(PreparedBatch::bytes).sum()
    }

    /// The batch that nothing was before.
    fn first(
        &mut self,
        preparer: &Preparer,
        source: &mut impl Source,
    ) -> Result<Option<PreparedBatch>, TrainError> {
        let mut batch = self.spare.pop().unwrap_or_default();
        Ok(source(preparer, &mut batch)?.then_some(batch))
    }
}

/// Samples as many batches as belong into `queue`, announces their rows, and gathers the first, whose messages were
/// noted; what it reads is sent as `foreseen` before.
fn ahead(
    preparer: &Preparer,
    world: &World<'_>,
    (queue, spare): (&mut VecDeque<PreparedBatch>, &mut Vec<PreparedBatch>),
    source: &mut impl Source,
    foreseen: Option<Sender<Foreseen>>,
) -> Result<(), TrainError> {
    /// Batches behind the one at its step and, where there is one, the one that is ready early.
    const DEPTH: usize = 2;
    let expected = queue.len().min(1);
    if let Some(next) = queue.front_mut() {
        preparer.number_messages(next);
        // Nobody waits for it where the step failed.
        foreseen.map(|foreseen| foreseen.send(preparer.foreseen(world.edge_features, next)));
        preparer.announce(world, next);
    }
    while queue.len() < DEPTH {
        let mut batch = spare.pop().unwrap_or_default();
        if !source(preparer, &mut batch)? {
            spare.push(batch);
            break;
        }
        preparer.announce(world, &mut batch);
        queue.push_back(batch);
    }
    match queue.front_mut() {
        Some(next) if expected == 1 => preparer.gather(world, next),
        _ => Ok(()),
    }
}
