//! [`Transactions`]: messages that a topic gets whole, each time, or not at all.

use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rdkafka::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{BaseProducer, BaseRecord, DeliveryResult, Producer, ProducerContext};

use super::wire::HEADER;
use super::{ReplicationOptions, TIMEOUT};
use crate::ingest::kafka::{KafkaFault, Session, config_fault, other};

/// A message: its key, its value (`None`: what the key names is gone) and what stands in its header.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Message {
    pub key: Vec<u8>,
    pub value: Option<Vec<u8>>,
    pub head: Vec<u8>,
}

/// A producer with a transactional id. One that has failed is of no use any more.
pub(super) struct Transactions {
    topic: String,
    producer: BaseProducer<Sending>,
}

struct Sending {
    failure: Mutex<Option<String>>,
    session: Session,
}

impl ClientContext for Sending {
    fn log(&self, _: RDKafkaLogLevel, facility: &str, text: &str) {
        tracing::debug!(target: "librdkafka", facility, "{text}");
    }
    fn error(&self, error: KafkaError, reason: &str) {
        tracing::debug!(%error, reason, "transactions");
    }
}

impl ProducerContext for Sending {
    type DeliveryOpaque = ();

    fn delivery(&self, result: &DeliveryResult<'_>, (): Self::DeliveryOpaque) {
        if let Err((error, _)) = result {
            self.failure.lock().get_or_insert_with(|| error.to_string());
        }
    }
}

impl Transactions {
    /// A producer for `topic`. Whoever else has one for it is fenced from now on, and a transaction that was left open
    /// is aborted.
    pub fn open(options: &ReplicationOptions, topic: &str) -> Result<Self, KafkaFault> {
        let mut config = options.client.config(&[("linger.ms", "1"), ("compression.type", "lz4")]);
        config
            .set("transactional.id", topic)
            .set("transaction.timeout.ms", "30000")
            .set("message.timeout.ms", TIMEOUT.as_millis().to_string());
        let session = Session::of(&options.client)?;
        let context = Sending { failure: Mutex::default(), session };
        let producer: BaseProducer<Sending> =
            config.create_with_context(context).map_err(|error| config_fault(&error))?;
        producer.context().session.log_in(&producer, TIMEOUT)?;
        producer.init_transactions(TIMEOUT).map_err(|error| other(&error))?;
        Ok(Self { topic: topic.to_owned(), producer })
    }

    /// Sends messages in one transaction; returns when it is committed. One that fails is aborted when the next
    /// producer opens, or when its time has run out; until then readers wait at it.
    pub fn send(&self, messages: &[Message]) -> Result<(), KafkaFault> {
        let context = self.producer.context();
        context.session.log_in(&self.producer, TIMEOUT)?;
        *context.failure.lock() = None;
        self.producer.begin_transaction().map_err(|error| other(&error))?;
        for message in messages {
            self.enqueue(message)?;
        }
        self.producer.flush(TIMEOUT + Duration::from_secs(1)).map_err(|error| other(&error))?;
        if let Some(detail) = context.failure.lock().take() {
            return Err(KafkaFault::Other { code: "delivery".to_owned(), detail });
        }
        self.producer.commit_transaction(TIMEOUT).map_err(|error| other(&error))
    }

    fn enqueue(&self, message: &Message) -> Result<(), KafkaFault> {
        let header = Header { key: HEADER, value: Some(&message.head) };
        let headers = OwnedHeaders::new_with_capacity(1).insert(header);
        let mut record: BaseRecord<'_, [u8], [u8]> =
            BaseRecord::to(&self.topic).key(message.key.as_slice()).headers(headers);
        if let Some(value) = &message.value {
            record = record.payload(value);
        }
        let deadline = Instant::now() + TIMEOUT;
        loop {
            match self.producer.send(record) {
                Ok(()) => return Ok(()),
                Err((KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull), back))
                    if Instant::now() < deadline =>
                {
                    record = back;
                    self.producer.poll(Duration::from_millis(20));
                }
                Err((error, _)) => return Err(other(&error)),
            }
        }
    }
}
