//! What a topic does to its readers: transactions, wrong clocks of producers, other readers of the same group,
//! events that the log never takes.

use std::process::Command;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use evergraph::event::PositionLookup;
use evergraph::ingest::kafka::{
    KafkaFault, KafkaSource, KafkaSourceOptions, KafkaState, offsets_at, preflight, what_is_missing,
};
use rdkafka::ClientConfig;
use rdkafka::admin::{AdminOptions, AlterConfig, ResourceSpecifier};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};

use crate::broker::Broker;
use crate::kafka_ingest::{Setup, delete_records, wait_until, word};

const PATIENCE: Duration = Duration::from_secs(20);

fn event(time: i64) -> String {
    format!(r#"{{"src":"u{}","dst":"v","ts":{time}}}"#, time % 97)
}

/// A producer of transactions.
struct Transactions(BaseProducer, String);

impl Transactions {
    fn new(broker: &Broker, topic: &str) -> Self {
        let producer: BaseProducer = ClientConfig::new()
            .set("bootstrap.servers", broker.bootstrap())
            .set("transactional.id", format!("{topic}-writer"))
            .create()
            .unwrap();
        producer.init_transactions(PATIENCE).unwrap();
        Self(producer, topic.to_owned())
    }

    /// One transaction with events of these times, committed or given up.
    fn run(&self, times: std::ops::Range<i64>, committed: bool) {
        self.0.begin_transaction().unwrap();
        for time in times {
            let value = event(time);
            self.0.send(BaseRecord::<(), _>::to(&self.1).partition(0).payload(&value)).unwrap();
        }
        self.0.flush(PATIENCE).unwrap();
        if committed {
            self.0.commit_transaction(PATIENCE).unwrap();
        } else {
            self.0.abort_transaction(PATIENCE).unwrap();
        }
    }
}

fn unix_ms() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as i64
}

fn lags(source: &KafkaSource) -> Vec<Option<i64>> {
    source.status().partitions.values().map(|partition| partition.lag).collect()
}

#[test]
fn markers_of_transactions_leave_no_lag_and_are_no_lost_data() {
    let Some(broker) = Broker::shared() else { return };
    if !broker.is_kafka() {
        return;
    }
    let (topic, name) = ("transactions", "kafka:transactions");
    broker.create_topic(topic, 1);
    let setup = Setup::new();
    let options = KafkaSourceOptions::new(&broker.bootstrap(), topic, topic);
    let source = setup.source(options.clone());
    let transactions = Transactions::new(broker, topic);
    // Each transaction ends with a marker, which is a message to the broker and none to a reader.
    transactions.run(0..10, true);
    wait_until("the events are stored", 30, || setup.log.count() == 10);
    let at = |position: i64| setup.log.position(name, 0) == Some(position) && lags(&source) == [Some(0)];
    wait_until("no lag remains behind a commit", 10, || at(11));
    // Messages that were given up are none to a reader either.
    transactions.run(10..13, false);
    wait_until("no lag remains behind an abort", 10, || at(15));
    let batches = setup.log.stored.lock().origins.len();
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(setup.log.stored.lock().origins.len(), batches, "a source at the end writes nothing");
    // What is at the end when the source stops is accounted for, too.
    transactions.run(13..16, false);
    wait_until("the end is seen", 10, || {
        source.status().partitions.values().any(|partition| partition.high_watermark == Some(19))
    });
    std::thread::sleep(Duration::from_millis(500));
    assert!(source.stop(Duration::from_secs(15)));
    assert_eq!(setup.log.position(name, 0), Some(19));

    delete_records(broker, topic, 19);
    let source = setup.source(options);
    wait_until("the source runs", 30, || word(&source) == "running" && lags(&source) == [Some(0)]);
    transactions.run(16..18, true);
    wait_until("reading goes on", 30, || setup.log.count() == 12);
    assert_eq!(source.status().state, KafkaState::Running);
    setup.log.assert_runs_join();
}

#[test]
fn two_readers_of_one_group_read_everything_each() {
    let Some(broker) = Broker::shared() else { return };
    let topic = "shared-by-two";
    broker.create_topic(topic, 4);
    let options = KafkaSourceOptions::new(&broker.bootstrap(), topic, "the-same-group");
    let (first, second) = (Setup::new(), Setup::new());
    let sources = [first.source(options.clone()), second.source(options)];
    let values: Vec<String> = (0..2_000).map(event).collect();
    let messages = |range: std::ops::Range<usize>| {
        broker.produce(topic, range.map(|i| (i as i32 % 4, None, Some(values[i].as_bytes()))));
    };
    messages(0..1_000);
    wait_until("both have everything", 30, || first.log.count() == 1_000 && second.log.count() == 1_000);
    messages(1_000..2_000);
    wait_until("both have the rest", 30, || first.log.count() == 2_000 && second.log.count() == 2_000);
    for (setup, source) in [&first, &second].into_iter().zip(&sources) {
        setup.log.assert_exactly_once(2_000);
        assert_eq!(source.status().partitions.len(), 4);
    }
}

