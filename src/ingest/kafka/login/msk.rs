//! Tokens for Amazon MSK with IAM access control: a request to connect, signed here with AWS's Signature Version 4 and
//! written as an address in base64. The credentials are looked up as for backups in a bucket: the environment, a web
//! identity, a task, a pod, or the machine.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::str::FromStr as _;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use chrono::DateTime;
use object_store::RetryConfig;
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey, AwsCredential};
use ring::{digest, hmac};

use super::Token;
use crate::ingest::http_client::path_segment;

const SERVICE: &str = "kafka-cluster";
/// How long a signature is valid.
const VALID_SECONDS: i64 = 900;
/// Temporary credentials may end before a signature does. They are replaced five minutes before that at the latest,
/// so a signature is renewed sooner.
const RENEW_SECONDS: i64 = 240;
/// What is asked for credentials is asked once more, and for so long in all; who fetches tokens tries again.
const RETRY: (usize, Duration) = (1, Duration::from_secs(10));
/// The variables of the environment that say which credentials to use.
const CREDENTIALS: [&str; 12] = [
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_ROLE_ARN",
    "AWS_ROLE_SESSION_NAME",
    "AWS_ENDPOINT_URL_STS",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
    "AWS_METADATA_ENDPOINT",
    "AWS_IMDSV1_FALLBACK",
];
/// Those that say which region, the first one first.
const REGIONS: [&str; 2] = ["AWS_REGION", "AWS_DEFAULT_REGION"];

/// Who signs.
pub(super) struct Msk {
    region: String,
    /// What the environment says of credentials.
    variables: BTreeMap<String, String>,
}

impl Msk {
    /// Takes the region from the variables where it is empty.
    ///
    /// # Errors
    /// When there is none.
    pub fn new(region: &str, variables: BTreeMap<String, String>) -> Result<Self, String> {
        let known = REGIONS.iter().find_map(|name| variables.get(*name));
        let region = if region.is_empty() { known.map_or("", String::as_str) } else { region };
        let is_region = |c: u8| c.is_ascii_alphanumeric() || c == b'-';
        if region.is_empty() || !region.bytes().all(is_region) {
            return Err(format!("{region:?} is no region; set it, or AWS_REGION in the environment"));
        }
        Ok(Self { region: region.to_owned(), variables })
    }

    /// Where tokens come from, in words.
    pub fn describe(&self) -> String {
        format!("AWS IAM in {}", self.region)
    }

    /// A token with the credentials of now.
    ///
    /// # Errors
    /// Why there are no credentials.
    pub fn fetch(&self, now_ms: i64) -> Result<Token, String> {
        let credential = self.credential().map_err(|why| format!("has no credentials for us ({why})"))?;
        let agent = concat!("evergraph/", env!("CARGO_PKG_VERSION"));
        let value = token(&self.region, &credential, now_ms, agent)?;
        let principal = format!("access key {}", credential.key_id);
        let token = Token::new(value, principal, now_ms, expires_ms(now_ms));
        let renew_at_ms = token.renew_at_ms.min(now_ms + RENEW_SECONDS * 1000);
        Ok(Token { renew_at_ms, ..token })
    }

    /// Looks the credentials up anew, so that temporary ones have all of their time before them.
    fn credential(&self) -> Result<Arc<AwsCredential>, String> {
        // The HTTP client needs to know which cryptography to use; another part may have said so already.
        let _ = tokio_rustls::rustls::crypto::ring::default_provider().install_default();
        // A bucket is asked for, and never spoken to.
        let (max_retries, retry_timeout) = RETRY;
        let retry = RetryConfig { max_retries, retry_timeout, ..RetryConfig::default() };
        let mut builder = AmazonS3Builder::new().with_bucket_name("none").with_retry(retry);
        for (name, value) in CREDENTIALS.iter().filter_map(|name| self.variables.get_key_value(*name)) {
            let key = AmazonS3ConfigKey::from_str(&name.to_ascii_lowercase());
            builder = builder.with_config(key.map_err(|error| error.to_string())?, value);
        }
        let store = builder.with_region(&self.region).build().map_err(|error| error.to_string())?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| error.to_string())?;
        runtime.block_on(store.credentials().get_credential()).map_err(|error| error.to_string())
    }
}

