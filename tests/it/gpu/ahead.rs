//! A step that is recorded while the GPU computes the one before computes the same, bit for bit, whatever comes between
//! the two, and also where nothing does and it begins before it is asked for. On a simulated GPU, which does everything
//! at once, nothing is recorded ahead.

use std::cell::OnceCell;
use std::sync::Arc;

use evergraph::device::Device;
use evergraph::device::cuda::{CudaBuffer, CudaWork, Launching, PooledBuffer, RecorderCounts};
use evergraph::event::{EventTime, NodeId};
use evergraph::model::tgn::Embedding;
use evergraph::model::{Model, ModelOptions, TgnOptions};
use evergraph::train::lookahead::{Helper, Lookahead, Turn};
use evergraph::train::{
    Meanwhile, Negatives, PreparedBatch, Preparer, StepMode, StepReport, TrainError, Trainer, TrainerOptions,
    World,
};

use super::train::{small_mixer, small_tgat};
use super::{gpu, real_gpu};
use crate::tgn_stream::{BATCH, SOURCES, Sight, Stream, options, tgn};

type Bits = Vec<Vec<u32>>;

/// Bytes of a pinned room that is never too small.
const ROOM: usize = 8 << 20;

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

fn trainer(model: ModelOptions, how: Launching) -> (Trainer, Arc<CudaWork>) {
    let work = CudaWork::new(gpu());
    work.launch_steps(how);
    let options = TrainerOptions { model, gradient_delay_batches: 0, ..options() };
    let mut trainer = Trainer::new(options, &Device::Cuda(work.clone())).unwrap();
    trainer.cache_rows(4 << 10);
    trainer.read_rows_in_place(1 << 20);
    (trainer, work)
}

/// Weights, memory and published rows.
fn learned(trainer: &Trainer, stream: &Stream) -> Bits {
    let weights = trainer.weights().unwrap();
    let mut all: Bits = weights.parameters().iter().map(|(_, values)| bits(values.data())).collect();
    let state = trainer.state();
    let nodes: Vec<NodeId> = (0..state.nodes() as u32).map(NodeId).collect();
    all.extend(nodes.iter().filter_map(|&node| state.memory.row(node)).map(bits));
    let publish = |_, row: &[f32], _| all.push(bits(row));
    trainer.publish_rows(EventTime::MIN, &stream.edge_features, &nodes, publish).unwrap();
    all
}

fn seen(report: &Result<StepReport, TrainError>) -> Bits {
    match report {
        Ok(report) => [&[report.loss][..], &report.positive, &report.negative].map(bits).to_vec(),
        Err(TrainError::NonFinite { .. }) => vec![vec![u32::MAX]],
        Err(error) => panic!("{error}"),
    }
}

/// What makes a run fail.
#[derive(Clone, Copy, PartialEq)]
enum Failure {
    /// Who hears of this batch.
    Heard(usize),
    /// Whoever is to sample this one.
    Source(usize),
}

/// A run over a stream of so many batches as commands make it.
struct Run {
    batches: usize,
    fails: Option<Failure>,
    /// What the steps found, and how many had been launched as graphs when each was heard of.
    found: Bits,
    launched: Vec<u64>,
}

impl Run {
    fn of(batches: usize) -> Self {
        Self { batches, fails: None, found: Vec::new(), launched: Vec::new() }
    }

