//! [`Tensor`]: a row-major matrix of f32 on a device. Knows nothing of gradients.

use std::borrow::Cow;

use crate::device::cuda::{CudaBuffer, CudaError, DetachedCopy, PendingCopy};
use crate::device::matmul::{View, ViewMut};
use crate::device::{Device, DeviceBuffer};

/// A row-major `rows x cols` matrix of f32.
#[derive(Clone, Debug)]
pub struct Tensor {
    rows: usize,
    cols: usize,
    buffer: DeviceBuffer<f32>,
}

/// A tensor that is on its way to the CPU.
pub struct Fetched {
    /// The values, or where they come from.
    tensor: Tensor,
    coming: Option<PendingCopy<f32>>,
}

impl Fetched {
    /// The tensor in memory of the CPU, zeros after a fault of a GPU, and the one on the GPU, if it is on one.
    /// Waits for it.
    #[must_use]
    pub fn wait(self) -> (Tensor, Option<Tensor>) {
        let (rows, cols) = self.tensor.shape();
        match self.coming {
            None => (self.tensor, None),
            Some(coming) => (Tensor::from_vec(&Device::Cpu, rows, cols, coming.wait()), Some(self.tensor)),
        }
    }

    /// Appends the values to others, zeros after a fault of a GPU, and returns the tensor, wherever it is. Waits for
    /// it.
    #[must_use]
    pub fn append_to(self, all: &mut Vec<f32>) -> Tensor {
        match self.coming {
            None => all.extend_from_slice(self.tensor.data()),
            Some(coming) => coming.append_to(all),
        }
        self.tensor
    }
}

impl Default for Tensor {
    /// No values, on the CPU.
    fn default() -> Self {
        Self::zeros(&Device::Cpu, 0, 0)
    }
}

impl Tensor {
    /// All zeros.
    #[must_use]
    pub fn zeros(device: &Device, rows: usize, cols: usize) -> Self {
        Self { rows, cols, buffer: DeviceBuffer::zeros(device, rows * cols) }
    }

    /// All zeros, for what stays long: on a GPU, memory that goes back to the driver; none where that has no room.
    #[must_use]
    pub fn zeros_apart(device: &Device, rows: usize, cols: usize) -> Option<Self> {
        Some(Self { rows, cols, buffer: DeviceBuffer::zeros_apart(device, rows * cols)? })
    }

    /// Values that are whatever was there before: write every one.
    #[must_use]
    pub fn room(device: &Device, rows: usize, cols: usize) -> Self {
        Self { rows, cols, buffer: DeviceBuffer::room(device, rows * cols) }
    }

    /// A copy of `values`, row by row.
    ///
    /// # Panics
    /// If `values.len() != rows * cols`.
    #[must_use]
    pub fn from_slice(device: &Device, rows: usize, cols: usize, values: &[f32]) -> Self {
        assert_eq!(values.len(), rows * cols, "a {rows}x{cols} tensor from {} values", values.len());
        Self { rows, cols, buffer: DeviceBuffer::from_slice(device, values) }
    }

    /// Like [`from_slice`](Self::from_slice).
    ///
    /// # Panics
    /// If `values.len() != rows * cols`.
    #[must_use]
    pub fn from_vec(device: &Device, rows: usize, cols: usize, values: Vec<f32>) -> Self {
        Self::from_slice(device, rows, cols, &values)
    }

    /// A tensor over a buffer of exactly `rows * cols` values.
    pub(super) fn over(rows: usize, cols: usize, buffer: DeviceBuffer<f32>) -> Self {
        debug_assert_eq!(buffer.len(), rows * cols);
        Self { rows, cols, buffer }
    }

    pub(super) fn into_buffer(self) -> DeviceBuffer<f32> {
        self.buffer
    }

    /// Makes this a tensor of `rows` rows of the same width over the same memory, or over more if that is too
    /// small. Holds stale values: write every one.
    pub fn set_rows(&mut self, rows: usize) {
        let len = rows * self.cols;
        if len > self.buffer.capacity() {
            self.buffer = DeviceBuffer::room(&self.device().clone(), len + len / 4);
        }
        self.buffer.show(len);
        self.rows = rows;
    }

