//! What must hold of a trainer on any stream: no event sees itself, a restored trainer goes on in its schedule, bad
//! numbers do no harm, and what can be learned is learned. What holds for every model is in `models.rs`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use evergraph::device::{Device, rng};
use evergraph::event::{EventTime, NodeId};
use evergraph::feature::FeatureStore;
use evergraph::model::{Model, ModelOptions, ModelState, TgnOptions, Weights, probability};
use evergraph::train::schedule::{Decay, Schedule};
use evergraph::train::{
    LoadError, Negatives, PreparedBatch, RankQuery, StepMode, TrainError, Trainer, TrainerOptions,
};

use crate::tgn_stream::{BATCH, DESTINATIONS, SOURCES, Sight, Stream, options, tgn, trainer, wide};

/// The weights, one after another.
fn weights(trainer: &Trainer) -> Vec<f32> {
    trainer.model().parameters.iter().flat_map(|(_, tensor)| tensor.to_vec()).collect()
}

/// Runs batches and returns their scores, positives and negatives of each batch.
fn run(stream: &Stream, trainer: &mut Trainer, batches: std::ops::Range<usize>, sight: Sight) -> Vec<f32> {
    let steps = batches.map(|b| stream.step(trainer, b, sight, StepMode::Train));
    steps.flat_map(|report| [report.positive, report.negative].concat()).collect()
}

#[test]
fn a_restored_trainer_goes_on_in_its_schedule_and_other_weights_begin_it_again() {
    let schedule = Schedule { warmup_steps: 4, decay: Decay::Cosine, decay_steps: 50, floor: 0.1 };
    let scheduled = TrainerOptions { schedule, ..options() };
    let fresh = || Trainer::new(scheduled, &Device::Cpu).unwrap();
    let stream = Stream::new(6);
    let (mut straight, mut stopped, mut constant) = (fresh(), fresh(), trainer());
    run(&stream, &mut straight, 0..6, Sight::BeforeBatch);
    run(&stream, &mut stopped, 0..3, Sight::BeforeBatch);
    run(&stream, &mut constant, 0..6, Sight::BeforeBatch);
    let mut bytes = Vec::new();
    stopped.save(&mut bytes).unwrap();
    let mut restored = Trainer::load(scheduled, &Device::Cpu, &mut &bytes[..]).unwrap();
    assert_eq!(restored.learning_rate(), options().learning_rate);
    run(&stream, &mut restored, 3..6, Sight::BeforeBatch);
    assert_eq!(weights(&straight), weights(&restored));
    assert_ne!(weights(&straight), weights(&constant), "the schedule is of consequence");
    assert!(restored.learning_rate() < options().learning_rate);
    restored.set_weights(&straight.weights().unwrap()).unwrap();
    assert_eq!(restored.learning_rate(), options().learning_rate / 4.0);
}

#[test]
fn damaged_or_foreign_bytes_are_named() {
    let mut saved = trainer();
    run(&Stream::new(2), &mut saved, 0..2, Sight::BeforeBatch);
    let mut bytes = Vec::new();
    saved.save(&mut bytes).unwrap();
    let load = |options, bytes: &[u8]| Trainer::load(options, &Device::Cpu, &mut &bytes[..]).err();
    for cut in [0, 7, 8, 100, bytes.len() / 2, bytes.len() - 1] {
        assert!(load(options(), &bytes[..cut]).is_some(), "cut at {cut} of {}", bytes.len());
    }
    let model = TgnOptions { fanout: 7, ..tgn() }.into();
    let error = load(TrainerOptions { model, ..options() }, &bytes);
    assert!(matches!(error, Some(LoadError::Option { option: "fanout", .. })), "{error:?}");
    let model = ModelOptions::from(tgn()).with_ticks_per_second(1_000);
    let error = load(TrainerOptions { model, ..options() }, &bytes).unwrap();
    assert!(matches!(error, LoadError::TimeUnit { saved: 1.0, wanted: 1_000.0 }), "{error:?}");
    assert!(error.to_string().contains("set model.time_unit to what it was trained with"), "{error}");
    bytes[0] ^= 1;
    assert!(matches!(load(options(), &bytes), Some(LoadError::Magic { .. })));
}

