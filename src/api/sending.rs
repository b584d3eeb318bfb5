//! Responses on their way to the client: what is large counts until it is sent or dropped.
//!
//! A large response has an [`Entry`] in the ledger of responses. It is handed over in small pieces, one after the other
//! as the connection takes them, so that what was not handed over yet is what is left in memory. A route takes the
//! entry for what it expects to send before the work, with [`reserve`]: only there is it refused. What was done is
//! sent, and counts even where there is no room for it. How long a client may take to read is the matter of the
//! [connection](super::connections).

use std::fmt::Display;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::header::{ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_TYPE, VARY};
use axum::http::{HeaderMap, HeaderValue};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http_body::{Body as HttpBody, Frame, SizeHint};
use parking_lot::Mutex;
use serde::Serialize;

use super::admin::Peer;
use super::arrow::{self, ARROW_STREAM, Columns, WantsArrow};
use super::bulk::Bulk;
use super::compression::{AcceptsGzip, GZIP, gzip};
use super::envelope::Permit;
use super::error::ApiError;
use super::transfer::{Client, Entry, Full, SMALL_BYTES};
use super::{ApiLimits, App};

/// Longer responses are written by the threads for large requests.
const INLINE_BYTES: usize = 256 << 10;

/// Size of a piece.
const PIECE_BYTES: usize = SMALL_BYTES;

/// The entry of a response, taken before it was made.
#[derive(Clone)]
struct Reserved(Arc<Mutex<Option<Entry>>>);

fn refuse(full: Full) -> ApiError {
    match full {
        Full::All => ApiError::Overloaded,
        Full::Client => ApiError::TooManyTransfers,
    }
}

/// Room for a response of about `bytes`; none is needed for a small one.
pub(super) fn reserve(app: &App, client: &Client, bytes: usize) -> Result<Option<Entry>, ApiError> {
    if bytes <= SMALL_BYTES {
        return Ok(None);
    }
    let mut entry = app.responses.enter(client.clone());
    entry.hold(bytes).map_err(refuse)?;
    Ok(Some(entry))
}

/// The entry of a response of `bytes`, which is made already: in place of the one for what was expected.
pub(super) fn settle(app: &App, client: &Client, room: Option<Entry>, bytes: usize) -> Option<Entry> {
    let bytes_before = room.as_ref().map_or(0, Entry::bytes);
    if bytes.max(bytes_before) <= SMALL_BYTES {
        return None;
    }
    let mut entry = room.unwrap_or_else(|| app.responses.enter(client.clone()));
    entry.hold_done(bytes);
    Some(entry)
}

/// How a response is written.
pub(super) struct Writing<'a> {
    pub bulk: &'a Bulk,
    pub limit: Duration,
    /// Smallest response that is compressed, for a client that accepts it; 0: none is.
    pub compress_bytes_min: usize,
    pub accepts: AcceptsGzip,
    /// Whether it is written at once, however long it is.
    pub inline: bool,
    /// Values of an embedding.
    pub width: usize,
}

impl<'a> Writing<'a> {
    pub(super) fn new(app: &'a App, accepts: AcceptsGzip) -> Self {
        let ApiLimits { request_timeout: limit, compress_bytes_min, .. } = app.state.limits;
        let width = app.state.info.embedding_dimension;
        Self { bulk: &app.state.bulk, limit, compress_bytes_min, accepts, inline: false, width }
    }

    /// For a response about what has taken effect: it is not to be late.
    pub(super) fn inline(self) -> Self {
        Self { inline: true, ..self }
    }

    /// Makes a response and writes it as Arrow, if the client wants that, else as JSON.
    pub(super) async fn columns_or_json<T: Serialize + Columns>(
        self,
        wants: WantsArrow,
        (permit, room): (Permit, Option<Entry>),
        make: impl FnOnce() -> T + Send + 'static,
    ) -> Result<Response, ApiError> {
        let width = self.width;
        match wants {
            WantsArrow(false) => self.json(permit, room, make).await,
            WantsArrow(true) => {
                self.text(ARROW_STREAM, (permit, room), move || arrow::stream(make(), width)).await
            }
        }
    }

