//! An event's JSON fields before judgement: each takes a value of any kind, borrowed where it can be, so
//! that one pass over the bytes is enough and a wrong kind is a finding, not a parse error.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

/// The fields of an event before judgement.
#[derive(serde::Deserialize)]
pub(super) struct Wire<'a> {
    #[serde(borrow, default)]
    pub src: Scalar<'a>,
    #[serde(borrow, default)]
    pub dst: Scalar<'a>,
    #[serde(borrow, default)]
    pub node: Scalar<'a>,
    #[serde(borrow, default)]
    pub ts: Scalar<'a>,
    #[serde(default)]
    pub features: Row,
    #[serde(borrow, default, rename = "type")]
    pub edge_type: Scalar<'a>,
    #[serde(borrow, default)]
    pub op: Scalar<'a>,
    #[serde(borrow, default)]
    pub idempotency_key: Scalar<'a>,
    #[serde(borrow, default)]
    pub label: Scalar<'a>,
}

/// A field's value of any kind; what is not a scalar is only named.
#[derive(Debug, Default)]
pub(super) enum Scalar<'a> {
    #[default]
    Absent,
    Text(Cow<'a, str>),
    Int(i64),
    Large(u64),
    Real(f64),
    Other(&'static str),
}

impl Scalar<'_> {
    /// It as a feature; NaN if it is no number.
    #[allow(clippy::cast_possible_truncation, clippy::cast_precision_loss)]
    pub fn feature(&self) -> f32 {
        match *self {
            Self::Int(number) => number as f32,
            Self::Large(number) => number as f32,
            Self::Real(number) => number as f32,
            _ => f32::NAN,
        }
    }

    /// The same without its own text.
    pub fn borrowed(&self) -> Scalar<'_> {
        match self {
            Self::Absent => Scalar::Absent,
            Self::Text(text) => Scalar::Text(Cow::Borrowed(text)),
            Self::Int(number) => Scalar::Int(*number),
            Self::Large(number) => Scalar::Large(*number),
            Self::Real(number) => Scalar::Real(*number),
            Self::Other(kind) => Scalar::Other(kind),
        }
    }
}

impl fmt::Display for Scalar<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Absent => f.write_str("missing"),
            Self::Text(text) => write!(f, "the text {:?}", short(text)),
            Self::Int(number) => write!(f, "the number {number}"),
            Self::Large(number) => write!(f, "the number {number}"),
            Self::Real(number) => write!(f, "the number {number:?}"),
            Self::Other(kind) => f.write_str(kind),
        }
    }
}

struct ScalarVisitor;

impl<'de> Visitor<'de> for ScalarVisitor {
    type Value = Scalar<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }
    fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Self::Value, E> {
        Ok(Scalar::Text(Cow::Borrowed(text)))
    }
    fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
        Ok(Scalar::Text(Cow::Owned(text.to_owned())))
    }
    fn visit_i64<E>(self, number: i64) -> Result<Self::Value, E> {
        Ok(Scalar::Int(number))
    }
    fn visit_u64<E>(self, number: u64) -> Result<Self::Value, E> {
        Ok(i64::try_from(number).map_or(Scalar::Large(number), Scalar::Int))
    }
    fn visit_f64<E>(self, number: f64) -> Result<Self::Value, E> {
        Ok(Scalar::Real(number))
    }
    fn visit_bool<E>(self, _: bool) -> Result<Self::Value, E> {
        Ok(Scalar::Other("a boolean"))
    }
    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(Scalar::Absent)
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Scalar::Other("an array"))
    }
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(Scalar::Other("an object"))
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Scalar<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ScalarVisitor)
    }
}

/// A feature row before judgement.
#[derive(Default)]
pub(super) enum Row {
    #[default]
    Absent,
    Values(Vec<f32>),
    Bad(String),
    Other(&'static str),
}

struct RowVisitor;

impl<'de> Visitor<'de> for RowVisitor {
    type Value = Row;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array of numbers")
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Row, A::Error> {
        let mut values = Vec::new();
        let mut bad = None;
        while let Some(value) = seq.next_element::<Scalar<'de>>()? {
            let number = value.feature();
            if !number.is_finite() && bad.is_none() {
                let detail = format!("features[{}] is {value}; send finite numbers within f32", values.len());
                bad = Some(detail);
            }
            values.push(number);
        }
        Ok(bad.map_or(Row::Values(values), Row::Bad))
    }
    fn visit_unit<E>(self) -> Result<Row, E> {
        Ok(Row::Absent)
    }
    fn visit_bool<E>(self, _: bool) -> Result<Row, E> {
        Ok(Row::Other("a boolean"))
    }
    fn visit_i64<E>(self, _: i64) -> Result<Row, E> {
        Ok(Row::Other("a number"))
    }
    fn visit_u64<E>(self, _: u64) -> Result<Row, E> {
        Ok(Row::Other("a number"))
    }
    fn visit_f64<E>(self, _: f64) -> Result<Row, E> {
        Ok(Row::Other("a number"))
    }
    fn visit_str<E>(self, _: &str) -> Result<Row, E> {
        Ok(Row::Other("a text"))
    }
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Row, A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(Row::Other("an object"))
    }
}

impl<'de> Deserialize<'de> for Row {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(RowVisitor)
    }
}

/// The beginning of a text, for messages.
pub(super) fn short(text: &str) -> &str {
    let end = (0..=text.len().min(60)).rev().find(|&i| text.is_char_boundary(i)).unwrap_or(0);
    &text[..end]
}
