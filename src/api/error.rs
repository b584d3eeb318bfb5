//! Every error of the API, and the one JSON shape that reports it.
//!
//! An [`ApiError`] travels inside its response and is written as text only in [`render`], at the edge of
//! the router, where the request id is known. Knows status codes and nothing of the handlers.

mod convert;
mod details;
mod kind;
mod problem;
mod render;

use axum::http::header::{RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde_json::Value;
use thiserror::Error;
use utoipa::ToSchema;

pub use self::kind::ErrorType;
pub(super) use self::problem::{PROBLEM_JSON, Problem, is_wanted as wants_problem};
pub(super) use self::render::{render, shortened};
use super::events::Rejected;
use super::key::Key;
use super::wire::Freshness;

/// The body of every error response.
#[derive(Debug, Serialize, ToSchema)]
pub struct ErrorBody {
    /// What went wrong and what to do, for people.
    #[schema(example = "no node has the key 7")]
    pub error: String,
    #[allow(missing_docs)] // words beside a reference would be a second schema
    pub error_type: ErrorType,
    /// Facts about this failure; an object whose fields depend on `error_type`.
    #[schema(value_type = Object)]
    pub details: Value,
    /// The id of the request, as in the header `x-request-id`.
    pub request_id: String,
}

/// Why a request failed.
#[derive(Clone, Debug, Error)]
pub enum ApiError {
    /// The body is no JSON at all.
    #[error("the body is not readable: {0}")]
    Unreadable(String),
    /// A well-formed value is not allowed.
    #[error("{0}")]
    Invalid(String),
    /// The route does not read this content type.
    #[error("the content type must be {expected}; send that header with the body")]
    ContentType {
        /// What the route reads.
        expected: &'static str,
    },
    /// The body is longer than the limit.
    #[error("the body is larger than {limit} bytes; send it in parts")]
    BodyTooLarge {
        /// Largest body in bytes.
        limit: usize,
    },
    /// The body is compressed.
    #[error("the body has the content-encoding {found:?}; send it uncompressed")]
    ContentEncoding {
        /// The header.
        found: String,
    },
    /// The request asks for more than the limit.
    #[error("limit is {found}, and {limit} is the most; ask for fewer, or in several requests")]
    LimitTooLarge {
        /// What the request asks for.
        found: usize,
        /// The most.
        limit: usize,
    },
    /// The request has more items than the limit.
    #[error("{found} {what} in one request, at most {limit} are allowed; split the request")]
    BatchTooLarge {
        /// What was counted.
        what: &'static str,
        /// How many came.
        found: usize,
        /// How many may come.
        limit: usize,
    },
    /// The body did not arrive in time.
    #[error("the body did not arrive within {seconds} s; send it faster or in parts")]
    BodyTimeout {
        /// The limit in seconds.
        seconds: f64,
    },
    /// The body arrived too slowly.
    #[error(
        "the body arrives at less than {bytes_per_second} bytes per second, or paused for {seconds} s; send it faster \
         or in parts"
    )]
    BodyTooSlow {
        /// The slowest that is allowed.
        bytes_per_second: u32,
        /// The longest pause in seconds.
        seconds: f64,
    },
    /// The client has too many transfers.
    #[error(
        "this client's requests and responses in flight use all the memory that one client may hold; wait for some to \
         end, and send bodies and read responses faster"
    )]
    TooManyTransfers,
    /// Whether the events of a request were stored is unknown.
    #[error(
        "{detail}; the events may be stored or not: send them again only if the request had the header \
         `Idempotency-Key`, or each event an idempotency_key"
    )]
    OutcomeUnknown {
        /// What happened.
        detail: String,
    },
    /// An admin request may have been done, or was done and is not durable.
    #[error("{0}")]
    Unsettled(String),
    /// The work took too long.
    #[error("the request took longer than {seconds} s and was given up; its work may still complete")]
    WorkTimeout {
        /// The limit in seconds.
        seconds: f64,
    },
    /// No such route.
    #[error("no route has the path {path}; /docs lists all routes")]
    UnknownRoute {
        /// The requested path.
        path: String,
    },
    /// The route exists, the method does not.
    #[error("{path} does not take the method {method}; /docs lists the methods of each route")]
    Method {
        /// The requested path.
        path: String,
        /// The requested method.
        method: String,
    },
    /// The node of the path is unknown.
    #[error("no node has the key {}", .key.node)]
    UnknownNode {
        /// The requested key.
        key: Key,
        /// The current positions.
        freshness: Freshness,
    },
    /// Responses do not reflect the requested position yet.
    #[error("position {min_position} is not reflected yet; retry or raise wait_ms")]
    NotYetVisible {
        /// The requested position.
        min_position: u64,
        /// The current positions.
        freshness: Freshness,
    },
    /// Events cannot be pushed to this daemon.
    #[error("this daemon accepts no pushed events; enable the push source in its configuration")]
    PushDisabled,
    /// Every event of a body was rejected.
    #[error("none of the {} events could be accepted; see details.rejected", .count)]
    AllRejected {
        /// How many.
        count: usize,
        /// The first of them.
        rejected: Vec<Rejected>,
    },
    /// The request has no valid key.
    #[error(
        "{}; send the header `Authorization: Bearer KEY` with a key of this daemon's api.keys_file",
        if *.sent { "the key is unknown to this daemon" } else { "the request has no key" }
    )]
    Unauthenticated {
        /// Whether there was a key at all.
        sent: bool,
    },
    /// The key's role does not allow this.
    #[error(
        "the key {name:?} has the role {role}; use one whose role is {needed}{}",
        if *needed == "admin" { "" } else { " or admin" }
    )]
    Forbidden {
        /// Name of the key.
        name: String,
        /// Its role.
        role: &'static str,
        /// The role that the route needs.
        needed: &'static str,
    },
    /// The key exceeds its rate limit.
    #[error(
        "the key {name:?} has a rate limit of {per_second} requests per second; retry in a second, or send larger \
         requests"
    )]
    TooFast {
        /// Name of the key.
        name: String,
        /// Requests per second that the key allows.
        per_second: u32,
    },
    /// Without keys, the route is open to the local machine only.
    #[error(
        "this daemon has no keys, so this route is open to local programs only; set api.keys_file and send a key whose \
         role is admin"
    )]
    LocalOnly,
    /// Without keys, the name by which the daemon was addressed is not known to be its own.
    #[error(
        "the header `Host` has {host:?}, which is not known to be a name of this daemon; it has no keys, so web pages \
         are kept away: use its address, add the name to api.allowed_hosts, or set api.keys_file"
    )]
    UnknownHost {
        /// The name.
        host: String,
    },
    /// Without keys, a web page of another server sent the request.
    #[error(
        "the request comes from a web page of another server (header `Origin`); this daemon has no keys, so pages are \
         kept away: let their server send it, or set api.keys_file"
    )]
    ForeignPage,
    /// No source has this name.
    #[error("{reason}")]
    UnknownSource {
        /// The requested name, and the existing ones.
        reason: String,
        /// What there is.
        known: Vec<String>,
    },
    /// An admin request failed.
    #[error("{0}")]
    NotDone(String),
    /// The source is held by an operator.
    #[error("the push source is paused by an operator; send the events again later")]
    SourcePaused,
    /// Too many concurrent requests.
    #[error("too many concurrent requests; retry in a moment")]
    Overloaded,
    /// As many pages of the console are open as may be.
    #[error(
        "all {places} places for open pages of the console are taken (api.console_pages_max); close another page, or \
         retry in a moment"
    )]
    NoPlaceForPage {
        /// How many there are.
        places: usize,
    },
    /// The ingest queue is full.
    #[error("the ingest queue is full; send the events again in a moment")]
    QueueFull,
    /// No weights have been published.
    #[error("{0}; retry in a moment")]
    NoModel(String),
    /// There is no live index.
    #[error("{0}")]
    IndexDisabled(String),
    /// The live index has no rows.
    #[error("{0}")]
    IndexNotReady(String),
    /// Data for the response could not be read from the disk.
    #[error("{0}; retry in a moment, and check the daemon's disk if the error persists")]
    StorageFailed(String),
    /// The log's disk is full.
    #[error("{0}")]
    DiskFull(String),
    /// The daemon reads its log.
    #[error("the daemon is restoring its state and accepts no events yet; /readyz reports when it does")]
    Restoring,
    /// Events are for another daemon.
    #[error("{0}")]
    Replica(String),
    /// The daemon is stopping.
    #[error("the daemon is shutting down; send the request to another one or again later")]
    ShuttingDown,
    /// The log failed.
    #[error("{0}")]
    LogFailed(String),
    /// The log can never take the events of a request together.
    #[error("{0}; send its events in several requests")]
    Unstorable(String),
    /// A bug in the daemon.
    #[error("the daemon failed on this request; its log has the details under the request id")]
    Internal,
}

