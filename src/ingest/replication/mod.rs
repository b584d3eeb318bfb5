//! How a leader and its replicas exchange the log and what was learned: two topics of one partition each, so that a
//! topic is one order.
//!
//! ```text
//! <prefix>.frames  the frames of the log, in pieces that fit into messages; kept, so that replicas can begin
//! <prefix>.states  compacted: the published row of each node, the times of each pair, the weights, and a mark that
//!                  says which log position these lead to
//! ```
//! Both are written in transactions and read committed, so a reader gets frames whole and in order, each once, and a
//! mark only behind all that it stands for. Compaction keeps the latest message of each key, and with that the state as
//! of the last mark.
//!
//! A leader has a term, a number above that of every leader before it, writes it when it takes over a topic, and then
//! beside every message. The transactional id is the topic's name, so a new leader fences the producer of an earlier
//! one; that one finds a higher term when it tries to go on, and ends. A term is not a lock: until it writes, an
//! earlier leader still takes events.

mod frames;
mod reader;
mod states;
mod transactions;
mod wire;

use std::time::Duration;

use thiserror::Error;

pub use frames::{FrameReader, FrameWriter, Shipped, shipped};
pub use states::{StateReader, StateWriter};
pub use wire::{Mark, StateMessage};

use super::kafka::{KafkaClientOptions, KafkaFault, KafkaSourceOptions, is_compacted};
use super::produce::TopicTarget;
use crate::event::EdgeId;

/// How long a request to the brokers may take.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Largest part of a frame or of weights in one message, bytes: brokers take 1 MiB by default.
const PIECE_BYTES: usize = 768 << 10;

/// Which topics, and how to reach them.
#[derive(Clone, Debug)]
pub struct ReplicationOptions {
    /// How to reach the brokers.
    pub client: KafkaClientOptions,
    /// What the names of the topics begin with.
    pub prefix: String,
}

impl ReplicationOptions {
    /// The topic of the frames.
    #[must_use]
    pub fn frames(&self) -> String {
        format!("{}.frames", self.prefix)
    }

    /// The topic of the states.
    #[must_use]
    pub fn states(&self) -> String {
        format!("{}.states", self.prefix)
    }

    /// What there is of the topics, in words, without creating any; `leads` is whether that would be done.
    ///
    /// # Errors
    /// A topic cannot be used, or is not there.
    pub fn check(&self, leads: bool) -> Result<String, ReplicationFault> {
        let mut found = Vec::new();
        for topic in [self.frames(), self.states()] {
            let (client, create_partitions) = (self.client.clone(), None);
            let target = TopicTarget { client, topic: topic.clone(), create_partitions };
            match target.prepare_with(&[]) {
                Ok(report) => {
                    let partitions = report.map_or(1, |report| report.partitions.len());
                    if partitions != 1 {
                        return Err(ReplicationFault::Partitions { topic, partitions });
                    }
                    found.push(format!("topic {topic} is there"));
                }
                Err(KafkaFault::TopicMissing { .. }) if leads => {
                    found.push(format!("topic {topic} will be created"));
                }
                Err(fault) => return Err(fault.into()),
            }
        }
        Ok(found.join("; "))
    }

    /// Makes the topics where they are not there yet.
    fn prepare(
        &self,
        topic: &str,
        settings: &[(&str, &str)],
        compacted: bool,
    ) -> Result<(), ReplicationFault> {
        let client = self.client.clone();
        let target = TopicTarget { client, topic: topic.to_owned(), create_partitions: Some(1) };
        let found = target.prepare_with(settings)?;
        let topic = topic.to_owned();
        match found.map_or(1, |report| report.partitions.len()) {
            1 => {}
            partitions => return Err(ReplicationFault::Partitions { topic, partitions }),
        }
        let mut reader = KafkaSourceOptions::new(&self.client.brokers, &topic, "evergraph-replication");
        reader.client = self.client.clone();
        match is_compacted(&reader, TIMEOUT) {
            Ok(found) if found != compacted => Err(ReplicationFault::Policy { topic, compacted }),
            Ok(_) => Ok(()),
            Err(fault) => {
                tracing::debug!(topic, %fault, "whether the topic is compacted is not known");
                Ok(())
            }
        }
    }
}

/// Why a leader or a replica cannot go on.
#[derive(Debug, Error)]
pub enum ReplicationFault {
    /// It may go by itself.
    #[error(transparent)]
    Kafka(#[from] KafkaFault),
    /// The topic has more than one order.
    #[error(
        "topic {topic} has {partitions} partitions and must have one: delete it, and it is created again"
    )]
    Partitions {
        /// The topic.
        topic: String,
        /// How many it has.
        partitions: usize,
    },
    /// The topic loses what it must keep.
    #[error(
        "cleanup.policy of topic {topic} must be {}, so that it keeps what replicas need",
        if *.compacted { "compact" } else { "delete" }
    )]
    Policy {
        /// The topic.
        topic: String,
        /// Whether it has to be compacted.
        compacted: bool,
    },
    /// Another leader has taken over.
    #[error(
        "another leader has taken over topic {topic} (term {term} above {own}): this one ends, so that no further \
         events are taken that no replica gets; start it as a replica, with an empty data.dir or one restored from a \
         backup of the leader"
    )]
    Superseded {
        /// The topic.
        topic: String,
        /// The other's.
        term: u64,
        /// Its own.
        own: u64,
    },
    /// The topic holds another log.
    #[error(
        "topic {topic} holds the log of another data directory: its frame up to position {position} is not the one \
         here; use another cluster.topics, or the data.dir that belongs to it"
    )]
    Foreign {
        /// The topic.
        topic: String,
        /// One past the last record of the frame.
        position: EdgeId,
    },
    /// Records are missing.
    #[error(
        "topic {topic} goes on at position {found}, and the log here ends at {expected}: what is between is gone from \
         the topic; restore a backup of the leader into data.dir, and start again"
    )]
    Gap {
        /// The topic.
        topic: String,
        /// Where the log ends.
        expected: EdgeId,
        /// Where the topic goes on.
        found: EdgeId,
    },
    /// The log here does not reach back to what was shipped.
    #[error(
        "topic {topic} ends at position {end}, and the log here begins at {first}: what is between can be shipped no \
         more; delete both topics, which are created again, and begin replicas with a backup of this daemon"
    )]
    Cut {
        /// The topic.
        topic: String,
        /// Where it ends.
        end: EdgeId,
        /// Where the log begins.
        first: EdgeId,
    },
    /// The log here is shorter than what was shipped.
    #[error(
        "topic {topic} goes to position {end}, and the log here ends at {durable}: it has lost records, or is not the \
         log of this topic; use the data.dir that belongs to it, that of a replica for example"
    )]
    Ahead {
        /// The topic.
        topic: String,
        /// Where it ends.
        end: EdgeId,
        /// Where the log ends.
        durable: EdgeId,
    },
    /// A message is not what it should be.
    #[error(
        "message {offset} of topic {topic} cannot be read: {detail}; does anything else write to this topic?"
    )]
    Malformed {
        /// The topic.
        topic: String,
        /// The message.
        offset: i64,
        /// What is wrong.
        detail: String,
    },
    /// A frame or weights cannot be made into messages.
    #[error("what is to be shipped cannot be written: {0}")]
    Unwritable(String),
}

impl ReplicationFault {
    /// Whether trying again may help.
    #[must_use]
    pub fn is_passing(&self) -> bool {
        matches!(self, Self::Kafka(fault) if !matches!(fault, KafkaFault::BadOption { .. }))
    }
}
