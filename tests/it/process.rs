//! The real binary as a child process: started on a free port, asked over HTTP, killed.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, mpsc};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use evergraph::device::rng;
use serde_json::Value;

/// How long a start or a wait may take before the test fails.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Moments to kill at, all of which follow from a seed: `SEED` of the environment, or the time of day. It is printed, so
/// that a run that failed can be had again.
pub struct Moments {
    seed: u64,
    drawn: u64,
}

impl Moments {
    pub fn from_environment() -> Self {
        let given = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok());
        let clock = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
        let seed = given.unwrap_or_else(clock);
        eprintln!("moments of SEED={seed}");
        Self { seed, drawn: 0 }
    }

    /// The next one, sooner than `bound`.
    pub fn below(&mut self, bound: Duration) -> Duration {
        self.drawn += 1;
        bound.mul_f32(rng::unit_f32([self.seed, self.drawn, 0, 0]))
    }
}

/// A running daemon.
pub struct Process {
    child: Child,
    address: String,
    log: Mutex<mpsc::Receiver<String>>,
    /// Lines of its log that have come, of which the first `read` have been waited for.
    seen: Vec<String>,
    read: usize,
}

/// How to start one.
pub struct Start {
    data: PathBuf,
    config: Option<PathBuf>,
    settings: Vec<String>,
    environment: Vec<(String, String)>,
    wrapper: Vec<String>,
    host: String,
}

impl Start {
    /// A daemon that keeps everything in `data`.
    pub fn in_dir(data: &Path) -> Self {
        // What is learned must not depend on how busy the machine is.
        let settings = ["output.format=json", "learner.batch_wait_ms=20", "learner.lag_target_ms=0"];
        let settings = settings.map(str::to_owned).to_vec();
        let (environment, wrapper) = (Vec::new(), Vec::new());
        let host = "127.0.0.1".to_owned();
        Self { data: data.to_path_buf(), config: None, settings, environment, wrapper, host }
    }

    /// With one more setting, as `section.key=value`.
    pub fn set(mut self, setting: &str) -> Self {
        self.settings.push(setting.to_owned());
        self
    }

    /// With a settings file.
    pub fn config(mut self, file: &Path) -> Self {
        self.config = Some(file.to_path_buf());
        self
    }

    /// With one more variable in its environment.
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.environment.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Started by another command, whose last words it and its arguments become, in the same process.
    pub fn behind(mut self, wrapper: &[String]) -> Self {
        self.wrapper = wrapper.to_vec();
        self
    }

    /// Listening at this address.
    pub fn at(mut self, host: &str) -> Self {
        host.clone_into(&mut self.host);
        self
    }

    fn command(&self) -> Command {
        let mut words = self.wrapper.iter().map(String::as_str).chain([env!("CARGO_BIN_EXE_evergraph")]);
        let mut command = Command::new(words.next().unwrap_or_default());
        command.args(words);
        command.args(["serve", "--listen", &format!("{}:0", self.host), "--data"]).arg(&self.data);
        if let Some(file) = &self.config {
            command.arg("--config").arg(file);
        }
        for setting in &self.settings {
            command.args(["--set", setting]);
        }
        command.envs(self.environment.iter().cloned());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        command
    }

    /// What another command says of these settings: whether it was content, what it printed, and what it told.
    pub fn said_by(&self, words: &[&str]) -> (bool, String, String) {
        let data = self.data.to_str().unwrap();
        let settings = self.settings.iter().flat_map(|setting| ["--set", setting]);
        evergraph(&words.iter().copied().chain(["--data", data]).chain(settings).collect::<Vec<_>>())
    }

    /// Starts it and waits until it is ready.
    pub fn ready(&self) -> Process {
        let mut process = self.spawn();
        process.wait_until_ready();
        process
    }

    /// Starts it and returns at once.
    pub fn spawn(&self) -> Process {
        let mut child = self.command().spawn().unwrap();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        let (sender, log) = mpsc::channel();
        std::thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Process { child, address: String::new(), log: Mutex::new(log), seen: Vec::new(), read: 0 }
    }

    /// Starts it, expects it to fail, and returns what it said.
    pub fn fails(&self) -> String {
        let output = self.command().output().unwrap();
        assert!(!output.status.success(), "the daemon was expected to refuse to start");
        String::from_utf8_lossy(&output.stderr).into_owned()
    }
}

impl Process {
    /// The process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits until it is ready, and learns where it listens.
    pub fn wait_until_ready(&mut self) {
        assert!(self.gets_ready(), "the daemon did not get ready:\n{}", self.seen.join("\n"));
    }

    /// The same; `false` if it ends before.
    pub fn gets_ready(&mut self) -> bool {
        let Some(line) = self.wait_for_line("\"ready\"") else { return false };
        let line: Value = serde_json::from_str(&line).unwrap();
        self.address = line["address"].as_str().unwrap().to_owned();
        true
    }

