//! A pushed body as its events: one JSON object, an array of them, or one a line. The body is cut into events
//! before any is decoded, and the cutting stops at the first event above the limit, so that a small body
//! of very many tiny events costs no more than one that is within the limit.

use std::cell::Cell;
use std::fmt;

use serde::de::{Deserializer, Error, IgnoredAny, SeqAccess, Visitor};
use serde_json::value::RawValue;

use super::decode::first_byte;
use crate::event::BodyFormat;

/// Why a body as a whole cannot be taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BodyError {
    /// It cannot be read; the text names the place.
    Malformed(String),
    /// It has more events than the limit.
    TooMany,
}

/// Cuts a body into its messages, `limit` at most, without reading them.
///
/// # Errors
/// When the body as a whole cannot be read or has more messages.
pub fn cut_body(body: &[u8], format: BodyFormat, limit: usize) -> Result<Vec<&[u8]>, BodyError> {
    match (format, first_byte(body)) {
        (_, None) => Err(BodyError::Malformed("it is empty; send at least one JSON object".into())),
        (BodyFormat::JsonLines, _) => lines(body, limit),
        (BodyFormat::Json, Some(b'[')) => items(body, limit),
        (BodyFormat::Json, Some(b'{')) => {
            serde_json::from_slice::<IgnoredAny>(body).map_err(|e| BodyError::Malformed(e.to_string()))?;
            Ok(vec![body])
        }
        (BodyFormat::Json, Some(_)) => {
            Err(BodyError::Malformed("expected a JSON object or an array of objects".into()))
        }
    }
}

fn lines(body: &[u8], limit: usize) -> Result<Vec<&[u8]>, BodyError> {
    let mut events = Vec::new();
    for line in body.split(|&b| b == b'\n').map(<[u8]>::trim_ascii).filter(|line| !line.is_empty()) {
        if events.len() == limit {
            return Err(BodyError::TooMany);
        }
        events.push(line);
    }
    Ok(events)
}

fn items(body: &[u8], limit: usize) -> Result<Vec<&[u8]>, BodyError> {
    let too_many = Cell::new(false);
    let mut json = serde_json::Deserializer::from_slice(body);
    let read = json
        .deserialize_seq(Items { limit, too_many: &too_many })
        .and_then(|events| json.end().map(|()| events));
    read.map_err(
        |error| {
            if too_many.get() { BodyError::TooMany } else { BodyError::Malformed(error.to_string()) }
        },
    )
}

/// Collects the bytes of an array's elements, and gives up at the first one above the limit.
struct Items<'t> {
    limit: usize,
    too_many: &'t Cell<bool>,
}

impl<'de> Visitor<'de> for Items<'_> {
    type Value = Vec<&'de [u8]>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array of objects")
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
        let mut events = Vec::new();
        while let Some(item) = seq.next_element::<&'de RawValue>()? {
            if events.len() == self.limit {
                self.too_many.set(true);
                return Err(A::Error::custom("too many events"));
            }
            events.push(item.get().as_bytes());
        }
        Ok(events)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::ingest::decode::Decoder;
    use crate::ingest::rejection::Reason;

    fn cut(body: &str, format: BodyFormat) -> Result<Vec<&[u8]>, BodyError> {
        cut_body(body.as_bytes(), format, 4)
    }

    /// Why each message is no event, if it is none.
    fn judged(messages: &[&[u8]]) -> Vec<Option<Reason>> {
        let decoder = Decoder::default();
        messages.iter().map(|raw| decoder.event(raw).err().map(|rejection| rejection.reason)).collect()
    }

    #[test]
    fn bodies_are_judged_event_by_event() {
        let good = r#"{"src":1,"dst":2,"ts":0}"#;
        let array = format!("[{good}, {{\"src\":1}},\n 5, {good}]");
        let found = cut(&array, BodyFormat::Json).unwrap();
        let reasons = [None, Some(Reason::MissingField), Some(Reason::MalformedJson), None];
        assert_eq!(judged(&found), reasons);
        assert_eq!(found[1], br#"{"src":1}"#);

        let lines = format!("{good}\r\n\n  \n{{ broken\n{good}");
        let found = cut(&lines, BodyFormat::JsonLines).unwrap();
        assert_eq!(judged(&found), [None, Some(Reason::MalformedJson), None]);
        assert_eq!(cut(good, BodyFormat::Json).unwrap().len(), 1);
        for bad in ["", " \n", "[", "[{]", "{\"src\":", "7", "\"x\""] {
            assert!(matches!(cut(bad, BodyFormat::Json), Err(BodyError::Malformed(_))), "{bad:?}");
        }
        assert!(cut("[]", BodyFormat::Json).unwrap().is_empty());
    }

    #[test]
    fn a_body_of_very_many_events_is_refused_before_it_is_read() {
        // Only what stands before the event above the limit is checked: what follows is no JSON.
        let tail = "\u{1}".repeat(1 << 20);
        for (body, format) in [
            (format!("1\n1\n\n1\n1\n1\n{tail}"), BodyFormat::JsonLines),
            (format!("[1, 1,1,1,{{}},{tail}"), BodyFormat::Json),
        ] {
            assert_eq!(cut(&body, format).unwrap_err(), BodyError::TooMany);
        }
        assert_eq!(cut("[1,1,1,1]", BodyFormat::Json).unwrap().len(), 4);
        assert_eq!(cut("1\n1\n1\n1\n", BodyFormat::JsonLines).unwrap().len(), 4);
        let malformed = cut("[1,1,1,1] 5", BodyFormat::Json).unwrap_err();
        assert!(matches!(malformed, BodyError::Malformed(_)), "{malformed:?}");
    }

    proptest! {
        #[test]
        fn no_body_panics(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            for format in [BodyFormat::Json, BodyFormat::JsonLines] {
                let _ = cut_body(&bytes, format, 10);
            }
        }
    }
}
