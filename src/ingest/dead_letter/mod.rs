//! Where refused events are kept: a file, or a Kafka topic with the file behind it. A dead letter is
//! delivered (flushed to disk or acknowledged by the broker) *before* the batch that accounts for its
//! offset is submitted, so no refused event is ever lost; when it can be delivered nowhere, for example
//! because the disk is full, the source keeps the batch, reports it and retries. After a crash between
//! the two it is delivered again: at least once.

mod file;
mod kept;
mod topic;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use thiserror::Error;

pub use file::DeadLetterFileOptions;
pub use kept::{KeptLetter, KeptLetters};
pub use topic::DeadLetterTopicOptions;

use super::rejection::Rejection;

/// So long the topic is left alone after a failed delivery.
const TOPIC_REST: Duration = Duration::from_secs(30);
/// So long a delivery waits for another one to the topic; then the file takes it.
const TURN_WAIT: Duration = Duration::from_secs(1);

/// A refused event with everything that is known about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadLetter {
    /// Name of the source, for example `kafka:payments` or `http`.
    pub source: Arc<str>,
    /// Partition of the source; 0 where there are none.
    pub partition: i32,
    /// Offset, row, or place in the pushed body.
    pub offset: i64,
    /// The message's key, if the source has keys.
    pub key: Option<Vec<u8>>,
    /// The event's bytes as received; `None` is a null value.
    pub payload: Option<Vec<u8>>,
    /// The message's headers, if the source has headers.
    pub headers: Vec<(String, Option<Vec<u8>>)>,
    /// Why it was refused.
    pub rejection: Rejection,
    /// When, in milliseconds since the Unix epoch.
    pub received_unix_ms: i64,
}

/// Where dead letters go.
#[derive(Clone, Debug)]
pub enum DeadLetterTarget {
    /// A file of JSON lines.
    File(DeadLetterFileOptions),
    /// A Kafka topic; the file takes them when the topic does not.
    Topic(DeadLetterTopicOptions, DeadLetterFileOptions),
}

/// Why dead letters could not be kept.
#[derive(Debug, Error)]
pub enum DeadLetterError {
    /// The file could not be opened or written.
    #[error(
        "dead letters cannot be written to {}: {source}; free space or move data.dir",
        path.display()
    )]
    File {
        /// The file.
        path: PathBuf,
        /// The operating system's message.
        source: std::io::Error,
    },
    /// A file could not be read.
    #[error("the dead letters in {} cannot be read: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The operating system's message.
        source: std::io::Error,
    },
    /// The topic did not take them.
    #[error("dead letters cannot be delivered to topic {topic}: {detail}")]
    Topic {
        /// The topic.
        topic: String,
        /// The broker's or the client's message.
        detail: String,
    },
    /// Neither did.
    #[error("{topic}; and then: {file}")]
    Both {
        /// Why not to the topic.
        topic: Box<DeadLetterError>,
        /// Why not to the file.
        file: Box<DeadLetterError>,
    },
}

/// Keeps refused events; shared by all sources but those with a topic of their own for them.
pub struct DeadLetters {
    topic: Option<topic::TopicSink>,
    /// After a failure the topic is left alone until this moment, so that not every batch waits for it.
    topic_rests_until: Mutex<Option<Instant>>,
    file: Arc<Mutex<file::FileSink>>,
    delivered: Arc<Delivered>,
}

/// How many letters were delivered.
#[derive(Default)]
struct Delivered {
    in_topic: AtomicU64,
    in_file: AtomicU64,
}

impl DeadLetters {
    /// Opens the target. A broker that is away is not an error here: letters go to the file until it is back.
    ///
    /// # Errors
    /// When the file cannot be opened, or the Kafka client's properties are not valid.
    pub fn open(target: DeadLetterTarget) -> Result<Arc<Self>, DeadLetterError> {
        let (topic, file) = match target {
            DeadLetterTarget::File(file) => (None, file),
            DeadLetterTarget::Topic(topic, file) => (Some(topic::TopicSink::open(topic)?), file),
        };
        Ok(Arc::new(Self {
            topic,
            topic_rests_until: Mutex::new(None),
            file: Arc::new(Mutex::new(file::FileSink::open(file)?)),
            delivered: Arc::default(),
        }))
    }

    /// The same file and counters, and another topic before them.
    ///
    /// # Errors
    /// When the Kafka client's properties are not valid.
    pub fn with_topic(&self, topic: DeadLetterTopicOptions) -> Result<Arc<Self>, DeadLetterError> {
        Ok(Arc::new(Self {
            topic: Some(topic::TopicSink::open(topic)?),
            topic_rests_until: Mutex::new(None),
            file: Arc::clone(&self.file),
            delivered: Arc::clone(&self.delivered),
        }))
    }

    /// Sends letters back to the topic that they came from, each to its own partition, with headers that name why they
    /// were letters. Returns the places of those that are too large for it. Blocks.
    ///
    /// # Errors
    /// When not all were acknowledged; some may have been.
    pub fn send_back(
        options: DeadLetterTopicOptions,
        letters: &[DeadLetter],
    ) -> Result<Vec<usize>, DeadLetterError> {
        topic::TopicSink::open(options)?.send_back(letters)
    }

