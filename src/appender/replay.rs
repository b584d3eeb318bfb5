//! A start: the index is what the log means, so reading the log makes it.

use std::ops::ControlFlow;

use thiserror::Error;

use super::Index;
use super::retain::release;
use crate::event::{EdgeBatch, EdgeId, Op};
use crate::graph::{Keeping, RetentionBounds, RetentionClock, SpillError};
use crate::log::{Frame, Log, LogError};

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

/// Records that go into the graph together. Sorted by node, that costs a fraction of what frame by frame does.
const GATHERED_MAX: usize = 1 << 16;

/// Takes what the log has behind the index's end into the index. What is too old for the learner is released on the
/// way, so that memory is not needed for all there ever was. `proceed` is called with the position reached after every
/// part and may end the work, which is then unfinished.
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
    let mut gathered = EdgeBatch::default();
    loop {
        let frame = reader.next_frame()?;
        let deletes = frame.as_ref().is_some_and(|frame| frame.batch.has_deletions());
        let is_apart = |frame: &Frame| deletes || gathered.len() + frame.batch.len() > GATHERED_MAX;
        if frame.as_ref().is_none_or(is_apart) {
            if !gathered.is_empty() {
                index.stores.graph.apply(&gathered)?;
                gathered.restart(EdgeId(0));
            }
            release(index, bounds(keeping, &mut clock))?;
            if proceed(index.end()).is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        let Some(frame) = frame else { return Ok(ControlFlow::Continue(())) };
        let batch = &frame.batch;
        if let Keeping::For(learned) = keeping {
            let records = (0..batch.len()).map(|i| (batch.op[i], batch.id(i), batch.time[i]));
            let edges = records.filter(|&(op, edge, _)| op == Op::Edge && edge < learned);
            edges.for_each(|(_, edge, time)| clock.observe(edge, time));
        }
        if deletes {
            index.absorb(&frame)?;
        } else {
            index.absorb_all_but_edges(&frame, &mut gathered);
        }
    }
}

/// What is kept of the graph that was read so far.
fn bounds(keeping: Keeping, clock: &mut RetentionClock) -> RetentionBounds {
    match keeping {
        Keeping::Within(bounds) => bounds,
        Keeping::For(_) => clock.bounds(),
    }
}
