//! The priority of threads: on a busy machine, threads with a higher nice value yield to those with a lower one.
//!
//! The scheduler of Linux knows a nice value for each thread, which its children inherit. With 10 a thread gets about a
//! tenth of what one with 0 gets where both want all of a core, with 5 about a third, and all that nobody else wants.

use rustix::process::setpriority_process;
use rustix::thread::gettid;

/// Gives this thread, and those that it starts, a nice value. `setting` names where it comes from.
pub fn stand_back(nice: u8, setting: &'static str) {
    if nice == 0 {
        return;
    }
    if let Err(error) = setpriority_process(Some(gettid()), i32::from(nice)) {
        tracing::warn!(%error, nice, setting, "the setting has no effect: the system refuses setpriority");
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
            stand_back(0, "none");
            let untouched = of_this();
            stand_back(19, "none");
            (untouched, of_this(), std::thread::spawn(of_this).join().unwrap())
        });
        assert_eq!(theirs.join().unwrap(), (before, 19, 19));
        assert_eq!(of_this(), before);
    }
}
