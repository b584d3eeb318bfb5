//! What must hold of every model on any stream: the same stream makes the same model, a restored trainer goes on bit
//! for bit, each parameter learns, nothing later than a score shows in it, and being asked leaves no trace.

use std::ops::Range;

use evergraph::device::Device;
use evergraph::event::{EventTime, NodeId};
use evergraph::model::{GraphMixerOptions, ModelOptions, TgatOptions, TgnOptions};
use evergraph::train::{LoadError, StepMode, Trainer, TrainerOptions};

use crate::tgn_stream::{BATCH, DESTINATIONS, SOURCES, Sight, Stream, tgn};

/// A small model of each kind, with edge features and node features.
pub fn models() -> Vec<TrainerOptions> {
    let jodie = TgnOptions { embedding_dim: 12, ..TgnOptions::jodie() };
    let jodie = TgnOptions { memory_dim: 12, time_dim: 8, ..jodie };
    let identity = TgnOptions { embedding: evergraph::model::tgn::Embedding::Identity, ..jodie };
    let mixer =
        GraphMixerOptions { embedding_dim: 10, time_dim: 8, fanout: 5, ..GraphMixerOptions::default() };
    let tgat = TgatOptions { embedding_dim: 10, time_dim: 8, fanout: 3, ..TgatOptions::default() };
    let kinds: [ModelOptions; 5] = [tgn().into(), jodie.into(), identity.into(), mixer.into(), tgat.into()];
    let trained = |model: ModelOptions| TrainerOptions {
        model: model.with_features(2, 3).with_dropout(0.1),
        learning_rate: 3e-3,
        seed: 5,
        ..TrainerOptions::default()
    };
    kinds.into_iter().map(trained).collect()
}

fn fresh(options: TrainerOptions) -> Trainer {
    Trainer::new(options, &Device::Cpu).unwrap()
}

fn weights(trainer: &Trainer) -> Vec<f32> {
    trainer.model().parameters.iter().flat_map(|(_, tensor)| tensor.to_vec()).collect()
}

fn run(stream: &Stream, trainer: &mut Trainer, batches: Range<usize>, sight: Sight) -> Vec<f32> {
    let steps = batches.map(|b| stream.step(trainer, b, sight, StepMode::Train));
    steps.flat_map(|report| [report.positive, report.negative].concat()).collect()
}

#[test]
fn the_same_stream_makes_the_same_model_at_any_number_of_threads() {
    for options in models() {
        let learn = |threads| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| {
                let mut trainer = fresh(options);
                (run(&Stream::new(5), &mut trainer, 0..5, Sight::Everything), weights(&trainer))
            })
        };
        assert!(learn(1) == learn(3), "{}", options.model.name());
    }
}

#[test]
fn a_restored_trainer_goes_on_bit_for_bit() {
    let stream = Stream::new(6);
    for options in models() {
        let name = options.model.name();
        let (mut straight, mut stopped) = (fresh(options), fresh(options));
        let scores = run(&stream, &mut straight, 0..6, Sight::BeforeBatch);
        let mut again = run(&stream, &mut stopped, 0..3, Sight::BeforeBatch);
        let mut bytes = Vec::new();
        stopped.save(&mut bytes).unwrap();
        let mut restored = Trainer::load(options, &Device::Cpu, &mut &bytes[..]).unwrap();
        again.extend(run(&stream, &mut restored, 3..6, Sight::BeforeBatch));
        assert_eq!(scores, again, "{name}");
        assert_eq!(weights(&straight), weights(&restored), "{name}");
        assert_eq!(straight.state(), restored.state(), "{name}");
        for other in models().iter().filter(|other| other.model.name() != name) {
            let error = Trainer::load(*other, &Device::Cpu, &mut &bytes[..]).err();
            assert!(matches!(&error, Some(LoadError::Model { saved, .. }) if saved == name), "{error:?}");
        }
    }
}

