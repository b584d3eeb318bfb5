//! Temporal sampling on a GPU: [`sample`] finds the neighbors of all [`GpuSeeds`] of a layer. The twin is
//! `sampler::sample`; both give the same bits.
//!
//! Limits: a uniform sample takes 32 slots per seed at most (a lane draws one); a layer has less than 2^31 slots.

#![allow(unsafe_code)]

use super::context::Cuda;
use super::error::CudaError;
use super::graph::GraphTables;
use super::launch::{Grid, Launch, takes};
use super::seeds::{GpuSeeds, GpuSlots};
use super::stream::Stream;
use super::texts::Entry;
use super::twins::{Graph, Request, Seeds, Slots, View};

/// graph, view, request, seeds, slots.
const SAMPLE: &[usize] = takes![Graph, View, Request, Seeds, Slots];

/// The kernels of `sample.cu`.
pub(super) const ENTRIES: &[Entry] = &[
    Entry { name: "sample_recent_8", parameters: SAMPLE },
    Entry { name: "sample_recent_16", parameters: SAMPLE },
    Entry { name: "sample_recent_32", parameters: SAMPLE },
    Entry { name: "sample_uniform_8", parameters: SAMPLE },
    Entry { name: "sample_uniform_16", parameters: SAMPLE },
    Entry { name: "sample_uniform_32", parameters: SAMPLE },
];

/// Threads of a block of a sampler.
const THREADS: u32 = 128;
/// Blocks of a multiprocessor that fill a GPU, as in the kernels' bounds.
const BLOCKS: u32 = 8;
/// Slots per seed of a uniform sample at most.
const UNIFORM_FANOUT_MAX: usize = 32;

/// Which of a seed's edges are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// The newest.
    Recent,
    /// Any, none twice.
    Uniform,
}

/// For each of `seeds` up to `request.fanout` edges of `graph`, as many as `out` has room for per seed. Everything
/// belongs to `stream`. Does not wait.
///
/// # Errors
/// Room that does not fit, more than 32 slots of a uniform sample, a buffer of another stream, or the driver's.
pub fn sample(
    (cuda, stream): (&Cuda, &Stream),
    (graph, view): (&GraphTables, View),
    (choice, request): (Choice, Request),
    seeds: &GpuSeeds,
    out: &mut GpuSlots,
) -> Result<(), CudaError> {
    let operation = "sampling";
    out.check(operation, seeds)?;
    let refuse = |mismatch| Err(CudaError::Arguments { operation, mismatch });
    if request.fanout as usize != out.fanout() {
        return refuse(format!("{} slots asked for, and room for {}", request.fanout, out.fanout()));
    }
    if choice == Choice::Uniform && out.fanout() > UNIFORM_FANOUT_MAX {
        return refuse(format!(
            "a uniform sample of {} slots, and {UNIFORM_FANOUT_MAX} are the most",
            out.fanout()
        ));
    }
    if seeds.most() == 0 {
        return Ok(());
    }
    let (name, lanes) = kernel(choice, request.fanout);
    let most = cuda.gpu().multiprocessors.saturating_mul(BLOCKS);
    let grid = Grid::of(seeds.most() as u64 * u64::from(lanes), THREADS, most);
    let sizes = format!("{} seeds of {} slots", seeds.most(), request.fanout);
    let mut launch = Launch::new(cuda, stream, operation);
    let graph = graph.argument(&mut launch);
    let seeds = seeds.argument(&mut launch);
    let slots = out.argument(&mut launch);
    let launch = launch.number(graph).number(view).number(request).number(seeds).number(slots);
    // SAFETY: there are no more seeds than `most`, for each of which `check` found room; nothing of the tables leads
    // out of them, as `GraphTables` sees to; and a uniform sample has no more slots than lanes.
    unsafe { launch.run(name, grid, || sizes) }
}

/// The kernel that suits `fanout` slots, and its lanes per seed: as many as slots, since lanes read entries together,
/// within what there is.
fn kernel(choice: Choice, fanout: u32) -> (&'static str, u32) {
    match (choice, fanout) {
        (Choice::Recent, 0..=8) => ("sample_recent_8", 8),
        (Choice::Recent, 9..=16) => ("sample_recent_16", 16),
        (Choice::Recent, _) => ("sample_recent_32", 32),
        (Choice::Uniform, 0..=8) => ("sample_uniform_8", 8),
        (Choice::Uniform, 9..=16) => ("sample_uniform_16", 16),
        (Choice::Uniform, _) => ("sample_uniform_32", 32),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uniform_sample_has_a_lane_for_each_slot() {
        for fanout in 1..=32 {
            let (name, lanes) = kernel(Choice::Uniform, fanout);
            assert!(lanes >= fanout && name == format!("sample_uniform_{lanes}"), "{fanout}: {name}");
            assert_eq!(kernel(Choice::Recent, fanout).1, lanes);
        }
        assert_eq!(kernel(Choice::Recent, 1_000), ("sample_recent_32", 32));
    }
}
