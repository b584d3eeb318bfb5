//! HTTP client of a running daemon: its address, the key, and its responses.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use serde_json::Value;
use ureq::BodyReader;
use ureq::config::ConfigBuilder;
use ureq::http::{Method, Request, StatusCode, request};
use ureq::tls::{RootCerts, TlsConfig};
use ureq::typestate::AgentScope;

use crate::ingest::http_client::trusted_roots;
use crate::ingest::produce::is_about_trust;

/// Default request timeout.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);

/// A running daemon.
#[derive(Debug, Args)]
pub(super) struct DaemonArgs {
    /// Address of the daemon's HTTP interface
    #[arg(long, value_name = "URL", env = "EVERGRAPH_URL", default_value = "http://127.0.0.1:8080")]
    pub url: String,
    /// File that contains one key of the daemon's api.keys_file, and nothing else; needed if it has keys
    #[arg(long, value_name = "FILE", env = "EVERGRAPH_KEY_FILE")]
    key_file: Option<PathBuf>,
    /// File of trusted PEM certificates, for https with a private certificate authority; without it, the public ones
    #[arg(long, value_name = "FILE", env = "EVERGRAPH_CA_FILE")]
    ca_file: Option<PathBuf>,
}

/// A command for a stopped daemon that a running one carries out as well.
#[derive(Debug, Args)]
pub(super) struct LiveArgs {
    /// Have the running daemon at --url do it. Needs a key whose role is admin; without keys, run it on its machine
    #[arg(long)]
    pub live: bool,
    #[command(flatten)]
    pub daemon: DaemonArgs,
}

impl DaemonArgs {
    /// The key to send, if there is one.
    ///
    /// # Errors
    /// The file cannot be read or holds something else.
    pub fn key(&self) -> Result<Option<String>> {
        let Some(path) = &self.key_file else { return Ok(None) };
        let text = std::fs::read_to_string(path).with_context(|| format!("--key-file {}", path.display()))?;
        let key = text.trim();
        let whole = !key.is_empty() && key.bytes().all(|byte| byte.is_ascii_graphic());
        ensure!(whole, "--key-file {}: it must hold one key and nothing else", path.display());
        Ok(Some(key.to_owned()))
    }

    /// The certificates that are trusted.
    ///
    /// # Errors
    /// The file cannot be read or holds no certificate.
    pub fn roots(&self) -> Result<RootCerts> {
        let path = self.ca_file.as_deref();
        trusted_roots(path).with_context(|| format!("--ca-file {}", path.unwrap_or(Path::new("")).display()))
    }

    /// A client with a request timeout of `patience`.
    ///
    /// # Errors
    /// The file of certificates cannot be used.
    pub fn client(&self, patience: Duration) -> Result<Client<'_>> {
        self.client_with(|config| config.timeout_global(Some(patience)))
    }

    /// A client for responses that take as long as they are: only their begin is waited for with a timeout.
    ///
    /// # Errors
    /// As [`client`](Self::client).
    pub fn download_client(&self) -> Result<Client<'_>> {
        let patience = Some(2 * PATIENCE);
        self.client_with(|config| config.timeout_connect(patience).timeout_recv_response(patience))
    }

    fn client_with(
        &self,
        timeouts: impl FnOnce(ConfigBuilder<AgentScope>) -> ConfigBuilder<AgentScope>,
    ) -> Result<Client<'_>> {
        let config = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .tls_config(TlsConfig::builder().root_certs(self.roots()?).build());
        let agent = timeouts(config).build().into();
        Ok(Client { agent, daemon: self, base: self.url.trim_end_matches('/').to_owned() })
    }
}

/// Sends requests to a daemon.
pub(super) struct Client<'a> {
    agent: ureq::Agent,
    daemon: &'a DaemonArgs,
    base: String,
}

