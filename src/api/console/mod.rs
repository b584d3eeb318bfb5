//! The console: pages for people, over the same operations that programs use.
//!
//! Its [files](assets) are compiled in and public, as they say nothing of this daemon. All they show comes from `/v1`
//! and from one [stream](feed) of figures, which need a key where the daemon has keys. So the console can do what the
//! holder of the key can do, and nothing else.

mod assets;
mod feed;
mod history;

use std::sync::Arc;

use axum::Router;
use axum::http::header::{ACCEPT, LOCATION};
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::routing::get;

use super::error::ApiError;
use super::{ApiState, App};

pub use feed::Feed;

/// What pages of a daemon of this state show.
pub(super) fn feed_of(state: &ApiState) -> Arc<Feed> {
    let (health, metrics) = (Arc::clone(&state.health), Arc::clone(&state.metrics));
    Feed::new(Arc::clone(&state.status), health, metrics, state.limits.console_pages)
}

/// The routes that need no key. Without open pages allowed, there are none.
pub(super) fn files(pages_max: usize) -> Router<App> {
    if pages_max == 0 {
        return Router::new();
    }
    Router::new()
        .route("/", get(entrance))
        .route("/ui", get(async || lead_to("ui/")))
        .route("/ui/", get(assets::index))
        .route("/ui/{*path}", get(assets::file))
}

/// The stream, which needs a key like the status. Without open pages allowed, there is none.
pub(super) fn stream(pages_max: usize) -> Router<App> {
    if pages_max == 0 { Router::new() } else { Router::new().route("/ui/live", get(feed::live)) }
}

/// Leads browsers to the console. Programs get what they get for any other path that is no route.
async fn entrance(headers: HeaderMap, uri: Uri) -> Result<Response, ApiError> {
    let accepted = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let is_browser =
        accepted.flat_map(|value| value.split(',')).any(|kind| kind.trim().starts_with("text/html"));
    if is_browser { Ok(lead_to("ui/")) } else { Err(ApiError::UnknownRoute { path: uri.path().to_owned() }) }
}

/// A relative address: a proxy may serve the daemon below a path of its own.
fn lead_to(address: &'static str) -> Response {
    (StatusCode::SEE_OTHER, [(LOCATION, address)]).into_response()
}
