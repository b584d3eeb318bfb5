//! First values of weights: pure functions of a key, so that a seed makes the same model everywhere.

use crate::device::{Device, rng};

use super::Tensor;

/// Uniform in `[-bound, bound)`. The last word of the counter is the element's place.
#[must_use]
pub fn uniform(device: &Device, rows: usize, cols: usize, bound: f32, key: [u64; 3]) -> Tensor {
    let one = |i: usize| (rng::unit_f32([key[0], key[1], key[2], i as u64]) * 2.0 - 1.0) * bound;
    Tensor::from_vec(device, rows, cols, (0..rows * cols).map(one).collect())
}

/// What frameworks give a linear layer: weight `[out, in]` and bias `[1, out]`, both with bound `1 / sqrt(in)`.
#[must_use]
pub fn torch_linear(device: &Device, out: usize, input: usize, key: [u64; 3]) -> (Tensor, Tensor) {
    let bound = 1.0 / (input.max(1) as f32).sqrt();
    let bias_key = [key[0], key[1], key[2] ^ (1 << 63)];
    (uniform(device, out, input, bound, key), uniform(device, 1, out, bound, bias_key))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_means_and_independence() {
        let device = Device::Cpu;
        let make = |key| uniform(&device, 50, 70, 0.25, key);
        let w = make([1, 2, 3]);
        assert!(w.data().iter().all(|v| v.abs() <= 0.25) && w.data().iter().any(|v| v.abs() > 0.22));
        let mean = w.data().iter().sum::<f32>() / 3500.0;
        assert!(mean.abs() < 0.025, "{mean}");
        assert_eq!(w.data(), make([1, 2, 3]).data());
        assert_ne!(w.data(), make([1, 2, 4]).data());
        let (w, b) = torch_linear(&device, 3, 16, [1, 2, 3]);
        assert_eq!((w.shape(), b.shape()), ((3, 16), (1, 3)));
        assert!(w.data().iter().chain(b.data()).all(|v| v.abs() <= 0.25));
    }
}
