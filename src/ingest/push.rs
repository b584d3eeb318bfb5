//! Pushed events: bodies of JSON or JSON lines; the response is sent when they are durable. Each event stands for
//! itself: rejected ones are reported per item and kept as dead letters, the others are stored. A pushed event has no
//! offset, so its letter is kept after the others are stored and before the response; a client that got no response
//! sends again, with idempotency keys to avoid duplicates: of the events, or one of the request.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{RecvTimeoutError, SendTimeoutError};

use super::SourceWiring;
use super::admit::{AdmitCursor, Verdict};
use super::body::{BodyError, cut_body};
use super::dead_letter::{DeadLetter, unix_ms};
use super::decode::DecodeOptions;
use super::handover::reply_into;
use super::mapping::{Decoded, Mapping, Message, MessageReader};
use super::rejection::{IngestStats, Reason, Rejection};
use super::request_key::RequestKey;
use crate::event::{
    BodyFormat, EdgeId, EventBatch, Incoming, Intake, IntakeError, IntakeResponse, Receipt, RejectedEvent,
    Submission, SubmitError,
};

/// The name of the push source in dead letters and metrics.
pub const PUSH_SOURCE: &str = "http";

/// How pushed bodies are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PushOptions {
    /// Longest time a body waits for room in the queue to the log; then the client is asked to retry later.
    pub queue_wait: Duration,
    /// So long a stored body is waited for.
    pub durable_wait: Duration,
    /// Largest number of events in one body.
    pub max_events: usize,
    /// Bounds of one event.
    pub decode: DecodeOptions,
}

impl Default for PushOptions {
    fn default() -> Self {
        Self {
            queue_wait: Duration::from_millis(200),
            durable_wait: Duration::from_secs(30),
            max_events: 100_000,
            decode: DecodeOptions::default(),
        }
    }
}

/// Takes pushed bodies; safe to call from many threads.
pub struct PushIntake {
    options: PushOptions,
    reader: MessageReader,
    wiring: SourceWiring,
    stats: Arc<IngestStats>,
    source: Arc<str>,
}

/// One body's refused events, in both forms in which they are reported.
#[derive(Default)]
struct Refused {
    rejected: Vec<RejectedEvent>,
    letters: Vec<DeadLetter>,
    late_dropped: u64,
    late_accepted: u64,
    ignored: u64,
}

impl PushIntake {
    /// An intake that is connected to the log.
    #[must_use]
    pub fn new(options: PushOptions, wiring: SourceWiring) -> Self {
        Self {
            options,
            reader: MessageReader::new(options.decode, None),
            wiring,
            stats: Arc::new(IngestStats::default()),
            source: PUSH_SOURCE.into(),
        }
    }

    /// The same for messages of another shape.
    #[must_use]
    pub fn with_mapping(mut self, mapping: Option<Arc<Mapping>>) -> Self {
        self.reader = MessageReader::new(self.options.decode, mapping);
        self
    }

    /// The source's counters.
    #[must_use]
    pub fn stats(&self) -> &Arc<IngestStats> {
        &self.stats
    }

    /// Hands a batch in and waits until it is durable.
    fn store(&self, batch: EventBatch) -> Result<Receipt, IntakeError> {
        let (sender, outcome) = crossbeam_channel::bounded(1);
        let submission = Submission { batch, reply: Some(reply_into(sender, ())) };
        match self.wiring.submissions.send_timeout(submission, self.options.queue_wait) {
            Ok(()) => {}
            Err(SendTimeoutError::Timeout(_)) => {
                self.stats.count_pause();
                return Err(IntakeError::Overloaded);
            }
            Err(SendTimeoutError::Disconnected(_)) => return Err(SubmitError::ShuttingDown.into()),
        }
        match outcome.recv_timeout(self.options.durable_wait) {
            Ok(outcome) => {
                if outcome.result.is_err() {
                    self.stats.count_refused_batch();
                }
                Ok(outcome.result?)
            }
            Err(RecvTimeoutError::Timeout) => {
                let waited = self.options.durable_wait.as_secs();
                Err(IntakeError::OutcomeUnknown(format!("the log did not respond within {waited} s")))
            }
            Err(RecvTimeoutError::Disconnected) => {
                Err(IntakeError::OutcomeUnknown("the writer of the log ended before it responded".to_owned()))
            }
        }
    }