    /// Makes a response and writes it as JSON.
    pub(super) async fn json<T: Serialize>(
        self,
        permit: Permit,
        room: Option<Entry>,
        make: impl FnOnce() -> T + Send + 'static,
    ) -> Result<Response, ApiError> {
        self.text("application/json", (permit, room), move || serde_json::to_vec(&make())).await
    }

    /// Writes a response; by the threads for large requests, where much room was reserved. One that cannot be
    /// compressed in time is sent as it is.
    async fn text<E: Display + Send + 'static>(
        self,
        media_type: &'static str,
        (permit, room): (Permit, Option<Entry>),
        write: impl FnOnce() -> Result<Vec<u8>, E> + Send + 'static,
    ) -> Result<Response, ApiError> {
        let Self { bulk, limit, compress_bytes_min, accepts: AcceptsGzip(accepts), inline, .. } = self;
        let is_long = !inline && room.as_ref().is_some_and(|room| room.bytes() > INLINE_BYTES);
        // The job holds the room: it ends with what it is for, also where the client has gone.
        let write = move || (write().map(Bytes::from), room);
        let (written, mut room) =
            if is_long { bulk.run(Some(permit.clone()), limit, write).await? } else { write() };
        let mut text = written.map_err(|error| unwritten(&error))?;
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(media_type));
        if compress_bytes_min > 0 && text.len() >= compress_bytes_min {
            headers.insert(VARY, HeaderValue::from_name(ACCEPT_ENCODING));
            let plain = text.clone();
            let pack = move || gzip(&plain);
            let packed = match accepts {
                false => None,
                true if text.len() <= INLINE_BYTES => pack().ok(),
                // A job of its own: others have their turn between the two.
                true => bulk.run(Some(permit), limit, pack).await.ok().and_then(Result::ok),
            };
            if let Some(packed) = packed {
                text = Bytes::from(packed);
                headers.insert(CONTENT_ENCODING, GZIP);
                room.iter_mut().for_each(|room| room.hold_done(text.len()));
            }
        }
        let mut response = (headers, text).into_response();
        if let Some(room) = room {
            response.extensions_mut().insert(Reserved(Arc::new(Mutex::new(Some(room)))));
        }
        Ok(response)
    }
}

fn unwritten(error: &dyn Display) -> ApiError {
    tracing::error!(%error, "a response could not be written");
    ApiError::Internal
}

/// Counts what is large until it is sent.
pub(super) async fn hold(State(app): State<App>, request: Request, next: Next) -> Response {
    let sender = Sender::of(&request);
    sender.hold(&app, next.run(request).await)
}

/// Whose response is sent.
pub(super) struct Sender {
    peer: Option<Peer>,
    is_repeatable: bool,
}

impl Sender {
    pub(super) fn of(request: &Request) -> Self {
        let peer = request.extensions().get::<Peer>().copied();
        Self { peer, is_repeatable: request.method().is_safe() }
    }

    /// Counts the response, if it is large, until it is sent. Without room for it, one without an entry to a request
    /// that changes nothing becomes an error.
    pub(super) fn hold(self, app: &App, mut response: Response) -> Response {
        let reserved =
            response.extensions_mut().remove::<Reserved>().and_then(|reserved| reserved.0.lock().take());
        let bytes = response.body().size_hint().lower();
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        if bytes <= SMALL_BYTES {
            return response;
        }
        let client = response.extensions().get::<Client>().cloned();
        let client = client.or(self.peer.map(|peer| Client::at(peer.0.ip())));
        let is_expected = reserved.is_some();
        let Some(mut entry) = reserved.or_else(|| client.map(|client| app.responses.enter(client))) else {
            return response;
        };
        if !is_expected
            && self.is_repeatable
            && let Err(full) = entry.hold(bytes)
        {
            return refuse(full).into_response();
        }
        entry.hold_done(bytes);
        response.map(|body| Body::new(Sending::new(body, entry)))
    }
}

/// A body that is handed over piece by piece. Between two, other tasks of the thread have their turn.
struct Sending {
    body: Body,
    /// What is left of the current frame.
    rest: Bytes,
    has_handed_over: bool,
    _entry: Entry,
}

