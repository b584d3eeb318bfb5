//! The peak rates of this machine: copying, in cache and beyond, and matrix products, on one thread and on all.

use std::hint::black_box;

use serde::Serialize;

use super::super::{Spread, seconds};
use super::work::Bound;
use crate::device::matmul::{Into, Precision, View, ViewMut, in_precision, matmul};
use crate::device::stream;
use crate::device::{Device, DeviceBuffer};

/// Values of a copy beyond any cache, and of one that stays in the second level of each core.
const FAR: usize = 24 << 20;
const NEAR: usize = 1 << 15;
/// Bytes from which on an operation does not stay in cache.
const CACHED_BYTES: f64 = 16.0 * 1024.0 * 1024.0;
const RUNS: usize = 15;

/// Measured in the same run as the operations. A copied byte counts twice: it is read and written.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Ceilings {
    pub copy_bytes_per_second: f64,
    pub copy_one_thread_bytes_per_second: f64,
    pub copy_in_cache_bytes_per_second: f64,
    pub copy_in_cache_one_thread_bytes_per_second: f64,
    pub matmul_flops_per_second: f64,
    pub matmul_one_thread_flops_per_second: f64,
}

impl Ceilings {
    /// Measures all of them, products in this precision, and reports each measurement to `report`.
    ///
    /// # Errors
    /// No threads.
    pub fn measure(
        (threads, precision): (usize, Precision),
        quick: bool,
        mut report: impl FnMut(&str),
    ) -> anyhow::Result<Self> {
        let runs = if quick { 5 } else { RUNS };
        let on = |threads: usize| rayon::ThreadPoolBuilder::new().num_threads(threads).build();
        let (one, all) = (on(1)?, on(threads)?);
        report("ceiling: copy");
        let mut far = (DeviceBuffer::zeros(&Device::Cpu, FAR), DeviceBuffer::zeros(&Device::Cpu, FAR));
        far.0.as_mut_slice().fill(1.0);
        let mut copy = |pool: &rayon::ThreadPool, n: usize| pool.install(|| far_copy(&mut far, n, runs));
        let (copy_one, copy_all) = (copy(&one, 1), copy(&all, threads));
        drop(far);
        let near = |pool: &rayon::ThreadPool| pool.install(|| near_copy(runs));
        let (near_one, near_all) = (near(&one), near(&all));
        report("ceiling: matrix product");
        let run = || in_precision(precision, || product(runs.min(7)));
        let product = |pool: &rayon::ThreadPool| pool.install(run);
        Ok(Self {
            copy_bytes_per_second: copy_all,
            copy_one_thread_bytes_per_second: copy_one,
            copy_in_cache_bytes_per_second: near_all,
            copy_in_cache_one_thread_bytes_per_second: near_one,
            matmul_one_thread_flops_per_second: product(&one),
            matmul_flops_per_second: product(&all),
        })
    }

    /// The ceiling of an operation that moves so many bytes: its name and its value.
    pub fn of(&self, bound: Bound, bytes: f64, cold: bool, threads: usize) -> (&'static str, f64) {
        let pick = |one: f64, all: f64| if threads == 1 { one } else { all };
        match bound {
            Bound::Matmul => {
                ("matmul", pick(self.matmul_one_thread_flops_per_second, self.matmul_flops_per_second))
            }
            Bound::Copy if bytes > CACHED_BYTES || cold => {
                ("copy", pick(self.copy_one_thread_bytes_per_second, self.copy_bytes_per_second))
            }
            Bound::Copy => (
                "copy_in_cache",
                pick(self.copy_in_cache_one_thread_bytes_per_second, self.copy_in_cache_bytes_per_second),
            ),
        }
    }
}

/// Bytes per second, each thread copying a part of its own; with non-temporal or normal writes, whichever is faster.
#[allow(clippy::cast_precision_loss)]
fn far_copy((from, to): &mut (DeviceBuffer<f32>, DeviceBuffer<f32>), threads: usize, runs: usize) -> f64 {
    let part = FAR.div_ceil(threads);
    let mut once = |copy: fn(&mut [f32], &[f32])| {
        let (spent, ()) = seconds(|| {
            rayon::scope(|scope| {
                for (to, from) in to.as_mut_slice().chunks_mut(part).zip(from.as_slice().chunks(part)) {
                    scope.spawn(move |_| copy(to, from));
                }
            });
        });
        spent
    };
    once(stream::copy);
    let past = Spread::of((0..runs).map(|_| once(stream::copy))).median;
    let through = Spread::of((0..runs).map(|_| once(|to, from| to.copy_from_slice(from)))).median;
    (2 * FAR * size_of::<f32>()) as f64 / past.min(through)
}

#[allow(clippy::cast_precision_loss)]
fn near_copy(runs: usize) -> f64 {
    const TIMES: usize = 2_000;
    let once = || {
        let rates = rayon::broadcast(|_| {
            let (from, mut to) = (vec![1.0_f32; NEAR], vec![0.0_f32; NEAR]);
            to.copy_from_slice(&from);
            let (spent, ()) = seconds(|| {
                for _ in 0..TIMES {
                    black_box(&mut to).copy_from_slice(black_box(&from));
                }
            });
            (2 * NEAR * size_of::<f32>() * TIMES) as f64 / spent
        });
        rates.iter().sum()
    };
    Spread::of((0..runs).map(|_| once())).median
}

/// Operations per second of the best of some products that are big enough.
#[allow(clippy::cast_precision_loss)]
fn product(runs: usize) -> f64 {
    let rate = |(m, n, k): (usize, usize, usize)| {
        let (a, b, mut c) = (vec![0.5_f32; m * k], vec![0.5_f32; n * k], vec![0.0_f32; m * n]);
        let mut once = || {
            let (a, b) = (View::new(&a, m, k), View::new(&b, n, k).t());
            seconds(|| matmul(ViewMut::new(&mut c, m, n), Into::Replace, 1.0, a, b)).0
        };
        once();
        (2 * m * n * k) as f64 / Spread::of((0..runs).map(|_| once())).median
    };
    [(1024, 1024, 1024), (2048, 2048, 512), (6144, 256, 512)].into_iter().map(rate).fold(0.0, f64::max)
}
