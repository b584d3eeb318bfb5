//! A start: the index is what the log means, so reading the log makes it.

use std::ops::ControlFlow;

use thiserror::Error;

use super::Index;
use super::retain::release;
use crate::event::{EdgeId, Op};
use crate::graph::{Keeping, RetentionClock, SpillError};
use crate::log::{Log, LogError};

/// Why the index could not be rebuilt.
#[derive(Debug, Error)]
pub enum ReplayError {
    /// The log cannot be read or is damaged.
    #[error(transparent)]
    Log(#[from] LogError),
    /// What the graph keeps on disk cannot be read back.
    #[error(transparent)]
    Graph(#[from] SpillError),
}

/// Takes what the log has behind the index's end into the index. What is too old for the learner is released on the
/// way, so that memory is not needed for all there ever was. `proceed` is called with the position reached after every
/// frame and may end the work, which is then unfinished.
///
/// # Errors
/// When the log cannot be read or is damaged, or what the graph keeps on disk cannot be read back.
pub fn replay(
    log: &Log,
    index: &mut Index,
    keeping: Keeping,
    mut proceed: impl FnMut(EdgeId) -> ControlFlow<()>,
) -> Result<ControlFlow<()>, ReplayError> {
    let mut reader = log.reader(index.end());
    let mut clock =
        RetentionClock::new(index.stores.graph.retention()).with_rules(index.stores.graph.clock_rules());
    while let Some(frame) = reader.next_frame()? {
        index.absorb(&frame)?;
        let bounds = match keeping {
            Keeping::Within(bounds) => bounds,
            Keeping::For(learned) => {
                let batch = &frame.batch;
                let records = (0..batch.len()).map(|i| (batch.op[i], batch.id(i), batch.time[i]));
                let edges = records.filter(|&(op, edge, _)| op == Op::Edge && edge < learned);
                edges.for_each(|(_, edge, time)| clock.observe(edge, time));
                clock.bounds()
            }
        };
        release(index, bounds)?;
        if proceed(index.end()).is_break() {
            return Ok(ControlFlow::Break(()));
        }
    }
    Ok(ControlFlow::Continue(()))
}
