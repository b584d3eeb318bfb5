//! Protobuf's wire format to JSON text, by the text of a schema.
//!
//! A schema is a file of messages; before each value stands which of them it is: the places of the message and of those
//! around it, as a count and so many numbers in Protobuf's variable length, or a 0 for the first message of the file.
//!
//! The text is Protobuf's own mapping to JSON, with the names that fields have in the schema: an enumeration is the
//! name of its value, bytes are base64, `google.protobuf.Timestamp` is a time of RFC 3339, and a field without a value
//! has that of its type, unless it is `optional`. But 64-bit integers are numbers, as everywhere here.
//!
//! The bytes come from outside, and so does the schema. Both are bounded: the depth of a schema, which is parsed on the
//! stack, the depth of a value by `prost`, and the length of either text. A `google.protobuf.Any` is not read: it would
//! be as deep as its bytes.

use std::collections::HashMap;
use std::fmt;

use prost_reflect::{
    DynamicMessage, FileDescriptor, MessageDescriptor, ReflectMessage, SerializeOptions, Value,
};
use protox::file::{ChainFileResolver, File, FileResolver, GoogleFileResolver};
use thiserror::Error;

use super::text::Text;

/// The name of a schema's own file: no import has a space.
const ROOT: &str = "the schema";
/// Deepest braces of a schema.
const SCHEMA_DEPTH_MAX: usize = 100;
/// Most messages around one.
const PLACES_MAX: u64 = 64;

/// The message that holds bytes of another one, whichever.
const ANY: &str = "google.protobuf.Any";

/// A schema by which values are read.
pub struct ProtobufSchema {
    file: FileDescriptor,
    /// Whether a value may hold an [`ANY`].
    has_any: bool,
}

impl fmt::Debug for ProtobufSchema {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ProtobufSchema")
    }
}

/// Why bytes are no value.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ProtobufError {
    /// The text would be too long.
    #[error("the value is too large")]
    TooLarge,
    /// They are not what the schema describes.
    #[error("{0}")]
    Undecodable(String),
}

fn undecodable(why: impl Into<String>) -> ProtobufError {
    ProtobufError::Undecodable(why.into())
}

/// Files by their names.
struct Texts(HashMap<String, String>);

impl FileResolver for Texts {
    fn open_file(&self, name: &str) -> Result<File, protox::Error> {
        let text = self.0.get(name).ok_or_else(|| protox::Error::file_not_found(name))?;
        File::from_source(name, text)
    }
}

impl ProtobufSchema {
    /// Reads the text of a schema, and those of the files that it imports, by the names under which it does.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(schema: &str, references: &[(String, String)]) -> Result<Self, String> {
        let mut texts: HashMap<String, String> = references.iter().cloned().collect();
        texts.insert(ROOT.to_owned(), schema.to_owned());
        if texts.values().any(|text| depth(text) > SCHEMA_DEPTH_MAX) {
            return Err(format!("it is more than {SCHEMA_DEPTH_MAX} levels deep"));
        }
        let mut resolver = ChainFileResolver::new();
        resolver.add(Texts(texts));
        resolver.add(GoogleFileResolver::new());
        let mut compiler = protox::Compiler::with_file_resolver(resolver);
        compiler.open_file(ROOT).map_err(|error| error.to_string())?;
        let file = compiler.descriptor_pool().get_file_by_name(ROOT);
        let file = file.ok_or_else(|| "it describes nothing".to_owned())?;
        let has_any = file.parent_pool().get_message_by_name(ANY).is_some();
        Ok(Self { file, has_any })
    }

    /// Reads a value, and the places of its message before it, as JSON text of at most `bytes_max` bytes.
    ///
    /// # Errors
    /// When the bytes are not what the schema describes, or they or the text would be longer.
    pub fn to_json(&self, bytes: &[u8], bytes_max: usize) -> Result<Vec<u8>, ProtobufError> {
        if bytes.len() > bytes_max {
            return Err(ProtobufError::TooLarge);
        }
        let mut value = bytes;
        let message = self.message(&mut value)?;
        let message =
            DynamicMessage::decode(message, value).map_err(|error| undecodable(error.to_string()))?;
        // Its JSON is that of what it holds, which may be another one, as deep as bytes go.
        if self.has_any && holds_any(&message) {
            return Err(undecodable(format!("it has a {ANY}, which is not read")));
        }
        let options = SerializeOptions::new()
            .stringify_64_bit_integers(false)
            .use_proto_field_name(true)
            .skip_default_fields(false);
        let mut json = serde_json::Serializer::new(Text::new(bytes_max));
        let written = message.serialize_with_options(&mut json, &options);
        let text = json.into_inner().finish().ok_or(ProtobufError::TooLarge)?;
        written.map(|()| text).map_err(|error| undecodable(error.to_string()))
    }

    /// The message that a value is, by the places before it.
    fn message(&self, bytes: &mut &[u8]) -> Result<MessageDescriptor, ProtobufError> {
        let count = number(bytes)?;
        if count > PLACES_MAX {
            return Err(undecodable(format!("its message would be {count} levels deep")));
        }
        let nowhere = |place| undecodable(format!("the schema has no message at place {place}"));
        let first = if count == 0 { 0 } else { number(bytes)? };
        let at = |place: u64, mut messages: Messages<'_>| {
            usize::try_from(place).ok().and_then(|place| messages.nth(place)).ok_or_else(|| nowhere(place))
        };
        let mut message = at(first, Box::new(self.file.messages()))?;
        for _ in 1..count {
            let place = number(bytes)?;
            let found = at(place, Box::new(message.child_messages()))?;
            message = found;
        }
        Ok(message)
    }
}

