//! To a daemon's HTTP interface: bodies of JSON lines to `/v1/events`. A lost connection, 429 and 5xx are
//! tried again with growing waits, the same body each time; idempotency keys, of the events or else of the request,
//! make that apply once.

use std::time::{Duration, Instant};

use serde::Deserialize;
use tokio_rustls::rustls;
use ureq::tls::{RootCerts, TlsConfig};

use super::{ProduceError, ProduceOptions, ProduceReport, Rows};

const FIRST_WAIT: Duration = Duration::from_millis(100);
const LONGEST_WAIT: Duration = Duration::from_secs(5);
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);

/// Which daemon.
#[derive(Clone)]
pub struct HttpTarget {
    /// Base address, for example `http://127.0.0.1:8080`.
    pub url: String,
    /// Bearer token, if the daemon requires one.
    pub token: Option<String>,
    /// Whom to believe about who the daemon is, for https.
    pub roots: RootCerts,
    /// The push ends when a body was not taken for so long.
    pub give_up_after: Duration,
}

impl HttpTarget {
    /// A daemon at this address; gives up after two minutes.
    #[must_use]
    pub fn new(url: &str) -> Self {
        Self {
            url: url.trim_end_matches('/').into(),
            token: None,
            roots: RootCerts::WebPki,
            give_up_after: Duration::from_secs(120),
        }
    }
}

impl std::fmt::Debug for HttpTarget {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HttpTarget")
            .field("url", &self.url)
            .field("token", &self.token.as_ref().map(|_| "***"))
            .field("give_up_after", &self.give_up_after)
            .finish()
    }
}

/// The daemon's response to a body, as far as it is counted here.
#[derive(Default, Deserialize)]
struct PushResponse {
    #[serde(default)]
    duplicates: u64,
    #[serde(default)]
    rejected: Vec<Rejected>,
    /// Where an error response counts the rejected events.
    #[serde(default)]
    details: Option<Details>,
}

#[derive(Default, Deserialize)]
struct Details {
    #[serde(default)]
    rejected_count: u64,
    #[serde(default)]
    rejected: Vec<Rejected>,
}

/// An event that the daemon rejected.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Rejected {
    /// Its place in the body.
    index: usize,
    reason: String,
    detail: String,
}

/// What one attempt came to.
enum Attempt {
    Taken(PushResponse),
    Refused { status: u16, detail: String },
    NotTrusted { detail: String },
    Again { detail: String, wait: Option<Duration> },
}

impl HttpTarget {
    pub(super) fn push(
        &self,
        options: &ProduceOptions,
        mut rows: Rows<'_>,
    ) -> Result<ProduceReport, ProduceError> {
        // ureq follows no body twice; a kept-alive connection that the daemon closed counts as lost.
        let agent: ureq::Agent = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .tls_config(TlsConfig::builder().root_certs(self.roots.clone()).build())
            .timeout_global(Some(REQUEST_TIMEOUT))
            .build()
            .into();
        rows.skip(options.from_row)?;
        let run = uuid::Uuid::new_v4();
        let mut body = Vec::new();
        let mut more = true;
        while more {
            body.clear();
            let first = rows.row;
            let (mut count, mut places) = (0, Vec::new());
            while count < options.batch_events.max(1) as u64 {
                if rows.next_into(&mut body)?.is_none() {
                    more = false;
                    break;
                }
                body.push(b'\n');
                places.push(rows.row - 1);
                count += 1;
            }
            if count == 0 {
                break;
            }
            let response = self.send(&agent, (&body, &format!("{run}-{first}")), first, &mut rows)?;
            rows.report.sent += count;
            rows.report.duplicates += response.duplicates;
            let of_error = response.details.unwrap_or_default();
            rows.report.rejected += response.rejected.len() as u64 + of_error.rejected_count;
            for Rejected { index, reason, detail } in response.rejected.iter().chain(&of_error.rejected) {
                let row = places.get(*index).copied().unwrap_or(first);
                rows.report.note(|| format!("row {row}, counted from 0, was rejected ({reason}): {detail}"));
            }
            rows.report_progress(false);
        }
        rows.report_progress(true);
        Ok(rows.report)
    }

    fn send(
        &self,
        agent: &ureq::Agent,
        (body, key): (&[u8], &str),
        from_row: u64,
        rows: &mut Rows<'_>,
    ) -> Result<PushResponse, ProduceError> {
        let url = format!("{}/v1/events", self.url);
        let started = Instant::now();
        let mut wait = FIRST_WAIT;
        loop {
            let (detail, retry_after) = match self.attempt(agent, &url, (body, key)) {
                Attempt::Taken(response) => {
                    rows.report.trouble = None;
                    return Ok(response);
                }
                Attempt::Refused { status, detail } => {
                    return Err(ProduceError::Refused { url, status, detail, from_row });
                }
                Attempt::NotTrusted { detail } => {
                    return Err(ProduceError::NotTrusted { url, detail, from_row });
                }
                Attempt::Again { detail, wait } => (detail, wait),
            };
            if started.elapsed() >= self.give_up_after {
                let seconds = started.elapsed().as_secs();
                return Err(ProduceError::NoResponse { url, seconds, detail, from_row });
            }
            rows.report.retries += 1;
            tracing::debug!(%detail, "sending the body again");
            let is_first = rows.report.trouble.replace(detail).is_none();
            rows.report_progress(is_first);
            std::thread::sleep(retry_after.unwrap_or(wait).min(LONGEST_WAIT));
            wait = (wait * 2).min(LONGEST_WAIT);
        }
    }

