//! [`Recorder`]: a step of many small kernels as one CUDA graph, so that asking for it costs one launch. The work is
//! enqueued on a stream as ever; meanwhile the driver writes it down, and nothing happens. What was written down brings
//! the executable graph of the step before up to date (other addresses, numbers and grids), or, where the shape is
//! another, becomes an executable graph of its own; then that is launched.
//!
//! ```text
//!   work ──▶ Stream, recorded ──▶ graph ──▶ update of the graph of before ──▶ launch ──▶ what was freed goes back
//!                                                  └─ another shape ─▶ build ─┘
//! ```
//!
//! Inside of it the host cannot learn what the GPU does, for it has not begun. So there must not be:
//!
//! - waits, events, and buffers that change streams: refused ([`CudaError::Arguments`]);
//! - copies from and to ordinary memory of the host, and reads and writes of a [`PinnedSlice`](super::PinnedSlice),
//!   which keeps events: refused; [`Staging`](super::Staging) does without them, and has to have room for the whole
//!   step;
//! - allocations in the order of the stream, since such memory is the graph's own. A buffer that is made meanwhile is
//!   enqueued on the other stream and waited for, which is slow: a step should have its buffers already;
//! - the end of an [`Arena`](super::Arena) or of a [`Cuda`](super::Cuda), in any thread, which waits for the whole GPU:
//!   the driver may then give the recording up, and the memory is lost;
//! - the making of an [`Arena`](super::Arena): a driver may refuse to pin memory meanwhile, so a step's room is made
//!   before;
//! - anything that another thread asks of the stream: it would be recorded with the rest.
//!
//! A buffer that is dropped meanwhile goes back when the graph was launched, so within the step its memory serves
//! nobody else. The memory of a [`Staging`](super::Staging) lives until then, too.
//!
//! **Ahead.** A step can be recorded while the GPU still computes the one before ([`Recorder::record`]), and be
//! launched later ([`Recorder::launch`]), unless another one was recorded since. An executable graph may be brought up
//! to date while a launch of it is under way.
//!
//! **If it fails.** If the work fails nothing of it has happened on the GPU, and what was recorded is thrown away. If
//! the driver gives up the recording, or takes the graph for none that it can run, or the work asked for what is
//! refused, then that step fails likewise, with the reason, and the recorder records no more: it runs later steps as
//! they are, and [`Recorder::complaint`] states the reason. If it cannot even begin, no step fails.
//!
//! A [`Simulator`](super::Simulator) does things at once. There the work runs as it is, under the same prohibitions,
//! and counts as run directly.

#![allow(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cudarc::driver::{CudaStream, DriverError};

use super::driver::Queue;
use super::error::{CudaError, During};
use super::executable::{Capture, Executable, Graph};
use super::recording::Kept;
use super::stream::Stream;

const RECORDING: &str = "recording a step as a graph";
const LAUNCHING: &str = "launching a recorded step";

/// How often a recorder did what.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecorderCounts {
    /// Steps launched as a graph.
    pub launched: u64,
    /// Among them those that were recorded while the step before was computed.
    pub ahead: u64,
    /// How often a step that was recorded brought the graph of the one before up to date, also if it was not launched.
    pub updated: u64,
    /// How often one was built: for the first step, and for each of another shape.
    pub built: u64,
    /// Steps run as they are: by choice, on a simulated GPU, and after a refusal.
    pub direct: u64,
    /// Steps that failed while they were recorded.
    pub failed: u64,
    /// Refusals after which nothing is recorded any more: 0 or 1.
    pub refused: u64,
}

/// Runs steps of one stream as graphs, and keeps the executable graph of the last.
#[derive(Default)]
pub struct Recorder {
    executable: Option<Executable>,
    counts: RecorderCounts,
    complaint: Option<String>,
    /// Number of the step that was recorded last, which no other has.
    recorded: u64,
}

/// A step that was recorded and waits for its launch. What it uses goes back when this is dropped.
pub struct Waiting {
    number: u64,
    _held: Held,
}

impl Recorder {
    /// One that has recorded nothing yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Runs `work`, which asks `stream` for something, as a graph if that is possible. Returns when it was asked for,
    /// as `work` would; what may not be in it is listed above.
    ///
    /// # Errors
    /// Those of `work`, of a stream that is recorded already, and the driver's.
    pub fn run<R>(
        &mut self,
        stream: &Stream,
        work: impl FnOnce() -> Result<R, CudaError>,
    ) -> Result<R, CudaError> {
        if self.complaint.is_some() {
            self.counts.direct += 1;
            return work();
        }
        let recorded = Recorded::begin(stream)?;
        let Queue::Nvidia(of) = stream.queue() else {
            self.counts.direct += 1;
            return work().inspect_err(|error| self.failed(&recorded, error));
        };
        let capture = match Capture::begin(of).during(RECORDING, || stream.to_string()) {
            Ok(capture) => capture,
            Err(error) => {
                drop(recorded);
                self.give_up(&error);
                self.counts.direct += 1;
                return work();
            }
        };
        let value = self.write_down(&recorded, capture, work)?;
        self.start(stream)?;
        Ok(value)
    }

    /// Records `work`, which asks `stream` for something, and launches nothing yet. `None` where the GPU records
    /// nothing: then `work` was not done.
    ///
    /// # Errors
    /// As for [`run`](Self::run).
    pub fn record<R>(
        &mut self,
        stream: &Stream,
        work: impl FnOnce() -> Result<R, CudaError>,
    ) -> Result<Option<(R, Waiting)>, CudaError> {
        let Queue::Nvidia(of) = stream.queue() else { return Ok(None) };
        if self.complaint.is_some() {
            return Ok(None);
        }
        let recorded = Recorded::begin(stream)?;
        let capture = Capture::begin(of).during(RECORDING, || stream.to_string());
        let capture = capture.inspect_err(|error| self.give_up(error))?;
        let value = self.write_down(&recorded, capture, work)?;
        Ok(Some((value, Waiting { number: self.recorded, _held: recorded.end() })))
    }

