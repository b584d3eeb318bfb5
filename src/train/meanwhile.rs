//! [`Meanwhile`]: what is done while a GPU computes a step.

use super::prepare::PreparedBatch;
use super::trainer::Trainer;
use crate::device::Device;

/// Gets the batch ready whose step comes next. Returns it if it is, and the seconds that it was gathered for, which
/// count as its own.
pub type GetReady<'a> = &'a mut dyn FnMut(&mut Trainer) -> Option<(&'a PreparedBatch, f64)>;

/// What is done while a GPU computes a step.
#[derive(Default)]
pub struct Meanwhile<'a> {
    /// The batch whose step comes next, where it is ready: that step may be recorded.
    pub(super) next: Option<&'a PreparedBatch>,
    /// Whether nothing else is asked of the trainer before that step: the GPU may begin it.
    pub(super) begins: bool,
    /// Whether that step tests its batch, where it learns from it.
    pub(super) tests: bool,
    /// Asked for that batch where it is not ready before.
    pub(super) get_ready: Option<GetReady<'a>>,
}

impl<'a> Meanwhile<'a> {
    /// Has the next batch get ready, whose step may be recorded then.
    #[must_use]
    pub fn getting_ready(get_ready: Option<GetReady<'a>>) -> Self {
        Self { get_ready, ..Self::default() }
    }
}

impl Trainer {
    /// The next batch, if it is ready or gets so now, and the seconds that it was gathered for.
    pub(super) fn next_batch<'a>(&mut self, meanwhile: Meanwhile<'a>) -> Option<(&'a PreparedBatch, f64)> {
        let Meanwhile { next, get_ready, .. } = meanwhile;
        if next.is_some() {
            return next.map(|next| (next, 0.0));
        }
        let (get_ready, Device::Cuda(work)) = (get_ready?, &self.device) else { return None };
        self.computed = work.mark();
        let next = get_ready(self);
        self.computed = None;
        next
    }

    /// Whether a GPU still computes the step beside which the next batch gets ready (see [`GetReady`]).
    #[must_use]
    pub fn is_computing(&self) -> bool {
        self.computed.as_ref().is_some_and(|computed| computed.is_over().is_ok_and(|is_over| !is_over))
    }

    /// Notes that a batch is about to be gathered for the step that comes next, on a GPU: that counts as its time where
    /// ways to launch steps are compared, since what gathers a batch while a step is computed takes time of that one.
    pub fn step_begins(&self) {
        if let Device::Cuda(work) = &self.device {
            work.step_begins();
        }
    }
}
