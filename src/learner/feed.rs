//! The learner's one cursor over the log: cuts the stream of edge records into batches.
//!
//! A batch is full at its maximum, or taken as it is when the stream is quiet, so that a single event is learned soon.
//! It also ends after so many rows of nodes (`node_rows.rs`), which may come by the million before the first edge, and
//! at the deletion of a node, so that what came before is learned before the node is forgotten, and what
//! comes after is learned after. Records are handed out only when the graph holds them. Each batch states what
//! retention keeps for it, a function of the log before it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::node_rows::NodeRows;
use crate::event::{EdgeBatch, EdgeId, EventTime, NodeId, Op};
use crate::graph::{RetentionBounds, RetentionClock};
use crate::log::{Frame, LogError, LogReader};
use crate::serving::Progress;
use crate::train::StreamNegatives;

/// The edges of a run of log records, column by column.
#[derive(Clone, Debug, Default)]
pub struct LearnBatch {
    /// Source nodes.
    pub src: Vec<NodeId>,
    /// Destination nodes.
    pub dst: Vec<NodeId>,
    /// Event times.
    pub times: Vec<EventTime>,
    /// Log positions.
    pub edges: Vec<EdgeId>,
    /// Types, by number.
    pub kinds: Vec<u16>,
    /// Rows of nodes that the run sets.
    pub node_rows: NodeRows,
    /// Nodes deleted by the last records of the run, after all of its edges.
    pub deleted: Vec<NodeId>,
    /// Position of the first record of the run.
    pub first: EdgeId,
    /// One past the last record of the run, records that are no edges included.
    pub end: EdgeId,
    /// What retention keeps for the batch, by the edges before the run alone.
    pub kept: RetentionBounds,
    /// Where the feed stood before the run.
    pub begin: Option<FeedMark>,
    /// For each block of ids that begins in the run, the number of its first event, and what retention keeps from
    /// there on.
    pub blocks: Vec<(usize, EdgeId)>,
    /// When the oldest event of each frame of the run was produced, Unix milliseconds.
    pub origins_unix_ms: Vec<i64>,
}

impl LearnBatch {
    /// Whether any frame of the run holds an event that was produced before `began_unix_ms`.
    #[must_use]
    pub fn is_history(&self, began_unix_ms: i64) -> bool {
        self.origins_unix_ms.iter().any(|&origin| origin < began_unix_ms)
    }

    /// The records from `at` on, for a graph that has those before it: edges without features; what is no edge only
    /// counts.
    #[must_use]
    pub fn records_from(&self, at: EdgeId) -> EdgeBatch {
        let first = at.max(self.first);
        let mut records = EdgeBatch { first, ..EdgeBatch::default() };
        let from = self.edges.partition_point(|edge| *edge < first);
        for (i, &edge) in self.edges.iter().enumerate().skip(from) {
            pad(&mut records, edge);
            records.push_edge(self.src[i], self.dst[i], self.times[i]);
        }
        pad(&mut records, self.end);
        records
    }

    /// Takes the destinations into those that negatives are drawn from, and those out that are too old. That happens
    /// between blocks of ids, so it does not depend on where batches end.
    pub fn show_destinations(&self, pool: &mut StreamNegatives) {
        let mut from = 0;
        for &(to, first) in &self.blocks {
            pool.observe(&self.src[from..to], &self.dst[from..to], &self.edges[from..to]);
            pool.keep_from(first);
            from = to;
        }
        pool.observe(&self.src[from..], &self.dst[from..], &self.edges[from..]);
    }

    fn clear(&mut self, at: EdgeId, kept: RetentionBounds, known: u32) {
        self.src.clear();
        self.dst.clear();
        self.times.clear();
        self.edges.clear();
        self.kinds.clear();
        self.deleted.clear();
        self.blocks.clear();
        self.node_rows.begin(known);
        self.origins_unix_ms.clear();
        self.first = at;
        self.end = at;
        self.kept = kept;
    }

    /// Takes records from `from` on, below position `end`, until the batch is full or must end; returns the position
    /// reached.
    fn take(&mut self, records: &EdgeBatch, from: usize, edges_max: usize, end: EdgeId) -> usize {
        let mut i = from;
        while i < records.len() && records.id(i) < end {
            match records.op[i] {
                Op::Edge | Op::Node if self.is_full(edges_max) => break,
                Op::Edge => {
                    self.src.push(records.src[i]);
                    self.dst.push(records.dst[i]);
                    self.times.push(records.time[i]);
                    self.edges.push(records.id(i));
                    self.kinds.push(records.edge_type.get(i).copied().unwrap_or_default());
                    self.node_rows.edge(records.src[i], records.dst[i]);
                }
                Op::DeleteNode => self.deleted.push(records.src[i]),
                Op::Node => self.node_rows.row(records.src[i], records.features.row(i)),
                Op::DeleteEdge => {}
            }
            i += 1;
        }
        self.end = records.id(i);
        i
    }

