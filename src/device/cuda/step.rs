//! [`CudaWork::record`]: a whole step, as a graph or kernel by kernel.

use std::sync::atomic::Ordering;
use std::time::Instant;

use super::capture::Recorder;
use super::driver::Driver;
use super::error::CudaError;
use super::pace::{Launching, Pace, Way};
use super::work::CudaWork;

impl CudaWork {
    /// Does what asks for a whole step, up to the next [`check`](Self::check). It is recorded as a graph where the GPU
    /// does that and it takes less time; then `step` may be called twice, the second time because nothing came of the
    /// first. It must not read what it asked for.
    pub fn record<R>(&self, mut step: impl FnMut() -> R) -> R {
        if self.pace.lock().begins(Instant::now()) == Way::Direct {
            self.recorder.lock().passed();
            return step();
        }
        if self.fault.lock().is_some() {
            // Of what was asked for before: nothing happens until it is found.
            return step();
        }
        self.make_room();
        let room = self.room_bytes();
        let (mut done, mut gave_up) = (None, false);
        let ran = self.recording(&mut gave_up, |recorder| {
            recorder.run(self.cuda.compute(), || self.written_down(&mut done, &mut step))
        });
        let Err(error) = ran else { return done.unwrap_or_else(step) };
        // What a graph was to write that never ran is not there.
        self.constants.lock().clear();
        let too_small = self.overflow.swap(false, Ordering::Relaxed);
        if error.is_lost() || !(gave_up || too_small || error.is_out_of_memory()) {
            self.fail(error);
            return done.unwrap_or_else(step);
        }
        // Outside of a recording memory goes back at once, and the pinned room can grow.
        drop(done);
        self.kept.lock().clear();
        if too_small {
            self.set_staging(self.staging_bytes.load(Ordering::Relaxed).max(2 * room));
        }
        *self.fault.lock() = None;
        step()
    }

    /// Records something, and logs when that was the last time; `gave_up` is set then.
    pub(super) fn recording<R>(&self, gave_up: &mut bool, record: impl FnOnce(&mut Recorder) -> R) -> R {
        self.lists.lock().prepare(&self.cuda);
        // Memory is pinned beforehand: a driver may refuse that meanwhile. Without it the step finds the reason.
        let _ = self.staged(|_| Ok(()));
        let mut recorder = self.recorder.lock();
        let silent = recorder.complaint().is_none();
        let ran = record(&mut recorder);
        if let Some(why) = recorder.complaint().filter(|_| silent) {
            *gave_up = true;
            tracing::warn!("{why}");
        }
        drop(recorder);
        self.lists.lock().end();
        ran
    }

    /// What is recorded of a step: its lists, and all that it asks for. It is `done` then, also with a fault.
    pub(super) fn written_down<R>(
        &self,
        done: &mut Option<R>,
        step: impl FnOnce() -> R,
    ) -> Result<(), CudaError> {
        self.begin_lists()?;
        *done = Some(step());
        self.fault.lock().clone().map_or(Ok(()), Err)
    }

    /// Bytes of the pinned room.
    pub(super) fn room_bytes(&self) -> usize {
        let known = self.staging_bytes.load(Ordering::Relaxed);
        self.staging.lock().as_ref().map_or(known, |room| room.bytes().min(known))
    }

    /// Notes when the work for a step begins, which may be before [`record`](Self::record) is called.
    pub fn step_begins(&self) {
        self.pace.lock().starts(Instant::now());
    }

    /// Has the lists of a step that is recorded go to the GPU in one copy. A simulated GPU does things at once.
    fn begin_lists(&self) -> Result<(), CudaError> {
        let recorded =
            self.cuda.compute().is_recorded() && !matches!(self.cuda.driver(), Driver::Simulated(_));
        if recorded { self.staged(|staging| self.lists.lock().begin(staging)) } else { Ok(()) }
    }

    /// From now on steps are launched in this way.
    pub fn launch_steps(&self, how: Launching) {
        *self.pace.lock() = Pace::of(how);
    }

    /// Sees to it that much of the pinned room is free.
    fn make_room(&self) {
        if let Some(staging) = self.staging.lock().as_mut().filter(|room| 2 * room.taken() > room.bytes()) {
            staging.start_over();
        }
    }
}
