//! Avro's binary encoding as values that serde reads, in one pass and within bounds. JSON text is one of the things
//! that they can be read as:
//!
//! | Avro | JSON |
//! | --- | --- |
//! | record, map | object |
//! | union | the value of its branch, without the branch's name |
//! | enum, uuid, decimal | text; a decimal as in `19.90` |
//! | bytes, fixed | text with a character a byte, as in Avro's own JSON encoding |
//! | date, time, timestamp | the integer that it is |
//! | a float that is not finite | the text `NaN`, `Infinity` or `-Infinity` |
//!
//! The bytes come from outside, and so does the schema. The depth of a value and the number of values in it are
//! bounded, so neither lengths that are claimed nor types that take no bytes cost more than that. It is our own reader
//! because of these bounds: that of `apache-avro` follows a value as deep as it goes, on the stack. `schema` has the
//! types, `value` what stands in the bytes.

mod fault;
mod schema;
mod value;

use std::fmt;

use serde::de::DeserializeSeed;
use thiserror::Error;

use self::fault::Fault;
use self::schema::Node;
use self::value::Reader;
use super::text::Text;

/// A schema by which values are read.
pub struct AvroSchema(Vec<Node>);

impl fmt::Debug for AvroSchema {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AvroSchema")
    }
}

/// Why bytes are no value.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum AvroError {
    /// It has too many values, or its text would be too long.
    #[error("the value is too large")]
    TooLarge,
    /// They are not what the schema describes.
    #[error("{}{why}", place(at))]
    Undecodable {
        /// The field, as a pointer from the root.
        at: String,
        /// What is wrong there.
        why: String,
    },
    /// Whoever reads takes no such value.
    #[error("{}{why}", place(at))]
    Unexpected {
        /// The field, as a pointer from the root.
        at: String,
        /// What is wrong there.
        why: String,
    },
}

fn place(at: &str) -> String {
    if at.is_empty() { String::new() } else { format!("{at}: ") }
}