#[test]
fn an_events_destination_does_not_show_in_its_own_score() {
    let stream = Stream::new(3);
    let mut trained = trainer();
    run(&stream, &mut trained, 0..2, Sight::BeforeBatch);
    let world = stream.world(2, Sight::BeforeBatch);
    let event = 2 * BATCH + 7;
    let (src, time) = (stream.src[event], stream.times[event]);
    let other = NodeId(SOURCES + (stream.dst[event].0 + 5) % DESTINATIONS);
    let foreseen = trained.score_candidates(&world, src, time, &[stream.dst[event], other]).unwrap();
    let mut dst = stream.dst.clone();
    dst[event] = other;
    let changed = Stream::over(stream.src.clone(), dst, stream.times.clone(), stream.against.clone());
    let mut bytes = Vec::new();
    trained.save(&mut bytes).unwrap();
    let mut twin = Trainer::load(options(), &Device::Cpu, &mut &bytes[..]).unwrap();
    let was = stream.step(&mut trained, 2, Sight::BeforeBatch, StepMode::Score);
    let is = changed.step(&mut twin, 2, Sight::BeforeBatch, StepMode::Score);
    // Matrices of other heights round differently in the last bit, so nothing here is compared exactly.
    let equal = |a: &[f32], b: &[f32]| {
        assert_eq!(a.len(), b.len());
        assert!(a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-5), "{a:?}\n{b:?}");
    };
    equal(&[was.positive[7], is.positive[7]], &foreseen);
    equal(&was.negative, &is.negative);
    let others = |scores: &[f32]| [&scores[..7], &scores[8..]].concat();
    equal(&others(&was.positive), &others(&is.positive));
    assert_ne!(trained.state(), twin.state());
}

#[test]
fn sure_scores_are_still_told_apart() {
    let (stream, mut trainer) = (Stream::new(2), trainer());
    let mut sure = trainer.model().parameters.clone();
    let (bias, slope) = (sure.find("link.b_b").unwrap(), sure.find("link.w_b").unwrap());
    sure.get_mut(bias).data_mut().fill(30.0);
    sure.get_mut(slope).data_mut().iter_mut().for_each(|weight| *weight *= 3.0);
    let model = trainer.options().model;
    trainer.set_weights(&Weights::of(Model::with_parameters(model, &sure).unwrap(), 0)).unwrap();
    let report = stream.step(&mut trainer, 0, Sight::Everything, StepMode::Score);
    assert!(report.positive.iter().all(|&logit| probability(logit) == 1.0), "{:?}", report.positive);
    let mut distinct = report.positive.clone();
    distinct.sort_by(f32::total_cmp);
    distinct.dedup();
    assert!(distinct.len() > BATCH / 2, "{distinct:?}");
}

#[test]
fn queries_in_one_pass_score_as_one_by_one() {
    let (stream, mut trainer) = (Stream::new(3), trainer());
    run(&stream, &mut trainer, 0..2, Sight::BeforeBatch);
    let world = stream.world(2, Sight::BeforeBatch);
    let candidates: Vec<NodeId> = (SOURCES..SOURCES + 7).map(NodeId).collect();
    let query = |event: usize, count: usize| RankQuery {
        src: stream.src[event],
        time: stream.times[event],
        candidates: &candidates[..count],
    };
    let queries = [query(41, 7), query(45, 0), query(50, 3)];
    let together = trainer.score_queries(&world, &queries).unwrap();
    for (query, scores) in queries.iter().zip(&together) {
        let alone = trainer.score_candidates(&world, query.src, query.time, query.candidates).unwrap();
        assert_eq!(scores.len(), query.candidates.len());
        assert!(scores.iter().zip(&alone).all(|(a, b)| (a - b).abs() < 1e-5), "{scores:?} {alone:?}");
    }
}

#[test]
fn negatives_and_modes_leave_the_same_state() {
    for options in [options(), wide()] {
        leaves_the_same_state(options);
    }
}

