//! The other side of the sources: pushes a file as a producer would, to a Kafka topic or to a daemon's HTTP interface.
//! Rows become JSON events as `decode` reads them (`event`). To Kafka an idempotent producer is used; over HTTP every
//! event has an idempotency key, so that a body that is sent again after a lost response is applied once, also by
//! another run. The key is the row's own, or holds the file's name, how it begins ([`Fingerprint`]), the row's number
//! and a hash of the row, so that another file of the same name is not taken for a repetition. Either may be run again
//! from a row.
//!
//! `feed` sends rows that have changed to a topic, `anomalies` how unusual events were, each by an `outlet`; `batch`
//! delivers messages until all are acknowledged.

mod anomalies;
mod batch;
mod event;
mod feed;
mod http;
mod outlet;
mod topic;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::Serialize;
use thiserror::Error;
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

pub use anomalies::AnomalyTopic;
pub(in crate::ingest) use batch::{BatchOptions, BatchProducer, Record};
pub use feed::{FeedFormat, FeedTopic};
pub use http::HttpTarget;
pub(crate) use http::is_about_trust;
pub use outlet::OutletOptions;
pub use topic::TopicTarget;

use self::event::write_event;
use super::file_error::FileError;
use super::fingerprint::Fingerprint;
use super::kafka::KafkaFault;
use super::mapping::Decoded;
use super::rows;
use crate::event::{Event, NodeKey};

/// How often progress is reported.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(200);

/// Most faults of rows and events that a report has in words.
pub const FAULTS_MAX: usize = 10;

/// What to push where.
#[derive(Clone, Debug)]
pub struct ProduceOptions {
    /// The event file.
    pub events: PathBuf,
    /// Where to.
    pub target: ProduceTarget,
    /// Events per second; `None` is as fast as the target takes them.
    pub events_per_second: Option<f64>,
    /// Events per HTTP body.
    pub batch_events: usize,
    /// Rows before this one, counted from 0, are passed over.
    pub from_row: u64,
    /// Whether events get idempotency keys.
    pub idempotency_keys: bool,
}

/// Where events are pushed to.
#[derive(Clone, Debug)]
pub enum ProduceTarget {
    /// A Kafka topic.
    Topic(TopicTarget),
    /// A daemon's HTTP interface.
    Http(HttpTarget),
}

impl ProduceOptions {
    /// Full speed from the first row; idempotency keys over HTTP only, since Kafka needs none.
    #[must_use]
    pub fn new(events: impl Into<PathBuf>, target: ProduceTarget) -> Self {
        let events = events.into();
        let idempotency_keys = matches!(target, ProduceTarget::Http(_));
        Self { events, target, events_per_second: None, batch_events: 1000, from_row: 0, idempotency_keys }
    }
}

/// How far a push is, and at its end what became of it.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ProduceReport {
    /// Rows read, bad ones included; with `from_row` added, where to go on.
    pub rows: u64,
    /// Rows that are no events; they were passed over.
    pub bad_rows: u64,
    /// Events acknowledged by the target.
    pub sent: u64,
    /// Of these, events that the daemon had already.
    pub duplicates: u64,
    /// Of these, events that the daemon rejected and kept as dead letters.
    pub rejected: u64,
    /// Bodies or messages that had to be sent again.
    pub retries: u64,
    /// Why the last of them had to, while it has not arrived.
    #[serde(skip)]
    pub trouble: Option<String>,
    /// What was wrong with the first bad rows and rejected events, [`FAULTS_MAX`] at most.
    pub faults: Vec<String>,
    /// Time since the start.
    pub seconds: f64,
}

impl ProduceReport {
    fn note(&mut self, fault: impl FnOnce() -> String) {
        if self.faults.len() < FAULTS_MAX {
            self.faults.push(fault());
        }
    }
}

