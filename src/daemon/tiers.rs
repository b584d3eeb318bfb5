//! The stores that can spill to disk: created from the settings, and their status.

use std::collections::BTreeMap;

use anyhow::{Context, Result};

use super::memory_limit;
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

/// Shares of the memory limit that stores get where the settings leave it to the daemon. The rest is for what has no
/// budget: names, node states, models, batches, requests.
const GRAPH_PERCENT: u64 = 40;
const ROWS_PERCENT: u64 = 20;

/// Memory budgets in bytes; 0 is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Budgets {
    pub graph: u64,
    pub rows: u64,
}

impl Budgets {
    /// Those of the settings, which -1 derives from the memory limit of this process.
    pub(super) fn of(config: &Config) -> Self {
        let memory = &config.memory;
        let limit = memory_limit::limit_bytes();
        let budgets = Self::within(limit, memory.graph_bytes_max, memory.rows_bytes_max);
        tracing::info!(
            limit_bytes = limit,
            graph_bytes_max = budgets.graph,
            rows_bytes_max = budgets.rows,
            "memory budgets; 0 is none"
        );
        budgets
    }

    fn within(limit: Option<u64>, graph: i64, rows: i64) -> Self {
        let share = |percent: u64| limit.map_or(0, |limit| (limit / 100 * percent).max(1 << 20));
        let budget = |setting: i64, percent| u64::try_from(setting).unwrap_or_else(|_| share(percent));
        Self { graph: budget(graph, GRAPH_PERCENT), rows: budget(rows, ROWS_PERCENT) }
    }
}

/// Uses small pages if the settings name a budget: with huge pages, the process could exceed it. A derived budget
/// leaves room for them.
pub(super) fn settle_pages(config: &Config) {
    let memory = &config.memory;
    if memory.graph_bytes_max <= 0 && memory.rows_bytes_max <= 0 {
        return;
    }
    if let Err(error) = keep_pages_small() {
        tracing::warn!(%error, "the kernel keeps using huge pages: the process may exceed its memory budgets");
    }
}

/// An empty graph.
pub(super) fn graph(config: &Config, rules: ClockRules, budget: u64) -> Result<GraphStore> {
    let options =
        GraphOptions { shards: config.graph.shards, page_entries_max: config.graph.page_entries_max };
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
pub(super) fn edge_rows(config: &Config, budget: u64) -> Result<FeatureStore> {
    let dimension = config.model_options().needs().edge_row_dim;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budgets_that_are_left_to_the_daemon_follow_from_the_memory_limit() {
        let budgets = |limit, graph, rows| {
            let budgets = Budgets::within(limit, graph, rows);
            (budgets.graph, budgets.rows)
        };
        const GIB: u64 = 1 << 30;
        let (graph, rows) = budgets(Some(4 * GIB), -1, -1);
        assert!(graph > GIB && rows > GIB / 2 && graph + rows < 4 * GIB * 2 / 3, "{graph} {rows}");
        assert_eq!(budgets(Some(4 * GIB), 0, 0), (0, 0), "no bound was asked for");
        assert_eq!(budgets(Some(4 * GIB), 5 << 20, -1), (5 << 20, rows));
        assert_eq!(budgets(None, -1, -1), (0, 0), "nothing is known");
        assert_eq!(budgets(Some(1), -1, -1), (1 << 20, 1 << 20), "the least that a setting may name");
    }
}
