//! Events in, over HTTP: the body goes to the [`Intake`](crate::event::Intake) unparsed, and the outcome comes back.

use std::sync::Arc;

use axum::Extension;
use axum::extract::{FromRequest, Request, State};
use axum::http::HeaderMap;
use axum::response::Response;

use super::App;
use super::body::RawBody;
use super::compression::AcceptsGzip;
use super::envelope::{Permit, blocking, media_type};
use super::error::{ApiError, ErrorBody};
use super::events::{EventsDocument, EventsResponse, Rejected};
use super::sending::{Writing, reserve, settle};
use super::transfer::Client;
use crate::event::BodyFormat;

/// Content types that the route reads.
const MEDIA_TYPES: &str =
    "application/json (one event or an array) or application/x-ndjson (one event a line)";

/// The same where a mapping reads messages.
const MAPPED_MEDIA_TYPES: &str = "application/json (one message or an array), application/x-ndjson (one message a \
    line), application/cloudevents+json or application/cloudevents-batch+json (an array)";

/// Longest idempotency key of a request, in bytes.
const REQUEST_KEY_MAX: usize = 255;

/// About the size of a rejected event in a response.
const REJECTED_BYTES: usize = 120;

/// At most so many events are in a body; more are counted where their text has commas.
fn events_at_most(body: &[u8], limit: usize) -> usize {
    let ends = body.iter().filter(|byte| matches!(byte, b',' | b'\n')).count();
    limit.min(ends + 1)
}

/// How a body of a content type is read.
fn body_format(media_type: Option<&str>, is_mapped: bool) -> Result<BodyFormat, ApiError> {
    match media_type {
        Some("application/json") => Ok(BodyFormat::Json),
        Some("application/cloudevents+json" | "application/cloudevents-batch+json") if is_mapped => {
            Ok(BodyFormat::Json)
        }
        Some("application/x-ndjson" | "application/jsonl") => Ok(BodyFormat::JsonLines),
        _ => {
            Err(ApiError::ContentType { expected: if is_mapped { MAPPED_MEDIA_TYPES } else { MEDIA_TYPES } })
        }
    }
}

/// The idempotency key of a request, if it has one. That of a client with an API key is its own: the name of the API
/// key is a part of it, with a byte between them that no header has.
fn request_key(headers: &HeaderMap, client: &Client) -> Result<Option<String>, ApiError> {
    let mut sent = headers.get_all("idempotency-key").iter();
    let Some(key) = sent.next() else { return Ok(None) };
    let text = key.to_str().ok().filter(|text| (1..=REQUEST_KEY_MAX).contains(&text.len()));
    match text {
        Some(text) if sent.next().is_none() => Ok(Some(match client {
            Client::Key(name) => format!("{name}\0{text}"),
            Client::Address(_) => text.to_owned(),
        })),
        _ => Err(ApiError::Invalid(format!(
            "the header `Idempotency-Key` must come once, with 1 to {REQUEST_KEY_MAX} visible ASCII characters"
        ))),
    }
}

