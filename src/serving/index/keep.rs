//! [`IndexLoop`]: the thread that keeps the rows as of now, as far as its share of a core goes.
//!
//! In turns of [`IndexOptions::coalesce`](super::IndexOptions): first the nodes that were touched, then as many others
//! as the turn has time for, chunk by chunk. Chunks that are as of now are passed over, so when the stream rests, the
//! thread does, once all are.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::super::{QueryEngine, compute_alone, pause, pause_for_share};
use super::generation::Generation;
use super::table::{CHUNK_ROWS, Stamp};
use super::{Condition, LiveIndex, now};
use crate::event::{EdgeId, NodeId};
use crate::model::GatherError;

/// Nodes that are embedded between two pauses: some milliseconds. The change feed delivers their rows together.
const SLICE_NODES: usize = 512;

/// How long the loop waits before it tries again what storage did not allow.
const STORAGE_RETRY: Duration = Duration::from_secs(1);

/// The loop.
pub struct IndexLoop {
    engine: Arc<QueryEngine>,
    index: Arc<LiveIndex>,
    /// A generation that is filled, and how far.
    next: Option<(Arc<Generation>, Pass)>,
    /// How far the current one is gone through again.
    again: Pass,
    touched: Vec<NodeId>,
}

/// A way through all ids, in order.
#[derive(Default)]
struct Pass {
    /// The chunk at hand.
    chunk: usize,
    /// What is left of it, if it was begun.
    begun: Option<(Stamp, Vec<NodeId>)>,
}

impl IndexLoop {
    /// The loop that keeps the index of `engine`; `None` without one.
    #[must_use]
    pub fn new(engine: Arc<QueryEngine>) -> Option<Self> {
        let index = engine.index.clone()?;
        Some(Self { engine, index, next: None, again: Pass::default(), touched: Vec::new() })
    }

    /// Keeps the index until `stop` is set. Calls `pulse` at every turn. Its thread computes alone, whatever pool of
    /// threads there is.
    pub fn run(mut self, stop: &AtomicBool, pulse: impl Fn()) {
        let _alone = compute_alone("live index");
        let proceed = || {
            pulse();
            !stop.load(Ordering::Acquire)
        };
        while proceed() {
            let end = Instant::now() + self.index.options.coalesce;
            if let Err(error) = self.turn(end, &proceed) {
                tracing::error!(%error, "rows of the index wait for storage");
                std::thread::sleep(STORAGE_RETRY);
            }
            std::thread::sleep(end.saturating_duration_since(Instant::now()));
        }
    }

    /// Embeds what was touched, then others until `end`.
    ///
    /// # Errors
    /// Edges or rows cannot be read; what was not embedded is still due.
    pub fn turn(&mut self, end: Instant, proceed: &impl Fn() -> bool) -> Result<(), GatherError> {
        if !self.choose() {
            return Ok(());
        }
        let begun = Instant::now();
        self.follow(proceed)?;
        // A fill gets as long as what was touched, so that it ends soon however many nodes are.
        let end = if self.next.is_some() { end.max(Instant::now() + begun.elapsed()) } else { end };
        let mut is_first = true;
        while proceed() && (is_first || Instant::now() < end) {
            is_first = false;
            let Some((generation, nodes)) = self.next_slice() else { return Ok(()) };
            if let Err(error) = self.embed(&generation, &nodes, proceed) {
                // The chunk is begun again.
                self.again.begun = None;
                self.next.iter_mut().for_each(|(_, pass)| pass.begun = None);
                return Err(error);
            }
        }
        Ok(())
    }

    /// Begins a generation where one is wanted; whether there are rows to keep.
    fn choose(&mut self) -> bool {
        let Some(weights) = self.engine.model() else { return false };
        let current = self.index.generation();
        let is_new = current.as_ref().is_none_or(|current| !current.weights.is(&weights));
        if is_new && self.next.is_none() {
            let generation = Generation::new(weights, self.index.options.precision);
            self.next = Some((Arc::new(generation), Pass::default()));
        }
        let ids = self.engine.stores.keys.len();
        let any = self.next.as_ref().map(|(generation, _)| generation).or(current.as_ref());
        let needed = 2 * any.map_or(0, |generation| generation.table.bytes_for(ids));
        if needed > self.index.options.bytes_max {
            if !matches!(self.index.condition(), Condition::Full { .. }) {
                let bytes_max = self.index.options.bytes_max;
                tracing::error!(
                    needed,
                    bytes_max,
                    "the index has no room for its rows: raise index.bytes_max"
                );
            }
            self.index.current.store(None);
            self.next = None;
            self.index.set_condition(Condition::Full { needed });
            return false;
        }
        if current.is_none() {
            let done = self.next.as_ref().map_or(0, |(_, pass)| pass.chunk * CHUNK_ROWS);
            self.index.set_condition(Condition::Filling { done: done.min(ids), of: ids });
        }
        true
    }

