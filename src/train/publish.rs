//! What [`Trainer`] hands over to readers: the rows that serving reads of nodes.
//!
//! A GPU computes them behind the step, and they need not be waited for ([`ComingRows`]).

use rayon::prelude::*;

use super::inference::CHUNK_ROWS;
use super::prepare::PreparedBatch;
use super::trainer::{Scratch, TrainError, Trainer};
use crate::device::cuda::{CudaError, DetachedCopy};
use crate::device::{Device, matmul};
use crate::event::{EventTime, NodeId};
use crate::feature::FeatureStore;
use crate::graph::RetentionBounds;
use crate::model::{FeatureRows, GatherError, MessageRows, Model, ModelState, Needs};
use crate::nn::{Mode, Tape, TapePool, Tensor};

/// Rows that one thread computes at a time.
const PUBLISHED_ROWS: usize = 64;

/// Rows that a GPU computes of the nodes of a batch, for any thread to wait for and to hand over.
pub struct ComingRows {
    nodes: Vec<NodeId>,
    /// Of each node the time of its last event, if it has any.
    updated: Vec<Option<EventTime>>,
    /// `[nodes, width]`; none of a model whose nodes have no rows.
    values: Option<DetachedCopy<f32>>,
    width: usize,
}

impl ComingRows {
    /// The nodes.
    #[must_use]
    pub fn nodes(&self) -> &[NodeId] {
        &self.nodes
    }

    /// The rows. Waits for them.
    ///
    /// # Errors
    /// A fault of the GPU.
    pub fn wait(&self) -> Result<Vec<f32>, CudaError> {
        self.values.as_ref().map_or_else(|| Ok(Vec::new()), DetachedCopy::wait)
    }

    /// Hands `f` each of the `rows` that came, as [`Trainer::publish_rows`] does.
    pub fn hand_over(&self, rows: &[f32], mut f: impl FnMut(NodeId, &[f32], EventTime)) {
        for (i, (&node, updated)) in self.nodes.iter().zip(&self.updated).enumerate() {
            let row = &rows[i * self.width..][..self.width];
            if let Some(last) = updated.filter(|_| is_finite(row)) {
                f(node, row, last);
            }
        }
    }

    /// The same, when they have come.
    fn hand_over_now(
        self,
        model: &Model,
        f: impl FnMut(NodeId, &[f32], EventTime),
    ) -> Result<(), TrainError> {
        self.hand_over(&self.wait()?, f);
        Ok(model.device().check()?)
    }
}

fn is_finite(row: &[f32]) -> bool {
    row.iter().all(|value| value.is_finite())
}

impl Trainer {
    /// Hands `f` what serving reads of each of `nodes` (distinct nodes): its memory row after its
    /// pending message, computed with the weights as they are now, and behind it the row that is made of its walks, if
    /// the model has them; and the time of its last event. Nodes
    /// without any event and rows that are not finite are left out. The state does not change: the next
    /// batch applies the message again, so that its loss can train the memory updater. Messages of events before
    /// `since` have no features.
    ///
    /// # Errors
    /// Storage failed; some of the nodes may have been handed over.
    pub fn publish_rows(
        &self,
        since: EventTime,
        edge_features: &FeatureStore,
        nodes: &[NodeId],
        f: impl FnMut(NodeId, &[f32], EventTime),
    ) -> Result<(), TrainError> {
        let kept = RetentionBounds { since, ..RetentionBounds::default() };
        self.publish_rows_by(&self.model, kept, edge_features, nodes, f)
    }

    /// As [`Self::publish_rows`], by other weights of the same shape; messages of events that are not `kept` have no
    /// features.
    ///
    /// # Errors
    /// Storage failed; some of the nodes may have been handed over.
    pub fn publish_rows_by(
        &self,
        model: &Model,
        kept: RetentionBounds,
        edge_features: &FeatureStore,
        nodes: &[NodeId],
        mut f: impl FnMut(NodeId, &[f32], EventTime),
    ) -> Result<(), TrainError> {
        let Scratch { tables, rows, pool, .. } = &mut *self.scratch.lock();
        for nodes in nodes.chunks(CHUNK_ROWS) {
            let source = (edge_features, kept);
            gather_message_rows(&self.model.needs(), source, &self.state, nodes, rows)?;
            self.rows.iter().for_each(|reads| reads.count_gathered(rows.edges().len()));
            if *model.device() == Device::Cpu {
                self.publish_chunk(model, tables, nodes, rows.messages(), &mut f);
            } else {
                self.ask_rows_of(model, pool, nodes, rows.messages())?.hand_over_now(model, &mut f)?;
            }
        }
        Ok(())
    }

    /// As [`Self::publish_rows_by`], for the nodes of a batch whose step was just taken. It reads nothing that was
    /// not prepared.
    ///
    /// # Errors
    /// A GPU's, if that computes; some of the nodes may have been handed over.
    ///
    /// # Panics
    /// If the batch was not prepared to be published.
    pub fn publish_prepared(
        &self,
        model: &Model,
        batch: &PreparedBatch,
        mut f: impl FnMut(NodeId, &[f32], EventTime),
    ) -> Result<(), TrainError> {
        if *model.device() != Device::Cpu {
            return self.ask_rows(model, batch)?.hand_over_now(model, f);
        }
        let Scratch { tables, .. } = &mut *self.scratch.lock();
        for (chunk, nodes) in batch.touched().chunks(CHUNK_ROWS).enumerate() {
            let messages = batch.rows.next_messages().from(chunk * CHUNK_ROWS);
            self.publish_chunk(model, tables, nodes, messages, &mut f);
        }
        Ok(())
    }

