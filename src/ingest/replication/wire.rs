//! What stands in the messages. All numbers are little-endian but those in keys, whose order brokers may show.
//!
//! ```text
//! frames  header  term 8, position of the first record 8, one past the last 8, identity 8, piece 4, of pieces 4
//!         value   a piece of the frame's bytes
//!         key     'c', header term 8, no value: a leader has taken over
//! states  header  term 8
//!         key     'n' and the node's id 4: the published row of a node
//!         value   1 if it was a destination, else 0; how many types of events it received 2, and each 2; when an event
//!                 last changed the row 8; the row 4 each; none: it is gone
//!         key     'p' and the smaller and the larger node id 4 each: a pair
//!         value   when it was last seen from the smaller to the larger 8, and back 8
//!         key     'w' and the number of a piece 2: the weights
//!         value   hash of all of them 8, then a piece of them (safetensors)
//!         key     's': the surprises that percentiles are shares of
//!         value   in order, 4 each
//!         key     'c', no value: a leader has taken over
//!         key     'b', no value: more than one transaction begins that leads to the next mark
//!         key     'm': the mark
//!         value   an object of JSON
//! ```

use serde::{Deserialize, Serialize};

use super::transactions::Message;
use crate::event::{EdgeId, EventTime, NodeId};
use crate::graph::RetentionBounds;
use crate::model::walk::PairTimes;
use crate::serving::{Source, StateMark, StateRow};

/// The header of every message.
pub(super) const HEADER: &str = "evergraph";

/// The key of the message by which a leader takes over a topic.
pub(super) const CLAIM: &[u8] = b"c";

/// What the header of a piece of a frame has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct FrameHead {
    pub term: u64,
    pub first: EdgeId,
    pub end: EdgeId,
    pub identity: u64,
    pub piece: u32,
    pub pieces: u32,
}

impl FrameHead {
    pub fn to_bytes(self) -> Vec<u8> {
        let wide = [self.term, self.first.0, self.end.0, self.identity];
        let narrow = [self.piece, self.pieces];
        let wide = wide.iter().flat_map(|number| number.to_le_bytes());
        wide.chain(narrow.iter().flat_map(|number| number.to_le_bytes())).collect()
    }

    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let mut rest = Fields(bytes);
        let head = Self {
            term: rest.number()?,
            first: EdgeId(rest.number()?),
            end: EdgeId(rest.number()?),
            identity: rest.number()?,
            piece: u32::from_le_bytes(rest.take()?),
            pieces: u32::from_le_bytes(rest.take()?),
        };
        (rest.0.is_empty() && head.piece < head.pieces && head.first <= head.end).then_some(head)
    }
}

/// The term in the header of a message, of either topic.
pub(super) fn term_of(head: &[u8]) -> Option<u64> {
    Fields(head).number()
}

/// What a message of the states says.
#[derive(Clone, Debug, PartialEq)]
pub enum StateMessage {
    /// The row of a node.
    Row(StateRow),
    /// When a pair was seen.
    Pair(u64, PairTimes),
    /// A piece of weights.
    Weights {
        /// Its number.
        piece: u16,
        /// Hash of the whole.
        hash: u64,
        /// Its bytes.
        bytes: Vec<u8>,
    },
    /// The surprises that percentiles are shares of, in order.
    Surprises(Vec<f32>),
    /// A leader has taken over.
    Claimed,
    /// What comes until the next mark is complete only with that.
    Begun,
    /// What all before leads to.
    Mark(Box<Mark>),
}

/// A mark, and what a replica needs beside it.
#[derive(Clone, Debug, PartialEq)]
pub struct Mark {
    /// Where the rows lead.
    pub state: StateMark,
    /// Hash of the weights that are served, and in how many pieces they are.
    pub weights: Option<(u64, u16)>,
    /// Where the leader takes requests; may be empty.
    pub leader: String,
    /// When it was written by the leader's clock, milliseconds since the Unix epoch.
    pub at_unix_ms: i64,
}

#[derive(Deserialize, Serialize)]
struct MarkText {
    position: u64,
    since: i64,
    first: u64,
    end: u64,
    origin: Option<i64>,
    model_version: u64,
    /// Empty while nothing is served.
    source: String,
    weights_hash: u64,
    weights_pieces: u16,
    leader: String,
    at_unix_ms: i64,
}

/// A leader takes over.
pub(super) fn claim_message(term: u64) -> Message {
    Message { key: CLAIM.to_vec(), value: None, head: term.to_le_bytes().to_vec() }
}

/// Several transactions lead to the next mark.
pub(super) fn begin_message(head: &[u8]) -> Message {
    Message { key: b"b".to_vec(), value: None, head: head.to_vec() }
}

