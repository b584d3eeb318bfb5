//! Training on a GPU is training on the CPU: the same trainer with another device. What it computes is the same
//! but for rounding: losses, scores, weights, memory, published rows.

use evergraph::device::Device;
use evergraph::device::cuda::{CudaWork, Launching};
use evergraph::event::{EventTime, NodeId};
use evergraph::feature::cache::GpuRowCounts;
use evergraph::model::tgn::{Aggregator, Updater};
use evergraph::model::{
    EdgeTypes, GatOptions, GraphMixerOptions, ModelOptions, RowReads, TgatOptions, TgnOptions,
};
use evergraph::train::lookahead::{Helper, Lookahead, Turn};
use evergraph::train::{Negatives, PreparedBatch, Preparer, StepMode, TrainError, Trainer, TrainerOptions};

use super::{fresh_gpu, gpu, small_gpu};
use crate::shards::tested_as_apart;
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

/// A small GraphMixer with features of edges.
pub fn small_mixer() -> GraphMixerOptions {
    GraphMixerOptions {
        embedding_dim: 12,
        time_dim: 8,
        fanout: 6,
        blocks: 2,
        edge_feature_dim: 2,
        ..GraphMixerOptions::default()
    }
}

/// A small TGAT with features of edges.
pub fn small_tgat() -> TgatOptions {
    TgatOptions {
        embedding_dim: 12,
        time_dim: 8,
        heads: 2,
        fanout: 3,
        layers: 2,
        edge_feature_dim: 2,
        ..TgatOptions::default()
    }
}

/// A device of its own on the GPU of all tests.
pub fn on_gpu() -> Device {
    Device::Cuda(CudaWork::new(gpu()))
}

/// How much of its step a batch gets: now and then one is only scored, or only remembered.
fn mode(batch: usize) -> StepMode {
    match batch % 7 {
        3 => StepMode::StateOnly,
        5 => StepMode::Score,
        _ => StepMode::Train,
    }
}

