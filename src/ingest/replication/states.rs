//! The topic of the states: a [`StateWriter`] sends what has changed, a [`StateReader`] reads all there is and then
//! what comes.

use std::time::Duration;

use xxhash_rust::xxh3::xxh3_64;

use super::frames::take_over;
use super::reader::{Next, TopicReader};
use super::transactions::{Message, Transactions};
use super::wire::{
    Mark, StateMessage, begin_message, mark_message, pair_message, read, row_message, surprises_message,
    weights_message,
};
use super::{PIECE_BYTES, ReplicationFault, ReplicationOptions};
use crate::event::NodeId;
use crate::ingest::dead_letter::unix_ms;
use crate::model::Weights;
use crate::serving::StateChanges;

/// Rows or pairs of one transaction, at most. The mark is in the last one.
const TRANSACTION_ROWS: usize = 20_000;

/// Ships rows, pairs, weights and marks.
pub struct StateWriter {
    options: ReplicationOptions,
    topic: String,
    leader: String,
    term: u64,
    transactions: Option<Transactions>,
    /// Hash of the weights that were sent last, and their pieces.
    weights: Option<(u64, u16)>,
}

impl StateWriter {
    /// A writer that was not connected yet; its term is at least `term`. Marks name `leader`.
    #[must_use]
    pub fn new(options: ReplicationOptions, term: u64, leader: &str) -> Self {
        let (topic, leader) = (options.states(), leader.to_owned());
        Self { topic, leader, options, term, transactions: None, weights: None }
    }

    /// Connects, if it is not: creates the topic where there is none, and fences an earlier leader.
    ///
    /// # Errors
    /// Another leader has taken over, or any other [`ReplicationFault`].
    pub fn connect(&mut self, is_first: bool) -> Result<(), ReplicationFault> {
        if self.transactions.is_some() {
            return Ok(());
        }
        let compacted = [("cleanup.policy", "compact"), ("segment.bytes", "67108864")];
        self.options.prepare(&self.topic, &compacted, true)?;
        let (transactions, term) = take_over(&self.options, &self.topic, self.term, is_first)?;
        self.term = term;
        self.transactions = Some(transactions);
        Ok(())
    }

    /// Ships changes, and at the end the mark; calls `beat` after each transaction. After a failure it has to connect
    /// again, and they are to be shipped again, with the weights.
    ///
    /// # Errors
    /// Any [`ReplicationFault`].
    pub fn ship(&mut self, changes: &StateChanges, beat: &dyn Fn()) -> Result<(), ReplicationFault> {
        let shipped = self.try_ship(changes, beat);
        if shipped.is_err() {
            (self.transactions, self.weights) = (None, None);
        }
        shipped
    }

    fn try_ship(&mut self, changes: &StateChanges, beat: &dyn Fn()) -> Result<(), ReplicationFault> {
        let head = self.term.to_le_bytes();
        let mut messages = Vec::new();
        if changes.nodes.len() + changes.pairs.len() >= TRANSACTION_ROWS {
            messages.push(begin_message(&head));
        }
        if let Some(weights) = &changes.weights {
            self.weights = Some(cut_weights(weights, &head, &mut messages)?);
        }
        if let Some(surprises) = &changes.surprises {
            messages.push(surprises_message(surprises, &head));
        }
        let rows = changes.nodes.iter().map(|&node: &NodeId| row_message(&changes.row(node), &head));
        let pairs = changes.pairs.iter().map(|&(key, times)| pair_message(key, times, &head));
        for message in rows.chain(pairs) {
            messages.push(message);
            if messages.len() >= TRANSACTION_ROWS {
                self.send(&std::mem::take(&mut messages))?;
                beat();
            }
        }
        let state = changes.mark;
        let weights = state.served.and(self.weights);
        let (leader, at_unix_ms) = (self.leader.clone(), unix_ms());
        let mark = mark_message(&Mark { state, weights, leader, at_unix_ms }, &head);
        messages.push(mark.map_err(|error| ReplicationFault::Unwritable(error.to_string()))?);
        self.send(&messages)
    }

