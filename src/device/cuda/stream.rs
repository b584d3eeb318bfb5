//! [`Stream`]: an order of work on a GPU; [`Event`]: a place in that order.
//!
//! What is enqueued on a stream may be recorded, to happen later (`capture`): then it has no places to wait for.

#![allow(unsafe_code)]

use std::sync::Arc;

use cudarc::driver::{CudaContext, result};

use super::bus::Bus;
use super::context::{TIMING_VERSION_MIN, driver_version, shown};
use super::driver::{Driver, Fault, Mark, Marking, Queue, waited};
use super::error::{CudaError, During};
use super::recording::Recording;
use super::simulator::Simulator;

pub(super) enum Priority {
    Greatest,
    Least,
}

/// An order of work on a GPU. Streams wait for one another only on request.
#[derive(Clone)]
pub struct Stream {
    queue: Queue,
    name: &'static str,
    recording: Arc<Recording>,
    bus: Arc<Bus>,
}

impl Stream {
    pub(super) fn new(
        context: &Arc<CudaContext>,
        name: &'static str,
        priority: Priority,
        bus: &Arc<Bus>,
    ) -> Result<Self, CudaError> {
        let making = "making a stream";
        context.bind_to_thread().during(making, || name.into())?;
        let stream = result::stream::get_priority_range().and_then(|(least, greatest)| {
            context.new_stream_with_priority(match priority {
                Priority::Greatest => greatest,
                Priority::Least => least,
            })
        });
        let queue = Queue::Nvidia(stream.during(making, || name.into())?);
        Ok(Self { queue, name, recording: Arc::default(), bus: bus.clone() })
    }

    pub(super) fn simulated(
        simulator: Arc<dyn Simulator>,
        name: &'static str,
        number: u8,
        bus: &Arc<Bus>,
    ) -> Self {
        let queue = Queue::Simulated(simulator, number);
        Self { queue, name, recording: Arc::default(), bus: bus.clone() }
    }

    /// Waits until all that was enqueued on it is done.
    ///
    /// # Errors
    /// The first fault of what was asked, which may be [`CudaError::Lost`], or a stream that is recorded.
    pub fn synchronize(&self) -> Result<(), CudaError> {
        let operation = "waiting for the GPU";
        self.at_once(operation)?;
        self.queue.synchronize().during(operation, || self.to_string())
    }

    /// A place after all that was enqueued on it so far.
    ///
    /// # Errors
    /// The driver's.
    pub fn record(&self) -> Result<Event, CudaError> {
        self.event(Marking::Plain)
    }

    /// The same; a thread that waits for it blocks, where others spin.
    ///
    /// # Errors
    /// The driver's.
    pub fn record_blocking(&self) -> Result<Event, CudaError> {
        self.event(Marking::Blocking)
    }

    /// The same, which can also be asked for its time.
    ///
    /// # Errors
    /// The driver's.
    pub fn record_timed(&self) -> Result<Event, CudaError> {
        self.event(Marking::Timed)
    }

    fn event(&self, marking: Marking) -> Result<Event, CudaError> {
        let operation = "recording an event";
        self.at_once(operation)?;
        let mark = self.queue.record(marking).during(operation, || self.to_string())?;
        Ok(Event { mark, place: self.queue.driver().ordinal() })
    }

    /// What is enqueued on it from now on begins after `event`.
    ///
    /// # Errors
    /// The driver's.
    pub fn wait_for(&self, event: &Event) -> Result<(), CudaError> {
        let operation = "making a stream wait";
        self.at_once(operation)?;
        self.queue.wait_for(&event.mark).during(operation, || self.to_string())
    }

    /// Whether both are the same stream of the same GPU.
    #[must_use]
    pub fn is(&self, other: &Self) -> bool {
        self.queue.is(&other.queue)
    }

    /// Whether what is enqueued on it is recorded, and has not happened yet however long one waits.
    #[must_use]
    pub fn is_recorded(&self) -> bool {
        self.recording.is_under_way()
    }

