//! Checks a cluster before reading from it: names, connections, credentials, the topic, further rights.
//! Each finding is a [`KafkaFault`] that states what to do.

use std::net::{TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rdkafka::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext};
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use rdkafka::{Offset, TopicPartitionList};

use super::context::other;
use super::identity::is_compacted;
use super::login::Session;
use super::{KafkaFault, KafkaSourceOptions};

/// The offsets that a partition has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartitionRange {
    /// The partition.
    pub partition: i32,
    /// The oldest offset.
    pub low: i64,
    /// One past the newest offset.
    pub high: i64,
}

/// What the check found in a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PreflightReport {
    /// The cluster's id, if the brokers give one.
    pub cluster_id: Option<String>,
    /// The brokers, as `host:port`.
    pub brokers: Vec<String>,
    /// The topic's partitions.
    pub partitions: Vec<PartitionRange>,
    /// Who is logged in, where that is by a token.
    pub logged_in: Option<LoggedIn>,
}

/// A login by a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoggedIn {
    /// Who, as the token says.
    pub principal: String,
    /// Where the token comes from.
    pub issuer: String,
    /// Until when the token is valid, milliseconds since the Unix epoch.
    pub valid_until_unix_ms: i64,
}

/// Collects the errors that explain why a request had no response.
#[derive(Default)]
struct Causes(Mutex<Vec<(Code, String)>>);

impl ClientContext for Causes {
    fn log(&self, _: RDKafkaLogLevel, facility: &str, text: &str) {
        tracing::debug!(target: "librdkafka", facility, "{text}");
        // A connection that the broker closes is a log line before it is an error, if it ever is one.
        if facility == "FAIL" {
            let text = text.split_once("]: ").map_or(text, |(_, text)| text);
            self.0.lock().push((Code::BrokerTransportFailure, text.to_owned()));
        }
    }
    fn error(&self, error: KafkaError, reason: &str) {
        if let Some(code) = error.rdkafka_error_code() {
            self.0.lock().push((code, reason.to_owned()));
        }
    }
}

impl ConsumerContext for Causes {}

/// Checks the cluster within about `timeout`, without joining the group or reading anything.
///
/// # Errors
/// The first fault found, from the outside in: option, name, connection, TLS, credentials, topic.
pub fn preflight(options: &KafkaSourceOptions, timeout: Duration) -> Result<PreflightReport, KafkaFault> {
    let deadline = Instant::now() + timeout;
    let left = || deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(100));
    let session = Session::of(&options.client)?;
    let token = session.token(left())?;
    let consumer = prober(options, left())?;
    probe_tcp(&options.client.brokers, left().min(Duration::from_secs(3)))?;

    let topic = options.topic.as_str();
    let named = |code, text: &str| KafkaFault::from_code(code, text, topic, &options.group);
    let metadata = request(&consumer, deadline, |t| consumer.fetch_metadata(Some(topic), t))
        .map_err(|error| explain(&consumer, &error, named))?;
    let found = metadata.topics().iter().find(|t| t.name() == topic);
    if let Some(error) = found.and_then(|t| t.error()) {
        return Err(match named(error.into(), "metadata") {
            KafkaFault::TopicMissing { topic, .. } => {
                let similar = similar_topic(&consumer, &topic, left());
                KafkaFault::TopicMissing { topic, similar }
            }
            fault => fault,
        });
    }
    let ids: Vec<i32> = found.map(|t| t.partitions().iter().map(|p| p.id()).collect()).unwrap_or_default();
    if ids.is_empty() {
        return Err(KafkaFault::TopicMissing { topic: topic.into(), similar: None });
    }

    let mut partitions = Vec::with_capacity(ids.len());
    for partition in ids {
        let (low, high) = consumer
            .fetch_watermarks(topic, partition, left())
            .map_err(|error| explain(&consumer, &error, named))?;
        partitions.push(PartitionRange { partition, low, high });
    }
    Ok(PreflightReport {
        cluster_id: consumer.client().fetch_cluster_id(left()),
        brokers: metadata.brokers().iter().map(|b| format!("{}:{}", b.host(), b.port())).collect(),
        partitions,
        logged_in: token.map(|(issuer, token)| LoggedIn {
            principal: token.principal.clone(),
            issuer,
            valid_until_unix_ms: token.valid_until_ms,
        }),
    })
}