    /// Whether no further edge and no further row may be added.
    fn is_full(&self, edges_max: usize) -> bool {
        self.edges.len() >= edges_max || !self.deleted.is_empty() || self.node_rows.is_full()
    }
}

/// Fills `records` up to `end` with such as are no edges.
fn pad(records: &mut EdgeBatch, end: EdgeId) {
    while records.end() < end {
        records.push_edge(NodeId(0), NodeId(0), EventTime(0));
        records.op.pop();
        records.op.push(Op::Node);
    }
}

/// What a feed has taken from the log before its position.
#[derive(Clone, Debug)]
pub struct FeedMark {
    /// Retention's clock over the edges before it.
    pub clock: RetentionClock,
    /// One past the highest node before it.
    pub known: u32,
}

/// Reads the log from a position on, or between two.
pub struct Feed {
    reader: LogReader,
    progress: Arc<Progress>,
    frame: Option<Frame>,
    /// Durable, and not in the graph yet.
    waiting: Option<Frame>,
    next_record: usize,
    position: EdgeId,
    end: EdgeId,
    /// Has observed every edge that was handed out.
    clock: RetentionClock,
    /// One past the highest node id that was handed out.
    known: u32,
}

impl Feed {
    /// A feed whose first record is the one at `from`; `mark` is of what comes before.
    #[must_use]
    pub fn new(reader: LogReader, progress: Arc<Progress>, from: EdgeId, mark: FeedMark) -> Self {
        let FeedMark { clock, known } = mark;
        Self {
            reader,
            progress,
            frame: None,
            waiting: None,
            next_record: 0,
            position: from,
            end: EdgeId(u64::MAX),
            clock,
            known,
        }
    }

    /// The same feed, which hands out nothing from `end` on.
    #[must_use]
    pub fn up_to(self, end: EdgeId) -> Self {
        Self { end, ..self }
    }

    /// The position of the next record to hand out.
    #[must_use]
    pub fn position(&self) -> EdgeId {
        self.position
    }

    /// The clock that has observed every edge that was handed out.
    pub fn clock(&mut self) -> &mut RetentionClock {
        &mut self.clock
    }

    /// Where the feed stands besides its position: between two batches, what [`resume`](Self::resume) takes.
    #[must_use]
    pub fn mark(&self) -> FeedMark {
        FeedMark { clock: self.clock.clone(), known: self.known }
    }

    /// Goes on as a feed that stood at `mark`.
    pub fn resume(&mut self, FeedMark { clock, known }: FeedMark) {
        (self.clock, self.known) = (clock, known);
    }

    /// Fills `batch` with up to `edges_max` edges. Waits at most `idle` for a first record and, once
    /// there is one, at most `fill` for more. The batch is empty when nothing came.
    ///
    /// # Errors
    /// When the log cannot be read.
    pub fn fill(
        &mut self,
        batch: &mut LearnBatch,
        edges_max: usize,
        idle: Duration,
        fill: Duration,
    ) -> Result<(), LogError> {
        batch.clear(self.position, self.clock.bounds(), self.known);
        batch.begin = Some(self.mark());
        let mut deadline = Instant::now() + idle;
        while !batch.is_full(edges_max) && self.position < self.end {
            if self.frame.is_none() && !self.next_frame(deadline)? {
                break;
            }
            let Some(frame) = &self.frame else { break };
            if batch.end == batch.first {
                deadline = Instant::now() + fill;
            }
            batch.origins_unix_ms.push(frame.origin_unix_ms);
            self.next_record = batch.take(&frame.batch, self.next_record, edges_max, self.end);
            self.position = batch.end;
            if self.next_record == frame.batch.len() {
                self.frame = None;
            }
        }
        self.known = batch.node_rows.end();
        for (i, (&edge, &time)) in batch.edges.iter().zip(&batch.times).enumerate() {
            if self.clock.begins_block(edge) {
                batch.blocks.push((i, self.clock.bounds().first));
            }
            self.clock.observe(edge, time);
        }
        Ok(())
    }

    /// Gets the next frame with records that the graph holds; `false` if none came by the deadline. A
    /// frame that was read and is not in the graph by then is kept for the next call.
    fn next_frame(&mut self, deadline: Instant) -> Result<bool, LogError> {
        loop {
            let needed = match &self.waiting {
                Some(frame) => frame.batch.end(),
                None => EdgeId(self.position.0 + 1),
            };
            if !self.progress.wait_indexed(needed, deadline.saturating_duration_since(Instant::now())) {
                return Ok(false);
            }
            if let Some(frame) = self.waiting.take() {
                self.next_record =
                    usize::try_from(self.position.0.saturating_sub(frame.batch.first.0)).unwrap_or(0);
                self.frame = Some(frame);
                return Ok(true);
            }
            match self.reader.next_frame()? {
                None => return Ok(false),
                Some(frame) if frame.batch.end() <= self.position => {}
                Some(frame) => self.waiting = Some(frame),
            }
        }
    }
}
