//! The threads of the learner. Serving has priority over learning: requests are short, so learning loses little; where
//! it falls behind, it skips gradient steps, and responses stay fresh.

use super::LearnerError;
use crate::device::stand_back;

/// Gives this thread the priority of the learner.
pub(super) fn yield_to_serving(nice: u8) {
    stand_back(nice, "learner.nice");
}

/// Threads of the learner's own, `wanted` of them, 0 for half of the cores. In a pool shared with queries, a small
/// query would wait behind the pieces of a step.
///
/// # Errors
/// They cannot be started.
pub fn step_threads(wanted: usize, nice: u8) -> Result<rayon::ThreadPool, LearnerError> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = if wanted > 0 { wanted } else { cores.div_ceil(2).max(2).min(cores) };
    let name = |i| format!("learner-{i}");
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).thread_name(name);
    let pool = pool.start_handler(move |_| yield_to_serving(nice)).build();
    pool.map_err(|source| LearnerError::Threads { threads, source })
}