pub(super) fn row_message(row: &StateRow, head: &[u8]) -> Message {
    let mut key = vec![b'n'];
    key.extend_from_slice(&row.node.0.to_be_bytes());
    let value = row.row.as_ref().map(|(updated, values)| {
        let mut value = Vec::with_capacity(11 + row.types.len() * 2 + values.len() * 4);
        let types = u16::try_from(row.types.len()).unwrap_or(u16::MAX);
        value.push(u8::from(row.is_destination));
        value.extend_from_slice(&types.to_le_bytes());
        let numbers = row.types.iter().take(types.into());
        value.extend(numbers.flat_map(|number| number.to_le_bytes()));
        value.extend_from_slice(&updated.0.to_le_bytes());
        value.extend(values.iter().flat_map(|number| number.to_le_bytes()));
        value
    });
    Message { key, value, head: head.to_vec() }
}

pub(super) fn pair_message(pair: u64, times: PairTimes, head: &[u8]) -> Message {
    let mut key = vec![b'p'];
    key.extend_from_slice(&pair.to_be_bytes());
    let value = times.both().iter().flat_map(|time| time.0.to_le_bytes()).collect();
    Message { key, value: Some(value), head: head.to_vec() }
}

pub(super) fn weights_message(piece: u16, hash: u64, bytes: &[u8], head: &[u8]) -> Message {
    let mut key = vec![b'w'];
    key.extend_from_slice(&piece.to_be_bytes());
    let value = hash.to_le_bytes().iter().chain(bytes).copied().collect();
    Message { key, value: Some(value), head: head.to_vec() }
}

pub(super) fn surprises_message(surprises: &[f32], head: &[u8]) -> Message {
    let value = surprises.iter().flat_map(|number| number.to_le_bytes()).collect();
    Message { key: b"s".to_vec(), value: Some(value), head: head.to_vec() }
}

pub(super) fn mark_message(mark: &Mark, head: &[u8]) -> Result<Message, serde_json::Error> {
    let StateMark { position, kept, origin, served } = mark.state;
    let (weights_hash, weights_pieces) = mark.weights.unwrap_or_default();
    let text = MarkText {
        position: position.0,
        since: kept.since.0,
        first: kept.first.0,
        end: kept.end.0,
        origin: origin.map(|origin| origin.0),
        model_version: served.map_or(0, |(version, _)| version),
        source: served.map_or("", |(_, source)| source.name()).to_owned(),
        weights_hash,
        weights_pieces,
        leader: mark.leader.clone(),
        at_unix_ms: mark.at_unix_ms,
    };
    let value = Some(serde_json::to_vec(&text)?);
    Ok(Message { key: b"m".to_vec(), value, head: head.to_vec() })
}

/// What a message says; what is wrong with it, in words, if it says nothing.
pub(super) fn read(key: &[u8], value: Option<&[u8]>) -> Result<StateMessage, String> {
    let unreadable = || format!("key {key:02x?} with {:?} bytes", value.map(<[u8]>::len));
    let message = match (key.split_first(), value) {
        (Some((b'n', node)), value) => row_of(node, value),
        (Some((b'p', pair)), Some(value)) => pair_of(pair, value),
        (Some((b'w', piece)), Some(value)) => piece_of(piece, value),
        (Some((b'c', [])), None) => Some(StateMessage::Claimed),
        (Some((b'b', [])), None) => Some(StateMessage::Begun),
        (Some((b's', [])), Some(value)) => numbers(value).map(StateMessage::Surprises),
        (Some((b'm', [])), Some(value)) => {
            return mark_of(value).map(|mark| StateMessage::Mark(Box::new(mark)));
        }
        _ => None,
    };
    message.ok_or_else(unreadable)
}

fn row_of(node: &[u8], value: Option<&[u8]>) -> Option<StateMessage> {
    let node = NodeId(u32::from_be_bytes(node.try_into().ok()?));
    let Some(value) = value else {
        return Some(StateMessage::Row(StateRow {
            node,
            is_destination: false,
            types: Vec::new(),
            row: None,
        }));
    };
    let mut rest = Fields(value);
    let [kind] = rest.take()?;
    let count = u16::from_le_bytes(rest.take()?);
    let types = (0..count).map(|_| rest.take().map(u16::from_le_bytes)).collect::<Option<Vec<_>>>()?;
    let updated = EventTime(i64::from_le_bytes(rest.take()?));
    let values = numbers(rest.0)?;
    let row = StateRow { node, is_destination: kind == 1, types, row: Some((updated, values)) };
    (kind <= 1).then_some(StateMessage::Row(row))
}

fn numbers(bytes: &[u8]) -> Option<Vec<f32>> {
    let (numbers, []) = bytes.as_chunks::<4>() else { return None };
    Some(numbers.iter().map(|number| f32::from_le_bytes(*number)).collect())
}

fn pair_of(pair: &[u8], value: &[u8]) -> Option<StateMessage> {
    let mut rest = Fields(value);
    let key = u64::from_be_bytes(pair.try_into().ok()?);
    let times = [rest.take()?, rest.take()?].map(|time| EventTime(i64::from_le_bytes(time)));
    rest.0.is_empty().then(|| StateMessage::Pair(key, PairTimes::of(times)))
}

fn piece_of(piece: &[u8], value: &[u8]) -> Option<StateMessage> {
    let mut rest = Fields(value);
    let piece = u16::from_be_bytes(piece.try_into().ok()?);
    Some(StateMessage::Weights { piece, hash: rest.number()?, bytes: rest.0.to_vec() })
}

