//! A stand-in for the log, for tests of sources: takes batches from the queue, leaves out what it has, and
//! can be set to refuse some.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use parking_lot::Mutex;

use crate::event::{EdgeId, Event, EventBatch, PositionLookup, Receipt, SubmitError, UnstorableEvent};
use crate::ingest::SourceWiring;
use crate::ingest::admit::{Admission, AdmitOptions};
use crate::ingest::dead_letter::{DeadLetterFileOptions, DeadLetterTarget, DeadLetters};

#[derive(Default)]
pub struct FakeLog {
    /// The batches taken, in order.
    pub batches: Mutex<Vec<EventBatch>>,
    /// So many batches are refused first.
    pub refuse: AtomicUsize,
    /// Events of this time can never be stored.
    pub unstorable_time: Mutex<Option<i64>>,
    /// Batches of more events cannot either, if it is not 0.
    pub events_max: AtomicUsize,
    /// So many batches are first too large whatever they hold.
    pub whole_batches: AtomicUsize,
    positions: Mutex<HashMap<(String, i32), i64>>,
}

impl PositionLookup for FakeLog {
    fn position(&self, source: &str, partition: i32) -> Option<i64> {
        self.positions.lock().get(&(source.to_owned(), partition)).copied()
    }
}

impl FakeLog {
    /// Starts the log's thread; dead letters go to `dead.jsonl` in `folder`.
    pub fn start(folder: &Path, options: AdmitOptions) -> (Arc<Self>, SourceWiring) {
        let log = Arc::new(Self::default());
        let (submissions, queue) = crossbeam_channel::bounded::<crate::event::Submission>(2);
        let taker = Arc::clone(&log);
        std::thread::spawn(move || {
            for submission in queue {
                let result = taker.take(submission.batch);
                if let Some(reply) = submission.reply {
                    reply(result);
                }
            }
        });
        let file = DeadLetterFileOptions::new(folder.join("dead.jsonl"));
        let wiring = SourceWiring {
            submissions,
            positions: Arc::clone(&log) as Arc<dyn PositionLookup>,
            admission: Admission::new(options),
            dead_letters: DeadLetters::open(DeadLetterTarget::File(file)).unwrap(),
            holds: Arc::default(),
        };
        (log, wiring)
    }

    /// How many events were taken.
    pub fn count(&self) -> usize {
        self.batches.lock().iter().map(|b| b.events.len()).sum()
    }

    fn take(&self, mut batch: EventBatch) -> Result<Receipt, SubmitError> {
        if self.refuse.fetch_update(SeqCst, SeqCst, |n| n.checked_sub(1)).is_ok() {
            return Err(SubmitError::DiskFull { detail: "for the test".into() });
        }
        let time = |event: &Event| match event {
            Event::Edge(edge) => Some(edge.time.0),
            _ => None,
        };
        let unstorable_time = *self.unstorable_time.lock();
        let is_bad = |event: &Event| unstorable_time.is_some() && time(event) == unstorable_time;
        let bad = batch.events.iter().enumerate().filter(|(_, incoming)| is_bad(&incoming.event));
        let events: Vec<UnstorableEvent> = bad
            .map(|(index, _)| UnstorableEvent { index, offset: None, detail: "for the test".into() })
            .collect();
        if !events.is_empty() {
            return Err(SubmitError::Unstorable { events, detail: "for the test".into() });
        }
        let events_max = self.events_max.load(SeqCst);
        let is_large = self.whole_batches.fetch_update(SeqCst, SeqCst, |n| n.checked_sub(1)).is_ok();
        if is_large || (events_max > 0 && batch.events.len() > events_max) {
            return Err(SubmitError::Unstorable { events: Vec::new(), detail: "too large".into() });
        }
        let mut duplicates = 0;
        for range in &batch.ranges {
            let at = self.positions.lock().insert((range.source.to_string(), range.partition), range.to);
            let known = at.unwrap_or(range.from);
            assert!(range.from <= known, "offsets {known} to {} are missing", range.from);
            let seen = batch.offsets.iter().take_while(|offset| **offset < known).count();
            batch.offsets.drain(..seen);
            batch.events.drain(..seen);
            duplicates += seen as u64;
        }
        let accepted = batch.events.len() as u64;
        self.batches.lock().push(batch);
        Ok(Receipt { first: EdgeId(0), end: EdgeId(accepted), accepted, duplicates })
    }
}