    /// Launches what was recorded, unless something else was since; whether it did.
    ///
    /// # Errors
    /// The driver's.
    pub fn launch(&mut self, stream: &Stream, waiting: Waiting) -> Result<bool, CudaError> {
        if self.executable.is_none() || waiting.number != self.recorded {
            return Ok(false);
        }
        self.start(stream)?;
        self.counts.ahead += 1;
        Ok(true)
    }

    /// Does `work` while it is written down, and makes what came of it the executable graph.
    fn write_down<R>(
        &mut self,
        recorded: &Recorded<'_>,
        capture: Capture<'_>,
        work: impl FnOnce() -> Result<R, CudaError>,
    ) -> Result<R, CudaError> {
        static NUMBER: AtomicU64 = AtomicU64::new(1);
        self.recorded = NUMBER.fetch_add(1, Ordering::Relaxed);
        let (stream, done) = (capture.stream, work());
        let graph = capture.end().during(RECORDING, || recorded.0.to_string());
        match (done, graph) {
            (Ok(value), Ok(graph)) => {
                let made = self.make(stream, &graph).during(LAUNCHING, || recorded.0.to_string());
                made.inspect_err(|error| self.broken(error))?;
                Ok(value)
            }
            (Ok(_), Err(error)) => {
                self.broken(&error);
                Err(error)
            }
            (Err(error), Ok(_)) => {
                self.failed(recorded, &error);
                Err(error)
            }
            // The driver gave up when the work asked for something; the work's error names it.
            (Err(error), Err(_)) => {
                self.broken(&error);
                Err(error)
            }
        }
    }

    /// A step was run as it is, by choice.
    pub fn passed(&mut self) {
        self.counts.direct += 1;
    }

    /// How often it did what.
    #[must_use]
    pub fn counts(&self) -> RecorderCounts {
        self.counts
    }

    /// Why nothing is recorded any more, if so.
    #[must_use]
    pub fn complaint(&self) -> Option<&str> {
        self.complaint.as_deref()
    }

    /// Makes `graph` the executable one.
    fn make(&mut self, stream: &Arc<CudaStream>, graph: &Graph) -> Result<(), DriverError> {
        let of_before = self.executable.take().filter(|executable| executable.is_of(stream));
        let (executable, updated) = match of_before.and_then(|executable| executable.updated(graph)) {
            Some(executable) => (executable, true),
            None => (Executable::of(stream, graph)?, false),
        };
        self.executable = Some(executable);
        *(if updated { &mut self.counts.updated } else { &mut self.counts.built }) += 1;
        Ok(())
    }

    /// Launches the executable graph.
    fn start(&mut self, stream: &Stream) -> Result<(), CudaError> {
        let launched = self.executable.as_mut().map_or(Ok(()), Executable::launch);
        launched.during(LAUNCHING, || stream.to_string()).inspect_err(|error| self.broken(error))?;
        self.counts.launched += 1;
        Ok(())
    }

    /// The work failed by itself, or because it asked for what is refused: then so would every later one.
    fn failed(&mut self, recorded: &Recorded<'_>, error: &CudaError) {
        self.counts.failed += 1;
        if recorded.0.recording().has_refused() {
            self.give_up(error);
        }
    }

    /// A step was lost to the driver.
    fn broken(&mut self, error: &CudaError) {
        self.counts.failed += 1;
        self.give_up(error);
    }

    fn give_up(&mut self, error: &CudaError) {
        self.executable = None;
        self.counts.refused += 1;
        self.complaint =
            Some(format!("CUDA graph capture is off, and kernels are launched one by one: {error}"));
    }
}

impl std::fmt::Debug for Recorder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Recorder").field("counts", &self.counts).finish_non_exhaustive()
    }
}

/// A stream that is recorded. When it ends, what was kept goes back, behind a graph that was launched.
struct Recorded<'a>(&'a Stream);

impl<'a> Recorded<'a> {
    fn begin(stream: &'a Stream) -> Result<Self, CudaError> {
        if stream.recording().begin() {
            return Ok(Self(stream));
        }
        let mismatch = format!("{stream} is recorded already");
        Err(CudaError::Arguments { operation: RECORDING, mismatch })
    }

    /// Ends it now, and goes on keeping what was kept.
    fn end(self) -> Held {
        Held { stream: self.0.clone(), kept: self.0.recording().end() }
    }
}

impl Drop for Recorded<'_> {
    fn drop(&mut self) {
        // Nothing is left where it has ended.
        drop(Held { stream: self.0.clone(), kept: self.0.recording().end() });
    }
}

/// What a recorded step uses and nobody else wants any more.
struct Held {
    stream: Stream,
    kept: Kept,
}

impl Drop for Held {
    fn drop(&mut self) {
        let Kept { freed, host, .. } = std::mem::take(&mut self.kept);
        for freed in freed {
            // SAFETY: a buffer of this stream left it behind, so it is freed once; what was enqueued on it went into a
            // graph that was launched in this stream or never will be.
            unsafe { self.stream.queue().free(freed.address, freed.in_order) };
        }
        // Memory of the host waits for the GPU when its last owner goes.
        drop(host);
    }
}
