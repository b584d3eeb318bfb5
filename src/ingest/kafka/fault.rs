//! What can be wrong between us and a Kafka cluster, each named with what to do about it. librdkafka
//! reports much of this only in its texts, so the texts are parsed here and nowhere else.

use rdkafka::error::RDKafkaErrorCode as Code;
use thiserror::Error;

/// A fault between us and Kafka.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum KafkaFault {
    /// A property that librdkafka does not know or take.
    #[error("Kafka property {property}: {detail} (ingest.kafka.properties, or --property)")]
    BadOption {
        /// The property.
        property: String,
        /// What is wrong with it.
        detail: String,
    },
    /// The broker's name has no address.
    #[error("the name of broker {address} cannot be resolved ({detail}); check ingest.kafka.brokers and DNS")]
    NameNotResolved {
        /// `host:port` as configured.
        address: String,
        /// The resolver's words.
        detail: String,
    },
    /// Nothing listens there.
    #[error("broker {address} refuses connections; is Kafka running there, and is the port right?")]
    ConnectionRefused {
        /// `host:port` as configured.
        address: String,
    },
    /// No response.
    #[error(
        "no response from {address} ({detail}); check routes, firewalls and the brokers' advertised.listeners"
    )]
    Unreachable {
        /// `host:port` or the bootstrap list.
        address: String,
        /// What was tried.
        detail: String,
    },
    /// The brokers do not take the credentials.
    #[error(
        "Kafka does not accept the credentials ({detail}); check sasl.mechanism, and sasl.username and sasl.password, \
         or the scope and audience of the token"
    )]
    Authentication {
        /// The broker's words.
        detail: String,
    },
    /// There is no token to log in with.
    #[error(
        "no token to log in to Kafka: {issuer} {detail}; check sasl.oauthbearer.* in ingest.kafka.properties, and \
         whether it is there"
    )]
    Token {
        /// Where it was asked for.
        issuer: String,
        /// What came of it.
        detail: String,
    },
    /// TLS cannot be agreed on.
    #[error(
        "TLS with the broker failed ({detail}); check ssl.ca.location, the certificate's names and the port"
    )]
    Tls {
        /// OpenSSL's words.
        detail: String,
    },
    /// The listener speaks another security protocol.
    #[error(
        "the broker closes the connection at once ({detail}); check that security.protocol fits the listener's port"
    )]
    ProtocolMismatch {
        /// librdkafka's words.
        detail: String,
    },
    /// The topic does not exist.
    #[error("topic {topic} does not exist{}; create it or correct its name", similar_hint(similar))]
    TopicMissing {
        /// The topic.
        topic: String,
        /// A topic of a similar name, if there is one.
        similar: Option<String>,
    },
    /// The principal may not read the topic.
    #[error("no permission to read topic {topic}; grant this principal DESCRIBE and READ on it")]
    TopicDenied {
        /// The topic.
        topic: String,
    },
    /// The principal may not use the consumer group.
    #[error(
        "no permission to use consumer group {group}: events are read without, but offsets are not committed there \
         for outside tools; grant this principal READ on the group"
    )]
    GroupDenied {
        /// The group.
        group: String,
    },
    /// The principal may not read the topic's configuration.
    #[error(
        "no permission to read the configuration of topic {topic}, which shows whether a message that is gone was \
         compacted away or the topic is another one; grant this principal DESCRIBE_CONFIGS on it"
    )]
    ConfigDenied {
        /// The topic.
        topic: String,
    },
    /// The brokers do not report the topic's cleanup policy.
    #[error(
        "the cleanup policy of topic {topic} is not known ({detail}), which shows whether a message that is gone was \
         compacted away or the topic is another one; check the broker's log, or stop the daemon and choose where to \
         go on (evergraph source seek)"
    )]
    PolicyUnknown {
        /// The topic.
        topic: String,
        /// Why not.
        detail: String,
    },
    /// Messages that were not read yet are gone.
    #[error(
        "offsets {stored}..{low} of {topic} partition {partition} are gone by retention: the log stands at {stored}, \
         the broker's oldest is {low}; to go on without them set ingest.kafka.lost_data_policy to earliest"
    )]
    DataLost {
        /// The topic.
        topic: String,
        /// Its partition.
        partition: i32,
        /// Where the log stands.
        stored: i64,
        /// The oldest offset that the broker has.
        low: i64,
    },
    /// The broker has fewer messages than were read already.
    #[error(
        "{topic} partition {partition} ends at offset {high}, but the log stands at {stored}: the topic was \
         deleted and created again; give the new stream a new topic (ingest.kafka.topic) or a new data.dir, or stop \
         the daemon and go on at its start (evergraph source seek --to earliest)"
    )]
    TopicRecreated {
        /// The topic.
        topic: String,
        /// Its partition.
        partition: i32,
        /// Where the log stands.
        stored: i64,
        /// One past the newest offset that the broker has.
        high: i64,
    },
    /// A partition has another message where one was read, or none.
    #[error(
        "{topic} partition {partition} has {} at offset {offset}, where a message was read: the topic was deleted and \
         created again, or a broker has lost the end of the partition; give the new stream a new topic \
         (ingest.kafka.topic) or a new data.dir, or stop the daemon and choose where to go on (evergraph source seek, \
         for example --to earliest)",
        if *is_gone { "no message" } else { "another message" }
    )]
    TopicReplaced {
        /// The topic.
        topic: String,
        /// Its partition.
        partition: i32,
        /// Where the message was.
        offset: i64,
        /// Whether there is no message any more.
        is_gone: bool,
    },
    /// The brokers are of another cluster than the one that was read so far.
    #[error(
        "topic {topic} was read from the cluster {remembered} so far, and these brokers are of another cluster, \
         {found}: put ingest.kafka.brokers back, or give the new stream a new topic (ingest.kafka.topic) or a new \
         data.dir"
    )]
    OtherCluster {
        /// The topic.
        topic: String,
        /// Id of the cluster whose offsets the log holds.
        remembered: String,
        /// Id of the cluster that responds.
        found: String,
    },
    /// Anything else, in librdkafka's words.
    #[error("Kafka: {detail} ({code})")]
    Other {
        /// librdkafka's error code.
        code: String,
        /// Its text.
        detail: String,
    },
}

