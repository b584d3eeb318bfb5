//! A start: the index is what the log means, so reading the log makes it.

use std::ops::ControlFlow;

use thiserror::Error;

use super::Index;
use crate::event::EdgeId;
use crate::graph::SpillError;
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

/// Rebuilds the index from the log. `proceed` hears the position reached after every frame and may end the
/// work, which is then unfinished.
///
/// # Errors
/// When the log cannot be read or is damaged, or what the graph keeps on disk cannot be read back.
pub fn replay(
    log: &Log,
    index: &mut Index,
    mut proceed: impl FnMut(EdgeId) -> ControlFlow<()>,
) -> Result<ControlFlow<()>, ReplayError> {
    let mut reader = log.reader(EdgeId(0));
    while let Some(frame) = reader.next_frame()? {
        index.absorb(&frame)?;
        if proceed(index.end()).is_break() {
            return Ok(ControlFlow::Break(()));
        }
    }
    Ok(ControlFlow::Continue(()))
}
