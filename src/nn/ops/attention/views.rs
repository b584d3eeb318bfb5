//! Strided views of the parts of one head, and of what stands before the tail of a query.

use crate::device::matmul::{View, ViewMut};
use crate::nn::Tensor;
use crate::nn::cpu::attention::Shape;

impl Shape {
    pub(super) fn scale(&self) -> f32 {
        1.0 / (self.head_width() as f32).sqrt()
    }

    pub(super) fn head_width(&self) -> usize {
        self.model / self.heads
    }

    pub(super) fn head<'a>(&self, data: &'a [f32], h: usize) -> View<'a> {
        let (width, rows) = (self.head_width(), rows(data, self.model));
        View::strided(&data[(h * width).min(data.len())..], rows, width, self.model)
    }

    pub(super) fn head_mut<'a>(&self, data: &'a mut [f32], h: usize) -> ViewMut<'a> {
        let (width, rows) = (self.head_width(), rows(data, self.model));
        let from = (h * width).min(data.len());
        ViewMut::strided(&mut data[from..], rows, width, self.model)
    }

    pub(super) fn block<'a>(&self, data: &'a [f32], h: usize) -> View<'a> {
        let (from, stride) = ((h * self.padded).min(data.len()), self.heads * self.padded);
        View::strided(&data[from..], rows(data, stride), self.width, stride)
    }

    pub(super) fn block_mut<'a>(&self, data: &'a mut [f32], h: usize) -> ViewMut<'a> {
        let (from, stride) = ((h * self.padded).min(data.len()), self.heads * self.padded);
        let rows = rows(data, stride);
        ViewMut::strided(&mut data[from..], rows, self.width, stride)
    }

    pub(super) fn weight<'a>(&self, data: &'a [f32], h: usize) -> View<'a> {
        View::new(&data[h * self.head_width() * self.width..], self.head_width(), self.width)
    }

    pub(super) fn weight_mut<'a>(&self, data: &'a mut [f32], h: usize) -> ViewMut<'a> {
        ViewMut::new(&mut data[h * self.head_width() * self.width..], self.head_width(), self.width)
    }
}

/// The columns of `w_q` before those of the tail.
pub(super) fn before_tail<'a>(w_q: &'a Tensor, tail: &[f32]) -> View<'a> {
    View::strided(w_q.data(), w_q.rows(), w_q.cols() - tail.len(), w_q.cols())
}

/// Rows of `cols` in `data`.
fn rows(data: &[f32], cols: usize) -> usize {
    data.len().checked_div(cols).unwrap_or(0)
}
