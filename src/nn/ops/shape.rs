//! Putting matrices side by side, and taking rows out of one.

use std::ops::Range;

use crate::device::Device;
use crate::nn::cpu::shape as cpu;
use crate::nn::cuda::gather as cuda;
use crate::nn::{Tape, Var};

impl Tape<'_> {
    /// The values side by side: rows stay, columns add up.
    ///
    /// # Panics
    /// If the numbers of rows differ or there are no parts.
    pub fn concat(&mut self, parts: &[Var]) -> Var {
        let every = |part: &Var| (*part, 0..self.value(*part).rows());
        let parts = parts.iter().map(every).collect::<Vec<_>>();
        self.concat_rows(parts)
    }

    /// The same of ranges of rows.
    ///
    /// # Panics
    /// If the ranges are of different lengths, reach beyond a value's rows, or there are none.
    pub fn concat_rows(&mut self, parts: Vec<(Var, Range<usize>)>) -> Var {
        assert!(!parts.is_empty(), "concat of nothing");
        let rows = parts[0].1.len();
        for (part, range) in &parts {
            assert_eq!(range.len(), rows, "concat of different numbers of rows");
            assert!(range.end <= self.value(*part).rows(), "concat: rows {range:?} of a value");
        }
        let cols = parts.iter().map(|(part, _)| self.value(*part).cols()).sum();
        let mut y = self.room(rows, cols);
        let values: Vec<_> = parts.iter().map(|(part, range)| (self.value(*part), range.start)).collect();
        match self.device() {
            Device::Cpu => {
                let mut at = 0;
                for (x, first) in values {
                    let from = &x.data()[first * x.cols()..][..rows * x.cols()];
                    cpu::put_columns(y.data_mut(), cols, at, from, x.cols());
                    at += x.cols();
                }
            }
            Device::Cuda(work) => cuda::concat(work, &mut y, &values),
        }
        let needs = parts.iter().any(|(part, _)| self.needs(*part));
        self.push_with(y, needs, move |_, d, walk| {
            let mut at = 0;
            for (part, range) in parts {
                let width = walk.value(part).cols();
                walk.flow_into_rows(part, &range, |dx, overwrite| match d.device() {
                    Device::Cpu => {
                        let into = &mut dx.data_mut()[range.start * width..][..range.len() * width];
                        cpu::get_columns(into, width, d.data(), d.cols(), at, overwrite);
                    }
                    Device::Cuda(work) => cuda::columns_from(work, (dx, range.start), &d, at, overwrite),
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
        self.concat_rows(vec![(x, range)])
    }
}