#[test]
fn a_wrong_clock_of_a_producer_makes_no_live_event_history() {
    let Some(broker) = Broker::shared() else { return };
    let topic = "wrong-clock";
    broker.create_topic(topic, 1);
    let producer: BaseProducer =
        ClientConfig::new().set("bootstrap.servers", broker.bootstrap()).create().unwrap();
    // Of the three, one writes seconds where milliseconds belong, one is far ahead, one is right.
    let produce = |times: std::ops::Range<i64>, clock: i64| {
        for time in times {
            let value = event(time);
            producer.send(BaseRecord::<(), _>::to(topic).timestamp(clock).payload(&value)).unwrap();
        }
        producer.flush(PATIENCE).unwrap();
    };
    produce(0..5, unix_ms());
    let setup = Setup::new();
    let options = KafkaSourceOptions::new(&broker.bootstrap(), topic, topic);
    let source = setup.source(options.clone());
    wait_until("the backlog is stored", 30, || setup.log.count() == 5);
    let origin_of = |time: i64| {
        let origins = setup.log.stored.lock().origins.clone();
        origins.into_iter().find(|(last, _)| *last >= time).unwrap().1
    };
    assert!(origin_of(0) < 1_000_000, "what was there before the first reader is history: {}", origin_of(0));
    let live_since = unix_ms();
    let mut stored = 5;
    for clock in [live_since / 1000, live_since + 1_800_000, live_since] {
        std::thread::sleep(Duration::from_millis(20));
        produce(stored..stored + 5, clock);
        wait_until("live events are stored", 30, || setup.log.count() as i64 == stored + 5);
        let (origin, now) = (origin_of(stored), unix_ms());
        assert!((live_since..=now).contains(&origin), "{origin} is not in {live_since}..={now}");
        stored += 5;
    }
    // What comes while nobody reads is no history either.
    assert!(source.stop(Duration::from_secs(15)));
    produce(20..25, live_since / 1000);
    let _source = setup.source(options);
    wait_until("what waited is stored", 30, || setup.log.count() == 25);
    assert!(origin_of(20) >= live_since, "{}", origin_of(20));
}

#[test]
fn what_the_log_can_never_store_becomes_dead_letters_and_stops_nothing() {
    let Some(broker) = Broker::shared() else { return };
    let topic = "unstorable";
    broker.create_topic(topic, 1);
    let values: Vec<String> = (0..20).map(event).collect();
    broker.produce(topic, values.iter().map(|value| (0, None, Some(value.as_bytes()))));
    let setup = Setup::new();
    *setup.log.unstorable.lock() = vec![0, 11, 12, 19];
    // No batch is taken that is longer, so batches have to be read again in parts.
    setup.log.events_max.store(7, SeqCst);
    let source = setup.source(KafkaSourceOptions::new(&broker.bootstrap(), topic, topic));
    wait_until("the rest is stored", 30, || setup.log.count() == 16);
    wait_until("all are accounted for", 10, || setup.log.position("kafka:unstorable", 0) == Some(20));
    setup.log.assert_runs_join();
    let stored = setup.log.stored.lock().times.clone();
    assert!(stored.values().all(|&times| times == 1) && !stored.contains_key(&12));
    wait_until("the last batch is heard of", 5, || source.stats().snapshot().stored == 16);
    let snapshot = source.stats().snapshot();
    assert_eq!((snapshot.received, snapshot.dead_letters), (20, 4), "each once");
    assert!(snapshot.rejected.contains(&("unstorable", 4)), "{:?}", snapshot.rejected);
    assert_eq!(source.status().state, KafkaState::Running);
}

#[test]
fn a_marker_where_a_message_was_read_is_another_topic_unless_messages_may_vanish() {
    let Some(broker) = Broker::shared() else { return };
    if !broker.is_kafka() {
        return;
    }
    let topic = "marker-for-message";
    let plain = |times: std::ops::Range<i64>| {
        let values: Vec<String> = times.map(event).collect();
        broker.produce(topic, values.iter().map(|value| (0, None, Some(value.as_bytes()))));
    };
    broker.create_topic(topic, 1);
    plain(0..10);
    let setup = Setup::new();
    let options = KafkaSourceOptions::new(&broker.bootstrap(), topic, topic);
    let source = setup.source(options.clone());
    wait_until("the events are stored", 30, || setup.log.count() == 10);
    assert!(source.stop(Duration::from_secs(15)));

    broker.delete_topic(topic);
    broker.create_topic(topic, 1);
    // The marker of the transaction stands where the last message was.
    Transactions::new(broker, topic).run(20..29, true);
    plain(30..35);
    let source = setup.source(options.clone());
    wait_until("the new topic is named", 30, || word(&source) == "topic_recreated");
    let state = source.status().state;
    let said = "partition 0 has no message at offset 9";
    assert!(matches!(&state, KafkaState::Failed { reason, .. } if reason.contains(said)), "{state:?}");
    assert_eq!(setup.log.count(), 10, "nothing was read");

    let compacted = AlterConfig::new(ResourceSpecifier::Topic(topic)).set("cleanup.policy", "compact");
    broker.admin(async |client| client.alter_configs([&compacted], &AdminOptions::new()).await.unwrap());
    let source = setup.source(options);
    wait_until("what comes after it is stored", 30, || setup.log.count() == 15);
    assert_eq!(word(&source), "running");
}

