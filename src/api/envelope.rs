//! The layers around every handler: request id, metrics, admission, panics, error rendering.

use std::any::Any;
use std::fmt::Display;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderMap, Method, StatusCode, Uri};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use prometheus::IntGauge;
use tokio::sync::OwnedSemaphorePermit;

use super::App;
use super::drain::drain_unread_body;
use super::error::{ApiError, render, wants_problem};
use super::request_id::RequestId;
use super::requests_log::{Asked, log_refused};

/// Permission to work on a request. Held until the work ends, which may be after the client disconnects.
#[derive(Clone)]
pub(super) struct Permit {
    _held: Arc<OwnedSemaphorePermit>,
}

impl Permit {
    /// A permit that lasts as long as `held`.
    pub(super) fn new(held: OwnedSemaphorePermit) -> Self {
        Self { _held: Arc::new(held) }
    }
}

/// Counts a request as in flight until it ends or the client disconnects.
struct Inflight<'a>(&'a IntGauge);

impl<'a> Inflight<'a> {
    fn enter(gauge: &'a IntGauge) -> Self {
        gauge.inc();
        Self(gauge)
    }
}

impl Drop for Inflight<'_> {
    fn drop(&mut self) {
        self.0.dec();
    }
}

/// When the body of a request was here or given up; the time before that is the client's.
#[derive(Clone, Default)]
pub(super) struct Arrival(Arc<OnceLock<Instant>>);

impl Arrival {
    /// Notes that nothing of the request is awaited any more.
    pub(super) fn note(&self) {
        let _ = self.0.set(Instant::now());
    }
}

/// Gives a request its id, measures it, and writes its response as an error, if it ends in one.
pub(super) async fn envelope(State(app): State<App>, mut request: Request, next: Next) -> Response {
    let metrics = &app.state.metrics.http;
    let started = Instant::now();
    let _inflight = Inflight::enter(&metrics.inflight_requests);
    let route = request.extensions().get::<MatchedPath>().cloned();
    let route = route.as_ref().map_or("unmatched", MatchedPath::as_str);
    let request_id = RequestId::of(&request);
    let id = request_id.as_str();
    let asked = Asked::of(&request);
    let as_problem = wants_problem(request.headers());
    let arrival = Arrival::default();
    request.extensions_mut().insert(arrival.clone());
    request.extensions_mut().insert(request_id.clone());

    let response = next.run(drain_unread_body(request)).await;

    let error = response.extensions().get::<ApiError>();
    if let Some(reason) = error.and_then(ApiError::rejection) {
        metrics.rejected.with_label_values(&[reason]).inc();
    }
    if let Some((error, reason)) = error.and_then(|error| Some((error, error.authentication_failure()?))) {
        metrics.authentication_failures.with_label_values(&[reason]).inc();
        log_refused(&app.refused_lines, (error, reason), &asked, (route, id));
    }
    let status = response.status();
    if status == StatusCode::INTERNAL_SERVER_ERROR {
        tracing::error!(
            request_id = id,
            trace_id = asked.trace_id(),
            route,
            "a request failed because of a bug in the daemon"
        );
    }
    metrics.requests.with_label_values(&[route, status.as_str()]).inc();
    let worked = arrival.0.get().unwrap_or(&started).elapsed();
    metrics.request_duration.with_label_values(&[route]).observe(worked.as_secs_f64());
    let mut response = render(response, id, as_problem);
    if app.state.access_log {
        asked.log_access(&response, route, id, started.elapsed());
    }
    request_id.write(&mut response);
    response
}

/// Which permits a group of routes needs.
#[derive(Clone, Copy)]
pub(super) enum Room {
    Queries,
    Pushes,
    /// Status requests and scrapes: they have a fixed number of reserved threads.
    Operations,
    Admin,
    /// All embeddings or edges.
    Exports,
}

/// Takes a permit for a request, which its handler finds among the extensions; none is left: too many are at work.
pub(super) fn admit(app: &App, room: Room, request: &mut Request) -> Result<Permit, ApiError> {
    let room = match room {
        Room::Queries => &app.queries,
        Room::Pushes => &app.pushes,
        Room::Operations => &app.operations,
        Room::Admin => &app.admin_requests,
        Room::Exports => &app.exports,
    };
    let held = Arc::clone(room).try_acquire_owned().map_err(|_| ApiError::Overloaded)?;
    let permit = Permit::new(held);
    request.extensions_mut().insert(permit.clone());
    Ok(permit)
}

/// Admits a request while permits are left.
pub(super) async fn admitted(
    State((app, room)): State<(App, Room)>,
    mut request: Request,
    next: Next,
) -> Response {
    match admit(&app, room, &mut request) {
        Err(refused) => refused.into_response(),
        Ok(_permit) => next.run(request).await,
    }
}

/// Runs blocking or computing work on the blocking pool, under the permit of its request. After `limit` the
/// client gets a timeout error; the work continues and keeps its permit.
pub(super) async fn blocking<T: Send + 'static>(
    permit: Option<Permit>,
    limit: Duration,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, ApiError> {
    let work = move || {
        let done = work();
        drop(permit);
        done
    };
    within(limit, tokio::task::spawn_blocking(work)).await
}

/// Waits for work that goes on elsewhere. After `limit` the client gets a timeout error.
pub(super) async fn within<T, E: Display>(
    limit: Duration,
    work: impl Future<Output = Result<T, E>>,
) -> Result<T, ApiError> {
    let late = |_| ApiError::WorkTimeout { seconds: limit.as_secs_f64() };
    let done = tokio::time::timeout(limit, work).await.map_err(late)?;
    done.map_err(|error| {
        tracing::error!(%error, "the work for a request ended early");
        ApiError::Internal
    })
}

/// The response after a panic in a handler. The panic hook has logged the message.
pub(super) fn panicked(_: Box<dyn Any + Send + 'static>) -> Response {
    ApiError::Internal.into_response()
}

/// The response for an unknown path.
pub(super) async fn unknown_route(uri: Uri) -> ApiError {
    ApiError::UnknownRoute { path: uri.path().to_owned() }
}

/// The response for an unsupported method; the router sets `Allow`.
pub(super) async fn method_not_allowed(method: Method, uri: Uri) -> ApiError {
    ApiError::Method { path: uri.path().to_owned(), method: method.to_string() }
}

/// The media type of a body, without parameters, in lower case; `None` without the header.
pub(super) fn media_type(headers: &HeaderMap) -> Option<String> {
    let value = headers.get(axum::http::header::CONTENT_TYPE)?.to_str().ok()?;
    value.split(';').next().map(|kind| kind.trim().to_ascii_lowercase())
}
