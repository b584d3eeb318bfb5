//! Events as the JSON objects that `decode` reads.

use serde::Serialize;

use crate::event::{Event, EventTime, NodeKey};

/// A node key as JSON: an integer or a text.
#[derive(Serialize)]
#[serde(untagged)]
enum KeyOut<'a> {
    Int(i64),
    Text(&'a str),
}

impl<'a> From<&'a NodeKey> for KeyOut<'a> {
    fn from(key: &'a NodeKey) -> Self {
        match key {
            NodeKey::Int(number) => Self::Int(*number),
            NodeKey::Text(text) => Self::Text(text),
        }
    }
}

#[derive(Default, Serialize)]
struct EventOut<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    op: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    src: Option<KeyOut<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dst: Option<KeyOut<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ts: Option<i64>,
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    edge_type: Option<&'a str>,
    #[serde(skip_serializing_if = "<[f32]>::is_empty")]
    features: &'a [f32],
    #[serde(skip_serializing_if = "Option::is_none")]
    label: Option<f32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    idempotency_key: Option<&'a str>,
}

/// Appends an event as one JSON object.
pub(super) fn write_event(event: &Event, idempotency_key: Option<&str>, out: &mut Vec<u8>) {
    let number = |time: &EventTime| Some(time.0);
    let event = match event {
        Event::Edge(edge) => EventOut {
            src: Some((&edge.src).into()),
            dst: Some((&edge.dst).into()),
            ts: number(&edge.time),
            edge_type: edge.edge_type.as_deref(),
            features: &edge.features,
            label: edge.label,
            ..EventOut::default()
        },
        Event::Node { key, time, features } => EventOut {
            op: Some("node"),
            src: Some(key.into()),
            ts: number(time),
            features,
            ..EventOut::default()
        },
        Event::DeleteEdge { src, dst, until } => EventOut {
            op: Some("delete"),
            src: Some(src.into()),
            dst: Some(dst.into()),
            ts: until.as_ref().and_then(number),
            ..EventOut::default()
        },
        Event::DeleteNode { key } => {
            EventOut { op: Some("delete"), src: Some(key.into()), ..EventOut::default() }
        }
    };
    // Numbers and texts into memory: there is nothing that can fail.
    let _ = serde_json::to_writer(out, &EventOut { idempotency_key, ..event });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::EdgeEvent;
    use crate::ingest::decode::Decoder;

    #[test]
    fn an_event_of_any_kind_is_read_as_it_was() {
        let edge = EdgeEvent {
            src: "a".into(),
            dst: 7.into(),
            time: EventTime(-5),
            edge_type: Some("pays".into()),
            features: vec![0.5, -2.0],
            label: Some(1.0),
        };
        for event in [
            Event::Edge(edge),
            Event::Node { key: "a".into(), time: EventTime(3), features: vec![0.25] },
            Event::DeleteEdge { src: "a".into(), dst: 7.into(), until: Some(EventTime(9)) },
            Event::DeleteEdge { src: "a".into(), dst: 7.into(), until: None },
            Event::DeleteNode { key: "a".into() },
        ] {
            let mut text = Vec::new();
            write_event(&event, Some("k"), &mut text);
            let read = Decoder::default().event(&text).unwrap();
            assert_eq!((read.event, read.idempotency.is_some()), (event, true));
        }
    }
}
