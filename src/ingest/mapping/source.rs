//! Where a field of an event comes from, as the settings write it; the top of [`super`] has the forms.

use super::Envelope;
use super::plan::Plan;

/// The envelope field of CloudEvents under which its data stand.
pub(super) const DATA: usize = 0;

/// A place in the value of a message. In the deletion of a row, what is read after a change is read before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub after: usize,
    pub before: Option<usize>,
}

/// Where a field comes from.
#[derive(Debug)]
pub(super) enum Source {
    Value(Place),
    Item(usize),
    Key(usize),
    Header(Box<str>),
    /// An attribute of a CloudEvent: its header, and its place in the envelope.
    Attribute(Box<str>, usize),
    Constant(Box<str>),
    Template(Vec<Piece>),
}

/// A part of a template.
#[derive(Debug)]
pub(super) enum Piece {
    Text(Box<str>),
    Of(Source),
}

impl Source {
    /// Whether it reads the element of an array.
    pub fn reads_item(&self) -> bool {
        match self {
            Self::Item(_) => true,
            Self::Template(pieces) => {
                pieces.iter().any(|piece| matches!(piece, Piece::Of(source) if source.reads_item()))
            }
            _ => false,
        }
    }
}

/// Every place that a mapping reads.
#[derive(Debug)]
pub(super) struct Plans {
    pub value: Plan,
    /// Where the attributes of CloudEvents stand in `value`.
    pub attributes: usize,
    pub item: Plan,
    pub key: Plan,
    pub envelope: Envelope,
    /// Whether there are elements.
    pub has_items: bool,
    pub reads_key: bool,
}

impl Plans {
    pub fn new(envelope: Envelope, has_items: bool) -> Self {
        let (mut value, mut item, mut key) = (Plan::default(), Plan::default(), Plan::default());
        value.root("the value");
        let attributes = value.root("the CloudEvent");
        item.root("the element");
        key.root("the key");
        Self { value, attributes, item, key, envelope, has_items, reads_key: false }
    }

    /// A place in the value.
    pub fn place(&mut self, pointer: &str) -> Result<Place, String> {
        let after = self.value.add(DATA, pointer)?;
        let row = pointer.strip_prefix("/after").filter(|rest| rest.is_empty() || rest.starts_with('/'));
        let before = match row.filter(|_| self.envelope == Envelope::Debezium) {
            Some(rest) => Some(self.value.add(DATA, &format!("/before{rest}"))?),
            None => None,
        };
        Ok(Place { after, before })
    }

    /// Reads where a field comes from.
    pub fn source(&mut self, text: &str) -> Result<Source, String> {
        if let Some(constant) = text.strip_prefix("const:") {
            return match constant {
                "" => Err("const: needs a text behind it".to_owned()),
                _ => Ok(Source::Constant(constant.into())),
            };
        }
        if text.contains(['{', '}']) { self.template(text) } else { self.atom(text) }
    }

    fn atom(&mut self, text: &str) -> Result<Source, String> {
        if text.starts_with('/') {
            return self.place(text).map(Source::Value);
        }
        let (kind, rest) = text.split_once(':').unwrap_or(("", text));
        match kind {
            "item" if !self.has_items => {
                Err("item: reads an element of the array that each names; set each".into())
            }
            "item" => self.item.add(0, rest).map(Source::Item),
            "key" => {
                self.reads_key = true;
                self.key.add(0, rest).map(Source::Key)
            }
            "header" if !rest.is_empty() => Ok(Source::Header(rest.into())),
            "attribute" if self.envelope != Envelope::CloudEvents => {
                Err("attribute: reads an attribute of a CloudEvent; set envelope = \"cloudevents\"".into())
            }
            "attribute" if !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_alphanumeric()) => {
                let place = self.value.add(self.attributes, &format!("/{rest}"))?;
                Ok(Source::Attribute(rest.into(), place))
            }
            _ => Err(format!(
                "{text:?} names nothing: write a pointer (/user/id, item:/id, key:/id), header:NAME, attribute:NAME, \
                 const:TEXT, or a template (user:{{/user/id}})"
            )),
        }
    }

    fn template(&mut self, text: &str) -> Result<Source, String> {
        let (mut pieces, mut plain, mut rest) = (Vec::new(), String::new(), text);
        while let Some(at) = rest.find(['{', '}']) {
            plain.push_str(&rest[..at]);
            let brace = &rest[at..=at];
            rest = &rest[at + 1..];
            if let Some(behind) = rest.strip_prefix(brace) {
                plain.push_str(brace);
                rest = behind;
                continue;
            }
            let inside = if brace == "{" { rest.split_once('}') } else { None };
            let Some((inner, behind)) = inside else {
                return Err(format!("a brace of {text:?} has no other one; a brace itself is written twice"));
            };
            if !plain.is_empty() {
                pieces.push(Piece::Text(std::mem::take(&mut plain).into()));
            }
            pieces.push(Piece::Of(self.atom(inner)?));
            rest = behind;
        }
        plain.push_str(rest);
        if !plain.is_empty() {
            pieces.push(Piece::Text(plain.into()));
        }
        Ok(Source::Template(pieces))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<String, String> {
        let mut plans = Plans::new(Envelope::CloudEvents, true);
        let source = plans.source(text)?;
        Ok(show(&plans, &source))
    }

    fn show(plans: &Plans, source: &Source) -> String {
        match source {
            Source::Value(place) => plans.value.path(place.after),
            Source::Item(node) => format!("item {}", plans.item.path(*node)),
            Source::Key(node) => format!("key {}", plans.key.path(*node)),
            Source::Header(name) => format!("header {name}"),
            Source::Attribute(name, _) => format!("attribute {name}"),
            Source::Constant(text) => format!("constant {text}"),
            Source::Template(pieces) => {
                let piece = |piece: &Piece| match piece {
                    Piece::Text(text) => format!("[{text}]"),
                    Piece::Of(source) => format!("({})", show(plans, source)),
                };
                pieces.iter().map(piece).collect()
            }
        }
    }

    #[test]
    fn every_form_is_read_and_no_other() {
        for (text, expected) in [
            ("/a/b", "/a/b"),
            ("item:/sku", "item /sku"),
            ("item:", "item the element"),
            ("key:", "key the key"),
            ("key:/id", "key /id"),
            ("header:ce-time", "header ce-time"),
            ("attribute:time", "attribute time"),
            ("const:{a}", "constant {a}"),
            ("user:{/id}", "[user:](/id)"),
            ("{key:/a}-{item:/b}", "(key /a)[-](item /b)"),
            ("a{{b}}{/c}", "[a{b}](/c)"),
        ] {
            assert_eq!(parse(text).as_deref(), Ok(expected), "{text}");
        }
        for bad in ["id", "const:", "header:", "attribute:a-b", "{/a", "a}b", "{}", "{id}", "file:/x", "/a~"]
        {
            assert!(parse(bad).is_err(), "{bad}");
        }
        let mut plain = Plans::new(Envelope::None, false);
        assert!(plain.source("item:/a").unwrap_err().contains("set each"));
        assert!(plain.source("attribute:id").unwrap_err().contains("cloudevents"));
    }

    #[test]
    fn a_deleted_row_is_read_as_it_was() {
        let mut plans = Plans::new(Envelope::Debezium, false);
        let place = plans.place("/after/id").unwrap();
        assert_eq!(place.before.map(|node| plans.value.path(node)).as_deref(), Some("/before/id"));
        assert_eq!(plans.place("/afterwards").unwrap().before, None);
    }
}
