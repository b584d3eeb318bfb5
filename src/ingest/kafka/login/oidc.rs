//! Tokens from a token endpoint, by client credentials: OAuth 2.0 (RFC 6749, section 4.4).

use std::time::Duration;

use base64::Engine as _;
use base64::prelude::{BASE64_STANDARD, BASE64_URL_SAFE_NO_PAD};
use serde::Deserialize;
use ureq::tls::{RootCerts, TlsConfig};

use super::Token;
use crate::ingest::http_client::path_segment;

/// Longest wait for a response; a thread of its own waits for it.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// A token is renewed as if it were valid for so long at most.
const LIFETIME_MS_MAX: i64 = 365 * 24 * 3_600_000;
/// Longest response.
const RESPONSE_BYTES_MAX: u64 = 1 << 20;

/// A token endpoint, and who asks there.
pub(super) struct Oidc {
    pub endpoint: String,
    client: String,
    authorization: String,
    form: String,
    agent: ureq::Agent,
}

#[derive(Deserialize)]
struct Granted {
    access_token: String,
    #[serde(default)]
    expires_in: Option<Seconds>,
}

/// Some endpoints write numbers as texts.
#[derive(Deserialize)]
#[serde(untagged)]
enum Seconds {
    Number(f64),
    Text(String),
}

impl Seconds {
    fn ms(&self) -> Option<i64> {
        match self {
            Self::Number(seconds) => Some(to_ms(*seconds)),
            Self::Text(text) => text.trim().parse().ok().map(to_ms),
        }
    }
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

impl Oidc {
    pub fn new(endpoint: &str, client: &str, secret: &str, scope: &str, roots: RootCerts) -> Self {
        let agent = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .tls_config(TlsConfig::builder().root_certs(roots).build())
            .timeout_global(Some(REQUEST_TIMEOUT))
            .build()
            .into();
        let scope = if scope.is_empty() { String::new() } else { format!("&scope={}", path_segment(scope)) };
        Self {
            endpoint: endpoint.to_owned(),
            client: client.to_owned(),
            authorization: format!("Basic {}", BASE64_STANDARD.encode(format!("{client}:{secret}"))),
            form: format!("grant_type=client_credentials{scope}"),
            agent,
        }
    }

    /// Asks for a token.
    ///
    /// # Errors
    /// What the endpoint does instead.
    pub fn fetch(&self, now_ms: i64) -> Result<Token, String> {
        let sent = self
            .agent
            .post(&self.endpoint)
            .header("accept", "application/json")
            .header("content-type", "application/x-www-form-urlencoded")
            .header("authorization", &self.authorization)
            .send(&self.form);
        let mut response = sent.map_err(|error| format!("does not respond ({error})"))?;
        let status = response.status().as_u16();
        let body = response.body_mut().with_config().limit(RESPONSE_BYTES_MAX).read_to_vec();
        let body = body.map_err(|error| format!("cuts its response off ({error})"))?;
        if status != 200 {
            return Err(refusal(status, &body));
        }
        let granted: Granted =
            serde_json::from_slice(&body).map_err(|_| "responds with no access_token".to_owned())?;
        self.read(granted, now_ms)
    }