    /// Delivers `letters` durably and returns when that is done. Blocks.
    ///
    /// # Errors
    /// When they could be delivered nowhere; some may have been.
    pub fn deliver(&self, letters: &[DeadLetter]) -> Result<(), DeadLetterError> {
        if letters.is_empty() {
            return Ok(());
        }
        match self.topic.as_ref().and_then(|topic| self.to_topic(topic, letters)) {
            None => self.to_file(letters),
            Some(Ok(too_large)) => {
                self.delivered.in_topic.fetch_add((letters.len() - too_large.len()) as u64, Relaxed);
                let left: Vec<_> = too_large.iter().filter_map(|&i| letters.get(i).cloned()).collect();
                self.to_file(&left)
            }
            Some(Err(topic)) => {
                tracing::warn!(error = %topic, letters = letters.len(), "dead letters go to the file instead");
                let both = |file| DeadLetterError::Both { topic: Box::new(topic), file: Box::new(file) };
                self.to_file(letters).map_err(both)
            }
        }
    }

    /// Tries the topic; returns which letters are too large for it, or `None` while it is left alone or
    /// someone else has been busy with it for too long.
    fn to_topic(
        &self,
        topic: &topic::TopicSink,
        letters: &[DeadLetter],
    ) -> Option<Result<Vec<usize>, DeadLetterError>> {
        let rests = || self.topic_rests_until.lock().is_some_and(|until| Instant::now() < until);
        if rests() {
            return None;
        }
        // Who had the turn before may have found that the topic cannot be reached.
        let mut turn = topic.turn(TURN_WAIT).filter(|_| !rests())?;
        let delivered = turn.deliver(letters);
        if delivered.is_err() {
            *self.topic_rests_until.lock() = Some(Instant::now() + TOPIC_REST);
        }
        Some(delivered)
    }

    fn to_file(&self, letters: &[DeadLetter]) -> Result<(), DeadLetterError> {
        if !letters.is_empty() {
            self.file.lock().deliver(letters)?;
            self.delivered.in_file.fetch_add(letters.len() as u64, Relaxed);
        }
        Ok(())
    }

    /// Letters delivered to the topic and to the file since the start.
    #[must_use]
    pub fn delivered(&self) -> (u64, u64) {
        (self.delivered.in_topic.load(Relaxed), self.delivered.in_file.load(Relaxed))
    }
}

/// Milliseconds since the Unix epoch.
pub(super) fn unix_ms() -> i64 {
    let elapsed = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(elapsed.as_millis()).unwrap_or(i64::MAX)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::ingest::rejection::Reason;

    /// A dead letter with this payload.
    pub fn letter(payload: &[u8]) -> DeadLetter {
        DeadLetter {
            source: "kafka:t".into(),
            partition: 2,
            offset: 41,
            key: Some(b"k".to_vec()),
            payload: Some(payload.to_vec()),
            headers: vec![("trace".into(), Some(b"abc".to_vec()))],
            rejection: Rejection::new(Reason::BadId, "dst is empty"),
            received_unix_ms: 1_700_000_000_000,
        }
    }

    #[test]
    fn letters_that_no_message_holds_go_to_the_file_and_the_topic_stays_in_use() {
        let dir = tempfile::tempdir().unwrap();
        let file = DeadLetterFileOptions::new(dir.path().join("dead.jsonl"));
        let topic = DeadLetterTopicOptions::new("127.0.0.1:1", "dead");
        let letters = DeadLetters::open(DeadLetterTarget::Topic(topic, file)).unwrap();
        letters.deliver(&[letter(&vec![b'x'; 2_000_000])]).unwrap();
        assert_eq!(letters.delivered(), (0, 1));
        assert!(letters.topic_rests_until.lock().is_none(), "it is no fault of the topic");
    }

    #[test]
    fn one_delivery_finds_the_topic_unreachable_and_the_others_learn_of_it() {
        let dir = tempfile::tempdir().unwrap();
        let file = DeadLetterFileOptions::new(dir.path().join("dead.jsonl"));
        let mut topic = DeadLetterTopicOptions::new("127.0.0.1:1", "dead");
        topic.timeout = Duration::from_millis(300);
        let letters = DeadLetters::open(DeadLetterTarget::Topic(topic, file)).unwrap();
        let started = Instant::now();
        std::thread::scope(|scope| {
            for _ in 0..20 {
                scope.spawn(|| letters.deliver(&[letter(b"x")]).unwrap());
            }
        });
        assert_eq!(letters.delivered(), (0, 20));
        assert!(started.elapsed() < Duration::from_secs(4), "{:?}", started.elapsed());
    }

    #[test]
    fn an_unreachable_topic_falls_back_to_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let file = DeadLetterFileOptions::new(dir.path().join("dead.jsonl"));
        let mut topic = DeadLetterTopicOptions::new("127.0.0.1:1", "dead");
        topic.timeout = std::time::Duration::from_millis(300);
        let letters = DeadLetters::open(DeadLetterTarget::Topic(topic.clone(), file.clone())).unwrap();
        letters.deliver(&[letter(b"x"), letter(b"y")]).unwrap();
        assert_eq!(letters.delivered(), (0, 2));
        let started = Instant::now();
        letters.deliver(&[letter(b"z")]).unwrap();
        assert!(started.elapsed() < topic.timeout, "the topic is left alone for a while");
        assert_eq!(std::fs::read_to_string(&file.path).unwrap().lines().count(), 3);
    }
}
