//! Sum, rectifier, scaling, element by element.

/// `out = x + y`.
pub fn add(out: &mut [f32], x: &[f32], y: &[f32]) {
    for ((o, x), y) in out.iter_mut().zip(x).zip(y) {
        *o = x + y;
    }
}

/// `out = d` (fresh) or `out += d`.
pub fn accumulate(out: &mut [f32], d: &[f32], fresh: bool) {
    if fresh {
        out.copy_from_slice(d);
    } else {
        out.iter_mut().zip(d).for_each(|(o, d)| *o += d);
    }
}

/// `out = max(x, 0)`; NaN stays NaN.
pub fn relu(out: &mut [f32], x: &[f32]) {
    for (o, x) in out.iter_mut().zip(x) {
        *o = if *x < 0.0 { 0.0 } else { *x };
    }
}

/// Clears `d` where the rectifier's result is not positive.
pub fn relu_backward(d: &mut [f32], result: &[f32]) {
    for (d, y) in d.iter_mut().zip(result) {
        *d = if *y <= 0.0 { 0.0 } else { *d };
    }
}

/// `out = factor * x`.
pub fn scale(out: &mut [f32], x: &[f32], factor: f32) {
    for (o, x) in out.iter_mut().zip(x) {
        *o = factor * x;
    }
}
