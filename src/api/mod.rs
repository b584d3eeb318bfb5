//! Edge: the HTTP API. Serves requests and passes pushed events to an [`Intake`] unparsed.
//!
//! The layers of a request, from the outside in: [`envelope`] gives it an id, measures it and renders errors; a panic
//! becomes a 500; with [`Keys`], its key must have the route's role; its body is [received](receive), within what its
//! client may hold; then on `/v1` data routes it takes a permit or is refused at once, which bounds the queued work; a
//! wait for `min_position` is a task and holds no thread; the handler runs blocking and computing work on the blocking
//! pool, which keeps the permit even if the client disconnects. What is large is parsed, computed, written and
//! [compressed](compression) by [threads of a lower priority](bulk), and counts until it is [sent](sending).
//!
//! Reads only what `serving` publishes. Knows nothing of ingest, the learner and the log: the daemon passes
//! them as an [`Intake`], a status closure and the checks of [`Health`].

mod admin;
mod anomalies;
mod arrow;
mod batcher;
mod body;
mod browser;
mod bulk;
mod certificate;
mod cluster;
mod compression;
mod connections;
mod console;
mod data_route;
mod docs;
mod drain;
mod envelope;
mod error;
mod events;
mod export;
mod health;
mod index;
mod index_wire;
mod info;
mod items;
mod key;
mod keys;
mod limits;
mod map;
mod neighbors;
mod operate;
mod ops;
mod paced;
mod passes;
mod push;
mod query;
mod rate_limit;
mod receive;
mod reload;
mod request_id;
mod requests_log;
mod seek;
mod sending;
mod settings;
mod status;
mod tls;
mod transfer;
mod vector;
mod wire;

use std::num::NonZero;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::middleware::{from_fn_with_state, map_response};
use axum::response::Response;
use axum::routing::{get, post, put};
use tokio::sync::{Semaphore, watch};
use tower_http::catch_panic::CatchPanicLayer;

use self::batcher::Batcher;
use self::envelope::Room;
use self::export::EXPORTS_MAX;
use self::limits::ADMIN_REQUESTS_MAX;
use self::passes::{Engine, OfNodes, OfPairs, OfSimilar, OfSources};
use self::requests_log::Seldom;
use self::transfer::Ledger;
use crate::event::{EdgeId, Intake};
use crate::metrics::Metrics;
use crate::serving::QueryEngine;

pub use admin::{AUDIT, CheckpointResponse, LogLevelResponse, Operator, OperatorError, SourceResponse};
pub use bulk::Bulk;
pub use cluster::ClusterDocument;
pub use connections::{plain, serve};
pub use console::Feed;
pub use docs::openapi_json;
pub use events::REJECTION_REASONS;
pub use health::{Check, Health, HealthReport, Heartbeat, State};
pub use info::{Info, TimeUnit};
pub use keys::{Keys, KeysError, Role};
pub use limits::{ApiLimits, OPERATIONS_MAX};
pub use operate::{Decisions, LogCutResponse, ModelResponse, SnapshotResponse, TrainingResponse};
pub use requests_log::ACCESS;
pub use seek::{PartitionSeek, SeekRequest, SeekResponse};
pub use settings::{ChangedSetting, ReloadResponse};
pub use status::{
    CatchUpDocument, DecisionDocument, FeedDocument, GateDocument, GraphStatus, IngestStatus,
    LearnerDocument, LogStatus, PositionDocument, SourceReport, StatusDocument, TierStatus,
};
pub use tls::{Tls, TlsError, TlsListener};
pub use wire::Freshness;

/// Makes the response of `GET /v1/status`. Called on the blocking pool.
pub type StatusSource = Arc<dyn Fn() -> StatusDocument + Send + Sync>;

/// What the interface is made of.
#[derive(Clone)]
pub struct ApiState {
    /// Computes embeddings and link scores.
    pub engine: Arc<QueryEngine>,
    /// Takes pushed events; `None` where the push source is off.
    pub intake: Option<Arc<dyn Intake>>,
    /// Carries out operators' requests.
    pub operator: Arc<dyn Operator>,
    /// The daemon's metrics.
    pub metrics: Arc<Metrics>,
    /// The daemon's health.
    pub health: Arc<Health>,
    /// Keys that clients must have; without them, the API is open.
    pub keys: Option<Arc<Keys>>,
    /// Names of this daemon besides those that [`browser`] knows, in requests while there are no keys.
    pub allowed_hosts: Vec<String>,
    /// Whether each request is logged.
    pub access_log: bool,
    /// Threads for large requests.
    pub bulk: Arc<Bulk>,
    /// Limits on requests and connections.
    pub limits: ApiLimits,
    /// What runs.
    pub info: Info,
    /// The status document.
    pub status: StatusSource,
}