fn leaves_the_same_state(options: TrainerOptions) {
    let trainer = || Trainer::new(options, &Device::Cpu).unwrap();
    let stream = Stream::new(4);
    let mut steps = [trainer(), trainer(), trainer()];
    for b in 0..4 {
        let (positives, world) = (stream.positives(b), stream.world(b, Sight::BeforeBatch));
        let range = b * BATCH..(b + 1) * BATCH;
        let own = Negatives { src: positives.src, dst: &stream.against[range] };
        let foreign = Negatives { src: &[NodeId(500); BATCH], dst: &[NodeId(501); BATCH] };
        let none = Negatives { src: &[], dst: &[] };
        let modes = [(own, StepMode::Score), (foreign, StepMode::Score), (none, StepMode::StateOnly)];
        for (trainer, (negatives, mode)) in steps.iter_mut().zip(modes) {
            let report = trainer.step(&world, &positives, &negatives, mode).unwrap();
            assert_eq!(report.positive.is_empty(), mode == StepMode::StateOnly);
        }
    }
    let [own, foreign, remembered] = &steps;
    assert_eq!(own.state(), foreign.state());
    assert_eq!(own.state(), remembered.state());
    assert_eq!(weights(own), weights(&trainer()), "only training changes weights");
}

/// Average precision of a batch; ties count as one group.
fn average_precision(positive: &[f32], negative: &[f32]) -> f64 {
    let above = |bar: &f32, scores: &[f32]| scores.iter().filter(|score| *score >= bar).count() as f64;
    let precision = |bar| above(bar, positive) / (above(bar, positive) + above(bar, negative));
    positive.iter().map(precision).sum::<f64>() / positive.len() as f64
}

/// Four pairs of a hundred sources and destinations talk for a while, then four others.
fn conversations(batches: usize) -> Stream {
    let draw = |word, i: usize, n| rng::below([80, word, i as u64, 0], n);
    let (mut src, mut dst, mut times, mut against) = (vec![], vec![], vec![], vec![]);
    for i in 0..batches * BATCH {
        let pair = draw(0, i / 60 * 4 + draw(1, i, 4) as usize, 100);
        src.push(NodeId(pair));
        dst.push(NodeId(100 + (pair * 37 + 11) % 100));
        times.push(EventTime(10 * i as i64));
        against.push(NodeId(100 + draw(2, i, 100)));
    }
    Stream::over(src, dst, times, against)
}

#[test]
fn repeating_pairs_are_learned_while_they_stream() {
    let (stream, mut trainer) = (conversations(120), trainer());
    let precision: Vec<f64> = (0..stream.batches())
        .map(|b| stream.step(&mut trainer, b, Sight::BeforeBatch, StepMode::Train))
        .map(|report| average_precision(&report.positive, &report.negative))
        .collect();
    let mean = |part: &[f64]| part.iter().sum::<f64>() / part.len() as f64;
    let (early, late) = (mean(&precision[..10]), mean(&precision[100..]));
    assert!(late > 0.85, "average precision {early:.3} early, {late:.3} late");
}

/// Precision over the last batches of conversations. `spoil` may change features before each batch.
fn late_precision(spoil: impl Fn(&Stream, usize)) -> f64 {
    let (stream, mut trainer) = (conversations(120), trainer());
    let mut precision = Vec::new();
    for b in 0..stream.batches() {
        spoil(&stream, b);
        let report = stream.step(&mut trainer, b, Sight::BeforeBatch, StepMode::Train);
        precision.push(average_precision(&report.positive, &report.negative));
        let norm = trainer.gradients().norm();
        assert!(norm < 5.01, "the gradient's norm is {norm:e} at batch {b}");
        let world = stream.world(b, Sight::Everything);
        let (nodes, times) = (stream.positives(b).src, vec![EventTime::MAX; BATCH]);
        let rows = trainer.embeddings(&world, nodes, &times).unwrap();
        assert!(rows.iter().all(|value| value.is_finite()), "embeddings after batch {b}");
    }
    precision[100..].iter().sum::<f64>() / 20.0
}

