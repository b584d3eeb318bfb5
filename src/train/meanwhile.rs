//! [`Meanwhile`]: what is done while a GPU computes a step.

use super::prepare::PreparedBatch;
use super::trainer::Trainer;
use crate::device::Device;

/// Gets the batch ready whose step comes next, and returns it if it is.
pub type GetReady<'a> = &'a mut dyn FnMut(&mut Trainer) -> Option<&'a PreparedBatch>;

/// What is done while a GPU computes a step.
#[derive(Default)]
pub struct Meanwhile<'a> {
    /// The batch whose step comes next, where it is ready: that step may be recorded.
    pub next: Option<&'a PreparedBatch>,
    /// Whether nothing else is asked of the trainer before that step: the GPU may begin it.
    pub begins: bool,
    /// Asked for that batch where it is not ready before.
    pub get_ready: Option<GetReady<'a>>,
}

impl Trainer {
    /// Has the next batch get ready.
    pub(super) fn while_computing<'b>(&mut self, get_ready: GetReady<'b>) -> Option<&'b PreparedBatch> {
        let Device::Cuda(work) = &self.device else { return None };
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
}