impl AvroSchema {
    /// Reads a schema, and the schemas of the types that it refers to.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(schema: &str, references: &[String]) -> Result<Self, String> {
        schema::parse(schema, references).map(Self)
    }

    /// Reads bytes as what `seed` makes of them. No more than `values_max` values are looked at, fields and elements
    /// included; the visitors of the seed read maps and sequences to their ends.
    ///
    /// # Errors
    /// When the bytes are not what the schema describes, or not all of them, or the seed takes no such value.
    pub fn read<'a, S: DeserializeSeed<'a>>(
        &'a self,
        bytes: &'a [u8],
        values_max: usize,
        seed: S,
    ) -> Result<S::Value, AvroError> {
        let mut reader = Reader::new(&self.0, bytes, values_max);
        let read = seed.deserialize(reader.value()).and_then(|value| reader.end().map(|()| value));
        read.map_err(|fault| reader.explain(fault))
    }

    /// Reads a value as JSON text of at most `bytes_max` bytes.
    ///
    /// # Errors
    /// When the bytes are not what the schema describes, or not all of them, or the text would be longer.
    pub fn to_json(&self, bytes: &[u8], bytes_max: usize) -> Result<Vec<u8>, AvroError> {
        let mut reader = Reader::new(&self.0, bytes, bytes_max);
        let mut json = serde_json::Serializer::new(Text::new(bytes_max));
        let written = serde_transcode::transcode(reader.value(), &mut json);
        match (written, json.into_inner().finish()) {
            (_, None) => Err(AvroError::TooLarge),
            (Err(error), _) => Err(reader.explain(Fault::Bytes(error.to_string()))),
            (Ok(()), Some(text)) => reader.end().map(|()| text).map_err(|fault| reader.explain(fault)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(schema: &str, bytes: &[u8]) -> Result<String, AvroError> {
        let schema = AvroSchema::parse(schema, &[]).unwrap();
        schema.to_json(bytes, 1000).map(|text| String::from_utf8(text).unwrap())
    }

    #[test]
    fn every_type_has_its_form() {
        let float = 0.1_f32.to_le_bytes();
        for (schema, bytes, expected) in [
            ("\"null\"", &[][..], "null"),
            ("\"boolean\"", &[1], "true"),
            ("\"int\"", &[3], "-2"),
            ("\"long\"", &[0x80, 0x01], "64"),
            ("\"float\"", &float, "0.1"),
            ("\"double\"", &f64::NAN.to_le_bytes(), "\"NaN\""),
            ("\"string\"", &[4, b'a', b'"'], "\"a\\\"\""),
            ("\"bytes\"", &[4, b'a', 0xff], "\"aÿ\""),
            (r#"{"type":"array","items":"int"}"#, &[4, 2, 4, 0], "[1,2]"),
            (r#"{"type":"array","items":"int"}"#, &[0], "[]"),
            (r#"{"type":"map","values":"int"}"#, &[2, 2, b'k', 6, 0], "{\"k\":3}"),
            (r#"["null","string"]"#, &[0], "null"),
            (r#"["null","string"]"#, &[2, 2, b'x'], "\"x\""),
            (r#"{"type":"enum","name":"E","symbols":["A","B"]}"#, &[2], "\"B\""),
            (r#"{"type":"fixed","name":"F","size":2}"#, b"hi", "\"hi\""),
            (r#"{"type":"record","name":"R","fields":[]}"#, &[], "{}"),
            (
                r#"{"type":"record","name":"R","fields":[{"name":"a","type":"int"},{"name":"b","type":["null","R"]}]}"#,
                &[2, 2, 4, 0],
                "{\"a\":1,\"b\":{\"a\":2,\"b\":null}}",
            ),
            (r#"{"type":"long","logicalType":"timestamp-millis"}"#, &[2], "1"),
            (
                r#"{"type":"bytes","logicalType":"decimal","precision":9,"scale":2}"#,
                &[4, 0x07, 0xc6],
                "\"19.90\"",
            ),
            (r#"{"type":"bytes","logicalType":"decimal","precision":9,"scale":2}"#, &[2, 0xff], "\"-0.01\""),
            (r#"{"type":"bytes","logicalType":"decimal","precision":2,"scale":9}"#, &[2, b'a'], "\"a\""),
        ] {
            assert_eq!(read(schema, bytes).as_deref(), Ok(expected), "{schema}");
        }
    }

    #[test]
    fn what_is_wrong_is_named_with_its_field() {
        let schema = r#"{"type":"record","name":"R","fields":[{"name":"a","type":{"type":"record","name":"S",
            "fields":[{"name":"b","type":["null","string"]}]}}]}"#;
        assert_eq!(read(schema, &[4]).unwrap_err().to_string(), "/a/b: there is no branch 2");
        assert_eq!(
            read(schema, &[2, 6, b'x']).unwrap_err().to_string(),
            "/a/b: 3 bytes should follow, and 1 are left"
        );
    }

    #[test]
    fn integers_are_zigzag_up_to_their_limits() {
        for (bytes, expected) in [
            (&[0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01][..], "9223372036854775807"),
            (&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01], "-9223372036854775808"),
            (&[1], "-1"),
        ] {
            assert_eq!(read("\"long\"", bytes).as_deref(), Ok(expected));
        }
        assert!(read("\"long\"", &[0xff; 11]).is_err());
        assert!(
            read("\"int\"", &[0x80, 0x80, 0x80, 0x80, 0x10]).unwrap_err().to_string().contains("is no int")
        );
    }

    #[test]
    fn types_of_other_schemas_are_known() {
        let main = r#"{"type":"record","name":"R","fields":[{"name":"a","type":"shop.Id"}]}"#;
        assert!(AvroSchema::parse(main, &[]).unwrap_err().contains("shop.Id"));
        let id = r#"{"type":"record","name":"Id","namespace":"shop","fields":[{"name":"n","type":"int"}]}"#;
        let schema = AvroSchema::parse(main, &[id.to_owned()]).unwrap();
        assert_eq!(schema.to_json(&[2], 99).unwrap(), b"{\"a\":{\"n\":1}}");
    }

    #[test]
    fn lengths_that_are_claimed_take_no_memory_and_depth_no_stack() {
        let said = |schema: &str, bytes: &[u8]| read(schema, bytes).unwrap_err().to_string();
        let nulls = r#"{"type":"array","items":"null"}"#;
        let many = [&[0xfe, 0xff, 0xff, 0xff, 0xff, 0x0f][..], &[0]].concat();
        assert_eq!(read(nulls, &many), Err(AvroError::TooLarge), "a milliard of nothing");
        assert!(said("\"string\"", &[0xfe, 0xff, 0xff, 0x0f, b'a']).contains("are left"));
        let list = r#"{"type":"record","name":"L","fields":[{"name":"next","type":["null","L"]}]}"#;
        let deep = [vec![2; 100_000], vec![0]].concat();
        assert!(said(list, &deep).contains("levels deep"));
        assert!(read(list, &[2, 2, 2, 0]).is_ok());
        let twice =
            r#"{"type":"record","name":"A","fields":[{"name":"a","type":"A"},{"name":"b","type":"A"}]}"#;
        assert!(read(twice, &[]).is_err(), "a record of itself");
        assert_eq!(said("\"int\"", &[2, 2]), "1 bytes are left behind its end");
        for schema in ["", "7", "\"word\"", "{\"type\":\"record\"}", "[[\"null\"]"] {
            assert!(AvroSchema::parse(schema, &[]).is_err(), "{schema}");
        }
        assert!(AvroSchema::parse(&"[".repeat(100_000), &[]).is_err());
    }
}
