//! Log lines about requests: the access log, and failed authentication with the client's address.
//!
//! Lines that strangers can cause are cut and have a rate limit; the next line reports how many were left out.

use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use axum::extract::Request;
use axum::http::header::{CONTENT_LENGTH, HeaderName, USER_AGENT};
use axum::http::{HeaderMap, HeaderValue, Method, Uri};
use axum::response::Response;
use http_body::Body as _;

use super::admin::Peer;
use super::error::ApiError;
use super::rate_limit::RateLimit;
use super::transfer::Client;

/// Target of the lines of the access log.
pub const ACCESS: &str = "evergraph::access";

/// The header of W3C Trace Context.
const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");

/// Lines a second about requests that were refused.
const REFUSED_LINES_PER_SECOND: NonZeroU32 = NonZeroU32::MIN.saturating_add(9);
/// Longest text of a client in a line, in characters.
const TEXT_CHARS_MAX: usize = 200;

/// A client's text, cut.
pub(super) fn cut(text: &str) -> String {
    match text.char_indices().nth(TEXT_CHARS_MAX) {
        None => text.to_owned(),
        Some((end, _)) => format!("{}…", text.get(..end).unwrap_or_default()),
    }
}

/// Lines that must not be written as often as strangers like.
pub(super) struct Seldom {
    rate: RateLimit,
    left_out: AtomicU64,
}

impl Seldom {
    pub(super) fn new() -> Self {
        Self { rate: RateLimit::new(REFUSED_LINES_PER_SECOND), left_out: AtomicU64::new(0) }
    }

    /// Whether to write a line now, and how many were left out before it.
    pub(super) fn admit(&self) -> Option<u64> {
        if self.rate.allows(Instant::now()) {
            return Some(self.left_out.swap(0, Ordering::Relaxed));
        }
        self.left_out.fetch_add(1, Ordering::Relaxed);
        None
    }
}

fn text_of(value: Option<&HeaderValue>) -> &str {
    value.and_then(|value| value.to_str().ok()).unwrap_or_default()
}

/// The trace id of a request: the second part of the header `traceparent` (W3C Trace Context); empty without one.
pub(super) fn trace_id(headers: &HeaderMap) -> &str {
    trace_of(headers.get(TRACEPARENT))
}

fn trace_of(sent: Option<&HeaderValue>) -> &str {
    let sent = text_of(sent);
    let mut rest = sent.split('-');
    let parts = [rest.next(), rest.next(), rest.next(), rest.next()].map(Option::unwrap_or_default);
    let is_hex = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte));
    let [version, trace, parent, flags] = parts;
    // Later versions may have more fields.
    let is_complete = version != "00" || rest.next().is_none();
    let well_formed = parts.into_iter().all(is_hex)
        && (version.len(), trace.len(), parent.len(), flags.len()) == (2, 32, 16, 2)
        && version != "ff"
        && is_complete
        && trace.bytes().any(|byte| byte != b'0');
    if well_formed { trace } else { "" }
}

/// What a line has of a request, as it was sent: most requests have no line.
pub(super) struct Asked {
    from: Option<Peer>,
    method: Method,
    uri: Uri,
    length: Option<HeaderValue>,
    user_agent: Option<HeaderValue>,
    trace: Option<HeaderValue>,
}

impl Asked {
    pub(super) fn of(request: &Request) -> Self {
        let value = |name| request.headers().get(name).cloned();
        Self {
            from: request.extensions().get::<Peer>().copied(),
            method: request.method().clone(),
            uri: request.uri().clone(),
            length: value(CONTENT_LENGTH),
            user_agent: value(USER_AGENT),
            trace: value(TRACEPARENT),
        }
    }

    pub(super) fn trace_id(&self) -> &str {
        trace_of(self.trace.as_ref())
    }

    fn path(&self) -> String {
        cut(self.uri.path())
    }

    fn address(&self) -> String {
        self.from.map(|peer| peer.0.to_string()).unwrap_or_default()
    }

    /// The line of the access log.
    pub(super) fn log_access(&self, response: &Response, route: &str, request_id: &str, took: Duration) {
        let key = match response.extensions().get::<Client>() {
            Some(Client::Key(name)) => &**name,
            _ => "",
        };
        tracing::info!(
            target: ACCESS,
            from = self.address(),
            key,
            method = %self.method,
            path = self.path(),
            route,
            status = response.status().as_u16(),
            duration_ms = took.as_secs_f64() * 1e3,
            request_bytes = text_of(self.length.as_ref()).parse().unwrap_or(0_u64),
            response_bytes = response.body().size_hint().exact(),
            user_agent = cut(text_of(self.user_agent.as_ref())),
            request_id,
            trace_id = self.trace_id(),
            "request"
        );
    }
}

/// Logs a request that was refused because of who sent it. Admin requests are in the audit.
pub(super) fn log_refused(
    seldom: &Seldom,
    (error, reason): (&ApiError, &str),
    asked: &Asked,
    (route, request_id): (&str, &str),
) {
    if route.starts_with("/v1/admin") {
        return;
    }
    let Some(left_out) = seldom.admit() else { return };
    let key = match error {
        ApiError::Forbidden { name, .. } => name.as_str(),
        _ => "",
    };
    tracing::warn!(
        from = asked.address(),
        reason,
        key,
        method = %asked.method,
        path = asked.path(),
        left_out,
        request_id,
        trace_id = asked.trace_id(),
        "a request was refused: authentication failed"
    );
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    #[test]
    fn only_a_well_formed_trace_is_taken() {
        let trace = "0af7651916cd43dd8448eb211c80319c";
        for (sent, expected) in [
            (format!("00-{trace}-b7ad6b7169203331-01"), trace),
            (format!("01-{trace}-b7ad6b7169203331-01-more"), trace),
            (format!("00-{trace}-b7ad6b7169203331-01-more"), ""),
            (format!("ff-{trace}-b7ad6b7169203331-01"), ""),
            (format!("00-{}-b7ad6b7169203331-01", trace.to_uppercase()), ""),
            (format!("00-{}-b7ad6b7169203331-01", "0".repeat(32)), ""),
            (format!("00-{trace}-b7ad6b7169203331"), ""),
            (format!("00-{trace}x-b7ad6b7169203331-01"), ""),
            ("text\" field=\"1".to_owned(), ""),
            (String::new(), ""),
        ] {
            let headers = HeaderMap::from_iter([(
                axum::http::HeaderName::from_static("traceparent"),
                HeaderValue::try_from(&sent).unwrap(),
            )]);
            assert_eq!(trace_id(&headers), expected, "{sent}");
        }
        assert_eq!(trace_id(&HeaderMap::new()), "");
    }

    #[test]
    fn text_of_clients_is_cut_between_characters() {
        assert_eq!(cut("short"), "short");
        let long = cut(&"ä".repeat(60_000));
        assert_eq!(long.chars().count(), TEXT_CHARS_MAX + 1);
    }

    #[test]
    fn lines_that_strangers_cause_are_few_and_the_others_are_counted() {
        let seldom = Seldom::new();
        let written = (0..1000).filter(|_| seldom.admit().is_some()).count();
        assert!((10..20).contains(&written), "{written}");
        std::thread::sleep(Duration::from_millis(200));
        assert_eq!(seldom.admit(), Some(1000 - written as u64));
    }
}
