//! [`Trainer`]: one step of continuous training, and everything that must survive a restart.
//!
//! A step scores its batch with the memory and messages of *earlier* batches, learns from the scores, and
//! only then updates the state:
//!
//! ```text
//! prepare   sample -> number -> gather rows                                                  (may fail)
//! step      S* (pending messages applied, on the tape) -> embed -> score -> loss -> backward -> optimizer
//!           -> write S* of the positives' nodes -> store their new raw messages
//! ```
//!
//! Everything that reads the graph or a feature store is in the first half ([`PreparedBatch`]), which changes
//! nothing of the trainer and may run ahead of it; the second half computes on what was prepared.
//! Negatives are scored and never update the state. What a step computes depends on the trainer's saved content
//! and on its arguments alone: randomness is keyed by the seed and the step's number, which are saved.

use std::sync::Arc;

use parking_lot::Mutex;
use thiserror::Error;

use super::ahead::{BegunStep, StepAhead};
use super::edge_cache::EdgeCache;
use super::placed::Placed;
use super::prepare::PreparedBatch;
use super::ranks::{Ranks, RanksError};
pub use super::report::{PhaseSeconds, StepReport};
use super::schedule::Schedule;
use super::shards::Shard;
use crate::device::Device;
use crate::device::cuda::{CudaError, Event};
use crate::device::matmul::Precision;
use crate::event::{EventTime, NodeId};
use crate::model::{
    DeviceRows, FeatureRows, GatherError, Interactions, Model, ModelError, ModelOptions, ModelState,
    Neighborhood, TgnOptions, Weights,
};
use crate::nn::{Adam, AdamOptions, Gradients, TapePool, Tensor};
use crate::sampler::DeviceSamplerOptions;
pub use crate::serving::World;

/// The events of a batch.
pub type Positives<'a> = Interactions<'a>;

/// Pairs that did not happen, one per positive and at its time.
#[derive(Clone, Copy, Debug)]
pub struct Negatives<'a> {
    /// Source nodes; the positives' own under the random protocol.
    pub src: &'a [NodeId],
    /// Destination nodes.
    pub dst: &'a [NodeId],
}

/// A ranking request: scores of events from `src` to each of `candidates` at `time`.
#[derive(Clone, Copy, Debug)]
pub struct RankQuery<'a> {
    /// Source node.
    pub src: NodeId,
    /// Time asked about.
    pub time: EventTime,
    /// Destinations to score.
    pub candidates: &'a [NodeId],
}

/// How much of a step is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepMode {
    /// Score, learn, update state.
    Train,
    /// Score and update state: no gradient, no dropout.
    Score,
    /// State-only update: no sampling, no scores. What a lagging trainer still does.
    StateOnly,
}

/// What a trainer is made of.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TrainerOptions {
    /// Which model, and its shape.
    pub model: ModelOptions,
    /// Adam's learning rate.
    pub learning_rate: f32,
    /// How it goes over the steps.
    pub schedule: Schedule,
    /// Batches over which the gradient of a memory row that no event touches is added up before it goes through the
    /// memory updater, on the CPU; 0: each batch applies every message (see [`Deferred`](crate::model::Deferred)).
    pub gradient_delay_batches: u64,
    /// In which numbers the CPU multiplies matrices to score a batch, to train on it, to update memory and to
    /// publish it.
    pub precision: Precision,
    /// Decides initial weights and dropout.
    pub seed: u64,
}

/// The default delay of the gradients of memory rows: none, because on some streams a delay costs precision.
pub const GRADIENT_DELAY_BATCHES: u64 = 0;

impl Default for TrainerOptions {
    fn default() -> Self {
        let (model, schedule) = (TgnOptions::default().into(), Schedule::default());
        let (gradient_delay_batches, precision) = (GRADIENT_DELAY_BATCHES, Precision::F32);
        Self { model, learning_rate: 1e-3, schedule, gradient_delay_batches, precision, seed: 0 }
    }
}

