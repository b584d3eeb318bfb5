//! A value in Avro's binary encoding, as serde reads one: texts are borrowed from the bytes and the schema, and what is
//! skipped is only checked. What went wrong is explained by where the reader stands then.

use std::borrow::Cow;
use std::fmt;
use std::slice::Iter;

use serde::de::value::BorrowedStrDeserializer;
use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde::forward_to_deserialize_any;

use super::AvroError;
use super::fault::{Fault, fault};
use super::schema::Node;
use crate::ingest::document::{characters, no_number};

/// Deepest value.
const DEPTH_MAX: usize = 64;
/// Longest decimal, in bytes.
const DECIMAL_BYTES_MAX: usize = 16;

/// What is left to read.
pub(super) struct Reader<'a> {
    nodes: &'a [Node],
    bytes: &'a [u8],
    /// How many values may still come; `None` after one too many.
    values_left: Option<usize>,
    /// Names of the fields around the value that is read.
    path: Vec<&'a str>,
}

/// The value that comes next.
pub(super) struct Value<'r, 'a> {
    reader: &'r mut Reader<'a>,
    /// The place of its type.
    at: usize,
    /// How many levels it may have.
    depth: usize,
}

impl<'a> Reader<'a> {
    pub fn new(nodes: &'a [Node], bytes: &'a [u8], values_max: usize) -> Self {
        Self { nodes, bytes, values_left: Some(values_max), path: Vec::new() }
    }

    /// The whole value.
    pub fn value(&mut self) -> Value<'_, 'a> {
        Value { reader: self, at: 0, depth: DEPTH_MAX }
    }

    /// Behind the value nothing may follow.
    pub fn end(&self) -> Result<(), Fault> {
        match self.bytes.len() {
            0 => Ok(()),
            left => Err(fault(format_args!("{left} bytes are left behind its end"))),
        }
    }

    /// Why reading ended here.
    pub fn explain(&self, fault: Fault) -> AvroError {
        let at = self.path.iter().flat_map(|name| ["/", name]).collect();
        match fault {
            _ if self.values_left.is_none() => AvroError::TooLarge,
            Fault::Bytes(why) => AvroError::Undecodable { at, why },
            Fault::Value(why) => AvroError::Unexpected { at, why },
        }
    }

    /// Counts so many values.
    fn count(&mut self, values: usize) -> Result<(), Fault> {
        self.values_left = self.values_left.and_then(|left| left.checked_sub(values));
        if self.values_left.is_none() { Err(fault("it has too many values")) } else { Ok(()) }
    }

    /// The type at a place, by names and branches of unions, and how many levels may be below it.
    fn enter(&mut self, mut at: usize, mut depth: usize) -> Result<(&'a Node, usize), Fault> {
        loop {
            let node = self.nodes.get(at).ok_or_else(|| fault("the schema is not whole"))?;
            // A name is no level of the value: names follow one another only as far as the schema does.
            if let Node::Of(target) = node {
                at = *target;
                continue;
            }
            depth = depth
                .checked_sub(1)
                .ok_or_else(|| fault(format_args!("it is more than {DEPTH_MAX} levels deep")))?;
            self.count(1)?;
            let Node::Union(branches) = node else { return Ok((node, depth)) };
            at = *self.one_of(branches, "branch")?;
        }
    }

    fn one_of<T>(&mut self, all: &'a [T], what: &str) -> Result<&'a T, Fault> {
        let place = self.long()?;
        let one = usize::try_from(place).ok().and_then(|place| all.get(place));
        one.ok_or_else(|| fault(format_args!("there is no {what} {place}")))
    }

    fn take(&mut self, count: usize) -> Result<&'a [u8], Fault> {
        let Some((taken, rest)) = self.bytes.split_at_checked(count) else {
            let left = self.bytes.len();
            return Err(fault(format_args!("{count} bytes should follow, and {left} are left")));
        };
        self.bytes = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Fault> {
        let taken = self.take(N)?;
        taken.try_into().map_err(|_| fault("the number is cut off"))
    }

    fn boolean(&mut self) -> Result<bool, Fault> {
        match self.array()? {
            [0] => Ok(false),
            [1] => Ok(true),
            [other] => Err(fault(format_args!("{other} is neither true nor false"))),
        }
    }

    fn int(&mut self) -> Result<i32, Fault> {
        let number = self.long()?;
        i32::try_from(number).map_err(|_| fault(format_args!("{number} is no int")))
    }

    /// An integer, seven bits a byte, the least significant first; even ones are positive.
    fn long(&mut self) -> Result<i64, Fault> {
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
        Err(fault("an integer has more than 64 bits"))
    }

    /// Bytes behind their length.
    fn bytes(&mut self) -> Result<&'a [u8], Fault> {
        let length = self.long()?;
        let length = usize::try_from(length).map_err(|_| fault(format_args!("{length} is no length")))?;
        self.take(length)
    }

