//! Runs of one point: how many, what happens between them, and their statistics.

use rayon::prelude::*;

use super::super::percentile;
use super::points::Cache;
use super::work::Work;

/// Values of the buffer that is read and written to evict other data from the caches: 128 MiB.
const OTHER: usize = 32 << 20;
/// Points whose runs take at least this many seconds get fewer runs; and how few at least.
const LONG_SECONDS: f64 = 0.1;
const LONG_RUNS: usize = 7;
/// Short runs are repeated until they have taken this many seconds in total, at most this often.
const REPEATED_SECONDS: f64 = 0.02;
const RUNS_MAX: usize = 1_000;
/// Untimed runs before the timed ones.
const WARM_UP: usize = 3;

/// The times of one direction's runs.
#[derive(Clone, Copy, Debug)]
pub struct Timed {
    pub median: f64,
    pub min: f64,
    pub p95: f64,
    pub runs: usize,
}

/// Between runs.
pub struct Between {
    other: Vec<f32>,
    cache: Cache,
}

impl Between {
    /// Leaves caches as they are until changed.
    pub fn new() -> Self {
        Self { other: Vec::new(), cache: Cache::Warm }
    }

    /// The state of the caches from now on.
    pub fn set(&mut self, cache: Cache) {
        self.cache = cache;
        if cache == Cache::Cold {
            self.other.resize(OTHER, 0.0);
        }
    }

    fn prepare(&mut self) {
        if self.cache == Cache::Cold {
            self.other.par_chunks_mut(1 << 16).for_each(|part| part.iter_mut().for_each(|v| *v += 1.0));
        }
    }
}

/// Times the forward, and the backward where there is one, `runs` times or more.
///
/// # Errors
/// Those of the work.
pub fn time(
    work: &mut dyn Work,
    between: &mut Between,
    runs: usize,
) -> anyhow::Result<(Timed, Option<Timed>)> {
    let forward = repeat(runs, || work.forward(&mut || between.prepare()).map(Some))?;
    let backward = match work.about().costs.1 {
        Some(_) => repeat(runs, || work.backward(&mut || between.prepare()))?,
        None => None,
    };
    Ok((forward.unwrap_or(Timed { median: f64::NAN, min: f64::NAN, p95: f64::NAN, runs: 0 }), backward))
}

fn repeat(
    runs: usize,
    mut once: impl FnMut() -> anyhow::Result<Option<f64>>,
) -> anyhow::Result<Option<Timed>> {
    let mut last = 0.0;
    for _ in 0..WARM_UP.min(runs) {
        let Some(spent) = once()? else { return Ok(None) };
        last = spent;
    }
    let wanted = if last > LONG_SECONDS {
        runs.min(LONG_RUNS)
    } else if runs < LONG_RUNS {
        runs
    } else {
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let repeats = (REPEATED_SECONDS / last.max(1e-9)) as usize;
        runs.max(repeats.min(RUNS_MAX))
    };
    let mut measured = Vec::with_capacity(wanted);
    for _ in 0..wanted {
        let Some(spent) = once()? else { return Ok(None) };
        measured.push(spent);
    }
    measured.sort_by(f64::total_cmp);
    let (median, p95) = (percentile(&measured, 50), percentile(&measured, 95));
    let min = measured.first().copied().unwrap_or(f64::NAN);
    Ok(Some(Timed { median, min, p95, runs: measured.len() }))
}
