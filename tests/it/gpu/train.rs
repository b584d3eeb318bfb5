//! Whole steps of TGN on a card beside the processor's: the same losses, weights and memory, but for rounding.

use std::sync::Arc;

use evergraph::device::Device;
use evergraph::device::cuda::Cuda;
use evergraph::model::TgnOptions;
use evergraph::train::card::CardTrainer;
use evergraph::train::{Negatives, PreparedBatch, StepMode, Trainer, TrainerOptions};

use super::card;
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

/// Steps over the same batches on both.
fn follow(cuda: &Arc<Cuda>, options: TrainerOptions, steps: usize) {
    let stream = Stream::new(steps);
    let mut trainer = Trainer::new(options, &Device::Cpu).unwrap();
    let mut on_card = CardTrainer::new(cuda, options).unwrap();
    let preparer = trainer.preparer();
    let (mut batch, mut of_card) = (PreparedBatch::default(), PreparedBatch::default());
    for b in 0..steps {
        let (world, positives) = (stream.world(b, Sight::Everything), stream.positives(b));
        let negatives = Negatives { src: positives.src, dst: &stream.against[b * BATCH..(b + 1) * BATCH] };
        // Now and then a batch is scored and not learned from.
        let mode = if b % 7 == 5 { StepMode::Score } else { StepMode::Train };
        trainer.prepare(&world, &positives, &negatives, mode, &mut batch).unwrap();
        let expected = trainer.step_prepared(&batch).unwrap();
        preparer.sample(&world, &positives, &negatives, mode, &mut of_card).unwrap();
        preparer.expect(|node| on_card.pending_event(node), &mut of_card);
        preparer.gather(&world, &mut of_card).unwrap();
        let found = on_card.step_prepared(&of_card).unwrap();
        near(&[found.loss], &[expected.loss], &format!("loss of step {b}"));
        near(&found.positive, &expected.positive, &format!("positives of step {b}"));
        near(&found.negative, &expected.negative, &format!("negatives of step {b}"));
        assert_eq!((found.touched, found.refused_rows), (expected.touched, expected.refused_rows));
    }
    let parameters = &trainer.model().parameters;
    let weights = on_card.weights().unwrap();
    assert_eq!(weights.len(), parameters.len());
    for (name, values) in weights {
        near(&values, parameters.get(parameters.find(name).unwrap()).data(), name);
    }
    let (rows, updated) = on_card.memory().unwrap();
    let width = rows.len() / updated.len();
    for (node, (row, time)) in (0..).map(evergraph::event::NodeId).zip(rows.chunks(width).zip(updated)) {
        let mut expected = vec![0.0; width];
        trainer.state().memory.row_into(node, &mut expected);
        near(row, &expected, &format!("memory of {node:?}"));
        assert_eq!(time, trainer.state().memory.updated(node).0, "{node:?}");
    }
}

#[test]
fn twenty_steps_of_tgn_on_a_card_are_the_processors() {
    let cuda = card();
    let model = TgnOptions { node_feature_dim: 0, ..tgn() };
    follow(&cuda, TrainerOptions { model: model.into(), ..options() }, 20);
}

#[test]
fn steps_of_the_usual_widths_without_features_of_edges_are_the_processors() {
    let cuda = card();
    follow(&cuda, TrainerOptions { model: TgnOptions::default().into(), ..options() }, 3);
}

#[test]
fn what_a_card_does_not_train_is_refused() {
    let cuda = card();
    let refused = |model: TgnOptions| {
        let options = TrainerOptions { model: model.into(), ..options() };
        CardTrainer::new(&cuda, options).err().unwrap().to_string()
    };
    assert!(refused(tgn()).contains("features of nodes"), "{}", refused(tgn()));
    assert!(refused(TgnOptions::jodie()).contains("Rnn"), "{}", refused(TgnOptions::jodie()));
}
