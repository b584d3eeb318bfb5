//! The events of benchmarks that need many: a file, repeated in time.
//!
//! Copy c is shifted by c spans of the file, so that every node's list keeps growing in order, as in a stream. Node ids
//! are the same in every copy.

use crate::cli::bench::seconds;
use crate::config::Config;
use crate::event::{EdgeBatch, EdgeId, EventTime};
use crate::graph::GraphOptions;
use crate::train::stream::Stream;

/// The file, repeated, as decoded batches.
#[derive(Clone, Copy)]
pub(super) struct Source<'a> {
    stream: &'a Stream,
    repeat: usize,
    pub batch_events: usize,
    /// As the daemon sets them.
    pub options: GraphOptions,
    /// Time between the first event of one copy and that of the next.
    span: i64,
}

impl<'a> Source<'a> {
    pub fn new(stream: &'a Stream, repeat: u32, batch_events: usize) -> anyhow::Result<Self> {
        let graph = Config::default_settings()?.graph;
        let options = GraphOptions { shards: graph.shards, page_entries_max: graph.page_entries_max };
        let times = stream.times();
        let span = match (times.first(), times.last()) {
            (Some(first), Some(last)) => last.0.saturating_sub(first.0).saturating_add(1),
            _ => 1,
        };
        Ok(Self { stream, repeat: repeat as usize, batch_events, options, span })
    }

    /// The same events in other batches.
    pub fn in_batches_of(self, batch_events: usize) -> Self {
        Self { batch_events, ..self }
    }

    pub fn events(&self) -> usize {
        self.stream.len() * self.repeat
    }

    /// Fills `batch` with the events from `first` on, `most` at most.
    #[allow(clippy::cast_possible_wrap)] // copies are few
    pub fn fill(&self, batch: &mut EdgeBatch, first: usize, most: usize) {
        batch.restart(EdgeId(first as u64));
        let (src, dst, times) = (self.stream.src(), self.stream.dst(), self.stream.times());
        for i in first..self.events().min(first + most) {
            let (copy, row) = (i / self.stream.len(), i % self.stream.len());
            let time = times[row].0.saturating_add(self.span.saturating_mul(copy as i64));
            batch.push_edge(src[row], dst[row], EventTime(time));
        }
    }

    /// A buffer that holds any batch without growing, so that measured growth is not the benchmark's own.
    pub fn buffer(&self) -> EdgeBatch {
        let mut batch = EdgeBatch::default();
        self.fill(&mut batch, 0, self.batch_events);
        batch
    }

    /// Calls `work` with every batch, in `batch`, until one fails; returns the seconds that `work` took in all.
    pub fn timed(
        &self,
        batch: &mut EdgeBatch,
        mut work: impl FnMut(&mut EdgeBatch) -> anyhow::Result<()>,
    ) -> anyhow::Result<f64> {
        let mut spent = 0.0;
        for first in (0..self.events()).step_by(self.batch_events) {
            self.fill(batch, first, self.batch_events);
            let (took, done) = seconds(|| work(batch));
            done?;
            spent += took;
        }
        Ok(spent)
    }
}