#[test]
fn absurd_features_neither_refuse_steps_nor_stop_learning() {
    let ordinary = late_precision(|_, _| ());
    // The first batch of a conversation of three, so that the next two sample its edges.
    for (absurd, spoiled) in [(1e6, 18), (3e38, 18)] {
        let edges = late_precision(|stream, b| {
            for edge in stream.positives(spoiled).edges.iter().filter(|_| b == spoiled) {
                stream.edge_features.set(edge.0, &[absurd, absurd]).unwrap();
            }
        });
        assert!(edges > ordinary - 0.03, "{edges:.3}, ordinary {ordinary:.3}, edges of {absurd:e}");
        let nodes = late_precision(|stream, b| {
            let value = if b == spoiled { absurd } else { 0.0 };
            for node in stream.positives(spoiled).src {
                stream.node_features.set(u64::from(node.0), &[value; 3]).unwrap();
            }
        });
        assert!(nodes > ordinary - 0.03, "{nodes:.3}, ordinary {ordinary:.3}, nodes of {absurd:e}");
    }
}

#[test]
fn numbers_that_are_not_finite_do_no_harm() {
    let (stream, mut trainer) = (Stream::new(40), trainer());
    run(&stream, &mut trainer, 0..3, Sight::BeforeBatch);
    stream.edge_features.set((3 * BATCH) as u64, &[f32::NAN, 0.0]).unwrap();
    run(&stream, &mut trainer, 3..4, Sight::BeforeBatch);
    let mut failures = 0;
    for b in 4..40 {
        let (known, steps) = (weights(&trainer), trainer.steps());
        match stream.try_step(&mut trainer, b, Sight::BeforeBatch, StepMode::Train) {
            Ok(_) => assert_ne!(weights(&trainer), known),
            Err(error) => {
                failures += 1;
                assert!(matches!(&error, TrainError::NonFinite { step, .. } if *step == steps), "{error}");
                assert_eq!(weights(&trainer), known, "weights stay at batch {b}: {error}");
            }
        }
        let (last, event) = (trainer.state().mailbox.pending(stream.src[b * BATCH + 19]), b * BATCH + 19);
        assert_eq!(last.map(|message| message.time), Some(stream.times[event]), "batch {b} is remembered");
    }
    assert!(failures > 0, "the bad row was never read");
    let nodes: Vec<NodeId> = (0..SOURCES + DESTINATIONS).map(NodeId).collect();
    let finite = |node, row: &[f32], _| {
        assert!(row.iter().all(|value| value.is_finite()), "memory of {node:?}");
    };
    trainer.publish_rows(EventTime::MIN, &stream.edge_features, &nodes, finite).unwrap();
    assert!(stream.try_step(&mut trainer, 39, Sight::BeforeBatch, StepMode::Train).is_ok(), "it recovers");
}

#[test]
fn a_memory_row_that_is_refused_does_not_undo_the_step() {
    let (stream, mut trainer) = (Stream::new(3), trainer());
    stream.edge_features.set(BATCH as u64 - 1, &[f32::NAN, 0.0]).unwrap();
    run(&stream, &mut trainer, 0..1, Sight::BeforeBatch);
    let (node, known) = (stream.src[BATCH - 1], trainer.state().clone());
    let remembered = |b| stream.positives(b).src.contains(&node) || stream.positives(b).dst.contains(&node);
    let b = (1..3).find(|&b| remembered(b)).expect("the node occurs again");
    let report = stream.step(&mut trainer, b, Sight::BeforeBatch, StepMode::StateOnly);
    assert!((1..=2).contains(&report.refused_rows), "{}", report.refused_rows);
    let row = |state: &ModelState| {
        let mut row = [9.0; 12];
        state.memory.row_into(node, &mut row);
        row
    };
    assert_eq!(row(trainer.state()), row(&known));
    assert!(report.touched.contains(&node));
}

/// The stream with its edge rows in a store that fails while the flag is set.
fn fragile(batches: usize) -> (Stream, Arc<AtomicBool>) {
    let (mut stream, fault) = (Stream::new(batches), Arc::new(AtomicBool::new(false)));
    let store = FeatureStore::with_fault(2, fault.clone());
    for edge in 0..(batches * BATCH) as u64 {
        let mut row = [0.0; 2];
        stream.edge_features.row_into(edge, &mut row).unwrap();
        store.set(edge, &row).unwrap();
    }
    stream.edge_features = Arc::new(store);
    (stream, fault)
}

