//! A schema of Avro as a list of nodes that refer to one another by place: types may contain themselves.

use std::collections::HashMap;

use serde_json::{Map, Value};

/// A type.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Node {
    Null,
    Boolean,
    Int,
    Long,
    Float,
    Double,
    Bytes,
    String,
    /// Of these elements.
    Array(usize),
    /// From texts to these values.
    Map(usize),
    Union(Vec<usize>),
    /// Fields with their names.
    Record(Vec<(Box<str>, usize)>),
    Enum(Vec<Box<str>>),
    /// So many bytes.
    Fixed(usize),
    /// An integer of so many bytes, or of a length before them, which counts units of 10^-scale.
    Decimal {
        scale: usize,
        size: Option<usize>,
    },
    /// A type that stands elsewhere.
    Of(usize),
}

/// Reads schemas.
#[derive(Default)]
struct Reader {
    nodes: Vec<Node>,
    /// Named types by their full names.
    names: HashMap<String, usize>,
    /// Places of names: the full name, and the one that it has without a namespace around it.
    open: Vec<(usize, String, String)>,
}

/// The nodes of a schema, the first of which is its root, with the types of others that it refers to.
///
/// # Errors
/// What is wrong with it.
pub(super) fn parse(schema: &str, references: &[String]) -> Result<Vec<Node>, String> {
    let mut reader = Reader::default();
    for text in std::iter::once(schema).chain(references.iter().map(String::as_str)) {
        let document: Value =
            serde_json::from_str(text).map_err(|error| format!("it is not JSON: {error}"))?;
        reader.read(&document, "")?;
    }
    for (place, full, bare) in std::mem::take(&mut reader.open) {
        let found = reader.names.get(&full).or_else(|| reader.names.get(&bare));
        let target = found.ok_or_else(|| format!("it names the type {full}, which is not there"))?;
        if let Some(node) = reader.nodes.get_mut(place) {
            *node = Node::Of(*target);
        }
    }
    Ok(reader.nodes)
}

fn full_name(name: &str, namespace: &str) -> String {
    match name.contains('.') || namespace.is_empty() {
        true => name.trim_start_matches('.').to_owned(),
        false => format!("{namespace}.{name}"),
    }
}

fn primitive(name: &str) -> Option<Node> {
    Some(match name {
        "null" => Node::Null,
        "boolean" => Node::Boolean,
        "int" => Node::Int,
        "long" => Node::Long,
        "float" => Node::Float,
        "double" => Node::Double,
        "bytes" => Node::Bytes,
        "string" => Node::String,
        _ => return None,
    })
}

/// The list of a key.
fn list<'v>(object: &'v Map<String, Value>, key: &str) -> Result<&'v [Value], String> {
    let found = object.get(key).and_then(Value::as_array);
    found.map(Vec::as_slice).ok_or_else(|| format!("a type has no list of {key}"))
}

impl Reader {
    /// Reads a type inside a namespace; returns its place.
    fn read(&mut self, schema: &Value, namespace: &str) -> Result<usize, String> {
        // The place comes before those of the parts.
        let place = self.nodes.len();
        self.nodes.push(Node::Null);
        let node = match schema {
            Value::String(name) => self.name(name, namespace, place),
            Value::Array(branches) => {
                let branches = branches.iter().map(|branch| self.read(branch, namespace));
                Node::Union(branches.collect::<Result<_, _>>()?)
            }
            Value::Object(object) => self.object(object, namespace, place)?,
            other => return Err(format!("{other} is no type")),
        };
        if let Some(slot) = self.nodes.get_mut(place) {
            *slot = node;
        }
        Ok(place)
    }

    fn name(&mut self, name: &str, namespace: &str, place: usize) -> Node {
        primitive(name).unwrap_or_else(|| {
            self.open.push((place, full_name(name, namespace), name.to_owned()));
            Node::Null
        })
    }

    fn object(&mut self, object: &Map<String, Value>, namespace: &str, place: usize) -> Result<Node, String> {
        let kind = match object.get("type") {
            Some(Value::String(kind)) => kind.as_str(),
            // A type in a type of its own.
            Some(inner) => return self.read(inner, namespace).map(Node::Of),
            None => return Err("a type has no \"type\"".to_owned()),
        };
        let part = |key: &str| object.get(key).ok_or_else(|| format!("{kind} has no {key}"));
        match kind {
            "array" => self.read(part("items")?, namespace).map(Node::Array),
            "map" => self.read(part("values")?, namespace).map(Node::Map),
            "record" | "error" => {
                let namespace = self.declare(object, namespace, place)?;
                let mut fields = Vec::new();
                for field in list(object, "fields")? {
                    let name = field.get("name").and_then(Value::as_str);
                    let (Some(name), Some(inner)) = (name, field.get("type")) else {
                        return Err("a field has no name or no type".to_owned());
                    };
                    fields.push((name.into(), self.read(inner, &namespace)?));
                }
                Ok(Node::Record(fields))
            }
            "enum" => {
                self.declare(object, namespace, place)?;
                let symbols = list(object, "symbols")?.iter().map(|symbol| symbol.as_str().map(Into::into));
                symbols.collect::<Option<_>>().map(Node::Enum).ok_or("a symbol is no text".to_owned())
            }
            "fixed" => {
                self.declare(object, namespace, place)?;
                let size = part("size")?.as_u64().and_then(|size| usize::try_from(size).ok());
                let size = size.ok_or("the size of a fixed is no number")?;
                Ok(decimal(object, Some(size)).unwrap_or(Node::Fixed(size)))
            }
            "bytes" => Ok(decimal(object, None).unwrap_or(Node::Bytes)),
            name => Ok(self.name(name, namespace, place)),
        }
    }

    /// Notes a named type; returns the namespace of what is inside.
    fn declare(&mut self, object: &Map<String, Value>, around: &str, place: usize) -> Result<String, String> {
        let name = object.get("name").and_then(Value::as_str).ok_or("a named type has no name")?;
        let own = object.get("namespace").and_then(Value::as_str).unwrap_or(around);
        let full = full_name(name, own);
        let namespace = full.rsplit_once('.').map_or(String::new(), |(namespace, _)| namespace.to_owned());
        if self.names.insert(full.clone(), place).is_some() {
            return Err(format!("the type {full} is there twice"));
        }
        Ok(namespace)
    }
}

/// A decimal, if the type is a valid one; as Avro demands, one that is not is what it is made of.
fn decimal(object: &Map<String, Value>, size: Option<usize>) -> Option<Node> {
    if object.get("logicalType")?.as_str()? != "decimal" {
        return None;
    }
    let number = |key: &str| object.get(key).map_or(Some(0), Value::as_u64);
    let (precision, scale) = (number("precision")?, number("scale")?);
    let is_valid = precision > 0 && scale <= precision && precision <= 1000;
    is_valid.then_some(Node::Decimal { scale: usize::try_from(scale).ok()?, size })
}
