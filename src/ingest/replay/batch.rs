//! A batch of rows until it is durable. What the log can never store is taken out of it with the text of its row, which
//! is its dead letter's, or it is halved, where it is too large as a whole.

use std::ops::Range;

use crate::event::{EventBatch, Incoming, UnstorableEvent};
use crate::ingest::dead_letter::DeadLetter;
use crate::ingest::rows::Rows;

/// A batch and the dead letters that come before it.
#[derive(Default)]
pub(super) struct Batch {
    pub events: EventBatch,
    pub letters: Vec<DeadLetter>,
    /// The rows of all events.
    texts: String,
    /// Where the row of each event stands there.
    spans: Vec<Range<usize>>,
}

/// An event that was taken out of its batch.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Removed {
    pub row: i64,
    pub text: String,
    pub detail: String,
}

impl Batch {
    /// Adds the event of a row, which is the current one of `reader`.
    pub fn push(&mut self, incoming: Incoming, row: i64, reader: &Rows) {
        let start = self.texts.len();
        reader.add_row_text(&mut self.texts);
        self.spans.push(start..self.texts.len());
        self.events.events.push(incoming);
        self.events.offsets.push(row);
    }

    /// The rows that it accounts for.
    pub fn rows(&self) -> Range<i64> {
        self.events.ranges.first().map_or(0..0, |range| range.from..range.to)
    }

    /// Takes out the events that the log named, or the only one where it named none.
    pub fn take_out(&mut self, mut named: Vec<UnstorableEvent>, detail: String) -> Vec<Removed> {
        if named.is_empty() && self.spans.len() == 1 {
            named.push(UnstorableEvent { index: 0, offset: None, detail });
        }
        named.sort_by_key(|event| event.index);
        named.dedup_by_key(|event| event.index);
        named.retain(|event| event.index < self.spans.len());
        let text_of = |event: &UnstorableEvent| self.texts.get(self.spans[event.index].clone());
        let removed: Vec<Removed> = named
            .iter()
            .map(|event| Removed {
                row: self.events.offsets[event.index],
                text: text_of(event).unwrap_or_default().to_owned(),
                detail: event.detail.clone(),
            })
            .collect();
        let places: Vec<usize> = named.iter().map(|event| event.index).collect();
        leave_out(&mut self.spans, &places);
        leave_out(&mut self.events.events, &places);
        leave_out(&mut self.events.offsets, &places);
        removed
    }

    /// Leaves the first half of several events and returns the other one. Events of one row stay together.
    pub fn halve(&mut self) -> Option<Self> {
        let offsets = &self.events.offsets;
        let (&first, &middle) = (offsets.first()?, offsets.get(offsets.len() / 2)?);
        let starts_half = |offset: &i64| if middle > first { *offset == middle } else { *offset > first };
        let half = offsets.iter().position(starts_half)?;
        let (range, &middle) = (self.events.ranges.first_mut()?, self.events.offsets.get(half)?);
        let mut second = range.clone();
        (range.to, second.from) = (middle, middle);
        let events = EventBatch {
            events: self.events.events.split_off(half),
            offsets: self.events.offsets.split_off(half),
            ranges: vec![second],
            ..self.events
        };
        Some(Self {
            events,
            letters: Vec::new(),
            texts: self.texts.clone(),
            spans: self.spans.split_off(half),
        })
    }
}

/// Takes the items at these places, ascending, out of a list.
fn leave_out<T>(list: &mut Vec<T>, places: &[usize]) {
    let (mut place, mut left_out) = (0, places.iter().peekable());
    list.retain(|_| {
        let stays = left_out.next_if(|next| **next == place).is_none();
        place += 1;
        stays
    });
}
