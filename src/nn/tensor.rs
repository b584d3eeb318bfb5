//! [`Tensor`]: a row-major matrix of f32 on a device. Knows nothing of gradients.

use crate::device::matmul::{View, ViewMut};
use crate::device::{Device, DeviceBuffer};

/// A row-major `rows x cols` matrix of f32.
#[derive(Clone, Debug)]
pub struct Tensor {
    rows: usize,
    cols: usize,
    buffer: DeviceBuffer<f32>,
}

impl Tensor {
    /// All zeros.
    #[must_use]
    pub fn zeros(device: &Device, rows: usize, cols: usize) -> Self {
        Self { rows, cols, buffer: DeviceBuffer::zeros(device, rows * cols) }
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
            self.buffer = DeviceBuffer::zeros(&self.device().clone(), len + len / 4);
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

    /// The values, row by row.
    #[must_use]
    pub fn data(&self) -> &[f32] {
        self.buffer.as_slice()
    }

    /// The values for writing, row by row.
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