/// Whether a message, or one in it, is an [`ANY`]. Messages are as deep as they were decoded.
fn holds_any(message: &DynamicMessage) -> bool {
    fn of(value: &Value) -> bool {
        match value {
            Value::Message(message) => holds_any(message),
            Value::List(values) => values.iter().any(of),
            Value::Map(values) => values.values().any(of),
            _ => false,
        }
    }
    message.descriptor().full_name() == ANY || message.fields().any(|(_, value)| of(value))
}

type Messages<'a> = Box<dyn Iterator<Item = MessageDescriptor> + 'a>;

/// A number of variable length, zigzag, that is not negative.
fn number(bytes: &mut &[u8]) -> Result<u64, ProtobufError> {
    let mut raw = 0_u64;
    for shift in (0..64).step_by(7) {
        let Some((&byte, rest)) = bytes.split_first() else {
            return Err(undecodable("it ends before the place of its message"));
        };
        *bytes = rest;
        raw |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return if raw & 1 == 0 {
                Ok(raw >> 1)
            } else {
                Err(undecodable("the place of its message is negative"))
            };
        }
    }
    Err(undecodable("the place of its message has more than 64 bits"))
}

/// How many braces of a text are open at a time; those in texts and comments count as well.
fn depth(text: &str) -> usize {
    let mut open = (0_usize, 0_usize);
    for byte in text.bytes() {
        match byte {
            b'{' | b'[' | b'(' | b'<' => open.0 += 1,
            b'}' | b']' | b')' | b'>' => open.0 = open.0.saturating_sub(1),
            _ => {}
        }
        open.1 = open.1.max(open.0);
    }
    open.1
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCHEMA: &str = r#"
        syntax = "proto3";
        package shop;
        import "google/protobuf/timestamp.proto";
        import "parts/item.proto";
        message Order {
            message Line { string sku = 1; repeated sint32 counts = 2; }
            int64 id = 1;
            optional string note = 2;
            State state = 3;
            google.protobuf.Timestamp at = 4;
            Line line = 5;
            map<string, double> prices = 6;
            bytes raw = 7;
            Order before = 8;
            parts.Item item = 9;
        }
        enum State { OPEN = 0; PAID = 1; }
        message Other { bool on = 1; }
    "#;

    fn schema() -> ProtobufSchema {
        let item = "syntax = \"proto3\"; package parts; message Item { uint32 n = 1; }".to_owned();
        ProtobufSchema::parse(SCHEMA, &[("parts/item.proto".to_owned(), item)]).unwrap()
    }

    fn read(bytes: &[u8]) -> Result<serde_json::Value, ProtobufError> {
        schema().to_json(bytes, 1000).map(|text| serde_json::from_slice(&text).unwrap())
    }

    #[test]
    fn fields_have_the_names_of_the_schema_and_the_forms_of_json() {
        let bytes = [
            &[0][..],                                                       // the first message
            &[8, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f],           // id
            &[0x18, 1],                                                     // state
            &[0x22, 4, 8, 100, 0x10, 0],                                    // at
            &[0x2a, 7, 0x0a, 1, b'x', 0x12, 2, 1, 4],                       // line
            &[0x32, 12, 0x0a, 1, b'p', 0x11, 0, 0, 0, 0, 0, 0, 0xf8, 0x3f], // prices
            &[0x3a, 2, 0xff, 0],                                            // raw
            &[0x4a, 2, 8, 7],                                               // item
        ];
        let found = read(&bytes.concat()).unwrap();
        assert_eq!(found["id"], 72_057_594_037_927_935_i64);
        assert_eq!((&found["state"], &found["at"]), (&"PAID".into(), &"1970-01-01T00:01:40Z".into()));
        assert_eq!(found["line"], serde_json::json!({ "sku": "x", "counts": [-1, 2] }));
        assert_eq!((&found["prices"]["p"], &found["raw"]), (&1.5.into(), &"/wA=".into()));
        assert_eq!(found["item"]["n"], 7);
        assert!(found.get("note").is_none_or(serde_json::Value::is_null), "{found}");
        let empty = read(&[0]).unwrap();
        assert_eq!((&empty["id"], &empty["state"]), (&0.into(), &"OPEN".into()), "{empty}");
    }

    #[test]
    fn a_value_is_of_the_message_whose_place_stands_before_it() {
        assert_eq!(read(&[2, 2, 8, 1]).unwrap(), serde_json::json!({ "on": true }));
        let line = read(&[4, 0, 0, 0x0a, 1, b'y']).unwrap();
        assert_eq!(line, serde_json::json!({ "sku": "y", "counts": [] }));
        for (bytes, words) in [
            (&[][..], "ends before the place"),
            (&[2, 8], "no message at place 4"),
            (&[4, 2, 0], "no message at place 0"),
            (&[1, 0], "negative"),
            (&[0xfe, 0xff, 0x03, 0], "levels deep"),
            (&[0xff; 12], "more than 64 bits"),
            (&[0, 8], "varint"),
            (&[0, 0x2a, 9, 1], "underflow"),
        ] {
            let said = read(bytes).unwrap_err().to_string();
            assert!(said.contains(words), "{bytes:?}: {said}");
        }
    }

    #[test]
    fn neither_schemas_nor_values_take_more_than_their_bounds() {
        let refused = |text: &str| ProtobufSchema::parse(text, &[]).unwrap_err();
        assert!(refused(&"message A {".repeat(100_000)).contains("levels deep"));
        assert!(refused("syntax = \"proto3\"; import \"a.proto\";").contains("a.proto"));
        for text in ["", "{", "message", "syntax = \"proto3\"; message A { B b = 1; }", "\u{0}"] {
            // An empty file describes no message.
            let parsed = ProtobufSchema::parse(text, &[]);
            assert!(parsed.map_or(true, |schema| schema.to_json(&[0], 99).is_err()), "{text}");
        }
        let deep = (0..50_000).fold(Vec::new(), |inner: Vec<u8>, _| {
            if inner.len() > 900 {
                inner
            } else {
                [&[0x42, 0x80 | (inner.len() & 0x7f) as u8, (inner.len() >> 7) as u8][..], &inner].concat()
            }
        });
        assert!(read(&[&[0][..], &deep].concat()).is_err(), "too deep, or too large as JSON");
        let many = [&[0, 0x2a, 0xf3, 0x03, 0x12, 0xf0, 0x03][..], &[0; 496]].concat();
        assert_eq!(schema().to_json(&many, 600), Err(ProtobufError::TooLarge));
        assert!(schema().to_json(&many, 6000).is_ok());
        assert_eq!(schema().to_json(&many, 100), Err(ProtobufError::TooLarge));
    }
}
