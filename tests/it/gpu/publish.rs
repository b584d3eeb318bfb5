//! Rows for readers that a GPU computes behind a step are those of that step, whenever they are waited for.

use evergraph::device::Device;
use evergraph::device::cuda::CudaWork;
use evergraph::event::{EventTime, NodeId};
use evergraph::model::ModelOptions;
use evergraph::train::{ComingRows, Negatives, PreparedBatch, StepMode, Trainer, TrainerOptions};

use super::gpu;
use super::train::small_mixer;
use crate::tgn_stream::{BATCH, Sight, Stream, options, tgn};

/// What readers are handed: nodes, rows and times.
type Handed = Vec<(NodeId, Vec<u32>, EventTime)>;

/// When the rows of a batch are waited for.
#[derive(Clone, Copy, Debug, PartialEq)]
enum When {
    /// By the trainer's own call.
    AtOnce,
    /// By another thread, while the next step is taken.
    Beside,
    /// Behind the next step, when its end has given their room to others.
    Behind,
    /// Those of every second batch never.
    HalfOfThem,
}

fn taken(rows: &ComingRows) -> Handed {
    let (mut handed, values) = (Vec::new(), rows.wait().unwrap());
    let bits = |row: &[f32]| row.iter().map(|value| value.to_bits()).collect();
    rows.hand_over(&values, |node, row, updated| handed.push((node, bits(row), updated)));
    handed
}

fn published(model: ModelOptions, when: When) -> Handed {
    const STEPS: usize = 6;
    let stream = Stream::new(STEPS);
    let work = CudaWork::new(gpu());
    let options = TrainerOptions { model, gradient_delay_batches: 0, ..options() };
    let mut trainer = Trainer::new(options, &Device::Cuda(work)).unwrap();
    trainer.cache_rows(4 << 10);
    trainer.read_rows_in_place(1 << 20);
    let (mut handed, mut batch, mut coming) = (Vec::new(), PreparedBatch::default(), None::<ComingRows>);
    for b in 0..STEPS {
        let (world, positives) = (stream.world(b, Sight::Everything), stream.positives(b));
        let negatives = Negatives { src: positives.src, dst: &stream.against[b * BATCH..(b + 1) * BATCH] };
        let mode = if b == 3 { StepMode::StateOnly } else { StepMode::Train };
        let preparer = trainer.preparer().publishing();
        preparer.sample(&world, &positives, &negatives, mode, &mut batch).unwrap();
        preparer.expect(|node| trainer.state().mailbox.pending_event(node), &mut batch);
        preparer.gather(&world, &mut batch).unwrap();
        let before = coming.take();
        std::thread::scope(|scope| {
            let beside = before.as_ref().filter(|_| when == When::Beside);
            let reader = beside.map(|rows| scope.spawn(|| taken(rows)));
            trainer.step_prepared(&batch).unwrap();
            handed.extend(reader.into_iter().flat_map(|reader| reader.join().unwrap()));
        });
        handed.extend(before.iter().filter(|_| when == When::Behind).flat_map(taken));
        handed.extend(before.iter().filter(|_| when == When::HalfOfThem && b % 2 == 1).flat_map(taken));
        if when == When::AtOnce {
            let bits = |row: &[f32]| row.iter().map(|value| value.to_bits()).collect();
            let publish = |node, row: &[f32], updated| handed.push((node, bits(row), updated));
            trainer.publish_prepared(trainer.model(), &batch, publish).unwrap();
        } else {
            coming = Some(trainer.ask_rows(trainer.model(), &batch).unwrap());
        }
    }
    handed.extend(coming.iter().flat_map(taken));
    handed
}

#[test]
fn rows_of_a_batch_are_the_same_whenever_they_are_waited_for() {
    for model in [tgn().into(), small_mixer().into()] {
        let model: ModelOptions = model;
        let [expected, half] = [When::AtOnce, When::HalfOfThem].map(|when| published(model, when));
        assert!(expected.len() > 40 && half.len() < expected.len(), "{}", model.name());
        for when in [When::Beside, When::Behind] {
            assert!(published(model, when) == expected, "{} {when:?}: bit for bit", model.name());
        }
        assert!(half.iter().all(|row| expected.contains(row)), "{}", model.name());
    }
}
