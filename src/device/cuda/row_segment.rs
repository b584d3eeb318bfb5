//! Segments of a [`RowRoom`](super::RowRoom): page-locked memory that a GPU reads in place.

use std::sync::Arc;

use super::arena::{Arena, PinnedSlice};
use super::context::Cuda;
use super::error::CudaError;

/// Memory for some rows, and where the GPU finds it.
pub(super) struct Segment {
    pub rows: PinnedSlice<f32>,
    pub address: u64,
}

/// A segment that a room has no memory for yet.
pub struct Lacking {
    pub(super) cuda: Arc<Cuda>,
    /// Values.
    pub(super) len: usize,
}

/// Memory for a segment of the room that lacked it.
pub struct Made(pub(super) Segment);

impl Lacking {
    /// Makes it.
    ///
    /// # Errors
    /// The system has no memory for it, or the GPU cannot map it.
    pub fn make(self) -> Result<Made, CudaError> {
        let mut arena = Arena::new(self.len * size_of::<f32>(), Some(&self.cuda))?;
        let rows = arena.take::<f32>(self.len)?;
        let address = rows.address(super::row_room::OPERATION, self.cuda.compute())?;
        Ok(Made(Segment { rows, address }))
    }
}