    /// Counts and keeps the refused events. The accepted ones are stored by now, so a dead letter that
    /// cannot be kept must not make the client send everything again: the response still names each.
    fn keep(&self, refused: &Refused) {
        for letter in &refused.letters {
            self.stats.count_rejected(letter.rejection.reason);
        }
        for _ in 0..refused.late_dropped {
            self.stats.count_late_dropped();
        }
        for _ in 0..refused.late_accepted {
            self.stats.count_late_accepted();
        }
        for _ in 0..refused.ignored {
            self.stats.count_ignored();
        }
        match self.wiring.dead_letters.deliver(&refused.letters) {
            Ok(()) => self.stats.count_dead_letters(refused.letters.len() as u64),
            Err(error) => tracing::error!(%error, "rejected events were reported to the client but not kept"),
        }
    }

    fn letter(&self, index: usize, raw: &[u8], rejection: Rejection) -> DeadLetter {
        DeadLetter {
            source: Arc::clone(&self.source),
            partition: 0,
            offset: i64::try_from(index).unwrap_or(i64::MAX),
            key: None,
            payload: Some(raw.to_vec()),
            headers: Vec::new(),
            rejection,
            received_unix_ms: unix_ms(),
        }
    }
}

impl Intake for PushIntake {
    fn submit(
        &self,
        body: &[u8],
        format: BodyFormat,
        key: Option<&str>,
    ) -> Result<IntakeResponse, IntakeError> {
        if self.wiring.holds.has(&self.source) {
            return Err(SubmitError::Paused.into());
        }
        // What the log can never store is rejected like what cannot be read, and the rest is stored without it.
        let mut unstorable = BTreeMap::new();
        loop {
            if let Some(response) = self.attempt((body, format), key, &mut unstorable)? {
                return Ok(response);
            }
        }
    }

    fn is_mapped(&self) -> bool {
        self.reader.mapping().is_some()
    }
}

impl PushIntake {
    /// Stores a body without the messages that are unstorable, by their place in it; `None` if there are more of them.
    fn attempt(
        &self,
        (body, format): (&[u8], BodyFormat),
        key: Option<&str>,
        unstorable: &mut BTreeMap<usize, String>,
    ) -> Result<Option<IntakeResponse>, IntakeError> {
        let limit = self.options.max_events;
        let too_many = || IntakeError::TooMany { found_at_least: limit + 1, limit };
        let messages = cut_body(body, format, limit).map_err(|error| match error {
            BodyError::Malformed(detail) => IntakeError::Malformed(detail),
            BodyError::TooMany => too_many(),
        })?;
        let mut cursor = self.wiring.cursor(&self.source, 0, false);
        let Gathered { batch, places, refused, received } =
            self.gather(&messages, key, unstorable, &mut cursor).ok_or_else(too_many)?;
        cursor.seal();
        let receipt = if batch.events.is_empty() {
            // Edges that are too far ahead count towards those that move the clock.
            cursor.commit();
            Receipt { first: EdgeId(0), end: EdgeId(0), accepted: 0, duplicates: 0 }
        } else {
            let receipt = match self.store(batch) {
                Err(IntakeError::Refused(SubmitError::Unstorable { events, .. })) if !events.is_empty() => {
                    let named = events.into_iter().filter_map(|e| Some((*places.get(e.index)?, e.detail)));
                    unstorable.extend(named);
                    return Ok(None);
                }
                outcome => outcome?,
            };
            cursor.commit();
            self.stats.count_stored(&receipt);
            receipt
        };
        self.stats.count_received(received as u64);
        self.keep(&refused);
        Ok(Some(IntakeResponse { receipt, rejected: refused.rejected }))
    }

