//! A step as the driver knows it: [`Capture`] while it is written down, the [`Graph`] that comes of that, and the
//! [`Executable`] that is launched.

#![allow(unsafe_code)]

use std::ptr;
use std::sync::Arc;

use cudarc::driver::{CudaStream, DriverError, result, sys};

/// The driver writes down what is enqueued on a stream, until this is dropped.
pub(super) struct Capture<'a> {
    pub stream: &'a Arc<CudaStream>,
    ended: bool,
}

impl<'a> Capture<'a> {
    pub fn begin(stream: &'a Arc<CudaStream>) -> Result<Self, DriverError> {
        stream.context().bind_to_thread()?;
        // Relaxed: neither this thread nor another is kept from allocating and waiting elsewhere.
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        // SAFETY: the stream is alive and its context is current.
        unsafe { result::stream::begin_capture(stream.cu_stream(), mode) }?;
        Ok(Self { stream, ended: false })
    }

    pub fn end(mut self) -> Result<Graph, DriverError> {
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
pub(super) struct Graph(sys::CUgraph);

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
pub(super) struct Executable {
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
    pub fn of(stream: &Arc<CudaStream>, graph: &Graph) -> Result<Self, DriverError> {
        stream.context().bind_to_thread()?;
        // SAFETY: the graph is alive.
        let graph = unsafe { result::graph::instantiate(graph.0, sys::CUgraphInstantiate_flags(0)) }?;
        Ok(Self { graph, stream: stream.clone() })
    }

    pub fn is_of(&self, stream: &Arc<CudaStream>) -> bool {
        Arc::ptr_eq(&self.stream, stream)
    }

    /// The same with everything that is in `graph`; none if that is of another shape. Launches that are under way are
    /// as they were.
    pub fn updated(self, graph: &Graph) -> Option<Self> {
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

    pub fn launch(&mut self) -> Result<(), DriverError> {
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
