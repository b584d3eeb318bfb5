//! [`Ahead`]: a step that the host records while the GPU still computes the one before, so that one launch later the
//! GPU goes on.
//!
//! ```text
//! host   launch n | record n+1 | wait for n | launch n+1 | record n+2 | ...
//! GPU             | compute n ............. |            | compute n+1 ...
//! ```
//!
//! What such a step reads, writes and has copied must stay as it is until its launch, whatever else is asked of the GPU
//! in between. So it has a pinned room of its own, which takes the place of the other one with the launch; memory that
//! it gave back to the pool serves nobody else before, and a constant that it was the first to copy counts for nobody
//! else. If it is dropped, nothing of it ever happened.
//!
//! Values that were asked for through the other pinned room before the launch are there after it from the next
//! [`check`](CudaWork::check) on. While somebody waits for some, no further step is recorded ahead.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use super::capture::Waiting;
use super::driver::Driver;
use super::pace::Way;
use super::staging::Staging;
use super::work::{Constant, CudaWork, Pool};

/// A step that was recorded and waits for its launch, and what `R` came of recording it.
pub struct Ahead<R> {
    done: Option<R>,
    waiting: Option<Waiting>,
    own: Own,
    work: Arc<CudaWork>,
}

/// What nobody else uses before the launch.
#[derive(Default)]
struct Own {
    pool: Pool,
    staging: Option<Staging>,
    /// By the address of what they are copies of.
    constants: Vec<(usize, Constant)>,
}

impl CudaWork {
    /// Whether a step may be recorded ahead, now or later.
    #[must_use]
    pub fn may_look_ahead(&self) -> bool {
        self.pace.lock().tries_ahead() && self.recorder.lock().complaint().is_none()
    }

    /// Whether the step after the one that began last is to be recorded ahead, if its batch is known.
    #[must_use]
    pub fn looks_ahead(&self) -> bool {
        // A simulated GPU does everything at once.
        let records = !matches!(self.cuda().driver(), Driver::Simulated(_));
        let is_next = records && self.may_look_ahead() && self.pace.lock().next() == Way::Ahead;
        // What somebody waits for would be out of reach of a check.
        let is_free = || self.spare.lock().as_ref().is_none_or(|spare| !spare.is_awaited());
        is_next && is_free() && self.fault.lock().is_none()
    }

    /// Records what asks for the whole next step, while the GPU computes this one. `None` if that cannot be or is not
    /// to be: then nothing came of it, and the step is asked for in its turn. `step` must not read what it asked for.
    /// What it reads and writes on the GPU, and did not make itself, has to live until the launch, where the step
    /// finds what is there by then.
    pub fn record_ahead<R>(self: &Arc<Self>, step: impl FnOnce() -> R) -> Option<Ahead<R>> {
        if !self.looks_ahead() {
            return None;
        }
        let known: Vec<usize> = self.constants.lock().keys().copied().collect();
        self.swap_rooms();
        *self.kept_ahead.lock() = Some(Pool::new());
        let (mut done, room) = (None, self.room_bytes());
        let ran = self.recording(&mut false, |recorder| {
            recorder.record(self.cuda().compute(), || self.written_down(&mut done, step))
        });
        let pool = self.kept_ahead.lock().take().unwrap_or_default();
        self.swap_rooms();
        let constants = self.constants.lock().extract_if(|key, _| !known.contains(key)).collect();
        let own = Own { pool, staging: self.spare.lock().take(), constants };
        let mut ahead = Ahead { done, waiting: None, own, work: self.clone() };
        match ran {
            Ok(Some(((), waiting))) => ahead.waiting = Some(waiting),
            Ok(None) => return None,
            Err(error) => {
                // The step meets it again in its turn, when it is no fault of the one before.
                if self.overflow.swap(false, Ordering::Relaxed) {
                    *self.fault.lock() = None;
                    self.staging_bytes.fetch_max(2 * room, Ordering::Relaxed);
                    ahead.own.staging = None;
                    return None;
                }
                self.fault.lock().get_or_insert(error);
                self.forgive();
                return None;
            }
        }
        Some(ahead)
    }

    /// Takes back the fault of what was asked for the next step, while none was there before, unless the GPU is lost;
    /// whether there was one. Then no step is recorded ahead for a while.
    pub fn forgive(&self) -> bool {
        let Some(fault) = self.fault.lock().take_if(|fault| !fault.is_lost()) else { return false };
        self.pace.lock().bars_ahead();
        tracing::info!(
            "a step could not be captured as a CUDA graph beside the one before it; for a while none is: {fault}"
        );
        true
    }

    /// Launches a step that was recorded ahead. `None` if it has to be recorded anew.
    pub fn launch_ahead<R>(&self, mut ahead: Ahead<R>) -> Option<R> {
        let waiting = ahead.waiting.take().filter(|_| self.fault.lock().is_none())?;
        let launched = self.recorder.lock().launch(self.cuda().compute(), waiting);
        match launched {
            Ok(true) => {}
            Ok(false) => return None,
            Err(error) => {
                tracing::warn!("a step that was recorded ahead could not be launched: {error}");
                if error.is_lost() {
                    self.fail(error);
                }
                return None;
            }
        }
        self.pace.lock().begins(Instant::now());
        let Own { pool, staging, constants } = std::mem::take(&mut ahead.own);
        self.take_back(pool);
        self.constants.lock().extend(constants);
        *self.spare.lock() = std::mem::replace(&mut *self.staging.lock(), staging);
        ahead.done.take()
    }

    fn swap_rooms(&self) {
        std::mem::swap(&mut *self.staging.lock(), &mut *self.spare.lock());
    }

    /// Takes memory back into the pool, which serves what is asked for from now on.
    fn take_back(&self, pool: Pool) {
        let mut kept = self.kept.lock();
        pool.into_iter().for_each(|(class, buffers)| kept.entry(class).or_default().extend(buffers));
    }
}

impl<R> Drop for Ahead<R> {
    fn drop(&mut self) {
        // What came of it holds memory of the pool.
        drop(self.done.take());
        let Own { pool, staging, constants } = std::mem::take(&mut self.own);
        self.work.take_back(pool);
        drop(constants);
        if staging.is_some() {
            *self.work.spare.lock() = staging;
        }
    }
}
