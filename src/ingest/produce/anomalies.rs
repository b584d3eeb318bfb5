//! [`AnomalyTopic`]: how unusual each event was, as a message of a topic.
//!
//! The key is the source node's key as text, so that the events of one source keep their order; the value is an object
//! with the words of `/v1/anomalies`.

use serde::Serialize;

use super::feed::Node;
use super::outlet::{Message, OutletOptions, TopicOutlet};
use crate::event::NodeKey;
use crate::ingest::kafka::KafkaFault;
use crate::serving::Anomaly;

/// A topic that judged events are delivered to.
pub struct AnomalyTopic {
    outlet: TopicOutlet,
}

#[derive(Serialize)]
struct Value<'a> {
    src: Node<'a>,
    dst: Node<'a>,
    time: i64,
    position: u64,
    score: f32,
    percentile: Option<f32>,
}

impl AnomalyTopic {
    /// A topic that was not looked at yet.
    #[must_use]
    pub fn new(options: OutletOptions) -> Self {
        Self { outlet: TopicOutlet::new(options) }
    }

    /// Checks the topic, or creates it where the options say so; returns how many partitions it has.
    ///
    /// # Errors
    /// The fault that keeps it from being used.
    pub fn check(&mut self) -> Result<usize, KafkaFault> {
        self.outlet.check()
    }

    /// Delivers events with the keys of their nodes: returns when the brokers have acknowledged all of them.
    ///
    /// # Errors
    /// In words; they are to be delivered again.
    pub fn deliver(&mut self, events: &[(NodeKey, NodeKey, Anomaly)]) -> Result<(), String> {
        let message = |(src, dst, event): &(NodeKey, NodeKey, Anomaly)| {
            let (key, other) = (src.to_string(), dst.to_string());
            let value = Value {
                src: Node::of(src, &key),
                dst: Node::of(dst, &other),
                time: event.time.0,
                position: event.edge.0,
                score: event.score,
                percentile: event.percentile,
            };
            let value = serde_json::to_vec(&value);
            let value = value.map_err(|error| format!("event {} cannot be written: {error}", event.edge))?;
            Ok(Message { key, value: Some(value), headers: Vec::new() })
        };
        let messages: Result<Vec<Message>, String> = events.iter().map(message).collect();
        self.outlet.deliver(&messages?)
    }
}
