//! [`Pass`]: what a model computes of a prepared batch: memory rows, embeddings, scores, loss.

use std::ops::Range;

use crate::device::Device;
use crate::device::matmul::Precision;
use crate::event::NodeId;
use crate::model::walk::WalkState;
use crate::model::{
    DeferredMemory, EdgePlaces, EmbeddingInput, FeatureRows, Model, ModelState, Neighborhood, Part,
    StateAfter,
};
use crate::nn::{Tape, Var};

use super::prepare::PreparedBatch;

/// Which pending messages a pass applies.
#[derive(Clone, Copy)]
pub(super) enum Apply {
    /// All.
    All,
    /// Those of the batch's own nodes, and those that are due when gradients are deferred by so many batches.
    Due { delay: u64 },
}

/// How a pass is computed.
#[derive(Clone, Copy)]
pub(super) struct How {
    pub apply: Apply,
    /// Key of the dropout masks: seed and number of the step.
    pub dropout: [u64; 2],
    /// Whether the pairs are scored without dropout, too: from the same memory rows, so all messages are applied.
    pub tests: bool,
}

impl How {
    /// All messages are applied, with these dropout masks.
    pub fn with_dropout(dropout: [u64; 2]) -> Self {
        Self { apply: Apply::All, dropout, tests: false }
    }
}

/// What one pass reads.
#[derive(Clone, Copy)]
pub(super) struct Pass<'a> {
    pub model: &'a Model,
    pub state: StateAfter<'a>,
    pub batch: &'a PreparedBatch,
    pub places: Option<&'a EdgePlaces>,
    /// Of products on the CPU.
    pub precision: Precision,
    pub how: How,
}

/// Memory rows `[nodes, memory_dim]` of distinct nodes after their pending messages.
pub(super) enum Memory {
    /// All messages were applied.
    All(Var),
    /// Those that are due.
    Due(DeferredMemory),
}

impl Memory {
    /// The rows.
    pub fn rows(&self) -> Var {
        match self {
            Self::All(rows) => *rows,
            Self::Due(memory) => memory.rows,
        }
    }

    /// The leaf whose gradient is wanted.
    pub fn leaf(&self) -> Option<Var> {
        match self {
            Self::All(_) => None,
            Self::Due(memory) => Some(memory.base),
        }
    }
}

/// What scoring the pairs of a batch leaves on the tape.
pub(super) struct Scored {
    /// `[pairs, 1]`, positives first.
    pub logits: Var,
    /// Memory rows of the distinct nodes; `None` where no memory was read.
    pub fresh: Option<Var>,
    /// What embeddings read of the distinct nodes, if there are any.
    pub table: Option<Var>,
}

/// Whether passes of a model are computed in parts: on the CPU, of embeddings.
pub(super) fn in_parts(model: &Model) -> bool {
    *model.device() == Device::Cpu && model.needs().embeds()
}

/// Embeddings `[seeds, embedding_dim]` without dropout, of a sample that belongs to no batch.
pub(super) fn embed(
    model: &Model,
    tape: &mut Tape<'_>,
    state: &ModelState,
    (neighborhood, rows, places): (&Neighborhood, &FeatureRows, Option<&EdgePlaces>),
) -> Var {
    let messages = rows.messages().at(places);
    let memory = model.fresh_memory(tape, state.into(), neighborhood.nodes().nodes(), messages);
    let input = EmbeddingInput {
        neighborhood,
        part: None,
        rows,
        places,
        last_event: &|node| state.last_event(node),
        origin: state.walks.as_ref().and_then(WalkState::origin),
        dropout: [0, 0],
    };
    model.embed(tape, memory, &input)
}

impl Pass<'_> {
    /// Whether the pass is computed in parts.
    pub fn has_parts(&self) -> bool {
        in_parts(self.model)
    }

    /// How many distinct nodes there are.
    pub fn nodes(&self) -> usize {
        self.batch.neighborhood.nodes().nodes().len()
    }

    /// Memory rows of these distinct nodes.
    pub fn memory(&self, tape: &mut Tape<'_>, nodes: Range<usize>) -> Memory {
        let messages = self.batch.rows.messages().at(self.places).from(nodes.start);
        let (state, nodes) = (self.state, &self.batch.neighborhood.nodes().nodes()[nodes]);
        if let Apply::Due { delay } = self.how.apply {
            let state = state.now();
            let is_due = |node: NodeId| self.batch.is_touched(node) || state.deferred.is_due(node, delay);
            if let Some(memory) = self.model.deferred_memory(tape, state, (nodes, messages), is_due) {
                return Memory::Due(memory);
            }
        }
        Memory::All(self.model.fresh_memory(tape, state, nodes, messages))
    }

    /// What embeddings read of these distinct nodes.
    pub fn table(&self, tape: &mut Tape<'_>, memory: &Memory, nodes: Range<usize>) -> Var {
        self.with_input((0, None), |input| self.model.table(tape, memory.rows(), input, nodes))
    }

    /// Embeddings of the seeds, or of a numbered part of them, which has dropout masks of its own.
    fn embed(&self, tape: &mut Tape<'_>, table: Var, part: (usize, Option<&Part>)) -> Var {
        self.with_input(part, |input| self.model.embed_from(tape, table, input))
    }

    fn with_input<R>(
        &self,
        (number, part): (usize, Option<&Part>),
        then: impl FnOnce(&EmbeddingInput<'_>) -> R,
    ) -> R {
        let state = self.state;
        let [seed, step] = self.how.dropout;
        then(&EmbeddingInput {
            neighborhood: &self.batch.neighborhood,
            part,
            rows: &self.batch.rows,
            places: self.places,
            last_event: &|node| state.last_event(node),
            origin: state.now().walks.as_ref().and_then(WalkState::origin),
            // The first part has the masks of a pass that is not cut.
            dropout: [seed, step | (number as u64) << 56],
        })
    }

    /// Logits of the pairs of `events` of the batch, and of as many negatives behind them: those by embeddings, if
    /// there are any, with those by walks.
    fn logits(&self, tape: &mut Tape<'_>, by_embeddings: Option<Var>, events: &Range<usize>) -> Var {
        let state = self.state.now();
        if state.walks.is_none() {
            return self.model.with_walk_logits(tape, state, by_embeddings, (&[], &[], &[]));
        }
        let (src, dst, times) = self.batch.pairs(events);
        self.model.with_walk_logits(tape, state, by_embeddings, (&src, &dst, &times))
    }

    /// Scores all pairs on one tape.
    pub fn score(&self, tape: &mut Tape<'_>) -> Scored {
        let all = 0..self.batch.scored().len();
        if !self.model.needs().embeds() {
            return Scored { logits: self.logits(tape, None, &all), fresh: None, table: None };
        }
        let memory = self.memory(tape, 0..self.nodes());
        let table = self.table(tape, &memory, 0..self.nodes());
        let logits = self.pair_logits(tape, table, (0, None), &all);
        Scored { logits, fresh: Some(memory.rows()), table: Some(table) }
    }

    /// Logits of the pairs of `events`, all or those of a numbered part, and of as many negatives behind them, given
    /// what embeddings read of the distinct nodes.
    pub fn pair_logits(
        &self,
        tape: &mut Tape<'_>,
        table: Var,
        part: (usize, Option<&Part>),
        events: &Range<usize>,
    ) -> Var {
        let embeddings = self.embed(tape, table, part);
        let [src, dst] = self.batch.pairs.of(events.len());
        let logits = self.model.logits(tape, embeddings, src, dst);
        self.logits(tape, Some(logits), events)
    }
}
