//! Received bodies as values, with our own errors.

use axum::Json;
use axum::body::Bytes;
use axum::extract::{FromRequest, Request};
use axum::http::header::CONTENT_ENCODING;
use serde::de::DeserializeOwned;

use super::bulk::Bulk;
use super::envelope::{Permit, media_type};
use super::error::ApiError;
use super::items::at_most;
use super::{ApiLimits, App};

/// Larger bodies are parsed by the threads for large requests.
const INLINE_BYTES: usize = 32 << 10;

/// A JSON body of a known shape.
pub(super) struct JsonBody<T>(pub T);

impl<T: DeserializeOwned + Send + 'static> FromRequest<App> for JsonBody<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, app: &App) -> Result<Self, ApiError> {
        let media = media_type(request.headers()).unwrap_or_default();
        let is_json =
            media.strip_prefix("application/").is_some_and(|kind| kind == "json" || kind.ends_with("+json"));
        if !is_json {
            return Err(ApiError::ContentType { expected: "application/json" });
        }
        let permit = request.extensions().get::<Permit>().cloned();
        let RawBody(body) = RawBody::from_request(request, app).await?;
        parse(body, permit, &app.state.bulk, &app.state.limits).await.map(Self)
    }
}

async fn parse<T: DeserializeOwned + Send + 'static>(
    body: Bytes,
    permit: Option<Permit>,
    bulk: &Bulk,
    limits: &ApiLimits,
) -> Result<T, ApiError> {
    let (items, large) = (limits.batch_items, body.len() > INLINE_BYTES);
    let parse = move || at_most(items, || Json::<T>::from_bytes(&body));
    let parsed = if large { bulk.run(permit, limits.request_timeout, parse).await? } else { parse() };
    let Json(value) = parsed.map_err(|rejection| ApiError::of_json(&rejection, limits.body_bytes))?;
    Ok(value)
}

/// A body of any shape.
pub(super) struct RawBody(pub Bytes);

impl FromRequest<App> for RawBody {
    type Rejection = ApiError;

    async fn from_request(request: Request, app: &App) -> Result<Self, ApiError> {
        if let Some(found) = request
            .headers()
            .get(CONTENT_ENCODING)
            .filter(|value| !value.as_bytes().eq_ignore_ascii_case(b"identity"))
        {
            return Err(ApiError::ContentEncoding {
                found: String::from_utf8_lossy(found.as_bytes()).chars().take(40).collect(),
            });
        }
        let bytes = Bytes::from_request(request, app).await.map_err(|rejection| {
            ApiError::of_body(rejection.status(), rejection.body_text(), app.state.limits.body_bytes)
        })?;
        Ok(Self(bytes))
    }
}

#[cfg(test)]
mod tests {
    use std::thread::{self, ThreadId};

    use serde::Deserializer;
    use serde::de::{Deserialize, IgnoredAny};

    use super::*;

    /// The thread that parsed it.
    struct ParsedBy(ThreadId);

    impl<'de> Deserialize<'de> for ParsedBy {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            IgnoredAny::deserialize(deserializer).map(|_| Self(thread::current().id()))
        }
    }

    #[tokio::test]
    async fn large_bodies_are_parsed_on_other_threads_than_the_runtimes() {
        let (bulk, limits) = (Bulk::start(0).unwrap(), ApiLimits::default());
        let by = async |length: usize| {
            let text = format!("[{}0]", "0,".repeat(length / 2));
            parse::<ParsedBy>(Bytes::from(text), None, &bulk, &limits).await.unwrap().0
        };
        assert_eq!(by(100).await, thread::current().id());
        assert_ne!(by(1 << 20).await, thread::current().id());
        let wrong = parse::<u8>(Bytes::from("x".repeat(1 << 20)), None, &bulk, &limits).await;
        assert!(matches!(wrong, Err(ApiError::Unreadable(_))), "{wrong:?}");
    }
}
