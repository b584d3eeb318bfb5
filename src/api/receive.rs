//! Receives request bodies, before a request takes a place from others.
//!
//! What comes with the header, or right after it, costs nothing. A body that is large or keeps the daemon waiting has
//! an [`Entry`] in the ledger of bodies until its last byte is dropped; it has to keep up a [`Pace`], and a client can
//! have only so many of them. So clients that send slowly hold some memory each and no place, however many they are.

use std::pin::Pin;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http_body::Body as HttpBody;
use tokio::time::{Instant, timeout_at};

use super::App;
use super::envelope::Arrival;
use super::error::ApiError;
use super::transfer::{Client, Credit, Entry, Full, Pace, SMALL_BYTES};

/// A body that is complete within this time does not count as late.
const PROMPT: Duration = Duration::from_millis(200);

/// Reads the body and passes the request on with it, or refuses it.
pub(super) async fn receive(State(app): State<App>, request: Request, next: Next) -> Response {
    match received(&app, request).await {
        Ok(request) => next.run(request).await,
        Err(refused) => refused.into_response(),
    }
}

/// The request with its whole body.
pub(super) async fn received(app: &App, request: Request) -> Result<Request, ApiError> {
    if request.body().is_end_stream() {
        return Ok(request);
    }
    let (parts, body) = request.into_parts();
    let client = parts.extensions.get::<Client>().cloned();
    let body = Arriving::new(app, client, body).read().await;
    parts.extensions.get::<Arrival>().into_iter().for_each(Arrival::note);
    Ok(Request::from_parts(parts, Body::from(body?)))
}

/// A body of which a part is here.
struct Arriving<'a> {
    app: &'a App,
    client: Option<Client>,
    body: Body,
    /// The first part; most bodies have no other.
    first: Bytes,
    /// All parts, once there are two.
    all: Vec<u8>,
    entry: Option<Entry>,
}

impl<'a> Arriving<'a> {
    fn new(app: &'a App, client: Option<Client>, body: Body) -> Self {
        Self { app, client, body, first: Bytes::new(), all: Vec::new(), entry: None }
    }

    async fn read(mut self) -> Result<Bytes, ApiError> {
        let limits = self.app.state.limits;
        let limit = limits.body_bytes;
        if self.body.size_hint().lower() > limit as u64 {
            return Err(ApiError::BodyTooLarge { limit });
        }
        let begun = Instant::now();
        let pace = Pace { rate: limits.bytes_per_second_min, grace: limits.body_grace };
        let (mut credit, mut late) = (Credit::new(pace), false);
        let mut waiting = begun;
        loop {
            let patience = if late { waiting + credit.left() } else { begun + PROMPT };
            let patience = patience.min(begun + limits.request_timeout);
            match timeout_at(patience, self.next_part()).await {
                Ok(None) => return Ok(self.finish()),
                Ok(Some(part)) => {
                    let part = part.map_err(|error| ApiError::Unreadable(error.to_string()))?;
                    let now = Instant::now();
                    credit.moved(now - waiting, part.len());
                    waiting = now;
                    self.take(part)?;
                }
                Err(_) if begun.elapsed() >= limits.request_timeout => {
                    return Err(ApiError::BodyTimeout { seconds: limits.request_timeout.as_secs_f64() });
                }
                Err(_) if late => {
                    let (bytes_per_second, seconds) = (pace.rate, pace.grace.as_secs_f64());
                    return Err(ApiError::BodyTooSlow { bytes_per_second, seconds });
                }
                Err(_) => {
                    late = true;
                    self.count(Entry::is_late)?;
                }
            }
        }
    }

    /// The next bytes; `None` at the end. Trailers are dropped.
    async fn next_part(&mut self) -> Option<Result<Bytes, axum::Error>> {
        loop {
            let frame = std::future::poll_fn(|context| Pin::new(&mut self.body).poll_frame(context)).await?;
            match frame.map(http_body::Frame::into_data) {
                Err(error) => return Some(Err(error)),
                Ok(Ok(data)) => return Some(Ok(data)),
                Ok(Err(_)) => {}
            }
        }
    }

    fn take(&mut self, part: Bytes) -> Result<(), ApiError> {
        let limit = self.app.state.limits.body_bytes;
        let length = self.first.len() + self.all.len() + part.len();
        if length > limit {
            return Err(ApiError::BodyTooLarge { limit });
        }
        let is_first = self.first.is_empty() && self.all.is_empty();
        let room = if is_first { length } else { self.room_for(length) };
        if room > SMALL_BYTES {
            self.count(|entry| entry.hold(room))?;
        }
        if is_first {
            self.first = part;
            return Ok(());
        }
        self.all.reserve_exact(room - self.all.len());
        self.all.extend_from_slice(&std::mem::take(&mut self.first));
        self.all.extend_from_slice(&part);
        Ok(())
    }

    /// Capacity for `length` bytes: grows to twice as much at a time, but not beyond the declared length of the body.
    fn room_for(&self, length: usize) -> usize {
        if length <= self.all.capacity() {
            return self.all.capacity();
        }
        let to_come = self.body.size_hint().upper().and_then(|bytes| usize::try_from(bytes).ok());
        let whole =
            to_come.map_or(self.app.state.limits.body_bytes, |to_come| length.saturating_add(to_come));
        length.saturating_mul(2).min(whole.max(length))
    }

    /// Counts something of this body, for which it needs an entry. Requests without a client come from tests only.
    fn count(&mut self, what: impl FnOnce(&mut Entry) -> Result<(), Full>) -> Result<(), ApiError> {
        let Some(client) = &self.client else { return Ok(()) };
        let entry = self.entry.get_or_insert_with(|| self.app.bodies.enter(client.clone()));
        what(entry).map_err(|full| match full {
            Full::All => ApiError::Overloaded,
            Full::Client => ApiError::TooManyTransfers,
        })
    }

    fn finish(mut self) -> Bytes {
        let bytes = if self.all.is_empty() { self.first } else { Bytes::from(self.all) };
        match self.entry.take() {
            None => bytes,
            Some(mut entry) => {
                entry.has_arrived();
                Bytes::from_owner(Held { bytes, _entry: entry })
            }
        }
    }
}

/// Bytes that count until they are dropped.
struct Held {
    bytes: Bytes,
    _entry: Entry,
}

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}