impl Sending {
    fn new(body: Body, entry: Entry) -> Self {
        Self { body, rest: Bytes::new(), has_handed_over: false, _entry: entry }
    }
}

impl HttpBody for Sending {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if std::mem::take(&mut self.has_handed_over) {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        if self.rest.is_empty() {
            match Pin::new(&mut self.body).poll_frame(context) {
                Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                    Ok(data) => self.rest = data,
                    Err(other) => return Poll::Ready(Some(Ok(other))),
                },
                other => return other,
            }
        }
        let piece = self.rest.len().min(PIECE_BYTES);
        let piece = self.rest.split_to(piece);
        self.has_handed_over = true;
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let (inner, rest) = (self.body.size_hint(), self.rest.len() as u64);
        let mut hint = SizeHint::new();
        hint.set_lower(inner.lower().saturating_add(rest));
        if let Some(upper) = inner.upper() {
            hint.set_upper(upper.saturating_add(rest));
        }
        hint
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;
    use crate::api::transfer::Ledger;

    async fn frames(mut body: Sending) -> Vec<usize> {
        let mut lengths = Vec::new();
        while !body.is_end_stream() {
            let left = usize::try_from(body.size_hint().exact().unwrap()).unwrap();
            let frame = std::future::poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await;
            let length = frame.unwrap().unwrap().into_data().unwrap().len();
            lengths.push(length);
            assert_eq!(body.size_hint().exact(), Some((left - length) as u64));
        }
        lengths
    }

    #[tokio::test]
    async fn a_body_is_handed_over_in_pieces_and_counts_until_it_ends() {
        let ledger = Ledger::new(1 << 20, 0);
        let mut entry = ledger.enter(Client::Key("a".into()));
        entry.hold(150_000).unwrap();
        let body = Sending::new(Body::from(vec![0; 150_000]), entry);
        assert_eq!(ledger.bytes(), 150_000);
        assert_eq!(frames(body).await, [PIECE_BYTES, PIECE_BYTES, 150_000 - 2 * PIECE_BYTES]);
        assert_eq!(ledger.bytes(), 0);
    }

    #[tokio::test]
    async fn other_tasks_have_their_turn_between_two_pieces() {
        let ledger = Ledger::new(1 << 20, 0);
        let body = Sending::new(Body::from(vec![0; 150_000]), ledger.enter(Client::Key("a".into())));
        let turns = Arc::new(std::sync::atomic::AtomicUsize::new(0));
        let counted = Arc::clone(&turns);
        let other = tokio::spawn(async move {
            loop {
                counted.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                tokio::task::yield_now().await;
            }
        });
        assert_eq!(frames(body).await.len(), 3);
        assert!(turns.load(std::sync::atomic::Ordering::Relaxed) >= 2);
        other.abort();
    }

    #[tokio::test]
    async fn large_responses_are_written_on_other_threads_than_the_runtimes() {
        let bulk = Bulk::start(0).unwrap();
        let ledger = Ledger::new(1 << 20, 0);
        let permit = || {
            let place = Arc::new(tokio::sync::Semaphore::new(1));
            Permit::new(place.try_acquire_owned().unwrap())
        };
        let runtime = thread::current().id();
        let is_elsewhere = move || thread::current().id() != runtime;
        for (bytes, expected) in [(None, &b"false"[..]), (Some(100_000), b"false"), (Some(500_000), b"true")]
        {
            let room = bytes.map(|bytes| {
                let mut room = ledger.enter(Client::Key("a".into()));
                room.hold(bytes).unwrap();
                room
            });
            let (limit, accepts) = (Duration::from_secs(60), AcceptsGzip(true));
            let (compress_bytes_min, inline) = (1_000, false);
            let writing = Writing { bulk: &bulk, limit, compress_bytes_min, accepts, inline, width: 1 };
            let response = writing.json(permit(), room, is_elsewhere).await.unwrap();
            let text = axum::body::to_bytes(response.into_body(), 100).await.unwrap();
            assert_eq!(text, expected);
        }
    }
}
