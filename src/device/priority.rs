//! The priority of threads: on a busy machine, threads with a higher nice value yield to those with a lower one.
//!
//! The scheduler of Linux knows a nice value for each thread, which its children inherit. With 10 a thread gets about a
//! tenth of what one with 0 gets where both want all of a core, with 5 about a third, and all that nobody else wants.
//!
//! A nice value decides about shares, not about when: a thread that wakes may wait until the one that runs has used
//! its slice, some 1.5 ms with two cores. Since Linux 6.12 a thread may ask for shorter slices; it then runs as
//! soon as it wakes, as long as it has had no more than its share.

use std::sync::Once;
use std::time::Duration;

use rustix::process::{getpriority_process, setpriority_process};
use rustix::thread::gettid;

/// Longer than a small request computes, shorter than a client notices. The kernel allows 0.1 to 100 ms.
const SLICE: Duration = Duration::from_micros(100);

/// Gives this thread, and those that it starts, a nice value. `setting` names where it comes from.
pub fn stand_back(nice: u8, setting: &'static str) {
    if nice == 0 {
        return;
    }
    if let Err(error) = setpriority_process(Some(gettid()), i32::from(nice)) {
        tracing::warn!(%error, nice, setting, "the setting has no effect: the system refuses setpriority");
    }
}

/// Asks for short slices for this thread and those that it starts, at its nice value: where it wakes, it need not wait
/// for the slice of a thread that computes. Kernels before 6.12 ignore it.
pub fn wake_promptly() {
    let result =
        getpriority_process(Some(gettid())).map_err(Into::into).and_then(|nice| slice::request(nice, SLICE));
    if let Err(error) = result {
        static REPORTED: Once = Once::new();
        REPORTED.call_once(|| {
            tracing::warn!(%error, "the system refuses sched_setattr: beside training, requests wait longer");
        });
    }
}

#[allow(unsafe_code)]
mod slice {
    use std::io::{Error, Result};
    use std::time::Duration;

    /// `struct sched_attr` of Linux in its first form.
    #[repr(C)]
    #[derive(Default)]
    struct SchedAttr {
        size: u32,
        policy: u32,
        flags: u64,
        nice: i32,
        priority: u32,
        /// For ordinary threads the length of a slice in nanoseconds.
        runtime: u64,
        deadline: u64,
        period: u64,
    }

    const SIZE: u32 = size_of::<SchedAttr>() as u32;
    const KEEP_POLICY: u64 = 8;
    const THIS_THREAD: libc::pid_t = 0;

    pub(super) fn request(nice: i32, slice: Duration) -> Result<()> {
        let runtime = u64::try_from(slice.as_nanos()).map_err(Error::other)?;
        let attributes = SchedAttr { size: SIZE, flags: KEEP_POLICY, nice, runtime, ..SchedAttr::default() };
        // SAFETY: the kernel reads `size` bytes of the structure, which lives until the call returns.
        let code = unsafe { libc::syscall(libc::SYS_sched_setattr, THIS_THREAD, &raw const attributes, 0) };
        if code == 0 { Ok(()) } else { Err(Error::last_os_error()) }
    }

    /// The slice of this thread; zero where the kernel knows none.
    #[cfg(test)]
    pub(super) fn current() -> Result<Duration> {
        let mut attributes = SchedAttr::default();
        // SAFETY: the kernel writes at most `SIZE` bytes into the structure, which nobody else knows.
        let code =
            unsafe { libc::syscall(libc::SYS_sched_getattr, THIS_THREAD, &raw mut attributes, SIZE, 0) };
        if code == 0 { Ok(Duration::from_nanos(attributes.runtime)) } else { Err(Error::last_os_error()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_with_short_slices_keeps_its_nice_value() {
        let theirs = std::thread::spawn(|| {
            stand_back(5, "none");
            let before = slice::current();
            let requested = slice::request(5, 2 * SLICE);
            wake_promptly();
            (before, requested, slice::current(), getpriority_process(Some(gettid())).unwrap())
        });
        let (before, requested, slice, nice) = theirs.join().unwrap();
        assert_eq!(nice, 5);
        let (Ok(before), Ok(()), Ok(slice)) = (before, requested, slice) else {
            eprintln!("skipped: the system refuses sched_setattr or sched_getattr");
            return;
        };
        let known = before > Duration::ZERO;
        assert_eq!(slice, if known { SLICE } else { Duration::ZERO });
    }

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
