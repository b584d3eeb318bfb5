//! A step in virtual shards, gradients that are deferred, and a step on some events of a batch: each is the step that it
//! stands for.

use std::ops::Range;

use evergraph::device::Device;
use evergraph::device::matmul::Precision;
use evergraph::event::{EdgeId, NodeId};
use evergraph::model::tgn::Aggregator;
use evergraph::model::walk::WalkOptions;
use evergraph::model::{EdgeTypes, GatOptions, GraphMixerOptions, ModelOptions, TgatOptions, TgnOptions};
use evergraph::train::{
    Negatives, Positives, PreparedBatch, StepMode, StepReport, TrainError, Trainer, TrainerOptions, World,
};

use crate::models::models;
use crate::tgn_stream::{BATCH, DESTINATIONS, SOURCES, Sight, Stream, options, tgn, wide};

/// Events that are learned before, and those of the step at hand, which is large enough for several parts.
pub const BEFORE: usize = 300;
pub const STEP: usize = 800;

/// Without dropout and with weights that stay as they are.
fn still(model: impl Into<ModelOptions>, gradient_delay_batches: u64) -> TrainerOptions {
    let model = model.into().with_dropout(0.0);
    TrainerOptions { model, learning_rate: 0.0, gradient_delay_batches, ..options() }
}

/// What a step sees: the edges before it.
fn world(stream: &Stream) -> World<'_> {
    World {
        view: stream.graph.view_at(EdgeId(BEFORE as u64)),
        edge_features: &stream.edge_features,
        node_features: &stream.node_features,
        sampler: None,
    }
}

fn step(stream: &Stream, trainer: &mut Trainer, events: Range<usize>, own_sources: bool) {
    step_by(stream, trainer, events, (own_sources, StepMode::Train));
}

/// A step in this mode on these events of the stream.
pub fn step_by(
    stream: &Stream,
    trainer: &mut Trainer,
    events: Range<usize>,
    how: (bool, StepMode),
) -> StepReport {
    try_step(stream, trainer, events, how).unwrap()
}

pub fn try_step(
    stream: &Stream,
    trainer: &mut Trainer,
    events: Range<usize>,
    how: (bool, StepMode),
) -> Result<StepReport, TrainError> {
    let mut batch = PreparedBatch::default();
    prepare(stream, trainer, events, how, &mut batch)?;
    trainer.step_prepared(&batch)
}

pub fn prepare(
    stream: &Stream,
    trainer: &Trainer,
    events: Range<usize>,
    (own_sources, mode): (bool, StepMode),
    batch: &mut PreparedBatch,
) -> Result<(), TrainError> {
    let world = world(stream);
    let positives = Positives {
        src: &stream.src[events.clone()],
        dst: &stream.dst[events.clone()],
        times: &stream.times[events.clone()],
        edges: &stream.edges[events.clone()],
    };
    // Sources of their own are a block of seeds more.
    let other: Vec<NodeId> = positives.src.iter().map(|src| NodeId((src.0 + 1) % SOURCES)).collect();
    let src = if own_sources { &other } else { positives.src };
    let negatives = Negatives { src, dst: &stream.against[events] };
    trainer.prepare(&world, &positives, &negatives, mode, batch)
}

/// The same for a step that scores the events at these places only.
pub fn prepare_some(
    stream: &Stream,
    trainer: &Trainer,
    events: Range<usize>,
    places: &[u32],
) -> PreparedBatch {
    let (world, mut batch) = (world(stream), PreparedBatch::default());
    let positives = Positives {
        src: &stream.src[events.clone()],
        dst: &stream.dst[events.clone()],
        times: &stream.times[events.clone()],
        edges: &stream.edges[events.clone()],
    };
    let negatives = Negatives { src: positives.src, dst: &stream.against[events] };
    let preparer = trainer.preparer().scoring(Some(places.to_vec()));
    preparer.sample(&world, &positives, &negatives, StepMode::Train, &mut batch).unwrap();
    preparer.expect(|node| trainer.state().mailbox.pending_event(node), &mut batch);
    preparer.gather(&world, &mut batch).unwrap();
    batch
}

/// Tests a batch and takes its step, together and one after the other, by trainers that have learned the same: they
/// find and learn the same. Returns the scores without dropout, and those of the step itself.
pub fn tested_as_apart(
    [together, apart]: [&mut Trainer; 2],
    prepared: impl Fn(&Trainer) -> PreparedBatch,
    named: &str,
) -> [Vec<f32>; 2] {
    let found = together.test_and_step(&prepared(together)).unwrap();
    let batch = prepared(apart);
    let tested = apart.score_prepared(&batch).unwrap();
    let stepped = apart.step_prepared(&batch).unwrap();
    assert_eq!((&found.positive, &found.negative), (&tested.0, &tested.1), "{named}");
    assert_eq!((found.loss, found.touched), (stepped.loss, stepped.touched), "{named}");
    [found.positive, stepped.positive]
}