/// Takes the step of batch `b`.
pub fn step(trainer: &mut Trainer, stream: &Stream, b: usize) -> evergraph::train::StepReport {
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
    // A GPU does not defer gradients.
    let model = model.into();
    let options = TrainerOptions { model, gradient_delay_batches: 0, ..options() };
    let stream = Stream::new(steps);
    let mut here = Trainer::new(options, &Device::Cpu).unwrap();
    let mut there = Trainer::new(options, &on_gpu()).unwrap();
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
fn twenty_steps_of_tgn_with_features_of_nodes_and_edges_are_the_cpus() {
    follow(tgn(), 20);
}

#[test]
fn memory_stays_on_the_gpu_from_step_to_step() {
    let stream = Stream::new(2);
    let mut trainer = Trainer::new(options(), &on_gpu()).unwrap();
    (0..2).for_each(|b| drop(step(&mut trainer, &stream, b)));
    assert!(trainer.state().mirrored() >= trainer.state().nodes(), "{}", trainer.state().mirrored());
    // A copy of the state has none, and the CPU wants none.
    assert_eq!(trainer.state().clone().mirrored(), 0);
}

#[test]
fn steps_of_the_usual_widths_are_the_cpus() {
    follow(TgnOptions { edge_feature_dim: 2, ..TgnOptions::default() }, 3);
}

#[test]
fn means_of_messages_and_a_plain_cell_are_the_cpus() {
    let plain = TgnOptions { updater: Updater::Rnn, aggregator: Aggregator::Mean, ..tgn() };
    follow(plain, 8);
}

#[test]
fn types_of_edges_are_the_cpus() {
    follow(TgnOptions { edge_types: EdgeTypes::new(3, 4), edge_feature_dim: 1, ..tgn() }, 8);
}

#[test]
fn tgat_with_and_without_features_of_nodes_is_the_cpus() {
    follow(small_tgat(), 8);
    follow(TgatOptions { node_feature_dim: 3, ..small_tgat() }, 4);
}

#[test]
fn graphmixer_with_and_without_features_of_nodes_is_the_cpus() {
    follow(small_mixer(), 8);
    follow(GraphMixerOptions { node_feature_dim: 3, ..small_mixer() }, 4);
}

/// What steps left behind: the numbers of each of them, and the weights.
struct Left {
    numbers: Vec<Vec<f32>>,
    weights: Vec<Vec<f32>>,
    counts: Option<GpuRowCounts>,
    reads: RowReads,
}

/// Bytes for edge rows: of the GPU's memory, where they stay, and of the host's, where it reads them in place.
#[derive(Clone, Copy, Debug)]
struct Room {
    kept: u64,
    in_place: u64,
}

impl Left {
    fn of(numbers: Vec<Vec<f32>>, trainer: &Trainer) -> Self {
        let weights = trainer.weights().unwrap();
        let weights = weights.parameters().iter().map(|(_, values)| values.data().to_vec()).collect();
        let reads = trainer.row_reads().unwrap();
        Self { numbers, weights, counts: trainer.cached_rows(), reads }
    }
}

/// A trainer on a GPU with this room for edge rows.
fn keeping(model: ModelOptions, room: Room) -> Trainer {
    let mut trainer = Trainer::new(TrainerOptions { model, ..options() }, &on_gpu()).unwrap();
    trainer.cache_rows(room.kept);
    trainer.read_rows_in_place(room.in_place);
    trainer
}

/// Scores each batch, takes its step and publishes what it touched; some rows are cleared on the way.
fn read_batches(model: ModelOptions, steps: usize, room: Room) -> Left {
    let (stream, mut trainer) = (Stream::new(steps), keeping(model, room));
    let (mut numbers, mut batch) = (Vec::new(), PreparedBatch::default());
    for b in 0..steps {
        if b == steps - 4 {
            let first = (b * BATCH) as u64;
            (first - 30..first).for_each(|edge| stream.edge_features.clear(edge));
        }
        let (world, positives) = (stream.world(b, Sight::Everything), stream.positives(b));
        let negatives = Negatives { src: positives.src, dst: &stream.against[b * BATCH..(b + 1) * BATCH] };
        let preparer = trainer.preparer().publishing();
        preparer.sample(&world, &positives, &negatives, mode(b), &mut batch).unwrap();
        preparer.expect(|node| trainer.state().mailbox.pending_event(node), &mut batch);
        preparer.gather(&world, &mut batch).unwrap();
        if mode(b) != StepMode::StateOnly {
            numbers.push(trainer.score_prepared(&batch).unwrap().0);
        }
        let (node, time) = (stream.src[3], stream.times[b * BATCH]);
        numbers.push(trainer.score_candidates(&world, node, time, &stream.dst[..7]).unwrap());
        let report = trainer.step_prepared(&batch).unwrap();
        numbers.extend([vec![report.loss], report.positive, report.negative]);
        trainer.publish_prepared(trainer.model(), &batch, |_, row, _| numbers.push(row.to_vec())).unwrap();
    }
    Left::of(numbers, &trainer)
}

/// The same with rows of the next batch known, and without scores.
fn look_ahead(model: ModelOptions, steps: usize, room: Room) -> Left {
    let (stream, mut trainer) = (Stream::new(steps), keeping(model, room));
    let (mut numbers, mut next) = (Vec::new(), 0);
    let source = |preparer: &Preparer, batch: &mut PreparedBatch| {
        let b = next;
        next += 1;
        if b >= steps {
            return Ok(false);
        }
        let (world, positives) = (stream.world(b, Sight::BeforeBatch), stream.positives(b));
        let negatives = Negatives { src: positives.src, dst: &stream.against[b * BATCH..(b + 1) * BATCH] };
        preparer.sample(&world, &positives, &negatives, mode(b), batch).map(|()| true)
    };
    let each = |turn: Turn<'_>| {
        numbers.extend([vec![turn.report.loss], turn.report.positive, turn.report.negative]);
        Ok::<(), TrainError>(())
    };
    let world = stream.world(0, Sight::Everything);
    Lookahead::new(Helper::in_turn()).run(&mut trainer, &world, source, each).unwrap();
    Left::of(numbers, &trainer)
}