/// Numbers of operations in the protocol.
const READ: i8 = 3;
const DESCRIBE: i8 = 8;
const DESCRIBE_CONFIGS: i8 = 10;

#[test]
fn reading_and_seeking_need_no_group_and_a_check_warns_of_missing_rights() {
    let Some(broker) = Broker::shared() else { return };
    if !broker.is_kafka() {
        return;
    }
    let topic = "few-rights";
    broker.create_topic(topic, 1);
    broker.grant("guest", topic, &[READ, DESCRIBE]);
    let client = broker.sasl_client("guest", "guest-secret");
    let options = KafkaSourceOptions { client, ..KafkaSourceOptions::new("", topic, "of-others") };
    let report = preflight(&options, PATIENCE).unwrap();
    assert_eq!(offsets_at(&options, &report.partitions, 0, PATIENCE).unwrap(), [0]);
    let missing = |options| what_is_missing(options, &report.partitions, PATIENCE).unwrap();
    let words: Vec<_> = missing(&options).iter().map(KafkaFault::word).collect();
    assert_eq!(words, ["group_denied", "config_denied"]);
    let everything = KafkaSourceOptions::new(&broker.bootstrap(), topic, "of-others");
    assert_eq!(missing(&everything), []);

    let setup = Setup::new();
    broker.produce(topic, [(0, None, Some(event(1).as_bytes()))]);
    let source = setup.source(options);
    wait_until("the event is stored", 30, || setup.log.count() == 1);
    assert_eq!(word(&source), "running");

    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_evergraph"));
    command.args(["check", "--listen", "127.0.0.1:0", "--data"]).arg(folder.path());
    let mut set = |key: &str, value: &str| {
        command.arg("--set").arg(format!("ingest.kafka.{key}={value}"));
    };
    let client = broker.sasl_client("guest", "guest-secret");
    set("brokers", &client.brokers);
    set("topic", topic);
    client.properties.iter().for_each(|(key, value)| set(&format!("properties.{key}"), value));
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    assert!(said.contains("ok    kafka: topic few-rights"), "{said}");
    assert!(said.contains("warn  kafka: no permission to use consumer group evergraph"), "{said}");
    assert!(said.contains("grant this principal DESCRIBE_CONFIGS on it"), "{said}");
}

#[test]
fn a_topic_of_which_it_is_not_known_whether_it_is_compacted_waits_for_the_right_to_ask() {
    let Some(broker) = Broker::shared() else { return };
    if !broker.is_kafka() {
        return;
    }
    let topic = "no-describe-configs";
    broker.create_topic(topic, 1);
    broker.grant("guest", topic, &[READ, DESCRIBE]);
    let values: Vec<String> = (0..10).map(event).collect();
    broker.produce(topic, values.iter().map(|value| (0, None, Some(value.as_bytes()))));
    let setup = Setup::new();
    let client = broker.sasl_client("guest", "guest-secret");
    let options = KafkaSourceOptions { client, ..KafkaSourceOptions::new("", topic, topic) };
    let source = setup.source(options.clone());
    wait_until("the events are stored", 30, || setup.log.count() == 10);
    assert!(source.stop(Duration::from_secs(15)));

    broker.delete_topic(topic);
    broker.create_topic(topic, 1);
    broker.grant("guest", topic, &[READ, DESCRIBE]);
    // The marker of the transaction stands where the last message was.
    Transactions::new(broker, topic).run(20..29, true);
    let value = event(30);
    broker.produce(topic, [(0, None, Some(value.as_bytes()))]);
    let source = setup.source(options);
    wait_until("the missing right is named", 30, || word(&source) == "config_denied");
    let state = source.status().state;
    let said = |reason: &str| reason.contains("DESCRIBE_CONFIGS") && reason.contains("partition 0 waits");
    assert!(matches!(&state, KafkaState::Degraded { reason, .. } if said(reason)), "{state:?}");
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(setup.log.count(), 10, "nothing was read");
    broker.grant("guest", topic, &[DESCRIBE_CONFIGS]);
    wait_until("the new topic is named", 30, || word(&source) == "topic_recreated");
    assert_eq!(setup.log.count(), 10);
}
