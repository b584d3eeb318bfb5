//! What a token endpoint responds: a token and how long it is valid, or why there is none (RFC 6749, sections 5.1 and
//! 5.2). A token that is a JWT says more of itself, which is taken where it can be read: only the brokers check it.
//!
//! All of this comes from outside. Words of it that are reported are cut, and no error repeats a token.

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::Token;

/// A token is renewed as if it were valid for so long at most.
pub(super) const LIFETIME_MS_MAX: i64 = 365 * 24 * 3_600_000;
/// Longest name of who logs in, and longest words of an endpoint in an error, in characters.
const WORDS_MAX: usize = 200;

#[derive(Deserialize)]
struct Granted {
    access_token: String,
    #[serde(default)]
    expires_in: Value,
}

#[derive(Deserialize)]
struct Refused {
    error: String,
    #[serde(default)]
    error_description: String,
}

/// What is read of a token that is a JWT.
#[derive(Default, Deserialize)]
struct Claims {
    #[serde(default)]
    sub: Option<String>,
    #[serde(default)]
    exp: Option<f64>,
}

/// The token in a response with this status, which came at `now_ms`, milliseconds since the Unix epoch. Who logs in is
/// `client`, unless the token names somebody.
///
/// # Errors
/// What the endpoint does instead, in words that follow its address.
pub fn token_of_response(status: u16, body: &[u8], client: &str, now_ms: i64) -> Result<Token, String> {
    if status != 200 {
        return Err(refusal(status, body));
    }
    let Some(Granted { access_token, expires_in }) = object(body) else {
        return Err("responds with no access_token".to_owned());
    };
    if access_token.is_empty() || !access_token.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err("gives an access_token that is empty or not all visible ASCII".to_owned());
    }
    let claims = claims(&access_token).unwrap_or_default();
    let from_now = seconds(&expires_in).map(|seconds| now_ms.saturating_add(to_ms(seconds)));
    let by_claim = claims.exp.map(to_ms);
    let valid_until_ms = match (from_now, by_claim) {
        // With a wrong clock here the claim seems to be past, and the lifetime still is what it is.
        (Some(from_now), Some(by_claim)) if by_claim > now_ms => from_now.min(by_claim),
        (Some(at), _) | (None, Some(at)) => at,
        (None, None) => return Err("says of a token neither expires_in nor exp".to_owned()),
    };
    if valid_until_ms <= now_ms {
        return Err("gives a token that has expired already (expires_in or exp); check the clocks".to_owned());
    }
    let valid_until_ms = valid_until_ms.min(now_ms.saturating_add(LIFETIME_MS_MAX));
    let principal = claims.sub.filter(|sub| is_name(sub)).unwrap_or_else(|| client.to_owned());
    Ok(Token::new(access_token, principal, now_ms, valid_until_ms))
}

/// What these bytes are if they are an object. serde takes a list for the fields in their order, too.
fn object<T: DeserializeOwned>(bytes: &[u8]) -> Option<T> {
    let is_object = bytes.trim_ascii_start().starts_with(b"{");
    serde_json::from_slice(bytes).ok().filter(|_| is_object)
}

/// Some endpoints write numbers as texts.
fn seconds(value: &Value) -> Option<f64> {
    let seconds = value.as_f64().or_else(|| value.as_str()?.trim().parse().ok());
    seconds.filter(|seconds| seconds.is_finite())
}

#[allow(clippy::cast_possible_truncation)]
fn to_ms(seconds: f64) -> i64 {
    (seconds * 1000.0) as i64
}

fn is_name(text: &str) -> bool {
    !text.is_empty() && text.chars().count() <= WORDS_MAX && !text.chars().any(char::is_control)
}

/// Why there is no token, in the endpoint's words if it has any.
fn refusal(status: u16, body: &[u8]) -> String {
    match object(body) {
        Some(Refused { error, error_description }) => {
            let separator = if error_description.is_empty() { "" } else { ": " };
            let (error, description) = (words(&error), words(&error_description));
            format!("refuses the client ({status}, {error}{separator}{description})")
        }
        None if status == 401 || status == 403 => format!("refuses the client ({status})"),
        None => format!("responds with {status}"),
    }
}

/// A text as a part of a line.
fn words(text: &str) -> String {
    text.chars().take(WORDS_MAX).map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// The claims of a token that is a JWT.
fn claims(token: &str) -> Option<Claims> {
    let payload = token.split('.').nth(1)?;
    object(&BASE64_URL_SAFE_NO_PAD.decode(payload.trim_end_matches('=')).ok()?)
}