/// All gradients, one after another.
fn gradients(trainer: &Trainer) -> Vec<f32> {
    let parameters = &trainer.model().parameters;
    let ids = parameters.iter().filter_map(|(name, _)| parameters.find(name));
    ids.flat_map(|id| trainer.gradients().get(id).to_vec()).collect()
}

fn assert_close(found: &[f32], expected: &[f32]) {
    assert_eq!(found.len(), expected.len());
    let size = expected.iter().fold(0.0_f32, |size, value| size.max(value.abs()));
    assert!(size > 1e-3, "there are gradients");
    for (i, (a, b)) in found.iter().zip(expected).enumerate() {
        assert!((a - b).abs() <= 1e-5 * size + 1e-4 * b.abs(), "value {i}: {a} and {b} of at most {size}");
    }
}

#[test]
fn a_batch_that_is_tested_with_its_step_is_scored_as_before_it() {
    let stream = Stream::new((BEFORE + STEP) / BATCH);
    let walks = WalkOptions { steps: 2, dimension: 32, hidden: [12, 8], ..WalkOptions::default() };
    let mixer =
        GraphMixerOptions { edge_feature_dim: 2, node_feature_dim: 3, ..GraphMixerOptions::default() };
    let tgat = TgatOptions { edge_feature_dim: 2, node_feature_dim: 3, ..TgatOptions::default() };
    let jodie = TgnOptions { edge_feature_dim: 2, node_feature_dim: 3, ..TgnOptions::jodie() };
    let models: [ModelOptions; 7] = [
        tgn().into(),
        TgnOptions { aggregator: Aggregator::Mean, ..tgn() }.into(),
        ModelOptions::from(tgn()).with_walks(Some(walks)),
        jodie.into(),
        mixer.into(),
        TgatOptions { layers: 1, ..tgat }.into(),
        // It is not cut into parts.
        tgat.into(),
    ];
    let third: Vec<u32> = (0..STEP as u32).filter(|place| place % 3 == 0).collect();
    for (model, precision) in
        models.into_iter().flat_map(|model| [Precision::F32, Precision::Bf16].map(|of| (model, of)))
    {
        for gradient_delay_batches in [0, 2] {
            let model = model.with_dropout(0.3);
            let options = TrainerOptions { model, precision, gradient_delay_batches, ..options() };
            let [mut together, mut apart] = [(); 2].map(|()| Trainer::new(options, &Device::Cpu).unwrap());
            let named = format!("{}, {precision:?}, {gradient_delay_batches}", model.name());
            for (events, some) in [
                (0..1, false),
                (1..BEFORE, false),
                (BEFORE..BEFORE + STEP, false),
                (BEFORE..BEFORE + STEP, true),
            ] {
                let prepared = |trainer: &Trainer| {
                    let mut batch = PreparedBatch::default();
                    if some {
                        return prepare_some(&stream, trainer, events.clone(), &third);
                    }
                    prepare(&stream, trainer, events.clone(), (false, StepMode::Train), &mut batch).unwrap();
                    batch
                };
                let named = format!("{named}: {events:?}");
                let [tested, stepped] = tested_as_apart([&mut together, &mut apart], prepared, &named);
                assert!(events.len() == 1 || tested != stepped, "{named}");
            }
            let saved = [together, apart].map(|trainer| {
                let mut bytes = Vec::new();
                trainer.save(&mut bytes).unwrap();
                bytes
            });
            assert!(saved[0] == saved[1], "{named}: what was learned");
        }
    }
}

