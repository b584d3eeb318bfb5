//! Exports: all embeddings and all edges, as streams of the Arrow IPC format. Each slice is computed once the
//! connection has taken the one before, by the threads for large requests, so an export takes no more memory than a
//! slice, whatever the speed of its client.

use std::sync::Arc;

use arrow_array::{Int64Array, RecordBatch, StringArray, UInt64Array};
use arrow_ipc::writer::StreamWriter;
use arrow_schema::{ArrowError, Schema};
use axum::Extension;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use futures_util::{StreamExt, stream};
use serde::Serialize;

use super::App;
use super::arrow::{ARROW_STREAM, Column, Kind, schema, vectors};
use super::envelope::{Permit, blocking};
use super::error::{ApiError, ErrorBody};
use super::wire::{Freshness, Source};
use crate::serving::{EdgeExport, EdgeSlice, EmbeddingExport, EmbeddingSlice, NodeEmbedding, QueryError};

/// Exports at a time: each may keep a second copy of what the model remembers of nodes.
pub(super) const EXPORTS_MAX: usize = 1;

const KEY: &str = "key as text";
const TYPE: &str = "type";
const FEATURES: &str = "features";

/// The columns of an export of embeddings.
pub(super) const EMBEDDINGS: &[Column] = &[
    Column::text("node", KEY),
    Column::of("embedding", Kind::Vector, "Its embedding; null where the model's output is not finite")
        .or_null(),
    Column::of("learned_event", Kind::Time, "Event time of its latest event that the model has learned"),
];

/// The columns of an export of edges: [`TYPE`] only where types are kept, [`FEATURES`] where edges have any.
pub(super) const EDGES: &[Column] = &[
    Column::text("src", KEY),
    Column::text("dst", KEY),
    Column::of("ts", Kind::Time, "Event time"),
    Column::of("position", Kind::Position, "Log position: the order of arrival"),
    Column::text(
        TYPE,
        "The type, null where the event had none or its row was released; no such column where \
        `model.edge_types` is 0",
    )
    .or_null(),
    Column::of(
        FEATURES,
        Kind::Features,
        "The feature row, zeros where the event had none; null where it was \
        released, and no such column where the length of rows is 0",
    )
    .or_null(),
];

/// What an export of embeddings says of itself.
#[derive(Debug, Serialize)]
struct AboutEmbeddings {
    /// Every log position below is reflected, and none from it on.
    position: u64,
    /// Rows, but for nodes that are deleted meanwhile.
    rows_expected: usize,
    at: i64,
    source: Source,
    freshness: Freshness,
}

/// What an export of edges says of itself.
#[derive(Debug, Serialize)]
struct AboutEdges {
    /// Every edge below is there, and none from it on.
    position: u64,
    /// Rows, but for edges that come or go meanwhile.
    rows_expected: u64,
}

/// What is exported, in order.
trait Slices: Send + 'static {
    /// The next rows; `None` behind the last ones.
    fn next_batch(&mut self, schema: &Arc<Schema>) -> Result<Option<RecordBatch>, ExportError>;
}

/// Why an export cannot go on.
#[derive(Debug, thiserror::Error)]
enum ExportError {
    #[error(transparent)]
    Query(#[from] QueryError),
    #[error(transparent)]
    Arrow(#[from] ArrowError),
}

impl Slices for EmbeddingExport {
    fn next_batch(&mut self, schema: &Arc<Schema>) -> Result<Option<RecordBatch>, ExportError> {
        let Some(slice) = self.next_slice()? else { return Ok(None) };
        let EmbeddingSlice { nodes, embeddings, learned_events } = slice;
        let nodes = StringArray::from_iter_values(nodes.iter().map(ToString::to_string));
        let vectors = vectors(embeddings.iter().map(vector_of), self.dimension())?;
        let times = Int64Array::from_iter_values(learned_events.iter().map(|time| time.0));
        Ok(Some(RecordBatch::try_new(schema.clone(), vec![Arc::new(nodes), vectors, Arc::new(times)])?))
    }
}

fn vector_of(embedding: &NodeEmbedding) -> Option<&[f32]> {
    match embedding {
        NodeEmbedding::Found { vector, .. } => Some(vector),
        NodeEmbedding::Unknown | NodeEmbedding::NotFinite => None,
    }
}

impl Slices for EdgeExport {
    fn next_batch(&mut self, schema: &Arc<Schema>) -> Result<Option<RecordBatch>, ExportError> {
        let Some(EdgeSlice { edges, rows }) = self.next_slice()? else { return Ok(None) };
        let src = StringArray::from_iter_values(edges.iter().map(|(src, ..)| src.to_string()));
        let dst = StringArray::from_iter_values(edges.iter().map(|(_, dst, _)| dst.to_string()));
        let times = Int64Array::from_iter_values(edges.iter().map(|(.., edge)| edge.time.0));
        let positions = UInt64Array::from_iter_values(edges.iter().map(|(.., edge)| edge.edge.0));
        let mut columns: Vec<arrow_array::ArrayRef> =
            vec![Arc::new(src), Arc::new(dst), Arc::new(times), Arc::new(positions)];
        if self.has_types() {
            columns.push(Arc::new(rows.iter().map(|row| row.edge_type.as_deref()).collect::<StringArray>()));
        }
        if self.feature_dimension() > 0 {
            let features = rows.iter().map(|row| row.features.as_deref());
            columns.push(vectors(features, self.feature_dimension())?);
        }
        Ok(Some(RecordBatch::try_new(schema.clone(), columns)?))
    }
}

/// The embeddings of all nodes, as of one log position.
///
/// Nodes that the model has learned nothing of yet are left out, and so is what is deleted meanwhile. The metadata of
/// the schema holds, as JSON under the key `evergraph`: `position`, below which every event is reflected and none from
/// it on; `rows_expected`; `at`, `source` and `freshness` as of `POST /v1/embeddings`. One export at a time.
#[utoipa::path(
    get, path = "/v1/export/embeddings", tag = "query", operation_id = "export_embeddings",
    responses(
        (status = 200, description = "A row for each node, the oldest first"),
        (status = 503, description = "Another export is running, or no version of the model was promoted yet \
            (`no_model`)", body = ErrorBody),
        (status = 504, description = "It took too long to begin", body = ErrorBody),
    )
)]
pub(super) async fn embeddings(
    State(app): State<App>,
    Extension(permit): Extension<Permit>,
) -> Result<Response, ApiError> {
    let engine = app.state.engine.clone();
    let begin = move || engine.export_embeddings();
    let export = blocking(Some(permit.clone()), app.state.limits.request_timeout, begin).await??;
    let about = AboutEmbeddings {
        position: export.freshness().applied_position,
        rows_expected: export.len(),
        at: export.at().0,
        source: export.source().into(),
        freshness: export.freshness().into(),
    };
    let schema = schema(EMBEDDINGS, export.dimension(), &about);
    respond(app, permit, schema, export)
}

