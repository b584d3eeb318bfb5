//! Runs the commands of `docs/operate.md`, as a reader would: in order, in one shell, on a daemon that the page itself
//! installs. Paths of the system lie under a folder of the test's, the port is a free one, and where systemd is not
//! process 1, as on no machine that tests run on, `systemctl.py` starts what the unit says.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

use crate::skip::skipped;

const PAGE: &str = "docs/operate.md";
/// What the page's commands find in the folder that they are run in.
const FILES: [&str; 3] = ["deploy/evergraph.toml", "deploy/evergraph.service", "deploy/alerts.yml"];

fn file(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// A fenced block of shell commands.
pub struct Block {
    pub line: usize,
    pub text: String,
    /// The comment right above it.
    pub comment: Option<String>,
}

/// The blocks of a page that begin with ```` ```sh ````.
pub fn blocks(page: &str) -> Vec<Block> {
    let lines: Vec<&str> = page.lines().collect();
    let mut found = Vec::new();
    let mut rest = lines.iter().enumerate();
    while let Some((index, line)) = rest.next() {
        if *line != "```sh" {
            continue;
        }
        let text: Vec<&str> =
            rest.by_ref().map(|(_, line)| *line).take_while(|line| *line != "```").collect();
        let above = index.checked_sub(1).map_or("", |above| lines[above]);
        let comment =
            above.strip_prefix("<!-- ").and_then(|text| text.strip_suffix(" -->")).map(str::to_owned);
        found.push(Block { line: index + 2, text: text.join("\n"), comment });
    }
    found
}

/// The blocks of the page `name` that are run, after a reason was found above those that are not.
pub fn to_run(name: &str, page: &str) -> Vec<Block> {
    let is_run = |block: &Block| {
        let Some(comment) = &block.comment else { return true };
        if let Some(reason) = comment.strip_prefix("not run: ") {
            assert!(reason.len() > 8, "{name}:{}: why is it not run?", block.line);
            return false;
        }
        let tool =
            comment.strip_prefix("needs ").unwrap_or_else(|| panic!("{name}:{}: {comment}", block.line));
        let there = Command::new("sh").args(["-c", &format!("command -v {tool}")]).output().unwrap();
        if !there.status.success() {
            skipped(&format!("{name}:{}: needs {tool}", block.line));
        }
        there.status.success()
    };
    blocks(page).into_iter().filter(is_run).collect()
}

/// A machine to install on, as far as the page needs one.
struct Machine {
    root: tempfile::TempDir,
    port: u16,
}

impl Machine {
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        let port = crate::ports::free();
        let machine = Self { root, port };
        for folder in ["usr/bin", "stand-in", "var/backups", "here/deploy", "here/target/release"] {
            fs::create_dir_all(machine.path(folder)).unwrap();
        }
        for name in FILES {
            let text = fs::read_to_string(file(name)).unwrap();
            fs::write(machine.path("here").join(name), machine.moved(&text)).unwrap();
        }
        symlink(env!("CARGO_BIN_EXE_evergraph"), machine.path("here/target/release/evergraph")).unwrap();
        machine.stand_in("sudo", "exec \"$@\"");
        let (script, root) = (file("tests/it/systemctl.py"), machine.root.path());
        for name in ["systemctl", "journalctl"] {
            let line = format!("exec python3 {} {} {name} \"$@\"", script.display(), root.display());
            machine.stand_in(name, &line);
        }
        machine
    }

    fn path(&self, inside: &str) -> PathBuf {
        self.root.path().join(inside)
    }

    fn stand_in(&self, name: &str, line: &str) {
        let path = self.path("stand-in").join(name);
        fs::write(&path, format!("#!/bin/sh\n{line}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// Runs a script in the folder that the page's commands are run in.
    fn run(&self, script: &str) -> Output {
        let path = std::env::var("PATH").unwrap();
        let path = format!("{}:{}:{path}", self.path("stand-in").display(), self.path("usr/bin").display());
        let mut command = Command::new("bash");
        command.args(["-c", script]).current_dir(self.path("here")).env("PATH", path);
        // The address that commands would ask without being told.
        command.env("EVERGRAPH_URL", format!("http://127.0.0.1:{}", self.port));
        command.output().unwrap()
    }

    /// Text with this machine's paths and port.
    fn moved(&self, text: &str) -> String {
        let root = self.root.path().to_str().unwrap();
        let mut text = text.replace("127.0.0.1:8080", &format!("127.0.0.1:{}", self.port));
        for folder in ["/usr/bin/", "/etc/", "/var/lib/", "/var/backups/"] {
            text = text.replace(folder, &format!("{root}{folder}"));
        }
        text
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let stopped = Command::new(self.path("stand-in/systemctl")).args(["stop", "evergraph"]).status();
        assert!(std::thread::panicking() || stopped.is_ok_and(|code| code.success()), "it did not stop");
    }
}

#[test]
fn every_command_of_the_page_works() {
    let page = fs::read_to_string(file(PAGE)).unwrap();
    let blocks = to_run(PAGE, &page);
    assert!(blocks.len() >= 10, "{} blocks", blocks.len());
    let machine = Machine::new();
    let mut script = "set -euo pipefail\n".to_owned();
    for block in &blocks {
        script += &format!("echo '== {PAGE}:{}' >&2\n{}\n", block.line, machine.moved(&block.text));
    }
    let output = machine.run(&script);
    let said = String::from_utf8_lossy(&output.stdout);
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{told}\n-- standard output:\n{said}");

    let log = |name: &str| -> Value {
        serde_json::from_str(&fs::read_to_string(machine.path("here").join(name)).unwrap()).unwrap()
    };
    let (before, after) = (log("before.json"), log("after.json"));
    assert_eq!(before["records"], 4_003, "three events of the first minutes and 4,000 of the file");
    assert_eq!(before["graph_digest"], after["graph_digest"], "what was restored is what was backed up");
    assert!(said.contains("\"trained_events\""), "{said}");
    let orphans = fs::read_dir(machine.path("var/lib/evergraph/evergraph-data/checkpoints")).unwrap();
    let orphans =
        orphans.filter(|entry| entry.as_ref().unwrap().path().extension() == Some("orphan".as_ref()));
    assert_eq!(orphans.count(), 0, "the checkpoints of the backup are of its log");
}

#[test]
fn blocks_that_are_not_run_parse_and_blocks_are_found() {
    let page = "```sh\necho 1\n```\ntext\n<!-- not run: because of that -->\n```sh\na &&\n  b\n```\n```text\nx\n```\n";
    let found = blocks(page);
    assert_eq!((found[0].text.as_str(), found[1].text.as_str()), ("echo 1", "a &&\n  b"));
    assert_eq!((found.len(), found[0].line, to_run(PAGE, page).len()), (2, 2, 1));
    for block in blocks(&fs::read_to_string(file(PAGE)).unwrap()) {
        let output = Command::new("bash").args(["-n", "-c", &block.text]).output().unwrap();
        assert!(
            output.status.success(),
            "{PAGE}:{}: {}",
            block.line,
            String::from_utf8_lossy(&output.stderr)
        );
    }
}