    /// Asks the GPU that computes for the rows of [`Self::publish_prepared`], and does not wait for them.
    ///
    /// # Errors
    /// The GPU's.
    ///
    /// # Panics
    /// If the batch was not prepared to be published, or the CPU computes.
    pub fn ask_rows(&self, model: &Model, batch: &PreparedBatch) -> Result<ComingRows, TrainError> {
        let Scratch { pool, edges, .. } = &mut *self.scratch.lock();
        let aside = self.ahead.as_ref().and_then(|ahead| ahead.set_aside(batch)).cloned();
        let places = aside.or_else(|| edges.place(model.device(), &batch.rows));
        self.ask_rows_of(model, pool, batch.touched(), batch.rows.next_messages().at(places.as_ref()))
    }

    /// The same for `nodes`, given their messages.
    fn ask_rows_of(
        &self,
        model: &Model,
        pool: &mut TapePool,
        nodes: &[NodeId],
        messages: MessageRows<'_>,
    ) -> Result<ComingRows, TrainError> {
        let device = model.device();
        let mut tape = Tape::pooled(device, &model.parameters, Mode::Inference, pool);
        let rows = model.fresh_memory(&mut tape, (&self.state).into(), nodes, messages);
        let rows = tape.take_value(rows);
        drop(tape);
        let width = rows.cols();
        let values = if width > 0 { rows.detach().map(Some) } else { Ok(None) };
        pool.give(rows);
        if values.is_err() {
            // The fault that is why.
            device.check()?;
        }
        let updated = nodes.iter().map(|&node| self.state.last_event(node)).collect();
        Ok(ComingRows { nodes: nodes.to_vec(), updated, values: values?, width })
    }

    /// As [`Self::publish_prepared`]; if the batch was prepared for a GPU that failed since, its rows are read again.
    ///
    /// # Errors
    /// As [`Self::publish_prepared`], or storage failed.
    ///
    /// # Panics
    /// As [`Self::publish_prepared`].
    pub fn publish_learned(
        &self,
        model: &Model,
        edge_features: &FeatureStore,
        batch: &PreparedBatch,
        f: impl FnMut(NodeId, &[f32], EventTime),
    ) -> Result<(), TrainError> {
        if *model.device() != Device::Cpu || batch.rows.in_place().is_none() {
            return self.publish_prepared(model, batch, f);
        }
        self.publish_rows_by(model, batch.kept(), edge_features, batch.touched(), f)
    }

    /// Hands over the rows of `nodes`, which the CPU computes in parts, one thread each: the products are small.
    fn publish_chunk(
        &self,
        model: &Model,
        pools: &mut Vec<TapePool>,
        nodes: &[NodeId],
        messages: MessageRows<'_>,
        f: &mut impl FnMut(NodeId, &[f32], EventTime),
    ) {
        let parts = nodes.len().div_ceil(PUBLISHED_ROWS);
        pools.resize_with(parts.max(pools.len()), TapePool::new);
        let compute = |(i, (pool, nodes)): (usize, (&mut TapePool, &[NodeId]))| {
            let mut tape = Tape::pooled(&Device::Cpu, &model.parameters, Mode::Inference, pool);
            let messages = messages.from(i * PUBLISHED_ROWS);
            let fresh = || model.fresh_memory(&mut tape, (&self.state).into(), nodes, messages);
            let compute = || matmul::in_precision(self.options.precision, fresh);
            let rows = if parts > 1 { matmul::alone(compute) } else { compute() };
            tape.take_value(rows)
        };
        let rows: Vec<Tensor> = if parts > 1 {
            let pairs = pools[..parts].par_iter_mut().zip(nodes.par_chunks(PUBLISHED_ROWS));
            pairs.enumerate().map(compute).collect()
        } else {
            pools[..parts].iter_mut().zip(nodes.chunks(PUBLISHED_ROWS)).enumerate().map(compute).collect()
        };
        let mut joined = vec![0.0; model.needs().row_dim()];
        for ((nodes, rows), pool) in nodes.chunks(PUBLISHED_ROWS).zip(rows).zip(pools) {
            let (values, width) = (rows.data(), rows.cols());
            for (i, &node) in nodes.iter().enumerate() {
                let Some(last) = self.state.last_event(node) else { continue };
                let mut row = &values[i * width..][..width];
                if let (Some(walks), true) = (&self.state.walks, joined.len() > width) {
                    joined[..width].copy_from_slice(row);
                    walks.write_row(node, &mut joined[width..]);
                    row = &joined;
                }
                if is_finite(row) {
                    f(node, row, last);
                }
            }
            pool.give(rows);
        }
    }
}

/// Gathers what computing the memory of `nodes` by `state` reads; messages of events that are not `kept` have no
/// features.
fn gather_message_rows(
    needs: &Needs,
    (edge_features, kept): (&FeatureStore, RetentionBounds),
    state: &ModelState,
    nodes: &[NodeId],
    rows: &mut FeatureRows,
) -> Result<(), GatherError> {
    rows.clear();
    if !needs.reads_messages() {
        return Ok(());
    }
    rows.keep_from(kept.first);
    rows.index_messages((nodes, 0..nodes.len()), kept.since, |node| state.mailbox.pending_event(node));
    rows.fetch_edge_rows(needs, |ids, out| edge_features.gather(ids, out))?;
    Ok(())
}
