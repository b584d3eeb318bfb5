//! TGN's training step on a card: [`CardTrainer`] scores, learns from and remembers a prepared batch as
//! [`Trainer`](super::Trainer) does, with the same weights at the start, the same dropout and the same order.
//!
//! ```text
//! upload      which rows stand where, time differences, rows of edges                        host to card
//! forward     messages -> GRU -> attention -> merge -> link predictor -> loss
//! backward    the same turned around -> norm, bounded -> Adam                                the card alone
//! remember    memory of the touched nodes -> their messages
//! report      loss, logits, norm, refused rows                                               card to host
//! ```
//!
//! Memory, mailbox and weights stay on the card. The host knows which message waits for whom, since that follows from
//! the events alone.
//!
//! Limits: TGN with attention, GRU and last messages, without node features and types of edges; 1, 2 or 4 heads and
//! what else the kernels of attention ask for. Buffers of a step come from the driver's pool at every step, zeroed.
//!
//! Not verified on a GPU; the steps are compared with the processor's on a card that the processor plays.

mod backward;
mod forward;
mod upload;
mod weights;

use std::sync::Arc;

use thiserror::Error;

use super::step::GRADIENT_NORM_MAX;
use super::{PreparedBatch, StepMode, StepReport, TrainError, TrainerOptions};
use crate::device::Device;
use crate::device::cuda::layers::{
    AttentionSizes, BatchEnds, CardMemory, Layout, LinearSizes, Place, time_encode,
};
use crate::device::cuda::twins::Mask;
use crate::device::cuda::{Cuda, CudaBuffer, CudaError};
use crate::event::{EdgeId, EventTime, NodeId};
use crate::model::tgn::{Aggregator, Embedding, Updater};
use crate::model::{Mailbox, Model, ModelError, ModelOptions, TgnOptions};
use crate::nn::TimeEncoder;
use forward::{Forward, Pass};
use upload::Upload;
use weights::{CardWeights, Learned};

/// A step on a card that did not do what it should.
#[derive(Debug, Error)]
pub enum CardTrainError {
    /// The card's.
    #[error(transparent)]
    Card(#[from] CudaError),
    /// The options describe no model.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// As of a step on the processor.
    #[error(transparent)]
    Step(#[from] TrainError),
    /// Nothing was done.
    #[error("a card does not do this: {what}; let the processor train")]
    Unsupported {
        /// What was asked for.
        what: String,
    },
}

/// Widths of a TGN.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    memory: usize,
    time: usize,
    edge: usize,
    embedding: usize,
    heads: usize,
}

impl Sizes {
    /// Of the attention.
    fn attention(&self) -> usize {
        self.memory + self.time
    }

    /// Of a slot.
    fn slot(&self) -> usize {
        self.memory + self.edge + self.time
    }

    /// Of a message.
    fn message(&self) -> usize {
        2 * self.memory + self.edge + self.time
    }

    fn head(&self) -> usize {
        self.attention() / self.heads
    }

    fn attention_sizes(&self, seeds: usize, slots: usize) -> AttentionSizes {
        let Self { memory, time, edge, heads, .. } = *self;
        AttentionSizes { seeds, slots, heads, node: memory, edge, time }
    }

    /// Of u and y, all heads together.
    fn blocks(&self) -> usize {
        self.heads * self.attention_sizes(0, 0).padded()
    }

    /// Parts of rows of u and y, by head.
    fn blocks_layout(&self) -> Layout {
        Layout::dense(self.blocks()).parts(self.attention_sizes(0, 0).padded())
    }

    /// Parts of rows of the attention, by head.
    fn heads_layout(&self) -> Layout {
        Layout::dense(self.attention()).parts(self.head())
    }

    /// Rows of a weight between slots and the attention, by head.
    fn head_weights(&self) -> Layout {
        Layout::dense(self.slot()).parts(self.head() * self.slot())
    }

    /// Products with such a weight.
    fn folded(&self, rows: usize, scale: f32) -> LinearSizes {
        LinearSizes::new([rows, self.slot(), self.head()]).parts(self.heads, scale)
    }

