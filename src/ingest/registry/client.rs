//! Schemas of a registry by their ids, over its REST interface (`GET /schemas/ids/ID`), each fetched once.
//!
//! An id never means another schema, so what was fetched is kept. What could not be used is asked for again after a
//! while: an id may become known. A registry that does not respond is left alone for a while that grows, and all that
//! ask meanwhile get that at once; whatever it says that is no schema and no clear "there is none" counts as that, so
//! that a proxy in its place makes no message a dead letter.

use std::collections::HashMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use parking_lot::{Mutex, RwLock};
use serde::Deserialize;
use thiserror::Error;
use ureq::tls::TlsConfig;

use super::{AvroSchema, Known, ProtobufSchema};
use crate::ingest::http_client::{TrustError, path_segment, trusted_roots};

/// Longest wait for one response; sources wait for it.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(3);
/// The registry is left alone for so long after its first fault, …
const FIRST_REST: Duration = Duration::from_millis(250);
/// … twice as long after each further one, and at most so long.
const LONGEST_REST: Duration = Duration::from_secs(15);
/// What could not be used is asked for again after so long.
const UNUSABLE_KEPT: Duration = Duration::from_secs(60);
/// Most ids that are kept: a producer may write any.
const KNOWN_MAX: usize = 10_000;
/// Most schemas that one refers to, also through others.
const REFERENCES_MAX: usize = 100;
/// Longest response.
const RESPONSE_BYTES_MAX: u64 = 4 << 20;

/// How to reach a registry.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct RegistryOptions {
    /// Its address, as in `https://registry:8081`.
    pub url: String,
    /// Name and password, if it wants these.
    pub username: String,
    #[allow(missing_docs)]
    pub password: String,
    /// A bearer token, if it wants one.
    pub token: String,
    /// A file of trusted PEM certificates; empty means the public ones.
    pub ca_file: PathBuf,
}

impl fmt::Debug for RegistryOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RegistryOptions").field("url", &self.url).field("username", &self.username).finish()
    }
}

/// Why a registry cannot be asked.
#[derive(Debug, Error)]
pub enum RegistryError {
    /// The file of certificates cannot be used.
    #[error("the certificates in {} cannot be used: {source}; check ingest.kafka.registry.ca_file", path.display())]
    Certificates {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: TrustError,
    },
}

/// The registry did not say what a schema is.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("the schema registry {url} {detail}; check ingest.kafka.registry, and whether it runs")]
pub struct RegistryDown {
    /// Its address.
    pub url: String,
    /// What it did.
    pub detail: String,
}

/// An outage that lasts.
#[derive(Debug)]
struct Outage {
    rests_until: Instant,
    rest: Duration,
    down: RegistryDown,
}

/// What was fetched, and when.
#[derive(Debug)]
struct Kept {
    known: Arc<Known>,
    since: Instant,
}

/// A registry, and the schemas that were fetched from it; shared by all that read.
pub struct Registry {
    url: String,
    authorization: Option<String>,
    agent: ureq::Agent,
    kept: RwLock<HashMap<u32, Kept>>,
    /// Held while a request is under way, so that there is one at a time.
    outage: Mutex<Option<Outage>>,
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registry").field("url", &self.url).finish_non_exhaustive()
    }
}

/// A response with a schema, as far as it is read here.
#[derive(Deserialize)]
struct SchemaDocument {
    schema: String,
    #[serde(default, rename = "schemaType")]
    kind: Option<String>,
    #[serde(default)]
    references: Option<Vec<Reference>>,
}

#[derive(Deserialize)]
struct Reference {
    name: String,
    subject: String,
    version: i64,
}

#[derive(Deserialize)]
struct Refusal {
    error_code: i64,
    #[serde(default)]
    message: String,
}

/// What a path of the registry has.
enum Found<T> {
    Some(T),
    /// Nothing, in its words.
    None(String),
}

