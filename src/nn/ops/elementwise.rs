//! Element by element: sum, product, rectifier, scaling.

use crate::device::Device;
use crate::nn::cpu::elementwise as cpu;
use crate::nn::cuda::elementwise as cuda;
use crate::nn::tape::{Backward, Walk};
use crate::nn::{Tape, TapePool, Tensor, Var};

struct Add {
    x: Var,
    y: Var,
}

struct Mul {
    x: Var,
    y: Var,
}

struct Relu {
    x: Var,
}

struct Scale {
    x: Var,
    factor: f32,
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
            Device::Cuda(work) => cuda::add(work, &mut sum, self.value(x), self.value(y)),
        }
        let needs = self.needs(x) || self.needs(y);
        self.push(sum, needs, needs.then(|| Box::new(Add { x, y }) as _))
    }

    /// `x * y`, of one shape.
    ///
    /// # Panics
    /// If the shapes differ.
    pub fn mul(&mut self, x: Var, y: Var) -> Var {
        let (rows, cols) = self.value(x).shape();
        assert_eq!((rows, cols), self.value(y).shape(), "mul of two shapes");
        let mut product = self.room(rows, cols);
        match self.device() {
            Device::Cpu => cpu::mul(product.data_mut(), self.value(x).data(), self.value(y).data(), true),
            Device::Cuda(work) => cuda::mul(work, &mut product, self.value(x), self.value(y), true),
        }
        let needs = self.needs(x) || self.needs(y);
        self.push(product, needs, needs.then(|| Box::new(Mul { x, y }) as _))
    }

    /// `max(x, 0)`; the gradient at 0 is 0.
    pub fn relu(&mut self, x: Var) -> Var {
        let (rows, cols) = self.value(x).shape();
        let mut y = self.room(rows, cols);
        match self.device() {
            Device::Cpu => cpu::relu(y.data_mut(), self.value(x).data()),
            Device::Cuda(work) => cuda::relu(work, &mut y, self.value(x)),
        }
        let needs = self.needs(x);
        self.push(y, needs, needs.then(|| Box::new(Relu { x }) as _))
    }

    /// `factor * x`.
    pub fn scale(&mut self, x: Var, factor: f32) -> Var {
        let (rows, cols) = self.value(x).shape();
        let mut y = self.room(rows, cols);
        match self.device() {
            Device::Cpu => cpu::scale(y.data_mut(), self.value(x).data(), factor),
            Device::Cuda(work) => cuda::scale(work, &mut y, self.value(x), factor),
        }
        let needs = self.needs(x);
        self.push(y, needs, needs.then(|| Box::new(Scale { x, factor }) as _))
    }
}

/// `sum = d`, or adds it.
pub(in crate::nn) fn accumulate(sum: &mut Tensor, d: &Tensor, overwrite: bool) {
    match d.device() {
        Device::Cpu => cpu::accumulate(sum.data_mut(), d.data(), overwrite),
        Device::Cuda(work) => cuda::accumulate(work, sum, d, overwrite),
    }
}

impl Backward for Add {
    fn backward(self: Box<Self>, _result: Var, d: Tensor, walk: &mut Walk<'_>) {
        walk.flow_with(self.y, |dy, overwrite| accumulate(dy, &d, overwrite));
        walk.flow(self.x, d);
    }

    fn release(self: Box<Self>, _pool: &mut TapePool) {}
}

impl Backward for Mul {
    fn backward(self: Box<Self>, _result: Var, d: Tensor, walk: &mut Walk<'_>) {
        for (var, other) in [(self.x, self.y), (self.y, self.x)] {
            let other = walk.value(other);
            walk.flow_with(var, |dx, overwrite| match d.device() {
                Device::Cpu => cpu::mul(dx.data_mut(), d.data(), other.data(), overwrite),
                Device::Cuda(work) => cuda::mul(work, dx, &d, other, overwrite),
            });
        }
        walk.give(d);
    }

    fn release(self: Box<Self>, _pool: &mut TapePool) {}
}

impl Backward for Relu {
    fn backward(self: Box<Self>, result: Var, mut d: Tensor, walk: &mut Walk<'_>) {
        match walk.device {
            Device::Cpu => cpu::relu_backward(d.data_mut(), walk.value(result).data()),
            Device::Cuda(work) => cuda::relu_backward(work, &mut d, walk.value(result)),
        }
        walk.flow(self.x, d);
    }

    fn release(self: Box<Self>, _pool: &mut TapePool) {}
}

impl Backward for Scale {
    fn backward(self: Box<Self>, _result: Var, mut d: Tensor, walk: &mut Walk<'_>) {
        match walk.device {
            Device::Cpu => d.data_mut().iter_mut().for_each(|v| *v *= self.factor),
            Device::Cuda(work) => cuda::scale_in_place(work, &mut d, self.factor),
        }
        walk.flow(self.x, d);
    }

    fn release(self: Box<Self>, _pool: &mut TapePool) {}
}
