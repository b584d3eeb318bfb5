//! The threads of the learner. Serving has priority over learning: requests are short, so learning loses little; where
//! it falls behind, it skips gradient steps, and responses stay fresh.

use super::LearnerError;
use crate::device::stand_back;

/// Gives this thread the priority of the learner.
pub(super) fn yield_to_serving(nice: u8) {
    stand_back(nice, "learner.nice");
}

/// How many threads the learner has of its own: `wanted`, or for 0 half of the cores, two at least where there are two.
#[must_use]
pub fn step_thread_count(wanted: usize) -> usize {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    if wanted > 0 { wanted } else { cores.div_ceil(2).max(2).min(cores) }
}

/// Threads of the learner's own, as many as [`step_thread_count`] says. In a pool shared with queries, a small query
/// would wait behind the pieces of a step.
///
/// # Errors
/// They cannot be started.
pub fn step_threads(wanted: usize, nice: u8) -> Result<rayon::ThreadPool, LearnerError> {
    let threads = step_thread_count(wanted);
    let name = |i| format!("learner-{i}");
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).thread_name(name);
    let pool = pool.start_handler(move |_| yield_to_serving(nice)).build();
    pool.map_err(|source| LearnerError::Threads { threads, source })
}
