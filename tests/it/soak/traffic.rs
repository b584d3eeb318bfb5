//! What comes in and out during a run: events through Kafka in transactions, and requests over HTTP.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use evergraph::device::rng;
use rdkafka::ClientConfig;
use rdkafka::error::KafkaError;
use rdkafka::producer::{BaseRecord, DefaultProducerContext, Producer, ThreadedProducer};
use serde_json::json;

use super::{NODES, PARTITIONS, Run, TOPIC, WILD_TIME};

/// Between two transactions.
const TRANSACTION: Duration = Duration::from_millis(100);
/// One transaction in so many is sent, given up and sent again.
const GIVEN_UP: u64 = 20;
/// How long a request to a broker that restarts may take.
const PATIENCE: Duration = Duration::from_secs(120);

/// How a transaction ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ending {
    Committed,
    /// None of its messages can be read.
    Aborted,
    /// It can neither be committed nor aborted by this producer.
    Lost,
}

/// A producer whose messages become readable together. Deliveries are polled by a thread of its own: a commit waits for
/// them.
struct Transactions {
    producer: ThreadedProducer<DefaultProducerContext>,
}

impl Transactions {
    fn new(brokers: &str) -> Self {
        let producer: ThreadedProducer<_> = ClientConfig::new()
            .set("bootstrap.servers", brokers)
            .set("transactional.id", "soak")
            .set("transaction.timeout.ms", "600000")
            .set("compression.type", "zstd")
            .set("linger.ms", "5")
            // A broker that restarts is waited for.
            .set("queue.buffering.max.messages", "4000000")
            .set("queue.buffering.max.kbytes", "1048576")
            .set("message.timeout.ms", "600000")
            .create()
            .unwrap();
        again(|| producer.init_transactions(PATIENCE));
        Self { producer }
    }

    fn begin(&self) {
        self.producer.begin_transaction().unwrap();
    }

    fn send(&self, partition: i32, event: &str) {
        let mut record = BaseRecord::<(), str>::to(TOPIC).partition(partition).payload(event);
        while let Err((error, back)) = self.producer.send(record) {
            // A transaction that has failed takes nothing more; how it ends shows that.
            let Some(rdkafka::error::RDKafkaErrorCode::QueueFull) = error.rdkafka_error_code() else {
                return;
            };
            std::thread::sleep(Duration::from_millis(10));
            record = back;
        }
    }

    fn commit(&self) -> Ending {
        loop {
            match self.producer.commit_transaction(PATIENCE) {
                Ok(()) => return Ending::Committed,
                Err(KafkaError::Transaction(error)) if error.is_retriable() => eprintln!("commit: {error}"),
                Err(KafkaError::Transaction(error)) if error.txn_requires_abort() => {
                    eprintln!("commit: {error}");
                    return self.abort();
                }
                Err(error) => panic!("the transaction is in doubt: {error}"),
            }
        }
    }

    /// Gives up what the broker has got by then.
    fn give_up(&self) -> Ending {
        // Without a message in it, there may be nothing yet that the broker could end.
        if let Err(error) = self.producer.flush(PATIENCE) {
            eprintln!("flush: {error}");
        }
        self.abort()
    }

    fn abort(&self) -> Ending {
        loop {
            match self.producer.abort_transaction(PATIENCE) {
                Ok(()) => return Ending::Aborted,
                Err(KafkaError::Transaction(error)) if error.is_retriable() => eprintln!("abort: {error}"),
                Err(error) => {
                    eprintln!("abort: {error}; the next producer ends what is left");
                    return Ending::Lost;
                }
            }
        }
    }
}

/// Calls until the broker has done it.
fn again(call: impl Fn() -> Result<(), KafkaError>) {
    loop {
        match call() {
            Ok(()) => return,
            Err(KafkaError::Transaction(error)) if error.is_retriable() => eprintln!("transaction: {error}"),
            Err(error) => panic!("{error}"),
        }
    }
}

/// Where event `number` of the stream begins.
pub fn source(number: u64) -> String {
    format!("u{}", rng::below([90, 0, number, 0], NODES))
}