/// The state that handlers share.
type App = Arc<Shared>;

struct Shared {
    state: ApiState,
    queries: Arc<Semaphore>,
    pushes: Arc<Semaphore>,
    operations: Arc<Semaphore>,
    admin_requests: Arc<Semaphore>,
    exports: Arc<Semaphore>,
    /// Log lines about refused requests, and about refused admin requests.
    refused_lines: Seldom,
    refused_admin_lines: Seldom,
    bodies: Arc<Ledger>,
    responses: Arc<Ledger>,
    embeddings: Arc<Batcher<OfNodes>>,
    scores: Arc<Batcher<OfPairs>>,
    top_links: Arc<Batcher<OfSources>>,
    similar: Arc<Batcher<OfSimilar>>,
    /// One past the last record that responses reflect.
    learned: watch::Receiver<EdgeId>,
    /// One past the last record that is in the rows of the live index.
    embedded: watch::Receiver<EdgeId>,
    feed: Arc<Feed>,
}

impl Shared {
    /// Waits until responses reflect every record below `position`; `false` if `limit` passes first.
    async fn learned(&self, position: EdgeId, limit: Duration) -> bool {
        passes(&self.learned, position, limit).await
    }

    /// The same for the rows of the live index.
    async fn embedded(&self, position: EdgeId, limit: Duration) -> bool {
        passes(&self.embedded, position, limit).await
    }
}

/// Waits until `stage` has come to `position`; `false` if `limit` passes first.
async fn passes(stage: &watch::Receiver<EdgeId>, position: EdgeId, limit: Duration) -> bool {
    let mut stage = stage.clone();
    let passed = stage.wait_for(|passed| *passed >= position);
    matches!(tokio::time::timeout(limit, passed).await, Ok(Ok(_)))
}

/// The routes, in two groups that can have separate addresses.
///
/// Needs a running tokio runtime to serve, not to be built.
pub struct Routes {
    app: App,
    data: Router<App>,
    operations: Router<App>,
}

impl Routes {
    /// The routes over `state`.
    #[must_use]
    pub fn new(state: ApiState) -> Self {
        let (publish, learned) = watch::channel(EdgeId(0));
        state.engine.progress.on_learned(move |passed| {
            publish.send_replace(passed);
        });
        let (publish, embedded) = watch::channel(EdgeId(0));
        state.engine.progress.on_embedded(move |passed| {
            publish.send_replace(passed);
        });
        // Some may wait for the disk.
        let workers = 2 * std::thread::available_parallelism().map_or(1, NonZero::get);
        let bulk = || Arc::clone(&state.bulk);
        let kinds = ["embeddings", "links", "top", "similar"];
        let [for_nodes, for_pairs, for_sources, for_similar] = kinds.map(|kind| Engine {
            engine: state.engine.clone(),
            items: state.metrics.http.pass_items.with_label_values(&[kind]),
        });
        let app: App = Arc::new(Shared {
            embeddings: Batcher::new(workers, bulk(), OfNodes(for_nodes)),
            scores: Batcher::new(workers, bulk(), OfPairs(for_pairs)),
            top_links: Batcher::new(workers, bulk(), OfSources(for_sources)),
            similar: Batcher::new(workers, bulk(), OfSimilar(for_similar)),
            learned,
            embedded,
            queries: Arc::new(Semaphore::new(state.limits.concurrent_queries)),
            pushes: Arc::new(Semaphore::new(state.limits.concurrent_pushes)),
            operations: Arc::new(Semaphore::new(OPERATIONS_MAX)),
            admin_requests: Arc::new(Semaphore::new(ADMIN_REQUESTS_MAX)),
            exports: Arc::new(Semaphore::new(EXPORTS_MAX)),
            refused_lines: Seldom::new(),
            refused_admin_lines: Seldom::new(),
            bodies: Ledger::new(state.limits.bodies_bytes, state.limits.late_bodies),
            responses: Ledger::new(state.limits.responses_bytes, 0),
            feed: console::feed_of(&state),
            state,
        });
        let may = |role| from_fn_with_state((Arc::clone(&app), role), keys::authorize);
        let admitted = |room| from_fn_with_state((Arc::clone(&app), room), envelope::admitted);
        let data_route =
            |role, room| from_fn_with_state((Arc::clone(&app), role, room), data_route::data_route);
        let queries = query_routes().route_layer(data_route(Role::Read, Room::Queries));
        let pushes = Router::new()
            .route("/v1/events", post(push::events))
            .route_layer(data_route(Role::Write, Room::Pushes));
        let exports = export_routes().route_layer(data_route(Role::Read, Room::Exports));
        let about = Router::new()
            .route("/v1/status", get(ops::status))
            .merge(console::stream(app.state.limits.console_pages))
            .route_layer(admitted(Room::Operations))
            .route("/v1/info", get(ops::info))
            .route_layer(may(Role::Read));
        let admin_requests = admin_routes()
            .route_layer(admitted(Room::Admin))
            .route_layer(from_fn_with_state(Arc::clone(&app), receive::receive))
            .route_layer(may(Role::Admin))
            .route_layer(from_fn_with_state(Arc::clone(&app), admin::audit));
        let files = console::files(app.state.limits.console_pages);
        let data = queries.merge(pushes).merge(exports).merge(about).merge(admin_requests).merge(files);
        let scraped = Router::new().route("/metrics", get(ops::metrics));
        let operations = scraped.route_layer(admitted(Room::Operations)).merge(probes());
        Self { app, data, operations }
    }

