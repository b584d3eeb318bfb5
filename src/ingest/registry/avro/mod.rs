//! Avro's binary encoding to JSON text, in one pass and within bounds.
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
//! The bytes come from outside, and so does the schema. The depth of a value and the length of the text are bounded,
//! and whatever is read adds to the text, so neither lengths that are claimed nor types that take no bytes cost more
//! than that. It is our own reader because of these bounds: that of `apache-avro` follows a value as deep as it goes,
//! on the stack.

mod schema;

use std::fmt;

use thiserror::Error;

use self::schema::Node;

/// Deepest value.
const DEPTH_MAX: usize = 64;
/// Longest decimal, in bytes.
const DECIMAL_BYTES_MAX: usize = 16;

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
    /// The text would be too long.
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
}

fn place(at: &str) -> String {
    if at.is_empty() { String::new() } else { format!("{at}: ") }
}

fn undecodable(why: impl Into<String>) -> AvroError {
    AvroError::Undecodable { at: String::new(), why: why.into() }
}

impl AvroError {
    /// The same in a field.
    fn below(self, name: &str) -> Self {
        match self {
            Self::Undecodable { at, why } => {
                Self::Undecodable { at: format!("/{}{at}", name.trim_matches('"')), why }
            }
            Self::TooLarge => Self::TooLarge,
        }
    }
}

impl AvroSchema {
    /// Reads a schema, and the schemas of the types that it refers to.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(schema: &str, references: &[String]) -> Result<Self, String> {
        schema::parse(schema, references).map(Self)
    }

    /// Reads a value as JSON text of at most `bytes_max` bytes.
    ///
    /// # Errors
    /// When the bytes are not what the schema describes, or not all of them, or the text would be longer.
    pub fn to_json(&self, bytes: &[u8], bytes_max: usize) -> Result<Vec<u8>, AvroError> {
        let text = Vec::with_capacity(bytes.len().saturating_mul(2).min(bytes_max));
        let mut value = Transcoder { nodes: &self.0, bytes, text, bytes_max };
        value.value(0, DEPTH_MAX)?;
        match value.bytes.len() {
            0 => Ok(value.text),
            left => Err(undecodable(format!("{left} bytes are left behind its end"))),
        }
    }
}

/// What is left to read, and the text so far.
struct Transcoder<'s, 'b> {
    nodes: &'s [Node],
    bytes: &'b [u8],
    text: Vec<u8>,
    bytes_max: usize,
}

