//! The other side of the sources: pushes a file as a producer would, to a Kafka topic or to a daemon's
//! HTTP interface. Rows become JSON events as `decode` reads them. To Kafka an idempotent producer is
//! used; over HTTP every event has an idempotency key, so that a body that is sent again after a lost response is
//! applied once, also by another run. The key holds the file's name, how it begins ([`Fingerprint`]), the row's
//! number and a hash of the row, so that another file of the same name is not taken for a repetition. Either
//! may be run again from a row.
//!
//! `feed` sends rows that have changed to a topic, `anomalies` how unusual events were, each by an `outlet`; `batch`
//! delivers messages until all are acknowledged.

mod anomalies;
mod batch;
mod feed;
mod http;
mod outlet;
mod topic;

use std::path::PathBuf;
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

use super::csv::{CsvError, CsvReader};
use super::fingerprint::Fingerprint;
use super::kafka::KafkaFault;
use crate::event::{EdgeEvent, NodeKey};

/// How often progress is reported.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(200);

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
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
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
    /// Time since the start.
    pub seconds: f64,
}

/// Why a push ended early.
#[derive(Debug, Error)]
pub enum ProduceError {
    /// The file cannot be read.
    #[error(transparent)]
    File(#[from] CsvError),
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
    let reader = CsvReader::open(&options.events)?;
    if let Some(warning) = reader.warning() {
        tracing::warn!("{warning}");
    }
    let rows = Rows {
        reader,
        pace: options.events_per_second.filter(|r| *r > 0.0),
        prefix: if options.idempotency_keys { Some(Fingerprint::of(&options.events)?.first()) } else { None },
        row: 0,
        report: ProduceReport::default(),
        started: Instant::now(),
        reported_at: Instant::now(),
        progress,
    };
    match &options.target {
        ProduceTarget::Topic(target) => target.push(options, rows),
        ProduceTarget::Http(target) => target.push(options, rows),
    }
}

/// The file's events as JSON, paced, with the report that grows along.
struct Rows<'p> {
    reader: CsvReader,
    pace: Option<f64>,
    prefix: Option<String>,
    row: u64,
    report: ProduceReport,
    started: Instant,
    reported_at: Instant,
    progress: &'p mut dyn FnMut(&ProduceReport),
}

impl Rows<'_> {
    fn skip(&mut self, from_row: u64) -> Result<(), ProduceError> {
        while self.row < from_row {
            match self.reader.next() {
                None => break,
                Some(Err(error)) if !error.is_row() => return Err(error.into()),
                Some(_) => self.row += 1,
            }
        }
        self.started = Instant::now();
        Ok(())
    }

    /// Appends the next event to `out` as one JSON object and returns its source node, when it is due;
    /// `None` at the end of the file.
    fn next_into(&mut self, out: &mut Vec<u8>) -> Result<Option<NodeKey>, ProduceError> {
        loop {
            let Some(read) = self.reader.next() else { return Ok(None) };
            let row = self.row;
            match read {
                Ok(event) => {
                    self.row += 1;
                    self.report.rows += 1;
                    self.wait();
                    let key = self.prefix.as_ref().map(|prefix| idempotency_key(prefix, row, &event));
                    write_event(&event, key.as_deref(), out);
                    return Ok(Some(event.src));
                }
                Err(error) if error.is_row() => {
                    tracing::warn!("{error}");
                    self.row += 1;
                    self.report.rows += 1;
                    self.report.bad_rows += 1;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    #[allow(clippy::cast_precision_loss)]
    fn wait(&self) {
        if let Some(rate) = self.pace {
            let due = Duration::from_secs_f64(self.report.rows as f64 / rate);
            std::thread::sleep(due.saturating_sub(self.started.elapsed()));
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

/// A key that no other row has, nor the row in this place of another file.
fn idempotency_key(file: &str, row: u64, event: &EdgeEvent) -> String {
    let mut text = Vec::new();
    write_event(event, None, &mut text);
    // Long names are cut, since keys are bounded; the hash knows the whole.
    let whole = xxh3_64_with_seed(&text, xxh3_64(file.as_bytes()));
    let name: String = file.chars().take(100).collect();
    format!("{name}:{row}:{whole:016x}")
}

/// A node key as JSON: an integer or a text.
#[derive(Serialize)]
#[serde(untagged)]
enum KeyOut<'a> {
    Int(i64),
    Text(&'a str),
}

impl<'a> From<&'a NodeKey> for KeyOut<'a> {
    fn from(key: &'a NodeKey) -> Self {
        match key {
            NodeKey::Int(number) => Self::Int(*number),
            NodeKey::Text(text) => Self::Text(text),
        }
    }
}

#[derive(Serialize)]
struct EventOut<'a> {
    src: KeyOut<'a>,
    dst: KeyOut<'a>,
    ts: i64,
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    edge_type: Option<&'a str>,
    #[serde(skip_serializing_if = "<[f32]>::is_empty")]
    features: &'a [f32],
    #[serde(skip_serializing_if = "Option::is_none")]
    label: Option<f32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    idempotency_key: Option<&'a str>,
}

/// Appends an event as the JSON object that `decode` reads.
fn write_event(event: &EdgeEvent, idempotency_key: Option<&str>, out: &mut Vec<u8>) {
    let event = EventOut {
        src: (&event.src).into(),
        dst: (&event.dst).into(),
        ts: event.time.0,
        edge_type: event.edge_type.as_deref(),
        features: &event.features,
        label: event.label,
        idempotency_key,
    };
    // Numbers and texts into memory: there is nothing that can fail.
    let _ = serde_json::to_writer(out, &event);
}
