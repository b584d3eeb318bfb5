//! Putting matrices side by side, and taking rows out of one.

use std::ops::Range;

use crate::device::Device;
use crate::nn::cpu::shape as cpu;
use crate::nn::cuda::gather as cuda;
use crate::nn::{Tape, Tensor, Var};

impl Tape<'_> {
    /// The values side by side: rows stay, columns add up.
    ///
    /// # Panics
    /// If the numbers of rows differ or there are no parts.
    pub fn concat(&mut self, parts: &[Var]) -> Var {
        assert!(!parts.is_empty(), "concat of nothing");
        let rows = self.value(parts[0]).rows();
        for part in parts {
            assert_eq!(self.value(*part).rows(), rows, "concat of different numbers of rows");
        }
        let cols = parts.iter().map(|p| self.value(*p).cols()).sum();
        let mut y = self.room(rows, cols);
        let values: Vec<&Tensor> = parts.iter().map(|part| self.value(*part)).collect();
        match self.device() {
            Device::Cpu => {
                let mut at = 0;
                for x in values {
                    cpu::put_columns(y.data_mut(), cols, at, x.data(), x.cols());
                    at += x.cols();
                }
            }
            Device::Cuda(work) => cuda::concat(work, &mut y, &values),
        }
        let needs = parts.iter().any(|p| self.needs(*p));
        let parts = parts.to_vec();
        self.push_with(y, needs, move |_, d, walk| {
            let mut at = 0;
            for part in parts {
                let width = walk.value(part).cols();
                walk.flow_with(part, |dx, overwrite| match d.device() {
                    Device::Cpu => cpu::get_columns(dx.data_mut(), width, d.data(), d.cols(), at, overwrite),
                    Device::Cuda(work) => cuda::columns_from(work, dx, &d, at, overwrite),
                });
                at += width;
            }
            walk.give(d);
        })
    }

    /// A range of rows.
    ///
    /// # Panics
    /// If the range reaches beyond the value's rows.
    pub fn rows(&mut self, x: Var, range: Range<usize>) -> Var {
        let cols = self.value(x).cols();
        let mut y = self.room(range.len(), cols);
        match self.device() {
            Device::Cpu => {
                y.data_mut().copy_from_slice(&self.value(x).data()[range.start * cols..range.end * cols]);
            }
            Device::Cuda(work) => cuda::rows_from(work, &mut y, self.value(x), range.start),
        }
        let needs = self.needs(x);
        self.push_with(y, needs, move |_, d, walk| {
            let Range { start, end } = range;
            walk.flow_with(x, |dx, overwrite| match d.device() {
                Device::Cpu => cpu::add_rows_at(dx.data_mut(), d.cols(), start, end, d.data(), overwrite),
                Device::Cuda(work) => cuda::add_rows_at(work, dx, &d, start, overwrite),
            });
            walk.give(d);
        })
    }
}