    /// Reads and judges the messages of a body; `None` if they are more events than a body may have.
    fn gather(
        &self,
        messages: &[&[u8]],
        key: Option<&str>,
        unstorable: &BTreeMap<usize, String>,
        cursor: &mut AdmitCursor,
    ) -> Option<Gathered> {
        let mut gathered = Gathered {
            batch: EventBatch { origin_unix_ms: unix_ms(), ..EventBatch::default() },
            places: Vec::new(),
            refused: Refused::default(),
            received: 0,
        };
        let mut key = key.map(RequestKey::new);
        for (index, &raw) in messages.iter().enumerate() {
            let known = unstorable.get(&index).map(|detail| Rejection::new(Reason::Unstorable, &**detail));
            let read = known.map_or_else(|| self.reader.read(&Message::of_value(raw)), Err);
            // Each event counts, whatever becomes of it, and a message without events is one.
            gathered.received += if let Ok(Decoded::Many(events)) = &read { events.len() } else { 1 };
            if gathered.received > self.options.max_events {
                return None;
            }
            let mut letter = None;
            match read {
                Ok(Decoded::Ignored) => gathered.refused.ignored += 1,
                Ok(events) => {
                    let content = key.as_ref().map_or(0, |_| RequestKey::content(raw));
                    for mut incoming in events.into_events() {
                        let of_request = key.as_mut().map(|key| key.of_event(content));
                        incoming.idempotency = incoming.idempotency.or(of_request);
                        letter = letter.or(gathered.judge(incoming, index, cursor));
                    }
                }
                Err(rejection) => {
                    gathered.refused.report(index, &rejection);
                    letter = Some(rejection);
                }
            }
            gathered.refused.letters.extend(letter.map(|rejection| self.letter(index, raw, rejection)));
        }
        Some(gathered)
    }
}

/// A body as it is stored.
struct Gathered {
    batch: EventBatch,
    /// The message of each event, by its place in the body.
    places: Vec<usize>,
    refused: Refused,
    received: usize,
}

impl Gathered {
    /// Adds an event to the batch, or reports why not; returns the reason for a dead letter.
    fn judge(&mut self, incoming: Incoming, index: usize, cursor: &mut AdmitCursor) -> Option<Rejection> {
        match cursor.judge(&incoming.event) {
            verdict @ (Verdict::Accept | Verdict::AcceptLate) => {
                self.refused.late_accepted += u64::from(verdict == Verdict::AcceptLate);
                self.batch.events.push(incoming);
                self.places.push(index);
                None
            }
            Verdict::Drop(rejection) => {
                self.refused.report(index, &rejection);
                self.refused.late_dropped += 1;
                None
            }
            Verdict::Refuse(rejection) => {
                self.refused.report(index, &rejection);
                Some(rejection)
            }
        }
    }
}

