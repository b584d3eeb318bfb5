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

/// Shares of the memory limit where the settings leave them to the daemon. The rest is for what has no budget: names,
/// node states, models, batches.
const GRAPH_PERCENT: u64 = 40;
const ROWS_PERCENT: u64 = 20;
const BODIES_PERCENT: u64 = 5;
const RESPONSES_PERCENT: u64 = 10;

/// The least and the most that transfers get of it.
const BODIES_BYTES: (u64, u64) = (16 << 20, 256 << 20);
const RESPONSES_BYTES: (u64, u64) = (32 << 20, 512 << 20);

/// Memory budgets in bytes; 0 is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Budgets {
    pub graph: u64,
    pub rows: u64,
    /// Request bodies.
    pub bodies: u64,
    /// Responses that are not sent yet.
    pub responses: u64,
    limit: Option<u64>,
}

/// The settings of [`Budgets`], of which -1 is left to the daemon.
#[derive(Clone, Copy)]
struct Wanted {
    graph: i64,
    rows: i64,
    bodies: i64,
    responses: i64,
    /// The largest body; there is room for two.
    body: u64,
}

impl Budgets {
    /// Those of the settings, which -1 derives from the memory limit of this process.
    pub(super) fn of(config: &Config) -> Self {
        let (memory, api) = (&config.memory, &config.api);
        let wanted = Wanted {
            graph: memory.graph_bytes_max,
            rows: memory.rows_bytes_max,
            bodies: api.bodies_bytes_max,
            responses: api.responses_bytes_max,
            body: u64::try_from(api.body_bytes_max).unwrap_or(u64::MAX),
        };
        Self::within(memory_limit::limit_bytes(), wanted)
    }

    fn within(limit: Option<u64>, wanted: Wanted) -> Self {
        let share = |percent: u64| limit.map(|limit| limit / 100 * percent);
        let budget = |setting: i64, derived: u64| u64::try_from(setting).unwrap_or(derived);
        let stores = |percent| share(percent).map_or(0, |share| share.max(1 << 20));
        let transfers =
            |percent, (least, most): (u64, u64)| share(percent).unwrap_or(most).clamp(least, most);
        let bodies = transfers(BODIES_PERCENT, BODIES_BYTES).max(wanted.body.saturating_mul(2));
        Self {
            graph: budget(wanted.graph, stores(GRAPH_PERCENT)),
            rows: budget(wanted.rows, stores(ROWS_PERCENT)),
            bodies: budget(wanted.bodies, bodies),
            responses: budget(wanted.responses, transfers(RESPONSES_PERCENT, RESPONSES_BYTES)),
            limit,
        }
    }

    /// Whether the budgets together are more than there is.
    fn exceed_the_limit(&self) -> bool {
        let all =
            [self.graph, self.rows, self.bodies, self.responses].into_iter().fold(0, u64::saturating_add);
        self.limit.is_some_and(|limit| all > limit)
    }

    /// Logs them, and a warning if they cannot hold.
    pub(super) fn report(&self) {
        tracing::info!(
            limit_bytes = self.limit,
            graph_bytes_max = self.graph,
            rows_bytes_max = self.rows,
            bodies_bytes_max = self.bodies,
            responses_bytes_max = self.responses,
            "memory budgets; 0 is none"
        );
        if self.exceed_the_limit() {
            tracing::warn!(
                limit_bytes = self.limit,
                "the memory budgets together exceed the memory limit: lower memory.graph_bytes_max, \
                 memory.rows_bytes_max, api.bodies_bytes_max or api.responses_bytes_max, or set them to -1"
            );
        }
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
    let graph = match config.graph.node_retention {
        0 => graph,
        age => graph.with_node_retention(age),
    };
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
        let within = |limit, graph, rows, bodies, responses| {
            Budgets::within(limit, Wanted { graph, rows, bodies, responses, body: 8 << 20 })
        };
        let budgets = |limit, graph, rows| {
            let budgets = within(limit, graph, rows, -1, -1);
            (budgets.graph, budgets.rows)
        };
        const GIB: u64 = 1 << 30;
        let (graph, rows) = budgets(Some(4 * GIB), -1, -1);
        assert!(graph > GIB && rows > GIB / 2 && graph + rows < 4 * GIB * 2 / 3, "{graph} {rows}");
        assert_eq!(budgets(Some(4 * GIB), 0, 0), (0, 0), "no bound was asked for");
        assert_eq!(budgets(Some(4 * GIB), 5 << 20, -1), (5 << 20, rows));
        assert_eq!(budgets(None, -1, -1), (0, 0), "nothing is known");
        assert_eq!(budgets(Some(1), -1, -1), (1 << 20, 1 << 20), "the least that a setting may name");
        let transfers = |limit, bodies, responses| {
            let budgets = within(limit, -1, -1, bodies, responses);
            (budgets.bodies >> 20, budgets.responses >> 20, budgets.exceed_the_limit())
        };
        assert_eq!(transfers(Some(GIB), -1, -1), (51, 102, false));
        assert_eq!(transfers(Some(64 * GIB), -1, -1), (256, 512, false), "the most");
        assert_eq!(transfers(None, -1, -1), (256, 512, false));
        assert_eq!(transfers(Some(GIB / 10), -1, -1), (16, 32, true), "the least that works");
        assert_eq!(transfers(Some(GIB), 256 << 20, 512 << 20), (256, 512, true));
    }
}
