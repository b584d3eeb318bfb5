//! [`Order`]: the events of a stream in batches in order of time, one random destination per positive, each batch a
//! step.

use super::world::Columns;
use crate::event::EdgeId;
use crate::train::lookahead::{Lookahead, Turn};
use crate::train::{
    DestinationPool, Negatives, Positives, PreparedBatch, Preparer, StepMode, StepReport, TrainError,
    Trainer, World,
};

/// One pass over a stream.
pub struct Order<'a> {
    pub columns: &'a Columns,
    pub destinations: &'a DestinationPool,
    /// Of the negatives.
    pub seed: u64,
    pub batch_events: usize,
    /// The event that the pass begins with.
    pub first: usize,
}

impl Order<'_> {
    /// Takes each step by `step`, which gets its batch and, where that is ready, the next one, and calls `each` after
    /// it.
    ///
    /// # Errors
    /// That of a step or of `each`.
    pub fn run<E: From<TrainError>>(
        &self,
        (trainer, lookahead): (&mut Trainer, &mut Lookahead),
        world: &World<'_>,
        step: impl FnMut(&mut Trainer, &PreparedBatch, Option<&PreparedBatch>) -> Result<StepReport, TrainError>,
        each: impl FnMut(Turn<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let Self { columns, destinations, seed, batch_events, .. } = *self;
        let (mut first, mut against, mut edges) = (self.first, Vec::new(), Vec::new());
        let source = |preparer: &Preparer, batch: &mut PreparedBatch| {
            let range = first..columns.len().min(first + batch_events);
            if range.is_empty() {
                return Ok(false);
            }
            let src = &columns.src[range.clone()];
            destinations.draw(seed, first as u64, src.len(), &mut against);
            first = range.end;
            let (dst, times) = (&columns.dst[range.clone()], &columns.times[range.clone()]);
            edges.clear();
            edges.extend(range.map(|event| EdgeId(event as u64)));
            let positives = Positives { src, dst, times, edges: &edges };
            let negatives = Negatives { src, dst: &against };
            preparer.sample(world, &positives, &negatives, StepMode::Train, batch)?;
            Ok(true)
        };
        lookahead.run_by(trainer, world, source, step, each)
    }
}