/// What the environment of this process says of credentials and region.
pub(super) fn aws_variables() -> BTreeMap<String, String> {
    let names = CREDENTIALS.iter().chain(&REGIONS);
    names.filter_map(|name| Some(((*name).to_owned(), std::env::var(name).ok()?))).collect()
}

/// Whole seconds, as the signature has them.
fn expires_ms(now_ms: i64) -> i64 {
    (now_ms.div_euclid(1000) + VALID_SECONDS) * 1000
}

/// The signed request in base64, for who reads the name of a program in it.
fn token(region: &str, credential: &AwsCredential, now_ms: i64, agent: &str) -> Result<String, String> {
    let now = DateTime::from_timestamp_millis(now_ms).ok_or("cannot be asked: the clock is wrong")?;
    let (day, time) = (now.format("%Y%m%d").to_string(), now.format("%Y%m%dT%H%M%SZ").to_string());
    let scope = format!("{day}/{region}/{SERVICE}/aws4_request");
    let host = format!("kafka.{region}.amazonaws.com");
    // In the order of their names, which is the order in which they are signed.
    let mut parameters = vec![
        ("Action", format!("{SERVICE}:Connect")),
        ("X-Amz-Algorithm", "AWS4-HMAC-SHA256".to_owned()),
        ("X-Amz-Credential", format!("{}/{scope}", credential.key_id)),
        ("X-Amz-Date", time.clone()),
        ("X-Amz-Expires", VALID_SECONDS.to_string()),
    ];
    if let Some(token) = &credential.token {
        parameters.push(("X-Amz-Security-Token", token.clone()));
    }
    parameters.push(("X-Amz-SignedHeaders", "host".to_owned()));
    let signed = query(&parameters);
    let request = format!("GET\n/\n{signed}\nhost:{host}\n\nhost\n{}", hex(&sha256(b"")));
    let to_sign = format!("AWS4-HMAC-SHA256\n{time}\n{scope}\n{}", hex(&sha256(request.as_bytes())));
    let mut key = format!("AWS4{}", credential.secret_key).into_bytes();
    for part in [&*day, region, SERVICE, "aws4_request"] {
        key = hmac_sha256(&key, part);
    }
    let signature = hex(&hmac_sha256(&key, &to_sign));
    // The official signers write the session last, and at the end what is not signed.
    parameters.sort_by_key(|(name, _)| *name == "X-Amz-Security-Token");
    parameters.extend([("X-Amz-Signature", signature), ("User-Agent", agent.to_owned())]);
    let address = format!("https://{host}/?{}", query(&parameters));
    Ok(BASE64_URL_SAFE_NO_PAD.encode(address))
}

fn query(parameters: &[(&str, String)]) -> String {
    let pairs = parameters.iter().map(|(name, value)| format!("{name}={}", path_segment(value)));
    pairs.collect::<Vec<_>>().join("&")
}

fn sha256(data: &[u8]) -> Vec<u8> {
    digest::digest(&digest::SHA256, data).as_ref().to_vec()
}

