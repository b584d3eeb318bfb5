//! One walk over a document that keeps what stands at the places of a [`Plan`], borrowed where it can be, and
//! skips all else. Depth costs no stack beyond that of the plan: what is skipped is skipped without recursion.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::plan::Plan;
use crate::ingest::document::Document;
use crate::ingest::rejection::{Reason, Rejection};
use crate::ingest::wire::Scalar;

/// Most events of one message.
pub(super) const ITEMS_MAX: usize = 10_000;

/// What stands at a place.
#[derive(Debug, Default)]
pub(super) enum Seen<'a> {
    /// The document does not have the place.
    #[default]
    Not,
    /// A value; of objects and arrays only that they are.
    One(Scalar<'a>),
    /// An array of finite numbers.
    Row(Vec<f32>),
    /// An array in which something else stands, which the text says.
    BadRow(String),
}

/// What was found in a document, place by place.
#[derive(Debug, Default)]
pub(super) struct Found<'a> {
    pub places: Vec<Seen<'a>>,
    /// The places of the elements of an array, as many for each as their plan has.
    pub items: Vec<Seen<'a>>,
    /// How many elements there were; `None` if there was no array.
    pub count: Option<usize>,
    pub fault: Option<Rejection>,
}

impl<'a> Found<'a> {
    /// The fields of a row, with their places among `count`.
    pub fn of_fields(count: usize, fields: impl Iterator<Item = (usize, &'a str)>) -> Self {
        let mut places = unseen(count);
        for (place, text) in fields {
            if let Some(place) = places.get_mut(place) {
                let value = if text.is_empty() { Scalar::Absent } else { Scalar::Text(text.into()) };
                *place = Seen::One(value);
            }
        }
        Self { places, ..Self::default() }
    }
}

/// Which documents are read, and what for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Walk<'p> {
    pub plan: &'p Plan,
    /// The places of an array's elements.
    pub items: &'p Plan,
    /// Where the document stands in the plan.
    pub root: usize,
    /// A field of the document in which the one that belongs at another root may be wrapped.
    pub wrapper: Option<(&'static str, usize)>,
}

impl Walk<'_> {
    /// Reads a document.
    ///
    /// # Errors
    /// When it cannot be read, a field that is read stands in it twice, or it has too many elements.
    pub fn read<'a>(&self, document: &'a Document<'_>) -> Result<Found<'a>, Rejection> {
        let mut found = Found { places: unseen(self.plan.len()), ..Found::default() };
        let at = At { walk: self, plan: self.plan, node: self.root, found: &mut found, is_item: false };
        match document.read(at) {
            Ok(()) => Ok(found),
            Err(rejection) => Err(found.fault.take().unwrap_or(rejection)),
        }
    }
}

fn unseen<'a>(count: usize) -> Vec<Seen<'a>> {
    let mut places = Vec::with_capacity(count);
    places.resize_with(count, Seen::default);
    places
}

/// A value at a place of the plan.
struct At<'w, 'f, 'a> {
    walk: &'w Walk<'w>,
    plan: &'w Plan,
    node: usize,
    found: &'f mut Found<'a>,
    is_item: bool,
}

impl<'a> At<'_, '_, 'a> {
    /// Places of the element that is read come last.
    fn place(&mut self) -> Option<&mut Seen<'a>> {
        match self.is_item {
            false => self.found.places.get_mut(self.node),
            true => {
                let first = self.found.items.len().checked_sub(self.plan.len())?;
                self.found.items.get_mut(first + self.node)
            }
        }
    }

    fn keep<E: Error>(&mut self, seen: Seen<'a>) -> Result<(), E> {
        match self.place() {
            Some(place @ Seen::Not) => {
                *place = seen;
                Ok(())
            }
            _ => Err(E::custom(format_args!("duplicate field {}", self.plan.path(self.node)))),
        }
    }

    fn below(&mut self, node: usize) -> At<'_, '_, 'a> {
        At { walk: self.walk, plan: self.plan, node, found: self.found, is_item: self.is_item }
    }

    /// A wrapped document counts as the one that it is in.
    fn unwrapped(&mut self, root: usize) -> At<'_, '_, 'a> {
        if root == self.node
            && let Some(place) = self.place()
        {
            *place = Seen::Not;
        }
        self.below(root)
    }

    fn is_outermost(&self) -> bool {
        !self.is_item && self.node == self.walk.root
    }
}

