//! Buffers in the memory of another one.

use std::any::Any;
use std::marker::PhantomData;
use std::sync::Arc;

use bytemuck::Pod;

use super::{CudaBuffer, UNIT_BYTES};

impl<T: Pod> CudaBuffer<T> {
    /// `len` values of `whole`, which `keeper` has, from byte `first` on. Nobody else may have them: it is the caller
    /// who gives them out.
    pub(in crate::device::cuda) fn part_of(
        whole: &CudaBuffer<u8>,
        keeper: Arc<dyn Any + Send + Sync>,
        first: usize,
        len: usize,
    ) -> Self {
        let room = len * size_of::<T>();
        assert!(first.is_multiple_of(UNIT_BYTES / 2) && first + room <= whole.len, "a part of the buffer");
        let (address, stream, in_order) =
            (whole.address + first as u64, whole.stream.clone(), whole.in_order);
        let whole = Some(keeper);
        Self { address, len, room, stream, in_order, share: None, whole, kind: PhantomData }
    }

    /// Whether its memory is a part of another buffer's.
    pub(in crate::device::cuda) fn is_part(&self) -> bool {
        self.whole.is_some()
    }
}
