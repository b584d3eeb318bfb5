//! The topic of the frames: a [`FrameWriter`] continues it behind what it has, a [`FrameReader`] reads it from where a
//! log ends.

use std::time::Duration;

use super::reader::{Next, Record, TopicReader};
use super::transactions::{Message, Transactions};
use super::wire::{CLAIM, FrameHead, claim_message, term_of};
use super::{PIECE_BYTES, ReplicationFault, ReplicationOptions};
use crate::event::EdgeId;
use crate::log::Frame;

/// The bytes of frames that one transaction has at most; a longer frame has one for itself.
const TRANSACTION_BYTES: usize = 8 << 20;

/// More than the longest frame of a log has, bytes.
const FRAME_BYTES_MAX: usize = (1 << 30) + (1 << 20);

/// Messages that are passed at a time, at most.
const PASSED_MAX: usize = 1000;

/// Messages between which the place to begin is not searched any closer.
const CLOSE_ENOUGH: i64 = 256;

/// Where the topic ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shipped {
    /// One past the last record.
    pub end: EdgeId,
    /// Identifies the last frame with records; 0 without one.
    pub identity: u64,
}

/// Ships frames.
pub struct FrameWriter {
    options: ReplicationOptions,
    topic: String,
    /// 0 before it is known.
    term: u64,
    transactions: Option<Transactions>,
}

impl FrameWriter {
    /// A writer that was not connected yet; its term is at least `term`.
    #[must_use]
    pub fn new(options: ReplicationOptions, term: u64) -> Self {
        Self { topic: options.frames(), options, term, transactions: None }
    }

    /// The topic.
    #[must_use]
    pub fn topic(&self) -> &str {
        &self.topic
    }

    /// Creates the topic where there is none, and returns where it ends. Nobody is fenced.
    ///
    /// # Errors
    /// Any [`ReplicationFault`].
    pub fn prepare(&self) -> Result<Shipped, ReplicationFault> {
        self.create()?;
        shipped(&self.options)
    }

    fn create(&self) -> Result<(), ReplicationFault> {
        let kept = [("cleanup.policy", "delete"), ("retention.ms", "-1"), ("retention.bytes", "-1")];
        self.options.prepare(&self.topic, &kept, false)
    }

    /// Connects, if it is not: creates the topic where there is none, and fences an earlier leader. Returns where the
    /// topic ends if it has connected.
    ///
    /// # Errors
    /// Another leader has taken over, or any other [`ReplicationFault`].
    pub fn connect(&mut self, is_first: bool) -> Result<Option<Shipped>, ReplicationFault> {
        if self.transactions.is_some() {
            return Ok(None);
        }
        self.create()?;
        let (transactions, term) = take_over(&self.options, &self.topic, self.term, is_first)?;
        self.term = term;
        let found = shipped(&self.options)?;
        self.transactions = Some(transactions);
        Ok(Some(found))
    }

    /// Ships frames that follow what was shipped, in one transaction or several, and calls `beat` after each. After a
    /// failure it has to connect again, and go on from where the topic ends then.
    ///
    /// # Errors
    /// Any [`ReplicationFault`].
    pub fn ship(&mut self, frames: &[Frame], beat: &dyn Fn()) -> Result<(), ReplicationFault> {
        let (mut messages, mut size) = (Vec::new(), 0);
        for frame in frames {
            let mut bytes = Vec::new();
            frame.write_to(&mut bytes).map_err(|error| ReplicationFault::Unwritable(error.to_string()))?;
            if size > 0 && size + bytes.len() > TRANSACTION_BYTES {
                self.send(&std::mem::take(&mut messages))?;
                beat();
                size = 0;
            }
            size += bytes.len();
            self.cut(frame, &bytes, &mut messages)?;
        }
        if messages.is_empty() { Ok(()) } else { self.send(&messages) }
    }

