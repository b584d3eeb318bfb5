//! Dynamic node classification: the label of an event describes its source, and is predicted before the event is
//! known (the protocol of TGN and DyGLib).
//!
//! The contender is trained on links as under the other protocols, without masked nodes, and frozen at its
//! best epoch. It then follows the whole stream from an empty state, batch by batch, and predicts for every
//! labeled event, from the state before the batch, what it knows of the event's source. A network of three
//! layers learns the labels of the training part from these rows; its epoch is chosen by the validation part.
//!
//! ```text
//! row [n, d] -> relu(. W1 + b1) [n, 80] -> dropout -> relu(. W2 + b2) [n, 10] -> dropout -> . W3 + b3 [n, 1]
//! ```
//! ROC-AUC is pooled over a part: most batches have no positive label, so a mean over batches has no meaning.
//! Columns of the rows are brought to mean 0 and deviation 1 by those of the training part.

use super::fit::fit;
use super::{EpochOptions, EvaluationError, Fitted, Pass, PassReport, Progress, Stage, Trainable, Watch};
use crate::device::Device;
use crate::nn::{Adam, AdamOptions, Gradients, Mode, ParamId, Parameters, Tape, TapePool, Tensor, Var, init};
use crate::train::StepMode;
use crate::train::negative::shuffle_front;
use crate::train::protocol::{Batch, Draw, NegativeSource, Populations, ProtocolError};
use crate::train::ranking::roc_auc;
use crate::train::stream::Stream;

/// Passes of the network over the training part, its batches, its step size, and the share of values dropped.
const EPOCHS: usize = 10;
const BATCH: usize = 200;
const LEARNING_RATE: f32 = 3e-4;
const DROPOUT: f32 = 0.1;

/// Widths of the network's hidden layers.
const HIDDEN: [usize; 2] = [80, 10];

/// A contender that provides features of the source of an event.
pub trait Encoder: Trainable {
    /// Adds a row for each event of `batch`, equally long every time, from the state before the batch.
    ///
    /// # Errors
    /// When the contender cannot read what it knows.
    fn encode(&self, batch: &Batch, rows: &mut Vec<f32>) -> Result<(), EvaluationError>;
}

/// Figures of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeLabelReport {
    /// How training on links went.
    pub fitted: Fitted<PassReport>,
    /// ROC-AUC of the labels of the validation part, at the epoch that was chosen, `0..=1`.
    pub validation_auc: f64,
    /// ROC-AUC of the labels of the test part, `0..=1`.
    pub test_auc: f64,
    /// Positive labels of training, validation and test part.
    pub positives: [usize; 3],
}

/// Trains `contender` on links and a network on the features it then provides of the sources of labeled events. A
/// label above one half is positive; events without a label are passed over.
///
/// # Errors
/// When the contender fails, or a part has not both kinds of labels.
pub fn evaluate_node_label<T: Encoder>(
    stream: &Stream,
    populations: &Populations,
    contender: &mut T,
    options: &EpochOptions,
    watch: &mut Watch<'_>,
) -> Result<NodeLabelReport, EvaluationError> {
    let parts = [0..populations.split.validation, populations.validation(), populations.test()];
    let mut positives = [0; 3];
    for ((range, part), found) in parts.iter().zip(["training", "validation", "test"]).zip(&mut positives) {
        let labels = || range.clone().filter_map(|row| stream.label(row));
        *found = labels().filter(|&label| is_positive(label)).count();
        let negative = labels().count() - *found;
        if *found == 0 || negative == 0 {
            return Err(ProtocolError::Labels { part, positive: *found, negative }.into());
        }
    }
    let fitted = freeze(stream, populations, contender, options, watch)?;
    let examples = follow(stream, contender, options.batch_size, watch)?;
    let [train, validation, test] = parts.map(|range| examples.part(range));
    let head = Head::learn(&train, &validation, options.seed)?;
    let auc = |part: &Part<'_>| head.auc(part).ok_or(EvaluationError::NothingScored { part: "labeled" });
    Ok(NodeLabelReport { fitted, validation_auc: auc(&validation)?, test_auc: auc(&test)?, positives })
}

fn is_positive(label: f32) -> bool {
    label > 0.5
}