fn similar_hint(similar: &Option<String>) -> String {
    similar.as_ref().map(|s| format!(" (there is {s})")).unwrap_or_default()
}

impl KafkaFault {
    /// The fault that an error code and its text stand for, for a reader of `topic` in `group`.
    #[must_use]
    pub(super) fn from_code(code: Code, text: &str, topic: &str, group: &str) -> Self {
        let detail = text.to_owned();
        match code {
            Code::UnknownTopicOrPartition | Code::UnknownTopic | Code::UnknownPartition => {
                Self::TopicMissing { topic: topic.into(), similar: None }
            }
            Code::TopicAuthorizationFailed => Self::TopicDenied { topic: topic.into() },
            Code::GroupAuthorizationFailed => Self::GroupDenied { group: group.into() },
            Code::Authentication | Code::SaslAuthenticationFailed => Self::Authentication { detail },
            Code::Resolve => Self::NameNotResolved { address: address_in(text), detail },
            Code::SSL => Self::Tls { detail },
            Code::BrokerTransportFailure | Code::AllBrokersDown | Code::OperationTimedOut => {
                Self::from_transport_text(text)
            }
            other => Self::Other { code: format!("{other:?}"), detail },
        }
    }

    /// Reads the cause out of a transport failure's text.
    fn from_transport_text(text: &str) -> Self {
        let lower = text.to_ascii_lowercase();
        let has = |part: &str| lower.contains(part);
        let detail = text.to_owned();
        if has("failed to resolve") {
            Self::NameNotResolved { address: address_in(text), detail }
        } else if has("connection refused") {
            Self::ConnectionRefused { address: address_in(text) }
        } else if has("ssl handshake failed") || has("certificate") {
            Self::Tls { detail }
        } else if has("security.protocol") || has("apiversion") {
            Self::ProtocolMismatch { detail }
        } else {
            Self::Unreachable { address: address_in(text), detail }
        }
    }

    /// Whether a live connection to a broker shows that the fault is over.
    #[must_use]
    pub(super) fn is_about_connection(&self) -> bool {
        matches!(
            self,
            Self::NameNotResolved { .. }
                | Self::ConnectionRefused { .. }
                | Self::Unreachable { .. }
                | Self::Authentication { .. }
                | Self::Token { .. }
                | Self::Tls { .. }
                | Self::ProtocolMismatch { .. }
        )
    }

    /// A short fixed word for status pages and metric labels.
    #[must_use]
    pub fn word(&self) -> &'static str {
        match self {
            Self::BadOption { .. } => "bad_option",
            Self::NameNotResolved { .. } => "name_not_resolved",
            Self::ConnectionRefused { .. } => "connection_refused",
            Self::Unreachable { .. } => "unreachable",
            Self::Authentication { .. } => "authentication",
            Self::Token { .. } => "token",
            Self::Tls { .. } => "tls",
            Self::ProtocolMismatch { .. } => "protocol_mismatch",
            Self::TopicMissing { .. } => "topic_missing",
            Self::TopicDenied { .. } => "topic_denied",
            Self::GroupDenied { .. } => "group_denied",
            Self::ConfigDenied { .. } => "config_denied",
            Self::PolicyUnknown { .. } => "range_unknown",
            Self::DataLost { .. } => "data_lost",
            Self::TopicRecreated { .. } | Self::TopicReplaced { .. } => "topic_recreated",
            Self::OtherCluster { .. } => "other_cluster",
            Self::Other { .. } => "other",
        }
    }
}

