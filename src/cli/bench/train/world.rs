//! What the training benchmark trains on: the events of a file as bare columns, the graph over them, and
//! generated feature rows.
//!
//! A generated row is a function of the edge's id and the column, so that a row that comes back can be checked
//! without being kept. Names of nodes are let go once they are numbered.

use std::path::Path;

use anyhow::{bail, ensure};

use super::budget::Budget;
use crate::cli::output;
use crate::device::rng;
use crate::event::{EdgeBatch, EdgeId, EventTime, NodeId};
use crate::feature::FeatureStore;
use crate::graph::{GraphOptions, GraphStore, NodeDictionary};
use crate::ingest::csv::CsvReader;

/// Keeps generated rows apart from everything else that is drawn.
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
        let reader = CsvReader::open(path)?;
        if let Some(warning) = reader.warning() {
            output::tell(&warning);
        }
        let keys = NodeDictionary::new();
        let mut events: Vec<(EventTime, NodeId, NodeId)> = Vec::new();
        for event in reader.take(events_max) {
            let event = event?;
            events.push((event.time, keys.intern(&event.src), keys.intern(&event.dst)));
        }
        if events.is_empty() {
            bail!("{} has a header but no events", path.display());
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

/// The graph over the events and their rows, within the budgets.
pub fn build(
    columns: &Columns,
    row_dimension: usize,
    rows_budget: Option<Budget>,
    topology_budget: Option<Budget>,
) -> anyhow::Result<(GraphStore, FeatureStore)> {
    let (graph, rows) = stores(row_dimension, rows_budget, topology_budget)?;
    let mut row = vec![0.0; row_dimension];
    for first in (0..columns.len()).step_by(APPLY_EVENTS) {
        let mut batch = EdgeBatch { first: EdgeId(first as u64), ..EdgeBatch::default() };
        for event in first..columns.len().min(first + APPLY_EVENTS) {
            batch.push_edge(columns.src[event], columns.dst[event], columns.times[event]);
            if row_dimension > 0 {
                generate(event as u64, &mut row);
                rows.set(event as u64, &row)?;
            }
        }
        graph.apply(&batch);
    }
    Ok((graph, rows))
}

/// Empty stores that keep to the budgets: the one place that knows what a budget means.
fn stores(
    row_dimension: usize,
    rows_budget: Option<Budget>,
    topology_budget: Option<Budget>,
) -> anyhow::Result<(GraphStore, FeatureStore)> {
    for (option, budget) in [("--rows-budget", rows_budget), ("--topology-budget", topology_budget)] {
        ensure!(
            budget.is_none(),
            "{option}: budgets are not wired yet; without it everything is kept in memory"
        );
    }
    Ok((GraphStore::new(GraphOptions::default()), FeatureStore::new(row_dimension)))
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
