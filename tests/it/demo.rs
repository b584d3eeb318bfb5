//! `evergraph demo` as a newcomer meets it: what it prints is typed in as it stands, and works.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::Value;

/// The demo as a child process; killed when dropped.
pub struct Demo(Child);

impl Drop for Demo {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts it on a free port, and returns what it printed up to where it says how to stop it.
pub fn start(data: &Path) -> (Demo, Vec<String>) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_evergraph"));
    command.args(["demo", "--listen", "127.0.0.1:0", "--seconds", "120", "--data"]).arg(data);
    // Sources of the environment are not the demo's: a broker that nothing listens on, a file that is not there.
    command.env("EVERGRAPH__INGEST__KAFKA__BROKERS", "127.0.0.1:1");
    command.env("EVERGRAPH__INGEST__FILE__PATH", "/nonexistent/events.csv");
    let mut child =
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let said = BufReader::new(child.stderr.take().unwrap());
    let demo = Demo(child);
    let mut lines = Vec::new();
    for line in said.lines().map_while(Result::ok) {
        let end = line.starts_with("Ctrl-C");
        lines.push(line);
        if end {
            break;
        }
    }
    (demo, lines)
}

#[test]
fn the_requests_that_the_demo_prints_succeed_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let (demo, lines) = start(folder.path());
    let questions: Vec<&str> =
        lines.iter().map(|line| line.trim()).filter(|line| line.starts_with("curl ")).collect();
    assert_eq!(questions.len(), 3, "{}", lines.join("\n"));
    let answers: Vec<Value> = questions.iter().map(|question| ask(question)).collect();
    let console = lines.iter().find_map(|line| line.strip_prefix("Console ")).unwrap();
    let said_first = lines.iter().find(|line| line.contains("http://")).unwrap();
    assert!(said_first.contains(console), "the console's address comes first: {lines:?}");
    assert!(
        crate::process::client()
            .get(console)
            .call()
            .unwrap()
            .body_mut()
            .read_to_string()
            .unwrap()
            .contains("<title>Evergraph")
    );

    let embedding = answers[0]["embeddings"][0]["embedding"].as_array();
    assert!(embedding.is_some_and(|row| row.len() == 100), "{}", answers[0]);
    let score = answers[1]["scores"][0]["score"].as_f64();
    assert!(score.is_some_and(|score| (0.0..=1.0).contains(&score)), "{}", answers[1]);
    assert!(answers[2]["degree"].as_u64() >= Some(1), "{}", answers[2]);

    let url = questions[2].split_whitespace().last().unwrap().replace("/v1/nodes/user-1", "/v1/status");
    let status = ask(&format!("curl -s {url}"));
    let sources = status["ingest"]["sources"].as_array().unwrap();
    let names: Vec<&str> = sources.iter().filter_map(|source| source["name"].as_str()).collect();
    assert!(names.iter().all(|name| !name.contains("kafka") && !name.contains("file")), "{names:?}");
    drop(demo);
}

/// Runs a printed line in a shell where there is curl, and sends what it means where there is none.
fn ask(line: &str) -> Value {
    let with_status = format!("{line} -w '\n%{{http_code}}'");
    let (status, body) = match Command::new("curl").arg("--version").output() {
        Ok(_) => {
            let output = Command::new("sh").args(["-c", &with_status]).output().unwrap();
            let text = String::from_utf8(output.stdout).unwrap();
            let (body, status) = text.rsplit_once('\n').unwrap_or_else(|| panic!("{line}: {text}"));
            (status.to_owned(), body.to_owned())
        }
        Err(_) => send(line),
    };
    assert_eq!(status, "200", "{line}: {body}");
    serde_json::from_str(&body).unwrap()
}

/// The same request without curl.
fn send(line: &str) -> (String, String) {
    let url = line.split_whitespace().find(|word| word.starts_with("http://")).unwrap();
    let agent = crate::process::agent();
    let answer = match line.split_once(" -d '") {
        Some((_, data)) => {
            agent.post(url).header("content-type", "application/json").send(data.trim_end_matches('\''))
        }
        None => agent.get(url).call(),
    };
    let mut answer = answer.unwrap();
    (answer.status().as_u16().to_string(), answer.body_mut().read_to_string().unwrap())
}