    fn attempt(&self, agent: &ureq::Agent, url: &str, (body, key): (&[u8], &str)) -> Attempt {
        let request = agent.post(url).header("content-type", "application/x-ndjson");
        let mut request = request.header("idempotency-key", key);
        if let Some(token) = &self.token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        let mut response = match request.send(body) {
            Ok(response) => response,
            Err(error) => return after(&error),
        };
        let status = response.status().as_u16();
        let wait = response
            .headers()
            .get("retry-after")
            .and_then(|v| v.to_str().ok()?.parse().ok())
            .map(Duration::from_secs);
        let text = match response.body_mut().read_to_string() {
            Ok(text) => text,
            Err(error) => return Attempt::Again { detail: error.to_string(), wait },
        };
        match status {
            // 422: every event was rejected, and is kept as a dead letter.
            200..=299 | 422 => match serde_json::from_str(&text) {
                Ok(response) => Attempt::Taken(response),
                Err(_) => Attempt::Refused { status, detail: beginning(&text) },
            },
            429 | 500..=599 => Attempt::Again { detail: format!("{status}: {}", beginning(&text)), wait },
            _ => Attempt::Refused { status, detail: beginning(&text) },
        }
    }
}

/// The outcome of a request without a response: a connection may come back, an untrusted certificate is final.
fn after(error: &ureq::Error) -> Attempt {
    let detail = error.to_string();
    if matches!(error, ureq::Error::BadUri(_) | ureq::Error::Http(_)) {
        return Attempt::NotTrusted { detail };
    }
    if !is_about_trust(error) {
        return Attempt::Again { detail, wait: None };
    }
    let advice = "is it the right daemon, and is --ca-file the certificate that vouches for it?";
    Attempt::NotTrusted { detail: format!("{detail}; {advice}") }
}

/// Whether a request failed because the other side is not believed to be who it should be.
pub(crate) fn is_about_trust(error: &ureq::Error) -> bool {
    match error {
        ureq::Error::Io(error) => error.get_ref().is_some_and(|inner| inner.is::<rustls::Error>()),
        ureq::Error::Rustls(_) | ureq::Error::Tls(_) | ureq::Error::Pem(_) => true,
        _ => false,
    }
}