/// Why a push ended early.
#[derive(Debug, Error)]
pub enum ProduceError {
    /// The file cannot be read.
    #[error(transparent)]
    File(#[from] FileError),
    /// The cluster or the topic cannot be used.
    #[error(transparent)]
    Kafka(#[from] KafkaFault),
    /// A message was not acknowledged.
    #[error(
        "Kafka did not acknowledge a message: {detail}; go on with --from-row {from_row} once the cause is gone"
    )]
    NotAcknowledged {
        /// The client's words.
        detail: String,
        /// A row from which nothing is left out.
        from_row: u64,
    },
    /// The daemon did not respond.
    #[error(
        "no response from {url} for {seconds} s ({detail}); is the daemon running? go on with --from-row {from_row}"
    )]
    NoResponse {
        /// The address of the request.
        url: String,
        /// How long.
        seconds: u64,
        /// The last failure.
        detail: String,
        /// A row from which nothing is left out.
        from_row: u64,
    },
    /// There is nobody to talk to, and there would be nobody the next time.
    #[error("cannot talk to {url}: {detail}; nothing was sent from row {from_row} on")]
    NotTrusted {
        /// The address of the request.
        url: String,
        /// What is wrong, and what to do.
        detail: String,
        /// A row from which nothing is left out.
        from_row: u64,
    },
    /// The daemon refused a body, and would refuse it again.
    #[error("{url} returned {status}: {detail}; go on with --from-row {from_row}")]
    Refused {
        /// The address of the request.
        url: String,
        /// HTTP status.
        status: u16,
        /// The body's beginning.
        detail: String,
        /// A row from which nothing is left out.
        from_row: u64,
    },
}

/// Pushes the file; `progress` is called a few times a second and at the end. Blocks.
///
/// # Errors
/// When the file or the target cannot be used, or the target stops taking events.
pub fn produce(
    options: &ProduceOptions,
    progress: &mut dyn FnMut(&ProduceReport),
) -> Result<ProduceReport, ProduceError> {
    let prefix =
        if options.idempotency_keys { Some(Fingerprint::of(&options.events)?.first()) } else { None };
    let rows = Rows::open(&options.events, options.events_per_second, prefix, progress)?;
    if let Some(warning) = rows.reader.warning() {
        tracing::warn!("{warning}");
    }
    match &options.target {
        ProduceTarget::Topic(target) => target.push(options, rows),
        ProduceTarget::Http(target) => target.push(options, rows),
    }
}

/// The file's events as JSON, paced, with the report that grows along.
struct Rows<'p> {
    reader: rows::Rows,
    pace: Option<f64>,
    prefix: Option<String>,
    row: u64,
    report: ProduceReport,
    started: Instant,
    /// Rows read when the pace began, and when that was.
    paced_from: (u64, Instant),
    reported_at: Instant,
    progress: &'p mut dyn FnMut(&ProduceReport),
}

impl<'p> Rows<'p> {
    fn open(
        file: &Path,
        events_per_second: Option<f64>,
        prefix: Option<String>,
        progress: &'p mut dyn FnMut(&ProduceReport),
    ) -> Result<Self, ProduceError> {
        let now = Instant::now();
        Ok(Self {
            reader: rows::Rows::open_plain(file)?,
            pace: events_per_second.filter(|rate| *rate > 0.0),
            prefix,
            row: 0,
            report: ProduceReport::default(),
            started: now,
            paced_from: (0, now),
            reported_at: now,
            progress,
        })
    }

    fn skip(&mut self, from_row: u64) -> Result<(), ProduceError> {
        while self.row < from_row && self.reader.next_row()?.is_some() {
            self.row += 1;
        }
        self.started = Instant::now();
        self.begin_pace();
        Ok(())
    }

    /// Rows are due from now on, one after the other.
    fn begin_pace(&mut self) {
        self.paced_from = (self.report.rows, Instant::now());
    }

    /// Appends the next event to `out` as one JSON object and returns the node that its key is, when it is due; `None`
    /// at the end of the file.
    fn next_into(&mut self, out: &mut Vec<u8>) -> Result<Option<NodeKey>, ProduceError> {
        while let Some(read) = self.reader.next_row()? {
            let row = self.row;
            self.row += 1;
            self.report.rows += 1;
            match read {
                Ok(Decoded::One(incoming)) => {
                    self.wait();
                    let event = incoming.event;
                    if incoming.idempotency.is_some() {
                        // The row is an event with a key.
                        out.extend_from_slice(self.reader.row_text().as_bytes());
                    } else {
                        let key = self.prefix.as_ref().map(|prefix| idempotency_key(prefix, row, &event));
                        write_event(&event, key.as_deref(), out);
                    }
                    return Ok(Some(first_node(event)));
                }
                // Without a mapping a row is one event.
                Ok(Decoded::Many(_) | Decoded::Ignored) => {}
                Err(rejection) => {
                    tracing::warn!("{rejection}");
                    self.report.note(|| rejection.to_string());
                    self.report.bad_rows += 1;
                }
            }
        }
        Ok(None)
    }

