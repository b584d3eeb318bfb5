//! The live index: a row per node, from which the likeliest destinations of a source and the nodes most like another
//! are found by reading all rows.
//!
//! An approximate index cannot follow a stream, since every event changes rows; reading all of them can, and for a link
//! head that splits it loses nothing:
//!
//! ```text
//! logit(u, v) = w_b relu(W_u z_u + W_v z_v + b_a) + b_b = w_b relu(q_u + p_v) + b_b
//! ```
//! So `p_v` is kept for each node, and a candidate costs some 300 operations and 400 bytes at 100 values. What a scan
//! finds, somewhat more than was asked for, is then embedded and scored anew by the code of link scores: rows decide
//! who is looked at, never a score.
//!
//! The rows are those of one version of the weights, a [`Generation`](generation::Generation). A [thread](IndexLoop)
//! keeps them: it embeds the nodes that the learner [touched](super::TouchedNodes) some tenths of a second ago at the
//! latest, then the others, over and over, while anything happens, because embeddings depend on time and on neighbors
//! too; and once other weights are served, it fills a second generation and swaps the two. How old rows are is part of
//! every response, as [`IndexState`]. What it computes of nodes that the change feed owes goes to that, too
//! ([`handover`]).
//!
//! What is exact, when all rows are as of now: models whose head splits (TGN, TGAT, GraphMixer). The others are found
//! in two stages, and exactly up to [`top::WIDE_ROWS`] candidates: first the largest inner products of embeddings, then
//! the head (GraphSAGE, GAT, DySAT), or the score from walks and the destinations that the source met lately (`walk`).

mod best;
mod candidates;
mod generation;
mod handover;
mod keep;
mod scan;
mod similar;
mod table;
mod top;
mod top_response;
mod values;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;
use parking_lot::Mutex;

pub(super) use self::generation::Generation;
pub(super) use self::handover::HandedRows;
use self::handover::Handover;
use self::table::Stamp;
use super::{Progress, TouchedNodes};
use crate::event::EdgeId;
use crate::model::Weights;

pub use candidates::Candidates;
pub use keep::IndexLoop;
pub use similar::{Metric, SimilarItem, SimilarRequest, SimilarResponse, SimilarResult, SimilarTo};
pub use top_response::{FoundNode, Order, TopRequest, TopResponse, TopResult, TopSource};
pub use values::IndexPrecision;

/// How the index is kept.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct IndexOptions {
    /// Most bytes of rows, of two generations.
    pub bytes_max: u64,
    /// In which numbers rows are kept.
    pub precision: IndexPrecision,
    /// Share of one core that embedding rows may take.
    pub cpu_share: f64,
    /// How long touched nodes are collected before they are embedded.
    pub coalesce: Duration,
}

/// The rows, shared by the thread that keeps them and the queries that read them.
pub struct LiveIndex {
    options: IndexOptions,
    current: ArcSwapOption<Generation>,
    condition: Mutex<Condition>,
    /// Touched nodes that the thread has taken and not embedded yet.
    in_hand: AtomicUsize,
    /// Rows for the change feed.
    pub(super) handover: Handover,
}

/// What the thread is about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Condition {
    /// No version of the weights was published yet.
    #[default]
    Waiting,
    /// Rows are computed for the first time.
    Filling {
        /// Ids that are done.
        done: usize,
        /// Ids in all.
        of: usize,
    },
    /// Every node has a row.
    Ready,
    /// There is no room for the rows, so there are none.
    Full {
        /// Bytes that two generations would take.
        needed: u64,
    },
}

/// How far an index is.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct IndexState {
    /// Version of the weights that computed the rows.
    pub model_version: u64,
    /// Every event below this position is in the rows of its own two nodes.
    pub complete_to: u64,
    /// Nodes whose rows are older than their last event or their deletion.
    pub pending_nodes: usize,
    /// Staleness of the most outdated row, seconds; 0 if all are current.
    pub oldest_row_seconds: f64,
}

