//! Drains request bodies that a handler dropped unread, within bounds.
//!
//! A response may be sent before the request body has arrived: too large, overloaded, no such route. A server that then
//! closes the connection resets it while the client is still sending, and the client sees a broken pipe instead of the
//! response. So a task reads and discards the rest of the body, up to limits that suffice for a well-behaved client and
//! give a hostile one no advantage.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::Request;
use axum::http::header::EXPECT;
use http_body::{Body as HttpBody, Frame, SizeHint};

/// Longest time spent on draining one body.
const TIME_MAX: Duration = Duration::from_secs(5);

/// Most bytes drained of one body.
const BYTES_MAX: usize = 64 << 20;

/// Drains request bodies that are dropped before their end. A client that expects `100 Continue` sends no body after a
/// final response, so its body is left alone.
pub(super) fn drain_unread_body(request: Request) -> Request {
    if request.body().is_end_stream() || request.headers().contains_key(EXPECT) {
        return request;
    }
    request.map(|body| Body::new(DrainOnDrop { body }))
}

/// A body that is drained when it is dropped.
struct DrainOnDrop {
    body: Body,
}

impl HttpBody for DrainOnDrop {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for DrainOnDrop {
    fn drop(&mut self) {
        if self.body.is_end_stream() {
            return;
        }
        let rest = std::mem::take(&mut self.body);
        // Without a runtime there is no connection either.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(tokio::time::timeout(TIME_MAX, read_out(rest)));
        }
    }
}

/// Reads `body` until it ends, fails or is too long.
async fn read_out(mut body: Body) {
    let mut read = 0;
    while read <= BYTES_MAX {
        let frame = std::future::poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await;
        let Some(Ok(frame)) = frame else { return };
        read += frame.data_ref().map_or(0, Bytes::len);
    }
}