/// A step that did not do what it should.
#[derive(Debug, Error)]
pub enum TrainError {
    /// The loss or a gradient went out of range. The weights are as before, the optimizer included; the
    /// batch updates the state all the same.
    #[error("step {step}: {what} is not finite; the weights were left as they are and the state was updated")]
    NonFinite {
        /// What it was.
        what: String,
        /// Number of the step.
        step: u64,
    },
    /// Parallel columns have different lengths. Nothing was done.
    #[error("{column} has {found} entries for {expected} positives")]
    Length {
        /// Which column.
        column: &'static str,
        /// Its length.
        found: usize,
        /// Number of positives.
        expected: usize,
    },
    /// A feature store has rows of another width than the model. Nothing was done.
    #[error("the {store} feature store has rows of {found} values, the model expects {expected}")]
    FeatureWidth {
        /// `edge` or `node`.
        store: &'static str,
        /// Width of the store's rows.
        found: usize,
        /// Width the model expects.
        expected: usize,
    },
    /// What the batch reads could not be read from where it is kept. Nothing was done: the batch may be tried
    /// again.
    #[error("a batch could not be prepared, and may be tried again: {0}")]
    Storage(#[from] GatherError),
    /// The GPU on which the model computes failed. The state is unchanged; the weights on the GPU are undefined.
    #[error("the GPU that trains: {0}")]
    Gpu(#[from] CudaError),
    /// The ranks that train together cannot go on. Nothing of the trainer is defined.
    #[error(transparent)]
    Ranks(#[from] RanksError),
    /// Ranks that share every batch cannot score one apart from its step. Nothing was done.
    #[error("a batch that several ranks share is scored in its step only")]
    Shared,
    /// The batch was prepared for other messages than those that wait now: another batch came between. Nothing
    /// was done; it may be prepared again.
    #[error("the batch was prepared for another state than that before step {step}; prepare it again")]
    OutOfOrder {
        /// Number of the step.
        step: u64,
    },
}

/// Model, optimizer and state, and the buffers steps share.
pub struct Trainer {
    pub(super) options: TrainerOptions,
    pub(super) device: Device,
    pub(super) model: Model,
    pub(super) adam: Adam,
    pub(super) state: ModelState,
    /// Number of steps taken, in any mode; names a step's dropout masks.
    pub(super) steps: u64,
    pub(super) gradients: Gradients,
    /// For steps that prepare their batch themselves.
    pub(super) batch: PreparedBatch,
    /// Fresh memory of the touched nodes where the GPU left it, between a step's scores and its state update.
    pub(super) fresh_on_gpu: Option<Tensor>,
    /// The next step, if it was recorded while the GPU computed the last one.
    pub(super) ahead: Option<StepAhead>,
    /// The next step, if the GPU has begun it.
    pub(super) begun: Option<BegunStep>,
    /// Behind the step that a GPU computes, while the next batch gets ready.
    pub(super) computed: Option<Event>,
    /// The last weights that the CPU saw, if a GPU computes.
    pub(super) known: Mutex<Option<Weights>>,
    /// Published weights on the GPU, if one computes.
    pub(super) placed: Placed,
    /// Where that GPU reads edge rows in the host's memory.
    pub(super) rows: Option<Arc<DeviceRows>>,
    /// Room on that GPU for copies of graphs.
    pub(super) graphs: DeviceSamplerOptions,
    /// Locked only so that scoring without a state change can take `&self`.
    pub(super) scratch: Mutex<Scratch>,
}

/// Buffers that grow to what batches need and stay.
#[derive(Default)]
pub(super) struct Scratch {
    pub pool: TapePool,
    pub tables: Vec<TapePool>,
    pub shards: Vec<Shard>,
    /// Those that train together with this one.
    pub ranks: Option<Ranks>,
    pub neighborhood: Neighborhood,
    pub rows: FeatureRows,
    /// Rows of edges on the GPU.
    pub edges: EdgeCache,
    /// Fresh memory rows of the touched nodes.
    pub fresh: Vec<f32>,
}

impl Trainer {
    /// A trainer with fresh weights and an empty state.
    ///
    /// # Errors
    /// The options describe no model, or one that a GPU does not compute.
    pub fn new(options: TrainerOptions, device: &Device) -> Result<Self, ModelError> {
        options.model.check_device(device)?;
        let here = Model::new(options.model, options.seed, &Device::Cpu)?;
        let (model, known) = Self::placing(here, device, 0);
        let adam = new_adam(&options, device, &model);
        let state = ModelState::new(&model.needs());
        Ok(Self::from_parts(options, device, (model, known), adam, state, 0))
    }

    pub(super) fn from_parts(
        options: TrainerOptions,
        device: &Device,
        (model, known): (Model, Option<Weights>),
        adam: Adam,
        state: ModelState,
        steps: u64,
    ) -> Self {
        let gradients = Gradients::new(device, &model.parameters);
        let (batch, placed, scratch) = (PreparedBatch::default(), Placed::default(), Mutex::default());
        let rows = match device {
            Device::Cpu => None,
            Device::Cuda(work) => Some(Arc::new(DeviceRows::new(work.cuda(), 0))),
        };
        Self {
            options,
            device: device.clone(),
            model,
            adam,
            state,
            steps,
            gradients,
            batch,
            fresh_on_gpu: None,
            ahead: None,
            begun: None,
            computed: None,
            known: Mutex::new(known),
            placed,
            rows,
            graphs: DeviceSamplerOptions::default(),
            scratch,
        }
    }

    /// What the trainer is made of.
    #[must_use]
    pub fn options(&self) -> &TrainerOptions {
        &self.options
    }

    /// In which numbers the CPU multiplies matrices, f32 in a model without embeddings, whose products are small;
    /// `None` on a GPU.
    #[must_use]
    pub fn precision(&self) -> Option<Precision> {
        let embeds = self.model.needs().embeds();
        (self.device == Device::Cpu).then_some(if embeds { self.options.precision } else { Precision::F32 })
    }

    /// The model with the weights as they are now.
    #[must_use]
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// Number of steps taken, in any mode.
    #[must_use]
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// Learning rate of the next gradient step.
    #[must_use]
    pub fn learning_rate(&self) -> f32 {
        self.learning_rate_after(self.adam.steps())
    }

    /// Learning rate of the gradient step behind so many.
    pub(super) fn learning_rate_after(&self, steps: u64) -> f32 {
        self.options.learning_rate * self.options.schedule.factor(steps)
    }

    /// Gradients of the last [`StepMode::Train`] step; zeros before the first. Undefined where a GPU's next step is
    /// recorded already (see [`step_before`](Self::step_before), [`step_and_begin`](Self::step_and_begin) and
    /// [`test_and_step_while`](Self::test_and_step_while)).
    #[must_use]
    pub fn gradients(&self) -> &Gradients {
        &self.gradients
    }

    /// Bytes of the buffers that steps share.
    #[must_use]
    pub fn buffer_bytes(&self) -> usize {
        let Scratch { pool, tables, shards, ranks, neighborhood, rows, edges, fresh } =
            &mut *self.scratch.lock();
        let own = neighborhood.bytes() + rows.bytes() + edges.bytes() + self.batch.bytes();
        pool.bytes()
            + tables.iter().map(TapePool::bytes).sum::<usize>()
            + shards.iter().map(Shard::bytes).sum::<usize>()
            + ranks.as_ref().map_or(0, Ranks::bytes)
            + own
            + fresh.capacity() * size_of::<f32>()
    }

    /// Memory and pending messages.
    #[must_use]
    pub fn state(&self) -> &ModelState {
        &self.state
    }

    /// Replaces memory and pending messages.
    ///
    /// # Panics
    /// If the state is of a model of another shape.
    pub fn set_state(&mut self, state: ModelState) {
        let widths = |state: &ModelState| (state.memory.dimension(), state.mailbox.dimension());
        assert_eq!(widths(&state), widths(&self.state), "widths of memory and mailbox");
        self.give_up_ahead();
        self.state = state;
    }

    /// Forgets memory and pending messages, as at the start of an epoch; weights stay.
    pub fn reset_state(&mut self) {
        self.give_up_ahead();
        self.state.reset();
    }

    /// Whether training steps read memory rows of earlier steps: then their scores are not quite those of
    /// [`score_prepared`](Self::score_prepared).
    #[must_use]
    pub fn defers(&self) -> bool {
        let delays = self.options.gradient_delay_batches > 0 && self.device == Device::Cpu;
        delays && self.state.memory.dimension() > 0
    }

    /// Where the model computes.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.device
    }
}

/// An optimizer without history.
pub(super) fn new_adam(options: &TrainerOptions, device: &Device, model: &Model) -> Adam {
    let adam = AdamOptions { learning_rate: options.learning_rate, ..AdamOptions::default() };
    Adam::new(device, &model.parameters, adam)
}