/// How the candidates of a response were found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Coverage {
    /// How far the rows are; `None` where none were needed.
    pub index: Option<IndexState>,
    /// Candidates of an item that were looked at, at most.
    pub scanned: usize,
    /// Whether comparing every candidate would have found the same.
    pub exact: bool,
}

impl Coverage {
    /// What holds of both parts of a response.
    #[must_use]
    pub fn and(self, rest: Self) -> Self {
        let both = |one: IndexState, other: IndexState| IndexState {
            model_version: one.model_version.min(other.model_version),
            complete_to: one.complete_to.min(other.complete_to),
            pending_nodes: one.pending_nodes.max(other.pending_nodes),
            oldest_row_seconds: one.oldest_row_seconds.max(other.oldest_row_seconds),
        };
        Self {
            index: self.index.zip(rest.index).map(|(one, other)| both(one, other)),
            scanned: self.scanned.max(rest.scanned),
            exact: self.exact && rest.exact,
        }
    }
}

/// An index from outside.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct IndexReport {
    /// What the thread is about.
    pub condition: Condition,
    /// How far it is; zeros without rows.
    pub state: IndexState,
    /// Rows that there are.
    pub rows: usize,
    /// Bytes held.
    pub bytes: u64,
}

impl LiveIndex {
    /// No rows yet.
    #[must_use]
    pub fn new(options: IndexOptions) -> Self {
        let (current, condition, handover) = (ArcSwapOption::empty(), Mutex::default(), Handover::default());
        Self { options, current, condition, in_hand: AtomicUsize::new(0), handover }
    }

    /// How it is kept.
    #[must_use]
    pub fn options(&self) -> IndexOptions {
        self.options
    }

    /// What the thread is about.
    #[must_use]
    pub fn condition(&self) -> Condition {
        *self.condition.lock()
    }

    pub(super) fn generation(&self) -> Option<Arc<Generation>> {
        self.current.load_full()
    }

    /// Whether its rows are those of `weights`: then nodes that are touched get a row of theirs soon.
    pub(super) fn is_of(&self, weights: &Weights) -> bool {
        self.generation().is_some_and(|generation| generation.weights.is(weights))
    }

    fn set_condition(&self, condition: Condition) {
        *self.condition.lock() = condition;
    }

    /// How far the rows of `generation` are.
    fn state(&self, generation: &Generation, progress: &Progress, touched: &TouchedNodes) -> IndexState {
        let complete_to = progress.embedded().0;
        let pending_nodes = touched.count() + self.in_hand.load(Ordering::Acquire);
        let oldest = generation.table.oldest(&now(progress));
        let oldest_row_seconds = oldest.map_or(0.0, |at| at.elapsed().as_secs_f64());
        IndexState {
            model_version: generation.weights.version,
            complete_to,
            pending_nodes,
            oldest_row_seconds,
        }
    }

    /// The index from outside.
    #[must_use]
    pub fn report(&self, progress: &Progress, touched: &TouchedNodes) -> IndexReport {
        let condition = self.condition();
        let Some(generation) = self.generation() else {
            return IndexReport { condition, ..IndexReport::default() };
        };
        let state = self.state(&generation, progress, touched);
        IndexReport { condition, state, rows: generation.table.live(), bytes: generation.table.bytes() }
    }
}

impl IndexState {
    /// Whether every node that was learned of below a position has a row, of whatever age.
    fn has_all(&self, learned: u64) -> bool {
        self.pending_nodes == 0 && self.complete_to >= learned
    }

    /// Whether no row misses anything either.
    fn is_settled(&self, learned: u64) -> bool {
        self.has_all(learned) && self.oldest_row_seconds == 0.0
    }
}

/// This moment, as rows are stamped.
fn now(progress: &Progress) -> Stamp {
    // In this order: what is learned was indexed before.
    let EdgeId(learned) = progress.learned();
    Stamp { at: Instant::now(), learned, indexed: progress.indexed().0 }
}