impl Client<'_> {
    /// The same for another address of the daemon.
    pub fn elsewhere(&self, url: &str) -> Self {
        let (agent, daemon) = (self.agent.clone(), self.daemon);
        Self { agent, daemon, base: url.trim_end_matches('/').to_owned() }
    }

    /// The address of a path.
    pub fn url(&self, path: &str) -> String {
        format!("{}{path}", self.base)
    }

    /// A request, with the key if that is wanted and there is one.
    fn request(&self, method: Method, url: &str, with_key: bool) -> Result<request::Builder> {
        ensure!(
            url.starts_with("http://") || url.starts_with("https://"),
            "{url} is no address of a daemon: write it with http:// or https:// before the host"
        );
        let request = Request::builder().method(method).uri(url);
        Ok(match if with_key { self.daemon.key()? } else { None } {
            Some(key) => request.header("authorization", format!("Bearer {key}")),
            None => request,
        })
    }

    /// The status and the text of a response, whatever it is. The key is sent if `with_key` is set.
    ///
    /// # Errors
    /// When there is no response, or the file of the key cannot be used.
    pub fn text(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
        with_key: bool,
    ) -> Result<(StatusCode, String)> {
        let url = self.url(path);
        let request = self.request(method, &url, with_key)?;
        let sent = match body {
            Some(body) => {
                let request = request.header("content-type", "application/json");
                self.agent.run(request.body(body.to_string()).with_context(|| format!("--url {url}"))?)
            }
            None => self.agent.run(request.body(()).with_context(|| format!("--url {url}"))?),
        };
        let mut response = sent.map_err(|error| describe_failure(&url, error))?;
        let text = response
            .body_mut()
            .read_to_string()
            .with_context(|| format!("{url}: the response was cut off"))?;
        Ok((response.status(), text))
    }

    /// The document of a route that a key may be needed for.
    ///
    /// # Errors
    /// When there is no response, or the daemon returns an error; then with its message.
    pub fn document(&self, method: Method, path: &str, body: Option<&Value>) -> Result<Value> {
        let url = self.url(path);
        let (status, text) = self.text(method, path, body, true)?;
        let document = json_of(&url, status, &text)?;
        if status.is_success() {
            return Ok(document);
        }
        Err(refusal(&url, status, &document, &text))
    }

    /// The body of a response of this media type.
    ///
    /// # Errors
    /// As [`document`](Self::document).
    pub fn download(&self, path: &str, media_type: &str) -> Result<BodyReader<'static>> {
        let url = self.url(path);
        let request = self.request(Method::GET, &url, true)?.header("accept", media_type);
        let request = request.body(()).with_context(|| format!("--url {url}"))?;
        let mut response = self.agent.run(request).map_err(|error| describe_failure(&url, error))?;
        let status = response.status();
        if status.is_success() {
            return Ok(response.into_body().into_reader());
        }
        let text = response.body_mut().read_to_string().with_context(|| format!("{url}: cut off"))?;
        Err(refusal(&url, status, &json_of(&url, status, &text)?, &text))
    }
}

/// The error of a request that the daemon refuses.
fn refusal(url: &str, status: StatusCode, document: &Value, text: &str) -> anyhow::Error {
    let hint = match status.as_u16() {
        401 | 403 => "; see --key-file",
        404 if document["error_type"] == "unknown_route" => {
            "; is --url that of api.listen, and the daemon of this version?"
        }
        _ => "",
    };
    let message = document["error"].as_str().unwrap_or(text);
    anyhow::anyhow!("{url} returned {status}: {message}{hint}")
}

/// The document of a response.
///
/// # Errors
/// It is not JSON, so the server is not a daemon.
pub(super) fn json_of(url: &str, status: StatusCode, text: &str) -> Result<Value> {
    let Ok(document) = serde_json::from_str(text) else {
        let message: String = text.chars().take(200).collect();
        bail!("{url} returned {status} without JSON, so it is not a daemon: {message}")
    };
    Ok(document)
}

/// Whether there was somebody, who has gone.
fn is_about_connection(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
    matches!(error.kind(), UnexpectedEof | ConnectionReset | ConnectionAborted | BrokenPipe)
}

/// The error of a request without a response.
fn describe_failure(url: &str, error: ureq::Error) -> anyhow::Error {
    let message = match &error {
        error if is_about_trust(error) => {
            format!(
                "{url}: the certificate is not trusted; is it HTTPS, and is --ca-file its certificate authority?"
            )
        }
        ureq::Error::Protocol(_) => format!("{url} does not serve HTTP; is it HTTPS?"),
        ureq::Error::Timeout(_) => {
            format!("{url} did not respond in time; is the daemon overloaded or unreachable?")
        }
        ureq::Error::Io(error) if is_about_connection(error) => {
            format!("the connection to {url} broke off before a response; the daemon's log may say why")
        }
        _ => format!("no daemon responds at {url}; is it running, and is --url right?"),
    };
    anyhow::Error::new(error).context(message)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;

    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        daemon: DaemonArgs,
    }

    /// The client's error for a server that sends `response`, or nothing.
    fn error_of(scheme: &str, response: Option<&'static str>) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("{scheme}://{}", listener.local_addr().unwrap());
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut head = [0; 4096];
            let _ = stream.read(&mut head);
            match response {
                Some(response) => drop(stream.write_all(response.as_bytes())),
                // Until the client has gone.
                None => while stream.read(&mut head).is_ok_and(|count| count > 0) {},
            }
        });
        let line = Line::parse_from(["it", "--url", &url]);
        let patience = response.map_or(Duration::from_millis(300), |_| Duration::from_secs(30));
        let client = line.daemon.client(patience).unwrap();
        let error = client.document(Method::GET, "/v1/status", None).unwrap_err();
        server.join().unwrap();
        format!("{error:#}")
    }

    #[test]
    fn connection_problems_are_distinguished() {
        let proxy =
            "HTTP/1.1 502 Bad Gateway\r\ncontent-length: 15\r\nconnection: close\r\n\r\n<h1>Sorry.</h1>";
        let message = error_of("http", Some(proxy));
        assert!(
            message.contains("502") && message.contains("<h1>Sorry") && message.contains("not a daemon"),
            "{message}"
        );
        let message = error_of("http", None);
        assert!(message.contains("did not respond in time"), "{message}");
        let message = error_of("https", Some("HTTP/1.1 400 Bad Request\r\n\r\n"));
        assert!(message.contains("not trusted") && message.contains("--ca-file"), "{message}");
    }
}
