//! Training on a card is training on the processor: the same trainer with another device. What it computes is the same
//! but for rounding: losses, scores, weights, memory, published rows.

use evergraph::device::Device;
use evergraph::device::cuda::CudaWork;
use evergraph::event::{EventTime, NodeId};
use evergraph::model::tgn::{Aggregator, Updater};
use evergraph::model::{EdgeTypes, GatOptions, GraphMixerOptions, ModelOptions, TgatOptions, TgnOptions};
use evergraph::train::{Negatives, PreparedBatch, StepMode, Trainer, TrainerOptions};

use super::{card, fresh_card};
use crate::tgn_stream::{BATCH, Sight, Stream, options, tgn};

/// What both may differ by, as a share of the largest value.
const TOLERANCE: f32 = 1e-3;

#[track_caller]
fn near(found: &[f32], expected: &[f32], what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    let top = expected.iter().fold(1e-3_f32, |top, value| top.max(value.abs()));
    for (i, (found, expected)) in found.iter().zip(expected).enumerate() {
        let off = (found - expected).abs() / top;
        assert!(off < TOLERANCE, "{what}: value {i} is {found}, not {expected}, of at most {top}");
    }
}

fn on_card() -> Device {
    Device::Cuda(CudaWork::new(card()))
}

/// How much of its step a batch gets: now and then one is only scored, or only remembered.
fn mode(batch: usize) -> StepMode {
    match batch % 7 {
        3 => StepMode::Remember,
        5 => StepMode::Score,
        _ => StepMode::Train,
    }
}

/// Takes the step of batch `b`.
fn step(trainer: &mut Trainer, stream: &Stream, b: usize) -> evergraph::train::StepReport {
    let (world, positives) = (stream.world(b, Sight::Everything), stream.positives(b));
    let negatives = Negatives { src: positives.src, dst: &stream.against[b * BATCH..(b + 1) * BATCH] };
    let mut batch = PreparedBatch::default();
    trainer.prepare(&world, &positives, &negatives, mode(b), &mut batch).unwrap();
    trainer.step_prepared(&batch).unwrap()
}

#[track_caller]
fn same_state(found: &Trainer, expected: &Trainer, stream: &Stream) {
    let (found_weights, weights) = (found.weights().unwrap(), expected.weights().unwrap());
    assert_eq!(found_weights.version, weights.version);
    for ((name, found), (_, values)) in found_weights.parameters().iter().zip(weights.parameters().iter()) {
        near(found.data(), values.data(), name);
    }
    let width = expected.state().memory.dimension();
    let row = |trainer: &Trainer, node| {
        let mut row = vec![0.0; width];
        trainer.state().memory.row_into(node, &mut row);
        row
    };
    let nodes: Vec<NodeId> = (0..expected.state().nodes() as u32).map(NodeId).collect();
    for &node in &nodes {
        near(&row(found, node), &row(expected, node), &format!("memory of {node:?}"));
        assert_eq!(found.state().memory.updated(node), expected.state().memory.updated(node));
    }
    let published = |trainer: &Trainer| {
        let mut rows = Vec::new();
        let publish = |node, row: &[f32], _| rows.push((node, row.to_vec()));
        trainer.publish_rows(EventTime::MIN, &stream.edge_features, &nodes, publish).unwrap();
        rows
    };
    for ((node, found), (same, expected)) in published(found).into_iter().zip(published(expected)) {
        assert_eq!(node, same);
        near(&found, &expected, &format!("published row of {node:?}"));
    }
}

/// Steps over the same batches on both.
fn follow(model: impl Into<ModelOptions>, steps: usize) {
    let (stream, options) = (Stream::new(steps), TrainerOptions { model: model.into(), ..options() });
    let mut here = Trainer::new(options, &Device::Cpu).unwrap();
    let mut there = Trainer::new(options, &on_card()).unwrap();
    for b in 0..steps {
        let (found, expected) = (step(&mut there, &stream, b), step(&mut here, &stream, b));
        near(&[found.loss], &[expected.loss], &format!("loss of step {b}"));
        near(&found.positive, &expected.positive, &format!("positives of step {b}"));
        near(&found.negative, &expected.negative, &format!("negatives of step {b}"));
        assert_eq!((found.touched, found.refused_rows), (expected.touched, expected.refused_rows));
        if b == 8 {
            let gone = [3, 20].map(NodeId);
            assert_eq!(there.forget(&gone), here.forget(&gone));
        }
    }
    same_state(&there, &here, &stream);
}

#[test]
fn twenty_steps_of_tgn_with_features_of_nodes_and_edges_are_the_processors() {
    follow(tgn(), 20);
}

#[test]
fn memory_stays_on_the_card_from_step_to_step() {
    let stream = Stream::new(2);
    let mut trainer = Trainer::new(options(), &on_card()).unwrap();
    (0..2).for_each(|b| drop(step(&mut trainer, &stream, b)));
    assert!(trainer.state().mirrored() >= trainer.state().nodes(), "{}", trainer.state().mirrored());
    // A copy of the state has none, and the processor wants none.
    assert_eq!(trainer.state().clone().mirrored(), 0);
}

#[test]
fn steps_of_the_usual_widths_are_the_processors() {
    follow(TgnOptions { edge_feature_dim: 2, ..TgnOptions::default() }, 3);
}

#[test]
fn means_of_messages_and_a_plain_cell_are_the_processors() {
    let plain = TgnOptions { updater: Updater::Rnn, aggregator: Aggregator::Mean, ..tgn() };
    follow(plain, 8);
}

#[test]
fn types_of_edges_are_the_processors() {
    follow(TgnOptions { edge_types: EdgeTypes::new(3, 4), edge_feature_dim: 1, ..tgn() }, 8);
}

