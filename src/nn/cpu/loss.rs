//! Binary cross entropy of logits. Summed in f64: there are few logits.

/// The mean loss.
pub fn bce(logits: &[f32], targets: &[f32]) -> f32 {
    let one = |(x, t): (&f32, &f32)| {
        let (x, t) = (f64::from(*x), f64::from(*t));
        // `f64::max` would swallow a NaN.
        (if x < 0.0 { 0.0 } else { x }) - x * t + (-x.abs()).exp().ln_1p()
    };
    (logits.iter().zip(targets).map(one).sum::<f64>() / logits.len() as f64) as f32
}

/// Turns targets into gradients, in place: `(sigmoid(x) - t) * d / n`.
pub fn bce_backward(targets: &mut [f32], logits: &[f32], d: f32) {
    let factor = f64::from(d) / logits.len() as f64;
    for (t, x) in targets.iter_mut().zip(logits) {
        let sigmoid = 1.0 / (1.0 + (-f64::from(*x)).exp());
        *t = ((sigmoid - f64::from(*t)) * factor) as f32;
    }
}