impl Registry {
    /// Makes a client; asks nothing yet.
    ///
    /// # Errors
    /// When the file of certificates cannot be used.
    pub fn open(options: &RegistryOptions) -> Result<Self, RegistryError> {
        let path = &options.ca_file;
        let given = (!path.as_os_str().is_empty()).then_some(path.as_path());
        let roots = trusted_roots(given)
            .map_err(|source| RegistryError::Certificates { path: path.clone(), source })?;
        let agent = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .tls_config(TlsConfig::builder().root_certs(roots).build())
            .timeout_global(Some(REQUEST_TIMEOUT))
            .build()
            .into();
        let authorization = if !options.token.is_empty() {
            Some(format!("Bearer {}", options.token))
        } else if !options.username.is_empty() {
            let pair = format!("{}:{}", options.username, options.password);
            Some(format!("Basic {}", BASE64_STANDARD.encode(pair)))
        } else {
            None
        };
        let url = options.url.trim_end_matches('/').to_owned();
        Ok(Self { url, authorization, agent, kept: RwLock::default(), outage: Mutex::default() })
    }

    /// One that has these schemas and is nowhere, to measure by.
    #[must_use]
    pub fn of_schemas(schemas: impl IntoIterator<Item = (u32, Known)>) -> Self {
        let since = Instant::now();
        let kept = schemas.into_iter().map(|(id, known)| (id, Kept { known: Arc::new(known), since }));
        Self {
            url: String::new(),
            authorization: None,
            agent: ureq::Agent::new_with_defaults(),
            kept: RwLock::new(kept.collect()),
            outage: Mutex::default(),
        }
    }

    /// What is known of an id. Fetches it if that is nothing, which blocks for seconds at most.
    ///
    /// # Errors
    /// When the registry does not say, or did not a moment ago.
    pub fn schema(&self, id: u32) -> Result<Arc<Known>, RegistryDown> {
        if let Some(known) = self.kept(id) {
            return Ok(known);
        }
        let mut outage = self.outage.lock();
        // Who asked before may have fetched it, or have found that there is no response.
        if let Some(known) = self.kept(id) {
            return Ok(known);
        }
        if let Some(outage) = outage.as_ref().filter(|outage| Instant::now() < outage.rests_until) {
            return Err(outage.down.clone());
        }
        match self.fetch(id) {
            Ok(known) => {
                if outage.take().is_some() {
                    tracing::info!(url = self.url, "the schema registry responds again");
                }
                let known = Arc::new(known);
                let mut kept = self.kept.write();
                if kept.len() >= KNOWN_MAX {
                    kept.clear();
                }
                kept.insert(id, Kept { known: Arc::clone(&known), since: Instant::now() });
                Ok(known)
            }
            Err(detail) => {
                let down = RegistryDown { url: self.url.clone(), detail };
                let rest = outage.as_ref().map_or(FIRST_REST, |before| (before.rest * 2).min(LONGEST_REST));
                *outage = Some(Outage { rests_until: Instant::now() + rest, rest, down: down.clone() });
                Err(down)
            }
        }
    }

    /// Whether it responds.
    ///
    /// # Errors
    /// What it does instead.
    pub fn probe(&self) -> Result<(), RegistryDown> {
        // Id 0 is never given out, so that there is none is a response, too.
        let found = self.get::<serde::de::IgnoredAny>("/schemas/ids/0");
        found.map(drop).map_err(|detail| RegistryDown { url: self.url.clone(), detail })
    }

    fn kept(&self, id: u32) -> Option<Arc<Known>> {
        let kept = self.kept.read();
        let Kept { known, since } = kept.get(&id)?;
        let is_stale = matches!(**known, Known::Unusable(_)) && since.elapsed() >= UNUSABLE_KEPT;
        (!is_stale).then(|| Arc::clone(known))
    }