    fn take(&mut self, trainer: &mut Trainer, work: &CudaWork, stream: &Stream) -> Result<(), TrainError> {
        let Self { batches, fails, found, launched } = self;
        let (mut next, mut heard) = (0, 0);
        let source = |preparer: &Preparer, batch: &mut PreparedBatch| {
            let b = next;
            next += 1;
            if *fails == Some(Failure::Source(b)) {
                return Err(TrainError::OutOfOrder { step: 0 });
            }
            if b >= *batches {
                return Ok(false);
            }
            let (positives, range) = (stream.positives(b), b * BATCH..(b + 1) * BATCH);
            let negatives = Negatives { src: positives.src, dst: &stream.against[range] };
            let mode = match b {
                6 => StepMode::StateOnly,
                9 => StepMode::Score,
                _ => StepMode::Train,
            };
            preparer.sample(&stream.world(b, Sight::BeforeBatch), &positives, &negatives, mode, batch)?;
            Ok(true)
        };
        let each = |turn: Turn<'_>| {
            found.extend(seen(&Ok(turn.report)));
            launched.push(work.recorded().launched);
            heard += 1;
            match *fails == Some(Failure::Heard(heard - 1)) {
                true => Err(TrainError::OutOfOrder { step: 0 }),
                false => Ok(()),
            }
        };
        let world = stream.world(0, Sight::Everything);
        Lookahead::new(Helper::new()).run(trainer, &world, source, each)
    }
}

/// The steps of such a run, with a pinned room of so many bytes at first.
fn look_ahead(model: ModelOptions, how: Launching, batches: usize, room: usize) -> (Bits, RecorderCounts) {
    let (stream, (mut trainer, work)) = (Stream::new(batches), trainer(model, how));
    work.set_staging(room);
    let mut run = Run::of(batches);
    run.take(&mut trainer, &work, &stream).unwrap();
    run.found.extend(learned(&trainer, &stream));
    // A step that was recorded ahead has begun before anybody hears of the one before it.
    let began = run.launched[batches - 2] == run.launched[batches - 1];
    assert!(real_gpu().is_none() || how == Launching::Auto || began == (how == Launching::Ahead));
    (run.found, work.recorded())
}

#[test]
fn steps_recorded_ahead_are_those_recorded_in_their_turn() {
    let models: [ModelOptions; 4] = [
        tgn().into(),
        TgnOptions { edge_feature_dim: 0, node_feature_dim: 0, ..tgn() }.into(),
        small_mixer().into(),
        small_tgat().into(),
    ];
    for model in models {
        let [(expected, graphs), (found, counts)] =
            [Launching::Graph, Launching::Ahead].map(|how| look_ahead(model, how, 16, ROOM));
        assert!(found == expected, "{}: bit for bit", model.name());
        println!("{}: {counts:?}", model.name());
        // The first two batches are not known early, and two are no steps that learn.
        let ahead = if real_gpu().is_some() { 10 } else { 0 };
        assert!(graphs.ahead == 0 && counts.ahead >= ahead, "{counts:?}");
        assert!(counts.refused == 0 && counts.failed == 0, "{counts:?}");
    }
}

#[test]
fn a_step_recorded_ahead_that_outgrows_the_pinned_room_is_recorded_in_its_turn() {
    let [(expected, _), (found, counts)] = [(Launching::Graph, ROOM), (Launching::Ahead, 1 << 12)]
        .map(|(how, room)| look_ahead(tgn().into(), how, 16, room));
    assert!(found == expected, "bit for bit");
    println!("{counts:?}");
    assert!(real_gpu().is_none() || counts.failed > 0 && counts.ahead > 0, "{counts:?}");
}

#[test]
fn a_run_that_fails_leaves_no_step_half_taken() {
    let run = |how, fails| {
        let (stream, (mut trainer, work)) = (Stream::new(16), trainer(tgn().into(), how));
        let mut run = Run { fails: Some(fails), ..Run::of(16) };
        run.take(&mut trainer, &work, &stream).unwrap_err();
        // Another run begins with batches of its own.
        run.fails = None;
        let steps = trainer.steps();
        run.found.clear();
        run.take(&mut trainer, &work, &stream).unwrap();
        run.found.extend(learned(&trainer, &stream));
        (steps, run.found)
    };
    // The step behind the seventh batch, which is no step that learns, is recorded in its turn. A batch is sampled three
    // steps before its own.
    let begun = u64::from(real_gpu().is_some());
    for (fails, taken) in [
        (Failure::Heard(3), 4 + begun),
        (Failure::Heard(6), 7),
        (Failure::Heard(12), 13 + begun),
        (Failure::Source(13), 11 + begun),
    ] {
        let (steps, found) = run(Launching::Ahead, fails);
        assert_eq!(steps, taken);
        let expected = run(Launching::Graph, Failure::Heard(steps as usize - 1));
        assert!(expected == (steps, found), "{taken} steps: bit for bit");
    }
}