    /// What keeps scores from growing with the width of a head.
    fn scale(&self) -> f32 {
        1.0 / (self.head() as f32).sqrt()
    }
}

/// Model, optimizer and state, on a card.
pub struct CardTrainer {
    cuda: Arc<Cuda>,
    options: TrainerOptions,
    sizes: Sizes,
    dropout: f32,
    learned: CardWeights,
    memory: CardMemory,
    /// Which message waits for whom; the rows themselves are on the card.
    mailbox: Mailbox,
    /// Time of the first event.
    origin: Option<EventTime>,
    steps: u64,
    /// Frequencies and phases of the encoding, and the encoding of no time.
    encoding: [CudaBuffer<f32>; 3],
}

impl CardTrainer {
    /// A trainer with fresh weights, those of [`Trainer::new`](super::Trainer::new), and an empty state. Waits.
    ///
    /// # Errors
    /// Options that a card does not do or that describe no model, or the card's.
    pub fn new(cuda: &Arc<Cuda>, options: TrainerOptions) -> Result<Self, CardTrainError> {
        let tgn = supported(&options.model)?;
        let place: Place<'_> = (cuda, cuda.compute());
        let model = Model::new(options.model, options.seed, &Device::Cpu)?;
        let learned = CardWeights::copy(place, &model.parameters)?;
        let learned = learned.map_err(|name| unsupported(format!("a model without {name}")))?;
        let copy = |values: &[f32]| CudaBuffer::from_slice(cuda, cuda.compute(), values, "a time encoding");
        let (w, b) = (copy(&TimeEncoder::frequencies(tgn.time_dim))?, copy(&vec![0.0; tgn.time_dim])?);
        let mut now = room(place, tgn.time_dim)?;
        time_encode(place, &copy(&[0.0])?, (&w, &b), &mut now)?;
        let sizes = Sizes {
            memory: tgn.memory_dim,
            time: tgn.time_dim,
            edge: tgn.edge_feature_dim,
            embedding: tgn.embedding_dim,
            heads: tgn.heads,
        };
        Ok(Self {
            memory: CardMemory::new(place, 0, sizes.memory)?,
            cuda: cuda.clone(),
            options,
            sizes,
            dropout: tgn.dropout,
            learned,
            mailbox: Mailbox::new(0),
            origin: None,
            steps: 0,
            encoding: [w, b, now],
        })
    }

    /// The event whose message waits for `node`: what [`Preparer::expect`](super::Preparer::expect) is told.
    #[must_use]
    pub fn pending_event(&self, node: NodeId) -> Option<(EdgeId, EventTime)> {
        self.mailbox.pending_event(node)
    }

    /// All weights by name. Waits.
    ///
    /// # Errors
    /// The card's.
    pub fn weights(&self) -> Result<Vec<(&'static str, Vec<f32>)>, CardTrainError> {
        let list = self.learned.weights.list();
        Ok(list
            .into_iter()
            .map(|(name, values)| Ok((name, values.copy_to_host()?)))
            .collect::<Result<_, CudaError>>()?)
    }

    /// Memory rows and update times of all nodes, as [`CardMemory::memory`]. Waits.
    ///
    /// # Errors
    /// The card's.
    pub fn memory(&self) -> Result<(Vec<f32>, Vec<i64>), CardTrainError> {
        Ok(self.memory.memory()?)
    }

    /// Takes the step that `batch` was prepared for, to train or to score. Waits.
    ///
    /// # Errors
    /// A mode that a card does not do or a batch of another state (nothing was done), a loss or a gradient that is not
    /// finite (the weights are untouched and the batch was remembered), or the card's: then what the card holds is
    /// between two steps.
    pub fn step_prepared(&mut self, batch: &PreparedBatch) -> Result<StepReport, CardTrainError> {
        if batch.mode == StepMode::Remember {
            return Err(unsupported("a step that remembers only".to_owned()));
        }
        if self.sizes.edge > 0 && !batch.rows.has_mails_of(&self.mailbox, batch.nodes()) {
            return Err(TrainError::OutOfOrder { step: self.steps }.into());
        }
        let step = self.steps;
        self.steps += 1;
        if batch.positives().src.is_empty() {
            return Ok(StepReport::default());
        }
        let cuda = self.cuda.clone();
        let place: Place<'_> = (&cuda, cuda.compute());
        let nodes = batch.nodes().iter().map(|node| node.index() + 1).max().unwrap_or(0);
        if nodes > self.memory.nodes() {
            self.memory.grow(place, nodes.next_power_of_two())?;
        }
        let upload = Upload::new(place, batch, &self.mailbox)?;
        let train = batch.mode == StepMode::Train;
        let done = self.compute(place, &upload, train)?;
        let refused = self.remember(place, batch, &upload, &done)?;
        self.report(batch, (step, train), &done, refused)
    }