#[test]
fn gradients_of_parts_add_up_to_that_of_the_batch() {
    let stream = Stream::new((BEFORE + STEP) / BATCH);
    let mixer =
        GraphMixerOptions { edge_feature_dim: 2, node_feature_dim: 3, ..GraphMixerOptions::default() };
    let tgat = TgatOptions { layers: 1, edge_feature_dim: 2, node_feature_dim: 3, ..TgatOptions::default() };
    let gat = GatOptions { layers: 1, edge_feature_dim: 2, node_feature_dim: 3, ..GatOptions::default() };
    let jodie = TgnOptions { edge_feature_dim: 2, node_feature_dim: 3, ..TgnOptions::jodie() };
    let typed = ModelOptions::from(TgnOptions { edge_feature_dim: 1, ..tgn() });
    let models = [
        (ModelOptions::from(tgn()), false),
        (tgn().into(), true),
        (TgnOptions { aggregator: Aggregator::Mean, ..tgn() }.into(), false),
        (typed.with_edge_types(EdgeTypes::new(3, 2)), false),
        (jodie.into(), true),
        (mixer.into(), false),
        (gat.into(), false),
        (tgat.into(), false),
    ];
    for (model, own_sources) in models {
        let options = still(model, 0);
        let mut trainer = Trainer::new(options, &Device::Cpu).unwrap();
        step(&stream, &mut trainer, 0..BEFORE, own_sources);
        let mut saved = Vec::new();
        trainer.save(&mut saved).unwrap();
        let gradient = |events| {
            let mut trainer = Trainer::load(options, &Device::Cpu, &mut &saved[..]).unwrap();
            step(&stream, &mut trainer, events, own_sources);
            gradients(&trainer)
        };
        let whole = gradient(BEFORE..BEFORE + STEP);
        // Each a batch of its own, too small to be cut.
        let (mut sum, events) = (vec![0.0; whole.len()], model.needs().part_events);
        for first in (BEFORE..BEFORE + STEP).step_by(events) {
            let part = gradient(first..first + events);
            let share = events as f32 / STEP as f32;
            sum.iter_mut().zip(part).for_each(|(sum, value)| *sum += value * share);
        }
        assert_close(&whole, &sum);
    }
}

#[test]
fn a_step_in_parts_is_the_same_at_any_number_of_threads() {
    let stream = Stream::new((BEFORE + STEP) / BATCH);
    let weights = |options, threads| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| {
            let mut trainer = Trainer::new(options, &Device::Cpu).unwrap();
            // Behind one event, messages wait in one part of the nodes only.
            for events in [0..1, 1..BEFORE, BEFORE..BEFORE + 500, BEFORE + 500..BEFORE + STEP] {
                step(&stream, &mut trainer, events, false);
            }
            let mut saved = Vec::new();
            trainer.save(&mut saved).unwrap();
            saved
        })
    };
    let tgat = TgatOptions { layers: 1, edge_feature_dim: 2, node_feature_dim: 3, ..TgatOptions::default() };
    let deferring = TrainerOptions { gradient_delay_batches: 3, ..options() };
    let walks = WalkOptions { steps: 2, dimension: 32, hidden: [12, 8], ..WalkOptions::default() };
    let with_walks = |of: TrainerOptions| TrainerOptions { model: of.model.with_walks(Some(walks)), ..of };
    let tgat = TrainerOptions { model: tgat.into(), ..options() };
    let in_bf16 = TrainerOptions { gradient_delay_batches: 3, ..wide() };
    for options in [options(), deferring, tgat, with_walks(options()), with_walks(deferring), in_bf16] {
        let alone = weights(options, 1);
        for threads in [2, 3, 16] {
            assert!(weights(options, threads) == alone, "{options:?} with {threads} threads");
        }
    }
}

#[test]
fn what_is_deferred_is_learned_once_and_whole() {
    let batches = 7;
    let stream = Stream::new(batches - 1);
    let Stream { mut src, mut dst, mut times, mut against, .. } = stream;
    // The last batch touches every node, which takes in all that is owed.
    for i in 0..BATCH as u32 {
        src.push(NodeId(i % SOURCES));
        dst.push(NodeId(SOURCES + i % DESTINATIONS));
        times.push(times[times.len() - 1]);
        against.push(NodeId(SOURCES + (i + 3) % DESTINATIONS));
    }
    let stream = Stream::over(src, dst, times, against);
    let run = |delay| {
        let mut trainer = Trainer::new(still(tgn(), delay), &Device::Cpu).unwrap();
        let mut each = Vec::new();
        for batch in 0..batches {
            let report = stream.step(&mut trainer, batch, Sight::BeforeBatch, StepMode::Train);
            each.push((report.positive, gradients(&trainer)));
        }
        each
    };
    let sum = |each: &[(Vec<f32>, Vec<f32>)]| {
        each.iter().fold(vec![0.0; each[0].1.len()], |mut sum: Vec<f32>, (_, gradient)| {
            sum.iter_mut().zip(gradient).for_each(|(sum, value)| *sum += value);
            sum
        })
    };
    let at_once = run(0);
    for delay in [1, 3, 100] {
        let deferred = run(delay);
        let scores =
            |each: &[(Vec<f32>, Vec<f32>)]| each.iter().flat_map(|(s, _)| s.clone()).collect::<Vec<_>>();
        assert_close(&scores(&deferred), &scores(&at_once));
        assert!((0..batches).any(|batch| deferred[batch].1 != at_once[batch].1), "nothing was deferred");
        assert_close(&sum(&deferred), &sum(&at_once));
    }
}

