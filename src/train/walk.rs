//! [`WalkTrainer`]: one step of training of the walk model.
//!
//! ```text
//! features of all pairs, from the state before the batch -> logits -> loss -> backward -> optimizer
//! -> the batch's events enter the state, in their order
//! ```
//! The model has no dropout, so the logits that are learned from are those that are scored: a step that
//! tests and then trains takes one forward pass. What a step computes depends on the trainer's content and
//! its batch alone, bit for bit, at any number of threads.

use std::sync::Arc;

use super::trainer::{Negatives, Positives, StepMode, TrainError};
use crate::device::Device;
use crate::event::{EventTime, NodeId};
use crate::model::walk::{WalkNetwork, WalkOptions, WalkOptionsError, WalkState};
use crate::nn::{Adam, AdamOptions, Gradients, Mode, Parameters, Tape, TapePool, Tensor};

/// Rows scored at a time where a request has no natural batch.
const CHUNK_ROWS: usize = 1024;

/// Scores of a batch and the loss over them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WalkReport {
    /// Logit of each positive; empty in [`StepMode::Remember`].
    pub positive: Vec<f32>,
    /// Logit of each negative; empty in [`StepMode::Remember`].
    pub negative: Vec<f32>,
    /// Mean binary cross entropy of the positives plus that of the negatives, before learning; 0 in
    /// [`StepMode::Remember`].
    pub loss: f32,
}

/// Network, optimizer and state, and the buffers that steps share.
#[derive(Debug)]
pub struct WalkTrainer {
    options: WalkOptions,
    learning_rate: f32,
    device: Device,
    network: WalkNetwork,
    adam: Adam,
    gradients: Gradients,
    state: WalkState,
    steps: u64,
    buffers: Buffers,
}

/// Grow to what batches need and stay.
#[derive(Debug)]
struct Buffers {
    pool: TapePool,
    features: Arc<Tensor>,
    src: Vec<NodeId>,
    dst: Vec<NodeId>,
    times: Vec<EventTime>,
    targets: [Vec<f32>; 2],
}

impl WalkTrainer {
    /// A trainer with fresh weights that has seen nothing.
    ///
    /// # Errors
    /// The options describe no model.
    pub fn new(options: WalkOptions, learning_rate: f32, device: &Device) -> Result<Self, WalkOptionsError> {
        let state = WalkState::new(&options)?;
        let network = WalkNetwork::new(&options, device);
        let gradients = Gradients::new(device, &network.parameters);
        let buffers = Buffers {
            pool: TapePool::new(),
            features: Arc::new(Tensor::zeros(device, 0, state.feature_count())),
            src: Vec::new(),
            dst: Vec::new(),
            times: Vec::new(),
            targets: [Vec::new(), Vec::new()],
        };
        let adam = new_adam(learning_rate, device, &network);
        let device = device.clone();
        Ok(Self { options, learning_rate, device, network, adam, gradients, state, steps: 0, buffers })
    }

    /// What the model is made of.
    #[must_use]
    pub fn options(&self) -> &WalkOptions {
        &self.options
    }

    /// What the model remembers of the stream.
    #[must_use]
    pub fn state(&self) -> &WalkState {
        &self.state
    }

    /// Replaces what the model remembers.
    pub fn set_state(&mut self, state: WalkState) {
        self.state = state;
    }

    /// Forgets the stream; weights stay.
    pub fn reset_state(&mut self) {
        self.state.reset();
    }

    /// Forgets nodes.
    pub fn forget(&mut self, nodes: &[NodeId]) {
        self.state.forget(nodes);
    }

    /// The weights as they are.
    #[must_use]
    pub fn parameters(&self) -> &Parameters {
        &self.network.parameters
    }

    /// Replaces the weights by those of a trainer with equal options. The optimizer starts afresh.
    pub fn set_parameters(&mut self, parameters: Parameters) {
        self.network.parameters = parameters;
        self.adam = new_adam(self.learning_rate, &self.device, &self.network);
    }

    /// Takes one step with a batch of events and as many negatives. No event of the batch sees another, nor
    /// itself. An empty batch does nothing.
    ///
    /// # Errors
    /// Columns do not fit (nothing was done), or the loss or a gradient is not finite (the weights are
    /// untouched and the batch was remembered).
    pub fn step(
        &mut self,
        positives: &Positives<'_>,
        negatives: &Negatives<'_>,
        mode: StepMode,
    ) -> Result<WalkReport, TrainError> {
        check(positives, negatives, mode)?;
        let (mut report, step) = (WalkReport::default(), self.steps);
        self.steps += 1;
        if positives.src.is_empty() {
            return Ok(report);
        }
        let learned = match mode {
            StepMode::Remember => Ok(()),
            StepMode::Train | StepMode::Score => {
                self.load(positives, negatives);
                self.pass(positives.src.len(), mode, &mut report)
            }
        };
        self.state.observe(positives.src, positives.dst, positives.times);
        learned.map(|()| report).map_err(|what| TrainError::NonFinite { what, step })
    }

