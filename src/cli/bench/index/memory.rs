//! How fast memory is read, which bounds a scan.

use super::super::seconds;
use crate::device::{Device, DeviceBuffer};

/// Values that are read.
const READ_VALUES: usize = 64 << 20;
const READ_RUNS: usize = 5;

/// Bytes per second that threads read of memory beyond any cache, each of a part of its own; the best of some runs.
#[allow(clippy::cast_precision_loss)]
pub(super) fn read_rate(threads: usize) -> f64 {
    let mut values = DeviceBuffer::<f32>::zeros(&Device::Cpu, READ_VALUES);
    values.as_mut_slice().fill(1.0);
    let values = values.as_slice();
    let sum = |part: &[f32]| {
        let mut sums = [0.0_f32; 64];
        for values in part.chunks_exact(64) {
            sums.iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
        }
        std::hint::black_box(sums);
    };
    let once = || {
        let (took, ()) = seconds(|| {
            std::thread::scope(|scope| {
                for part in values.chunks(READ_VALUES.div_ceil(threads)) {
                    scope.spawn(move || sum(part));
                }
            });
        });
        size_of_val(values) as f64 / took
    };
    (0..READ_RUNS).map(|_| once()).fold(0.0, f64::max)
}
