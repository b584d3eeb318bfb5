//! Element by element: sum, product, rectifier, scaling.

use crate::device::Device;
use crate::device::cuda::layers as gpu;
use crate::nn::cpu::elementwise as cpu;
use crate::nn::tape::Walk;
use crate::nn::{ParamId, Tape, Tensor, Var};

impl Tensor {
    /// Adds `other`, of the same shape.
    ///
    /// # Panics
    /// If the shapes differ.
    pub fn add(&mut self, other: &Self) {
        assert_eq!(self.shape(), other.shape(), "add of two shapes");
        accumulate(self, other, false);
    }
}

impl Tape<'_> {
    /// `x + y`, of one shape.
    ///
    /// # Panics
    /// If the shapes differ.
    pub fn add(&mut self, x: Var, y: Var) -> Var {
        let (rows, cols) = self.value(x).shape();
        assert_eq!((rows, cols), self.value(y).shape(), "add of two shapes");
        let mut sum = self.room(rows, cols);
        match self.device() {
            Device::Cpu => cpu::add(sum.data_mut(), self.value(x).data(), self.value(y).data()),
            Device::Cuda(work) => work.run(|context| {
                let (x, y) = (self.value(x), self.value(y));
                gpu::add(context, x.on_gpu()?, y.on_gpu()?, x.data_len(), sum.on_gpu_mut()?)
            }),
        }
        let needs = self.needs(x) || self.needs(y);
        self.push_with(sum, needs, move |_, d, walk| {
            walk.flow_with(y, |dy, overwrite| accumulate(dy, &d, overwrite));
            walk.flow(x, d);
        })
    }

    /// `x * y`, of one shape.
    ///
    /// # Panics
    /// If the shapes differ.
    pub fn mul(&mut self, x: Var, y: Var) -> Var {
        let (rows, cols) = self.value(x).shape();
        assert_eq!((rows, cols), self.value(y).shape(), "mul of two shapes");
        let mut product = self.room(rows, cols);
        multiply(&mut product, self.value(x), self.value(y), true);
        let needs = self.needs(x) || self.needs(y);
        self.push_with(product, needs, move |_, d, walk| {
            for (var, other) in [(x, y), (y, x)] {
                let other = walk.value(other);
                walk.flow_with(var, |dx, overwrite| multiply(dx, &d, other, overwrite));
            }
            walk.give(d);
        })
    }

    /// `max(x, 0)`; the gradient at 0 is 0.
    pub fn relu(&mut self, x: Var) -> Var {
        let (rows, cols) = self.value(x).shape();
        let mut y = self.room(rows, cols);
        match self.device() {
            Device::Cpu => cpu::relu(y.data_mut(), self.value(x).data()),
            Device::Cuda(work) => work.run(|context| {
                let x = self.value(x);
                gpu::relu(context, x.on_gpu()?, x.data_len(), y.on_gpu_mut()?)
            }),
        }
        let needs = self.needs(x);
        self.push_with(y, needs, move |result, mut d, walk| {
            relu_backward(&mut d, walk.value(result));
            walk.flow(x, d);
        })
    }

    /// `factor * x`.
    pub fn scale(&mut self, x: Var, factor: f32) -> Var {
        let (rows, cols) = self.value(x).shape();
        let mut y = self.room(rows, cols);
        match self.device() {
            Device::Cpu => cpu::scale(y.data_mut(), self.value(x).data(), factor),
            Device::Cuda(work) => work.run(|context| {
                let x = self.value(x);
                gpu::scale(context, factor, x.on_gpu()?, x.data_len(), y.on_gpu_mut()?)
            }),
        }
        let needs = self.needs(x);
        self.push_with(y, needs, move |_, mut d, walk| {
            match walk.device {
                Device::Cpu => d.data_mut().iter_mut().for_each(|v| *v *= factor),
                Device::Cuda(work) => {
                    let mut dx = walk.take_like(x);
                    work.run(|context| {
                        gpu::scale(context, factor, d.on_gpu()?, d.data_len(), dx.on_gpu_mut()?)
                    });
                    walk.give(std::mem::replace(&mut d, dx));
                }
            }
            walk.flow(x, d);
        })
    }
}

/// Clears the gradient of a rectifier where its result is not positive.
pub(super) fn relu_backward(d: &mut Tensor, result: &Tensor) {
    match result.device() {
        Device::Cpu => cpu::relu_backward(d.data_mut(), result.data()),
        Device::Cuda(work) => work
            .run(|context| gpu::relu_backward(context, d.on_gpu_mut()?, result.on_gpu()?, result.data_len())),
    }
}

/// `sum = d`, or adds it.
pub(in crate::nn) fn accumulate(sum: &mut Tensor, d: &Tensor, overwrite: bool) {
    match d.device() {
        Device::Cpu => cpu::accumulate(sum.data_mut(), d.data(), overwrite),
        Device::Cuda(work) => work
            .run(|context| gpu::accumulate(context, d.on_gpu()?, d.data_len(), overwrite, sum.on_gpu_mut()?)),
    }
}

/// Adds to the gradients of `ids`, on the CPU, their values of `sums`, where those of one stand behind those of the
/// other.
pub(super) fn accumulate_each(walk: &mut Walk<'_>, ids: &[ParamId], sums: &[f32]) {
    let mut first = 0;
    for id in ids {
        let (sum, overwrite) = walk.gradient(*id);
        let count = sum.data_len();
        cpu::accumulate(sum.data_mut(), &sums[first..][..count], overwrite);
        first += count;
    }
}

/// `out = x * y`, or adds it.
fn multiply(out: &mut Tensor, x: &Tensor, y: &Tensor, overwrite: bool) {
    match x.device() {
        Device::Cpu => cpu::mul(out.data_mut(), x.data(), y.data(), overwrite),
        Device::Cuda(work) => work.run(|context| {
            gpu::multiply(context, x.on_gpu()?, y.on_gpu()?, x.data_len(), overwrite, out.on_gpu_mut()?)
        }),
    }
}
