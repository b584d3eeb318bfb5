//! First values of weights: pure functions of a key, so that a seed makes the same model everywhere.

use crate::device::{Device, rng};

use super::Tensor;

/// Uniform in `[-bound, bound)`. The last word of the counter is the element's place.
#[must_use]
pub fn uniform(device: &Device, rows: usize, cols: usize, bound: f32, key: [u64; 3]) -> Tensor {
    let one = |i: usize| (rng::unit_f32([key[0], key[1], key[2], i as u64]) * 2.0 - 1.0) * bound;
    Tensor::from_vec(device, rows, cols, (0..rows * cols).map(one).collect())
}

/// Normal with mean 0 and the given standard deviation.
#[must_use]
pub fn normal(device: &Device, rows: usize, cols: usize, deviation: f32, key: [u64; 3]) -> Tensor {
    let one = |i: usize| rng::normal_f32([key[0], key[1], key[2], i as u64]) * deviation;
    Tensor::from_vec(device, rows, cols, (0..rows * cols).map(one).collect())
}

/// Glorot's uniform for a weight `[out, in]`: bound `sqrt(6 / (in + out))`.
#[must_use]
pub fn xavier_uniform(device: &Device, out: usize, input: usize, key: [u64; 3]) -> Tensor {
    uniform(device, out, input, (6.0 / (input + out).max(1) as f32).sqrt(), key)
}

/// What frameworks give a linear layer: weight `[out, in]` and bias `[1, out]`, both with bound `1 / sqrt(in)`.
#[must_use]
pub fn torch_linear(device: &Device, out: usize, input: usize, key: [u64; 3]) -> (Tensor, Tensor) {
    let bound = 1.0 / (input.max(1) as f32).sqrt();
    let bias_key = [key[0], key[1], key[2] ^ (1 << 63)];
    (uniform(device, out, input, bound, key), uniform(device, 1, out, bound, bias_key))
}

/// What frameworks give a recurrent cell with `blocks` gates (3 for a GRU, 1 for a plain cell): `w_ih`
/// `[blocks * hidden, in]`, `w_hh` `[blocks * hidden, hidden]`, `b_ih` and `b_hh`, all with bound `1 / sqrt(hidden)`.
#[must_use]
pub fn torch_recurrent(
    device: &Device,
    blocks: usize,
    input: usize,
    hidden: usize,
    key: [u64; 3],
) -> [Tensor; 4] {
    let bound = 1.0 / (hidden.max(1) as f32).sqrt();
    let part = |n: u64, cols| {
        let rows = if cols == 0 { 1 } else { blocks * hidden };
        let cols = if cols == 0 { blocks * hidden } else { cols };
        uniform(device, rows, cols, bound, [key[0], key[1], key[2] ^ (n << 62)])
    };
    [part(0, input.max(1)), part(1, hidden), part(2, 0), part(3, 0)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_moments_and_independence() {
        let device = Device::Cpu;
        let w = xavier_uniform(&device, 50, 70, [1, 2, 3]);
        let bound = (6.0f32 / 120.0).sqrt();
        assert!(w.data().iter().all(|v| v.abs() <= bound));
        assert!(w.data().iter().any(|v| v.abs() > 0.9 * bound));
        let mean = w.data().iter().sum::<f32>() / 3500.0;
        assert!(mean.abs() < 0.1 * bound, "{mean}");
        assert_eq!(w.data(), xavier_uniform(&device, 50, 70, [1, 2, 3]).data());
        assert_ne!(w.data(), xavier_uniform(&device, 50, 70, [1, 2, 4]).data());
        let n = normal(&device, 100, 100, 2.0, [1, 2, 3]);
        let variance = n.data().iter().map(|v| v * v).sum::<f32>() / 10_000.0;
        assert!((variance - 4.0).abs() < 0.3, "{variance}");
        let (w, b) = torch_linear(&device, 3, 16, [1, 2, 3]);
        assert_eq!((w.shape(), b.shape()), ((3, 16), (1, 3)));
        assert!(w.data().iter().chain(b.data()).all(|v| v.abs() <= 0.25));
        let shapes = torch_recurrent(&device, 3, 7, 4, [1, 2, 3]).map(|t| t.shape());
        assert_eq!(shapes, [(12, 7), (12, 4), (1, 12), (1, 12)]);
    }
}