fn mark_of(value: &[u8]) -> Result<Mark, String> {
    let text: MarkText = serde_json::from_slice(value).map_err(|error| format!("the mark: {error}"))?;
    let source = Source::ALL.into_iter().find(|source| source.name() == text.source);
    if source.is_none() && !text.source.is_empty() {
        return Err(format!("the mark: {} is no source of scores", text.source));
    }
    let kept =
        RetentionBounds { since: EventTime(text.since), first: EdgeId(text.first), end: EdgeId(text.end) };
    let state = StateMark {
        position: EdgeId(text.position),
        kept,
        origin: text.origin.map(EventTime),
        served: source.map(|source| (text.model_version, source)),
    };
    let weights = source.map(|_| (text.weights_hash, text.weights_pieces));
    Ok(Mark { state, weights, leader: text.leader, at_unix_ms: text.at_unix_ms })
}

/// Fields of known widths, one after another.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*taken)
    }

    fn number(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn back(message: &Message) -> StateMessage {
        assert_eq!(term_of(&message.head), Some(9));
        read(&message.key, message.value.as_deref()).unwrap()
    }

    #[test]
    fn messages_are_read_as_they_were_written() {
        let head = 9_u64.to_le_bytes();
        let row = StateRow {
            node: NodeId(70_000),
            is_destination: true,
            types: vec![3, 900],
            row: Some((EventTime(-5), vec![0.5, -1.0])),
        };
        assert_eq!(back(&row_message(&row, &head)), StateMessage::Row(row.clone()));
        let empty = StateRow {
            row: Some((EventTime(3), vec![])),
            is_destination: false,
            types: vec![],
            ..row.clone()
        };
        assert_eq!(back(&row_message(&empty, &head)), StateMessage::Row(empty));
        let gone = StateRow { row: None, is_destination: false, types: vec![], ..row };
        assert_eq!(back(&row_message(&gone, &head)), StateMessage::Row(gone));
        let times = PairTimes::of([EventTime(1), EventTime(i64::MIN)]);
        assert_eq!(back(&pair_message(1 << 40 | 3, times, &head)), StateMessage::Pair(1 << 40 | 3, times));
        assert_eq!(back(&claim_message(9)), StateMessage::Claimed);
        assert_eq!(back(&begin_message(&head)), StateMessage::Begun);
        let surprises = StateMessage::Surprises(vec![0.5, 2.0]);
        assert_eq!(back(&surprises_message(&[0.5, 2.0], &head)), surprises);
        let piece = StateMessage::Weights { piece: 300, hash: 8, bytes: vec![1, 2] };
        assert_eq!(back(&weights_message(300, 8, &[1, 2], &head)), piece);
        let kept = RetentionBounds { since: EventTime(i64::MIN), first: EdgeId(2), end: EdgeId(u64::MAX) };
        for served in [None, Some((7, Source::Candidate))] {
            let state = StateMark { position: EdgeId(u64::MAX), kept, origin: Some(EventTime(4)), served };
            let mark =
                Mark { state, weights: served.map(|_| (5, 6)), leader: "http://l:1".into(), at_unix_ms: 7 };
            let message = mark_message(&mark, &head).unwrap();
            assert_eq!(back(&message), StateMessage::Mark(Box::new(mark)));
        }
    }

    #[test]
    fn heads_of_frames_come_back_and_others_are_none() {
        let head =
            FrameHead { term: 1, first: EdgeId(2), end: EdgeId(3), identity: u64::MAX, piece: 4, pieces: 5 };
        let bytes = head.to_bytes();
        assert_eq!((FrameHead::parse(&bytes), term_of(&bytes)), (Some(head), Some(1)));
        for broken in [&bytes[..39], &[bytes.clone(), vec![0]].concat(), &[]] {
            assert_eq!(FrameHead::parse(broken), None);
        }
        assert_eq!(FrameHead::parse(&FrameHead { piece: 5, ..head }.to_bytes()), None);
        assert_eq!(FrameHead::parse(&FrameHead { first: EdgeId(9), ..head }.to_bytes()), None);
    }

    #[test]
    fn what_is_no_message_of_ours_is_named() {
        let long = [0; 16];
        for (key, value) in [
            (&b""[..], Some(&b""[..])),
            (b"n123", Some(&long)),
            (b"n1234", Some(b"")),
            (b"n1234", Some(&[2; 13])),
            (b"n1234", Some(&[1; 12])),
            (b"n1234", Some(&[1, 9, 0, 0, 0])),
            (b"p12345678", None),
            (b"p12345678", Some(&[0; 15])),
            (b"p1234567", Some(&long)),
            (b"w1", Some(&long)),
            (b"w12", Some(&[0; 7])),
            (b"s", Some(b"123")),
            (b"m", Some(b"{}")),
            (b"m", None),
            (b"mm", Some(b"{}")),
            (b"c", Some(b"")),
            (b"b", Some(b"")),
            (b"x", Some(b"")),
        ] {
            assert!(read(key, value).is_err(), "{key:?} {value:?}");
        }
    }
}
