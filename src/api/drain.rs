//! A body that is dropped unread is read to its end all the same, within bounds.
//!
//! A request may be answered before its body has arrived: too large, no room, no such route. A server that then
//! closes the connection resets it under a client that is still sending, and the client sees a broken pipe
//! where it should see the answer. So the rest of the body is read and thrown away by a task of its own, for as
//! long as a patient client needs and a hostile one does not gain by.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::Request;
use axum::http::header::EXPECT;
use axum::middleware::Next;
use axum::response::Response;
use http_body::{Body as HttpBody, Frame, SizeHint};

/// Longest time that is spent on the rest of one body.
const TIME_MAX: Duration = Duration::from_secs(5);

/// Most bytes of the rest of one body that are read.
const BYTES_MAX: usize = 64 << 20;

/// Lets nothing drop the body of a request half read. A client that waits to be asked for its body sends none
/// after the answer.
pub(super) async fn drain_unread_body(request: Request, next: Next) -> Response {
    if request.headers().contains_key(EXPECT) {
        return next.run(request).await;
    }
    next.run(request.map(|body| Body::new(DrainOnDrop { body }))).await
}

/// A body that is read to its end when it is dropped.
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
