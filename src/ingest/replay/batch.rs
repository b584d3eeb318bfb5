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
    /// The rows of all events, each once.
    texts: String,
    /// Where the row of each event stands there. Events of one row share it.
    spans: Vec<Range<usize>>,
}

/// A row whose events were taken out of their batch.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Removed {
    pub row: i64,
    pub text: String,
    pub detail: String,
}

impl Batch {
    /// Adds the event of a row, which is the current one of `reader`.
    pub fn push(&mut self, incoming: Incoming, row: i64, reader: &Rows) {
        let of_same_row = self.events.offsets.last().is_some_and(|last| *last == row);
        let span = match self.spans.last().filter(|_| of_same_row) {
            Some(span) => span.clone(),
            None => {
                let start = self.texts.len();
                reader.add_row_text(&mut self.texts);
                start..self.texts.len()
            }
        };
        self.spans.push(span);
        self.events.events.push(incoming);
        self.events.offsets.push(row);
    }

    /// The rows that it accounts for.
    pub fn rows(&self) -> Range<i64> {
        self.events.ranges.first().map_or(0..0, |range| range.from..range.to)
    }

    /// Takes out the rows of the events that the log named, or the only row where it named none. A row is stored whole
    /// or not at all.
    pub fn take_out(&mut self, mut named: Vec<UnstorableEvent>, detail: String) -> Vec<Removed> {
        let offsets = &self.events.offsets;
        if named.is_empty() && offsets.first() == offsets.last() {
            named.push(UnstorableEvent { index: 0, offset: None, detail });
        }
        named.sort_by_key(|event| event.index);
        let mut removed: Vec<Removed> = Vec::new();
        for event in named {
            let (Some(&row), Some(span)) = (offsets.get(event.index), self.spans.get(event.index)) else {
                continue;
            };
            if removed.last().is_none_or(|last| last.row < row) {
                let text = self.texts.get(span.clone()).unwrap_or_default().to_owned();
                removed.push(Removed { row, text, detail: event.detail });
            }
        }
        // Both ascend.
        let is_removed = |row: i64| removed.binary_search_by_key(&row, |removed| removed.row).is_ok();
        let places: Vec<usize> = (0..offsets.len()).filter(|&place| is_removed(offsets[place])).collect();
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
        let mut spans = self.spans.split_off(half);
        let start = spans.first().map_or(self.texts.len(), |span| span.start);
        let texts = self.texts.split_off(start);
        spans.iter_mut().for_each(|span| *span = span.start - start..span.end - start);
        let events = EventBatch {
            events: self.events.events.split_off(half),
            offsets: self.events.offsets.split_off(half),
            ranges: vec![second],
            ..self.events
        };
        Some(Self { events, letters: Vec::new(), texts, spans })
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Event;
    use crate::ingest::decode::DecodeOptions;

    #[test]
    fn events_of_a_row_share_its_text_and_the_halves_of_a_batch_have_their_own() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rows.csv");
        std::fs::write(&path, "src,dst,ts\na,b,0\nc,d,1\n").unwrap();
        let mut reader = Rows::open(&path, DecodeOptions::default(), None).unwrap();
        let mut batch = Batch::default();
        for row in 0..2 {
            reader.next_row().unwrap();
            for _ in 0..3 {
                batch.push(Incoming::new(Event::DeleteNode { key: row.into() }), row, &reader);
            }
        }
        assert_eq!(batch.texts, "a,b,0c,d,1");
        let range =
            crate::event::SourceRange { source: "f".into(), partition: 0, from: 0, to: 2, mark: None };
        batch.events.ranges.push(range);
        let mut second = batch.halve().unwrap();
        assert_eq!((batch.texts.as_str(), second.texts.as_str()), ("a,b,0", "c,d,1"));
        let removed = Removed { row: 1, text: "c,d,1".into(), detail: "x".into() };
        assert_eq!(second.take_out(Vec::new(), "x".into()), [removed]);
        assert!(second.events.events.is_empty() && second.halve().is_none());
    }
}
