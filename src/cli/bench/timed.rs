//! The time that a GPU takes for a call, by its own clock.

use super::Spread;
use crate::device::cuda::{Cuda, CudaError};

/// Seconds of one call on a stream, by the GPU's clock: `calls` in a row, `runs` times, after some untimed ones.
///
/// # Errors
/// Those of the call, or the GPU's.
pub fn timed(
    cuda: &Cuda,
    (runs, calls): (u32, u32),
    mut call: impl FnMut() -> Result<(), CudaError>,
) -> Result<Spread, CudaError> {
    (0..calls.min(3)).try_for_each(|_| call())?;
    let stream = cuda.compute();
    let mut seconds = Vec::new();
    for _ in 0..runs {
        let begin = stream.record_timed()?;
        (0..calls).try_for_each(|_| call())?;
        let end = stream.record_timed()?;
        seconds.push(end.seconds_since(&begin)? / f64::from(calls));
    }
    Ok(Spread::of(seconds))
}