    /// Scores and, to train, learns. Does not wait.
    fn compute(&mut self, place: Place<'_>, batch: &Upload, train: bool) -> Result<Forward, CudaError> {
        let dropout = if train { self.dropout } else { 0.0 };
        let [w, b, now] = &self.encoding;
        let pass = Pass {
            place,
            sizes: self.sizes,
            batch,
            weights: &self.learned.weights,
            encoding: [w, b, now],
            masks: [0, 1].map(|number| Mask::new(dropout, [self.options.seed, self.steps, number])),
        };
        let mut done = pass.forward(&self.memory, self.origin.map_or(0, |origin| origin.0))?;
        if train {
            pass.backward(&mut done, &mut self.learned.gradients)?;
            let rate = self.options.learning_rate * self.options.schedule.factor(self.learned.steps());
            self.learned.learn(place, (rate, GRADIENT_NORM_MAX), &done.loss)?;
        }
        Ok(done)
    }

    /// Writes the memory of the touched nodes and leaves their messages; how many rows are refused the card will know.
    fn remember(
        &mut self,
        place: Place<'_>,
        batch: &PreparedBatch,
        upload: &Upload,
        done: &Forward,
    ) -> Result<CudaBuffer<u32>, CudaError> {
        let mut refused = CudaBuffer::zeros(place.0, place.1, 1, "counting refused rows")?;
        let touched = &upload.touched;
        self.memory.remember(place, (touched, &upload.touched_places), &done.fresh, &mut refused)?;
        let ends = BatchEnds { src: &upload.src, dst: &upload.dst, times: &upload.times };
        self.memory.post(place, (touched, &upload.last), ends)?;
        let events = batch.positives();
        self.origin = self.origin.or(events.times.iter().min().copied());
        for (&node, &last) in batch.touched.nodes().iter().zip(batch.touched.last_events()) {
            let last = last as usize;
            let other = if events.src[last] == node { events.dst[last] } else { events.src[last] };
            self.mailbox.post(node, other, events.edges[last], events.times[last]);
        }
        Ok(refused)
    }

    fn report(
        &mut self,
        batch: &PreparedBatch,
        (step, train): (u64, bool),
        done: &Forward,
        refused: CudaBuffer<u32>,
    ) -> Result<StepReport, CardTrainError> {
        let logits = done.logits.copy_to_host()?;
        let (positive, negative) = logits.split_at(logits.len() / 2);
        let report = StepReport {
            positive: positive.to_vec(),
            negative: negative.to_vec(),
            loss: done.loss.copy_to_host()?.first().copied().unwrap_or_default(),
            touched: batch.touched().to_vec(),
            refused_rows: refused.copy_to_host()?.first().map_or(0, |count| *count as usize),
            ..StepReport::default()
        };
        let not_finite = |what: String| CardTrainError::Step(TrainError::NonFinite { what, step });
        let learned = if train { self.learned.learned()? } else { Learned::Moved };
        match learned {
            _ if !report.loss.is_finite() => Err(not_finite(format!("the loss ({})", report.loss))),
            Learned::Refused(norm) => Err(not_finite(format!("the gradients' norm ({norm})"))),
            Learned::Moved => Ok(report),
        }
    }
}

/// `len` zeros for a step.
fn room((cuda, stream): Place<'_>, len: usize) -> Result<CudaBuffer<f32>, CudaError> {
    CudaBuffer::zeros(cuda, stream, len, "a step of TGN")
}

fn unsupported(what: String) -> CardTrainError {
    CardTrainError::Unsupported { what }
}

/// The options of a model that a card trains.
fn supported(model: &ModelOptions) -> Result<TgnOptions, CardTrainError> {
    let ModelOptions::Tgn(tgn) = model else {
        return Err(unsupported(format!("the model {}", model.name())));
    };
    let chosen = (tgn.aggregator, tgn.updater, tgn.embedding);
    if chosen != (Aggregator::Last, Updater::Gru, Embedding::Attention) {
        return Err(unsupported(format!("{chosen:?} in the place of the last message, a GRU and attention")));
    }
    if tgn.node_feature_dim > 0 || tgn.edge_types.known > 0 {
        return Err(unsupported("features of nodes or types of edges".to_owned()));
    }
    Ok(*tgn)
}