    /// A schema with those that it refers to, or why there is none to use.
    fn fetch(&self, id: u32) -> Result<Known, String> {
        let document = match self.get::<SchemaDocument>(&format!("/schemas/ids/{id}"))? {
            Found::Some(document) => document,
            Found::None(words) => {
                return Ok(Known::Unusable(format!("the registry does not know it ({words})")));
            }
        };
        let kind = document.kind.as_deref().unwrap_or("AVRO");
        if !matches!(kind, "AVRO" | "PROTOBUF") {
            let detail = format!("it is of type {kind}, and the topic has format = \"avro\" or \"protobuf\"");
            return Ok(Known::Unusable(detail));
        }
        let mut texts = Vec::new();
        let (mut open, mut seen) = (document.references.unwrap_or_default(), Vec::new());
        while let Some(Reference { name, subject, version }) = open.pop() {
            if seen.contains(&(subject.clone(), version)) {
                continue;
            }
            if seen.len() >= REFERENCES_MAX {
                return Ok(Known::Unusable(format!("it refers to more than {REFERENCES_MAX} schemas")));
            }
            let path = format!("/subjects/{}/versions/{version}", path_segment(&subject));
            match self.get::<SchemaDocument>(&path)? {
                Found::Some(document) => {
                    texts.push((name, document.schema));
                    open.extend(document.references.unwrap_or_default());
                }
                Found::None(words) => {
                    let detail =
                        format!("it refers to version {version} of {subject}, which is not there ({words})");
                    return Ok(Known::Unusable(detail));
                }
            }
            seen.push((subject, version));
        }
        let parsed = if kind == "AVRO" {
            let texts: Vec<String> = texts.into_iter().map(|(_, text)| text).collect();
            AvroSchema::parse(&document.schema, &texts).map(Known::Avro)
        } else {
            ProtobufSchema::parse(&document.schema, &texts).map(Known::Protobuf)
        };
        Ok(parsed.unwrap_or_else(|why| Known::Unusable(format!("it cannot be used: {why}"))))
    }