    #[allow(clippy::cast_precision_loss)]
    fn wait(&self) {
        if let Some(rate) = self.pace {
            let (rows, since) = self.paced_from;
            let due = Duration::from_secs_f64((self.report.rows - rows) as f64 / rate);
            std::thread::sleep(due.saturating_sub(since.elapsed()));
        }
    }

    /// Reports progress, if the last report was long enough ago or this is the end.
    fn report_progress(&mut self, end: bool) {
        if end || self.reported_at.elapsed() >= PROGRESS_INTERVAL {
            self.report.seconds = self.started.elapsed().as_secs_f64();
            self.reported_at = Instant::now();
            (self.progress)(&self.report);
        }
    }
}

/// The node by which events are kept in order.
fn first_node(event: Event) -> NodeKey {
    match event {
        Event::Edge(edge) => edge.src,
        Event::Node { key, .. } | Event::DeleteNode { key } => key,
        Event::DeleteEdge { src, .. } => src,
    }
}

/// A key that no other row has, nor the row in this place of another file.
fn idempotency_key(file: &str, row: u64, event: &Event) -> String {
    let mut text = Vec::new();
    write_event(event, None, &mut text);
    // Long names are cut, since keys are bounded; the hash knows the whole.
    let whole = xxh3_64_with_seed(&text, xxh3_64(file.as_bytes()));
    let name: String = file.chars().take(100).collect();
    format!("{name}:{row}:{whole:016x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pushed(file: &str, text: &str, from_row: u64) -> (Vec<String>, ProduceReport) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(file);
        std::fs::write(&path, text).unwrap();
        let (prefix, progress) = (Fingerprint::of(&path).unwrap().first(), &mut |_: &ProduceReport| {});
        let mut rows = Rows::open(&path, None, Some(prefix), progress).unwrap();
        rows.skip(from_row).unwrap();
        let (mut all, mut text) = (Vec::new(), Vec::new());
        while let Some(node) = rows.next_into(&mut text).unwrap() {
            all.push(format!("{node} {}", String::from_utf8(std::mem::take(&mut text)).unwrap()));
        }
        (all, rows.report)
    }

    #[test]
    fn lines_of_json_are_pushed_as_they_are_where_they_have_a_key_and_get_one_where_not() {
        let own = r#"{"src":"a","dst":"b","ts":1,"idempotency_key":"mine"}"#;
        let lines =
            [own, r#"{"op":"delete","node":"c"}"#, "{}", r#"{"op":"node","node":7,"ts":2,"features":[0.5]}"#];
        let (events, report) = pushed("events.jsonl", &lines.join("\n"), 0);
        assert_eq!(events[0], format!("a {own}"));
        assert!(
            events[1].starts_with(r#"c {"op":"delete","src":"c","#) && events[1].contains(":1:"),
            "{events:?}"
        );
        assert!(events[2].starts_with(r#"7 {"op":"node","src":7,"ts":2,"features":[0.5],"#), "{events:?}");
        assert!(events[1].contains(r#""idempotency_key":"events.jsonl#1-"#), "{events:?}");
        assert_eq!((events.len(), report.rows, report.bad_rows), (3, 4, 1));
        let (rest, _) = pushed("events.jsonl", &lines.join("\n"), 3);
        assert_eq!(rest, events[2..], "a row has the same key from wherever a push begins");
    }

    #[test]
    fn what_was_due_before_the_pace_began_is_not_made_up_for() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("events.csv");
        std::fs::write(&path, "src,dst,ts\n1,2,1\n1,2,2\n1,2,3\n").unwrap();
        let progress = &mut |_: &ProduceReport| {};
        let mut rows = Rows::open(&path, Some(50.0), None, progress).unwrap();
        rows.next_into(&mut Vec::new()).unwrap();
        std::thread::sleep(Duration::from_millis(100));
        rows.begin_pace();
        let begun = Instant::now();
        rows.next_into(&mut Vec::new()).unwrap();
        rows.next_into(&mut Vec::new()).unwrap();
        assert!(begun.elapsed() >= Duration::from_millis(40), "{:?}", begun.elapsed());
    }

    #[test]
    fn a_byte_order_mark_is_no_part_of_the_first_line() {
        let (events, report) = pushed("events.ndjson", "\u{feff}{\"src\":1,\"dst\":2,\"ts\":3}\n", 0);
        assert_eq!((events.len(), report.bad_rows), (1, 0), "{events:?}");
    }
}