fn hmac_sha256(key: &[u8], data: &str) -> Vec<u8> {
    hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), data.as_bytes()).as_ref().to_vec()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a text does not fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;

    use serde_json::Value;

    use super::*;

    fn variables(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    fn address(token: &str) -> String {
        String::from_utf8(BASE64_URL_SAFE_NO_PAD.decode(token).unwrap()).unwrap()
    }

    #[test]
    fn tokens_are_those_of_the_official_signer_byte_for_byte() {
        let cases: Vec<Value> =
            serde_json::from_str(include_str!("../../../../tests/golden/msk_iam.json")).unwrap();
        assert_eq!(cases.len(), 3);
        for case in cases {
            let text = |name: &str| case[name].as_str().map(str::to_owned);
            let credential = AwsCredential {
                key_id: text("key").unwrap(),
                secret_key: text("secret").unwrap(),
                token: text("session"),
            };
            let now_ms = case["unix_ms"].as_i64().unwrap();
            let made = token(&text("region").unwrap(), &credential, now_ms, &text("agent").unwrap()).unwrap();
            let expected = text("token").unwrap();
            assert_eq!(address(&made), address(&expected));
            assert_eq!(made, expected);
            assert_eq!(expires_ms(now_ms + 999), case["expires_unix_ms"].as_i64().unwrap());
        }
    }

    #[test]
    fn a_token_is_signed_with_the_credentials_and_for_the_region_of_the_environment() {
        let known = variables(&[
            ("AWS_ACCESS_KEY_ID", "AKIAIOSFODNN7EXAMPLE"),
            ("AWS_SECRET_ACCESS_KEY", "hunter2"),
            ("AWS_SESSION_TOKEN", "session"),
            ("AWS_REGION", "eu-west-1"),
        ]);
        let token = Msk::new("", known.clone()).unwrap().fetch(1_769_860_800_000).unwrap();
        let address = address(&token.value);
        assert!(address.starts_with("https://kafka.eu-west-1.amazonaws.com/?"), "{address}");
        assert!(address.contains("=AKIAIOSFODNN7EXAMPLE%2F20260131%2Feu-west-1%2F"), "{address}");
        assert!(address.contains("X-Amz-Security-Token=session&"), "{address}");
        assert_eq!(token.principal, "access key AKIAIOSFODNN7EXAMPLE");
        let lasts = [token.renew_at_ms, token.valid_until_ms].map(|at| (at - 1_769_860_800_000) / 1000);
        assert_eq!(lasts, [240, 900]);
        let other = Msk::new("us-east-1", known).unwrap();
        assert_eq!(other.describe(), "AWS IAM in us-east-1", "settings come first");
        assert!(Msk::new("", BTreeMap::new()).err().unwrap().contains("AWS_REGION"));
        assert!(Msk::new("a.example/", BTreeMap::new()).is_err());
    }

    #[test]
    fn credentials_of_a_pod_are_asked_for_and_their_absence_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("token");
        std::fs::write(&file, "pod-token").unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/creds", listener.local_addr().unwrap());
        let serving = std::thread::spawn(move || {
            let respond = |status: &str, body: &str| {
                let mut connection = listener.accept().unwrap().0;
                let mut request = [0; 4096];
                let length = connection.read(&mut request).unwrap();
                let head = format!(
                    "HTTP/1.1 {status}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
                    body.len()
                );
                connection.write_all((head + body).as_bytes()).unwrap();
                String::from_utf8_lossy(&request[..length]).into_owned()
            };
            let good = r#"{"AccessKeyId":"ASIAPOD","SecretAccessKey":"s","Token":"t",
                "Expiration":"2099-01-01T00:00:00Z"}"#;
            [respond("200 OK", good), respond("403 Forbidden", "{}")]
        });
        let known = variables(&[
            ("AWS_CONTAINER_CREDENTIALS_FULL_URI", &url),
            ("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", file.to_str().unwrap()),
        ]);
        let msk = Msk::new("us-east-1", known).unwrap();
        assert_eq!(msk.fetch(1_769_860_800_000).unwrap().principal, "access key ASIAPOD");
        let why = msk.fetch(1_769_860_800_000).err().unwrap();
        assert!(why.starts_with("has no credentials for us ("), "{why}");
        let asked = serving.join().unwrap();
        assert!(
            asked.iter().all(|asked| asked.to_lowercase().contains("authorization: pod-token")),
            "{asked:?}"
        );
    }
}
