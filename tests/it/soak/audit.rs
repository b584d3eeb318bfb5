//! Reads what the daemon writes to its log, before retention cuts it off: every committed event must be there once.

use std::path::Path;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use evergraph::event::{EdgeId, EventTime, Op};
use evergraph::log::LogError;

use super::{Run, WILD_TIME};

/// Pause between two readings.
const PERIOD: Duration = Duration::from_secs(10);

/// What was found in the log so far.
#[derive(Default)]
pub struct Audit {
    /// Records of the stream, how many different events, and events with the wild time.
    pub records: u64,
    pub distinct: u64,
    pub wild: u64,
    /// The position to read on from.
    next: EdgeId,
    /// A bit for each event of the stream.
    seen: Vec<u64>,
    /// The most bytes that the log and the whole data directory had.
    pub log_bytes_max: u64,
    pub data_bytes_max: u64,
}

impl Audit {
    /// Reads until the run is over.
    pub fn follow(mut self, run: &Run, data: &Path) -> Self {
        while !run.over.load(SeqCst) {
            std::thread::sleep(PERIOD);
            let end = EdgeId(run.applied.load(SeqCst));
            if let Err(error) = self.read_to(end, data) {
                // A file is removed or written while it is read; if that lasts, the gap is found.
                eprintln!("the log is read again from {}: {error}", self.next.0);
            }
            self.log_bytes_max = self.log_bytes_max.max(bytes_in(&data.join("log")));
            self.data_bytes_max = self.data_bytes_max.max(bytes_in(data));
        }
        self
    }

    /// Counts the records below `end`.
    pub fn read_to(&mut self, end: EdgeId, data: &Path) -> Result<(), LogError> {
        let mut reader = evergraph::log::read_only(&data.join("log"))?;
        assert!(reader.position() <= self.next, "the log was cut before it was read");
        reader.start_at(self.next);
        while self.next < end
            && let Some(frame) = reader.next_frame()?
        {
            let batch = &frame.batch;
            let (first, stop) = (batch.first.0, batch.end().min(end));
            let new = (self.next.0 - first) as usize..(stop.0 - first) as usize;
            for (&op, &EventTime(number)) in batch.op[new.clone()].iter().zip(&batch.time[new]) {
                assert_eq!(op, Op::Edge);
                self.count(number);
            }
            self.next = stop;
        }
        Ok(())
    }

    fn count(&mut self, number: i64) {
        if number == WILD_TIME {
            self.wild += 1;
            return;
        }
        let number = usize::try_from(number).unwrap();
        let (word, bit) = (number / 64, 1 << (number % 64));
        if word >= self.seen.len() {
            self.seen.resize(2 * word + 1, 0);
        }
        self.records += 1;
        self.distinct += u64::from(self.seen[word] & bit == 0);
        self.seen[word] |= bit;
    }

    /// Whether an event is there that was never committed.
    pub fn has_others(&self, committed: u64) -> bool {
        let word = committed as usize / 64;
        let beyond = self.seen.iter().skip(word + 1).any(|&bits| bits != 0);
        beyond || self.seen.get(word).is_some_and(|bits| bits >> (committed % 64) != 0)
    }
}

/// Bytes of all files in a folder and the folders in it.
fn bytes_in(folder: &Path) -> u64 {
    let Ok(entries) = std::fs::read_dir(folder) else { return 0 };
    let bytes = entries.flatten().map(|entry| match entry.metadata() {
        Ok(about) if about.is_dir() => bytes_in(&entry.path()),
        Ok(about) => about.len(),
        Err(_) => 0,
    });
    bytes.sum()
}
