//! [`Lists`]: what a recorded step uploads, its index lists above all, goes to the GPU in one copy.
//!
//! ```text
//! recording   copy of a part of the pinned room ─▶ kernel … kernel     the copy comes first, and happens at the launch
//! meanwhile   list, list, … into that part                             the host fills it in until then
//! ```
//!
//! A step finds its lists one after another while it is recorded, and nothing happens on the GPU before it is launched.
//! So one copy is recorded in front of all kernels, and every list that is uploaded gets the next bytes of both sides.
//! How many bytes that copy has follows from the step before; a list that does not fit is copied by itself.
//!
//! The memory on the GPU serves the next step when nobody holds a part of it any more. A step that is not recorded
//! copies each list by itself.

use std::sync::Arc;

use bytemuck::Pod;

use super::arena::LINE_BYTES;
use super::context::Cuda;
use super::error::CudaError;
use super::memory::CudaBuffer;
use super::staging::Staging;
use crate::device;

const OPERATION: &str = "memory for the lists of a step";
const LEAST_BYTES: usize = 4096;

/// The lists of recorded steps.
#[derive(Default)]
pub(super) struct Lists {
    room: Option<Arc<CudaBuffer<u8>>>,
    /// Bytes of the next step's copy.
    bytes: usize,
    /// The step that is recorded.
    open: Option<Open>,
}

struct Open {
    /// Where the part of the pinned room begins, and how much of it there is and is taken.
    first: usize,
    bytes: usize,
    taken: usize,
    /// Bytes of all lists, whether they fitted or not.
    asked: usize,
}

impl Lists {
    /// Gets memory for the step that will be recorded.
    pub fn prepare(&mut self, cuda: &Cuda) {
        self.open = None;
        let fits =
            self.room.as_mut().is_some_and(|room| Arc::get_mut(room).is_some() && room.len() >= self.bytes);
        if self.bytes > 0 && !fits {
            let room = CudaBuffer::zeros(cuda, cuda.compute(), self.bytes, OPERATION);
            // Without it lists are copied one by one.
            self.room = room.ok().map(Arc::new);
        }
    }

    /// Records the copy, as the first thing of a step.
    pub fn begin(&mut self, staging: &mut Staging) -> Result<(), CudaError> {
        let (mut first, mut bytes) = (0, 0);
        if let Some(room) = self.room.as_ref().filter(|room| self.bytes > 0 && room.len() >= self.bytes) {
            // With less room a step copies its lists one by one.
            if let Some(at) = staging.copy_later(room, self.bytes)? {
                (first, bytes) = (at, self.bytes);
            }
        }
        self.open = Some(Open { first, bytes, taken: 0, asked: 0 });
        Ok(())
    }

    /// A buffer that the copy fills with `values`; none if they have to be copied by themselves.
    pub fn take<T: Pod>(&mut self, staging: &mut Staging, values: &[T]) -> Option<CudaBuffer<T>> {
        let open = self.open.as_mut()?;
        let bytes = size_of_val(values).next_multiple_of(LINE_BYTES);
        open.asked += bytes;
        let room = self.room.as_ref().filter(|_| bytes > 0 && bytes <= open.bytes - open.taken)?;
        let at = open.taken;
        open.taken += bytes;
        staging.put(open.first + at, values);
        Some(CudaBuffer::part_of(room, room.clone(), at, values.len()))
    }

    /// The step was recorded.
    pub fn end(&mut self) {
        let Some(Open { asked, .. }) = self.open.take() else { return };
        let wanted = device::size_class(asked + asked / 8, LEAST_BYTES, LEAST_BYTES);
        if asked > self.bytes || self.bytes / 4 > wanted {
            self.bytes = wanted;
        }
    }
}
