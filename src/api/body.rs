//! Reading bodies: bounded in bytes and in time, with our own errors.

use axum::Json;
use axum::body::Bytes;
use axum::extract::{FromRequest, Request};
use serde::de::DeserializeOwned;

use super::App;
use super::error::ApiError;

/// A JSON body of a known shape.
pub(super) struct JsonBody<T>(pub T);

impl<T: DeserializeOwned> FromRequest<App> for JsonBody<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, app: &App) -> Result<Self, ApiError> {
        let Json(value) = in_time(app, Json::<T>::from_request(request, app))
            .await?
            .map_err(|rejection| ApiError::of_json(&rejection, app.state.limits.body_bytes))?;
        Ok(Self(value))
    }
}

/// A body of any shape.
pub(super) struct RawBody(pub Bytes);

impl FromRequest<App> for RawBody {
    type Rejection = ApiError;

    async fn from_request(request: Request, app: &App) -> Result<Self, ApiError> {
        let bytes = in_time(app, Bytes::from_request(request, app)).await?.map_err(|rejection| {
            ApiError::of_body(rejection.status(), rejection.body_text(), app.state.limits.body_bytes)
        })?;
        Ok(Self(bytes))
    }
}

async fn in_time<T>(app: &App, reading: impl Future<Output = T>) -> Result<T, ApiError> {
    let limit = app.state.limits.request_timeout;
    let late = |_| ApiError::BodyTimeout { seconds: limit.as_secs_f64() };
    tokio::time::timeout(limit, reading).await.map_err(late)
}