    fn text(&mut self) -> Result<&'a str, Fault> {
        let bytes = self.bytes()?;
        std::str::from_utf8(bytes).map_err(|error| fault(format_args!("a string is not UTF-8: {error}")))
    }
}

fn decimal(bytes: &[u8], scale: usize) -> Result<String, Fault> {
    let size = bytes.len();
    if size > DECIMAL_BYTES_MAX {
        return Err(fault(format_args!("a decimal has {size} bytes, and {DECIMAL_BYTES_MAX} are read")));
    }
    let is_negative = bytes.first().is_some_and(|byte| byte & 0x80 != 0);
    let start = if is_negative { -1_i128 } else { 0 };
    let unscaled = bytes.iter().fold(start, |number, byte| (number << 8) | i128::from(*byte));
    let digits = format!("{:0>width$}", unscaled.unsigned_abs(), width = scale + 1);
    let (whole, fraction) = digits.split_at(digits.len() - scale);
    let sign = if unscaled < 0 { "-" } else { "" };
    let point = if scale > 0 { "." } else { "" };
    Ok(format!("{sign}{whole}{point}{fraction}"))
}

impl<'de> Value<'_, 'de> {
    /// Shows the value to a visitor, who needs no texts of what it skips.
    fn show<V: Visitor<'de>>(self, visitor: V, skips: bool) -> Result<V::Value, Fault> {
        let Self { reader, at, depth } = self;
        let (node, depth) = reader.enter(at, depth)?;
        let text = |bytes, visitor: V| match characters(bytes) {
            Cow::Borrowed(text) => visitor.visit_borrowed_str(text),
            Cow::Owned(text) => visitor.visit_string(text),
        };
        match node {
            Node::Null => visitor.visit_unit(),
            Node::Boolean => visitor.visit_bool(reader.boolean()?),
            Node::Int => visitor.visit_i32(reader.int()?),
            Node::Long => visitor.visit_i64(reader.long()?),
            Node::Float => match f32::from_le_bytes(reader.array()?) {
                number if number.is_finite() => visitor.visit_f32(number),
                number => visitor.visit_borrowed_str(no_number(number.into())),
            },
            Node::Double => match f64::from_le_bytes(reader.array()?) {
                number if number.is_finite() => visitor.visit_f64(number),
                number => visitor.visit_borrowed_str(no_number(number)),
            },
            Node::String => visitor.visit_borrowed_str(reader.text()?),
            Node::Bytes | Node::Fixed(_) | Node::Decimal { .. } => {
                let bytes = match node {
                    Node::Fixed(size) | Node::Decimal { size: Some(size), .. } => reader.take(*size)?,
                    _ => reader.bytes()?,
                };
                match node {
                    _ if skips => visitor.visit_unit(),
                    Node::Decimal { scale, .. } => {
                        let decimal = decimal(bytes, *scale)?;
                        // A scale makes many digits of few bytes.
                        reader.count(decimal.len())?;
                        visitor.visit_string(decimal)
                    }
                    _ => text(bytes, visitor),
                }
            }
            Node::Enum(symbols) => visitor.visit_borrowed_str(reader.one_of(symbols, "symbol")?),
            Node::Record(fields) => {
                let mut fields = Fields { reader, left: fields.iter(), next: None, depth };
                let value = visitor.visit_map(&mut fields)?;
                fields.end().map(|()| value)
            }
            Node::Array(items) => {
                let mut items = Blocks::new(reader, *items, depth);
                let value = visitor.visit_seq(&mut items)?;
                items.end().map(|()| value)
            }
            Node::Map(values) => {
                let mut values = Blocks::new(reader, *values, depth);
                let value = visitor.visit_map(&mut values)?;
                values.end().map(|()| value)
            }
            Node::Of(_) | Node::Union(_) => Err(fault("the schema is not whole")),
        }
    }
}

