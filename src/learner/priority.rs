//! Serving has priority over learning: on a busy machine the learner's threads yield to those that serve requests.
//!
//! The scheduler of Linux knows a nice value for each thread, which its children inherit. With 10 a thread gets about a
//! tenth of what one with 0 gets where both want all of a core, and all that nobody else wants. Requests are short, so
//! learning loses little; where it falls behind, it skips gradient steps, and responses stay fresh.

use rustix::process::setpriority_process;
use rustix::thread::gettid;

/// Gives this thread, and those that it starts, a nice value.
pub(super) fn stand_back(nice: u8) {
    if nice == 0 {
        return;
    }
    if let Err(error) = setpriority_process(Some(gettid()), i32::from(nice)) {
        tracing::warn!(%error, nice, "learner.nice has no effect: the system refuses setpriority");
    }
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