    /// The next line of its log that holds `text`; `None` if it ends or takes too long.
    pub fn wait_for_line(&mut self, text: &str) -> Option<String> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if self.read == self.seen.len() {
                let left = deadline.saturating_duration_since(Instant::now());
                self.seen.push(self.log.get_mut().unwrap().recv_timeout(left).ok()?);
            }
            let line = &self.seen[self.read];
            self.read += 1;
            if line.contains(text) {
                return Some(line.clone());
            }
        }
    }

    /// `http://host:port` and `path`.
    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// GET, as status and JSON.
    pub fn get(&self, path: &str) -> Result<(u16, Value), ureq::Error> {
        let agent = agent();
        answer(agent.get(self.url(path)).call()?)
    }

    /// POST of a body, as status and JSON.
    pub fn post(&self, path: &str, content_type: &str, body: &str) -> Result<(u16, Value), ureq::Error> {
        let agent = agent();
        answer(agent.post(self.url(path)).header("content-type", content_type).send(body)?)
    }

    /// Pushes `lines` of JSON, `count` of them; `false` if the daemon died before it acknowledged them.
    pub fn push_or_dies(&self, lines: &str, count: u64) -> bool {
        match self.post("/v1/events", "application/x-ndjson", lines) {
            Ok((200, response)) => {
                let written =
                    response["accepted"].as_u64().unwrap() + response["duplicates"].as_u64().unwrap();
                assert_eq!(written, count, "{response}");
                true
            }
            Ok((status, response)) => panic!("{status}: {response}"),
            Err(_) => false,
        }
    }

    /// The status document.
    pub fn status(&self) -> Value {
        self.get("/v1/status").unwrap().1
    }

    /// What Prometheus scrapes.
    pub fn metrics(&self) -> String {
        client().get(self.url("/metrics")).call().unwrap().body_mut().read_to_string().unwrap()
    }

    /// Polls the status until `holds`; fails after three times [`PATIENCE`].
    pub fn wait_until(&self, what: &str, holds: impl Fn(&Value) -> bool) -> Value {
        self.wait_until_within(PATIENCE * 3, what, holds)
    }

    /// Polls the status until `holds`; fails after `limit`.
    pub fn wait_until_within(&self, limit: Duration, what: &str, holds: impl Fn(&Value) -> bool) -> Value {
        let deadline = Instant::now() + limit;
        loop {
            let status = self.status();
            if holds(&status) {
                return status;
            }
            assert!(Instant::now() < deadline, "not reached: {what}; last status: {status:#}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// SIGKILL: no handler runs, nothing is flushed.
    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// SIGTERM, and what it returned.
    pub fn terminate(mut self) -> ExitStatus {
        self.signal("-TERM");
        self.ended()
    }

    /// Sends a signal.
    pub fn signal(&self, signal: &str) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args([signal, &pid]).status().unwrap().success());
    }

    /// Waits until it ends by itself, and says what it returned. Prints the end of its log if it failed.
    pub fn ended(&mut self) -> ExitStatus {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                if !status.success() {
                    eprintln!("process {}: {status}:\n{}", self.child.id(), self.last_lines());
                }
                return status;
            }
            assert!(Instant::now() < deadline, "the daemon did not end:\n{}", self.last_lines());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// The end of its log by now. All of it can still be waited for.
    pub fn last_lines(&mut self) -> String {
        let (log, deadline) = (self.log.get_mut().unwrap(), Instant::now() + Duration::from_millis(300));
        let next = || log.recv_timeout(deadline.saturating_duration_since(Instant::now())).ok();
        self.seen.extend(std::iter::from_fn(next));
        self.seen[self.seen.len().saturating_sub(30)..].join("\n")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It has ended already where the test ended it.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What `evergraph log` says of a data directory.
pub fn log_of(data: &Path) -> Value {
    let output =
        Command::new(env!("CARGO_BIN_EXE_evergraph")).args(["log", "--data"]).arg(data).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// `evergraph` with these arguments: whether it was content, what it printed, and what it told.
pub fn evergraph(args: &[&str]) -> (bool, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_evergraph")).args(args).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.success(), text(output.stdout), text(output.stderr))
}

/// A client that waits for [`PATIENCE`] at most, so that a daemon that hangs fails its test; a status of 400 and above is
/// an error.
pub fn client() -> ureq::Agent {
    ureq::Agent::config_builder().timeout_global(Some(PATIENCE)).build().into()
}

/// The same client, with every status as a response.
pub fn agent() -> ureq::Agent {
    ureq::Agent::config_builder().timeout_global(Some(PATIENCE)).http_status_as_error(false).build().into()
}

fn answer(mut response: ureq::http::Response<ureq::Body>) -> Result<(u16, Value), ureq::Error> {
    let status = response.status().as_u16();
    let text = response.body_mut().read_to_string()?;
    Ok((status, serde_json::from_str(&text).unwrap_or(Value::String(text))))
}