/// What a source can do without for the moment and cannot find out or do now: committing offsets for outside tools, and
/// whether the topic is compacted. The topic was [checked](preflight) before.
///
/// # Errors
/// When an option or property is not valid.
pub fn what_is_missing(
    options: &KafkaSourceOptions,
    partitions: &[PartitionRange],
    timeout: Duration,
) -> Result<Vec<KafkaFault>, KafkaFault> {
    let consumer = prober(options, timeout)?;
    let topic = options.topic.as_str();
    let named = |code, text: &str| KafkaFault::from_code(code, text, topic, &options.group);
    let mut offsets = TopicPartitionList::with_capacity(partitions.len());
    for range in partitions {
        let _ = offsets.add_partition_offset(topic, range.partition, Offset::Invalid);
    }
    // Asking for committed offsets needs a right to the group, as committing them does.
    let group = consumer.committed_offsets(offsets, timeout).err();
    let group = group.map(|error| explain(&consumer, &error, named));
    Ok(group.into_iter().chain(is_compacted(options, timeout).err()).collect())
}

/// A consumer for requests to the brokers, which reads nothing.
fn prober(options: &KafkaSourceOptions, wait: Duration) -> Result<BaseConsumer<Causes>, KafkaFault> {
    let mut config = options.consumer_config()?;
    config.remove("statistics.interval.ms");
    options.client.open(&config, Causes::default(), wait)
}

/// The first offset of each of these partitions whose message is no older than `unix_ms`, and one past the newest
/// offset where there is none.
///
/// # Errors
/// When the brokers do not respond within `timeout`, or refuse.
pub fn offsets_at(
    options: &KafkaSourceOptions,
    partitions: &[PartitionRange],
    unix_ms: i64,
    timeout: Duration,
) -> Result<Vec<i64>, KafkaFault> {
    let consumer = prober(options, timeout)?;
    let topic = options.topic.as_str();
    let named = |code, text: &str| KafkaFault::from_code(code, text, topic, &options.group);
    let mut times = TopicPartitionList::with_capacity(partitions.len());
    for range in partitions {
        // Only a negative offset could be refused.
        let _ = times.add_partition_offset(topic, range.partition, Offset::Offset(unix_ms.max(0)));
    }
    let found =
        consumer.offsets_for_times(times, timeout).map_err(|error| explain(&consumer, &error, named))?;
    let offset_of = |range: &PartitionRange| match found.find_partition(topic, range.partition) {
        Some(element) => match element.offset() {
            Offset::Offset(offset) => offset.clamp(range.low, range.high),
            _ => range.high,
        },
        None => range.high,
    };
    Ok(partitions.iter().map(offset_of).collect())
}

/// Requests in short turns, so that a cause that will not go away (bad credentials) ends the wait early.
fn request<T>(
    consumer: &BaseConsumer<Causes>,
    deadline: Instant,
    request: impl Fn(Duration) -> Result<T, KafkaError>,
) -> Result<T, KafkaError> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let result = request(left.clamp(Duration::from_millis(100), Duration::from_millis(700)));
        if result.is_ok() || left.is_zero() {
            return result;
        }
        while consumer.poll(Duration::ZERO).is_some() {}
        let hopeless = |(code, _): &(Code, String)| {
            matches!(code, Code::Authentication | Code::SaslAuthenticationFailed | Code::SSL)
        };
        if consumer.context().0.lock().iter().any(hopeless) {
            return result;
        }
    }
}