/// Trains on links, and leaves what the best epoch learned.
fn freeze<T: Encoder>(
    stream: &Stream,
    populations: &Populations,
    contender: &mut T,
    options: &EpochOptions,
    watch: &mut Watch<'_>,
) -> Result<Fitted<PassReport>, EvaluationError> {
    let rows: Vec<usize> = populations.validation().collect();
    let seed = Draw::Validation.seed(options.seed, 0);
    let negatives = NegativeSource::drawn(stream, 0..stream.len(), seed);
    let validate = |contender: &mut T, epoch, watch: &mut Watch<'_>| {
        let (rows, batch_size, stage) = (rows.as_slice(), options.batch_size, Stage::Validation);
        let pass = Pass { stream, rows, negatives: &negatives, batch_size, candidates: None, stage, epoch };
        let report = pass.run(contender, watch)?;
        Ok((report.ranking.average_precision, report))
    };
    let (fitted, kept) = fit(stream, populations, contender, options, validate, watch)?;
    contender.restore(&kept)?;
    Ok(fitted)
}

/// Features of labeled events, by row of the stream.
struct Examples {
    rows: Vec<usize>,
    labels: Vec<f32>,
    values: Vec<f32>,
}

/// The examples of one part.
struct Part<'a> {
    labels: &'a [f32],
    values: &'a [f32],
}

impl Examples {
    fn part(&self, range: std::ops::Range<usize>) -> Part<'_> {
        let width = self.values.len() / self.rows.len().max(1);
        let place = |row| self.rows.partition_point(|&other| other < row);
        let (from, to) = (place(range.start), place(range.end));
        Part { labels: &self.labels[from..to], values: &self.values[from * width..to * width] }
    }
}

/// Follows the whole stream with weights as they are.
fn follow<T: Encoder>(
    stream: &Stream,
    contender: &mut T,
    batch_size: usize,
    watch: &mut Watch<'_>,
) -> Result<Examples, EvaluationError> {
    contender.reset();
    let mut examples = Examples { rows: Vec::new(), labels: Vec::new(), values: Vec::new() };
    let (mut batch, mut values, mut start) = (Batch::default(), Vec::new(), 0);
    while start < stream.len() {
        let end = (start + batch_size.max(1)).min(stream.len());
        batch.load(stream, start..end);
        values.clear();
        contender.encode(&batch, &mut values)?;
        let width = values.len() / batch.rows.len();
        for (&row, values) in batch.rows.iter().zip(values.chunks_exact(width.max(1))) {
            if let Some(label) = stream.label(row) {
                examples.rows.push(row);
                examples.labels.push(f32::from(u8::from(is_positive(label))));
                examples.values.extend_from_slice(values);
            }
        }
        contender.take(&batch, StepMode::StateOnly)?;
        start = end;
        let total = stream.len();
        watch(&Progress { stage: Stage::Encode, epoch: 0, done: end, total, average_precision: None });
    }
    Ok(examples)
}

/// The network that reads labels out of rows.
struct Head {
    parameters: Parameters,
    layers: [(ParamId, ParamId); 3],
    /// Mean and one over the deviation of each column.
    scale: Vec<(f32, f32)>,
}

impl Head {
    /// Learns from `train`, and keeps the weights of the epoch that is best on `validation`.
    fn learn(train: &Part<'_>, validation: &Part<'_>, seed: u64) -> Result<Self, EvaluationError> {
        let (device, n) = (Device::Cpu, train.labels.len());
        let mut head = Self::new(train, seed, &device);
        let options = AdamOptions { learning_rate: LEARNING_RATE, ..AdamOptions::default() };
        let mut adam = Adam::new(&device, &head.parameters, options);
        let mut gradients = Gradients::new(&device, &head.parameters);
        let (mut pool, mut step) = (TapePool::new(), 0);
        let mut best: Option<(f64, Parameters)> = None;
        for epoch in 0..EPOCHS as u64 {
            let mut order: Vec<usize> = (0..n).collect();
            shuffle_front(&mut order, n, [Draw::Labels as u64, seed, epoch]);
            for places in order.chunks(BATCH) {
                let targets: Vec<f32> = places.iter().map(|&place| train.labels[place]).collect();
                let mut tape = Tape::pooled(&device, &head.parameters, Mode::Train, &mut pool);
                let rows = head.rows(train, places.iter().copied(), &device);
                let rows = tape.constant(rows);
                let logits = head.logits(&mut tape, rows, [seed, step]);
                let loss = tape.bce_with_logits(logits, &targets);
                gradients.start_over();
                tape.backward(loss, &mut gradients);
                drop(tape);
                if !gradients.is_finite() {
                    let what = "a gradient of the network of labels".to_owned();
                    return Err(crate::train::TrainError::NonFinite { what, step }.into());
                }
                adam.step(&mut head.parameters, &gradients);
                step += 1;
            }
            let auc = head.auc(validation).unwrap_or_default();
            if best.as_ref().is_none_or(|(other, _)| auc > *other) {
                best = Some((auc, head.parameters.clone()));
            }
        }
        if let Some((_, parameters)) = best {
            head.parameters = parameters;
        }
        Ok(head)
    }