    /// Refuses what has to happen at once while the stream is recorded.
    pub(super) fn at_once(&self, operation: &'static str) -> Result<(), CudaError> {
        if !self.recording.refuses() {
            return Ok(());
        }
        let mismatch =
            format!("{self} is recorded, and nothing of it has happened yet: do this before or after");
        Err(CudaError::Arguments { operation, mismatch })
    }

    pub(super) fn recording(&self) -> &Recording {
        &self.recording
    }

    /// Enqueues a copy from memory of the host.
    ///
    /// # Safety
    /// As for [`Queue::upload`].
    pub(super) unsafe fn upload(&self, to: u64, from: *const u8, bytes: usize) -> Result<(), Fault> {
        self.bus.to_gpu(bytes);
        // SAFETY: the caller's promise.
        unsafe { self.queue.upload(to, from, bytes) }
    }

    /// Enqueues a copy to memory of the host.
    ///
    /// # Safety
    /// As for [`Queue::download`].
    pub(super) unsafe fn download(&self, from: u64, to: *mut u8, bytes: usize) -> Result<(), Fault> {
        self.bus.to_host(bytes);
        // SAFETY: the caller's promise.
        unsafe { self.queue.download(from, to, bytes) }
    }

    pub(super) fn bus(&self) -> &Arc<Bus> {
        &self.bus
    }

    pub(super) fn queue(&self) -> &Queue {
        &self.queue
    }

    pub(super) fn driver(&self) -> Driver {
        self.queue.driver()
    }
}

impl std::fmt::Display for Stream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "stream {} of cuda:{}", self.name, self.queue.driver().ordinal())
    }
}

impl std::fmt::Debug for Stream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Stream({self})")
    }
}

/// A place in the order of a stream.
#[derive(Debug)]
pub struct Event {
    mark: Mark,
    /// Number of the GPU.
    place: usize,
}

impl Event {
    /// Waits until the GPU has got there.
    ///
    /// # Errors
    /// A fault of the work before it.
    pub fn synchronize(&self) -> Result<(), CudaError> {
        match &self.mark {
            Mark::Nvidia(event) => {
                waited(|| event.synchronize()).during("waiting for an event", || self.place())
            }
            Mark::Simulated(_) => Ok(()),
        }
    }

    /// Whether the GPU has got there.
    ///
    /// # Errors
    /// A fault of the work before it.
    pub fn is_over(&self) -> Result<bool, CudaError> {
        match &self.mark {
            Mark::Nvidia(event) => {
                let bound = event.context().bind_to_thread();
                bound.and_then(|()| event.try_is_complete()).during("asking for an event", || self.place())
            }
            Mark::Simulated(_) => Ok(true),
        }
    }

    /// Seconds from `earlier` to this one; both were made by [`Stream::record_timed`]. Waits for both.
    ///
    /// # Errors
    /// The driver's, also for an event without a time.
    pub fn seconds_since(&self, earlier: &Self) -> Result<f64, CudaError> {
        match (&earlier.mark, &self.mark) {
            (Mark::Nvidia(earlier), Mark::Nvidia(event)) => {
                if driver_version()? < TIMING_VERSION_MIN {
                    let missing = format!("the driver is older than CUDA {}", shown(TIMING_VERSION_MIN));
                    return Err(CudaError::Absent { operation: "timing the GPU", missing });
                }
                let milliseconds = earlier.elapsed_ms(event).during("timing the GPU", || self.place())?;
                Ok(f64::from(milliseconds) / 1000.0)
            }
            (Mark::Simulated(earlier), Mark::Simulated(mark)) => {
                Ok(mark.saturating_duration_since(*earlier).as_secs_f64())
            }
            _ => Err(CudaError::Arguments {
                operation: "timing the GPU",
                mismatch: "events of different GPUs".into(),
            }),
        }
    }

    fn place(&self) -> String {
        format!("cuda:{}", self.place)
    }
}
