//! The stores that can spill to disk: created from the settings, and their status.

use std::collections::BTreeMap;

use anyhow::{Context, Result};

use crate::api::TierStatus;
use crate::config::Config;
use crate::device::disk::SpillFile;
use crate::device::keep_pages_small;
use crate::event::ClockRules;
use crate::feature::{FeatureStore, RowState, RowStats};
use crate::graph::{GraphOptions, GraphStore, SpillStats};

impl From<SpillStats> for TierStatus {
    fn from(stats: SpillStats) -> Self {
        Self {
            budget_bytes: stats.budget_bytes,
            memory_bytes: stats.table_bytes + stats.resident_bytes,
            buffer_bytes: stats.buffer_bytes,
            disk_bytes: stats.disk_bytes,
            reads: stats.loads,
            failures: stats.failures,
            engine: stats.engine,
            failing: stats.failing,
        }
    }
}

impl From<RowStats> for TierStatus {
    fn from(stats: RowStats) -> Self {
        let failing = match stats.state {
            RowState::Ok => None,
            RowState::Degraded(reason) => Some(reason),
        };
        Self {
            budget_bytes: stats.budget_bytes,
            memory_bytes: stats.resident_bytes,
            // The read buffers of rows count against their budget.
            buffer_bytes: 0,
            disk_bytes: stats.disk_bytes,
            reads: stats.reads,
            failures: stats.failures,
            engine: stats.engine,
            failing,
        }
    }
}

/// The stores with a memory budget, by name.
pub(super) fn stores(graph: &GraphStore, edge_rows: &FeatureStore) -> BTreeMap<&'static str, TierStatus> {
    let graph = graph.spill_stats().map(|stats| ("graph", TierStatus::from(stats)));
    let rows = edge_rows.tiered_stats().map(|stats| ("rows", TierStatus::from(stats)));
    graph.into_iter().chain(rows).collect()
}

/// Uses small pages if any budget is set: with huge pages, the process could exceed it.
pub(super) fn settle_pages(config: &Config) {
    let memory = &config.memory;
    if memory.graph_bytes_max == 0 && memory.rows_bytes_max == 0 {
        return;
    }
    if let Err(error) = keep_pages_small() {
        tracing::warn!(%error, "the kernel keeps using huge pages: the process may exceed its memory budgets");
    }
}

/// An empty graph.
pub(super) fn graph(config: &Config, rules: ClockRules) -> Result<GraphStore> {
    let options =
        GraphOptions { shards: config.graph.shards, page_entries_max: config.graph.page_entries_max };
    let budget = config.memory.graph_bytes_max;
    let graph = if budget == 0 {
        GraphStore::new(options)
    } else {
        GraphStore::with_budget(options, budget, Box::new(spill_file(config, "graph")?))
    };
    let graph = graph.with_clock_rules(rules);
    Ok(match config.retention() {
        Some(retention) => graph.with_retention(retention),
        None => graph,
    })
}

/// An empty store of edge rows.
pub(super) fn edge_rows(config: &Config) -> Result<FeatureStore> {
    let (dimension, budget) = (config.model_options().needs().edge_row_dim, config.memory.rows_bytes_max);
    if budget == 0 || dimension == 0 {
        return Ok(FeatureStore::new(dimension));
    }
    let file = spill_file(config, "rows")?;
    FeatureStore::with_budget(dimension, budget, Box::new(file))
        .context("memory.rows_bytes_max: the threads that read and write rows cannot be started")
}

/// An unnamed file in `data.dir/spill`.
fn spill_file(config: &Config, name: &str) -> Result<SpillFile> {
    let dir = config.data.dir.join("spill");
    std::fs::create_dir_all(&dir)
        .with_context(|| format!("data.dir: cannot make the folder {}", dir.display()))?;
    SpillFile::create(&dir, name, config.memory.engine.into())
        .with_context(|| format!("data.dir: cannot make a spill file in {}", dir.display()))
}
