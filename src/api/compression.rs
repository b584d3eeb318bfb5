//! Compression of large responses with gzip, for clients whose `Accept-Encoding` allows it. Small ones are not worth
//! the time: the daemon computes on the same cores.

use std::convert::Infallible;
use std::future::ready;

use axum::body::Body;
use axum::extract::Request;
use axum::http::header::ACCEPT_ENCODING;
use axum::http::{HeaderMap, HeaderValue};
use axum::response::Response;
use http_body::Body as _;
use tower::{Layer, ServiceExt, service_fn};
use tower_http::CompressionLevel;
use tower_http::compression::CompressionLayer;

/// What a client accepts.
pub(super) struct Accepted(Option<HeaderValue>);

impl Accepted {
    pub(super) fn of(headers: &HeaderMap) -> Self {
        Self(headers.get(ACCEPT_ENCODING).cloned())
    }

    /// The response, compressed if the client accepts that and it is known to have at least `bytes_min` bytes; 0: none
    /// is.
    pub(super) async fn apply(self, response: Response, bytes_min: usize) -> Response {
        let is_large = response.body().size_hint().exact().is_some_and(|bytes| bytes >= bytes_min as u64);
        let Self(Some(accepted)) = self else { return response };
        if bytes_min == 0 || !is_large {
            return response;
        }
        let mut request = Request::new(Body::empty());
        request.headers_mut().insert(ACCEPT_ENCODING, accepted);
        let layer = CompressionLayer::new().quality(CompressionLevel::Fastest);
        let mut there = Some(response);
        let service = layer.layer(service_fn(move |_: Request| {
            ready(Ok::<_, Infallible>(there.take().unwrap_or_default()))
        }));
        match service.oneshot(request).await {
            Ok(response) => response.map(Body::new),
            Err(never) => match never {},
        }
    }
}
