//! When the graph and the rows of its edges let go of what is too old.
//!
//! What may go is what the learner will not ask for any more: it says so as it goes ([`Kept`]), and at a start its
//! checkpoint does. Letting go visits the whole graph, so it is done when a part of the age has gone by since the last
//! time, [`SHARE`], and shard by shard: between two pieces of that work events are taken in. Rows go last, when no new
//! view shows an edge of theirs.

use std::time::{Duration, Instant};

use super::Index;
use crate::graph::{Kept, SpillError};

/// The part of the age that has gone by since the last time, at least.
const SHARE: i64 = 16;

/// How long is worked at a time, about, and how many times as long a pause follows.
const WORK: Duration = Duration::from_millis(10);
const PAUSE: u32 = 4;

/// The pause after a disk that failed.
const FAILED_PAUSE: Duration = Duration::from_secs(10);

/// How far what is too old was released, and when that goes on.
pub(super) struct Releasing {
    /// The next part, while a release is under way, and what it keeps.
    under_way: Option<(usize, Kept)>,
    not_before: Instant,
}

impl Releasing {
    pub fn new() -> Self {
        Self { under_way: None, not_before: Instant::now() }
    }

    /// Does some parts if it is time. A disk that fails is tried again later.
    pub fn turn(&mut self, index: &Index, kept: Kept) {
        let begun = Instant::now();
        if begun < self.not_before {
            return;
        }
        if self.under_way.is_none() && is_due(index, kept) {
            self.under_way = Some((0, kept));
        }
        let mut pause = Duration::ZERO;
        while let Some((part, kept)) = self.under_way
            && begun.elapsed() < WORK
        {
            match release_part(index, part, kept) {
                Ok(more) => self.under_way = more.then_some((part + 1, kept)),
                Err(error) => {
                    tracing::error!(%error, "edges that are too old could not be released yet");
                    pause = FAILED_PAUSE;
                    break;
                }
            }
        }
        self.not_before = Instant::now() + pause.max(begun.elapsed() * PAUSE);
    }
}

/// Releases all that is not in `kept`, if it is time.
pub(super) fn release(index: &Index, kept: Kept) -> Result<(), SpillError> {
    let mut part = 0;
    let mut more = is_due(index, kept);
    while more {
        more = release_part(index, part, kept)?;
        part += 1;
    }
    Ok(())
}

/// Releases a part and says whether there are more.
fn release_part(index: &Index, part: usize, kept: Kept) -> Result<bool, SpillError> {
    let more = index.graph.release_part(part, kept.since)?;
    if !more {
        index.edge_features.release_below(kept.first.0);
    }
    Ok(more)
}

/// Whether enough time has gone by in the stream.
fn is_due(index: &Index, kept: Kept) -> bool {
    let gone_by = kept.since.0.saturating_sub(index.graph.released_before().0);
    index.graph.retention().is_some_and(|retention| gone_by >= (retention.age / SHARE).max(1))
}
