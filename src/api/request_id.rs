//! The id of a request: the client's `x-request-id` or, without a usable one, a generated one. It stands in the
//! response, in errors and in log lines.

use std::hash::{BuildHasher, RandomState};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::extract::Request;
use axum::http::{HeaderName, HeaderValue};
use axum::response::Response;

/// The longest id that is taken over from a client, in bytes.
const BYTES_MAX: usize = 128;

/// The header.
static NAME: HeaderName = HeaderName::from_static("x-request-id");

/// The id of one request.
#[derive(Clone)]
pub(super) struct RequestId(HeaderValue);

impl RequestId {
    /// The client's id if it is printable and not too long, or else a new one.
    pub(super) fn of(request: &Request) -> Self {
        let usable = |id: &&HeaderValue| (1..=BYTES_MAX).contains(&id.len()) && id.to_str().is_ok();
        Self(request.headers().get(&NAME).filter(usable).cloned().unwrap_or_else(generated))
    }

    pub(super) fn as_str(&self) -> &str {
        self.0.to_str().unwrap_or_default()
    }

    /// Writes it into the response.
    pub(super) fn write(self, response: &mut Response) {
        response.headers_mut().insert(NAME.clone(), self.0);
    }
}

/// A UUID of version 4. It has to be unique, not secret, so no random numbers are asked of the system for it.
fn generated() -> HeaderValue {
    static SEED: LazyLock<RandomState> = LazyLock::new(RandomState::new);
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let [high, low] = [0, 1].map(|half: u64| SEED.hash_one((number, half)));
    let bytes = uuid::Uuid::from_u64_pair(high, low).into_bytes();
    let text = uuid::Builder::from_random_bytes(bytes).into_uuid().to_string();
    HeaderValue::try_from(text).unwrap_or(HeaderValue::from_static("-"))
}

/// The id of a request; empty before the [envelope](super::envelope) has given it one.
pub(super) fn request_id(request: &Request) -> &str {
    request.extensions().get::<RequestId>().map_or("", RequestId::as_str)
}

#[cfg(test)]
mod tests {
    use axum::body::Body;

    use super::*;

    #[test]
    fn an_odd_id_is_replaced_and_each_new_one_is_another() {
        let of = |sent: &[u8]| {
            let value = HeaderValue::from_bytes(sent).unwrap();
            let request = Request::builder().header(&NAME, value).body(Body::empty()).unwrap();
            RequestId::of(&request).as_str().to_owned()
        };
        assert_eq!(of(b"order-7"), "order-7");
        for odd in [&b""[..], &[b'a'; 129], "naïve".as_bytes()] {
            let id = uuid::Uuid::parse_str(&of(odd)).unwrap();
            assert_eq!(id.get_version_num(), 4);
        }
        let ids: std::collections::HashSet<String> = (0..1_000).map(|_| of(b"")).collect();
        assert_eq!(ids.len(), 1_000);
    }
}