#[test]
fn rows_are_let_go_with_nodes_and_weights_and_buffers_do_not_grow() {
    let stream = Stream::new(60);
    let deferring = TrainerOptions { gradient_delay_batches: 5, ..options() };
    let mut trainer = Trainer::new(deferring, &Device::Cpu).unwrap();
    let kept = |trainer: &Trainer| {
        let nodes = (0..SOURCES + DESTINATIONS).map(NodeId);
        nodes.filter(|&node| trainer.state().deferred.row(node).is_some()).collect::<Vec<_>>()
    };
    for batch in 0..20 {
        stream.step(&mut trainer, batch, Sight::BeforeBatch, StepMode::Train);
    }
    let rows = kept(&trainer);
    assert!(!rows.is_empty() && rows.iter().all(|&node| trainer.state().mailbox.is_pending(node)));
    trainer.forget(&rows[..1]);
    assert!(!kept(&trainer).contains(&rows[0]));
    let bytes = trainer.buffer_bytes();
    for batch in 20..60 {
        // A state-only update consumes messages, too.
        let mode = if batch % 3 == 0 { StepMode::StateOnly } else { StepMode::Train };
        let report = stream.step(&mut trainer, batch, Sight::BeforeBatch, mode);
        assert!(report.touched.iter().all(|&node| trainer.state().deferred.row(node).is_none()));
    }
    assert!(trainer.buffer_bytes() <= bytes + bytes / 4, "{} after {bytes}", trainer.buffer_bytes());
    let weights = trainer.weights().unwrap();
    trainer.set_weights(&weights).unwrap();
    assert!(kept(&trainer).is_empty(), "rows of other weights");
}

#[test]
fn a_step_on_some_events_scores_and_learns_from_these_and_remembers_all() {
    let stream = Stream::new((BEFORE + STEP) / BATCH);
    let places: Vec<u32> = (0..STEP as u32).filter(|place| place % 5 == 2 || *place > 700).collect();
    for options in models() {
        let options =
            TrainerOptions { learning_rate: 0.0, model: options.model.with_dropout(0.0), ..options };
        let run = |places: Option<&[u32]>, only_these: bool| {
            let mut trainer = Trainer::new(options, &Device::Cpu).unwrap();
            step(&stream, &mut trainer, 0..BEFORE, false);
            let all: Vec<usize> = (BEFORE..BEFORE + STEP).collect();
            let chosen = places
                .filter(|_| only_these)
                .map(|places| places.iter().map(|&place| BEFORE + place as usize));
            let events = chosen.map_or(all, Iterator::collect);
            let [src, dst, against] = [&stream.src, &stream.dst, &stream.against]
                .map(|of| events.iter().map(|&i| of[i]).collect::<Vec<_>>());
            let times: Vec<_> = events.iter().map(|&i| stream.times[i]).collect();
            let edges: Vec<_> = events.iter().map(|&i| stream.edges[i]).collect();
            let positives = Positives { src: &src, dst: &dst, times: &times, edges: &edges };
            let negatives = Negatives { src: &src, dst: &against };
            let world = world(&stream);
            let preparer = trainer.preparer().scoring(places.filter(|_| !only_these).map(<[u32]>::to_vec));
            let mut batch = PreparedBatch::default();
            preparer.sample(&world, &positives, &negatives, StepMode::Train, &mut batch).unwrap();
            preparer.expect(|node| trainer.state().mailbox.pending_event(node), &mut batch);
            preparer.gather(&world, &mut batch).unwrap();
            let report = trainer.step_prepared(&batch).unwrap();
            let nodes = (0..SOURCES + DESTINATIONS).map(NodeId);
            let memory: Vec<f32> = nodes
                .filter_map(|node| trainer.state().written_row(node))
                .flat_map(|(row, _)| row.to_vec())
                .collect();
            (report, gradients(&trainer), memory)
        };
        let (whole, _, memory) = run(None, false);
        let (some, learned, remembered) = run(Some(&places), false);
        let (these, expected, _) = run(Some(&places), true);
        let of = |all: &[f32]| places.iter().map(|&place| all[place as usize]).collect::<Vec<f32>>();
        assert_close(&some.positive, &of(&whole.positive));
        assert_close(&some.negative, &of(&whole.negative));
        assert_close(&some.positive, &these.positive);
        assert_close(&learned, &expected);
        assert!((some.loss - these.loss).abs() < 1e-4, "{} and {}", some.loss, these.loss);
        assert_eq!(some.touched, whole.touched);
        assert_eq!(remembered.len(), memory.len());
        let off = remembered.iter().zip(&memory).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(off < 1e-5, "memory is off by {off}: {options:?}");
    }
}