#[test]
fn nothing_comes_before_a_step_that_has_begun() {
    let (stream, (mut trainer, _)) = (Stream::new(8), trainer(tgn().into(), Launching::Ahead));
    let world = stream.world(0, Sight::BeforeBatch);
    let mut batch = prepared(&trainer, (&stream, &world), 0, None);
    for b in 0..7 {
        let next = prepared(&trainer, (&stream, &world), b + 1, Some(&batch));
        trainer.step_and_begin(&batch, Some(&next)).unwrap();
        // Of the first steps nobody knows when the stream began.
        if b > 4 && real_gpu().is_some() {
            let other = prepared(&trainer, (&stream, &world), 0, None);
            for batch in [&other, &next] {
                trainer.score_prepared(batch).expect_err("it is scored by weights that are gone");
                trainer.replay_prepared(batch, 1).map(drop).expect_err("it goes first");
            }
            trainer.step_prepared(&other).map(drop).expect_err("it goes first");
            trainer.finish([&other]).expect_err("it is of another batch");
        }
        batch = next;
    }
    assert_eq!(trainer.steps(), 7);
    trainer.finish([&batch]).unwrap();
    assert_eq!(trainer.steps(), if real_gpu().is_some() { 8 } else { 7 });
    trainer.finish([&batch]).unwrap();
    let other = prepared(&trainer, (&stream, &world), 1, None);
    trainer.score_prepared(&other).unwrap();
}

#[test]
fn ways_of_launching_that_are_tried_in_turns_compute_the_same() {
    if real_gpu().is_none() {
        return; // It has one way.
    }
    // More than the steps of a trial, and those before it.
    const BATCHES: usize = 88;
    let model = TgnOptions { edge_feature_dim: 0, node_feature_dim: 0, ..tgn() };
    let [(expected, _), (found, counts)] =
        [Launching::Graph, Launching::Auto].map(|how| look_ahead(model.into(), how, BATCHES, ROOM));
    assert!(found == expected, "bit for bit");
    assert!(counts.ahead > 20 && counts.direct >= 16 && counts.launched > counts.ahead + 12, "{counts:?}");
}

