//! A client of librdkafka that has lost its list of brokers, which happens when a broker that is starting reports none:
//! it never connects again by itself, so the source has to begin with a new one.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::thread::JoinHandle;
use std::time::Duration;

use evergraph::ingest::dead_letter::{
    DeadLetter, DeadLetterFileOptions, DeadLetterTarget, DeadLetterTopicOptions, DeadLetters,
};
use evergraph::ingest::kafka::{KafkaSourceOptions, KafkaState};
use evergraph::ingest::rejection::{Reason, Rejection};

use crate::broker::Broker;
use crate::kafka_ingest::{Setup, wait_until};

/// The client takes up a response in two steps: it gives up the brokers that are not in it, on other threads, and then
/// goes through the topics. It loses its list if they are done with the first before it is with the second.
const OTHER_TOPICS: usize = 2_000;

/// Listens where a broker was, and reports that the cluster has no brokers.
struct NoBrokers {
    stop: Arc<AtomicBool>,
    /// How often it reported that.
    reported: Arc<AtomicUsize>,
    thread: JoinHandle<()>,
}

impl NoBrokers {
    fn listen(address: &str) -> Self {
        let mut listener = None;
        wait_until("the port is free", 30, || {
            listener = TcpListener::bind(address).ok();
            listener.is_some()
        });
        let listener = listener.unwrap();
        listener.set_nonblocking(true).unwrap();
        let (stop, reported) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let (stopped, count) = (Arc::clone(&stop), Arc::clone(&reported));
        let thread = std::thread::spawn(move || {
            let mut connections = Vec::new();
            while !stopped.load(SeqCst) {
                if let Ok((connection, _)) = listener.accept() {
                    connection.set_nonblocking(false).unwrap();
                    let other = connection.try_clone().unwrap();
                    let count = Arc::clone(&count);
                    connections.push((other, std::thread::spawn(move || respond(connection, &count))));
                }
                std::thread::sleep(Duration::from_millis(5));
            }
            for (connection, thread) in connections {
                let _ = connection.shutdown(std::net::Shutdown::Both);
                thread.join().unwrap();
            }
        });
        Self { stop, reported, thread }
    }

    fn end(self) {
        self.stop.store(true, SeqCst);
        self.thread.join().unwrap();
    }
}

/// Responds to requests for the versions of requests and for metadata, and to no other, until the connection ends.
fn respond(mut connection: TcpStream, reported: &AtomicUsize) {
    while let Some(request) = read(&mut connection) {
        let Some(response) = response(&request, reported) else { continue };
        let length = u32::try_from(response.len()).unwrap();
        if connection.write_all(&[&length.to_be_bytes(), &response[..]].concat()).is_err() {
            return;
        }
    }
}

fn read(connection: &mut TcpStream) -> Option<Vec<u8>> {
    let mut length = [0; 4];
    connection.read_exact(&mut length).ok()?;
    let mut request = vec![0; u32::from_be_bytes(length) as usize];
    connection.read_exact(&mut request).ok()?;
    Some(request)
}

fn response(request: &[u8], reported: &AtomicUsize) -> Option<Vec<u8>> {
    const METADATA: i16 = 3;
    const VERSIONS: i16 = 18;
    let field = |at: usize| i16::from_be_bytes([request[at], request[at + 1]]);
    let (kind, version) = (field(0), field(2));
    let mut response = request[4..8].to_vec();
    match kind {
        // It knows version 0 of this request only, which is error 35 for a newer one, and lists what else it knows.
        VERSIONS => {
            response.extend(if version > 0 { 35_i16 } else { 0 }.to_be_bytes());
            let known = [(0, 3), (1, 4), (2, 1), (METADATA, 2), (8, 2), (9, 1), (10, 0), (VERSIONS, 0)];
            response.extend(u32::try_from(known.len()).unwrap().to_be_bytes());
            response.extend(
                known.into_iter().flat_map(|(kind, newest)| [kind, 0, newest]).flat_map(i16::to_be_bytes),
            );
        }
        // No brokers, a cluster without a name, no controller; each topic that is asked about without a leader.
        METADATA => {
            response.extend([0; 4]);
            response.extend([0xff; 2].iter().filter(|_| version >= 2));
            response.extend([0xff; 4].iter().filter(|_| version >= 1));
            let topics = topics(&request[10 + usize::try_from(field(8)).unwrap()..]);
            response.extend(u32::try_from(topics.len() + OTHER_TOPICS).unwrap().to_be_bytes());
            let others = (0..OTHER_TOPICS).map(|number| name(&format!("{number:0>200}")));
            for topic in topics.into_iter().map(<[u8]>::to_vec).chain(others) {
                // No fault; its name; not internal; one partition, without a leader (5), its number and no replicas.
                response.extend(
                    [&[0; 2], &topic[..], &[0], &[0, 0, 0, 1, 0, 5], &[0; 4], &[0xff; 4], &[0; 8]].concat(),
                );
            }
            reported.fetch_add(1, SeqCst);
        }
        _ => return None,
    }
    Some(response)
}

