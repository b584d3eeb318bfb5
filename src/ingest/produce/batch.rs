//! [`BatchProducer`]: messages that are delivered as a batch: all of them are acknowledged, or the batch is to be sent
//! again.
//!
//! A delivery that fails ends with its client: one of librdkafka may have lost its list of brokers, and then it never
//! connects again (librdkafka issue 5301).

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rdkafka::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::producer::{BaseProducer, BaseRecord, DeliveryResult, Producer, ProducerContext};

use crate::ingest::kafka::{KafkaClientOptions, KafkaFault, Session, config_fault};

/// How often it is looked whether there is a new token to log in with.
const RENEW_INTERVAL: Duration = Duration::from_secs(1);

/// A message of a batch: a record of the topic, to which key, payload and headers are added.
pub(in crate::ingest) type Record<'a> = BaseRecord<'a, [u8], [u8], Box<(u32, usize)>>;

/// Which topic, and how to reach it.
#[derive(Clone, Debug)]
pub(in crate::ingest) struct BatchOptions {
    pub client: KafkaClientOptions,
    pub topic: String,
    /// A delivery that takes longer has failed.
    pub timeout: Duration,
}

/// Delivers batches, one at a time, so that the outcomes belong to it.
pub(in crate::ingest) struct BatchProducer {
    options: BatchOptions,
    producer: Arc<BaseProducer<Outcomes>>,
}

/// What became of the messages of one delivery.
#[derive(Default)]
struct Delivery {
    /// Late reports of an earlier delivery carry another number.
    number: u32,
    acknowledged: usize,
    too_large: Vec<usize>,
    failure: Option<String>,
}

struct Outcomes {
    delivery: Mutex<Delivery>,
    /// Keeps the client logged in.
    session: Session,
}

impl ClientContext for Outcomes {
    fn log(&self, _: RDKafkaLogLevel, facility: &str, text: &str) {
        tracing::debug!(target: "librdkafka", facility, "{text}");
    }
    fn error(&self, error: KafkaError, reason: &str) {
        tracing::debug!(%error, reason, "producer of batches");
    }
}

impl ProducerContext for Outcomes {
    /// The number of the delivery and the index of the message.
    type DeliveryOpaque = Box<(u32, usize)>;

    fn delivery(&self, result: &DeliveryResult<'_>, tag: Self::DeliveryOpaque) {
        let (number, index) = *tag;
        let mut delivery = self.delivery.lock();
        if number != delivery.number {
            return;
        }
        match result {
            Ok(_) => delivery.acknowledged += 1,
            Err((error, _)) if is_too_large(error) => delivery.too_large.push(index),
            Err((error, _)) => delivery.failure = Some(error.to_string()),
        }
    }
}

fn is_too_large(error: &KafkaError) -> bool {
    error.rdkafka_error_code() == Some(RDKafkaErrorCode::MessageSizeTooLarge)
}

impl BatchProducer {
    /// A producer; the brokers need not be there yet.
    pub(in crate::ingest) fn open(options: BatchOptions) -> Result<Self, KafkaFault> {
        let producer = connect(&options)?;
        Ok(Self { options, producer })
    }

    /// Sends a message for each item, as `complete` makes it of a record of the topic, and waits until the brokers have
    /// acknowledged every one; returns the indices of those that are too large for a message. After a failure the next
    /// delivery has a new client.
    pub(in crate::ingest) fn deliver<M>(
        &mut self,
        items: &[M],
        complete: impl for<'m> Fn(&'m M, Record<'m>) -> Record<'m>,
    ) -> Result<Vec<usize>, String> {
        let delivered = self.send_all(items, complete);
        if delivered.is_err() {
            match connect(&self.options) {
                Ok(producer) => {
                    let old = std::mem::replace(&mut self.producer, producer);
                    // Closing waits for librdkafka's threads, which may be waiting for a name or a broker. Without a
                    // thread the closure is dropped here, which closes it as well.
                    drop(std::thread::Builder::new().name("kafka-close".into()).spawn(move || drop(old)));
                }
                Err(error) => tracing::debug!(%error, "the producer of batches stays"),
            }
        }
        delivered
    }