impl ApiError {
    /// Status code, `error_type`, and seconds after which to retry.
    fn class(&self) -> (StatusCode, ErrorType, Option<u32>) {
        match self {
            Self::Unreadable(_) => (StatusCode::BAD_REQUEST, ErrorType::Malformed, None),
            Self::Invalid(_) => (StatusCode::UNPROCESSABLE_ENTITY, ErrorType::Invalid, None),
            Self::ContentType { .. } | Self::ContentEncoding { .. } => {
                (StatusCode::UNSUPPORTED_MEDIA_TYPE, ErrorType::UnsupportedMediaType, None)
            }
            Self::BodyTooLarge { .. } => (StatusCode::PAYLOAD_TOO_LARGE, ErrorType::BodyTooLarge, None),
            Self::BatchTooLarge { .. } | Self::LimitTooLarge { .. } => {
                (StatusCode::PAYLOAD_TOO_LARGE, ErrorType::BatchTooLarge, None)
            }
            Self::BodyTimeout { .. } => (StatusCode::REQUEST_TIMEOUT, ErrorType::BodyTimeout, None),
            Self::BodyTooSlow { .. } => (StatusCode::REQUEST_TIMEOUT, ErrorType::BodyTimeout, None),
            Self::TooManyTransfers => (StatusCode::TOO_MANY_REQUESTS, ErrorType::TooManyTransfers, Some(1)),
            // Without Retry-After, and no status that gateways repeat a request after: it may have had its effect.
            Self::WorkTimeout { .. } => (StatusCode::GATEWAY_TIMEOUT, ErrorType::Timeout, None),
            Self::OutcomeUnknown { .. } | Self::Unsettled(_) => {
                (StatusCode::GATEWAY_TIMEOUT, ErrorType::OutcomeUnknown, None)
            }
            Self::UnknownRoute { .. } => (StatusCode::NOT_FOUND, ErrorType::UnknownRoute, None),
            Self::Method { .. } => (StatusCode::METHOD_NOT_ALLOWED, ErrorType::MethodNotAllowed, None),
            Self::UnknownNode { .. } => (StatusCode::NOT_FOUND, ErrorType::UnknownNode, None),
            Self::NotYetVisible { .. } => (StatusCode::PRECONDITION_FAILED, ErrorType::NotYetVisible, None),
            Self::PushDisabled => (StatusCode::NOT_FOUND, ErrorType::PushDisabled, None),
            Self::AllRejected { .. } => (StatusCode::UNPROCESSABLE_ENTITY, ErrorType::AllRejected, None),
            Self::Unauthenticated { .. } => (StatusCode::UNAUTHORIZED, ErrorType::Unauthenticated, None),
            Self::Forbidden { .. } => (StatusCode::FORBIDDEN, ErrorType::Forbidden, None),
            Self::TooFast { .. } => (StatusCode::TOO_MANY_REQUESTS, ErrorType::RateLimited, Some(1)),
            Self::LocalOnly => (StatusCode::FORBIDDEN, ErrorType::LocalOnly, None),
            Self::UnknownHost { .. } => (StatusCode::FORBIDDEN, ErrorType::UnknownHost, None),
            Self::ForeignPage => (StatusCode::FORBIDDEN, ErrorType::ForeignPage, None),
            Self::UnknownSource { .. } => (StatusCode::NOT_FOUND, ErrorType::UnknownSource, None),
            Self::NotDone(_) => (StatusCode::SERVICE_UNAVAILABLE, ErrorType::NotDone, Some(5)),
            Self::SourcePaused => (StatusCode::SERVICE_UNAVAILABLE, ErrorType::SourcePaused, Some(30)),
            Self::Overloaded => (StatusCode::SERVICE_UNAVAILABLE, ErrorType::Overloaded, Some(1)),
            Self::NoPlaceForPage { .. } => {
                (StatusCode::SERVICE_UNAVAILABLE, ErrorType::NoPlaceForPage, Some(5))
            }
            Self::QueueFull => (StatusCode::TOO_MANY_REQUESTS, ErrorType::QueueFull, Some(1)),
            Self::NoModel(_) => (StatusCode::SERVICE_UNAVAILABLE, ErrorType::NoModel, Some(5)),
            Self::IndexDisabled(_) => (StatusCode::NOT_FOUND, ErrorType::IndexDisabled, None),
            Self::IndexNotReady(_) => (StatusCode::SERVICE_UNAVAILABLE, ErrorType::IndexNotReady, Some(5)),
            Self::StorageFailed(_) => (StatusCode::SERVICE_UNAVAILABLE, ErrorType::StorageFailed, Some(5)),
            Self::DiskFull(_) => (StatusCode::SERVICE_UNAVAILABLE, ErrorType::DiskFull, Some(30)),
            Self::Restoring => (StatusCode::SERVICE_UNAVAILABLE, ErrorType::Restoring, Some(5)),
            Self::Replica(_) => (StatusCode::MISDIRECTED_REQUEST, ErrorType::ReadReplica, None),
            Self::ShuttingDown => (StatusCode::SERVICE_UNAVAILABLE, ErrorType::ShuttingDown, Some(5)),
            Self::LogFailed(_) => (StatusCode::SERVICE_UNAVAILABLE, ErrorType::LogFailed, Some(5)),
            Self::Unstorable(_) => (StatusCode::UNPROCESSABLE_ENTITY, ErrorType::Unstorable, None),
            Self::Internal => (StatusCode::INTERNAL_SERVER_ERROR, ErrorType::Internal, None),
        }
    }

