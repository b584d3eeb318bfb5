//! The replay's thread: reads a batch, delivers its dead letters, hands it over, and reads the next one while
//! the log stores it.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, SendTimeoutError, Sender};

use super::batch::{Batch, Removed};
use super::{POLL_INTERVAL, ReplayOptions, ReplayState, Shared};
use crate::event::{Receipt, SourceRange, Submission, SubmitError};
use crate::ingest::SourceWiring;
use crate::ingest::admit::{AdmitCursor, Verdict};
use crate::ingest::dead_letter::{DeadLetter, unix_ms};
use crate::ingest::handover::{Outcome, reply_into};
use crate::ingest::mapping::Decoded;
use crate::ingest::rejection::{IngestStats, Reason, Rejection};
use crate::ingest::rows::{Row, Rows};

/// Why a replay ends early.
enum End {
    Stopped,
    Failed(String),
}

pub(super) struct Run {
    pub options: ReplayOptions,
    pub wiring: SourceWiring,
    pub shared: Arc<Shared>,
    pub stats: Arc<IngestStats>,
    pub source: Arc<str>,
    pub cursor: AdmitCursor,
    pub reader: Rows,
    pub row: i64,
    pub outcomes: (Sender<Outcome<()>>, Receiver<Outcome<()>>),
    pub started: Instant,
    /// How many events were read since then, each bad or ignored row one.
    pub paced: i64,
    /// When the file was written last: its events are no younger.
    pub origin_unix_ms: i64,
}

impl Run {
    pub fn run(mut self, start: i64) {
        let state = match self.replay(start) {
            Ok(()) => ReplayState::Done,
            Err(End::Stopped) => ReplayState::Stopped,
            Err(End::Failed(reason)) => {
                tracing::error!(source = %self.source, "the replay has ended: {reason}");
                ReplayState::Failed { reason }
            }
        };
        *self.shared.state.lock() = state;
    }

    fn replay(&mut self, start: i64) -> Result<(), End> {
        self.skip(start)?;
        self.started = Instant::now();
        let mut in_flight: Option<Batch> = None;
        loop {
            if self.wiring.holds.has(&self.source) {
                if let Some(batch) = in_flight.take() {
                    self.finish(batch)?;
                }
                self.wait_while_held()?;
            }
            let Some(next) = self.read_batch()? else { break };
            if let Some(batch) = in_flight.take() {
                self.finish(batch)?;
            }
            self.deliver_letters(&next.letters)?;
            self.cursor.seal();
            self.send(&next)?;
            in_flight = Some(next);
        }
        if let Some(batch) = in_flight {
            self.finish(batch)?;
        }
        Ok(())
    }