impl<'a> DeserializeSeed<'a> for At<'_, '_, 'a> {
    type Value = ();

    fn deserialize<D: Deserializer<'a>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'a> Visitor<'a> for At<'_, '_, 'a> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }
    fn visit_borrowed_str<E: Error>(mut self, text: &'a str) -> Result<(), E> {
        self.keep(Seen::One(Scalar::Text(text.into())))
    }
    fn visit_str<E: Error>(mut self, text: &str) -> Result<(), E> {
        self.keep(Seen::One(Scalar::Text(text.to_owned().into())))
    }
    fn visit_i64<E: Error>(mut self, number: i64) -> Result<(), E> {
        self.keep(Seen::One(Scalar::Int(number)))
    }
    fn visit_u64<E: Error>(mut self, number: u64) -> Result<(), E> {
        let number = i64::try_from(number).map_or(Scalar::Large(number), Scalar::Int);
        self.keep(Seen::One(number))
    }
    fn visit_f64<E: Error>(mut self, number: f64) -> Result<(), E> {
        self.keep(Seen::One(Scalar::Real(number)))
    }
    fn visit_bool<E: Error>(mut self, _: bool) -> Result<(), E> {
        self.keep(Seen::One(Scalar::Other("a boolean")))
    }
    fn visit_unit<E: Error>(mut self) -> Result<(), E> {
        self.keep(Seen::One(Scalar::Absent))
    }

    fn visit_seq<S: SeqAccess<'a>>(mut self, mut seq: S) -> Result<(), S::Error> {
        if self.plan.takes_row(self.node) {
            let row = row(&mut seq)?;
            return self.keep(row);
        }
        self.keep(Seen::One(Scalar::Other("an array")))?;
        if self.plan.is_each(self.node) && !self.is_item {
            return each(self.walk, self.found, &mut seq);
        }
        let mut index = 0;
        loop {
            let more = match self.plan.element(self.node, index) {
                Some(child) => seq.next_element_seed(self.below(child))?.is_some(),
                None => seq.next_element::<IgnoredAny>()?.is_some(),
            };
            if !more {
                return Ok(());
            }
            index += 1;
        }
    }

    fn visit_map<M: MapAccess<'a>>(mut self, mut map: M) -> Result<(), M::Error> {
        self.keep(Seen::One(Scalar::Other("an object")))?;
        let wrapper = self.walk.wrapper.filter(|_| self.is_outermost());
        if self.plan.is_leaf(self.node) && wrapper.is_none() {
            while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
            return Ok(());
        }
        while let Some(name) = map.next_key_seed(Name { plan: self.plan, node: self.node, wrapper })? {
            match name {
                Known::Place(child) => map.next_value_seed(self.below(child))?,
                Known::Wrapped(root) => {
                    let inner = Walk { wrapper: None, ..*self.walk };
                    let mut inside = self.unwrapped(root);
                    inside.walk = &inner;
                    map.next_value_seed(inside)?;
                }
                Known::Not => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(())
    }
}

/// Reads every element as a document of its own.
fn each<'a, S: SeqAccess<'a>>(walk: &Walk<'_>, found: &mut Found<'a>, seq: &mut S) -> Result<(), S::Error> {
    let mut count = 0;
    loop {
        let before = found.items.len();
        found.items.resize_with(before + walk.items.len(), Seen::default);
        let at = At { walk, plan: walk.items, node: 0, found, is_item: true };
        if seq.next_element_seed(at)?.is_none() {
            found.items.truncate(before);
            found.count = Some(count);
            return Ok(());
        }
        if count == ITEMS_MAX {
            let detail =
                format!("each names an array of more than {ITEMS_MAX} elements; send several messages");
            found.fault = Some(Rejection::new(Reason::TooLarge, detail));
            return Err(S::Error::custom("too many elements"));
        }
        count += 1;
    }
}

fn row<'a, S: SeqAccess<'a>>(seq: &mut S) -> Result<Seen<'a>, S::Error> {
    let (mut values, mut bad) = (Vec::new(), None);
    while let Some(value) = seq.next_element::<Scalar<'a>>()? {
        let number = value.feature();
        if !number.is_finite() && bad.is_none() {
            bad = Some(format!("element {} is {value}; send finite numbers within f32", values.len()));
        }
        values.push(number);
    }
    Ok(bad.map_or(Seen::Row(values), Seen::BadRow))
}

/// What a name in a document leads to.
enum Known {
    Place(usize),
    Wrapped(usize),
    Not,
}

struct Name<'p> {
    plan: &'p Plan,
    node: usize,
    wrapper: Option<(&'static str, usize)>,
}

impl<'a> DeserializeSeed<'a> for Name<'_> {
    type Value = Known;

    fn deserialize<D: Deserializer<'a>>(self, deserializer: D) -> Result<Known, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for Name<'_> {
    type Value = Known;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a name")
    }
    fn visit_str<E: Error>(self, name: &str) -> Result<Known, E> {
        if let Some(child) = self.plan.child(self.node, name) {
            return Ok(Known::Place(child));
        }
        Ok(self
            .wrapper
            .filter(|(outer, _)| *outer == name)
            .map_or(Known::Not, |(_, root)| Known::Wrapped(root)))
    }
}