impl<'de> Deserializer<'de> for Value<'_, 'de> {
    type Error = Fault;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        self.show(visitor, false)
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        self.show(visitor, true)
    }

    /// A structure has names, so it is a record or a map.
    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Fault> {
        self.deserialize_any(Named(visitor))
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map enum identifier
    }
}

/// Takes maps alone: serde would also take an array for a structure, field by field.
struct Named<V>(V);

impl<'a, V: Visitor<'a>> Visitor<'a> for Named<V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a record")
    }

    fn visit_map<A: MapAccess<'a>>(self, map: A) -> Result<V::Value, A::Error> {
        self.0.visit_map(map)
    }
}

/// The fields of a record.
struct Fields<'r, 'a> {
    reader: &'r mut Reader<'a>,
    left: Iter<'a, (Box<str>, usize)>,
    /// The one whose name was read.
    next: Option<(&'a str, usize)>,
    depth: usize,
}

impl Fields<'_, '_> {
    fn end(&self) -> Result<(), Fault> {
        if self.left.len() == 0 && self.next.is_none() {
            Ok(())
        } else {
            Err(fault("a record was not read whole"))
        }
    }
}

impl<'a> MapAccess<'a> for &mut Fields<'_, 'a> {
    type Error = Fault;

    fn next_key_seed<K: DeserializeSeed<'a>>(&mut self, seed: K) -> Result<Option<K::Value>, Fault> {
        let Some((name, at)) = self.left.next() else { return Ok(None) };
        self.next = Some((name, *at));
        seed.deserialize(BorrowedStrDeserializer::new(name)).map(Some)
    }

    fn next_value_seed<S: DeserializeSeed<'a>>(&mut self, seed: S) -> Result<S::Value, Fault> {
        let (name, at) = self.next.take().ok_or_else(|| fault("a value has no name"))?;
        // Stays there if the value is none.
        self.reader.path.push(name);
        let value = seed.deserialize(Value { reader: self.reader, at, depth: self.depth })?;
        self.reader.path.pop();
        Ok(value)
    }
}

/// The blocks of an array or a map, each of so many elements; one of none ends them.
struct Blocks<'r, 'a> {
    reader: &'r mut Reader<'a>,
    /// The place of the type of the elements.
    at: usize,
    depth: usize,
    /// Elements of the block that are left.
    left: i64,
    has_ended: bool,
}

impl<'r, 'a> Blocks<'r, 'a> {
    fn new(reader: &'r mut Reader<'a>, at: usize, depth: usize) -> Self {
        Self { reader, at, depth, left: 0, has_ended: false }
    }

    /// Whether there is one more element.
    fn advance(&mut self) -> Result<bool, Fault> {
        if self.left == 0 && !self.has_ended {
            let count = self.reader.long()?;
            if count < 0 {
                // Behind it stands how many bytes the block has, for those who skip it.
                self.reader.long()?;
            }
            self.left = count.checked_abs().ok_or_else(|| fault("a block has no count"))?;
            self.has_ended = count == 0;
        }
        if self.has_ended {
            return Ok(false);
        }
        self.left -= 1;
        Ok(true)
    }

    fn element<S: DeserializeSeed<'a>>(&mut self, seed: S) -> Result<S::Value, Fault> {
        seed.deserialize(Value { reader: self.reader, at: self.at, depth: self.depth })
    }

    fn end(&self) -> Result<(), Fault> {
        if self.has_ended { Ok(()) } else { Err(fault("an array or a map was not read whole")) }
    }
}

impl<'a> SeqAccess<'a> for &mut Blocks<'_, 'a> {
    type Error = Fault;

    fn next_element_seed<S: DeserializeSeed<'a>>(&mut self, seed: S) -> Result<Option<S::Value>, Fault> {
        if self.advance()? { self.element(seed).map(Some) } else { Ok(None) }
    }
}

impl<'a> MapAccess<'a> for &mut Blocks<'_, 'a> {
    type Error = Fault;

    fn next_key_seed<K: DeserializeSeed<'a>>(&mut self, seed: K) -> Result<Option<K::Value>, Fault> {
        if !self.advance()? {
            return Ok(None);
        }
        seed.deserialize(BorrowedStrDeserializer::new(self.reader.text()?)).map(Some)
    }

    fn next_value_seed<S: DeserializeSeed<'a>>(&mut self, seed: S) -> Result<S::Value, Fault> {
        self.element(seed)
    }
}