/// The first `host:port` in a text of librdkafka, which writes `protocol://host:port/id: what happened`.
fn address_in(text: &str) -> String {
    text.split(|c: char| c.is_whitespace() || c == '/' || c == ',')
        .map(|word| word.trim_end_matches(':'))
        .find(|word| {
            word.rsplit_once(':').is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok())
        })
        .map_or_else(|| "the brokers".to_owned(), str::to_owned)
}

/// Whether librdkafka logs that `topic` has another id than before: another topic has its name. It goes on reading as
/// if nothing had happened, and reports it nowhere else.
pub(super) fn is_about_another_topic(text: &str, topic: &str) -> bool {
    // The id of a topic of which none is known yet consists of zeros, in base64.
    let is_known = |id: &str| id.trim_end_matches('=').chars().any(|c| c != 'A');
    let ids = text
        .split_once("Topic ")
        .and_then(|(_, text)| text.strip_prefix(topic)?.strip_prefix(" changed id from "))
        .and_then(|text| text.split_once(" to "));
    ids.is_some_and(|(old, new)| is_known(old) && is_known(new))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transport_texts_are_distinguished() {
        let fault = |text: &str| KafkaFault::from_code(Code::BrokerTransportFailure, text, "t", "g");
        let refused =
            "127.0.0.1:1/bootstrap: Connect to ipv4#127.0.0.1:1 failed: Connection refused (after 0ms)";
        assert_eq!(fault(refused), KafkaFault::ConnectionRefused { address: "127.0.0.1:1".into() });
        let ssl = "ssl://h.example:9093/bootstrap: SSL handshake failed: certificate verify failed";
        assert_eq!(fault(ssl).word(), "tls");
        let mismatch = "h:9092/bootstrap: Disconnected while requesting ApiVersion: might be caused by \
                        incorrect security.protocol";
        assert_eq!(fault(mismatch).word(), "protocol_mismatch");
        let dns =
            "nope.invalid:9092/bootstrap: Failed to resolve 'nope.invalid:9092': Name or service not known";
        assert!(
            matches!(fault(dns), KafkaFault::NameNotResolved { address, .. } if address == "nope.invalid:9092")
        );
        assert_eq!(fault("something else").word(), "unreachable");
    }

    #[test]
    fn every_fault_states_what_to_do() {
        let lost = KafkaFault::DataLost { topic: "t".into(), partition: 3, stored: 10, low: 20 };
        assert!(lost.to_string().contains("10..20") && lost.to_string().contains("earliest"));
        let known = include_str!("../../../deploy/evergraph.toml");
        let (topic, partition, stored, high) = ("t".into(), 0, 2, 1);
        let recreated = KafkaFault::TopicRecreated { topic, partition, stored, high };
        let (property, detail) = ("x".into(), "y".into());
        let option = KafkaFault::BadOption { property, detail };
        let (address, detail) = ("b:1".into(), "y".into());
        let name = KafkaFault::NameNotResolved { address, detail };
        let (topic, partition, offset) = ("t".into(), 0, 7);
        let replaced = KafkaFault::TopicReplaced { topic, partition, offset, is_gone: false };
        assert!(replaced.to_string().contains("partition 0 has another message at offset 7"), "{replaced}");
        let (issuer, detail) = ("https://i/t".into(), "responds with 503".into());
        let token = KafkaFault::Token { issuer, detail };
        for fault in [&lost, &replaced, &recreated, &option, &name, &token] {
            let text = fault.to_string();
            let word = |c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == '.');
            let settings: Vec<_> = text.split(word).filter_map(|w| w.strip_prefix("ingest.kafka.")).collect();
            assert!(!settings.is_empty(), "{text}");
            for key in settings {
                let is_known = known.contains(&format!("\n{key} = ")) || known.contains(&format!(".{key}]"));
                assert!(is_known, "{key}: {text}");
            }
        }
        let missing = KafkaFault::TopicMissing { topic: "paymnts".into(), similar: Some("payments".into()) };
        assert!(missing.to_string().contains("(there is payments)"));
    }
    #[test]
    fn a_topic_that_changes_its_id_differs_from_one_that_is_seen_first() {
        let is_another = |text: &str| is_about_another_topic(text, "pay.ments");
        let [old, new, none] = ["7xJJn_kdTGazyhxCqdnnIg", "A0aAAAAAAAAAAAAAAAAAAA", "AAAAAAAAAAAAAAAAAAAAAA"];
        let line = |topic: &str, from: &str, to: &str| {
            format!("[thrd:main]: Topic {topic} changed id from {from} to {to}")
        };
        assert!(is_another(&line("pay.ments", old, new)));
        assert!(!is_another(&line("pay.ments", none, new)), "the first that is known of it");
        assert!(!is_another(&line("pay.ments", old, none)), "not known at the moment");
        assert!(!is_another(&line("pay.ments2", old, new)) && !is_another(&line("other", old, new)));
        assert!(!is_another("[thrd:main]: Topic pay.ments [0] Leader 1 Epoch 4"));
    }
}