    /// The messages of a frame.
    fn cut(&self, frame: &Frame, bytes: &[u8], out: &mut Vec<Message>) -> Result<(), ReplicationFault> {
        let identity =
            Frame::identity_of(bytes).map_err(|error| ReplicationFault::Unwritable(error.to_string()))?;
        let pieces = u32::try_from(bytes.len().div_ceil(PIECE_BYTES)).unwrap_or(u32::MAX);
        for (piece, value) in (0..pieces).zip(bytes.chunks(PIECE_BYTES)) {
            let (first, end) = (frame.batch.first, frame.batch.end());
            let head = FrameHead { term: self.term, first, end, identity, piece, pieces };
            // A key for tools that show one; readers do not need it.
            let key = first.0.to_be_bytes().to_vec();
            out.push(Message { key, value: Some(value.to_vec()), head: head.to_bytes() });
        }
        Ok(())
    }

    fn send(&mut self, messages: &[Message]) -> Result<(), ReplicationFault> {
        let Some(transactions) = &self.transactions else {
            return Err(ReplicationFault::Unwritable("the producer is not connected".to_owned()));
        };
        let sent = transactions.send(messages);
        if sent.is_err() {
            self.transactions = None;
        }
        Ok(sent?)
    }
}

/// Where the topic of frames ends.
///
/// # Errors
/// When the topic is not there or cannot be read.
pub fn shipped(options: &ReplicationOptions) -> Result<Shipped, ReplicationFault> {
    let topic = options.frames();
    let is_long = |record: &Record| head_of(&topic, record).is_ok_and(|head| head.first < head.end);
    let last = TopicReader::open(options, &topic)?.last(is_long)?;
    let head = last.map(|record| head_of(&topic, &record)).transpose()?;
    Ok(head.map_or_else(Shipped::default, |head| Shipped { end: head.end, identity: head.identity }))
}

/// A producer for a topic, and the term under which it writes: a leader that begins takes a higher one than there is,
/// and one that goes on keeps its own, which nobody may have passed. The term is written at once, so that whoever was
/// passed finds it before it fences anybody.
pub(super) fn take_over(
    options: &ReplicationOptions,
    topic: &str,
    own: u64,
    is_first: bool,
) -> Result<(Transactions, u64), ReplicationFault> {
    let reader = TopicReader::open(options, topic)?;
    let found = || -> Result<u64, ReplicationFault> {
        let last = reader.last(|record| term_of(&record.head).is_some())?;
        Ok(last.and_then(|record| term_of(&record.head)).unwrap_or_default())
    };
    let held = |found: u64| match found > own && !is_first {
        true => Err(ReplicationFault::Superseded { topic: topic.to_owned(), term: found, own }),
        false => Ok(found),
    };
    held(found()?)?;
    let transactions = Transactions::open(options, topic)?;
    // Once more: what was on its way is there now, or never will be.
    let found = held(found()?)?;
    let term = if is_first { own.max(found.saturating_add(1)) } else { own };
    transactions.send(&[claim_message(term)])?;
    Ok((transactions, term))
}

fn head_of(topic: &str, record: &Record) -> Result<FrameHead, ReplicationFault> {
    FrameHead::parse(&record.head).ok_or_else(|| ReplicationFault::Malformed {
        topic: topic.to_owned(),
        offset: record.offset,
        detail: format!("its header has {} bytes that say nothing", record.head.len()),
    })
}

/// Reads frames.
pub struct FrameReader {
    reader: TopicReader,
    topic: String,
    /// What was read, and where the next frame begins.
    position: Shipped,
    /// The frame that the log ends with, to be compared with the topic's.
    last: Option<Shipped>,
    /// Pieces of a frame that is not whole yet.
    pieces: Vec<u8>,
    next_piece: u32,
    /// Length of the frame that was given last.
    bytes: usize,
}

impl FrameReader {
    /// A reader of what follows a log that ends with `last`.
    ///
    /// # Errors
    /// When the topic is not there or cannot be read.
    pub fn open(options: &ReplicationOptions, last: Shipped) -> Result<Self, ReplicationFault> {
        let topic = options.frames();
        let reader = TopicReader::open(options, &topic)?;
        let (position, last) = (last, (last.identity != 0).then_some(last));
        let pieces = Vec::new();
        let found = Self { reader, topic, position, last, pieces, next_piece: 0, bytes: 0 };
        found.reader.seek(found.place()?)?;
        Ok(found)
    }