    /// Logits of an event from `src` to each of `candidates` at `time`; changes nothing.
    #[must_use]
    pub fn score_candidates(&self, src: NodeId, time: EventTime, candidates: &[NodeId]) -> Vec<f32> {
        let mut scores = Vec::with_capacity(candidates.len());
        for candidates in candidates.chunks(CHUNK_ROWS) {
            let n = candidates.len();
            let mut features = Tensor::zeros(&self.device, n, self.state.feature_count());
            self.state.features(&vec![src; n], candidates, &vec![time; n], features.data_mut());
            let mut tape = Tape::new(&self.device, &self.network.parameters, Mode::Inference);
            let features = tape.constant(features);
            let logits = self.network.logits(&mut tape, features);
            scores.extend_from_slice(tape.value(logits).data());
        }
        scores
    }

    /// Computes the features of positives and, below them, negatives.
    fn load(&mut self, positives: &Positives<'_>, negatives: &Negatives<'_>) {
        fn copy<T: Copy>(column: &mut Vec<T>, own: &[T], others: &[T]) {
            column.clear();
            column.extend_from_slice(own);
            column.extend_from_slice(others);
        }
        let Buffers { features, src, dst, times, .. } = &mut self.buffers;
        copy(src, positives.src, negatives.src);
        copy(dst, positives.dst, negatives.dst);
        copy(times, positives.times, positives.times);
        let features = Arc::make_mut(features);
        features.set_rows(src.len());
        self.state.features(src, dst, times, features.data_mut());
    }

    /// Scores what was loaded and learns from it if `mode` says so. The error says what was not finite.
    fn pass(&mut self, n: usize, mode: StepMode, report: &mut WalkReport) -> Result<(), String> {
        let Buffers { pool, features, targets: [ones, zeros], .. } = &mut self.buffers;
        ones.resize(n, 1.0);
        zeros.resize(n, 0.0);
        let learn = mode == StepMode::Train;
        let tape_mode = if learn { Mode::Train } else { Mode::Inference };
        let mut tape = Tape::pooled(&self.device, &self.network.parameters, tape_mode, pool);
        let features = tape.shared(Arc::clone(features));
        let logits = self.network.logits(&mut tape, features);
        let (happened, made_up) = (tape.rows(logits, 0..n), tape.rows(logits, n..2 * n));
        let positive = tape.bce_with_logits(happened, ones);
        let negative = tape.bce_with_logits(made_up, zeros);
        let loss = tape.add(positive, negative);
        report.loss = tape.scalar(loss);
        let (positive, negative) = tape.value(logits).data().split_at(n);
        report.positive.extend_from_slice(positive);
        report.negative.extend_from_slice(negative);
        if !report.loss.is_finite() {
            return Err(format!("the loss ({})", report.loss));
        }
        if learn {
            self.gradients.start_over();
            tape.backward(loss, &mut self.gradients);
            drop(tape);
            if !self.gradients.is_finite() {
                return Err("a gradient".to_owned());
            }
            self.adam.step(&mut self.network.parameters, &self.gradients);
        }
        Ok(())
    }
}

fn new_adam(learning_rate: f32, device: &Device, network: &WalkNetwork) -> Adam {
    Adam::new(device, &network.parameters, AdamOptions { learning_rate, ..AdamOptions::default() })
}

