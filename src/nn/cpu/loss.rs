//! Binary cross entropy of logits. Summed in f64: there are few logits.

/// The mean loss; 0 of none.
pub fn bce(logits: &[f32], targets: impl Iterator<Item = f32>) -> f32 {
    if logits.is_empty() {
        return 0.0;
    }
    let one = |(x, t): (&f32, f32)| {
        let (x, t) = (f64::from(*x), f64::from(t));
        // `f64::max` would swallow a NaN.
        (if x < 0.0 { 0.0 } else { x }) - x * t + (-x.abs()).exp().ln_1p()
    };
    (logits.iter().zip(targets).map(one).sum::<f64>() / logits.len() as f64) as f32
}

/// The gradient `(sigmoid(x) - t) * factor`; of a mean of n the factor is a nth.
fn gradient(x: f32, t: f32, factor: f64) -> f32 {
    let sigmoid = 1.0 / (1.0 + (-f64::from(x)).exp());
    ((sigmoid - f64::from(t)) * factor) as f32
}

/// Turns targets into gradients, in place.
pub fn targets_to_gradients(targets: &mut [f32], logits: &[f32], scale: f32) {
    let factor = f64::from(scale) / logits.len() as f64;
    targets.iter_mut().zip(logits).for_each(|(t, x)| *t = gradient(*x, *t, factor));
}

/// Gradients of logits that all have the same target.
pub fn bce_backward(d: &mut [f32], logits: &[f32], target: f32, scale: f32) {
    let factor = f64::from(scale) / logits.len() as f64;
    d.iter_mut().zip(logits).for_each(|(d, x)| *d = gradient(*x, target, factor));
}