    fn get<T: for<'de> Deserialize<'de>>(&self, path: &str) -> Result<Found<T>, String> {
        let mut request = self.agent.get(format!("{}{path}", self.url));
        request = request.header("accept", "application/vnd.schemaregistry.v1+json, application/json");
        if let Some(authorization) = &self.authorization {
            request = request.header("authorization", authorization);
        }
        let mut response = request.call().map_err(|error| format!("does not respond ({error})"))?;
        let status = response.status().as_u16();
        let body = response.body_mut().with_config().limit(RESPONSE_BYTES_MAX).read_to_vec();
        let body = body.map_err(|error| format!("cuts its response off ({error})"))?;
        match status {
            200 => {
                let document = serde_json::from_slice(&body);
                let what = || format!("responds to {path} with no schema: is it a registry?");
                document.map(Found::Some).map_err(|_| what())
            }
            // 404 alone may be any server; only a registry says which of its things is not there.
            404 => match serde_json::from_slice::<Refusal>(&body) {
                Ok(refusal) if (40_400..40_500).contains(&refusal.error_code) => {
                    Ok(Found::None(refusal.message))
                }
                _ => Err(format!("has nothing at {path} (404): is it the address of a registry?")),
            },
            401 | 403 => Err(format!("does not accept the credentials ({status})")),
            _ => Err(format!("responds with {status}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;

    use super::*;

    /// Serves these responses, one a request, and returns the address and what was asked.
    fn serve(responses: Vec<(u16, String)>) -> (String, std::thread::JoinHandle<Vec<String>>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let serving = std::thread::spawn(move || {
            let serve = |(status, body): (u16, String)| {
                let mut connection = listener.accept().unwrap().0;
                let mut request = [0; 4096];
                let length = connection.read(&mut request).unwrap();
                let head = format!(
                    "HTTP/1.1 {status} x\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
                    body.len()
                );
                connection.write_all((head + &body).as_bytes()).unwrap();
                String::from_utf8_lossy(&request[..length]).into_owned()
            };
            responses.into_iter().map(serve).collect()
        });
        (url, serving)
    }

    fn open(url: &str) -> Registry {
        Registry::open(&RegistryOptions { url: url.to_owned(), ..RegistryOptions::default() }).unwrap()
    }

    fn schema(text: &str) -> (u16, String) {
        (200, serde_json::json!({ "schema": text }).to_string())
    }

    #[test]
    fn a_schema_is_fetched_once_with_what_it_refers_to_and_with_the_credentials() {
        let main = serde_json::json!({ "schema": "{\"type\":\"array\",\"items\":\"a.R\"}",
            "references": [{ "name": "a.R", "subject": "a/R", "version": 3 }] });
        let part = "{\"type\":\"fixed\",\"name\":\"a.R\",\"size\":1}";
        let (url, serving) = serve(vec![(200, main.to_string()), schema(part)]);
        let options = RegistryOptions {
            url: format!("{url}/"),
            username: "me".into(),
            password: "pw".into(),
            ..RegistryOptions::default()
        };
        let registry = Registry::open(&options).unwrap();
        for _ in 0..2 {
            let known = registry.schema(7).unwrap();
            let Known::Avro(schema) = &*known else { panic!("{known:?}") };
            assert_eq!(schema.to_json(&[2, b'x', 0], 99).unwrap(), b"[\"x\"]");
        }
        let asked = serving.join().unwrap();
        assert!(asked[0].starts_with("GET /schemas/ids/7 HTTP"), "{asked:?}");
        assert!(asked[0].to_lowercase().contains("authorization: basic bwu6chc="), "{asked:?}");
        assert!(asked[1].starts_with("GET /subjects/a%2FR/versions/3 HTTP"), "{asked:?}");
        assert!(!format!("{options:?}{registry:?}").contains("pw"));
    }

    #[test]
    fn only_a_registry_can_say_that_there_is_no_schema() {
        let unknown = r#"{"error_code":40403,"message":"Schema 7 not found"}"#.to_owned();
        for (response, expected) in [
            ((404, unknown), Ok("the registry does not know it (Schema 7 not found)")),
            ((200, r#"{"schema":"{}","schemaType":"JSON"}"#.to_owned()), Ok("it is of type JSON")),
            (schema("{\"type\":\"nothing\"}"), Ok("it cannot be used")),
            ((404, "<html>".to_owned()), Err("is it the address of a registry?")),
            ((404, r#"{"error_code":404,"message":"HTTP 404 Not Found"}"#.to_owned()), Err("(404)")),
            ((200, "<html>".to_owned()), Err("with no schema")),
            ((401, String::new()), Err("does not accept the credentials (401)")),
            ((302, String::new()), Err("302")),
            ((500, r#"{"error_code":50001}"#.to_owned()), Err("responds with 500")),
        ] {
            let (url, serving) = serve(vec![response]);
            match (open(&url).schema(7), expected) {
                (Ok(known), Ok(expected)) => {
                    let Known::Unusable(why) = &*known else { panic!("{known:?}") };
                    assert!(why.contains(expected), "{why}");
                }
                (Err(down), Err(expected)) => assert!(down.to_string().contains(expected), "{down}"),
                (found, expected) => panic!("{found:?}, not {expected:?}"),
            }
            serving.join().unwrap();
        }
    }

    #[test]
    fn one_that_does_not_respond_is_left_alone_for_a_while_and_asked_again() {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let registry = open(&format!("http://127.0.0.1:{port}"));
        let down = registry.schema(1).unwrap_err();
        assert!(down.detail.starts_with("does not respond"), "{down}");
        let listener = TcpListener::bind(("127.0.0.1", port)).unwrap();
        assert_eq!(registry.schema(1).unwrap_err(), down, "it was not asked");
        let serving = std::thread::spawn(move || {
            let mut connection = listener.accept().unwrap().0;
            let _ = connection.read(&mut [0; 4096]).unwrap();
            let body = schema("\"int\"").1;
            let head =
                format!("HTTP/1.1 200 x\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", body.len());
            connection.write_all((head + &body).as_bytes()).unwrap();
        });
        std::thread::sleep(FIRST_REST);
        assert!(matches!(&*registry.schema(1).unwrap(), Known::Avro(_)));
        serving.join().unwrap();
    }

    #[test]
    fn certificates_that_cannot_be_used_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ca.pem");
        std::fs::write(&path, "no certificate").unwrap();
        let options = RegistryOptions { ca_file: path, ..RegistryOptions::default() };
        let said = Registry::open(&options).unwrap_err().to_string();
        assert!(said.contains("ca.pem") && said.contains("ca_file"), "{said}");
    }
}