#[test]
fn tgat_with_and_without_features_of_nodes_is_the_processors() {
    let tgat = TgatOptions {
        embedding_dim: 12,
        time_dim: 8,
        heads: 2,
        fanout: 3,
        layers: 2,
        edge_feature_dim: 2,
        ..TgatOptions::default()
    };
    follow(tgat, 8);
    follow(TgatOptions { node_feature_dim: 3, ..tgat }, 4);
}

#[test]
fn graphmixer_with_and_without_features_of_nodes_is_the_processors() {
    let mixer = GraphMixerOptions {
        embedding_dim: 12,
        time_dim: 8,
        fanout: 6,
        blocks: 2,
        edge_feature_dim: 2,
        ..GraphMixerOptions::default()
    };
    follow(mixer, 8);
    follow(GraphMixerOptions { node_feature_dim: 3, ..mixer }, 4);
}

#[test]
fn a_trainer_goes_on_from_its_bytes_on_either_device() {
    let stream = Stream::new(8);
    let mut there = Trainer::new(options(), &on_card()).unwrap();
    (0..4).for_each(|b| drop(step(&mut there, &stream, b)));
    let mut bytes = Vec::new();
    there.save(&mut bytes).unwrap();
    let load = |device: &Device| Trainer::load(options(), device, &mut bytes.as_slice()).unwrap();
    let (mut again, mut here) = (load(&on_card()), load(&Device::Cpu));
    for b in 4..8 {
        let straight = step(&mut there, &stream, b);
        assert_eq!(step(&mut again, &stream, b).positive, straight.positive, "step {b}: bit for bit");
        near(&step(&mut here, &stream, b).positive, &straight.positive, &format!("step {b}"));
    }
    same_state(&here, &there, &stream);
}

#[test]
fn a_steady_step_asks_a_card_for_no_memory() {
    let (cuda, stream) = (fresh_card(), Stream::new(12));
    let device = Device::Cuda(CudaWork::new(cuda.clone()));
    let mut trainer = Trainer::new(options(), &device).unwrap();
    (0..6).for_each(|_| drop(step(&mut trainer, &stream, 0)));
    let before = cuda.memory().used;
    (0..3).for_each(|_| drop(step(&mut trainer, &stream, 0)));
    assert_eq!(cuda.memory().used, before);
}

#[test]
fn a_loss_that_is_not_finite_moves_no_weight_and_the_batch_is_remembered() {
    let stream = Stream::new(3);
    let mut trainer = Trainer::new(options(), &on_card()).unwrap();
    step(&mut trainer, &stream, 0);
    let weights = trainer.weights().unwrap();
    let mut broken = weights.parameters().clone();
    let bias = broken.find("link.b_b").unwrap();
    broken.get_mut(bias).data_mut()[0] = f32::MAX;
    let wide = broken.find("link.w_b").unwrap();
    broken.get_mut(wide).data_mut().fill(f32::MAX);
    let broken = evergraph::model::Weights::new(options().model, &broken, 7).unwrap();
    trainer.set_weights(&broken).unwrap();
    let (world, positives) = (stream.world(1, Sight::Everything), stream.positives(1));
    let negatives = Negatives { src: positives.src, dst: &stream.against[BATCH..2 * BATCH] };
    let error = trainer.step(&world, &positives, &negatives, StepMode::Train).unwrap_err().to_string();
    assert!(error.contains("not finite"), "{error}");
    let after = trainer.weights().unwrap();
    for ((name, one), (_, other)) in after.parameters().iter().zip(broken.parameters().iter()) {
        assert_eq!(one.data(), other.data(), "{name}");
    }
    assert!(positives.src.iter().all(|&node| trainer.state().mailbox.is_pending(node)));
}

#[test]
fn what_a_card_does_not_compute_is_refused_in_words() {
    let device = on_card();
    let refused = |model: ModelOptions| {
        let options = TrainerOptions { model, ..options() };
        Trainer::new(options, &device).err().unwrap().to_string()
    };
    for (model, why) in [
        (GatOptions::default().into(), "no kernels"),
        (TgnOptions::jodie().into(), "gaps"),
        (TgnOptions { fanout: 40, ..tgn() }.into(), "40 slots"),
    ] {
        let said = refused(model);
        assert!(said.contains(why) && said.contains("processor"), "{said}");
    }
}

#[test]
fn a_full_card_is_told_and_training_goes_on_without_it() {
    let stream = Stream::new(6);
    let tiny = evergraph::device::cuda::Cuda::played(super::played::Played::start(), 700 << 10);
    let device = Device::Cuda(CudaWork::new(tiny));
    let model = TgnOptions { edge_feature_dim: 2, ..TgnOptions::default() };
    let options = TrainerOptions { model: model.into(), ..options() };
    let weights = Trainer::new(options, &Device::Cpu).unwrap().weights().unwrap();
    let mut trainer = Trainer::new(options, &device).unwrap();
    let (world, positives) = (stream.world(0, Sight::Everything), stream.positives(0));
    let negatives = Negatives { src: positives.src, dst: &stream.against[..BATCH] };
    let error = trainer.step(&world, &positives, &negatives, StepMode::Train).unwrap_err().to_string();
    assert!(error.contains("out of memory") && error.contains("budget"), "{error}");
    trainer.leave_card(&weights).unwrap();
    let mut straight = Trainer::new(options, &Device::Cpu).unwrap();
    for b in 0..2 {
        assert!(
            step(&mut trainer, &stream, b).loss.is_finite() && step(&mut straight, &stream, b).loss > 0.0
        );
    }
    assert_eq!(trainer.state().nodes(), straight.state().nodes());
}
