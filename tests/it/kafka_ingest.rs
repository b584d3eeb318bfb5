//! The Kafka source against a real broker, with a stand-in for the log that checks what it is handed:
//! runs of offsets without gap or overlap, every event once.

use std::collections::HashMap;
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender};
use evergraph::event::{
    EdgeId, Event, EventBatch, Incoming, PositionLookup, Receipt, SourceMark, Submission, SubmitError,
    UnstorableEvent,
};
use evergraph::ingest::SourceWiring;
use evergraph::ingest::admit::{Admission, AdmitOptions};
use evergraph::ingest::dead_letter::{
    DeadLetterFileOptions, DeadLetterTarget, DeadLetterTopicOptions, DeadLetters,
};
use evergraph::ingest::decode::Tombstones;
use evergraph::ingest::kafka::{
    DataLossPolicy, KafkaClientOptions, KafkaFault, KafkaSource, KafkaSourceOptions, KafkaState, preflight,
};
use evergraph::ingest::produce::{ProduceOptions, ProduceTarget, TopicTarget, produce};
use parking_lot::Mutex;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::message::{Headers, Message};
use rdkafka::{ClientConfig, Offset, TopicPartitionList};

use crate::broker::Broker;

/// What the stand-in for the log has.
#[derive(Default)]
pub struct Stored {
    pub positions: HashMap<(String, i32), i64>,
    /// The mark and the origin of the last run.
    last_runs: HashMap<(String, i32), (Option<SourceMark>, i64)>,
    /// How often each event time was stored; event times number the events of a test.
    pub times: HashMap<i64, u32>,
    deletions: Vec<Event>,
    /// Messages that the largest batch accounts for.
    largest: i64,
    /// Runs of offsets that did not start where the last one ended.
    broken_runs: Vec<String>,
    /// Of each batch, its last event time (-1 without events) and when it says that it was produced.
    pub origins: Vec<(i64, i64)>,
}

/// A stand-in for the log: takes batches one by one, checks and remembers them.
#[derive(Default)]
pub struct Log {
    pub stored: Mutex<Stored>,
    /// So many batches are refused for a full disk first.
    refuse: AtomicUsize,
    /// Events of these times can never be stored.
    pub unstorable: Mutex<Vec<i64>>,
    /// Nor can batches of more events, if it is not 0.
    pub events_max: AtomicUsize,
    /// Time that each batch takes.
    slowness: Mutex<Duration>,
}

impl PositionLookup for Log {
    fn position(&self, source: &str, partition: i32) -> Option<i64> {
        self.stored.lock().positions.get(&(source.to_owned(), partition)).copied()
    }

    fn mark(&self, source: &str, partition: i32) -> Option<SourceMark> {
        self.stored.lock().last_runs.get(&(source.to_owned(), partition))?.0
    }

    fn origin_unix_ms(&self, source: &str, partition: i32) -> Option<i64> {
        Some(self.stored.lock().last_runs.get(&(source.to_owned(), partition))?.1)
    }
}

impl Log {
    /// Starts the log's thread, which ends with the last sender.
    fn start() -> (Arc<Self>, Sender<Submission>) {
        let (sender, receiver): (_, Receiver<Submission>) = crossbeam_channel::bounded(4);
        let log = Arc::new(Self::default());
        let taker = Arc::clone(&log);
        std::thread::spawn(move || {
            for submission in receiver {
                std::thread::sleep(*taker.slowness.lock());
                let result = taker.take(&submission);
                (submission.reply.unwrap())(result);
            }
        });
        (log, sender)
    }