    /// What was read.
    #[must_use]
    pub fn position(&self) -> Shipped {
        self.position
    }

    /// Length of the frame that was given last, bytes.
    #[must_use]
    pub fn frame_bytes(&self) -> usize {
        self.bytes
    }

    /// An offset before the message that the log ends with, and not far before it.
    fn place(&self) -> Result<i64, ReplicationFault> {
        let (mut low, mut high) = self.reader.range()?;
        while high - low > CLOSE_ENOUGH {
            let middle = low + (high - low) / 2;
            let record = self.reader.at(middle)?;
            // A claim says nothing about frames: what is behind it is not passed.
            let head = record.and_then(|record| head_of(&self.topic, &record).ok());
            // Of frames that end there, the first is wanted whole.
            if head.is_some_and(|head| head.end < self.position.end) { low = middle } else { high = middle }
        }
        Ok(low)
    }

    /// The next frame that the log does not have, if one comes within `wait`. Where many are passed that it has, there
    /// may be none although more is there.
    ///
    /// # Errors
    /// The topic holds another log, or does not go on where this one ends, or cannot be read.
    pub fn next(&mut self, wait: Duration) -> Result<Option<Frame>, ReplicationFault> {
        for _ in 0..PASSED_MAX {
            let Next::Record(record) = self.reader.next(wait)? else { break };
            let frame = self.take(record)?;
            if frame.is_some() {
                return Ok(frame);
            }
        }
        Ok(None)
    }

    fn take(&mut self, record: Record) -> Result<Option<Frame>, ReplicationFault> {
        if record.key == CLAIM {
            return Ok(None);
        }
        let head = head_of(&self.topic, &record)?;
        let value = record.value.unwrap_or_default();
        if head.piece != self.next_piece && head.piece > 0 {
            // Its beginning lies before the place where reading began.
            (self.next_piece, self.pieces) = (0, Vec::new());
            return self.passed(&head).map(|()| None);
        }
        if head.piece == 0 {
            self.pieces.clear();
        }
        if self.pieces.len() + value.len() > FRAME_BYTES_MAX {
            let detail = format!("its frame is longer than {FRAME_BYTES_MAX} bytes");
            return Err(ReplicationFault::Malformed {
                topic: self.topic.clone(),
                offset: record.offset,
                detail,
            });
        }
        self.pieces.extend_from_slice(&value);
        self.next_piece = head.piece + 1;
        if self.next_piece < head.pieces {
            return Ok(None);
        }
        self.next_piece = 0;
        let bytes = std::mem::take(&mut self.pieces);
        let expected = self.position.end;
        if head.end < expected || (head.first < head.end && head.end == expected) {
            return self.passed(&head).map(|()| None);
        }
        if head.first < expected {
            return Err(ReplicationFault::Foreign { topic: self.topic.clone(), position: head.end });
        }
        if head.first > expected {
            let (topic, found) = (self.topic.clone(), head.first);
            return Err(ReplicationFault::Gap { topic, expected, found });
        }
        let malformed = |detail: String| {
            let (topic, offset) = (self.topic.clone(), record.offset);
            ReplicationFault::Malformed { topic, offset, detail }
        };
        let frame = Frame::from_bytes(&bytes).map_err(|error| malformed(error.to_string()))?;
        if (frame.batch.first, frame.batch.end()) != (head.first, head.end) {
            return Err(malformed("its frame is of another position than its header".to_owned()));
        }
        self.bytes = bytes.len();
        if head.first < head.end {
            self.position = Shipped { end: head.end, identity: head.identity };
        }
        Ok(Some(frame))
    }

    /// Passes a frame that the log has; it has to be the same one.
    fn passed(&mut self, head: &FrameHead) -> Result<(), ReplicationFault> {
        match self.last {
            Some(last) if head.end == last.end && head.first < head.end => {
                self.last = None;
                if head.identity == last.identity {
                    return Ok(());
                }
                Err(ReplicationFault::Foreign { topic: self.topic.clone(), position: last.end })
            }
            _ => Ok(()),
        }
    }
}