/// The fault behind a failed request: what the client reported while it waited is more precise than its code.
fn explain(
    consumer: &BaseConsumer<Causes>,
    error: &KafkaError,
    named: impl Fn(Code, &str) -> KafkaFault,
) -> KafkaFault {
    while consumer.poll(Duration::ZERO).is_some() {}
    let code = error.rdkafka_error_code();
    let timed_out = matches!(
        code,
        Some(
            Code::BrokerTransportFailure
                | Code::OperationTimedOut
                | Code::AllBrokersDown
                | Code::Authentication
        )
    );
    if timed_out {
        let causes = consumer.context().0.lock();
        let is_precise = |(c, _): &&(Code, String)| {
            !matches!(c, Code::AllBrokersDown | Code::OperationTimedOut | Code::BrokerTransportFailure)
        };
        let is_transport = |(c, _): &&(Code, String)| *c == Code::BrokerTransportFailure;
        let newest = || causes.iter().rev();
        let precise = newest().find(is_precise).or_else(|| newest().find(is_transport));
        if let Some((code, text)) = precise {
            return match named(*code, text) {
                // The port accepts connections (that was tried) and hangs up on the handshake.
                KafkaFault::Unreachable { detail, .. } if is_hang_up(&detail) => {
                    KafkaFault::ProtocolMismatch { detail }
                }
                fault => fault,
            };
        }
    }
    code.map_or_else(|| other(error), |code| named(code, &error.to_string()))
}

fn is_hang_up(text: &str) -> bool {
    ["Disconnected", "Broken pipe", "Connection reset"].iter().any(|sign| text.contains(sign))
}

/// A broker must resolve and accept a connection; one of the list is enough.
fn probe_tcp(brokers: &str, timeout: Duration) -> Result<(), KafkaFault> {
    let mut first = None;
    for entry in brokers.split(',').map(str::trim).filter(|b| !b.is_empty()) {
        let address = entry.rsplit_once("://").map_or(entry, |(_, address)| address);
        let address = if address.contains(':') { address.to_owned() } else { format!("{address}:9092") };
        match probe_one(&address, timeout) {
            Ok(()) => return Ok(()),
            Err(fault) => first = first.or(Some(fault)),
        }
    }
    Err(first.unwrap_or_else(|| KafkaFault::BadOption {
        property: "bootstrap.servers".into(),
        detail: "no broker is named; set it to host:port".into(),
    }))
}

fn probe_one(address: &str, timeout: Duration) -> Result<(), KafkaFault> {
    let resolved = address
        .to_socket_addrs()
        .map_err(|e| KafkaFault::NameNotResolved { address: address.into(), detail: e.to_string() })?;
    let mut fault = KafkaFault::NameNotResolved { address: address.into(), detail: "no address".into() };
    for socket in resolved {
        match TcpStream::connect_timeout(&socket, timeout) {
            Ok(_) => return Ok(()),
            Err(e) if e.kind() == std::io::ErrorKind::ConnectionRefused => {
                fault = KafkaFault::ConnectionRefused { address: address.into() };
            }
            Err(e) => fault = KafkaFault::Unreachable { address: address.into(), detail: e.to_string() },
        }
    }
    Err(fault)
}

/// The topic whose name is most like this one, if any is much like it.
fn similar_topic(consumer: &BaseConsumer<Causes>, topic: &str, timeout: Duration) -> Option<String> {
    let metadata = consumer.fetch_metadata(None, timeout).ok()?;
    metadata
        .topics()
        .iter()
        .map(|t| (strsim::jaro_winkler(topic, t.name()), t.name()))
        .filter(|(likeness, _)| *likeness > 0.85)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, name)| name.to_owned())
}

/// The fault behind a configuration that librdkafka does not take.
pub(in crate::ingest) fn config_fault(error: &KafkaError) -> KafkaFault {
    match error {
        KafkaError::ClientConfig(_, detail, property, _) => {
            KafkaFault::BadOption { property: property.clone(), detail: detail.clone() }
        }
        _ => KafkaFault::BadOption { property: "(client)".into(), detail: error.to_string() },
    }
}
