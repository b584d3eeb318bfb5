//! Tokens from a token endpoint, by client credentials: OAuth 2.0 (RFC 6749, section 4.4). How they are asked for;
//! `response` reads what comes back.

use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use ureq::tls::{RootCerts, TlsConfig};

use super::Token;
use super::response::token_of_response;
use crate::ingest::http_client::path_segment;

/// Longest wait for a response; a thread of its own waits for it.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
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
        token_of_response(status, &body, &self.client, now_ms)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;

    use base64::prelude::BASE64_URL_SAFE_NO_PAD;

    use super::super::response::LIFETIME_MS_MAX;
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
            (r#"{"sub":"svc"}"#, r#","expires_in":"inf""#, None),
            (r#"{"sub":"svc","exp":1030}"#, r#","expires_in":[60]"#, Some(1_030_000)),
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
            (200, r#"["opaque",60]"#, "responds with no access_token"),
            (400, r#"["invalid_scope",""]"#, "responds with 400"),
            (400, r#"{"error":"a\nb"}"#, "refuses the client (400, a b)"),
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