impl<'b> Transcoder<'_, 'b> {
    fn value(&mut self, at: usize, depth: usize) -> Result<(), AvroError> {
        let nodes = self.nodes;
        let Some(depth) = depth.checked_sub(1) else {
            return Err(undecodable(format!("it is more than {DEPTH_MAX} levels deep")));
        };
        match nodes.get(at).ok_or_else(|| undecodable("the schema is not whole"))? {
            // Not a level of the value: such nodes follow one another only as far as the schema does.
            Node::Of(target) => self.value(*target, depth + 1),
            Node::Null => self.put(b"null"),
            Node::Boolean => match self.take(1)? {
                [0] => self.put(b"false"),
                [1] => self.put(b"true"),
                other => Err(undecodable(format!("{other:?} is neither true nor false"))),
            },
            Node::Int => {
                let number = self.long()?;
                let number = i32::try_from(number).map_err(|_| undecodable(format!("{number} is no int")))?;
                self.json(&number)
            }
            Node::Long => {
                let number = self.long()?;
                self.json(&number)
            }
            Node::Float => {
                // As the shortest decimal that is this float, not that of the double next to it.
                let number = f32::from_le_bytes(self.array()?);
                if number.is_finite() { self.json(&number) } else { self.no_number(number.into()) }
            }
            Node::Double => {
                let number = f64::from_le_bytes(self.array()?);
                if number.is_finite() { self.json(&number) } else { self.no_number(number) }
            }
            Node::Bytes => {
                let length = self.length()?;
                self.characters(length)
            }
            Node::Fixed(size) => self.characters(*size),
            Node::String => self.string(),
            Node::Decimal { scale, size } => {
                let size = size.map_or_else(|| self.length(), Ok)?;
                self.decimal(size, *scale)
            }
            Node::Enum(symbols) => {
                let place = self.long()?;
                let symbol = usize::try_from(place).ok().and_then(|place| symbols.get(place));
                let symbol = symbol.ok_or_else(|| undecodable(format!("there is no symbol {place}")))?;
                self.put(symbol.as_bytes())
            }
            Node::Union(branches) => {
                let place = self.long()?;
                let branch = usize::try_from(place).ok().and_then(|place| branches.get(place));
                self.value(*branch.ok_or_else(|| undecodable(format!("there is no branch {place}")))?, depth)
            }
            Node::Record(fields) => self.record(fields, depth),
            Node::Array(items) => self.blocks((b"[", b"]"), |value| value.value(*items, depth)),
            Node::Map(values) => self.blocks((b"{", b"}"), |value| {
                value.string()?;
                value.put(b":")?;
                value.value(*values, depth)
            }),
        }
    }

    fn record(&mut self, fields: &[(Box<str>, usize)], depth: usize) -> Result<(), AvroError> {
        let mut before: &[u8] = b"{";
        for (name, inner) in fields {
            self.put(before)?;
            self.put(name.as_bytes())?;
            self.put(b":")?;
            self.value(*inner, depth).map_err(|error| error.below(name))?;
            before = b",";
        }
        self.put(if fields.is_empty() { b"{}" } else { b"}" })
    }

    /// The blocks of an array or a map, each of so many elements; one of none ends them.
    fn blocks(
        &mut self,
        (open, close): (&[u8], &[u8]),
        mut element: impl FnMut(&mut Self) -> Result<(), AvroError>,
    ) -> Result<(), AvroError> {
        self.put(open)?;
        let mut is_first = true;
        loop {
            let mut count = self.long()?;
            if count < 0 {
                // Behind it stands how many bytes the block has, for those who skip it.
                count = count.checked_neg().ok_or_else(|| undecodable("a block has no count"))?;
                self.long()?;
            }
            if count == 0 {
                return self.put(close);
            }
            for _ in 0..count {
                self.put(if is_first { b"" } else { b"," })?;
                is_first = false;
                element(self)?;
            }
        }
    }

    fn take(&mut self, count: usize) -> Result<&'b [u8], AvroError> {
        let Some((taken, rest)) = self.bytes.split_at_checked(count) else {
            let left = self.bytes.len();
            return Err(undecodable(format!("{count} bytes should follow, and {left} are left")));
        };
        self.bytes = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], AvroError> {
        let taken = self.take(N)?;
        taken.try_into().map_err(|_| undecodable("the number is cut off"))
    }

    /// An integer, seven bits a byte, the least significant first; even ones are positive.
    fn long(&mut self) -> Result<i64, AvroError> {
        let mut raw = 0_u64;
        for shift in (0..64).step_by(7) {
            let [byte] = self.array()?;
            if shift == 63 && byte > 1 {
                break;
            }
            raw |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                let half = i64::try_from(raw >> 1).unwrap_or(i64::MAX);
                return Ok(if raw & 1 == 0 { half } else { !half });
            }
        }
        Err(undecodable("an integer has more than 64 bits"))
    }

    fn length(&mut self) -> Result<usize, AvroError> {
        let length = self.long()?;
        usize::try_from(length).map_err(|_| undecodable(format!("{length} is no length")))
    }

    fn string(&mut self) -> Result<(), AvroError> {
        let length = self.length()?;
        let taken = self.take(length)?;
        let text = std::str::from_utf8(taken)
            .map_err(|error| undecodable(format!("a string is not UTF-8: {error}")))?;
        self.json(text)
    }

    /// So many bytes as a text.
    fn characters(&mut self, count: usize) -> Result<(), AvroError> {
        let text: String = self.take(count)?.iter().copied().map(char::from).collect();
        self.json(text.as_str())
    }

    fn decimal(&mut self, size: usize, scale: usize) -> Result<(), AvroError> {
        let taken = self.take(size)?;
        if size > DECIMAL_BYTES_MAX {
            return Err(undecodable(format!("a decimal has {size} bytes, and {DECIMAL_BYTES_MAX} are read")));
        }
        let is_negative = taken.first().is_some_and(|byte| byte & 0x80 != 0);
        let start = if is_negative { -1_i128 } else { 0 };
        let unscaled = taken.iter().fold(start, |number, byte| (number << 8) | i128::from(*byte));
        let digits = format!("{:0>width$}", unscaled.unsigned_abs(), width = scale + 1);
        let (whole, fraction) = digits.split_at(digits.len() - scale);
        let sign = if unscaled < 0 { "-" } else { "" };
        let point = if scale > 0 { "." } else { "" };
        self.put(format!("\"{sign}{whole}{point}{fraction}\"").as_bytes())
    }

    /// A float that is not finite.
    fn no_number(&mut self, number: f64) -> Result<(), AvroError> {
        self.put(if number.is_nan() {
            b"\"NaN\""
        } else if number > 0.0 {
            b"\"Infinity\""
        } else {
            b"\"-Infinity\""
        })
    }

    fn json<T: serde::Serialize + ?Sized>(&mut self, value: &T) -> Result<(), AvroError> {
        serde_json::to_writer(&mut self.text, value).map_err(|error| undecodable(error.to_string()))?;
        self.put(b"")
    }

    fn put(&mut self, text: &[u8]) -> Result<(), AvroError> {
        self.text.extend_from_slice(text);
        if self.text.len() > self.bytes_max { Err(AvroError::TooLarge) } else { Ok(()) }
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