/// Edge rows that are kept: none, too few for most batches, hardly more than a batch reads, plenty.
const KEPT: [u64; 4] = [0, 60, 100, 1 << 17];

/// Edge rows that are read in place: the newest third of them, and all.
const IN_PLACE: [u64; 2] = [128, 1 << 17];

/// Steps of each run.
const STEPS: usize = 11;

/// `ahead`: whether `read` knows the next batch; `briefly`: with fewer sizes, where all are of another model.
fn keep_rows(
    model: impl Into<ModelOptions>,
    read: fn(ModelOptions, usize, Room) -> Left,
    ahead: bool,
    briefly: bool,
) {
    let model = model.into();
    let row_bytes = 4 * (2 - model.needs().edge_types.min(1)) as u64;
    let room = |kept, in_place| Room { kept: kept * row_bytes, in_place: in_place * row_bytes };
    let [none, few, some, all] = KEPT.map(|kept| read(model, STEPS, room(kept, 0)));
    assert!(none.reads.on_device == 0 && none.reads.on_host > 30 * STEPS as u64, "{:?}", none.reads);
    let reads = none.reads.on_host;
    for in_place in IN_PLACE.into_iter().skip(usize::from(briefly)) {
        let mut restored = 0;
        let kept = if in_place == IN_PLACE[1] && !briefly { &KEPT[1..] } else { &KEPT[2..3] };
        for &kept in kept.iter().chain(&KEPT[..1]) {
            let room = room(kept, in_place);
            let Left { numbers, weights, counts, reads: RowReads { on_device, on_host } } =
                read(model, STEPS, room);
            println!("{room:?}: {on_device} rows on the GPU, {on_host} on the host, {counts:?}");
            assert!(numbers == none.numbers && weights == none.weights, "{room:?}: bit for bit");
            assert_eq!(on_device + on_host, reads, "{room:?}");
            assert!(on_device > 10 * STEPS as u64 && (on_host == 0) == (in_place == IN_PLACE[1]), "{room:?}");
            restored += counts.map_or(0, |counts| counts.restored);
        }
        let restores = if in_place == IN_PLACE[1] { restored > 0 } else { ahead };
        assert!(restores == ahead && (ahead || restored == 0), "{in_place} in place: {restored} restored");
    }
    assert_eq!(none.counts, None);
    for (kept, left) in [("few", &few), ("some", &some), ("all", &all)] {
        assert!(left.numbers == none.numbers && left.weights == none.weights, "{kept}: bit for bit");
    }
    let [few, some, all] = [few, some, all].map(|left| left.counts.unwrap());
    let (rows, message) =
        (|counts: GpuRowCounts| counts.hits + counts.misses, format!("{few:?}, {some:?}, {all:?}"));
    assert!(rows(few) == rows(all) && rows(some) == rows(all) && all.restored == 0, "{message}");
    assert!(few.hits < all.hits && some.hits < all.hits && all.hits > all.misses, "{message}");
    assert!(some.hits > 0 && few.bypassed > 0 && all.bypassed == 0, "{message}");
}

#[test]
fn rows_of_edges_that_stay_on_a_gpu_change_no_bit() {
    keep_rows(tgn(), read_batches, false, true);
}

#[test]
fn rows_of_edges_that_stay_for_the_next_batch_change_no_bit() {
    keep_rows(tgn(), look_ahead, true, false);
}

#[test]
fn rows_of_edges_with_types_are_read_in_place() {
    let types = EdgeTypes::new(1, 4);
    keep_rows(TgnOptions { edge_types: types, edge_feature_dim: 1, ..tgn() }, look_ahead, true, true);
}

#[test]
fn rows_of_edges_stay_for_models_without_memory() {
    keep_rows(small_tgat(), look_ahead, true, true);
}

