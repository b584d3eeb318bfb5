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
//! - the end of an [`Arena`](super::Arena), in any thread, which waits for the whole GPU: the driver may then give the
//!   recording up, and the memory is lost;
//! - anything that another thread asks of the stream: it would be recorded with the rest.
//!
//! A buffer that is dropped meanwhile goes back when the graph was launched, so within the step its memory serves
//! nobody else. The memory of a [`Staging`](super::Staging) lives until then, too.
//!
//! **If it fails.** If the work fails nothing of it has happened on the GPU, and what was recorded is thrown away. If
//! the driver gives up the recording, or takes the graph for none that it can run, or the work asked for what is
//! refused, then that step fails likewise, with the reason, and the recorder records no more: it runs later steps as
//! they are, and [`Recorder::complaint`] states the reason. If it cannot even begin, no step fails.
//!
//! A [`Simulator`](super::Simulator) does things at once. There the work runs as it is, under the same prohibitions,
//! and counts as run directly.

#![allow(unsafe_code)]

use std::ptr;
use std::sync::Arc;

use cudarc::driver::{CudaStream, DriverError, result, sys};

use super::driver::Queue;
use super::error::{CudaError, During};
use super::recording::Kept;
use super::stream::Stream;

const RECORDING: &str = "recording a step as a graph";
const LAUNCHING: &str = "launching a recorded step";

/// How often a recorder did what.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecorderCounts {
    /// Steps launched as a graph.
    pub launched: u64,
    /// Among them those for which the graph of the step before was brought up to date.
    pub updated: u64,
    /// And those for which one was built: the first, and each of another shape.
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
        let done = work();
        let graph = capture.end().during(RECORDING, || stream.to_string());
        match (done, graph) {
            (Ok(value), Ok(graph)) => {
                let launched = self.launch(of, &graph).during(LAUNCHING, || stream.to_string());
                launched.inspect_err(|error| self.broken(error))?;
                Ok(value)
            }
            (Ok(_), Err(error)) => {
                self.broken(&error);
                Err(error)
            }
            (Err(error), Ok(_)) => {
                self.failed(&recorded, &error);
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

    /// Launches what was recorded.
    fn launch(&mut self, stream: &Arc<CudaStream>, graph: &Graph) -> Result<(), DriverError> {
        let of_before = self.executable.take().filter(|executable| executable.is_of(stream));
        let (mut executable, updated) = match of_before.and_then(|executable| executable.updated(graph)) {
            Some(executable) => (executable, true),
            None => (Executable::of(stream, graph)?, false),
        };
        executable.launch()?;
        self.executable = Some(executable);
        self.counts.launched += 1;
        *(if updated { &mut self.counts.updated } else { &mut self.counts.built }) += 1;
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
            Some(format!("steps are no longer recorded as graphs, and run one kernel at a time: {error}"));
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
}

impl Drop for Recorded<'_> {
    fn drop(&mut self) {
        let Kept { freed, host, .. } = self.0.recording().end();
        for freed in freed {
            // SAFETY: a buffer of this stream left it behind, so it is freed once; what was enqueued on it went into a
            // graph that was launched in this stream or never will be.
            unsafe { self.0.queue().free(freed.address, freed.in_order) };
        }
        // Memory of the host waits for the GPU when its last owner goes.
        drop(host);
    }
}

/// The driver writes down what is enqueued on a stream, until this is dropped.
struct Capture<'a> {
    stream: &'a Arc<CudaStream>,
    ended: bool,
}

impl<'a> Capture<'a> {
    fn begin(stream: &'a Arc<CudaStream>) -> Result<Self, DriverError> {
        stream.context().bind_to_thread()?;
        // Relaxed: neither this thread nor another is kept from allocating and waiting elsewhere.
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        // SAFETY: the stream is alive and its context is current.
        unsafe { result::stream::begin_capture(stream.cu_stream(), mode) }?;
        Ok(Self { stream, ended: false })
    }