fn name(text: &str) -> Vec<u8> {
    [&u16::try_from(text.len()).unwrap().to_be_bytes(), text.as_bytes()].concat()
}

/// The names that a request for metadata has, each with its length before it.
fn topics(mut request: &[u8]) -> Vec<&[u8]> {
    let count = i32::from_be_bytes(request.split_off(..4).unwrap().try_into().unwrap());
    let mut next = || {
        let length = u16::from_be_bytes([request[0], request[1]]);
        request.split_off(..2 + usize::from(length)).unwrap()
    };
    (0..count).map(|_| next()).collect()
}

/// Lets a cluster without brokers be reported in the place of a broker, until nobody asks any more: whether that is so
/// after some seconds. Then the broker is back.
fn lose_brokers(broker: &Broker) -> bool {
    broker.stop();
    let none = NoBrokers::listen(&broker.bootstrap());
    wait_until("no brokers are reported", 30, || none.reported.load(SeqCst) > 0);
    // A client that knows whom to ask does so every 500 ms.
    let mut seen = 0;
    let is_lost = (0..8).any(|_| {
        std::thread::sleep(Duration::from_secs(1));
        std::mem::replace(&mut seen, none.reported.load(SeqCst)) == seen
    });
    none.end();
    broker.start();
    is_lost
}

#[test]
fn a_source_whose_client_has_lost_its_brokers_begins_with_a_new_one() {
    let Some(broker) = Broker::own() else { return };
    if !broker.is_kafka() {
        return;
    }
    let topic = "no-brokers";
    let event = |i: i64| format!("{{\"src\":\"u{}\",\"dst\":\"i{i}\",\"ts\":{i}}}", i % 7);
    let send = |events: std::ops::Range<i64>| {
        let values: Vec<String> = events.map(event).collect();
        broker.produce(topic, values.iter().map(|value| (0, None, Some(value.as_bytes()))));
    };
    broker.create_topic(topic, 1);
    send(0..100);
    let setup = Setup::new();
    let mut options = KafkaSourceOptions::new(&broker.bootstrap(), topic, topic);
    options.client = options.client.with("topic.metadata.refresh.interval.ms", "500");
    options.outage_max = Duration::from_secs(5);
    let source = setup.source(options);
    wait_until("the first are stored", 30, || setup.log.count() == 100);
    assert!((0..5).any(|_| lose_brokers(&broker)), "the client has its brokers still");
    assert_eq!(setup.log.count(), 100);
    send(100..200);
    wait_until("all are stored", 60, || setup.log.count() == 200);
    setup.log.assert_exactly_once(200);
    wait_until("it runs again", 30, || source.status().state == KafkaState::Running);
    assert!(source.stats().snapshot().reconnects > 0);
}

#[test]
fn dead_letters_reach_their_topic_again_after_the_client_has_lost_its_brokers() {
    let Some(broker) = Broker::own() else { return };
    if !broker.is_kafka() {
        return;
    }
    broker.create_topic("lost-dead", 1);
    let folder = tempfile::tempdir().unwrap();
    let open = |attempt: usize| {
        let file = DeadLetterFileOptions::new(folder.path().join(format!("dead-{attempt}.jsonl")));
        let mut topic = DeadLetterTopicOptions::new(&broker.bootstrap(), "lost-dead");
        topic.client = topic.client.with("topic.metadata.refresh.interval.ms", "500");
        topic.timeout = Duration::from_secs(2);
        DeadLetters::open(DeadLetterTarget::Topic(topic, file)).unwrap()
    };
    let letter = DeadLetter {
        source: "kafka:lost".into(),
        partition: 0,
        offset: 0,
        key: None,
        payload: Some(b"{ not json".to_vec()),
        headers: Vec::new(),
        received_unix_ms: 0,
        rejection: Rejection::new(Reason::MalformedJson, "for the test"),
    };
    let deliver = |letters: &DeadLetters| letters.deliver(std::slice::from_ref(&letter)).unwrap();
    // A client that once keeps its brokers may do so again, so each attempt has a new one.
    let lost = (0..5).find_map(|attempt| {
        let letters = open(attempt);
        deliver(&letters);
        assert_eq!(letters.delivered(), (1, 0));
        lose_brokers(&broker).then_some(letters)
    });
    let letters = lost.expect("no client has lost its brokers");
    wait_until("the topic takes one again", 60, || {
        deliver(&letters);
        std::thread::sleep(Duration::from_millis(200));
        letters.delivered().0 == 2
    });
}
