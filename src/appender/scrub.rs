//! When the graph overwrites what deletions left behind in its memory and on its disk.
//!
//! That moves the whole graph, so it is done once for many deletions, not again before [`PAUSE`] has passed, and in
//! parts: between two of them events are taken in. Requests are served meanwhile.

use std::time::{Duration, Instant};

use super::Index;

/// Time between the end of one and the begin of the next, at least.
pub(super) const PAUSE: Duration = Duration::from_secs(60);

/// The pause after a part is as many times as long as the part took.
const PART_PAUSE: u32 = 4;

/// How far the graph is scrubbed, and when that goes on.
pub(super) struct Scrubbing {
    /// The next part, while one is under way.
    part: Option<usize>,
    pub not_before: Instant,
}

impl Scrubbing {
    pub fn new() -> Self {
        Self { part: None, not_before: Instant::now() }
    }

    #[cfg(test)]
    pub fn is_under_way(&self) -> bool {
        self.part.is_some()
    }

    /// Does a part if something was deleted and enough time has passed. A disk that fails is tried again later.
    pub fn turn(&mut self, index: &mut Index) {
        let begun = Instant::now();
        if begun < self.not_before {
            return;
        }
        let part = match self.part {
            None if !index.has_traces => return,
            // What is deleted from here on is for the next time.
            None => {
                index.has_traces = false;
                0
            }
            Some(part) => part,
        };
        let scrubbed = index.stores.graph.scrub_part(part);
        self.part = scrubbed.as_ref().is_ok_and(|more| *more).then_some(part + 1);
        self.not_before =
            Instant::now() + if self.part.is_some() { begun.elapsed() * PART_PAUSE } else { PAUSE };
        match scrubbed {
            Ok(true) => {}
            Ok(false) => tracing::info!("deleted edges were overwritten"),
            Err(error) => {
                index.has_traces = true;
                tracing::error!(%error, "deleted edges could not be overwritten yet");
            }
        }
    }
}