    fn send(&self, messages: &[Message]) -> Result<(), ReplicationFault> {
        let Some(transactions) = &self.transactions else {
            return Err(ReplicationFault::Unwritable("the producer is not connected".to_owned()));
        };
        Ok(transactions.send(messages)?)
    }
}

fn cut_weights(
    weights: &Weights,
    head: &[u8],
    out: &mut Vec<Message>,
) -> Result<(u64, u16), ReplicationFault> {
    let unwritable = |error: String| ReplicationFault::Unwritable(error);
    let bytes = weights.parameters().to_bytes().map_err(|error| unwritable(error.to_string()))?;
    let hash = xxh3_64(&bytes);
    let pieces = u16::try_from(bytes.len().div_ceil(PIECE_BYTES))
        .map_err(|_| unwritable(format!("{} bytes of weights are too many", bytes.len())))?;
    out.extend(
        (0..pieces).zip(bytes.chunks(PIECE_BYTES)).map(|(i, piece)| weights_message(i, hash, piece, head)),
    );
    Ok((hash, pieces))
}

/// Reads the states.
pub struct StateReader {
    reader: TopicReader,
    topic: String,
    /// Bytes of pieces of weights, in their order, each with the hash of the whole.
    pieces: Vec<Option<(u64, Vec<u8>)>>,
    /// Whether all that there was has been read once.
    is_caught_up: bool,
    /// The last mark of what there was, if it is complete.
    mark: Option<Box<Mark>>,
}

impl StateReader {
    /// A reader of everything.
    ///
    /// # Errors
    /// When the topic is not there or cannot be read.
    pub fn open(options: &ReplicationOptions) -> Result<Self, ReplicationFault> {
        let topic = options.states();
        let reader = TopicReader::open(options, &topic)?;
        let (low, _) = reader.range()?;
        reader.seek(low)?;
        Ok(Self { reader, topic, pieces: Vec::new(), is_caught_up: false, mark: None })
    }

    /// What the next message says, if one comes within `wait`. Of what there was when reading began, one mark comes,
    /// the last one: those before may stand for rows that compaction has replaced by later ones, and the last one is
    /// left out where a leader ended on its way to the next.
    ///
    /// # Errors
    /// Any [`ReplicationFault`].
    pub fn next(&mut self, wait: Duration) -> Result<Option<StateMessage>, ReplicationFault> {
        let record = match self.reader.next(wait)? {
            Next::Record(record) => record,
            Next::Nothing => return Ok(None),
            Next::End => {
                self.is_caught_up = true;
                return Ok(self.mark.take().map(StateMessage::Mark));
            }
        };
        let message = read(&record.key, record.value.as_deref()).map_err(|detail| {
            ReplicationFault::Malformed { topic: self.topic.clone(), offset: record.offset, detail }
        })?;
        match message {
            StateMessage::Weights { piece, hash, bytes } => self.take_piece(piece, (hash, bytes)),
            StateMessage::Claimed => {}
            StateMessage::Begun => self.mark = None,
            StateMessage::Mark(mark) if !self.is_caught_up => self.mark = Some(mark),
            message => return Ok(Some(message)),
        }
        Ok(None)
    }

    fn take_piece(&mut self, piece: u16, bytes: (u64, Vec<u8>)) {
        let place = usize::from(piece);
        if self.pieces.len() <= place {
            self.pieces.resize(place + 1, None);
        }
        if let Some(held) = self.pieces.get_mut(place) {
            *held = Some(bytes);
        }
    }

    /// The bytes of the weights of a mark, if all of them were read.
    #[must_use]
    pub fn weights(&self, hash: u64, pieces: u16) -> Option<Vec<u8>> {
        let pieces = self.pieces.get(..usize::from(pieces))?;
        let mut whole = Vec::new();
        for piece in pieces {
            let (_, bytes) = piece.as_ref().filter(|(of, _)| *of == hash)?;
            whole.extend_from_slice(bytes);
        }
        (xxh3_64(&whole) == hash).then_some(whole)
    }
}