/// Event `number` of the stream as a message.
fn event(number: u64) -> String {
    let item = rng::below([90, 1, number, 0], NODES / 10);
    format!("{{\"src\":\"{}\",\"dst\":\"i{item}\",\"ts\":{number}}}", source(number))
}

impl Run {
    /// Sends events at the rate until the run is over, transaction by transaction. While the run is held it has no
    /// connection to the broker.
    pub fn produce(&self, brokers: &str) {
        while !self.over.load(SeqCst) {
            if self.hold.load(SeqCst) {
                self.held.store(true, SeqCst);
                std::thread::sleep(Duration::from_millis(50));
                continue;
            }
            self.held.store(false, SeqCst);
            self.produce_until_held(&Transactions::new(brokers));
        }
    }

    fn produce_until_held(&self, transactions: &Transactions) {
        for number in 0_u64.. {
            if self.over.load(SeqCst) || self.hold.load(SeqCst) {
                return;
            }
            let begun = Instant::now();
            let from = self.committed.load(SeqCst);
            // What a broker held up is sent over a while: one transaction stays within a second's worth.
            let due = ((self.seconds() * self.rate as f64) as u64).min(from + self.rate);
            let wild = self.wild_wanted.load(SeqCst) && self.wild.load(SeqCst) == 0;
            transactions.begin();
            for event_number in from..due {
                transactions.send((event_number % PARTITIONS) as i32, &event(event_number));
            }
            if wild {
                transactions.send(0, &format!("{{\"src\":\"u0\",\"dst\":\"i0\",\"ts\":{WILD_TIME}}}"));
            }
            let ending = if number % GIVEN_UP == GIVEN_UP - 1 {
                transactions.give_up()
            } else {
                transactions.commit()
            };
            match ending {
                Ending::Committed => {
                    self.wild.fetch_add(u64::from(wild), SeqCst);
                    self.committed.store(due.max(from), SeqCst);
                }
                Ending::Aborted => drop(self.aborted.fetch_add(1, SeqCst)),
                // None of it is committed: a producer of the same name that begins aborts it.
                Ending::Lost => return,
            }
            self.transactions.fetch_add(1, SeqCst);
            std::thread::sleep(TRANSACTION.saturating_sub(begun.elapsed()));
        }
    }

    /// Sends requests at a rate until the run is over; returns the latency of each response, and failures by reason.
    pub fn request(&self, thread: u64, a_second: u64) -> (Vec<f32>, BTreeMap<String, u64>) {
        let agent: ureq::Agent = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .timeout_global(Some(Duration::from_secs(30)))
            .build()
            .into();
        let (mut taken, mut failed) = (Vec::new(), BTreeMap::new());
        for number in 0_u64.. {
            let due = Duration::from_secs_f64(number as f64 / a_second as f64);
            std::thread::sleep(due.saturating_sub(self.started.elapsed()));
            if self.over.load(SeqCst) {
                break;
            }
            let url = self.url.lock().unwrap().clone();
            if url.is_empty() {
                continue;
            }
            let node = rng::below([91, thread, number, 0], NODES);
            let body = match number % 2 {
                0 => json!({"nodes": [format!("u{node}")]}),
                _ => json!({"pairs": [{"src": format!("u{node}"), "dst": format!("i{}", node / 10)}]}),
            };
            let route = ["/v1/embeddings", "/v1/links/score"][number as usize % 2];
            let sent = Instant::now();
            let response =
                agent.post(format!("{url}{route}")).content_type("application/json").send(body.to_string());
            match response.map(|mut response| {
                (response.status().as_u16(), response.body_mut().read_to_string().is_ok())
            }) {
                Ok((200, true)) => taken.push(sent.elapsed().as_secs_f32()),
                Ok((status, _)) => *failed.entry(format!("status {status}")).or_default() += 1,
                Err(_) => *failed.entry("no connection".to_owned()).or_default() += 1,
            }
        }
        (taken, failed)
    }
}