#[test]
fn a_storage_failure_does_nothing_and_the_batch_may_be_tried_again() {
    let (stream, (mut spared, mut struck)) = (Stream::new(6), (trainer(), trainer()));
    let (fragile, fault) = fragile(6);
    for b in 0..6 {
        let mode = [StepMode::Train, StepMode::StateOnly, StepMode::Score][b % 3];
        fault.store(true, Ordering::Release);
        let (steps, state, known) = (struck.steps(), struck.state().clone(), weights(&struck));
        let error = fragile.try_step(&mut struck, b, Sight::Everything, mode).unwrap_err();
        assert!(matches!(error, TrainError::Storage(_)), "{error}");
        let world = fragile.world(b, Sight::Everything);
        let nodes = [NodeId(1), NodeId(2)];
        assert!(struck.embeddings(&world, &nodes, &[EventTime::MAX; 2]).is_err());
        assert!(struck.score_candidates(&world, NodeId(1), EventTime::MAX, &nodes).is_err());
        assert!(struck.publish_rows(EventTime::MIN, &fragile.edge_features, &nodes, |_, _, _| ()).is_err());
        assert_eq!((struck.steps(), struck.state(), weights(&struck)), (steps, &state, known));
        fault.store(false, Ordering::Release);
        let ours = fragile.step(&mut struck, b, Sight::Everything, mode);
        let theirs = stream.step(&mut spared, b, Sight::Everything, mode);
        assert_eq!((ours.positive, ours.negative), (theirs.positive, theirs.negative), "batch {b}");
    }
    assert_eq!((struck.state(), weights(&struck)), (spared.state(), weights(&spared)));
}

#[test]
fn a_batch_that_was_prepared_for_another_state_is_refused() {
    let (stream, mut trainer) = (Stream::new(3), trainer());
    let mut ahead = PreparedBatch::default();
    let prepare = |trainer: &Trainer, b: usize, batch: &mut PreparedBatch| {
        let positives = stream.positives(b);
        let negatives = Negatives { src: positives.src, dst: &stream.against[b * BATCH..(b + 1) * BATCH] };
        let world = stream.world(b, Sight::BeforeBatch);
        trainer.prepare(&world, &positives, &negatives, StepMode::Train, batch).unwrap();
    };
    prepare(&trainer, 1, &mut ahead);
    stream.step(&mut trainer, 0, Sight::BeforeBatch, StepMode::Train);
    let (steps, state) = (trainer.steps(), trainer.state().clone());
    for error in [trainer.score_prepared(&ahead).err().unwrap(), trainer.step_prepared(&ahead).err().unwrap()]
    {
        assert!(matches!(error, TrainError::OutOfOrder { step: 1 }), "{error}");
    }
    assert_eq!((trainer.steps(), trainer.state()), (steps, &state));
    prepare(&trainer, 1, &mut ahead);
    trainer.step_prepared(&ahead).unwrap();
}

#[test]
fn what_does_not_fit_is_refused_before_anything_is_done() {
    let (stream, mut trainer) = (Stream::new(1), trainer());
    let (positives, world) = (stream.positives(0), stream.world(0, Sight::BeforeBatch));
    let short = Negatives { src: positives.src, dst: &stream.against[..BATCH - 1] };
    let error = trainer.step(&world, &positives, &short, StepMode::Train).unwrap_err();
    assert!(matches!(error, TrainError::Length { column: "negatives.dst", .. }), "{error}");
    let narrow = FeatureStore::new(1);
    let negatives = Negatives { src: positives.src, dst: &stream.against[..BATCH] };
    let world = evergraph::train::World { edge_features: &narrow, ..world };
    let error = trainer.step(&world, &positives, &negatives, StepMode::Train).unwrap_err();
    assert!(matches!(error, TrainError::FeatureWidth { store: "edge", found: 1, expected: 2 }), "{error}");
    assert_eq!(trainer.steps(), 0);
    assert!(trainer.state().origin.is_none());
}
