//! Compression of large responses with gzip, for clients whose `Accept-Encoding` allows it. Small ones are not worth
//! the time: the daemon computes on the same cores.

use axum::http::Response;
use axum::http::header::CONTENT_LENGTH;
use http_body::Body;
use tower_http::CompressionLevel;
use tower_http::compression::{CompressionLayer, Predicate};

/// Compresses responses of at least `bytes_min` bytes; none if that is 0.
pub(super) fn layer(bytes_min: usize) -> CompressionLayer<Large> {
    CompressionLayer::new().quality(CompressionLevel::Fastest).compress_when(Large(bytes_min))
}

/// The length of a response before compression, which leaves it open.
#[derive(Clone, Copy)]
pub(super) struct Length(pub u64);

/// Notes the length of a response for the access log.
pub(super) async fn note_length(mut response: axum::response::Response) -> axum::response::Response {
    if let Some(bytes) = response.body().size_hint().exact() {
        response.extensions_mut().insert(Length(bytes));
    }
    response
}

/// Whether a response is large. One of unknown size is not.
#[derive(Clone, Copy)]
pub(super) struct Large(usize);

impl Predicate for Large {
    fn should_compress<B: Body>(&self, response: &Response<B>) -> bool {
        let declared = response.headers().get(CONTENT_LENGTH);
        let declared = || declared.and_then(|length| length.to_str().ok()?.parse().ok());
        let bytes = response.body().size_hint().exact().or_else(declared);
        self.0 > 0 && bytes.is_some_and(|bytes| bytes >= self.0 as u64)
    }
}