    /// Values that the memory behind the tensor has room for.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.buffer.capacity()
    }

    /// Where the values are.
    #[must_use]
    pub fn device(&self) -> &Device {
        self.buffer.device()
    }

    /// Number of rows.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Number of columns.
    #[must_use]
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// `(rows, cols)`.
    #[must_use]
    pub fn shape(&self) -> (usize, usize) {
        (self.rows, self.cols)
    }

    /// Number of values.
    #[must_use]
    pub fn data_len(&self) -> usize {
        self.rows * self.cols
    }

    /// Sets every value to zero.
    pub fn clear(&mut self) {
        self.buffer.clear();
    }

    /// The same values on `device`.
    #[must_use]
    pub fn to(&self, device: &Device) -> Self {
        match (self.device(), device) {
            (one, other) if one == other => self.clone(),
            (Device::Cpu, _) => Self::from_slice(device, self.rows, self.cols, self.data()),
            _ => Self::from_vec(device, self.rows, self.cols, self.to_vec()),
        }
    }

    /// The values on a GPU.
    ///
    /// # Errors
    /// There are none, because the GPU's work has a fault.
    ///
    /// # Panics
    /// If they are on the CPU.
    pub(crate) fn on_gpu(&self) -> Result<&CudaBuffer<f32>, CudaError> {
        self.buffer.on_gpu()
    }

    /// The values on a GPU for writing.
    ///
    /// # Errors
    /// There are none, because the GPU's work has a fault.
    ///
    /// # Panics
    /// If they are on the CPU.
    pub fn on_gpu_mut(&mut self) -> Result<&mut CudaBuffer<f32>, CudaError> {
        self.buffer.on_gpu_mut()
    }

    /// The values on the CPU, row by row.
    ///
    /// # Panics
    /// If they are on a GPU.
    #[must_use]
    pub fn data(&self) -> &[f32] {
        self.buffer.as_slice()
    }

    /// The values on the CPU for writing, row by row.
    ///
    /// # Panics
    /// If they are on a GPU.
    #[must_use]
    pub fn data_mut(&mut self) -> &mut [f32] {
        self.buffer.as_mut_slice()
    }

    /// One row.
    ///
    /// # Panics
    /// If there is no such row.
    #[must_use]
    pub fn row(&self, row: usize) -> &[f32] {
        &self.data()[row * self.cols..][..self.cols]
    }

    /// One row for writing.
    ///
    /// # Panics
    /// If there is no such row.
    #[must_use]
    pub fn row_mut(&mut self, row: usize) -> &mut [f32] {
        let cols = self.cols;
        &mut self.data_mut()[row * cols..][..cols]
    }

    /// The values in memory of the CPU, row by row. Waits for a GPU, and copies; zeros after a fault of one.
    #[must_use]
    pub fn read(&self) -> Cow<'_, [f32]> {
        match self.device() {
            Device::Cpu => Cow::Borrowed(self.data()),
            Device::Cuda(_) => Cow::Owned(self.to_vec()),
        }
    }

    /// Asks for the values, and does not wait for them.
    #[must_use]
    pub fn fetch(self) -> Fetched {
        let coming = self.buffer.fetch();
        Fetched { tensor: self, coming }
    }

    /// Asks the GPU that has it for the values, for any thread to wait for.
    ///
    /// # Errors
    /// The GPU's work has a fault.
    ///
    /// # Panics
    /// If it is on the CPU.
    pub fn detach(&self) -> Result<DetachedCopy<f32>, CudaError> {
        self.buffer.detach()
    }

    /// A copy of the values in host memory.
    #[must_use]
    pub fn to_vec(&self) -> Vec<f32> {
        self.buffer.copy_to_host()
    }

    pub(super) fn view(&self) -> View<'_> {
        View::new(self.data(), self.rows, self.cols)
    }

    pub(super) fn view_mut(&mut self) -> ViewMut<'_> {
        let (rows, cols) = self.shape();
        ViewMut::new(self.data_mut(), rows, cols)
    }
}