    fn take(&self, submission: &Submission) -> Result<Receipt, SubmitError> {
        let refused = self.refuse.fetch_update(SeqCst, SeqCst, |n| n.checked_sub(1)).is_ok();
        if refused {
            return Err(SubmitError::DiskFull { detail: "for the test".into() });
        }
        let batch = &submission.batch;
        self.can_store(batch)?;
        let mut stored = self.stored.lock();
        assert_eq!(batch.offsets.len(), batch.events.len());
        let range = &batch.ranges[0];
        let key = (range.source.to_string(), range.partition);
        stored.largest = stored.largest.max(range.to - range.from);
        stored.last_runs.insert(key.clone(), (range.mark, batch.origin_unix_ms));
        let at = stored.positions.insert(key, range.to);
        if at.unwrap_or(range.from) != range.from {
            let (source, partition, from, to) = (&range.source, range.partition, range.from, range.to);
            stored.broken_runs.push(format!("{source} {partition}: {from}..{to} after {at:?}"));
        }
        assert!(batch.offsets.is_sorted());
        assert!(batch.offsets.iter().all(|o| (range.from..range.to).contains(o)));
        let last = batch.events.iter().rev().find_map(|incoming| match &incoming.event {
            Event::Edge(edge) => Some(edge.time.0),
            _ => None,
        });
        stored.origins.push((last.unwrap_or(-1), batch.origin_unix_ms));
        for incoming in &batch.events {
            match &incoming.event {
                Event::Edge(edge) => *stored.times.entry(edge.time.0).or_default() += 1,
                other => stored.deletions.push(other.clone()),
            }
        }
        let accepted = batch.events.len() as u64;
        Ok(Receipt { first: EdgeId(0), end: EdgeId(accepted), accepted, duplicates: 0 })
    }

    /// Refuses batches with an event of a time in `unstorable`, and those with more than `events_max`.
    fn can_store(&self, batch: &EventBatch) -> Result<(), SubmitError> {
        let unstorable = self.unstorable.lock();
        let named = |(index, incoming): (usize, &Incoming)| match &incoming.event {
            Event::Edge(edge) if unstorable.contains(&edge.time.0) => {
                let offset = batch.offsets.get(index).copied();
                Some(UnstorableEvent { index, offset, detail: format!("never {}", edge.time.0) })
            }
            _ => None,
        };
        let events: Vec<_> = batch.events.iter().enumerate().filter_map(named).collect();
        let most = self.events_max.load(SeqCst);
        if events.is_empty() && (most == 0 || batch.events.len() <= most) {
            return Ok(());
        }
        Err(SubmitError::Unstorable { events, detail: "for the test".into() })
    }

    pub fn count(&self) -> usize {
        self.stored.lock().times.len()
    }

    fn set_position(&self, source: &str, partition: i32, next: i64) {
        self.stored.lock().positions.insert((source.into(), partition), next);
    }

    /// Every run began where the one before it had ended.
    pub fn assert_runs_join(&self) {
        let stored = self.stored.lock();
        assert!(stored.broken_runs.is_empty(), "{:?}", stored.broken_runs);
    }

    /// Every event `0..n` was stored once, in runs without gap or overlap.
    pub fn assert_exactly_once(&self, n: i64) {
        let stored = self.stored.lock();
        assert!(stored.broken_runs.is_empty(), "{:?}", stored.broken_runs);
        let missing = (0..n).filter(|t| !stored.times.contains_key(t)).count();
        let doubled = stored.times.values().filter(|&&count| count > 1).count();
        assert_eq!(
            (missing, doubled, stored.times.len()),
            (0, 0, n as usize),
            "(missing, doubled, distinct)"
        );
    }
}

pub struct Setup {
    pub log: Arc<Log>,
    pub wiring: SourceWiring,
    folder: tempfile::TempDir,
}

impl Setup {
    pub fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let file = DeadLetterFileOptions::new(folder.path().join("dead.jsonl"));
        Self::with_letters(folder, DeadLetterTarget::File(file))
    }

    fn with_letters(folder: tempfile::TempDir, letters: DeadLetterTarget) -> Self {
        let (log, submissions) = Log::start();
        let wiring = SourceWiring {
            holds: Arc::default(),
            submissions,
            positions: Arc::clone(&log) as Arc<dyn PositionLookup>,
            admission: Admission::new(AdmitOptions::default()),
            dead_letters: DeadLetters::open(letters).unwrap(),
        };
        Self { log, wiring, folder }
    }

    pub fn source(&self, options: KafkaSourceOptions) -> KafkaSource {
        KafkaSource::start(options, self.wiring.clone()).unwrap()
    }

    /// A CSV file of events with times `0..n`.
    fn events(&self, n: i64) -> PathBuf {
        let path = self.folder.path().join("events.csv");
        let mut file = std::io::BufWriter::new(std::fs::File::create(&path).unwrap());
        writeln!(file, "src,dst,ts").unwrap();
        for i in 0..n {
            writeln!(file, "{},item-{},{i}", i % 997, i % 31).unwrap();
        }
        file.flush().unwrap();
        path
    }
}

