//! [`TopicReader`]: the committed messages of a topic's one partition, in order, from any of them on.

use std::time::{Duration, Instant};

use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{BorrowedMessage, Headers, Message as _};
use rdkafka::{ClientContext, Offset, TopicPartitionList};

use super::wire::HEADER;
use super::{ReplicationOptions, TIMEOUT};
use crate::ingest::kafka::{KafkaFault, KafkaSourceOptions, Session, config_fault, other};

/// A message that was read.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Record {
    pub offset: i64,
    pub key: Vec<u8>,
    pub value: Option<Vec<u8>>,
    pub head: Vec<u8>,
}

/// What came of waiting for a message.
#[derive(Debug)]
pub(super) enum Next {
    Record(Record),
    /// All that is committed was read.
    End,
    Nothing,
}

pub(super) struct TopicReader {
    topic: String,
    consumer: BaseConsumer<Reading>,
}

struct Reading {
    session: Session,
}

impl ClientContext for Reading {
    fn log(&self, _: RDKafkaLogLevel, facility: &str, text: &str) {
        tracing::debug!(target: "librdkafka", facility, "{text}");
    }
    fn error(&self, error: KafkaError, reason: &str) {
        tracing::debug!(target: "librdkafka", %error, reason, "replication");
    }
}

impl ConsumerContext for Reading {}

impl TopicReader {
    /// A reader that stands nowhere yet.
    pub fn open(options: &ReplicationOptions, topic: &str) -> Result<Self, KafkaFault> {
        let mut source = KafkaSourceOptions::new(&options.client.brokers, topic, "evergraph-replication");
        source.client = options.client.clone();
        let mut config = source.consumer_config()?;
        config.remove("statistics.interval.ms");
        config.set("fetch.wait.max.ms", "100").set("isolation.level", "read_committed");
        let context = Reading { session: Session::of(&options.client)? };
        let consumer: BaseConsumer<Reading> =
            config.create_with_context(context).map_err(|error| config_fault(&error))?;
        consumer.context().session.log_in(&consumer, TIMEOUT)?;
        Ok(Self { topic: topic.to_owned(), consumer })
    }

    /// The oldest offset, and one past the newest.
    pub fn range(&self) -> Result<(i64, i64), KafkaFault> {
        self.consumer.fetch_watermarks(&self.topic, 0, TIMEOUT).map_err(|error| other(&error))
    }

    /// Goes on from an offset.
    pub fn seek(&self, offset: i64) -> Result<(), KafkaFault> {
        let mut place = TopicPartitionList::with_capacity(1);
        place.add_partition_offset(&self.topic, 0, Offset::Offset(offset)).map_err(|error| other(&error))?;
        self.consumer.assign(&place).map_err(|error| other(&error))
    }

    /// Waits for the next message, for so long at most.
    pub fn next(&self, wait: Duration) -> Result<Next, KafkaFault> {
        if let Some(fault) = self.consumer.context().session.renew(&self.consumer) {
            return Err(fault);
        }
        match self.consumer.poll(wait) {
            Some(Ok(message)) => Ok(Next::Record(Record::of(&message))),
            Some(Err(KafkaError::PartitionEOF(_))) => Ok(Next::End),
            Some(Err(error)) if is_passing(&error) => {
                tracing::debug!(%error, topic = self.topic, "an error of the client while messages are read");
                Ok(Next::Nothing)
            }
            Some(Err(error)) => Err(other(&error)),
            None => Ok(Next::Nothing),
        }
    }

    /// The first message from `offset` on, if there is one.
    pub fn at(&self, offset: i64) -> Result<Option<Record>, KafkaFault> {
        self.seek(offset)?;
        self.following()
    }

    /// The last message that `is_it`, if there is one. Ends of transactions have offsets without messages.
    pub fn last(&self, is_it: impl Fn(&Record) -> bool) -> Result<Option<Record>, KafkaFault> {
        let (low, high) = self.range()?;
        let mut back = 16;
        loop {
            let from = high.saturating_sub(back).max(low);
            let mut found = None;
            let mut next = if high > low { self.at(from)? } else { None };
            while let Some(record) = next {
                let after = record.offset + 1;
                found = is_it(&record).then_some(record).or(found);
                next = if after < high { self.following()? } else { None };
            }
            if found.is_some() || from <= low {
                return Ok(found);
            }
            back = back.saturating_mul(16);
        }
    }

    /// The next message, `None` at the end.
    fn following(&self) -> Result<Option<Record>, KafkaFault> {
        let deadline = Instant::now() + TIMEOUT;
        while Instant::now() < deadline {
            match self.next(Duration::from_millis(50))? {
                Next::Record(record) => return Ok(Some(record)),
                Next::End => return Ok(None),
                Next::Nothing => {}
            }
        }
        let detail = format!("no response about topic {} within {} s", self.topic, TIMEOUT.as_secs());
        Err(KafkaFault::Other { code: "timeout".to_owned(), detail })
    }
}

impl Record {
    fn of(message: &BorrowedMessage<'_>) -> Self {
        let mut headers = message.headers().into_iter().flat_map(Headers::iter);
        let head = headers.find(|header| header.key == HEADER).and_then(|header| header.value);
        Self {
            offset: message.offset(),
            key: message.key().map(<[u8]>::to_vec).unwrap_or_default(),
            value: message.payload().map(<[u8]>::to_vec),
            head: head.map(<[u8]>::to_vec).unwrap_or_default(),
        }
    }
}

/// Whether librdkafka goes on by itself, or has no need to.
fn is_passing(error: &KafkaError) -> bool {
    use RDKafkaErrorCode as Code;
    matches!(
        error.rdkafka_error_code(),
        Some(
            Code::BrokerTransportFailure
                | Code::AllBrokersDown
                | Code::Resolve
                | Code::OperationTimedOut
                | Code::RequestTimedOut
                | Code::LeaderNotAvailable
                | Code::NotLeaderForPartition
                | Code::UnknownTopicOrPartition
                | Code::UnknownPartition
                | Code::UnknownTopic
                // Partitions are assigned, so that no right to the group is needed.
                | Code::GroupAuthorizationFailed
        )
    )
}