#[test]
fn a_trainer_goes_on_from_its_bytes_on_either_device() {
    let stream = Stream::new(8);
    let mut there = Trainer::new(options(), &on_gpu()).unwrap();
    (0..4).for_each(|b| drop(step(&mut there, &stream, b)));
    let mut bytes = Vec::new();
    there.save(&mut bytes).unwrap();
    let load = |device: &Device| Trainer::load(options(), device, &mut bytes.as_slice()).unwrap();
    let (mut again, mut here) = (load(&on_gpu()), load(&Device::Cpu));
    for b in 4..8 {
        let straight = step(&mut there, &stream, b);
        assert_eq!(step(&mut again, &stream, b).positive, straight.positive, "step {b}: bit for bit");
        near(&step(&mut here, &stream, b).positive, &straight.positive, &format!("step {b}"));
    }
    same_state(&here, &there, &stream);
}

#[test]
fn a_steady_step_asks_a_gpu_for_no_memory() {
    let (cuda, stream) = (fresh_gpu(), Stream::new(12));
    let device = Device::Cuda(CudaWork::in_classes(cuda.clone()));
    let mut trainer = Trainer::new(options(), &device).unwrap();
    (0..6).for_each(|_| drop(step(&mut trainer, &stream, 0)));
    let before = cuda.memory().used;
    (0..3).for_each(|_| drop(step(&mut trainer, &stream, 0)));
    assert_eq!(cuda.memory().used, before);
}

