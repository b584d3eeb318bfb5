//! What a topic does to its readers: transactions, wrong clocks of producers, other readers of the same group,
//! events that the log never takes.

use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use evergraph::event::PositionLookup;
use evergraph::ingest::kafka::{KafkaSource, KafkaSourceOptions, KafkaState};
use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, AlterConfig, ResourceSpecifier};
use rdkafka::client::DefaultClientContext;
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

    let admin: AdminClient<DefaultClientContext> =
        ClientConfig::new().set("bootstrap.servers", broker.bootstrap()).create().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(admin.delete_topics(&[topic], &AdminOptions::new())).unwrap();
    std::thread::sleep(Duration::from_secs(1));
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
    runtime.block_on(admin.alter_configs([&compacted], &AdminOptions::new())).unwrap();
    let source = setup.source(options);
    wait_until("what comes after it is stored", 30, || setup.log.count() == 15);
    assert_eq!(word(&source), "running");
}