fn beginning(text: &str) -> String {
    text.chars().take(300).collect()
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Read, Write};
    use std::net::{TcpListener, TcpStream};

    use super::*;
    use crate::ingest::produce::{ProduceTarget, produce};

    /// Reads one request's body, after a line with its idempotency key if it is asked for.
    fn request(stream: &TcpStream, with_key: bool) -> String {
        let mut reader = BufReader::new(stream);
        let (mut length, mut before) = (0, String::new());
        loop {
            let mut line = String::new();
            reader.read_line(&mut line).unwrap();
            if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                length = value.trim().parse().unwrap();
            }
            if with_key && line.to_ascii_lowercase().starts_with("idempotency-key:") {
                before.clone_from(&line);
            }
            if line.trim().is_empty() {
                break;
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body).unwrap();
        before + &String::from_utf8(body).unwrap()
    }

    /// A daemon that gives these responses in turn (`""` hangs up) and returns the bodies it was sent.
    fn daemon(responses: &'static [&'static str]) -> (String, std::thread::JoinHandle<Vec<String>>) {
        daemon_that_notes(responses, false)
    }

    fn daemon_that_notes(
        responses: &'static [&'static str],
        keys: bool,
    ) -> (String, std::thread::JoinHandle<Vec<String>>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        let bodies = std::thread::spawn(move || {
            let take = |response: &&str| {
                let (mut stream, _) = listener.accept().unwrap();
                let body = request(&stream, keys);
                if let Some((status, text)) = response.split_once('|') {
                    let length = text.len();
                    let head =
                        format!("HTTP/1.1 {status}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n");
                    stream.write_all(format!("{head}{text}").as_bytes()).unwrap();
                }
                body
            };
            responses.iter().map(take).collect()
        });
        (url, bodies)
    }

    fn options(folder: &std::path::Path, url: &str) -> ProduceOptions {
        let path = folder.join("three.csv");
        std::fs::write(&path, "src,dst,ts\na,b,1\nbad,row,x\n1,2,3\nc,d,4\n").unwrap();
        let mut options = ProduceOptions::new(path, ProduceTarget::Http(HttpTarget::new(url)));
        options.batch_events = 2;
        options
    }

    fn keys(body: &str) -> Vec<String> {
        let key =
            |line: &str| serde_json::from_str::<serde_json::Value>(line).unwrap()["idempotency_key"].clone();
        body.lines().map(|line| key(line).as_str().unwrap().to_owned()).collect()
    }

    #[test]
    fn keys_are_those_of_the_rows_and_not_of_the_files_name() {
        let folder = tempfile::tempdir().unwrap();
        let sent = |day: &str, text: &str| {
            let (url, bodies) = daemon(&["200 OK|{}"]);
            std::fs::create_dir_all(folder.path().join(day)).unwrap();
            let path = folder.path().join(day).join("events.csv");
            std::fs::write(&path, format!("src,dst,ts\n{text}")).unwrap();
            let options = ProduceOptions::new(path, ProduceTarget::Http(HttpTarget::new(&url)));
            produce(&options, &mut |_| {}).unwrap();
            keys(&bodies.join().unwrap()[0])
        };
        let first = sent("day1", "a,b,1\na,b,2\n");
        assert_eq!(sent("day1", "a,b,1\na,b,2\n"), first, "the same file again");
        assert_eq!(sent("day1", "a,b,1\na,b,2\na,b,3\n")[..2], first, "it was added to");
        assert!(sent("day2", "a,b,3\na,b,2\n").iter().all(|key| !first.contains(key)));
        assert!(!first.contains(&sent("day2", "a,b,1\na,b,7\n")[1]), "only the beginning is the same");
    }

    #[test]
    fn a_body_is_sent_again_unchanged_until_it_is_taken() {
        let folder = tempfile::tempdir().unwrap();
        let (url, bodies) = daemon(&[
            "",
            "503 Unavailable|{}",
            "429 Too Many\r\nretry-after: 0|",
            r#"200 OK|{"accepted":1,"duplicates":1,"rejected":[],"more":{}}"#,
            r#"422 No|{"details":{"rejected":[{"index":0,"reason":"late","detail":"old"}],"rejected_count":1}}"#,
        ]);
        let mut reports = 0;
        let report = produce(&options(folder.path(), &url), &mut |_| reports += 1).unwrap();
        let bodies = bodies.join().unwrap();
        let keys = keys(&bodies[0]);
        assert!(keys[0].starts_with("three.csv#1-") && keys[0].contains(":0:"), "{keys:?}");
        let first = format!(
            "{{\"src\":\"a\",\"dst\":\"b\",\"ts\":1,\"idempotency_key\":\"{}\"}}\n\
             {{\"src\":1,\"dst\":2,\"ts\":3,\"idempotency_key\":\"{}\"}}\n",
            keys[0], keys[1]
        );
        assert!(bodies[..4].iter().all(|body| *body == first), "{bodies:?}");
        assert!(bodies[4].starts_with("{\"src\":\"c\",\"dst\":\"d\",\"ts\":4,"), "{bodies:?}");
        let found =
            (report.rows, report.bad_rows, report.sent, report.duplicates, report.rejected, report.retries);
        assert_eq!(found, (4, 1, 3, 1, 1, 3));
        assert_eq!(report.faults.len(), 2, "{:?}", report.faults);
        assert!(report.faults[0].contains("row"), "{:?}", report.faults);
        assert_eq!(report.faults[1], "row 3, counted from 0, was rejected (late): old");
        assert_eq!(report.trouble, None);
        assert!(reports > 0);
    }

    #[test]
    fn a_request_keeps_its_idempotency_key_when_it_is_sent_again_and_no_other_has_it() {
        let folder = tempfile::tempdir().unwrap();
        let (url, sent) = daemon_that_notes(&["504 Timeout|{}", "200 OK|{}", "200 OK|{}"], true);
        let mut options = options(folder.path(), &url);
        options.idempotency_keys = false;
        produce(&options, &mut |_| {}).unwrap();
        let sent = sent.join().unwrap();
        assert!(sent[0] == sent[1] && sent[0].starts_with("idempotency-key: "), "{sent:?}");
        assert_ne!(sent[1].lines().next(), sent[2].lines().next());
    }

    #[test]
    fn what_will_not_help_is_not_tried_again() {
        let folder = tempfile::tempdir().unwrap();
        let (url, bodies) = daemon(&["401 Unauthorized|no key"]);
        let error = produce(&options(folder.path(), &url), &mut |_| {}).unwrap_err();
        assert!(matches!(&error, ProduceError::Refused { status: 401, from_row: 0, .. }), "{error}");
        assert_eq!(bodies.join().unwrap().len(), 1);
        let mut nobody = options(folder.path(), "http://127.0.0.1:1");
        let ProduceTarget::Http(target) = &mut nobody.target else { unreachable!() };
        target.give_up_after = Duration::from_millis(50);
        target.token = Some("s3cret".into());
        assert!(!format!("{nobody:?}").contains("s3cret"));
        let error = produce(&nobody, &mut |_| {}).unwrap_err();
        assert!(matches!(&error, ProduceError::NoResponse { .. }), "{error}");
    }
}