    /// What pages of the console show, once it is [produced](Feed::produce).
    #[must_use]
    pub fn feed(&self) -> Arc<Feed> {
        Arc::clone(&self.app.feed)
    }

    /// All routes, for one address.
    pub fn merged(self) -> Router {
        let data = self.data.merge(with_docs(&self.app, docs::document(&self.app.state.limits)));
        with_layers(&self.app, data.merge(self.operations))
    }

    /// The routes for users, and those for health checks and scrapers, which need no key.
    pub fn separate(self) -> (Router, Router) {
        let data =
            self.data.merge(with_docs(&self.app, docs::document_without_operations(&self.app.state.limits)));
        (with_layers(&self.app, data), with_layers(&self.app, self.operations))
    }
}

fn probes() -> Router<App> {
    Router::new()
        .route("/livez", get(ops::livez))
        .route("/readyz", get(ops::readyz))
        .route("/healthz", get(ops::healthz))
}

fn query_routes() -> Router<App> {
    Router::new()
        .route("/v1/embeddings", post(query::embeddings))
        .route("/v1/links/score", post(query::link_scores))
        .route("/v1/links/top", post(index::top_links))
        .route("/v1/nodes/similar", post(index::similar_nodes).get(query::node_named_similar))
        .route("/v1/nodes/{key}", get(query::node))
        .route("/v1/nodes/{key}/neighbors", get(neighbors::neighbors))
        .route("/v1/map", get(map::map))
        .route("/v1/anomalies", get(anomalies::anomalies))
}

fn export_routes() -> Router<App> {
    Router::new()
        .route("/v1/export/embeddings", get(export::embeddings))
        .route("/v1/export/edges", get(export::edges))
}

fn admin_routes() -> Router<App> {
    Router::new()
        .route("/v1/admin/checkpoints", post(admin::checkpoint))
        .route("/v1/admin/sources/{source}", put(admin::source))
        .route("/v1/admin/sources/{source}/seek", post(seek::seek))
        .route("/v1/admin/reload", post(settings::reload))
        .route("/v1/admin/log-level", get(admin::log_level).put(admin::set_log_level))
        .route("/v1/admin/model/promote", post(operate::promote))
        .route("/v1/admin/model/rollback", post(operate::roll_back))
        .route("/v1/admin/training", put(operate::training))
        .route("/v1/admin/snapshots", post(operate::snapshot))
        .route("/v1/admin/log/cut", post(operate::cut_log))
}

/// The pages about the interface. They count like other large responses; status and metrics do not, so that clients who
/// read slowly do not keep them away.
fn with_docs(app: &App, document: serde_json::Value) -> Router<App> {
    let protected = map_response(async |mut response: Response| {
        docs::protect(response.headers_mut());
        response
    });
    let pages = Router::from(docs::swagger_ui(document)).layer(protected);
    pages.layer(from_fn_with_state(Arc::clone(app), sending::hold))
}

/// Adds the layers that all routes share.
fn with_layers(app: &App, routes: Router<App>) -> Router {
    routes
        .fallback(envelope::unknown_route)
        .method_not_allowed_fallback(envelope::method_not_allowed)
        .layer(DefaultBodyLimit::max(app.state.limits.body_bytes))
        .layer(CatchPanicLayer::custom(envelope::panicked))
        .layer(from_fn_with_state(Arc::clone(app), envelope::envelope))
        .with_state(Arc::clone(app))
}
