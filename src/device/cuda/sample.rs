//! Temporal sampling on a GPU: [`sample`] finds the neighbors of all [`GpuSeeds`] of a layer. The twin is
//! `sampler::sample`; both give the same bits.
//!
//! Limits: a uniform sample takes 32 slots per seed at most (a lane draws one); a layer has less than 2^31 slots.

use super::declare::kernels;
use super::error::CudaError;
use super::graph::GraphTables;
use super::seeds::{GpuSeeds, GpuSlots};
use super::twins::{Graph, Request, Seeds, Slots, View};

/// Threads of a block of a sampler.
const THREADS: u32 = 128;
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

kernels! {
    /// For each of `seeds` up to `request.fanout` edges of `graph`, as many as `out` has room for per seed. A uniform
    /// sample has 32 slots at most.
    pub fn sample = sample_recent_8 | sample_recent_16 | sample_recent_32 | sample_uniform_8 | sample_uniform_16
        | sample_uniform_32(
        (graph, view): (&GraphTables, View), (choice, request): (Choice, Request), seeds: &GpuSeeds,
        out: &mut GpuSlots,
    ) {
        let operation = "sampling";
        let (kernel, lanes) = kernel(choice, request.fanout);
        pass built(Graph, |launch| graph.argument(&mut launch)), value(View, view), value(Request, request),
            built(Seeds, |launch| seeds.argument(&mut launch)), built(Slots, |launch| out.argument(&mut launch));
        then out.check(operation, seeds)?;
        then check_fanout(operation, choice, request, out.fanout())?;
        choose kernel;
        grid seeds.most() * lanes, THREADS;
        text "{} seeds of {} slots", seeds.most(), request.fanout;
        safe "There are no more seeds than `most`, for each of which there is room; nothing of the tables leads out of
              them, as [`GraphTables`] sees to; and a uniform sample has no more slots than lanes.";
    }
}

fn check_fanout(
    operation: &'static str,
    choice: Choice,
    request: Request,
    fanout: usize,
) -> Result<(), CudaError> {
    let mismatch = if request.fanout as usize != fanout {
        format!("{} slots asked for, and room for {fanout}", request.fanout)
    } else if choice == Choice::Uniform && fanout > UNIFORM_FANOUT_MAX {
        format!("a uniform sample of {fanout} slots, and {UNIFORM_FANOUT_MAX} are the most")
    } else {
        return Ok(());
    };
    Err(CudaError::Arguments { operation, mismatch })
}

/// The kernel that suits `fanout` slots, and its lanes per seed: as many as slots, since lanes read entries together,
/// within what there is.
fn kernel(choice: Choice, fanout: u32) -> (usize, usize) {
    let (size, lanes) = match fanout {
        0..=8 => (0, 8),
        9..=16 => (1, 16),
        _ => (2, 32),
    };
    (if choice == Choice::Recent { size } else { 3 + size }, lanes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uniform_sample_has_a_lane_for_each_slot() {
        let kernel = |choice, fanout| {
            let (kernel, lanes) = kernel(choice, fanout);
            (ENTRIES[0].names[kernel].to_owned(), lanes)
        };
        for fanout in 1..=32 {
            let (name, lanes) = kernel(Choice::Uniform, fanout);
            assert!(
                lanes >= fanout as usize && name == format!("sample_uniform_{lanes}"),
                "{fanout}: {name}"
            );
            assert_eq!(kernel(Choice::Recent, fanout), (format!("sample_recent_{lanes}"), lanes));
        }
        assert_eq!(kernel(Choice::Recent, 1_000), ("sample_recent_32".into(), 32));
    }
}