#[test]
fn a_loss_that_is_not_finite_moves_no_weight_and_the_batch_is_remembered() {
    let stream = Stream::new(3);
    let mut trainer = Trainer::new(options(), &on_gpu()).unwrap();
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
fn what_a_gpu_does_not_compute_is_refused_in_words() {
    let device = on_gpu();
    let refused = |model: ModelOptions| {
        let options = TrainerOptions { model, ..options() };
        Trainer::new(options, &device).err().unwrap().to_string()
    };
    for (model, why) in [
        (GatOptions::default().into(), "no kernels"),
        (TgnOptions::jodie().into(), "gaps"),
        (TgnOptions { fanout: 40, ..tgn() }.into(), "40 slots"),
    ] {
        let message = refused(model);
        assert!(message.contains(why) && message.contains("cpu"), "{message}");
    }
}

#[test]
fn a_step_that_copies_more_than_there_is_pinned_room_for_is_taken_all_the_same() {
    let stream = Stream::new(4);
    let work = CudaWork::in_classes(gpu());
    work.set_staging(1 << 12);
    let mut there = Trainer::new(options(), &Device::Cuda(work.clone())).unwrap();
    let mut here = Trainer::new(options(), &Device::Cpu).unwrap();
    for b in 0..4 {
        let (found, expected) = (step(&mut there, &stream, b), step(&mut here, &stream, b));
        near(&found.positive, &expected.positive, &format!("positives of step {b}"));
    }
    same_state(&there, &here, &stream);
    let counts = work.recorded();
    assert!(counts.failed > 0 && counts.refused == 0, "{counts:?}");
}

#[test]
fn a_step_takes_no_fault_from_what_was_asked_for_before_it() {
    let work = CudaWork::new(small_gpu(1 << 20));
    drop(work.pooled::<u8>(1 << 30));
    assert_eq!(work.record(|| 5), 5);
    assert!(work.check().unwrap_err().to_string().contains("out of memory"));
    work.check().unwrap();
}

#[test]
fn steps_kernel_by_kernel_are_those_of_a_graph() {
    let stream = Stream::new(3);
    let works = [CudaWork::new(gpu()), CudaWork::new(gpu())];
    works[0].launch_steps(Launching::Graph);
    works[1].launch_steps(Launching::Direct);
    let mut trainers = works.clone().map(|work| Trainer::new(options(), &Device::Cuda(work)).unwrap());
    for b in 0..3 {
        let [graph, direct] = &mut trainers;
        assert_eq!(step(graph, &stream, b).positive, step(direct, &stream, b).positive, "step {b}");
    }
    let [graphs, direct] = works.map(|work| work.recorded());
    assert_eq!((graphs.launched + graphs.direct, direct.launched, direct.direct), (3, 0, 3));
}

#[test]
fn gradients_of_weights_are_the_same_one_by_one_and_in_one_launch() {
    let stream = Stream::new(3);
    let models: [ModelOptions; 3] = [tgn().into(), small_tgat().into(), small_mixer().into()];
    for model in models {
        // None at once, those of larger gradients, all.
        let learned = [usize::MAX, 1 << 12, 0].map(|bytes| {
            let work = CudaWork::new(gpu());
            work.compute_alone(bytes);
            let device = Device::Cuda(work.clone());
            let mut trainer = Trainer::new(TrainerOptions { model, ..options() }, &device).unwrap();
            let seen: Vec<Vec<f32>> = (0..3).map(|b| step(&mut trainer, &stream, b).positive).collect();
            let weights = trainer.weights().unwrap();
            let values: Vec<f32> =
                weights.parameters().iter().flat_map(|(_, value)| value.to_vec()).collect();
            let launches = work.cuda().launches().into_iter().map(|(_, count)| count).sum::<u64>();
            (seen, values, launches)
        });
        let [together, some, apart] = &learned;
        assert!((&together.0, &together.1) == (&apart.0, &apart.1), "{}", model.name());
        assert!((&together.0, &together.1) == (&some.0, &some.1), "{}", model.name());
        assert!(together.2 < some.2 && some.2 < apart.2, "{} launches", model.name());
    }
}

#[test]
fn a_batch_is_tested_beside_its_step_on_a_gpu() {
    let stream = Stream::new(5);
    let works = [CudaWork::in_classes(gpu()), CudaWork::in_classes(gpu())];
    // The step outgrows it, while scores are on their way through it.
    works[0].set_staging(1 << 12);
    // Dropout has a step's own scores be others.
    let [mut together, mut apart] = works.map(|work| Trainer::new(options(), &Device::Cuda(work)).unwrap());
    for b in 0..5 {
        let (world, positives) = (stream.world(b, Sight::Everything), stream.positives(b));
        let negatives = Negatives { src: positives.src, dst: &stream.against[b * BATCH..(b + 1) * BATCH] };
        let prepare = |trainer: &Trainer| {
            let mut batch = PreparedBatch::default();
            trainer.prepare(&world, &positives, &negatives, StepMode::Train, &mut batch).unwrap();
            batch
        };
        let [tested, stepped] = tested_as_apart([&mut together, &mut apart], prepare, &format!("step {b}"));
        assert_ne!(tested, stepped, "step {b}");
    }
}

#[test]
fn a_full_gpu_is_told_and_training_goes_on_without_it() {
    let stream = Stream::new(6);
    let device = Device::Cuda(CudaWork::new(small_gpu(700 << 10)));
    let model = TgnOptions { edge_feature_dim: 2, ..TgnOptions::default() };
    let options = TrainerOptions { model: model.into(), ..options() };
    let mut trainer = Trainer::new(options, &device).unwrap();
    let (world, positives) = (stream.world(0, Sight::Everything), stream.positives(0));
    let negatives = Negatives { src: positives.src, dst: &stream.against[..BATCH] };
    let error = trainer.step(&world, &positives, &negatives, StepMode::Train).unwrap_err().to_string();
    assert!(error.contains("out of memory") && error.contains("budget"), "{error}");
    assert_eq!(trainer.leave_gpu().unwrap(), 0);
    let mut straight = Trainer::new(options, &Device::Cpu).unwrap();
    for b in 0..2 {
        assert!(
            step(&mut trainer, &stream, b).loss.is_finite() && step(&mut straight, &stream, b).loss > 0.0
        );
    }
    assert_eq!(trainer.state().nodes(), straight.state().nodes());
}
