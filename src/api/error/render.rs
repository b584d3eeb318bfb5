//! How an error becomes a body.

use axum::Json;
use axum::http::HeaderValue;
use axum::http::header::{CONTENT_TYPE, VARY};
use axum::response::{IntoResponse, Response};

use super::{ApiError, ErrorBody, PROBLEM_JSON, Problem};

/// Longest message, in characters.
const MESSAGE_CHARS_MAX: usize = 800;

/// Writes the error inside `response`, if there is one, as its body, which is an [`ErrorBody`] or a [`Problem`].
pub(in crate::api) fn render(mut response: Response, request_id: &str, as_problem: bool) -> Response {
    let Some(error) = response.extensions_mut().remove::<ApiError>() else { return response };
    let body = ErrorBody {
        error: shortened(error.to_string()),
        error_type: error.class().1,
        details: error.details(),
        request_id: request_id.to_owned(),
    };
    let (parts, _) = response.into_parts();
    let mut rendered = if as_problem {
        let problem = Json(Problem::of(body, parts.status));
        ([(CONTENT_TYPE, HeaderValue::from_static(PROBLEM_JSON))], problem).into_response()
    } else {
        Json(body).into_response()
    };
    rendered.headers_mut().insert(VARY, HeaderValue::from_static("accept"));
    *rendered.status_mut() = parts.status;
    *rendered.extensions_mut() = parts.extensions;
    rendered.headers_mut().extend(parts.headers.into_iter().filter_map(|(name, value)| Some((name?, value))));
    rendered
}

/// A message without its middle, if it is long: client input is not returned or logged in full, and the end of a
/// message names the place of the fault.
pub(in crate::api) fn shortened(message: String) -> String {
    cut_to(MESSAGE_CHARS_MAX, message)
}

/// A message of at most `most` characters, without its middle if it is longer.
pub(super) fn cut_to(most: usize, message: String) -> String {
    let length = message.chars().count();
    if length <= most {
        return message;
    }
    let (start, end) = (most * 3 / 4, most / 4);
    let beginning: String = message.chars().take(start).collect();
    let rest: String = message.chars().skip(length - end).collect();
    format!("{beginning} … {rest}")
}
