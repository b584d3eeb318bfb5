//! [`PacedFile`]: a large file that is written beside the work of the daemon, at a [`WriteRate`] that all such files
//! share, and never with more than a few megabytes in the kernel's cache.
//!
//! Both are for the writer of the log, whose commits wait for the same disk. Without a rate it has only half of it. And
//! what a file leaves in the cache, the kernel writes when somebody else syncs: some file systems write the new data of
//! all files with the next commit of their journal, so a commit of a kilobyte would wait for gigabytes.

use std::fs::File;
use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::fs::{Advice, fadvise};

/// At most so much is written and not synced, bytes.
const UNSYNCED_BYTES_MAX: u64 = 8 << 20;

/// Longest sleep before another look at whether to hurry.
const NAP: Duration = Duration::from_millis(50);

/// How many bytes a second all files with this rate are written at together.
#[derive(Debug, Default)]
pub struct WriteRate {
    /// 0: as many as the disk takes.
    bytes_per_second_max: AtomicU64,
    /// When what was written until now was due.
    due: Mutex<Option<Instant>>,
}

impl WriteRate {
    /// At most so many bytes a second; 0: as many as the disk takes.
    #[must_use]
    pub const fn new(bytes_per_second_max: u64) -> Self {
        Self { bytes_per_second_max: AtomicU64::new(bytes_per_second_max), due: Mutex::new(None) }
    }

    /// Changes the rate, also for files that are being written.
    pub fn set(&self, bytes_per_second_max: u64) {
        self.bytes_per_second_max.store(bytes_per_second_max, Ordering::Relaxed);
    }

    /// Takes note of bytes that are written now; when they are due.
    #[allow(clippy::cast_precision_loss)]
    fn reserve(&self, bytes: usize) -> Option<Instant> {
        let rate = self.bytes_per_second_max.load(Ordering::Relaxed);
        let took = (rate > 0).then(|| Duration::from_secs_f64(bytes as f64 / rate as f64))?;
        let (mut due, now) = (self.due.lock(), Instant::now());
        *due = due.map_or(now, |due| due.max(now)).checked_add(took);
        *due
    }
}

/// How fast a file is written.
#[derive(Clone, Copy, Debug)]
pub struct Pace<'a> {
    /// Shared with other files.
    pub rate: &'a WriteRate,
    /// Set when somebody waits for the file: it is then written as fast as the disk takes it.
    pub hurry: &'a AtomicBool,
}

impl Pace<'static> {
    /// As fast as the disk takes it.
    #[must_use]
    pub fn unlimited() -> Self {
        static RATE: WriteRate = WriteRate::new(0);
        static HURRY: AtomicBool = AtomicBool::new(true);
        Self { rate: &RATE, hurry: &HURRY }
    }
}

/// A file that is written from its beginning to its end.
#[derive(Debug)]
pub struct PacedFile<'a> {
    file: File,
    pace: Pace<'a>,
    unsynced: u64,
}

impl<'a> PacedFile<'a> {
    /// For an empty file.
    #[must_use]
    pub fn new(file: File, pace: Pace<'a>) -> Self {
        Self { file, pace, unsynced: 0 }
    }

    /// Makes the file durable.
    ///
    /// # Errors
    /// The file system's.
    pub fn finish(self) -> io::Result<()> {
        self.file.sync_all()?;
        self.leave_cache();
        Ok(())
    }

    fn hurries(&self) -> bool {
        self.pace.hurry.load(Ordering::Acquire)
    }

    fn leave_cache(&self) {
        // Only memory for others depends on it.
        let _ = fadvise(&self.file, 0, None, Advice::DontNeed);
    }

    fn wait_until(&self, due: Instant) {
        while !self.hurries() {
            let left = due.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            std::thread::sleep(left.min(NAP));
        }
    }
}

impl Write for PacedFile<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let room = UNSYNCED_BYTES_MAX - self.unsynced;
        let bytes = &bytes[..bytes.len().min(usize::try_from(room).unwrap_or(usize::MAX))];
        let due = if self.hurries() { None } else { self.pace.rate.reserve(bytes.len()) };
        let written = self.file.write(bytes)?;
        self.unsynced += written as u64;
        if self.unsynced == UNSYNCED_BYTES_MAX {
            self.file.sync_data()?;
            self.leave_cache();
            self.unsynced = 0;
        }
        if let Some(due) = due {
            self.wait_until(due);
        }
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    fn written(
        folder: &tempfile::TempDir,
        name: &str,
        mib: usize,
        rate: &WriteRate,
        hurry: &AtomicBool,
    ) -> Duration {
        let begun = Instant::now();
        let mut file = PacedFile::new(File::create(folder.path().join(name)).unwrap(), Pace { rate, hurry });
        (0..mib).for_each(|_| file.write_all(&vec![7; MIB]).unwrap());
        file.finish().unwrap();
        begun.elapsed()
    }

    #[test]
    fn a_file_takes_as_long_as_its_rate_says_and_what_it_holds_is_whole() {
        let (folder, rate) = (tempfile::tempdir().unwrap(), WriteRate::new(40 * MIB as u64));
        let took = written(&folder, "a", 20, &rate, &AtomicBool::new(false));
        assert!(took >= Duration::from_millis(500), "{took:?}");
        assert!(std::fs::read(folder.path().join("a")).unwrap() == vec![7; 20 * MIB]);
    }

    #[test]
    fn files_written_at_a_time_share_the_rate() {
        let (folder, rate) = (tempfile::tempdir().unwrap(), WriteRate::new(40 * MIB as u64));
        let begun = Instant::now();
        std::thread::scope(|scope| {
            let (folder, rate) = (&folder, &rate);
            for name in ["a", "b"] {
                scope.spawn(move || written(folder, name, 10, rate, &AtomicBool::new(false)));
            }
        });
        assert!(begun.elapsed() >= Duration::from_millis(500), "{:?}", begun.elapsed());
    }

    #[test]
    fn one_that_hurries_waits_no_more_and_a_rate_of_zero_is_none() {
        let (folder, rate, hurry) = (tempfile::tempdir().unwrap(), WriteRate::new(1), AtomicBool::new(false));
        std::thread::scope(|scope| {
            let writing = scope.spawn(|| written(&folder, "a", 2, &rate, &hurry));
            std::thread::sleep(Duration::from_millis(100));
            assert!(!writing.is_finished());
            hurry.store(true, Ordering::Release);
            assert!(writing.join().unwrap() < Duration::from_secs(60));
        });
        rate.set(0);
        assert!(written(&folder, "b", 2, &rate, &AtomicBool::new(false)) < Duration::from_secs(60));
    }
}
