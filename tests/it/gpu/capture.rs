//! A step that is recorded and launched does what it does when it is asked for directly. What cannot be recorded is
//! refused, on a simulated GPU as well, where a recorded step runs as it is.

use std::panic::{AssertUnwindSafe, catch_unwind};

use evergraph::device::cuda::layers::{Layout, Part, Put, adam, add_rows, relu_backward};
use evergraph::device::cuda::twins::AdamStep;
use evergraph::device::cuda::{
    Arena, Cuda, CudaBuffer, CudaError, Fetched, Recorder, RecorderCounts, Staging,
};

use super::layers::On;
use super::{Draws, fresh_gpu, real_gpu};

const ROWS: usize = 40;
const WIDTH: usize = 19;

/// What steps work on.
struct Learned {
    weights: CudaBuffer<f32>,
    first: CudaBuffer<f32>,
    second: CudaBuffer<f32>,
    gradient: CudaBuffer<f32>,
    list: CudaBuffer<u32>,
}

impl Learned {
    fn new(on: On<'_>) -> Self {
        let zeros = || on.copy(&[0.0; ROWS * WIDTH]);
        let (weights, first, second, gradient) = (zeros(), zeros(), zeros(), zeros());
        Self { weights, first, second, gradient, list: on.copy(&[0; ROWS]) }
    }