    fn end(mut self) -> Result<Graph, DriverError> {
        self.finish()
    }

    fn finish(&mut self) -> Result<Graph, DriverError> {
        self.ended = true;
        // Also reports older faults. Whatever it returns, a stream must not be left to be written down for ever.
        let bound = self.stream.context().bind_to_thread();
        // SAFETY: the stream is alive, and a capture was begun and not ended.
        let graph = Graph(unsafe { result::stream::end_capture(self.stream.cu_stream()) }?);
        bound?;
        if graph.0.is_null() {
            return Err(DriverError(sys::CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED));
        }
        Ok(graph)
    }
}

impl Drop for Capture<'_> {
    fn drop(&mut self) {
        if !self.ended {
            // The work panicked.
            let _ = self.finish();
        }
    }
}

/// What was written down; null if the driver gave up.
struct Graph(sys::CUgraph);

impl Drop for Graph {
    fn drop(&mut self) {
        if self.0.is_null() {
            return;
        }
        // SAFETY: the graph came from the end of a capture, is owned by this value alone, and is destroyed once; what
        // was instantiated from it stands by itself. A fault is of no consequence: nobody uses it any more.
        let _ = unsafe { result::graph::destroy(self.0) };
    }
}

/// A graph that can be launched. Launches of it run one after the other.
struct Executable {
    graph: sys::CUgraphExec,
    stream: Arc<CudaStream>,
}

// SAFETY: the driver allows an executable graph to be used by any thread, one at a time; every use takes it by value or
// by `&mut`.
unsafe impl Send for Executable {}
// SAFETY: as above; a shared one is only asked for its stream.
unsafe impl Sync for Executable {}

impl Executable {
    /// Of `graph`, for launches in `stream`, in whose context it was recorded.
    fn of(stream: &Arc<CudaStream>, graph: &Graph) -> Result<Self, DriverError> {
        stream.context().bind_to_thread()?;
        // SAFETY: the graph is alive.
        let graph = unsafe { result::graph::instantiate(graph.0, sys::CUgraphInstantiate_flags(0)) }?;
        Ok(Self { graph, stream: stream.clone() })
    }

    fn is_of(&self, stream: &Arc<CudaStream>) -> bool {
        Arc::ptr_eq(&self.stream, stream)
    }

    /// The same with everything that is in `graph`; none if that is of another shape. Launches that are under way are
    /// as they were.
    fn updated(self, graph: &Graph) -> Option<Self> {
        self.stream.context().bind_to_thread().ok()?;
        let mut result = sys::CUgraphExecUpdateResultInfo {
            result: sys::CUgraphExecUpdateResult::CU_GRAPH_EXEC_UPDATE_ERROR,
            errorNode: ptr::null_mut(),
            errorFromNode: ptr::null_mut(),
        };
        // SAFETY: both graphs are alive and of one context, and the pointer is to a live structure. After a refusal the
        // executable graph may be partly changed; it is dropped then. A fault that ends the context shows again when
        // the next one is made.
        let updated = unsafe { sys::cuGraphExecUpdate_v2(self.graph, graph.0, &raw mut result) };
        updated.result().is_ok().then_some(self)
    }

    fn launch(&mut self) -> Result<(), DriverError> {
        self.stream.context().bind_to_thread()?;
        // SAFETY: the graph and the stream are alive. What its nodes do is what was enqueued on the stream while it was
        // recorded, by calls whose promises hold until now: buffers and memory of the host that they name are kept
        // until after this call, and freed in the order of the stream.
        unsafe { result::graph::launch(self.graph, self.stream.cu_stream()) }
    }
}

impl Drop for Executable {
    fn drop(&mut self) {
        let context = self.stream.context();
        context.record_err(context.bind_to_thread());
        // SAFETY: made once and destroyed once. The driver ends one that is under way when it is through with it.
        context.record_err(unsafe { result::graph::exec_destroy(self.graph) });
    }
}