    /// The metric label of a refusal by a limit; `None` for other failures.
    pub(super) fn rejection(&self) -> Option<&'static str> {
        match self {
            Self::BodyTooLarge { .. }
            | Self::BatchTooLarge { .. }
            | Self::LimitTooLarge { .. }
            | Self::BodyTimeout { .. }
            | Self::BodyTooSlow { .. }
            | Self::TooManyTransfers
            | Self::WorkTimeout { .. }
            | Self::OutcomeUnknown { .. }
            | Self::Overloaded
            | Self::TooFast { .. }
            | Self::QueueFull => Some(self.class().1.as_str()),
            _ => None,
        }
    }

    /// The metric label of an authentication failure; `None` for other failures.
    pub(super) fn authentication_failure(&self) -> Option<&'static str> {
        match self {
            Self::Unauthenticated { sent: false } => Some("missing"),
            Self::Unauthenticated { sent: true } => Some("unknown"),
            Self::Forbidden { .. } => Some("role"),
            Self::LocalOnly | Self::UnknownHost { .. } | Self::ForeignPage => Some("not_local"),
            _ => None,
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let (status, _, retry) = self.class();
        let mut response = status.into_response();
        if let Some(seconds) = retry {
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        if status == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response.extensions_mut().insert(self);
        response
    }
}