    fn send_all<M>(
        &self,
        items: &[M],
        complete: impl for<'m> Fn(&'m M, Record<'m>) -> Record<'m>,
    ) -> Result<Vec<usize>, String> {
        let Outcomes { delivery: outcomes, session } = &**self.producer.context();
        // Messages do not wait for a token that cannot be had.
        session.log_in(&*self.producer, self.options.timeout).map_err(|fault| fault.to_string())?;
        let number = outcomes.lock().number.wrapping_add(1);
        *outcomes.lock() = Delivery { number, ..Delivery::default() };
        for (index, item) in items.iter().enumerate() {
            let record = BaseRecord::with_opaque_to(&self.options.topic, Box::new((number, index)));
            self.send(complete(item, record), index)?;
        }
        // Messages time out on their own after `timeout`; the flush only has to outlast that.
        let flushed = self.producer.flush(self.options.timeout + Duration::from_secs(1));
        let delivery = std::mem::replace(&mut *outcomes.lock(), Delivery { number, ..Delivery::default() });
        if let Some(failure) = delivery.failure {
            return Err(failure);
        }
        flushed.map_err(|error| error.to_string())?;
        if delivery.acknowledged + delivery.too_large.len() < items.len() {
            return Err(format!("{} of {} were acknowledged", delivery.acknowledged, items.len()));
        }
        Ok(delivery.too_large)
    }

    fn send(&self, mut record: Record<'_>, index: usize) -> Result<(), String> {
        let deadline = Instant::now() + self.options.timeout;
        loop {
            match self.producer.send(record) {
                Ok(()) => return Ok(()),
                Err((KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull), back))
                    if Instant::now() < deadline =>
                {
                    record = back;
                    self.producer.poll(Duration::from_millis(20));
                }
                Err((error, _)) if is_too_large(&error) => {
                    self.producer.context().delivery.lock().too_large.push(index);
                    return Ok(());
                }
                Err((error, _)) => return Err(error.to_string()),
            }
        }
    }
}

fn connect(options: &BatchOptions) -> Result<Arc<BaseProducer<Outcomes>>, KafkaFault> {
    // Of rows as JSON, LZ4 takes about half the time of Zstandard, here and at the broker.
    let mut config = options.client.config(&[("linger.ms", "5"), ("compression.type", "lz4")]);
    config
        .set("enable.idempotence", "true")
        .set("message.timeout.ms", options.timeout.as_millis().max(100).to_string())
        .set("request.timeout.ms", options.timeout.as_millis().clamp(50, 5000).to_string());
    let session = Session::of(&options.client)?;
    let outcomes = Outcomes { delivery: Mutex::default(), session };
    let producer = config.create_with_context(outcomes).map_err(|error| config_fault(&error))?;
    let producer: Arc<BaseProducer<Outcomes>> = Arc::new(producer);
    stay_logged_in(&producer)?;
    Ok(producer)
}

/// Renews the token of a client that may deliver nothing for long: its connections need a valid one all the same.
fn stay_logged_in(producer: &Arc<BaseProducer<Outcomes>>) -> Result<(), KafkaFault> {
    if !producer.context().session.is_by_token() {
        return Ok(());
    }
    let producer = Arc::downgrade(producer);
    let renew = move || {
        while let Some(producer) = producer.upgrade() {
            // Why there is none is reported when something is delivered.
            let _ = producer.context().session.renew(&*producer);
            drop(producer);
            std::thread::sleep(RENEW_INTERVAL);
        }
    };
    let thread = std::thread::Builder::new().name("kafka-login".into()).spawn(renew);
    thread.map(drop).map_err(|error| KafkaFault::Other { code: "thread".into(), detail: error.to_string() })
}
