//! Layer normalisation of rows.

/// `y = (x - mean) * rstd * gamma + beta` per row; `moments` gets mean and rstd per row.
pub fn forward(y: &mut [f32], moments: &mut [f32], x: &[f32], gamma: &[f32], beta: &[f32], eps: f32) {
    let cols = gamma.len();
    if cols == 0 {
        return;
    }
    for ((y, x), m) in y.chunks_exact_mut(cols).zip(x.chunks_exact(cols)).zip(moments.chunks_exact_mut(2)) {
        let n = cols as f32;
        let mean = x.iter().sum::<f32>() / n;
        let variance = x.iter().map(|v| (v - mean) * (v - mean)).sum::<f32>() / n;
        let rstd = 1.0 / (variance + eps).sqrt();
        m.copy_from_slice(&[mean, rstd]);
        for (((y, x), g), b) in y.iter_mut().zip(x).zip(gamma).zip(beta) {
            *y = (x - mean) * rstd * g + b;
        }
    }
}

/// Adds to the gradients of gamma and beta.
pub fn backward_parameters(dgamma: &mut [f32], dbeta: &mut [f32], d: &[f32], x: &[f32], moments: &[f32]) {
    let cols = dgamma.len();
    if cols == 0 {
        return;
    }
    for ((d, x), m) in d.chunks_exact(cols).zip(x.chunks_exact(cols)).zip(moments.chunks_exact(2)) {
        for (((dg, db), d), x) in dgamma.iter_mut().zip(dbeta.iter_mut()).zip(d).zip(x) {
            *dg += d * (x - m[0]) * m[1];
            *db += d;
        }
    }
}

/// Turns the gradient of the result, `d`, into that of the input, in place.
pub fn backward_input(d: &mut [f32], x: &[f32], moments: &[f32], gamma: &[f32]) {
    let cols = gamma.len();
    if cols == 0 {
        return;
    }
    for ((d, x), m) in d.chunks_exact_mut(cols).zip(x.chunks_exact(cols)).zip(moments.chunks_exact(2)) {
        let (mean, rstd) = (m[0], m[1]);
        let (mut sum, mut dot) = (0.0f32, 0.0f32);
        for ((d, x), g) in d.iter().zip(x).zip(gamma) {
            sum += d * g;
            dot += d * g * (x - mean) * rstd;
        }
        let (sum, dot) = (sum / cols as f32, dot / cols as f32);
        for ((d, x), g) in d.iter_mut().zip(x).zip(gamma) {
            *d = rstd * (*d * g - sum - (x - mean) * rstd * dot);
        }
    }
}