/// Stores events. Responds once they are durable and in the graph.
///
/// Events that cannot be accepted are reported per item and kept as dead letters; the others are stored.
#[utoipa::path(
    post, path = "/v1/events", tag = "events", operation_id = "push_events",
    params(
        ("Idempotency-Key" = Option<String>, Header, description = "Identifies the request: an event of it that is \
            sent again under the same key is stored once. Each API key has idempotency keys of its own. 1 to \
            255 visible ASCII characters. An event's own `idempotency_key` takes precedence"),
    ),
    request_body(
        description = "One event, an array of events, or one event a line",
        content((EventsDocument = "application/json"), (String = "application/x-ndjson")),
    ),
    responses(
        (status = 200, description = "The outcome for the events", body = EventsResponse),
        (status = 400, description = "The body cannot be read", body = ErrorBody),
        (status = 404, description = "The push source is off", body = ErrorBody),
        (status = 408, description = "The body did not arrive in time", body = ErrorBody),
        (status = 413, description = "Too many bytes", body = ErrorBody),
        (status = 415, description = "Neither JSON nor lines of JSON", body = ErrorBody),
        (status = 422, description = "Every event was rejected: `details` has their number, `rejected_count`, \
            and the first 100 in `rejected`. Or they are too large together (`unstorable`)", body = ErrorBody),
        (status = 429, description = "The ingest queue is full, or the key exceeds its rate limit",
            body = ErrorBody),
        (status = 503, description = "Busy, disk full, restoring, or shutting down", body = ErrorBody),
        (status = 504, description = "The events may be stored or not (`outcome_unknown`)", body = ErrorBody),
    )
)]
pub(super) async fn events(
    State(app): State<App>,
    Extension(permit): Extension<Permit>,
    Extension(client): Extension<Client>,
    accepts: AcceptsGzip,
    request: Request,
) -> Result<Response, ApiError> {
    let intake = app.state.intake.clone().ok_or(ApiError::PushDisabled)?;
    let format = body_format(media_type(request.headers()).as_deref(), intake.is_mapped())?;
    let key = request_key(request.headers(), &client)?;
    let RawBody(body) = RawBody::from_request(request, &app).await?;
    let limits = app.state.limits;
    // Room for the case that every event is rejected: once events are stored, nothing may refuse the response.
    let room = reserve(&app, &client, events_at_most(&body, limits.batch_items) * REJECTED_BYTES)?;
    let store = move || intake.submit(&body, format, key.as_deref());
    let stored = blocking(Some(permit.clone()), limits.request_timeout, store).await;
    let unknown = |error| match error {
        late @ ApiError::WorkTimeout { .. } => ApiError::OutcomeUnknown { detail: late.to_string() },
        other => other,
    };
    let response = stored.map_err(unknown)??;
    let receipt = response.receipt;
    let rejected: Vec<Rejected> = response.rejected.into_iter().map(Into::into).collect();
    if receipt.accepted == 0 && receipt.duplicates == 0 && !rejected.is_empty() {
        return Err(ApiError::all_rejected(rejected));
    }
    let bytes = rejected.iter().map(|event| REJECTED_BYTES / 2 + event.detail.len()).sum();
    let room = settle(&app, &client, room, bytes);
    let response = EventsResponse {
        first_position: receipt.first.0,
        end_position: receipt.end.0,
        accepted: receipt.accepted,
        duplicates: receipt.duplicates,
        rejected,
        freshness: Arc::clone(&app.state.engine).freshness().into(),
    };
    Writing::new(&app, accepts).inline().json(permit, room, move || response).await.map_err(unknown)
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    #[test]
    fn clients_with_api_keys_have_idempotency_keys_of_their_own() {
        let headers = HeaderMap::from_iter([(
            axum::http::HeaderName::from_static("idempotency-key"),
            HeaderValue::from_static("1"),
        )]);
        let key = |client: Client| request_key(&headers, &client).unwrap().unwrap();
        let [shop, bank] = ["shop", "bank"].map(|name| key(Client::Key(name.into())));
        assert_ne!(shop, bank);
        assert_eq!(shop, key(Client::Key("shop".into())));
        let at = |address: &str| key(Client::at(address.parse().unwrap()));
        assert_eq!(at("10.0.0.1"), at("10.0.0.2"), "a client may have moved");
    }

    #[test]
    fn cloud_events_are_read_by_a_mapping_alone() {
        let cloud = Some("application/cloudevents+json");
        assert_eq!(body_format(cloud, true).unwrap(), BodyFormat::Json);
        let refused = body_format(cloud, false);
        assert!(matches!(refused, Err(ApiError::ContentType { expected: MEDIA_TYPES })), "{refused:?}");
        assert_eq!(body_format(Some("application/json"), false).unwrap(), BodyFormat::Json);
        assert!(body_format(None, true).is_err());
    }

    #[test]
    fn events_are_never_more_than_commas_and_ends_of_lines_allow() {
        assert_eq!(events_at_most(b"", 10), 1);
        assert_eq!(events_at_most(b"[1,2,3]", 10), 3);
        assert_eq!(events_at_most(b"{}\n{}\n", 10), 3);
        assert_eq!(events_at_most(&[b','; 100], 10), 10);
    }
}