impl Refused {
    fn report(&mut self, index: usize, rejection: &Rejection) {
        self.rejected.push(RejectedEvent {
            index,
            reason: rejection.reason.as_str(),
            detail: rejection.detail.clone(),
        });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering::SeqCst;

    use super::*;
    use crate::ingest::admit::AdmitOptions;
    use crate::ingest::mapping::tests::each_time;
    use crate::ingest::tests::fake_log::FakeLog;

    const BODY: &[u8] = br#"[{"src":1,"dst":2,"ts":0},{"src":1},{"src":1,"dst":3,"ts":1}]"#;

    #[test]
    fn bad_events_are_reported_and_kept_and_the_others_stored() {
        let folder = tempfile::tempdir().unwrap();
        let (log, wiring) = FakeLog::start(folder.path(), AdmitOptions::default());
        let push = PushIntake::new(PushOptions::default(), wiring);
        let response = push.submit(BODY, BodyFormat::Json, None).unwrap();
        assert_eq!(response.receipt.accepted, 2);
        let rejected: Vec<_> = response.rejected.iter().map(|r| (r.index, r.reason)).collect();
        assert_eq!(rejected, [(1, "missing_field")]);
        assert_eq!(log.count(), 2);
        assert!(log.batches.lock()[0].ranges.is_empty(), "a push has no offsets");
        let letters = std::fs::read_to_string(folder.path().join("dead.jsonl")).unwrap();
        assert!(letters.contains(r#""source":"http""#) && letters.contains(r#""payload":"{\"src\":1}""#));

        let response = push.submit(b"{\"src\":1}\n5\n", BodyFormat::JsonLines, None).unwrap();
        assert_eq!((response.receipt.accepted, response.rejected.len()), (0, 2));
        let malformed = push.submit(b"[", BodyFormat::Json, None);
        assert!(matches!(malformed, Err(IntakeError::Malformed(_))), "{malformed:?}");
        let small =
            PushIntake::new(PushOptions { max_events: 2, ..PushOptions::default() }, push.wiring.clone());
        let too_many = Err(IntakeError::TooMany { found_at_least: 3, limit: 2 });
        assert_eq!(small.submit(BODY, BodyFormat::Json, None), too_many);
        let snapshot = push.stats().snapshot();
        assert_eq!((snapshot.received, snapshot.stored, snapshot.dead_letters), (5, 2, 3));
    }

    #[test]
    fn events_of_a_request_with_a_key_have_keys_unless_they_bring_their_own() {
        let folder = tempfile::tempdir().unwrap();
        let (log, wiring) = FakeLog::start(folder.path(), AdmitOptions::default());
        let push = PushIntake::new(PushOptions::default(), wiring);
        let event = r#"{"src":1,"dst":2,"ts":0}"#;
        let own = r#"{"src":1,"dst":2,"ts":0,"idempotency_key":"own"}"#;
        let send = |body: &str, key: Option<&str>| {
            push.submit(body.as_bytes(), BodyFormat::JsonLines, key).unwrap();
            let batches = log.batches.lock();
            batches.last().unwrap().events.iter().map(|event| event.idempotency).collect::<Vec<_>>()
        };
        let first = send(&format!("{event}\n{event}\n{own}"), Some("a"));
        assert!(first.iter().all(Option::is_some) && first[0] != first[1], "{first:?}");
        assert_eq!(first[2], send(own, None)[0]);
        assert_eq!(first[..2], send(&format!("oops\n{event}\n{event}"), Some("a"))[..]);
        assert_ne!(first[0], send(event, Some("b"))[0]);
        assert_eq!(send(event, None), [None]);
    }

    #[test]
    fn every_event_of_a_mapped_message_counts_whatever_becomes_of_it() {
        let folder = tempfile::tempdir().unwrap();
        let rules = AdmitOptions { future_limit: Some(10), ..AdmitOptions::default() };
        let (log, wiring) = FakeLog::start(folder.path(), rules);
        let options = PushOptions { max_events: 4, ..PushOptions::default() };
        let push = PushIntake::new(options, wiring).with_mapping(Some(each_time()));
        let send = |body: &str| push.submit(body.as_bytes(), BodyFormat::JsonLines, Some("key"));
        let too_many = Err(IntakeError::TooMany { found_at_least: 5, limit: 4 });
        assert_eq!(send("{\"id\":1,\"at\":[0,1]}\n{\"id\":2,\"at\":[999,999,999]}"), too_many);
        assert_eq!((log.count(), push.stats().snapshot().received), (0, 0));
        let response =
            send("{\"id\":1,\"at\":[0]}\n{\"id\":2,\"at\":[1,999]}\n{\"id\":3,\"at\":[]}").unwrap();
        assert_eq!((response.receipt.accepted, response.rejected.len()), (2, 1));
        let snapshot = push.stats().snapshot();
        assert_eq!((snapshot.received, snapshot.ignored), (4, 1));
        let keys: Vec<_> = log.batches.lock()[0].events.iter().map(|event| event.idempotency).collect();
        assert!(keys[0].is_some() && keys[0] != keys[1], "{keys:?}");
    }

    #[test]
    fn a_log_that_does_not_respond_leaves_the_outcome_unknown() {
        let folder = tempfile::tempdir().unwrap();
        let (_log, wiring) = FakeLog::start(folder.path(), AdmitOptions::default());
        let (submissions, silent) = crossbeam_channel::bounded(1);
        let options = PushOptions { durable_wait: Duration::from_millis(20), ..PushOptions::default() };
        let push = PushIntake::new(options, SourceWiring { submissions, ..wiring });
        let late = push.submit(BODY, BodyFormat::Json, None);
        assert!(matches!(late, Err(IntakeError::OutcomeUnknown(_))), "{late:?}");
        let ended = std::thread::spawn(move || drop(silent));
        ended.join().unwrap();
        let refused = push.submit(BODY, BodyFormat::Json, None);
        assert_eq!(refused, Err(IntakeError::Refused(SubmitError::ShuttingDown)));
    }

    #[test]
    fn a_batch_that_the_writer_of_the_log_drops_may_be_stored() {
        let folder = tempfile::tempdir().unwrap();
        let (_log, wiring) = FakeLog::start(folder.path(), AdmitOptions::default());
        let (submissions, queue) = crossbeam_channel::bounded::<Submission>(1);
        let push = PushIntake::new(PushOptions::default(), SourceWiring { submissions, ..wiring });
        let writer = std::thread::spawn(move || drop(queue.recv().unwrap()));
        let outcome = push.submit(BODY, BodyFormat::Json, None);
        assert_eq!(outcome, Err(IntakeError::Refused(SubmitError::OutcomeUnknown)));
        writer.join().unwrap();
    }

    #[test]
    fn an_event_that_the_log_can_never_store_is_rejected_and_the_others_stored() {
        let folder = tempfile::tempdir().unwrap();
        let (log, wiring) = FakeLog::start(folder.path(), AdmitOptions::default());
        *log.unstorable_time.lock() = Some(0);
        let push = PushIntake::new(PushOptions::default(), wiring);
        let response = push.submit(BODY, BodyFormat::Json, None).unwrap();
        let rejected: Vec<_> = response.rejected.iter().map(|r| (r.index, r.reason)).collect();
        assert_eq!(rejected, [(0, "unstorable"), (1, "missing_field")]);
        assert_eq!((response.receipt.accepted, log.count()), (1, 1));
        assert_eq!(push.stats().snapshot().dead_letters, 2);
    }

    #[test]
    fn events_after_a_long_gap_are_stored_again_though_each_comes_alone() {
        let folder = tempfile::tempdir().unwrap();
        let options = AdmitOptions { future_limit: Some(100), ..AdmitOptions::default() };
        let (log, wiring) = FakeLog::start(folder.path(), options);
        let push = PushIntake::new(PushOptions::default(), wiring);
        let accepted = |time: i64| {
            let body = format!(r#"{{"src":1,"dst":2,"ts":{time}}}"#);
            push.submit(body.as_bytes(), BodyFormat::JsonLines, None).unwrap().receipt.accepted
        };
        assert_eq!([0, 1, 4_000_000_000].map(accepted), [1, 1, 0]);
        let later: Vec<u64> = (0..12).map(|i| accepted(1_000_000 + i)).collect();
        assert_eq!(later, [0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1], "the one before counts as well");
        assert_eq!(log.count(), 6);
    }

    #[test]
    fn a_source_that_is_held_takes_nothing_until_it_goes_on() {
        let folder = tempfile::tempdir().unwrap();
        let (log, wiring) = FakeLog::start(folder.path(), AdmitOptions::default());
        wiring.holds.set(PUSH_SOURCE, true);
        let push = PushIntake::new(PushOptions::default(), wiring.clone());
        let held = Err(IntakeError::Refused(SubmitError::Paused));
        assert_eq!((push.submit(BODY, BodyFormat::Json, None), log.count()), (held, 0));
        wiring.holds.set(PUSH_SOURCE, false);
        assert_eq!(push.submit(BODY, BodyFormat::Json, None).unwrap().receipt.accepted, 2);
    }

    #[test]
    fn a_refusal_and_a_full_queue_are_reported_and_leave_no_letters() {
        let folder = tempfile::tempdir().unwrap();
        let (log, wiring) = FakeLog::start(folder.path(), AdmitOptions::default());
        log.refuse.store(1, SeqCst);
        let push = PushIntake::new(PushOptions::default(), wiring.clone());
        let refused = push.submit(BODY, BodyFormat::Json, None);
        assert!(matches!(refused, Err(IntakeError::Refused(SubmitError::DiskFull { .. }))), "{refused:?}");
        assert_eq!(push.submit(BODY, BodyFormat::Json, None).unwrap().receipt.accepted, 2);

        let (submissions, full) = crossbeam_channel::bounded(0);
        let options = PushOptions { queue_wait: Duration::from_millis(20), ..PushOptions::default() };
        let push = PushIntake::new(options, SourceWiring { submissions, ..wiring });
        assert_eq!(push.submit(BODY, BodyFormat::Json, None), Err(IntakeError::Overloaded));
        drop(full);
        let gone = push.submit(BODY, BodyFormat::Json, None);
        assert_eq!(gone, Err(IntakeError::Refused(SubmitError::ShuttingDown)));
        let letters = std::fs::read_to_string(folder.path().join("dead.jsonl")).unwrap();
        assert_eq!(letters.lines().count(), 1, "only the stored body's bad event is a letter");
    }
}
