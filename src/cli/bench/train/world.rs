//! The data of the training benchmark: the events of a file as bare columns, the graph over them, and generated feature
//! rows.
//!
//! A generated row is a function of the edge's id and the column, so that a row can be checked without being kept.
//! Names of nodes are dropped once they are numbered.

use std::path::Path;

use anyhow::bail;

use super::budget::Budget;
use crate::cli::events::edges;
use crate::cli::output;
use crate::device::disk::{EngineChoice, SpillFile};
use crate::device::rng;
use crate::event::{EdgeBatch, EdgeId, EventTime, NodeId};
use crate::feature::FeatureStore;
use crate::graph::{GraphOptions, GraphStore, NodeDictionary};

/// Separates generated rows from other random numbers.
const STREAM: u64 = 0x6765_6e65_7261_7465;

/// Events that are applied at a time.
const APPLY_EVENTS: usize = 1 << 16;

/// The events, in order of time; an event's place is its edge id.
pub struct Columns {
    pub src: Vec<NodeId>,
    pub dst: Vec<NodeId>,
    pub times: Vec<EventTime>,
    pub nodes: usize,
}

impl Columns {
    /// Reads at most `events_max` events of a file.
    pub fn read(path: &Path, events_max: usize) -> anyhow::Result<Self> {
        let keys = NodeDictionary::new();
        let mut events: Vec<(EventTime, NodeId, NodeId)> = Vec::new();
        for event in edges(path, &mut output::print_status)?.take(events_max) {
            let event = event?;
            events.push((event.time, keys.intern(&event.src), keys.intern(&event.dst)));
        }
        if events.is_empty() {
            bail!("{} has no events", path.display());
        }
        events.sort_by_key(|&(time, ..)| time);
        Ok(Self {
            src: events.iter().map(|event| event.1).collect(),
            dst: events.iter().map(|event| event.2).collect(),
            times: events.iter().map(|event| event.0).collect(),
            nodes: keys.len(),
        })
    }

    /// Number of events.
    pub fn len(&self) -> usize {
        self.src.len()
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        self.len() * (2 * size_of::<NodeId>() + size_of::<EventTime>())
    }
}

/// Value of `column` of the generated row of `edge`, between -0.5 and 0.5.
#[allow(clippy::cast_precision_loss)] // 24 bits
fn value(prefix: u64, column: usize) -> f32 {
    (rng::draw(prefix, column as u64) >> 40) as f32 * (1.0 / 16_777_216.0) - 0.5
}

/// Fills `row` with the generated row of `edge`.
pub fn generate(edge: u64, row: &mut [f32]) {
    let prefix = rng::prefix([STREAM, edge, 0]);
    row.iter_mut().enumerate().for_each(|(column, out)| *out = value(prefix, column));
}

/// Whether `row` is the generated row of `edge`, bit for bit.
pub fn is_generated(edge: u64, row: &[f32]) -> bool {
    let prefix = rng::prefix([STREAM, edge, 0]);
    row.iter().enumerate().all(|(column, found)| found.to_bits() == value(prefix, column).to_bits())
}

/// The memory limits, and the folder for what exceeds them.
#[derive(Clone, Copy)]
pub struct Limits<'a> {
    pub rows: Option<Budget>,
    pub topology: Option<Budget>,
    /// Folder of the spill files.
    pub folder: &'a Path,
    pub engine: EngineChoice,
}

/// The graph over the events and their rows, within the limits.
pub fn build(
    columns: &Columns,
    row_dimension: usize,
    limits: Limits<'_>,
) -> anyhow::Result<(GraphStore, FeatureStore)> {
    let graph = match limits.topology {
        None => GraphStore::new(GraphOptions::default()),
        Some(budget) => {
            let whole = || {
                // The total is known once everything was in memory.
                let graph = GraphStore::new(GraphOptions::default());
                apply(columns, &graph)?;
                let bytes = graph.stats().bytes;
                Ok::<_, anyhow::Error>(bytes.total() - bytes.plan)
            };
            let file = SpillFile::create(limits.folder, "bench-graph", limits.engine)?;
            GraphStore::with_budget(GraphOptions::default(), budget.of(whole)?, Box::new(file))
        }
    };
    let rows = match limits.rows.filter(|_| row_dimension > 0) {
        None => FeatureStore::new(row_dimension),
        Some(budget) => {
            let whole = || Ok((columns.len() * row_dimension * size_of::<f32>()) as u64);
            let file = SpillFile::create(limits.folder, "bench-rows", limits.engine)?;
            FeatureStore::with_budget(row_dimension, budget.of(whole)?, Box::new(file))?
        }
    };
    if row_dimension > 0 {
        let mut row = vec![0.0; row_dimension];
        for edge in 0..columns.len() as u64 {
            generate(edge, &mut row);
            rows.set(edge, &row)?;
        }
    }
    apply(columns, &graph)?;
    Ok((graph, rows))
}

fn apply(columns: &Columns, graph: &GraphStore) -> anyhow::Result<()> {
    for first in (0..columns.len()).step_by(APPLY_EVENTS) {
        let mut batch = EdgeBatch { first: EdgeId(first as u64), ..EdgeBatch::default() };
        for event in first..columns.len().min(first + APPLY_EVENTS) {
            batch.push_edge(columns.src[event], columns.dst[event], columns.times[event]);
        }
        graph.apply(&batch)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_generated_row_is_known_again() {
        let (mut row, mut other) = ([0.0; 172], [0.0; 172]);
        generate(5, &mut row);
        generate(6, &mut other);
        assert!(is_generated(5, &row) && !is_generated(6, &row) && row != other);
        assert!(row.iter().all(|value| (-0.5..0.5).contains(value)));
        row[171] += 1e-7;
        assert!(!is_generated(5, &row));
    }
}
