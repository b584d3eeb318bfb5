//! Errors as problem details (RFC 9457), for clients that ask for them.

use axum::http::header::ACCEPT;
use axum::http::{HeaderMap, StatusCode};
use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use super::{ErrorBody, ErrorType};

/// The media type of problem details.
pub(in crate::api) const PROBLEM_JSON: &str = "application/problem+json";

/// The body of an error response as problem details (RFC 9457): the response to a request whose `Accept` lists
/// `application/problem+json`.
#[derive(Debug, Serialize, ToSchema)]
pub struct Problem {
    /// Always `about:blank`: the status says as much as a type would, and `error_type` says more.
    #[serde(rename = "type")]
    #[schema(example = "about:blank")]
    about: &'static str,
    /// The meaning of the status.
    #[schema(example = "Not Found")]
    title: &'static str,
    /// The status code.
    #[schema(minimum = 400, maximum = 599)]
    status: u16,
    /// What went wrong and what to do, for people.
    #[schema(example = "no node has the key 7")]
    detail: String,
    #[allow(missing_docs)] // words beside a reference would be a second schema
    error_type: ErrorType,
    /// Facts about this failure; an object whose fields depend on `error_type`.
    #[schema(value_type = Object)]
    details: Value,
    /// The id of the request, as in the header `x-request-id`.
    request_id: String,
}

impl Problem {
    /// The same error in this form.
    pub(super) fn of(body: ErrorBody, status: StatusCode) -> Self {
        Self {
            about: "about:blank",
            title: status.canonical_reason().unwrap_or("Error"),
            status: status.as_u16(),
            detail: body.error,
            error_type: body.error_type,
            details: body.details,
            request_id: body.request_id,
        }
    }
}

/// Whether a client asks for problem details: `Accept` lists them, with any weight but 0.
pub(in crate::api) fn is_wanted(headers: &HeaderMap) -> bool {
    let listed = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    listed.flat_map(|value| value.split(',')).any(|range| {
        let mut parts = range.split(';').map(str::trim);
        let is_problem = parts.next().is_some_and(|media| media.eq_ignore_ascii_case(PROBLEM_JSON));
        let weight = parts.find_map(|part| part.strip_prefix("q=").or_else(|| part.strip_prefix("Q=")));
        is_problem && weight.is_none_or(|weight| weight.parse::<f32>().is_ok_and(|weight| weight > 0.0))
    })
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    #[test]
    fn only_a_client_that_names_the_media_type_gets_it() {
        for (accept, wanted) in [
            ("application/problem+json", true),
            ("application/json, Application/Problem+JSON; q=0.5", true),
            ("application/problem+json;q=0", false),
            ("application/problem+json;q=much", false),
            ("application/json", false),
            ("*/*", false),
            ("application/*", false),
            ("", false),
        ] {
            let mut headers = HeaderMap::new();
            headers.append(ACCEPT, HeaderValue::from_static("text/plain"));
            headers.append(ACCEPT, HeaderValue::from_str(accept).unwrap());
            assert_eq!(is_wanted(&headers), wanted, "{accept}");
        }
        assert!(!is_wanted(&HeaderMap::new()));
    }
}