/// All edges of the graph, as of one log position: by source node, and of each the newest first.
///
/// What is deleted meanwhile, or released by its age, is left out. The metadata of the schema holds, as JSON under the
/// key `evergraph`: `position`, below which every edge is there and none from it on, and `rows_expected`. One export at
/// a time.
#[utoipa::path(
    get, path = "/v1/export/edges", tag = "query", operation_id = "export_edges",
    responses(
        (status = 200, description = "A row for each edge"),
        (status = 503, description = "Another export is running", body = ErrorBody),
    )
)]
pub(super) async fn edges(
    State(app): State<App>,
    Extension(permit): Extension<Permit>,
) -> Result<Response, ApiError> {
    let export = app.state.engine.export_edges();
    let about = AboutEdges { position: export.position().0, rows_expected: export.edges() };
    let is_there = |column: &&Column| match column.name {
        TYPE => export.has_types(),
        FEATURES => export.feature_dimension() > 0,
        _ => true,
    };
    let columns: Vec<Column> = EDGES.iter().filter(is_there).copied().collect();
    let schema = schema(&columns, export.feature_dimension(), &about);
    respond(app, permit, schema, export)
}

/// An export on its way.
struct Running<S> {
    app: App,
    /// Held until the last slice is made.
    _permit: Permit,
    schema: Arc<Schema>,
    writer: StreamWriter<Vec<u8>>,
    slices: S,
}

impl<S: Slices> Running<S> {
    /// The bytes of the next slice, and what is left.
    fn step(mut self) -> Result<(Bytes, Option<Self>), ExportError> {
        match self.slices.next_batch(&self.schema)? {
            Some(batch) => {
                self.writer.write(&batch)?;
                let bytes = std::mem::take(self.writer.get_mut());
                Ok((bytes.into(), Some(self)))
            }
            None => Ok((self.writer.into_inner()?.into(), None)),
        }
    }

    /// The same by the threads for large requests. An error ends the connection, so that no client takes the part for
    /// the whole.
    async fn next(self) -> std::io::Result<(Bytes, Option<Self>)> {
        let app = self.app.clone();
        let limit = app.state.limits.request_timeout;
        // The permit goes with the export: it is given back before the last bytes are sent.
        let done = app.state.bulk.run(None, limit, move || self.step()).await;
        let failed = match done {
            Ok(Ok(step)) => return Ok(step),
            Ok(Err(error)) => error.to_string(),
            Err(error) => error.to_string(),
        };
        tracing::error!(error = failed, "an export ended early");
        Err(std::io::Error::other(failed))
    }
}

fn respond<S: Slices>(
    app: App,
    permit: Permit,
    schema: Result<Arc<Schema>, ArrowError>,
    slices: S,
) -> Result<Response, ApiError> {
    let begun = schema.and_then(|schema| Ok((StreamWriter::try_new(Vec::new(), &schema)?, schema)));
    let (mut writer, schema) = begun.map_err(|error| {
        tracing::error!(%error, "an export cannot be written");
        ApiError::Internal
    })?;
    let head = Bytes::from(std::mem::take(writer.get_mut()));
    let running = Running { app, _permit: permit, schema, writer, slices };
    let next = |running: Option<Running<S>>| async move {
        match running {
            Some(running) => running.next().await.map(Some),
            None => Ok(None),
        }
    };
    let slices = stream::try_unfold(Some(running), next);
    let body = Body::from_stream(stream::iter([Ok(head)]).chain(slices));
    Ok(([(CONTENT_TYPE, ARROW_STREAM)], body).into_response())
}