    fn read(&self, granted: Granted, now_ms: i64) -> Result<Token, String> {
        let claims = claims(&granted.access_token).unwrap_or_default();
        let lifetime_ms = granted.expires_in.as_ref().and_then(Seconds::ms);
        let from_now = lifetime_ms.map(|ms| now_ms.saturating_add(ms));
        let by_claim = claims.exp.map(to_ms);
        let valid_until_ms = match (from_now, by_claim) {
            // With a wrong clock here the claim seems to be past, and the lifetime still is what it is.
            (Some(from_now), Some(by_claim)) if by_claim > now_ms => from_now.min(by_claim),
            (Some(at), _) | (None, Some(at)) => at,
            (None, None) => return Err("says of a token neither expires_in nor exp".to_owned()),
        };
        if valid_until_ms <= now_ms {
            return Err("gives a token that has expired already; check the clocks".to_owned());
        }
        let valid_until_ms = valid_until_ms.min(now_ms.saturating_add(LIFETIME_MS_MAX));
        let principal = claims.sub.unwrap_or_else(|| self.client.clone());
        Ok(Token::new(granted.access_token, principal, now_ms, valid_until_ms))
    }
}

#[allow(clippy::cast_possible_truncation)]
fn to_ms(seconds: f64) -> i64 {
    (seconds * 1000.0) as i64
}

/// Why there is no token, in the endpoint's words if it has any.
fn refusal(status: u16, body: &[u8]) -> String {
    match serde_json::from_slice::<Refused>(body) {
        Ok(Refused { error, error_description }) => {
            let words = if error_description.is_empty() { "" } else { ": " };
            format!("refuses the client ({status}, {error}{words}{error_description})")
        }
        Err(_) if status == 401 || status == 403 => format!("refuses the client ({status})"),
        Err(_) => format!("responds with {status}"),
    }
}

/// The claims of a token that is a JWT. Only the brokers check it.
fn claims(token: &str) -> Option<Claims> {
    let payload = token.split('.').nth(1)?;
    let payload = BASE64_URL_SAFE_NO_PAD.decode(payload.trim_end_matches('=')).ok()?;
    serde_json::from_slice(&payload).ok()
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;

    use super::*;

    /// What an endpoint is asked, and what comes of its response at second 1000.
    fn fetch(status: u16, body: &str, scope: &str) -> (String, Result<Token, String>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/token", listener.local_addr().unwrap());
        let head =
            format!("HTTP/1.1 {status} x\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", body.len());
        let response = head + body;
        let serving = std::thread::spawn(move || {
            let mut connection = listener.accept().unwrap().0;
            let (mut request, mut part) = (Vec::new(), [0; 4096]);
            while !request.windows(10).any(|part| part == b"grant_type") {
                let length = connection.read(&mut part).unwrap();
                request.extend_from_slice(&part[..length]);
            }
            connection.write_all(response.as_bytes()).unwrap();
            String::from_utf8(request).unwrap()
        });
        let token = Oidc::new(&url, "me", "hunter2", scope, RootCerts::WebPki).fetch(1_000_000);
        (serving.join().unwrap(), token)
    }

    fn jwt(claims: &str) -> String {
        format!("e30.{}.sig", BASE64_URL_SAFE_NO_PAD.encode(claims))
    }

    #[test]
    fn a_token_is_asked_for_by_client_credentials() {
        let (asked, token) = fetch(200, r#"{"access_token":"opaque","expires_in":60}"#, "a b");
        assert!(asked.starts_with("POST /token HTTP/1.1\r\n"), "{asked}");
        assert!(asked.ends_with("\r\n\r\ngrant_type=client_credentials&scope=a%20b"), "{asked}");
        assert!(asked.to_lowercase().contains("authorization: basic bwu6ahvudgvymg=="), "{asked}");
        let token = token.unwrap();
        assert_eq!((&*token.value, &*token.principal), ("opaque", "me"));
        assert_eq!((token.valid_until_ms, token.renew_at_ms), (1_060_000, 1_048_000));
    }

    #[test]
    fn how_long_a_token_is_valid_follows_from_what_is_said_of_it() {
        for (claims, expires_in, expected) in [
            (r#"{"sub":"svc","exp":1030}"#, "", Some(1_030_000)),
            (r#"{"sub":"svc","exp":1030}"#, r#","expires_in":60"#, Some(1_030_000)),
            (r#"{"sub":"svc","exp":1090}"#, r#","expires_in":60"#, Some(1_060_000)),
            // The clock here is ahead of the issuer's.
            (r#"{"sub":"svc","exp":900}"#, r#","expires_in":60"#, Some(1_060_000)),
            (r#"{"sub":"svc","exp":900}"#, "", None),
            (r#"{"sub":"svc"}"#, r#","expires_in":"60""#, Some(1_060_000)),
            (r#"{"sub":"svc","exp":1e300}"#, "", Some(1_000_000 + LIFETIME_MS_MAX)),
            (r#"{"sub":"svc"}"#, r#","expires_in":-1e300"#, None),
            (r#"{"sub":"svc"}"#, r#","expires_in":"soon""#, None),
            (r#"{"sub":"svc"}"#, "", None),
            (r#"{"sub":"svc"}"#, r#","expires_in":0"#, None),
        ] {
            let body = format!(r#"{{"access_token":"{}"{expires_in}}}"#, jwt(claims));
            let token = fetch(200, &body, "").1;
            assert_eq!(
                token.as_ref().ok().map(|token| token.valid_until_ms),
                expected,
                "{claims}{expires_in}"
            );
            assert!(token.is_err() || token.is_ok_and(|token| token.principal == "svc"));
        }
    }

    #[test]
    fn what_an_endpoint_does_instead_is_reported_in_its_words() {
        let denied = r#"{"error":"invalid_client","error_description":"no such client"}"#;
        for (status, body, expected) in [
            (401, denied, "refuses the client (401, invalid_client: no such client)"),
            (400, r#"{"error":"invalid_scope"}"#, "refuses the client (400, invalid_scope)"),
            (403, "<html>", "refuses the client (403)"),
            (503, "<html>", "responds with 503"),
            (302, "", "responds with 302"),
            (200, "<html>", "responds with no access_token"),
            (200, "{}", "responds with no access_token"),
        ] {
            let why = fetch(status, body, "").1.err().unwrap();
            assert_eq!(why, expected);
        }
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let nobody = Oidc::new(&format!("http://127.0.0.1:{port}/"), "me", "hunter2", "", RootCerts::WebPki);
        let why = nobody.fetch(0).err().unwrap();
        assert!(why.starts_with("does not respond (") && !why.contains("hunter2"), "{why}");
    }
}