    /// Uploads, a buffer that is made and ends within, kernels with numbers and lists of their own, a download. `clear`
    /// is one kernel more.
    fn step(
        &mut self,
        on: On<'_>,
        staging: &mut Staging,
        number: usize,
        clear: bool,
    ) -> Result<Fetched<f32>, CudaError> {
        let mut draws = Draws::new(number as u64);
        let gradient = draws.floats(ROWS * WIDTH, 1.0);
        let list: Vec<u32> = (0..ROWS).map(|_| draws.below(ROWS + 2) as u32).collect();
        staging.upload(&gradient, &mut self.gradient)?;
        staging.upload(&list, &mut self.list)?;
        let mut sums = CudaBuffer::zeros(on.0, on.0.compute(), ROWS * WIDTH, "a test")?;
        let fewer = number / 2;
        let count = ROWS - fewer;
        let layout = Layout::dense(WIDTH);
        let part = Part { table: (&self.gradient, layout), shape: [ROWS, WIDTH], list: Some(&self.list) };
        add_rows(on.context(), part, None, count, Put::ADD, (&mut sums, layout))?;
        if clear {
            relu_backward(on.context(), &mut sums, &self.gradient, ROWS * WIDTH)?;
        }
        let step = AdamStep {
            beta1: 0.9,
            beta2: 0.99,
            size: 0.1 * number as f32,
            root: 1.0,
            eps: 1e-8,
            shrink: 1.0,
        };
        adam(on.context(), step, &mut self.weights, (&mut self.first, &mut self.second), &sums)?;
        staging.download(&self.weights, ROWS * WIDTH - fewer)
    }
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

#[test]
fn recorded_steps_do_what_they_do_directly() {
    let cuda = fresh_gpu();
    let on = On(&cuda);
    let (mut recorded, mut direct) = (Learned::new(on), Learned::new(on));
    let mut staging = Staging::new(&cuda, 1 << 20).unwrap();
    let mut recorder = Recorder::new();
    let before = cuda.memory().used;
    let mut results = Vec::new();
    // Three of one shape with other arguments, one of another, and the first shape again; nobody waits between them.
    for (number, clear) in [(1, false), (2, false), (3, false), (4, true), (5, false)] {
        let result = recorder
            .run(cuda.compute(), || {
                assert!(cuda.compute().is_recorded());
                recorded.step(on, &mut staging, number, clear)
            })
            .unwrap();
        assert!(!cuda.compute().is_recorded());
        results.push((result, direct.step(on, &mut staging, number, clear).unwrap()));
    }
    for (i, (recorded, direct)) in results.iter().enumerate() {
        let (recorded, direct) = (recorded.read(&mut staging).unwrap(), direct.read(&mut staging).unwrap());
        assert_eq!(recorded.len(), ROWS * WIDTH - i.div_ceil(2));
        assert!(recorded.iter().any(|value| *value != 0.0));
        assert_eq!(bits(&recorded), bits(&direct), "step {i}");
    }
    let all = |learned: &Learned| bits(&learned.weights.copy_to_host().unwrap());
    assert_eq!(all(&recorded), all(&direct));
    assert_eq!(cuda.memory().used, before, "what the steps made went back");
    let RecorderCounts { launched, ahead: _, updated, built, direct, failed, refused } = recorder.counts();
    assert_eq!((launched + direct, updated + built, failed, refused), (5, launched, 0, 0));
    assert_eq!(recorder.complaint(), None);
    if is_real() {
        // The second and the third differ by addresses and numbers only; another kernel is another shape.
        assert!(updated >= 1 && built >= 3, "{recorder:?}");
    } else {
        assert_eq!(direct, 5);
    }
}

#[test]
fn memory_that_is_freed_in_a_recorded_step_goes_back_behind_it() {
    let cuda = fresh_gpu();
    let (stream, mut recorder) = (cuda.compute(), Recorder::new());
    let mut old = Some(CudaBuffer::from_slice(&cuda, stream, &[1_u64; 500], "a test").unwrap());
    let made = recorder.run(stream, || {
        let used = cuda.memory().used;
        let mut made = CudaBuffer::<u64>::zeros(&cuda, stream, 500, "a test")?;
        let passing = CudaBuffer::<u64>::zeros(&cuda, stream, 300, "a test")?;
        made.copy_front_from(&passing, 300)?;
        made.copy_front_from(old.as_ref().unwrap(), 100)?;
        old = None;
        drop(passing);
        assert!(cuda.memory().used > used + 4000, "nothing goes back while the step is recorded");
        Ok(made)
    });
    let made = made.unwrap();
    assert_eq!(cuda.memory().used, 4096, "one buffer is left");
    let mut expected = vec![0; 500];
    expected[..100].fill(1);
    assert_eq!(made.copy_to_host().unwrap(), expected);
    assert!(made.stream().is(stream));
    drop(made);
    assert_eq!(cuda.memory().used, 0);
    // Pinned memory may go before what reads it has happened.
    let mut to = CudaBuffer::<u64>::zeros(&cuda, stream, 3, "a test").unwrap();
    let mut staging = Staging::new(&cuda, 1).unwrap();
    recorder
        .run(stream, || {
            staging.upload(&[4, 5, 6], &mut to)?;
            drop(staging);
            Ok(())
        })
        .unwrap();
    assert_eq!(to.copy_to_host().unwrap(), [4, 5, 6]);
}

/// Runs `ask` as a recorded step, which must be refused, after which nothing is recorded; then all is as ever.
fn refused(cuda: &Cuda, what: &str, ask: impl FnOnce() -> Result<(), CudaError>) {
    let (stream, mut recorder) = (cuda.compute(), Recorder::new());
    let error = recorder.run(stream, ask).unwrap_err();
    assert!(matches!(error, CudaError::Arguments { .. }), "{what}: {error:?}");
    let message = error.to_string();
    assert!(message.contains("recorded"), "{what}: {message}");
    assert_eq!((recorder.counts().failed, recorder.counts().refused), (1, 1), "{what}");
    let complaint = recorder.complaint().unwrap();
    assert!(complaint.contains("capture is off") && complaint.contains(&message), "{complaint}");
    assert!(!stream.is_recorded(), "{what}");
    recorder.run(stream, || stream.synchronize()).unwrap();
    assert_eq!(
        (recorder.counts().direct, recorder.counts().refused),
        (u64::from(!is_real()) + 1, 1),
        "{what}"
    );
}

fn is_real() -> bool {
    real_gpu().is_some()
}

#[test]
fn what_cannot_be_recorded_is_refused_with_words() {
    let cuda = fresh_gpu();
    let (stream, other) = (cuda.compute(), cuda.transfer());
    let mut mine = CudaBuffer::from_slice(&cuda, stream, &[1_u32, 2, 3], "a test").unwrap();
    let event = other.record().unwrap();
    let mut arena = Arena::new(1, Some(&cuda)).unwrap();
    let mut pinned = arena.take::<u32>(3).unwrap();
    refused(&cuda, "a wait", || stream.synchronize());
    refused(&cuda, "an event", || stream.record().map(drop));
    refused(&cuda, "an event with its time", || stream.record_timed().map(drop));
    refused(&cuda, "another's event", || stream.wait_for(&event));
    refused(&cuda, "ordinary memory", || CudaBuffer::from_slice(&cuda, stream, &[1_u8], "a test").map(drop));
    refused(&cuda, "writing", || mine.write_at(1, &[9]));
    refused(&cuda, "reading", || mine.copy_to_host().map(drop));
    refused(&cuda, "from an arena", || mine.copy_from_pinned(&pinned));
    refused(&cuda, "to an arena", || mine.copy_part_to_pinned(0, &mut pinned));
    let mut staging = Staging::new(&cuda, 1).unwrap();
    let large = vec![0_u32; staging.bytes() / 4];
    let mut room = CudaBuffer::zeros(&cuda, stream, large.len(), "a test").unwrap();
    refused(&cuda, "more than is left", || {
        staging.upload(&[1, 2], &mut room)?;
        // Nothing has happened that one could wait for.
        staging.start_over();
        assert_eq!(staging.taken(), 128);
        staging.upload(&large, &mut room)
    });
    refused(&cuda, "more than there is", || {
        let larger = CudaBuffer::<u32>::zeros(&cuda, stream, large.len() + 1, "a test")?;
        staging.download(&larger, larger.len()).map(drop)
    });
    assert_eq!(mine.copy_to_host().unwrap(), [1, 2, 3], "nothing was written");
    assert!(mine.stream().is(stream));
    let (mut outer, mut inner) = (Recorder::new(), Recorder::new());
    let error = outer.run(stream, || inner.run(stream, || Ok(()))).unwrap_err().to_string();
    assert!(error.contains("is recorded already"), "{error}");
}

#[test]
fn a_step_that_fails_by_itself_leaves_stream_and_recorder_usable() {
    let cuda = fresh_gpu();
    let (stream, mut recorder) = (cuda.compute(), Recorder::new());
    let mut buffer = CudaBuffer::from_slice(&cuda, stream, &[1_u32, 2, 3], "a test").unwrap();
    let short = CudaBuffer::from_slice(&cuda, stream, &[4_u32], "a test").unwrap();
    let error = recorder.run(stream, || {
        let _passing = CudaBuffer::<u32>::zeros(&cuda, stream, 100, "a test")?;
        buffer.copy_front_from(&short, 2)
    });
    assert!(error.unwrap_err().to_string().contains("the source: 1 values"));
    assert_eq!((recorder.counts().failed, recorder.complaint()), (1, None));
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        recorder.run(stream, || -> Result<(), CudaError> {
            let _passing = CudaBuffer::<u32>::zeros(&cuda, stream, 100, "a test")?;
            panic!("a test's")
        })
    }));
    assert!(panicked.is_err() && !stream.is_recorded());
    assert_eq!(cuda.memory().used, 512, "what both had made is back");
    recorder.run(stream, || buffer.copy_front_from(&short, 1)).unwrap();
    assert_eq!(buffer.copy_to_host().unwrap(), [4, 2, 3]);
    assert_eq!((recorder.counts().launched, recorder.complaint()), (u64::from(is_real()), None));
}
