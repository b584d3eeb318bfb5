//! Serving has priority over learning: on a busy machine the learner's threads yield to those that serve requests.
//!
//! The scheduler of Linux knows a nice value for each thread, which its children inherit. With 10 a thread gets about a
//! tenth of what one with 0 gets where both want all of a core, and all that nobody else wants. Requests are short, so
//! learning loses little; where it falls behind, it skips gradient steps, and responses stay fresh.

use rustix::process::setpriority_process;
use rustix::thread::gettid;

use super::LearnerError;

/// Gives this thread, and those that it starts, a nice value.
pub(super) fn stand_back(nice: u8) {
    if nice == 0 {
        return;
    }
    if let Err(error) = setpriority_process(Some(gettid()), i32::from(nice)) {
        tracing::warn!(%error, nice, "learner.nice has no effect: the system refuses setpriority");
    }
}

/// Threads of the learner's own. In a pool shared with queries, a small query would wait behind the pieces
/// of a step.
pub(super) fn step_threads(wanted: usize, nice: u8) -> Result<rayon::ThreadPool, LearnerError> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = if wanted > 0 { wanted } else { cores.div_ceil(2).max(2).min(cores) };
    let name = |i| format!("learner-{i}");
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).thread_name(name);
    let pool = pool.start_handler(move |_| stand_back(nice)).build();
    pool.map_err(|source| LearnerError::Threads { threads, source })
}

#[cfg(test)]
mod tests {
    use rustix::process::getpriority_process;

    use super::*;

    #[test]
    fn a_thread_stands_back_with_those_that_it_starts_and_no_other_does() {
        let of_this = || getpriority_process(Some(gettid())).unwrap();
        let before = of_this();
        let theirs = std::thread::spawn(move || {
            stand_back(0);
            let untouched = of_this();
            stand_back(19);
            (untouched, of_this(), std::thread::spawn(of_this).join().unwrap())
        });
        assert_eq!(theirs.join().unwrap(), (before, 19, 19));
        assert_eq!(of_this(), before);
    }
}