pub fn wait_until(what: &str, seconds: u64, mut condition: impl FnMut() -> bool) {
    let started = Instant::now();
    let deadline = started + Duration::from_secs(seconds);
    while !condition() {
        assert!(Instant::now() < deadline, "waited {seconds} s in vain until {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
    eprintln!("{what}: {:.1?}", started.elapsed());
}

/// The fixed word of a degraded or failed state.
pub fn word(source: &KafkaSource) -> &'static str {
    match source.status().state {
        KafkaState::Degraded { word, .. } | KafkaState::Failed { word, .. } => word,
        KafkaState::Running => "running",
        _ => "",
    }
}

fn topic_target(broker: &Broker, topic: &str, partitions: i32) -> ProduceTarget {
    ProduceTarget::Topic(TopicTarget {
        client: KafkaClientOptions::new(&broker.bootstrap()),
        topic: topic.into(),
        create_partitions: Some(partitions),
    })
}

#[test]
fn two_hundred_thousand_events_are_read_exactly_once_across_restarts() {
    let Some(broker) = Broker::shared() else { return };
    let setup = Setup::new();
    let n = 200_000;
    let report = produce(&ProduceOptions::new(setup.events(n), topic_target(broker, "many", 4)), &mut |_| {});
    let report = report.unwrap();
    assert_eq!((report.sent, report.rows), (n as u64, n as u64));
    eprintln!("produced {:.0} events/s", n as f64 / report.seconds);

    let options = KafkaSourceOptions::new(&broker.bootstrap(), "many", "exactly-once");
    let source = setup.source(options.clone());
    wait_until("a part is stored", 30, || setup.log.count() > 20_000);
    assert!(source.stop(Duration::from_secs(15)), "the source did not end");
    assert_eq!(source.status().state, KafkaState::Stopped);
    let after_stop = setup.log.count();
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(setup.log.count(), after_stop, "nothing is handed in after the stop");

    let started = Instant::now();
    let source = setup.source(options);
    wait_until("the rest goes on", 30, || setup.log.count() > after_stop);
    let joined = started.elapsed();
    wait_until("everything is stored", 60, || setup.log.count() == n as usize);
    let rest = (n as usize - after_stop) as f64;
    eprintln!(
        "joined in {joined:?}, then read {:.0} events/s",
        rest / (started.elapsed() - joined).as_secs_f64()
    );
    setup.log.assert_exactly_once(n);
    wait_until("the lag is known to be 0", 10, || {
        let status = source.status();
        status.partitions.len() == 4 && status.partitions.values().all(|p| p.lag == Some(0))
    });
    assert_eq!(source.status().state, KafkaState::Running);
    assert_eq!(source.stats().snapshot().stored, n as u64 - after_stop as u64);
}

#[test]
fn a_broker_that_goes_and_comes_back_costs_nothing() {
    let Some(broker) = Broker::own() else { return };
    if !broker.is_kafka() {
        return;
    }
    let setup = Setup::new();
    let n = 60_000;
    let mut options = ProduceOptions::new(setup.events(n), topic_target(&broker, "outage", 2));
    options.events_per_second = Some(6_000.0);
    let source = setup.source(KafkaSourceOptions::new(&broker.bootstrap(), "outage", "outage"));
    std::thread::scope(|scope| {
        let producing = scope.spawn(|| produce(&options, &mut |_| {}));
        wait_until("reading has begun", 40, || setup.log.count() > 5_000);
        broker.stop();
        wait_until("the outage is named", 30, || word(&source) == "connection_refused");
        std::thread::sleep(Duration::from_secs(1));
        broker.start();
        let before = setup.log.count();
        wait_until("reading goes on", 60, || setup.log.count() > before + 2_000);
        wait_until("the source runs again", 10, || word(&source) == "running");
        broker.kill();
        wait_until("the second outage is named", 30, || word(&source) == "connection_refused");
        broker.start();
        let report = producing.join().unwrap().unwrap();
        assert_eq!(report.sent, n as u64);
    });
    wait_until("everything is stored", 60, || setup.log.count() == n as usize);
    setup.log.assert_exactly_once(n);
    wait_until("the source runs again", 10, || word(&source) == "running");
}

#[test]
fn a_log_that_refuses_and_stalls_loses_and_doubles_nothing() {
    let Some(broker) = Broker::shared() else { return };
    let setup = Setup::new();
    let n = 40_000;
    produce(&ProduceOptions::new(setup.events(n), topic_target(broker, "stalls", 3)), &mut |_| {}).unwrap();
    let mut options = KafkaSourceOptions::new(&broker.bootstrap(), "stalls", "stalls");
    options.retry_wait = Duration::from_millis(50);
    options.batch_max_events = 2_000;
    setup.log.refuse.store(7, SeqCst);
    let source = setup.source(options);
    wait_until("refusals are heard of", 30, || source.stats().snapshot().refused_batches == 7);
    // The log stalls longer than the source's patience, again and again.
    *setup.log.slowness.lock() = Duration::from_millis(400);
    wait_until("the source pauses", 30, || source.stats().snapshot().pauses > 0);
    *setup.log.slowness.lock() = Duration::ZERO;
    wait_until("everything is stored", 60, || setup.log.count() == n as usize);
    setup.log.assert_exactly_once(n);
    wait_until("the last batch is heard of", 5, || source.stats().snapshot().stored == n as u64);
    assert_eq!(source.stats().snapshot().received, n as u64, "counted once each");
    assert_eq!(source.status().state, KafkaState::Running);
    assert!(!source.status().back_pressure);
    let largest = setup.log.stored.lock().largest;
    assert!((1_000..=2_000).contains(&largest), "a batch of {largest} messages");

    setup.wiring.holds.set(source.name(), true);
    wait_until("it is paused", 5, || source.status().state == KafkaState::Paused);
    std::thread::sleep(Duration::from_millis(200));
    broker.produce("stalls", [(0, None, Some(&br#"{"src":1,"dst":2,"ts":40000}"#[..]))]);
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(setup.log.count(), n as usize, "a paused source reads nothing");
    setup.wiring.holds.set(source.name(), false);
    wait_until("it goes on", 10, || setup.log.count() == n as usize + 1);
}

#[test]
fn poison_becomes_dead_letters_with_headers_and_stops_nothing() {
    let Some(broker) = Broker::shared() else { return };
    broker.create_topic("poison", 1);
    broker.create_topic("poison-dead", 1);
    let folder = tempfile::tempdir().unwrap();
    let file = DeadLetterFileOptions::new(folder.path().join("dead.jsonl"));
    let topic = DeadLetterTopicOptions::new(&broker.bootstrap(), "poison-dead");
    let setup = Setup::with_letters(folder, DeadLetterTarget::Topic(topic, file));
    let long = vec![b'x'; 5000];
    broker.produce(
        "poison",
        [
            (0, Some(&b"k0"[..]), Some(&br#"{"src":1,"dst":2,"ts":0}"#[..])),
            (0, Some(b"k1"), Some(b"{ not json")),
            (0, None, Some(&[0xff, 0x00, 0xfe])),
            (0, Some(b"{\"src\":1,\"dst\":2}"), None),
            (0, None, None),
            (0, Some(b"k5"), Some(br#"{"src":1.5,"dst":2,"ts":0}"#)),
            (0, Some(b"k6"), Some(&long)),
            (0, Some(b"k7"), Some(br#"{"src":1,"dst":2,"ts":1}"#)),
        ],
    );
    let mut options = KafkaSourceOptions::new(&broker.bootstrap(), "poison", "poison");
    options.decode.tombstones = Tombstones::DeleteNode;
    let source = setup.source(options);
    wait_until("both good events are stored", 30, || setup.log.count() == 2);
    wait_until("the run is accounted for", 5, || setup.log.position("kafka:poison", 0) == Some(8));
    setup.log.assert_exactly_once(2);
    assert_eq!(setup.log.stored.lock().deletions.len(), 1);
    assert_eq!(setup.wiring.dead_letters.delivered(), (5, 0));
    let snapshot = source.stats().snapshot();
    assert_eq!((snapshot.received, snapshot.dead_letters), (8, 5));

    let letters = read_topic(broker, "poison-dead", 5);
    let reasons: Vec<&str> = letters.iter().map(|l| l.header("evergraph.reason")).collect();
    let expected = ["malformed_json", "malformed_json", "missing_key", "bad_id", "malformed_json"];
    assert_eq!(reasons, expected);
    let offsets: Vec<&str> = letters.iter().map(|l| l.header("evergraph.offset")).collect();
    assert_eq!(offsets, ["1", "2", "4", "5", "6"]);
    assert_eq!(letters[0].key.as_deref(), Some(&b"k1"[..]));
    assert_eq!(letters[0].header("evergraph.source"), "kafka:poison");
    assert_eq!(letters[1].payload.as_deref(), Some(&[0xff, 0x00, 0xfe][..]), "the bytes as they were");
    assert_eq!(letters[2].payload, None, "a null stays a null");
    assert_eq!(letters[4].payload.as_deref(), Some(&long[..]));
}

#[test]
fn a_disk_too_full_for_dead_letters_delays_the_source_and_loses_nothing() {
    let Some(broker) = Broker::shared() else { return };
    broker.create_topic("full", 1);
    let folder = tempfile::tempdir().unwrap();
    let letters = folder.path().join("dead.jsonl");
    // Every write to it finds the disk full.
    std::os::unix::fs::symlink("/dev/full", &letters).unwrap();
    let file = DeadLetterFileOptions::new(&letters);
    let setup = Setup::with_letters(folder, DeadLetterTarget::File(file));
    let event = |time: i64| format!(r#"{{"src":1,"dst":2,"ts":{time}}}"#);
    broker.produce("full", [(0, None, Some(event(0).as_bytes())), (0, None, Some(&b"{ not json"[..]))]);
    let mut options = KafkaSourceOptions::new(&broker.bootstrap(), "full", "full");
    options.retry_wait = Duration::from_millis(50);
    let source = setup.source(options);
    wait_until("the full disk is named", 30, || word(&source) == "dead_letters");
    assert_eq!(setup.log.count(), 0, "no batch goes before its dead letters");
    broker.produce("full", [(0, None, Some(event(1).as_bytes()))]);
    std::fs::remove_file(&letters).unwrap();
    wait_until("everything is stored", 30, || setup.log.count() == 2);
    wait_until("the source runs again", 10, || word(&source) == "running");
    setup.log.assert_exactly_once(2);
    assert_eq!(std::fs::read_to_string(&letters).unwrap().lines().count(), 1);
    assert_eq!(source.stats().snapshot().dead_letters, 1);
}

/// A message as read back.
struct Letter {
    key: Option<Vec<u8>>,
    payload: Option<Vec<u8>>,
    headers: HashMap<String, String>,
}

impl Letter {
    fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("(absent)", String::as_str)
    }
}

fn read_topic(broker: &Broker, topic: &str, count: usize) -> Vec<Letter> {
    let consumer: BaseConsumer = ClientConfig::new()
        .set("bootstrap.servers", broker.bootstrap())
        .set("group.id", "reader")
        .create()
        .unwrap();
    let mut list = TopicPartitionList::new();
    list.add_partition_offset(topic, 0, Offset::Beginning).unwrap();
    consumer.assign(&list).unwrap();
    let mut letters = Vec::new();
    wait_until("the topic is read", 20, || {
        if let Some(Ok(message)) = consumer.poll(Duration::from_millis(100)) {
            let headers = message.headers().map_or_else(HashMap::new, |headers| {
                let text = |v: Option<&[u8]>| String::from_utf8_lossy(v.unwrap_or_default()).into_owned();
                headers.iter().map(|h| (h.key.to_owned(), text(h.value))).collect()
            });
            letters.push(Letter {
                key: message.key().map(<[u8]>::to_vec),
                payload: message.payload().map(<[u8]>::to_vec),
                headers,
            });
        }
        letters.len() >= count
    });
    letters
}

#[test]
fn every_fault_is_named() {
    let Some(broker) = Broker::shared() else { return };
    broker.create_topic("payments", 1);
    let timeout = Duration::from_secs(4);
    let look = |options: &KafkaSourceOptions| preflight(options, timeout);
    let report = look(&KafkaSourceOptions::new(&broker.bootstrap(), "payments", "g")).unwrap();
    assert_eq!(report.partitions.len(), 1);
    assert_eq!(report.brokers, [broker.bootstrap()]);

    let fault = look(&KafkaSourceOptions::new(&broker.bootstrap(), "paymnts", "g")).unwrap_err();
    assert!(
        matches!(&fault, KafkaFault::TopicMissing { similar: Some(s), .. } if s == "payments"),
        "{fault:?}"
    );
    let fault = look(&KafkaSourceOptions::new("127.0.0.1:1", "payments", "g")).unwrap_err();
    assert_eq!(fault, KafkaFault::ConnectionRefused { address: "127.0.0.1:1".into() });
    let fault = look(&KafkaSourceOptions::new("no-such-host.invalid:9092", "payments", "g")).unwrap_err();
    assert_eq!(fault.word(), "name_not_resolved", "{fault}");
    let mut options = KafkaSourceOptions::new(&broker.bootstrap(), "payments", "g");
    options.client = options.client.with("no.such.property", "1");
    assert!(
        matches!(look(&options), Err(KafkaFault::BadOption { property, .. }) if property == "no.such.property")
    );
    if !broker.is_kafka() {
        return;
    }
    let mut options = KafkaSourceOptions::new(&broker.bootstrap(), "payments", "g");
    options.client = broker.sasl_client("evergraph", "evergraph-secret");
    look(&options).unwrap();
    options.client = broker.sasl_client("evergraph", "wrong");
    let fault = look(&options).unwrap_err();
    assert_eq!(fault.word(), "authentication", "{fault:?}");
    assert!(!fault.to_string().contains("wrong"), "the password is never shown: {fault}");
    options.client = broker.sasl_client("guest", "guest-secret");
    let fault = look(&options).unwrap_err();
    assert_eq!(fault, KafkaFault::TopicDenied { topic: "payments".into() });
    // A plain-text client at a SASL port.
    options.client = KafkaClientOptions::new(&options.client.brokers);
    let fault = look(&options).unwrap_err();
    assert_eq!(fault.word(), "protocol_mismatch", "{fault:?}");
}

#[test]
fn a_running_source_names_its_fault_and_recovers() {
    let Some(broker) = Broker::shared() else { return };
    let setup = Setup::new();
    let mut options = KafkaSourceOptions::new(&broker.bootstrap(), "made-later", "late");
    options.client = options.client.with("topic.metadata.refresh.interval.ms", "500");
    let source = setup.source(options);
    wait_until("the missing topic is named", 20, || word(&source) == "topic_missing");
    broker.create_topic("made-later", 2);
    broker.produce("made-later", [(1, None, Some(&br#"{"src":1,"dst":2,"ts":0}"#[..]))]);
    wait_until("the event is stored", 30, || setup.log.count() == 1);
    wait_until("the source runs", 10, || word(&source) == "running");

    let refused = setup.source(KafkaSourceOptions::new("127.0.0.1:1", "t", "g"));
    wait_until("the refusal is named", 20, || word(&refused) == "connection_refused");
    assert!(refused.stop(Duration::from_secs(15)), "a source without a broker can be stopped");
    if !broker.is_kafka() {
        return;
    }
    let mut options = KafkaSourceOptions::new(&broker.bootstrap(), "made-later", "late-2");
    options.client = broker.sasl_client("evergraph", "wrong");
    let denied = setup.source(options);
    wait_until("bad credentials are named", 20, || word(&denied) == "authentication");
}

#[test]
fn positions_that_the_broker_does_not_have_are_faults() {
    let Some(broker) = Broker::shared() else { return };
    if !broker.is_kafka() {
        return;
    }
    broker.create_topic("trimmed", 1);
    let values: Vec<String> = (0..100).map(|i| format!(r#"{{"src":1,"dst":2,"ts":{i}}}"#)).collect();
    broker.produce("trimmed", values.iter().map(|v| (0, None, Some(v.as_bytes()))));
    delete_records(broker, "trimmed", 50);

    let setup = Setup::new();
    setup.log.set_position("kafka:trimmed", 0, 20);
    let options = KafkaSourceOptions::new(&broker.bootstrap(), "trimmed", "trimmed-1");
    let source = setup.source(options.clone());
    wait_until("the loss is named", 30, || word(&source) == "data_lost");
    let state = source.status().state;
    assert!(matches!(&state, KafkaState::Failed { reason, .. } if reason.contains("20..50")), "{state:?}");
    assert_eq!(setup.log.count(), 0, "nothing was read");

    let mut options = options;
    options.data_loss = DataLossPolicy::Earliest;
    options.group = "trimmed-2".into();
    let source = setup.source(options);
    wait_until("what is left is stored", 30, || setup.log.count() == 50);
    drop(source);

    let setup = Setup::new();
    setup.log.set_position("kafka:trimmed", 0, 1000);
    let source = setup.source(KafkaSourceOptions::new(&broker.bootstrap(), "trimmed", "trimmed-3"));
    wait_until("the new topic is named", 30, || word(&source) == "topic_recreated");
}

#[test]
fn messages_that_go_while_the_log_is_busy_do_not_stop_the_partition_for_ever() {
    let Some(broker) = Broker::shared() else { return };
    if !broker.is_kafka() {
        return;
    }
    broker.create_topic("vanishing", 1);
    let value = |i: i64| format!(r#"{{"src":1,"dst":2,"ts":{i}}}"#);
    let values: Vec<String> = (0..100).map(value).collect();
    let produce = |values: &[String]| {
        broker.produce("vanishing", values.iter().map(|v| (0, None, Some(v.as_bytes()))));
    };
    let setup = Setup::new();
    let mut options = KafkaSourceOptions::new(&broker.bootstrap(), "vanishing", "vanishing");
    options.data_loss = DataLossPolicy::Earliest;
    let source = setup.source(options);
    wait_until("the partition is assigned", 30, || !source.status().partitions.is_empty());
    produce(&values[..5]);
    wait_until("the first ones are stored", 30, || setup.log.count() == 5);
    // The next ones are on their way to the log for a while.
    *setup.log.slowness.lock() = Duration::from_secs(4);
    produce(&values[5..10]);
    wait_until("they are read", 10, || source.stats().snapshot().received == 10);
    std::thread::sleep(Duration::from_millis(200));
    setup.wiring.holds.set(source.name(), true);
    std::thread::sleep(Duration::from_millis(200));
    produce(&values[10..]);
    delete_records(broker, "vanishing", 50);
    *setup.log.slowness.lock() = Duration::ZERO;
    setup.wiring.holds.set(source.name(), false);
    wait_until("what is left is stored", 30, || setup.log.count() == 60);
    assert_eq!(setup.log.stored.lock().broken_runs, ["kafka:vanishing 0: 50..100 after Some(10)"]);
    wait_until("the source runs", 10, || word(&source) == "running");
}

pub fn delete_records(broker: &Broker, topic: &str, before: i64) {
    use rdkafka::admin::{AdminClient, AdminOptions};
    use rdkafka::client::DefaultClientContext;
    let admin: AdminClient<DefaultClientContext> =
        ClientConfig::new().set("bootstrap.servers", broker.bootstrap()).create().unwrap();
    let mut list = TopicPartitionList::new();
    list.add_partition_offset(topic, 0, Offset::Offset(before)).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(admin.delete_records(&list, &AdminOptions::new())).unwrap();
}

#[test]
fn the_pace_of_a_push_begins_when_a_topic_that_is_slow_to_reach_has_acknowledged_an_event() {
    // A broker of the client library, whose answers take a while: connecting takes several of them.
    let cluster = rdkafka::mocking::MockCluster::new(1).unwrap();
    cluster.create_topic("slow", 1, 1).unwrap();
    cluster.broker_round_trip_time(1, Duration::from_millis(200)).unwrap();
    let mut file = tempfile::NamedTempFile::with_suffix(".csv").unwrap();
    writeln!(file, "src,dst,ts\n1,2,1\n1,2,2\n1,2,3\n1,2,4").unwrap();
    let client = KafkaClientOptions::new(&cluster.bootstrap_servers());
    let target = TopicTarget { client, topic: "slow".into(), create_partitions: None };
    let mut options = ProduceOptions::new(file.path(), ProduceTarget::Topic(target));
    options.events_per_second = Some(4.0);
    let report = produce(&options, &mut |_| {}).unwrap();
    assert_eq!(report.sent, 4);
    // The first is due after 0.25 s; the others after three more of these from when it was acknowledged, which takes four
    // answers at least: for versions, metadata, the producer's id, and the event.
    assert!(report.seconds >= 0.25 + 4.0 * 0.2 + 3.0 * 0.25, "{} s", report.seconds);
}