    /// Embeds the nodes that were touched.
    fn follow(&mut self, proceed: &impl Fn() -> bool) -> Result<(), GatherError> {
        // Before they are taken: what was learned then is among them.
        let stamp = now(&self.engine.progress);
        self.engine.states.touched.take(&mut self.touched);
        self.index.in_hand.store(self.touched.len(), Ordering::Release);
        let (current, next) = (self.index.generation(), self.next.as_ref());
        let next = next.map(|(generation, pass)| (generation.clone(), pass.chunk));
        while proceed() {
            let slice = self.touched.split_off(self.touched.len().saturating_sub(SLICE_NODES));
            if slice.is_empty() {
                break;
            }
            let embedded = current.iter().try_for_each(|current| self.embed(current, &slice, proceed));
            // What the fill has not come to, it will.
            let filled = |(generation, chunk): &(Arc<Generation>, usize)| {
                let nodes = slice.iter().copied().filter(|node| node.index() / CHUNK_ROWS <= *chunk);
                self.embed(generation, &nodes.collect::<Vec<_>>(), proceed)
            };
            if let Err(error) = embedded.and_then(|()| next.iter().try_for_each(filled)) {
                self.touched.extend(slice);
                self.touched.drain(..).for_each(|node| self.engine.states.touched.touch(node));
                self.index.in_hand.store(0, Ordering::Release);
                return Err(error);
            }
            self.index.in_hand.store(self.touched.len(), Ordering::Release);
        }
        if self.touched.is_empty() && current.is_some() {
            self.engine.progress.set_embedded(EdgeId(stamp.learned));
        }
        Ok(())
    }

    /// The nodes of the next slice: of the generation that is filled, else of those that are not as of now.
    fn next_slice(&mut self) -> Option<(Arc<Generation>, Vec<NodeId>)> {
        if let Some((generation, pass)) = &mut self.next {
            let generation = generation.clone();
            if let Some(nodes) = pass.slice(&self.engine, &generation, false) {
                return Some((generation, nodes));
            }
            self.next = None;
            self.again = Pass::default();
            tracing::debug!(version = generation.weights.version, "the rows of another version are in use");
            self.index.current.store(Some(generation));
            self.index.set_condition(Condition::Ready);
            return self.next_slice();
        }
        let generation = self.index.generation()?;
        let slice = self.again.slice(&self.engine, &generation, true);
        if slice.is_none() {
            self.again = Pass::default();
        }
        slice.map(|nodes| (generation, nodes))
    }

    /// Embeds nodes, then pauses for as long as the share of a core asks for.
    fn embed(
        &self,
        generation: &Generation,
        nodes: &[NodeId],
        proceed: &impl Fn() -> bool,
    ) -> Result<(), GatherError> {
        if nodes.is_empty() {
            return Ok(());
        }
        let begun = Instant::now();
        generation.embed(&self.engine, nodes)?;
        pause(pause_for_share(begun.elapsed(), self.index.options.cpu_share), proceed);
        Ok(())
    }
}

impl Pass {
    /// The next nodes; `None` at the end. `stale`: only of chunks that are not as of now.
    fn slice(&mut self, engine: &QueryEngine, generation: &Generation, stale: bool) -> Option<Vec<NodeId>> {
        loop {
            if let Some((stamp, nodes)) = &mut self.begun {
                let slice = nodes.split_off(nodes.len().saturating_sub(SLICE_NODES));
                if !slice.is_empty() {
                    return Some(slice);
                }
                generation.table.set_stamp(self.chunk, *stamp);
                (self.begun, self.chunk) = (None, self.chunk + 1);
            }
            let ids = engine.stores.keys.len();
            if self.chunk >= ids.div_ceil(CHUNK_ROWS) {
                return None;
            }
            let now = now(&engine.progress);
            if stale && generation.table.stamp(self.chunk).is_some_and(|stamp| stamp.is_as_of(&now)) {
                self.chunk += 1;
                continue;
            }
            let mut nodes = Vec::new();
            let id = |index: usize| NodeId(u32::try_from(index).unwrap_or(u32::MAX));
            let range = id(self.chunk * CHUNK_ROWS)..id(ids.min((self.chunk + 1) * CHUNK_ROWS));
            engine.stores.keys.for_each_named(range, 1, |node| nodes.push(node));
            self.begun = Some((now, nodes));
        }
    }
}
