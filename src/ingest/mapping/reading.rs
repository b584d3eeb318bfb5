//! A message while its events are read: what stands at the places of its fields, and what to say where nothing does.

use std::borrow::Cow;

use super::extract::{Found, Seen};
use super::message::Around;
use super::plan::Plan;
use super::source::{Piece, Source};
use super::{Field, Mapping};
use crate::ingest::decode::Decoder;
use crate::ingest::rejection::{Reason, Rejection};
use crate::ingest::wire::Scalar;

/// A message while its events are read.
pub(super) struct Reading<'m, 'a> {
    pub mapping: &'m Mapping,
    pub around: &'m Around<'a>,
    pub is_structured: bool,
    pub found: &'m Found<'m>,
    pub key: Option<Found<'m>>,
    /// Whether a row was deleted, so that it is read as it was.
    pub is_deletion: bool,
    /// The element that is read, and its place.
    pub item: Option<(usize, &'m [Seen<'m>])>,
    pub decoder: &'m Decoder,
}

impl<'m> Reading<'m, '_> {
    /// What stands at a place; `None` for what is no place.
    pub fn seen(&self, source: &Source) -> Option<&Seen<'m>> {
        match source {
            Source::Value(place) => {
                let node = if self.is_deletion { place.before.unwrap_or(place.after) } else { place.after };
                self.found.places.get(node)
            }
            Source::Item(node) => self.item.and_then(|(_, places)| places.get(*node)),
            Source::Key(node) => self.key.as_ref()?.places.get(*node),
            Source::Attribute(_, node) if self.is_structured => self.found.places.get(*node),
            _ => None,
        }
    }

    /// The value of a field.
    pub fn value<'s>(&'s self, field: &'s Field) -> Result<Scalar<'s>, Rejection> {
        self.scalar(&field.source).map_err(|rejection| Rejection {
            detail: format!("{}: {}", field.label, rejection.detail),
            ..rejection
        })
    }

    fn scalar<'s>(&'s self, source: &'s Source) -> Result<Scalar<'s>, Rejection> {
        if let Some(seen) = self.seen(source) {
            return Ok(match seen {
                Seen::Not => Scalar::Absent,
                Seen::One(value) => value.borrowed(),
                Seen::Row(_) | Seen::BadRow(_) => Scalar::Other("an array"),
            });
        }
        Ok(match source {
            Source::Constant(text) => Scalar::Text(Cow::Borrowed(text)),
            Source::Header(name) => self.header(name),
            Source::Attribute(name, _) => self.header(&format!("ce_{name}")),
            Source::Template(pieces) => return self.template(pieces),
            _ => Scalar::Absent,
        })
    }

    fn header(&self, name: &str) -> Scalar<'_> {
        match (self.around.header)(name).map(std::str::from_utf8) {
            None => Scalar::Absent,
            Some(Ok(text)) => Scalar::Text(Cow::Borrowed(text)),
            Some(Err(_)) => Scalar::Other("not UTF-8"),
        }
    }

    /// A text with values in it; absent if one of them is.
    fn template<'s>(&'s self, pieces: &'s [Piece]) -> Result<Scalar<'s>, Rejection> {
        let mut text = String::new();
        for piece in pieces {
            match piece {
                Piece::Text(plain) => text.push_str(plain),
                Piece::Of(source) => match self.scalar(source)? {
                    Scalar::Absent => return Ok(Scalar::Absent),
                    Scalar::Text(value) => text.push_str(&value),
                    Scalar::Int(number) => text.push_str(&number.to_string()),
                    Scalar::Large(number) => text.push_str(&number.to_string()),
                    other => {
                        let place = self.path(source);
                        let detail =
                            format!("{place} is {other}; in a template it must be a text or an integer");
                        return Err(Rejection::new(Reason::WrongType, detail));
                    }
                },
            }
        }
        Ok(Scalar::Text(text.into()))
    }

    /// That a field has no value, why, and what to do.
    pub fn no_value(&self, field: &Field, remedy: &str) -> String {
        let missing = match &field.source {
            Source::Template(_) => self.blank_piece(field),
            source => Some(source),
        };
        let why = missing.and_then(|source| self.why(source)).unwrap_or_default();
        let remedy = if remedy.is_empty() { String::new() } else { format!("; {remedy}") };
        format!("{} is missing{why}{remedy}", field.label)
    }

    /// The first place in a template where nothing is, or an empty text.
    pub fn blank_piece<'s>(&self, field: &'s Field) -> Option<&'s Source> {
        let Source::Template(pieces) = &field.source else { return None };
        pieces.iter().find_map(|piece| match piece {
            Piece::Of(source) => match self.scalar(source) {
                Ok(Scalar::Absent) => Some(source),
                Ok(Scalar::Text(text)) if text.is_empty() => Some(source),
                _ => None,
            },
            Piece::Text(_) => None,
        })
    }

    /// What stands nearest to a place that is not there.
    fn why(&self, source: &Source) -> Option<String> {
        if matches!(self.scalar(source), Ok(Scalar::Text(text)) if text.is_empty()) {
            return Some(format!(": {} is empty", self.path(source)));
        }
        let (plan, node) = self.node(source)?;
        let places = self.places(source)?;
        let mut at = node;
        while let Some(parent) = plan.parent(at) {
            match places.get(at) {
                Some(Seen::Not) | None => {}
                Some(Seen::One(Scalar::Absent)) => return Some(format!(": {} is null", plan.path(at))),
                Some(Seen::One(found)) if at == node => return Some(format!(": it is {found}")),
                Some(_) => return None,
            }
            if let Some(Seen::One(found)) = places.get(parent) {
                return Some(match found {
                    Scalar::Other("an object") => format!(": {} has no {}", plan.path(parent), plan.name(at)),
                    Scalar::Absent => format!(": {} is null", plan.path(parent)),
                    found => format!(": {} is {found}", plan.path(parent)),
                });
            }
            at = parent;
        }
        None
    }

    fn places(&self, source: &Source) -> Option<&[Seen<'m>]> {
        match source {
            Source::Item(_) => self.item.map(|(_, places)| places),
            Source::Key(_) => self.key.as_ref().map(|key| key.places.as_slice()),
            _ => Some(&self.found.places),
        }
    }

    fn node(&self, source: &Source) -> Option<(&Plan, usize)> {
        let plans = &self.mapping.plans;
        match source {
            Source::Value(place) => {
                let node = if self.is_deletion { place.before.unwrap_or(place.after) } else { place.after };
                Some((&plans.value, node))
            }
            Source::Item(node) => Some((&plans.item, *node)),
            Source::Key(node) => Some((&plans.key, *node)),
            Source::Attribute(_, node) => Some((&plans.value, *node)),
            _ => None,
        }
    }

    /// A place for people.
    pub fn path(&self, source: &Source) -> String {
        match source {
            Source::Header(name) => format!("header:{name}"),
            Source::Attribute(name, _) => format!("attribute:{name}"),
            source => self.node(source).map_or_else(String::new, |(plan, node)| plan.path(node)),
        }
    }
}
