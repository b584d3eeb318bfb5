//! Responses as Arrow: the columns of a response as a stream of the Arrow IPC format with one record batch, for
//! clients whose `Accept` lists it.
//!
//! A batch is made of what JSON is written from, so both hold the same bits. The rest of the document, all but the
//! rows, stands as JSON in the metadata of the schema, under the key [`ABOUT`]. Errors stay JSON.

mod responses;

use std::convert::Infallible;
use std::sync::Arc;

use arrow_array::{ArrayRef, FixedSizeListArray, Float32Array, RecordBatch};
use arrow_buffer::NullBuffer;
use arrow_ipc::writer::StreamWriter;
use arrow_schema::{ArrowError, DataType, Field, Schema};
use axum::extract::FromRequestParts;
use axum::http::HeaderMap;
use axum::http::header::ACCEPT;
use axum::http::request::Parts;
use serde::Serialize;

use super::export::{EDGES, EMBEDDINGS};
use super::index_wire::{SimilarNodesResponse, TopLinksResponse};
use super::wire::{EmbeddingsResponse, ScoresResponse};

/// The media type of a stream of the Arrow IPC format.
pub(super) const ARROW_STREAM: &str = "application/vnd.apache.arrow.stream";

/// The key in the metadata of the schema.
const ABOUT: &str = "evergraph";

/// Whether a client wants Arrow: its `Accept` lists the media type, and nothing that JSON is with a larger weight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct WantsArrow(pub bool);

impl WantsArrow {
    fn of(headers: &HeaderMap) -> Self {
        let values = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
        // The narrowest range decides about JSON. RFC 9110, section 12.5.1.
        let (mut arrow, mut json) = (0.0, (0, 0.0));
        for range in values.flat_map(|value| value.split(',')) {
            let mut parts = range.split(';').map(str::trim);
            let media = parts.next().unwrap_or_default().to_ascii_lowercase();
            let weight = parts.find_map(|part| part.strip_prefix("q=").or_else(|| part.strip_prefix("Q=")));
            let weight = weight.map_or(1.0, |weight| weight.parse::<f32>().unwrap_or(0.0));
            let width = ["*/*", "application/*", "application/json"].iter().position(|one| *one == media);
            match width {
                Some(width) if width >= json.0 => json = (width, weight),
                _ if media == ARROW_STREAM => arrow = weight,
                _ => {}
            }
        }
        Self(arrow > 0.0 && arrow >= json.1)
    }
}

impl<S: Sync> FromRequestParts<S> for WantsArrow {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        Ok(Self::of(&parts.headers))
    }
}

/// What a column holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A text.
    Text,
    /// A vector as long as embeddings.
    Vector,
    /// A number.
    Number,
    /// Yes or no.
    Flag,
    /// An event time, in the unit of the stream.
    Time,
    /// A place in a list, from 0 on.
    Place,
    /// A log position.
    Position,
    /// A vector as long as feature rows of edges.
    Features,
}

impl Kind {
    /// The type in Arrow's words.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Text => "utf8",
            Self::Vector => "fixed_size_list<float32 not null>[embedding_dimension]",
            Self::Number => "float32",
            Self::Flag => "bool",
            Self::Time => "int64",
            Self::Place => "uint32",
            Self::Position => "uint64",
            Self::Features => "fixed_size_list<float32 not null>[edge_feature_dimension]",
        }
    }

    fn data_type(self, width: i32) -> DataType {
        match self {
            Self::Text => DataType::Utf8,
            Self::Vector | Self::Features => DataType::FixedSizeList(value_field(), width),
            Self::Number => DataType::Float32,
            Self::Flag => DataType::Boolean,
            Self::Time => DataType::Int64,
            Self::Place => DataType::UInt32,
            Self::Position => DataType::UInt64,
        }
    }
}

/// The field of a vector's values.
fn value_field() -> Arc<Field> {
    Arc::new(Field::new_list_field(DataType::Float32, false))
}

/// A column of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Column {
    pub name: &'static str,
    pub kind: Kind,
    pub nullable: bool,
    /// What it holds, for the OpenAPI document.
    pub words: &'static str,
}

impl Column {
    /// A text.
    pub(super) const fn text(name: &'static str, words: &'static str) -> Self {
        Self { name, kind: Kind::Text, nullable: false, words }
    }

    /// Of another kind.
    pub(super) const fn of(name: &'static str, kind: Kind, words: &'static str) -> Self {
        Self { name, kind, nullable: false, words }
    }

