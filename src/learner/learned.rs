//! What a learner goes on from, and how a checkpoint keeps it: the trainer, then sections, each behind its first bytes,
//! of what there is besides.

use std::io::{Error, ErrorKind, Read, Write};

use super::gate::{self, Gate, GateOptions};
use super::stream_state::{self, Around, StreamState};
use super::{FeedMark, LearnBatch, Learner};
use crate::device::Device;
use crate::event::EdgeId;
use crate::graph::{GraphStore, Keeping, RetentionBounds};
use crate::model::tables::read_u64;
use crate::serving::QueryEngine;
use crate::train::{LoadError, SavedTrainer, Trainer, TrainerOptions};

/// What the loop goes on from.
pub struct Learned {
    /// The trainer, with the weights that are the candidate.
    pub trainer: Trainer,
    /// Which weights are served; `None` serves the candidate after every step.
    pub gate: Option<Gate>,
    /// What it knows of the stream; `None`: that is read from the log.
    pub stream: Option<StreamState>,
    /// Where in the log they stand.
    pub position: EdgeId,
}

impl Learned {
    /// What of the graph the learner still reads.
    #[must_use]
    pub fn keeping(&mut self, graph: &GraphStore) -> Keeping {
        match &mut self.stream {
            Some(stream) => Keeping::Within(stream.kept()),
            // With nothing learned, or where nothing grows old, all is read.
            None if self.position == EdgeId(0) || graph.retention().is_none() => {
                Keeping::Within(RetentionBounds::default())
            }
            None => Keeping::For(self.position),
        }
    }

    /// Writes what [`load`](Self::load) reads.
    ///
    /// # Errors
    /// What `out` reports.
    pub fn save(&self, out: &mut impl Write) -> std::io::Result<()> {
        self.trainer.save(out)?;
        self.gate.as_ref().map_or(Ok(()), |gate| gate.save(out))?;
        self.stream.as_ref().map_or(Ok(()), |stream| stream.view().write(out))
    }

    /// Reads the payload of a checkpoint at `position`, for a learner with these settings. Without gate options, it has
    /// no gate, whether one was saved or not.
    ///
    /// # Errors
    /// The bytes are damaged, or hold a model of another shape.
    pub fn load(
        position: EdgeId,
        (options, gate_options): (TrainerOptions, Option<GateOptions>),
        device: &Device,
        around: Around<'_>,
        input: &mut impl Read,
    ) -> Result<Self, LoadError> {
        let trainer = Trainer::load(options, device, input)?;
        let (mut gate, mut stream) = (gate_options.map(Gate::new), None);
        while let Some(section) = next_section(input)? {
            match section {
                gate::MAGIC => {
                    let options_or_none = gate_options.unwrap_or_default();
                    let saved = Gate::load(options_or_none, options.model, &Device::Cpu, input)?;
                    gate = gate_options.map(|_| saved);
                }
                stream_state::MAGIC => stream = StreamState::read(input, around)?,
                other => {
                    let words = format!(
                        "a checkpoint of another version: it has a section that begins with {other:#018x}"
                    );
                    return Err(Error::new(ErrorKind::InvalidData, words).into());
                }
            }
        }
        Ok(Self { trainer, gate, stream, position })
    }
}

/// All that was learned up to a cursor, as of one moment: what the learner does from then on changes nothing of it.
pub(super) struct Captured {
    trainer: SavedTrainer,
    gate: Vec<u8>,
    stream: StreamState,
}

impl Captured {
    /// Writes what [`Learned::load`] reads.
    pub fn write(&self, out: &mut impl Write) -> std::io::Result<()> {
        self.trainer.write(out)?;
        out.write_all(&self.gate)?;
        self.stream.view().write(out)
    }
}

impl Learner {
    /// All that was learned up to the cursor, which stands at `mark`. Rows by node are shared with the learner until it
    /// changes them; weights, pairs and destinations are copied.
    pub(super) fn capture(&self, mark: &FeedMark) -> std::io::Result<Captured> {
        let mut gate = Vec::new();
        self.gate.as_ref().map_or(Ok(()), |kept| kept.save(&mut gate))?;
        let QueryEngine { stores, states, .. } = &*self.shared.engine;
        let parts = (&self.bank, &self.pool, &states.received, &self.node_rows);
        let stream = StreamState::copy(parts, mark, (&stores.graph, self.options.pairs_max))?;
        Ok(Captured { trainer: self.trainer.capture()?, gate, stream })
    }

    /// Where the feed stood when it had handed out what is learned and no more. `batch` is what was fetched last.
    pub(super) fn mark(&self, batch: &LearnBatch) -> FeedMark {
        let is_pending = batch.end > self.learned;
        let next = if is_pending { Some(batch) } else { self.ahead.filled.then_some(&self.ahead.batch) };
        next.and_then(|next| next.begin.clone()).unwrap_or_else(|| self.feed.mark())
    }
}

/// The first bytes of the next section; `None` at the end.
fn next_section(input: &mut impl Read) -> std::io::Result<Option<u64>> {
    let mut first = [0; 1];
    if input.read(&mut first)? == 0 {
        return Ok(None);
    }
    read_u64(&mut first.as_slice().chain(input)).map(Some)
}