    /// Waits until the source may go on, at its pace and not in a burst.
    fn wait_while_held(&mut self) -> Result<(), End> {
        while self.wiring.holds.has(&self.source) {
            if self.shared.stop.load(Relaxed) {
                return Err(End::Stopped);
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        (self.started, self.paced) = (Instant::now(), 0);
        Ok(())
    }

    /// Reads past the rows that the log has already.
    fn skip(&mut self, start: i64) -> Result<(), End> {
        while self.row < start {
            if self.next_row()?.is_none() {
                let reason = format!(
                    "the log stands at row {start} of {}, which has only {} rows now; bring the \
                     rows back, or give the file another name to read it from its start",
                    self.options.path.display(),
                    self.row
                );
                return Err(End::Failed(reason));
            }
        }
        Ok(())
    }

    /// The next row, or `None` at the end of the file.
    fn next_row(&mut self) -> Result<Option<Row>, End> {
        if self.shared.stop.load(Relaxed) {
            return Err(End::Stopped);
        }
        let row = self.reader.next_row().map_err(|error| End::Failed(error.to_string()))?;
        self.row += i64::from(row.is_some());
        Ok(row)
    }

    fn read_batch(&mut self) -> Result<Option<Batch>, End> {
        let from = self.row;
        let limit = self.wait_for_pace()?;
        let mut batch = Batch::default();
        batch.events.origin_unix_ms = self.origin_unix_ms;
        // A row may be many events, and a batch has a bound of its own.
        let until = self.paced + limit;
        while self.paced < until && batch.events.events.len() < self.options.batch_events.max(1) {
            let row = self.row;
            let Some(read) = self.next_row()? else { break };
            self.take(read, row, &mut batch);
        }
        if self.row == from {
            return Ok(None);
        }
        batch.events.ranges = vec![SourceRange {
            source: Arc::clone(&self.source),
            partition: 0,
            from,
            to: self.row,
            mark: None,
        }];
        Ok(Some(batch))
    }

    fn count_received(&mut self) {
        self.stats.count_received(1);
        self.paced += 1;
    }

    /// Adds the events of a row to a batch. Of a row whose events are refused there is one dead letter.
    fn take(&mut self, read: Row, row: i64, batch: &mut Batch) {
        let mut refused = None;
        match read {
            Ok(Decoded::Ignored) => {
                self.count_received();
                self.stats.count_ignored();
            }
            Ok(events) => {
                for incoming in events.into_events() {
                    self.count_received();
                    match self.cursor.judge(&incoming.event) {
                        verdict @ (Verdict::Accept | Verdict::AcceptLate) => {
                            if verdict == Verdict::AcceptLate {
                                self.stats.count_late_accepted();
                            }
                            batch.push(incoming, row, &self.reader);
                        }
                        Verdict::Drop(_) => self.stats.count_late_dropped(),
                        Verdict::Refuse(rejection) => {
                            self.stats.count_rejected(rejection.reason);
                            refused = refused.or(Some(rejection));
                        }
                    }
                }
            }
            Err(rejection) => {
                self.count_received();
                self.stats.count_rejected(rejection.reason);
                refused = Some(rejection);
            }
        }
        batch.letters.extend(refused.map(|rejection| self.letter(row, self.reader.row_text(), rejection)));
    }

    /// Waits until the next events are due; returns how many of them make the next batch.
    #[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation)]
    fn wait_for_pace(&self) -> Result<i64, End> {
        let most = i64::try_from(self.options.batch_events.max(1)).unwrap_or(i64::MAX);
        let Some(rate) = self.options.events_per_second.filter(|r| *r > 0.0) else { return Ok(most) };
        loop {
            let due = (self.started.elapsed().as_secs_f64() * rate) as i64;
            let ahead = due - self.paced;
            if ahead >= 1 {
                return Ok(ahead.min(most));
            }
            if self.shared.stop.load(Relaxed) {
                return Err(End::Stopped);
            }
            std::thread::sleep(Duration::from_secs_f64(
                (1.0 / rate).clamp(0.001, POLL_INTERVAL.as_secs_f64()),
            ));
        }
    }

    /// Puts a copy of the batch into the queue; the batch itself is kept until it is durable.
    fn send(&self, batch: &Batch) -> Result<(), End> {
        let reply = reply_into(self.outcomes.0.clone(), ());
        let mut submission = Submission { batch: batch.events.clone(), reply: Some(reply) };
        let mut waited = false;
        loop {
            match self.wiring.submissions.send_timeout(submission, POLL_INTERVAL) {
                Ok(()) => return Ok(()),
                Err(SendTimeoutError::Disconnected(_)) => return Err(End::Stopped),
                Err(SendTimeoutError::Timeout(back)) => {
                    if self.shared.stop.load(Relaxed) {
                        return Err(End::Stopped);
                    }
                    if !waited {
                        self.stats.count_pause();
                        waited = true;
                    }
                    submission = back;
                }
            }
        }
    }

    /// Waits until the batch is durable, handing it in again as often as it is refused, without what can never be
    /// stored.
    fn finish(&mut self, mut batch: Batch) -> Result<(), End> {
        // What follows on it, the next one last.
        let mut parts = Vec::new();
        loop {
            match self.outcome()? {
                Ok(receipt) => {
                    self.stats.count_stored(&receipt);
                    self.shared.next.store(batch.rows().end, Relaxed);
                    *self.shared.state.lock() = ReplayState::Running;
                    let Some(part) = parts.pop() else { break };
                    batch = part;
                }
                Err(SubmitError::ShuttingDown | SubmitError::OutcomeUnknown) => return Err(End::Stopped),
                Err(SubmitError::Unstorable { events, detail }) => {
                    self.stats.count_refused_batch();
                    let removed = batch.take_out(events, detail.clone());
                    if !removed.is_empty() {
                        self.keep(removed)?;
                    } else if let Some(part) = batch.halve() {
                        parts.push(part);
                    } else {
                        let (rows, path) = (batch.rows(), self.options.path.display());
                        return Err(End::Failed(format!(
                            "rows {rows:?} of {path} cannot be stored: {detail}"
                        )));
                    }
                }
                Err(refusal) => {
                    self.stats.count_refused_batch();
                    *self.shared.state.lock() = ReplayState::Degraded { reason: refusal.to_string() };
                    self.rest(self.options.retry_wait)?;
                }
            }
            self.send(&batch)?;
        }
        self.cursor.commit();
        Ok(())
    }

    /// What has become of the batch in flight.
    fn outcome(&self) -> Result<Result<Receipt, SubmitError>, End> {
        loop {
            match self.outcomes.1.recv_timeout(POLL_INTERVAL) {
                Ok(outcome) => return Ok(outcome.result),
                Err(_) if self.shared.stop.load(Relaxed) => return Err(End::Stopped),
                Err(_) => {}
            }
        }
    }

    /// Makes dead letters of rows that the log can never store.
    fn keep(&self, removed: Vec<Removed>) -> Result<(), End> {
        let letter = |Removed { row, text, detail }| {
            self.stats.count_rejected(Reason::Unstorable);
            self.letter(row, text, Rejection::new(Reason::Unstorable, detail))
        };
        let letters: Vec<DeadLetter> = removed.into_iter().map(letter).collect();
        self.deliver_letters(&letters)
    }

    /// Delivers dead letters, as often as it takes.
    fn deliver_letters(&self, letters: &[DeadLetter]) -> Result<(), End> {
        while let Err(error) = self.wiring.dead_letters.deliver(letters) {
            tracing::warn!(source = %self.source, "the replay waits: {error}");
            *self.shared.state.lock() = ReplayState::Degraded { reason: error.to_string() };
            self.rest(self.options.retry_wait)?;
        }
        self.stats.count_dead_letters(letters.len() as u64);
        *self.shared.state.lock() = ReplayState::Running;
        Ok(())
    }

    fn rest(&self, time: Duration) -> Result<(), End> {
        let until = Instant::now() + time;
        while Instant::now() < until {
            if self.shared.stop.load(Relaxed) {
                return Err(End::Stopped);
            }
            std::thread::sleep(POLL_INTERVAL.min(time));
        }
        Ok(())
    }

    fn letter(&self, row: i64, text: String, rejection: Rejection) -> DeadLetter {
        DeadLetter {
            source: Arc::clone(&self.source),
            partition: 0,
            offset: row,
            key: None,
            payload: Some(text.into_bytes()),
            headers: Vec::new(),
            rejection,
            received_unix_ms: unix_ms(),
        }
    }
}