fn check(positives: &Positives<'_>, negatives: &Negatives<'_>, mode: StepMode) -> Result<(), TrainError> {
    let expected = positives.src.len();
    let mut columns =
        vec![("positives.dst", positives.dst.len()), ("positives.times", positives.times.len())];
    if mode != StepMode::Remember {
        columns.extend([("negatives.src", negatives.src.len()), ("negatives.dst", negatives.dst.len())]);
    }
    match columns.into_iter().find(|&(_, found)| found != expected) {
        Some((column, found)) => Err(TrainError::Length { column, found, expected }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::EdgeId;

    const BATCH: usize = 40;

    /// Columns of a batch: 40 events between 12 sources and 9 destinations, negatives beside them.
    struct Columns {
        src: Vec<NodeId>,
        dst: Vec<NodeId>,
        times: Vec<EventTime>,
        edges: Vec<EdgeId>,
        other: Vec<NodeId>,
    }

    /// Batch `number`; `changed` names an event that has another destination.
    fn columns(number: usize, changed: Option<usize>) -> Columns {
        let range = || number * BATCH..(number + 1) * BATCH;
        let dst = |i: usize| if changed == Some(i) { 5 } else { 100 + i * 7 % 9 };
        Columns {
            src: range().map(|i| NodeId((i * i % 12) as u32)).collect(),
            dst: range().map(|i| NodeId(dst(i) as u32)).collect(),
            times: range().map(|i| EventTime(i as i64 * 10)).collect(),
            edges: range().map(|i| EdgeId(i as u64)).collect(),
            other: range().map(|i| NodeId((100 + i * 5 % 9) as u32)).collect(),
        }
    }

    fn take(trainer: &mut WalkTrainer, columns: &Columns, mode: StepMode) -> WalkReport {
        let Columns { src, dst, times, edges, other } = columns;
        let negatives = Negatives { src, dst: other };
        trainer.step(&Positives { src, dst, times, edges }, &negatives, mode).unwrap()
    }

    fn trainer() -> WalkTrainer {
        WalkTrainer::new(WalkOptions::default(), 1e-3, &Device::Cpu).unwrap()
    }

    fn run(batches: usize, changed: Option<usize>) -> Vec<WalkReport> {
        let mut trainer = trainer();
        (0..batches).map(|number| take(&mut trainer, &columns(number, changed), StepMode::Train)).collect()
    }

    #[test]
    fn an_event_changes_later_scores_and_none_of_its_batch() {
        let (reference, changed) = (run(4, None), run(4, Some(BATCH + 3)));
        assert_eq!(reference[0], changed[0]);
        let but_its_own = |report: &WalkReport| {
            let scores = report.positive.iter().enumerate().filter(|(i, _)| *i != 3);
            scores.map(|(_, score)| *score).chain(report.negative.clone()).collect::<Vec<_>>()
        };
        assert_eq!(but_its_own(&reference[1]), but_its_own(&changed[1]));
        assert_ne!(reference[2], changed[2]);
        assert!(reference[3].loss < reference[0].loss, "it learns");
    }

    #[test]
    fn scored_candidates_leave_no_trace_and_score_as_in_a_batch() {
        let (mut trainer, batch) = (trainer(), columns(2, None));
        take(&mut trainer, &columns(0, None), StepMode::Train);
        take(&mut trainer, &columns(1, None), StepMode::Train);
        let asked = trainer.score_candidates(batch.src[0], batch.times[0], &[batch.dst[0], batch.other[0]]);
        assert_eq!(
            asked,
            trainer.score_candidates(batch.src[0], batch.times[0], &[batch.dst[0], batch.other[0]])
        );
        let report = take(&mut trainer, &batch, StepMode::Train);
        assert_eq!(report, run(3, None)[2]);
        for (asked, told) in asked.iter().zip([report.positive[0], report.negative[0]]) {
            assert!((asked - told).abs() < 1e-5, "{asked} {told}");
        }
    }

    #[test]
    fn what_is_kept_comes_back_and_remembering_is_scoring_without_scores() {
        let mut one = trainer();
        take(&mut one, &columns(0, None), StepMode::Train);
        let (parameters, state) = (one.parameters().clone(), one.state().clone());
        take(&mut one, &columns(1, None), StepMode::Score);
        let expected = take(&mut one, &columns(2, None), StepMode::Score);
        take(&mut one, &columns(3, None), StepMode::Train);
        one.set_parameters(parameters);
        one.set_state(state);
        assert_eq!(take(&mut one, &columns(1, None), StepMode::Remember), WalkReport::default());
        assert_eq!(take(&mut one, &columns(2, None), StepMode::Score), expected);
    }

    #[test]
    fn any_number_of_threads_learns_the_same_bits() {
        let on = |threads| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| run(5, None))
        };
        assert_eq!(on(1), on(3));
    }

    #[test]
    fn columns_that_do_not_fit_are_refused() {
        let (mut trainer, batch) = (trainer(), columns(0, None));
        let positives =
            Positives { src: &batch.src, dst: &batch.dst[1..], times: &batch.times, edges: &batch.edges };
        let negatives = Negatives { src: &batch.src, dst: &batch.other };
        let refused = trainer.step(&positives, &negatives, StepMode::Train);
        assert!(matches!(
            refused,
            Err(TrainError::Length { column: "positives.dst", found: 39, expected: 40 })
        ));
    }
}
