//! The operations in f64, written for reading.

use crate::nn::cpu::dropout;

#[derive(Clone, Debug)]
pub struct Matrix {
    pub rows: usize,
    pub cols: usize,
    pub values: Vec<f64>,
}

impl Matrix {
    pub fn from_fn(rows: usize, cols: usize, f: impl Fn(usize, usize) -> f64) -> Self {
        let values = (0..rows * cols).map(|i| f(i / cols, i % cols)).collect();
        Self { rows, cols, values }
    }

    pub fn at(&self, r: usize, c: usize) -> f64 {
        self.values[r * self.cols + c]
    }

    pub fn map(&self, f: impl Fn(f64) -> f64) -> Self {
        Self { values: self.values.iter().map(|v| f(*v)).collect(), ..*self }
    }
}

pub fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// `x` times the part of a normal distribution below it, by the series of the error function; for `|x|` below 6.
pub fn gelu(x: f64) -> f64 {
    let z = x / std::f64::consts::SQRT_2;
    let (mut term, mut sum) = (z, z);
    for n in 1..150 {
        term *= -z * z / f64::from(n);
        sum += term / f64::from(2 * n + 1);
    }
    x * (0.5 + sum / std::f64::consts::PI.sqrt())
}

pub fn linear(x: &Matrix, w: &Matrix, b: Option<&Matrix>) -> Matrix {
    Matrix::from_fn(x.rows, w.rows, |r, o| {
        (0..x.cols).map(|i| x.at(r, i) * w.at(o, i)).sum::<f64>() + b.map_or(0.0, |b| b.values[o])
    })
}

/// Parameters in the order w_ih, w_hh, b_ih, b_hh.
pub fn gru(x: &Matrix, h: &Matrix, p: &[Matrix]) -> Matrix {
    let (i, s) = (linear(x, &p[0], Some(&p[2])), linear(h, &p[1], Some(&p[3])));
    let w = h.cols;
    Matrix::from_fn(h.rows, w, |r, c| {
        let reset = sigmoid(i.at(r, c) + s.at(r, c));
        let update = sigmoid(i.at(r, w + c) + s.at(r, w + c));
        let new = (i.at(r, 2 * w + c) + reset * s.at(r, 2 * w + c)).tanh();
        (1.0 - update) * new + update * h.at(r, c)
    })
}

pub fn rnn(x: &Matrix, h: &Matrix, p: &[Matrix]) -> Matrix {
    let (i, s) = (linear(x, &p[0], Some(&p[2])), linear(h, &p[1], Some(&p[3])));
    Matrix::from_fn(h.rows, h.cols, |r, c| (i.at(r, c) + s.at(r, c)).tanh())
}

pub fn layer_norm(x: &Matrix, gamma: &Matrix, beta: &Matrix, eps: f64) -> Matrix {
    let n = x.cols as f64;
    let mean = |r| (0..x.cols).map(|c| x.at(r, c)).sum::<f64>() / n;
    let variance = |r| (0..x.cols).map(|c| (x.at(r, c) - mean(r)).powi(2)).sum::<f64>() / n;
    Matrix::from_fn(x.rows, x.cols, |r, c| {
        (x.at(r, c) - mean(r)) / (variance(r) + eps).sqrt() * gamma.values[c] + beta.values[c]
    })
}

pub fn time_encoding(deltas: &[f32], w: &Matrix, b: &Matrix) -> Matrix {
    Matrix::from_fn(deltas.len(), w.values.len(), |r, c| {
        (w.values[c] * f64::from(deltas[r]) + b.values[c]).cos()
    })
}

/// Mean binary cross entropy.
pub fn bce(x: &Matrix, t: &Matrix) -> f64 {
    let one = |(x, t): (&f64, &f64)| x.max(0.0) - x * t + (-x.abs()).exp().ln_1p();
    x.values.iter().zip(&t.values).map(one).sum::<f64>() / x.values.len() as f64
}

/// What attention reads beside matrices.
pub struct Slots<'a> {
    pub slots: &'a [u32],
    pub deltas: &'a [f32],
    pub edges: Option<&'a Matrix>,
    pub edge_slots: Option<&'a [u32]>,
    pub heads: usize,
    pub dropout: (f32, [u64; 3]),
}

/// Unfolded attention: keys and values are projected per slot. `time` is w and b; weights are w_q, w_k, w_v.
pub fn attention(
    query: &Matrix,
    nodes: &Matrix,
    weights: [&Matrix; 3],
    time: (&Matrix, &Matrix),
    a: &Slots<'_>,
) -> Matrix {
    let phi = time_encoding(a.deltas, time.0, time.1);
    let edge_width = a.edges.map_or(0, |e| e.cols);
    let slots = Matrix::from_fn(a.slots.len(), nodes.cols + edge_width + phi.cols, |s, c| {
        if a.slots[s] == u32::MAX {
            0.0
        } else if c < nodes.cols {
            nodes.at(a.slots[s] as usize, c)
        } else if c < nodes.cols + edge_width {
            let row = a.edge_slots.map_or(s, |at| at[s] as usize);
            a.edges.map_or(0.0, |e| e.at(row, c - nodes.cols))
        } else {
            phi.at(s, c - nodes.cols - edge_width)
        }
    });
    let q = linear(query, weights[0], None);
    let (keys, values) = (linear(&slots, weights[1], None), linear(&slots, weights[2], None));
    let (k, d) = (a.slots.len() / query.rows, q.cols / a.heads);
    Matrix::from_fn(query.rows, q.cols, |s, c| {
        let head = c / d;
        let occupied: Vec<usize> = (s * k..(s + 1) * k).filter(|i| a.slots[*i] != u32::MAX).collect();
        let score = |i: usize| {
            (head * d..(head + 1) * d).map(|j| q.at(s, j) * keys.at(i, j)).sum::<f64>() / (d as f64).sqrt()
        };
        let sum: f64 = occupied.iter().map(|i| score(*i).exp()).sum();
        let part = |i: &usize| {
            let (p, key) = a.dropout;
            let index = (s * a.heads + head) * k + i - s * k;
            let kept = if p == 0.0 { 1.0 } else { dropout::factor(p, key, index as u64) };
            score(*i).exp() / sum * f64::from(kept) * values.at(*i, c)
        };
        occupied.iter().map(part).sum()
    })
}