    fn new(train: &Part<'_>, seed: u64, device: &Device) -> Self {
        let n = train.labels.len().max(1);
        let width = train.values.len() / n;
        let column = |c: usize| train.values.iter().skip(c).step_by(width.max(1)).map(|&v| f64::from(v));
        let scale = |c| {
            let mean = column(c).sum::<f64>() / n as f64;
            let deviation = (column(c).map(|v| (v - mean).powi(2)).sum::<f64>() / n as f64).sqrt();
            (mean as f32, if deviation > 1e-6 { (1.0 / deviation) as f32 } else { 0.0 })
        };
        let widths = [width, HIDDEN[0], HIDDEN[1], 1];
        let mut parameters = Parameters::new();
        let layers = std::array::from_fn(|layer| {
            let key = [Draw::Labels as u64, seed, layer as u64];
            let (weight, bias) = init::torch_linear(device, widths[layer + 1], widths[layer], key);
            let id = |part| format!("label{layer}.{part}");
            (parameters.add(id("weight"), weight), parameters.add(id("bias"), bias))
        });
        Self { parameters, layers, scale: (0..width).map(scale).collect() }
    }

    /// The examples at `places`, scaled.
    fn rows(&self, part: &Part<'_>, places: impl ExactSizeIterator<Item = usize>, device: &Device) -> Tensor {
        let (count, width) = (places.len(), self.scale.len());
        let mut values = Vec::with_capacity(count * width);
        for place in places {
            let row = &part.values[place * width..][..width];
            values.extend(row.iter().zip(&self.scale).map(|(value, (mean, factor))| (value - mean) * factor));
        }
        Tensor::from_vec(device, count, width, values)
    }

    fn logits(&self, tape: &mut Tape<'_>, rows: Var, key: [u64; 2]) -> Var {
        let [first, second, last] = self.layers;
        let mut x = rows;
        for (layer, (weight, bias)) in [first, second].into_iter().enumerate() {
            x = tape.linear(x, weight, Some(bias));
            x = tape.relu(x);
            x = tape.dropout(x, DROPOUT, [key[0], key[1], layer as u64]);
        }
        tape.linear(x, last.0, Some(last.1))
    }

    /// Pooled ROC-AUC; `None` without both kinds of labels.
    fn auc(&self, part: &Part<'_>) -> Option<f64> {
        let (device, mut scores) = (Device::Cpu, [Vec::new(), Vec::new()]);
        let places: Vec<usize> = (0..part.labels.len()).collect();
        for places in places.chunks(BATCH) {
            let mut tape = Tape::new(&device, &self.parameters, Mode::Inference);
            let rows = tape.constant(self.rows(part, places.iter().copied(), &device));
            let logits = self.logits(&mut tape, rows, [0, 0]);
            for (&place, &logit) in places.iter().zip(tape.value(logits).data()) {
                scores[usize::from(is_positive(part.labels[place]))].push(logit);
            }
        }
        let [negative, positive] = scores;
        roc_auc(&positive, &negative)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::rng;

    /// Rows of three numbers; a label is likely where the first two are high, the third is noise of another
    /// size.
    fn examples(n: u64) -> Examples {
        let mut examples = Examples { rows: Vec::new(), labels: Vec::new(), values: Vec::new() };
        for i in 0..n {
            let [a, b, noise] = [0, 1, 2].map(|word| rng::normal_f32([77, i, word, 0]));
            examples.rows.push(2 * i as usize);
            examples.labels.push(f32::from(u8::from(a + b + 0.2 * noise > 2.0)));
            examples.values.extend([1e4 + a, b, 1e6 * noise]);
        }
        examples
    }

    #[test]
    fn the_network_finds_what_is_there_to_find() {
        let examples = examples(15_000);
        let [train, validation, test] =
            [0..20_000, 20_000..25_000, 25_000..30_000].map(|range| examples.part(range));
        assert_eq!((train.labels.len(), validation.labels.len(), test.labels.len()), (10_000, 2_500, 2_500));
        let head = Head::learn(&train, &validation, 1).unwrap();
        let auc = head.auc(&test).unwrap();
        assert!(auc > 0.95, "{auc}");
        assert_eq!(
            Head::learn(&train, &validation, 1).unwrap().auc(&test),
            Some(auc),
            "it follows from its seed"
        );
    }
}