#[test]
fn a_trainer_that_was_saved_without_a_name_is_a_tgn() {
    let (stream, options) = (Stream::new(3), models()[0]);
    let mut trainer = fresh(options);
    run(&stream, &mut trainer, 0..2, Sight::BeforeBatch);
    let mut bytes = Vec::new();
    trainer.save(&mut bytes).unwrap();
    // Magic, the name behind its length, the fields behind their number: without the name and the two newest fields.
    let fields = 16 + "tgn".len();
    let count = u64::from_le_bytes(*bytes[fields..].first_chunk().unwrap()) as usize;
    let (first, rest) = (&bytes[fields + 8..][..8 * (count - 2)], &bytes[fields + 8 + 8 * count..]);
    let old = [&b"EVGTRNR1"[..], &(count as u64 - 2).to_le_bytes(), first, rest].concat();
    let restored = Trainer::load(options, &Device::Cpu, &mut &old[..]).unwrap();
    assert_eq!((weights(&restored), restored.steps()), (weights(&trainer), trainer.steps()));
    let error = Trainer::load(models()[3], &Device::Cpu, &mut &old[..]).err();
    assert!(matches!(&error, Some(LoadError::Model { wanted: "graphmixer", .. })), "{error:?}");
}

#[test]
fn every_parameter_gets_a_gradient_and_what_follows_the_stream_does_not() {
    let stream = Stream::new(4);
    for options in models() {
        let mut trainer = fresh(options);
        run(&stream, &mut trainer, 0..4, Sight::Everything);
        for (name, _) in trainer.model().parameters.iter() {
            let id = trainer.model().parameters.find(name).unwrap();
            let learns = trainer.gradients().get(id).data().iter().any(|value| *value != 0.0);
            assert_eq!(learns, !name.ends_with("statistics"), "{} of {}", name, options.model.name());
        }
    }
}

#[test]
fn the_future_and_an_events_own_features_change_no_score() {
    let long = Stream::new(8);
    let cut = |nodes: &[NodeId]| nodes[..4 * BATCH].to_vec();
    assert!(long.times[4 * BATCH] > long.times[4 * BATCH - 1], "choose another cut");
    let times = long.times[..4 * BATCH].to_vec();
    let short = Stream::over(cut(&long.src), cut(&long.dst), times, cut(&long.against));
    let changed = Stream::new(8);
    for edge in changed.positives(2).edges {
        changed.edge_features.set(edge.0, &[9.0, -9.0]).unwrap();
    }
    for options in models() {
        let name = options.model.name();
        let scores = run(&long, &mut fresh(options), 0..4, Sight::Everything);
        assert_eq!(scores, run(&short, &mut fresh(options), 0..4, Sight::Everything), "{name}");
        let (mut before, mut after) = (fresh(options), fresh(options));
        let same = run(&long, &mut before, 0..3, Sight::BeforeBatch);
        assert_eq!(same, run(&changed, &mut after, 0..3, Sight::BeforeBatch), "{name}");
        let later = run(&long, &mut before, 3..4, Sight::BeforeBatch);
        assert_ne!(later, run(&changed, &mut after, 3..4, Sight::BeforeBatch), "{name}");
    }
}

#[test]
fn being_asked_leaves_no_trace_and_only_remembering_needs_no_sample() {
    let stream = Stream::new(5);
    for options in models() {
        let name = options.model.name();
        let (mut asked, mut alone) = (fresh(options), fresh(options));
        let everyone: Vec<NodeId> = (0..SOURCES + DESTINATIONS + 4).map(NodeId).collect();
        for b in 0..5 {
            let world = stream.world(b, Sight::BeforeBatch);
            let scores =
                asked.score_candidates(&world, stream.src[b * BATCH], EventTime(i64::MAX), &everyone);
            assert!(scores.unwrap().iter().all(|score| score.is_finite()), "{name}");
            let mode = if b == 3 { StepMode::Remember } else { StepMode::Train };
            stream.step(&mut asked, b, Sight::BeforeBatch, mode);
            stream.step(&mut alone, b, Sight::BeforeBatch, mode);
        }
        assert_eq!((weights(&asked), asked.state()), (weights(&alone), alone.state()), "{name}");
        let mut published = 0;
        let nodes = &everyone;
        let count = |node: NodeId, row: &[f32], last: EventTime| {
            assert_eq!((row.len(), last_of(&stream, node)), (options.model.needs().memory_dim, Some(last)));
            published += 1;
        };
        asked.publish_rows(EventTime::MIN, &stream.edge_features, nodes, count).unwrap();
        assert!(published > 10, "{name}");
    }
}

/// Time of the last event of `node`.
fn last_of(stream: &Stream, node: NodeId) -> Option<EventTime> {
    let ends = stream.src.iter().zip(&stream.dst).zip(&stream.times);
    ends.filter(|((src, dst), _)| **src == node || **dst == node).map(|(_, &time)| time).max()
}