    /// The same, whose values may be null.
    pub(super) const fn or_null(self) -> Self {
        Self { nullable: true, ..self }
    }
}

/// A response that has a form in columns.
pub(super) trait Columns {
    /// The columns, in order.
    const COLUMNS: &'static [Column];
    /// All but the rows.
    type About: Serialize;

    /// The columns' values and the rest; vectors are `width` long.
    fn columns(self, width: usize) -> Result<(Vec<ArrayRef>, Self::About), ArrowError>;
}

/// The schema of columns, vectors of which are `width` long, with the rest of a document.
pub(super) fn schema(
    columns: &[Column],
    width: usize,
    about: &impl Serialize,
) -> Result<Arc<Schema>, ArrowError> {
    let width = width_of(width)?;
    let about = serde_json::to_string(about).map_err(|error| ArrowError::JsonError(error.to_string()))?;
    let field = |column: &Column| Field::new(column.name, column.kind.data_type(width), column.nullable);
    let fields: Vec<Field> = columns.iter().map(field).collect();
    Ok(Arc::new(Schema::new_with_metadata(fields, [(ABOUT.to_owned(), about)])))
}

fn width_of(width: usize) -> Result<i32, ArrowError> {
    i32::try_from(width).map_err(|error| ArrowError::InvalidArgumentError(error.to_string()))
}

/// A column of vectors that are `width` long, null where there is none.
pub(super) fn vectors<'a>(
    vectors: impl ExactSizeIterator<Item = Option<&'a [f32]>>,
    width: usize,
) -> Result<ArrayRef, ArrowError> {
    let mut values = Vec::with_capacity(vectors.len() * width);
    let mut valid = Vec::with_capacity(vectors.len());
    for vector in vectors {
        valid.push(vector.is_some());
        match vector {
            Some(vector) => values.extend_from_slice(vector),
            None => values.resize(values.len() + width, 0.0),
        }
    }
    let (values, valid) = (Arc::new(Float32Array::from(values)), NullBuffer::from(valid));
    Ok(Arc::new(FixedSizeListArray::try_new(value_field(), width_of(width)?, values, Some(valid))?))
}

/// A response as a stream.
pub(super) fn stream<T: Columns>(response: T, width: usize) -> Result<Vec<u8>, ArrowError> {
    let (arrays, about) = response.columns(width)?;
    let schema = schema(T::COLUMNS, width, &about)?;
    let batch = RecordBatch::try_new(schema.clone(), arrays)?;
    let mut writer = StreamWriter::try_new(Vec::new(), &schema)?;
    writer.write(&batch)?;
    writer.into_inner()
}

/// The columns of an operation's response, for the OpenAPI document.
pub(super) fn columns_of(operation: &str) -> Option<&'static [Column]> {
    match operation {
        "compute_embeddings" => Some(EmbeddingsResponse::COLUMNS),
        "score_links" => Some(ScoresResponse::COLUMNS),
        "find_top_links" => Some(TopLinksResponse::COLUMNS),
        "find_similar_nodes" => Some(SimilarNodesResponse::COLUMNS),
        "export_embeddings" => Some(EMBEDDINGS),
        "export_edges" => Some(EDGES),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    #[test]
    fn arrow_is_for_clients_that_name_it_and_like_json_no_better() {
        let wants = |accept: &str| {
            let headers = [(ACCEPT, HeaderValue::from_str(accept).unwrap())].into_iter().collect();
            WantsArrow::of(&headers).0
        };
        for wanted in [
            "application/vnd.apache.arrow.stream",
            "Application/Vnd.Apache.Arrow.Stream; q=0.5",
            "application/json;q=0.9, application/vnd.apache.arrow.stream",
            "application/vnd.apache.arrow.stream, application/json",
            "application/vnd.apache.arrow.stream;q=0.5, application/json;q=0.2, */*",
            "application/vnd.apache.arrow.stream, application/problem+json",
        ] {
            assert!(wants(wanted), "{wanted}");
        }
        for other in [
            "",
            "*/*",
            "application/*",
            "application/json",
            "text/csv",
            "application/vnd.apache.arrow.file",
            "application/vnd.apache.arrow.stream;q=0",
            "application/vnd.apache.arrow.stream;q=much",
            "application/json, application/vnd.apache.arrow.stream;q=0.9",
            "application/vnd.apache.arrow.stream;q=0.9, */*",
        ] {
            assert!(!wants(other), "{other}");
        }
        assert!(!WantsArrow::of(&HeaderMap::new()).0);
    }
}