/// A batch of the stream, prepared to be trained on behind what the trainer has learned and the batch `before`.
pub fn prepared(
    trainer: &Trainer,
    (stream, world): (&Stream, &World<'_>),
    b: usize,
    before: Option<&PreparedBatch>,
) -> PreparedBatch {
    prepared_as(StepMode::Train, (trainer, &trainer.preparer().publishing()), (stream, world), b, before)
}

/// The same by a preparer, for a step in another mode.
fn prepared_as(
    mode: StepMode,
    (trainer, preparer): (&Trainer, &Preparer),
    (stream, world): (&Stream, &World<'_>),
    b: usize,
    before: Option<&PreparedBatch>,
) -> PreparedBatch {
    let (positives, mut batch) = (stream.positives(b), PreparedBatch::default());
    let negatives = Negatives { src: positives.src, dst: &stream.against[b * BATCH..(b + 1) * BATCH] };
    preparer.sample(world, &positives, &negatives, mode, &mut batch).unwrap();
    let (mailbox, left) = (&trainer.state().mailbox, |node| before.and_then(|batch| batch.leaves(node)));
    preparer.expect(|node| left(node).or_else(|| mailbox.pending_event(node)), &mut batch);
    preparer.gather(world, &mut batch).unwrap();
    batch
}

/// Batches behind whose steps something happens.
const BETWEEN: [usize; 10] = [2, 4, 6, 8, 10, 12, 14, 15, 16, 18];

/// What happens behind the step of batch `b`, one of [`BETWEEN`]. `placed` is a version that is kept on the GPU.
fn between(
    trainer: &mut Trainer,
    stream: &Stream,
    (b, batch): (usize, &PreparedBatch),
    placed: &mut Option<Arc<Model>>,
) -> Bits {
    match b {
        2 => *placed = Some(trainer.place(&trainer.weights().unwrap())),
        4 => drop(trainer.forget(&[3, 20].map(NodeId))),
        6 => {
            let weights = trainer.weights().unwrap();
            trainer.set_weights(&weights).unwrap();
        }
        8 | 18 => {
            let other = prepared(trainer, (stream, &stream.world(b + 2, Sight::BeforeBatch)), b + 2, None);
            let version = placed.as_deref().unwrap();
            let scores = [trainer.score_prepared(&other), trainer.score_prepared_by(version, &other)];
            return scores.map(|scores| bits(&scores.unwrap().0)).to_vec();
        }
        10 => {
            let mut rows = Vec::new();
            let publish = |_, row: &[f32], _| rows.push(bits(row));
            trainer.publish_prepared(trainer.model(), batch, publish).unwrap();
            return rows;
        }
        12 => {
            let state = trainer.state().clone();
            trainer.set_state(state);
        }
        14 => {
            let other = prepared(trainer, (stream, &stream.world(2, Sight::BeforeBatch)), 2, None);
            return seen(&trainer.replay_prepared(&other, 7));
        }
        15 => trainer.restore_rows(),
        16 => return learned(trainer, stream),
        b => assert!(!BETWEEN.contains(&b)),
    }
    Vec::new()
}

/// Steps with much between them, and in the end values that are not finite.
fn interrupted(how: Launching, later: bool) -> (Bits, RecorderCounts) {
    const BATCHES: usize = 26;
    let (stream, (mut trainer, work)) = (Stream::new(BATCHES), trainer(tgn().into(), how));
    for event in [20 * BATCH + 3, 21 * BATCH + 9] {
        stream.edge_features.set(event as u64, &[f32::NAN, 0.0]).unwrap();
    }
    let (mut all, mut placed) = (Vec::new(), None);
    let prepare = |trainer: &Trainer, b: usize, before: Option<&PreparedBatch>| {
        prepared(trainer, (&stream, &stream.world(b, Sight::BeforeBatch)), b, before)
    };
    let mut batch = prepare(&trainer, 0, None);
    for b in 0..BATCHES {
        let next = (b + 1 < BATCHES).then(|| prepare(&trainer, b + 1, Some(&batch)));
        let known = next.as_ref().filter(|_| later);
        if !BETWEEN.contains(&b) {
            // Nothing comes between.
            all.extend(seen(&trainer.step_and_begin(&batch, known)));
            let Some(next) = next else { break };
            batch = next;
            continue;
        }
        all.extend(seen(&trainer.step_before(&batch, known)));
        all.extend(between(&mut trainer, &stream, (b, &batch), &mut placed));
        let Some(next) = next else { break };
        // A batch whose messages are others now is prepared again.
        let is_for = trainer.score_prepared(&next).is_ok();
        batch = if is_for { next } else { prepare(&trainer, b + 1, None) };
    }
    all.extend(learned(&trainer, &stream));
    (all, work.recorded())
}

#[test]
fn a_step_recorded_ahead_is_dropped_where_something_came_between() {
    let (expected, _) = interrupted(Launching::Graph, false);
    let (found, counts) = interrupted(Launching::Ahead, true);
    for (place, (found, expected)) in found.iter().zip(&expected).enumerate() {
        assert!(found == expected, "value {place} of {}", expected.len());
    }
    println!("{counts:?}");
    let most = if real_gpu().is_some() { 6..25 } else { 0..1 };
    assert!(most.contains(&counts.ahead) && counts.refused == 0, "{counts:?}");
}

/// Steps as a daemon takes them: of each batch the scores without dropout count, the next one gets ready meanwhile, and
/// rows of its nodes are published behind it. What they found and published.
fn published(model: ModelOptions, how: Launching) -> (Bits, RecorderCounts) {
    const BATCHES: usize = 20;
    let (stream, (mut trainer, work)) = (Stream::new(BATCHES), trainer(model, how));
    // A step whose loss is not finite, when the next one is recorded.
    stream.edge_features.set((15 * BATCH + 3) as u64, &[f32::NAN, 0.0]).unwrap();
    let prepare = |trainer: &Trainer, b: usize, before: Option<&PreparedBatch>| {
        let mode = if b == 8 { StepMode::Score } else { StepMode::Train };
        let preparer = trainer.preparer().publishing();
        let world = stream.world(b, Sight::BeforeBatch);
        prepared_as(mode, (trainer, &preparer), (&stream, &world), b, before)
    };
    let (mut all, mut batch) = (Vec::new(), prepare(&trainer, 0, None));
    for b in 0..BATCHES {
        if b % 4 == 2 {
            // As the gate does.
            all.push(bits(&trainer.score_prepared(&batch).unwrap().0));
        }
        let next = OnceCell::new();
        let mut get_ready = |trainer: &mut Trainer| {
            (b + 1 < BATCHES).then(|| (next.get_or_init(|| prepare(trainer, b + 1, Some(&batch))), 0.0))
        };
        let report = trainer.test_and_step_while(&batch, Meanwhile::getting_ready(Some(&mut get_ready)));
        all.extend(seen(&report));
        let publish = |_, row: &[f32], _| all.push(bits(row));
        trainer.publish_prepared(trainer.model(), &batch, publish).unwrap();
        let Some(mut next) =
            next.into_inner().or_else(|| (b + 1 < BATCHES).then(|| prepare(&trainer, b + 1, None)))
        else {
            break;
        };
        assert!(trainer.is_ready(&next), "batch {}", b + 1);
        if b == 12 {
            // All of its nodes: their messages wait no more.
            drop(trainer.forget(batch.touched()));
            let reads_messages = trainer.model().needs().memory_dim > 0;
            assert!(!trainer.has_recorded(&next) && trainer.is_ready(&next) != reads_messages);
            next = prepare(&trainer, b + 1, None);
        }
        batch = next;
    }
    all.extend(learned(&trainer, &stream));
    (all, work.recorded())
}

#[test]
fn steps_recorded_ahead_are_tested_and_published_as_in_their_turn() {
    for model in [tgn().into(), TgnOptions { node_feature_dim: 0, ..tgn() }.into(), small_tgat().into()] {
        let [(expected, graphs), (found, counts)] =
            [Launching::Graph, Launching::Ahead].map(|how| published(model, how));
        assert!(found == expected, "{}: bit for bit", model.name());
        println!("{}: {counts:?}", model.name());
        // It is not known when the stream began before some batches are learned; one is not learned from, one comes behind
        // a step that failed, and one behind a deletion.
        let ahead = if real_gpu().is_some() { 14 } else { 0 };
        assert!(graphs.ahead == 0 && counts.ahead >= ahead, "{counts:?}");
        assert!(counts.refused == 0 && counts.failed == 0, "{counts:?}");
    }
}

/// Steps over events of which one, that nothing else is near, has no finite features: its nodes keep their memory at the
/// next event, which is not scored, and are met again in the batch after that.
fn refused(how: Launching, later: bool) -> Bits {
    const BATCHES: usize = 8;
    let usual = Stream::new(BATCHES);
    let (mut src, mut dst) = (usual.src.clone(), usual.dst.clone());
    for event in 0..src.len() {
        // Nobody else is a source of the last node.
        src[event] = NodeId(src[event].0.min(SOURCES - 2));
        dst[event] = NodeId(dst[event].0.max(SOURCES));
    }
    for b in 3..BATCHES {
        (src[b * BATCH], dst[b * BATCH]) = (NodeId(SOURCES - 1), NodeId(SOURCES - 1));
    }
    let stream = Stream::over(src, dst, usual.times.clone(), usual.against.clone());
    stream.edge_features.set((4 * BATCH) as u64, &[f32::NAN, 0.0]).unwrap();
    let model =
        TgnOptions { embedding: Embedding::Identity, embedding_dim: 12, node_feature_dim: 0, ..tgn() };
    let (mut trainer, _) = trainer(model.into(), how);
    let mut all = Vec::new();
    let prepare = |trainer: &Trainer, b: usize, before: Option<&PreparedBatch>| {
        // A gradient would not be finite.
        let (scored, mode) = match b {
            5 => (Some((1..BATCH as u32).collect()), StepMode::Score),
            _ => (None, StepMode::Train),
        };
        let preparer = trainer.preparer().scoring(scored);
        let world = stream.world(b, Sight::BeforeBatch);
        prepared_as(mode, (trainer, &preparer), (&stream, &world), b, before)
    };
    let mut batch = prepare(&trainer, 0, None);
    for b in 0..BATCHES {
        let next = (b + 1 < BATCHES).then(|| prepare(&trainer, b + 1, Some(&batch)));
        let report = trainer.step_and_begin(&batch, next.as_ref().filter(|_| later)).unwrap();
        assert_eq!(report.refused_rows, usize::from(b == 5), "batch {b}");
        all.extend(seen(&Ok(report)));
        let Some(next) = next else { break };
        batch = next;
    }
    all.extend(learned(&trainer, &stream));
    all
}

#[test]
fn a_step_recorded_ahead_is_dropped_where_memory_was_refused() {
    assert!(refused(Launching::Ahead, true) == refused(Launching::Graph, false), "bit for bit");
}

/// Steps of which one has nothing but nodes that are new: nobody writes gradients of the memory's updater. `how_far` is
/// the number of the first of them.
fn new_nodes(how: Launching, later: bool, how_far: u32) -> (Bits, RecorderCounts) {
    const BATCHES: usize = 6;
    let usual = Stream::new(BATCHES);
    let (mut src, mut dst, mut against) = (usual.src.clone(), usual.dst.clone(), usual.against.clone());
    for event in 4 * BATCH..5 * BATCH {
        let node = how_far + 3 * (event % BATCH) as u32;
        (src[event], dst[event], against[event]) = (NodeId(node), NodeId(node + 1), NodeId(node + 2));
    }
    let stream = Stream::over(src, dst, usual.times.clone(), against);
    let model = TgnOptions { node_feature_dim: 0, ..tgn() };
    let (mut trainer, work) = trainer(model.into(), how);
    let world = |b| stream.world(b, Sight::BeforeBatch);
    let mut all = Vec::new();
    let mut batch = prepared(&trainer, (&stream, &world(0)), 0, None);
    for b in 0..BATCHES {
        let next =
            (b + 1 < BATCHES).then(|| prepared(&trainer, (&stream, &world(b + 1)), b + 1, Some(&batch)));
        let step = if b == 3 { Trainer::step_before } else { Trainer::step_and_begin };
        all.extend(seen(&step(&mut trainer, &batch, next.as_ref().filter(|_| later))));
        if b == 3 {
            // The step of the next one was recorded and is not launched.
            trainer.set_state(trainer.state().clone());
        }
        let Some(next) = next else { break };
        batch = next;
    }
    all.extend(learned(&trainer, &stream));
    (all, work.recorded())
}

#[test]
fn steps_recorded_ahead_and_dropped_leave_no_gradient() {
    // The mirror of memory has room for 1,024 nodes at first.
    for how_far in [100, 1_500] {
        let [(expected, _), (found, counts)] = [(Launching::Graph, false), (Launching::Ahead, true)]
            .map(|(how, later)| new_nodes(how, later, how_far));
        assert!(found == expected, "{how_far}: bit for bit");
        println!("{counts:?}");
        assert!(real_gpu().is_none() || (1..5).contains(&counts.ahead), "{counts:?}");
    }
}

/// A step that uploads, copies a constant and gives memory back; what it leaves.
fn asks(
    work: &Arc<CudaWork>,
    number: f32,
    constant: &Arc<[f32]>,
) -> (PooledBuffer<f32>, Arc<CudaBuffer<f32>>) {
    let mut passing = work.pooled::<f32>(64);
    passing.clear();
    drop(passing);
    (work.upload(&[number; 64]), work.constant(constant).unwrap())
}

#[test]
fn what_a_step_recorded_ahead_uses_is_nobody_elses_until_it_is_launched() {
    let (work, constant) = (CudaWork::new(gpu()), Arc::<[f32]>::from([3.0; 64]));
    // Some memory for all to take from.
    drop((0..3).map(|_| work.pooled::<f32>(64)).collect::<Vec<_>>());
    if real_gpu().is_none() {
        return assert!(work.record_ahead(|| ()).is_none(), "a simulated GPU does everything at once");
    }
    for launched in [false, true] {
        let ahead = work.record_ahead(|| asks(&work, 1.0, &constant)).unwrap();
        // Held until the step is launched.
        let others: Vec<PooledBuffer<f32>> = (0..4).map(|i| work.upload(&[10.0 + i as f32; 64])).collect();
        let copy = work.constant(&constant).unwrap();
        assert_eq!(copy.copy_front_to_host(64).unwrap(), [3.0; 64], "it was not copied by a step that waits");
        work.check().unwrap();
        if launched {
            let (left, own) = work.launch_ahead(ahead).unwrap();
            assert_eq!(left.read(64), [1.0; 64]);
            assert_eq!(own.copy_front_to_host(64).unwrap(), [3.0; 64]);
        } else {
            drop(ahead);
        }
        for (i, other) in others.iter().enumerate() {
            assert_eq!(other.read(64), [10.0 + i as f32; 64], "other {i}, {launched}");
        }
        work.check().unwrap();
        let again = work.record(|| asks(&work, 2.0, &constant));
        assert_eq!(
            (again.0.read(64), again.1.copy_front_to_host(64).unwrap()),
            (vec![2.0; 64], vec![3.0; 64])
        );
        work.check().unwrap();
    }
    // One that was recorded before another step is not launched.
    let ahead = work.record_ahead(|| asks(&work, 4.0, &constant)).unwrap();
    let other = work.record(|| asks(&work, 5.0, &constant));
    assert!(work.launch_ahead(ahead).is_none());
    assert_eq!(other.0.read(64), [5.0; 64]);
    work.check().unwrap();
    let counts = work.recorded();
    assert_eq!((counts.ahead, counts.failed, counts.refused), (1, 0, 0), "{counts:?}");
}

#[test]
fn a_recording_ahead_that_is_too_large_is_none_and_the_next_one_is() {
    let work = CudaWork::new(gpu());
    work.set_staging(1 << 16);
    if real_gpu().is_none() {
        return; // It records nothing ahead.
    }
    let many = vec![7.0_f32; 1 << 15];
    let small = work.record(|| work.upload(&[1.0_f32; 64]));
    assert!(work.record_ahead(|| work.upload(&many)).is_none(), "more than the room");
    assert_eq!(small.read(64), [1.0; 64]);
    work.check().unwrap();
    let large = work.record_ahead(|| work.upload(&many)).unwrap();
    // Values that somebody waits for are not lost with the room that they came through.
    let pending = small.fetch(64);
    let large = work.launch_ahead(large).unwrap();
    assert!(work.record_ahead(|| ()).is_none(), "somebody waits for values");
    work.check().unwrap();
    assert_eq!((pending.wait(), large.read(1 << 15)), (vec![1.0; 64], many));
    work.check().unwrap();
    // A fault of a recording is not one of what was asked for before.
    assert!(work.record_ahead(|| work.refuse("a test")).is_none());
    work.check().unwrap();
    assert!(work.record_ahead(|| ()).is_none(), "none is recorded ahead for a while");
}
