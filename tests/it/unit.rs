//! The systemd unit and its drop-in for a GPU, against what systemd says of them and behind the same rules for
//! system calls that systemd would set.
//!
//! `systemd-analyze` judges where it is installed; a machine without it says so on standard error.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use crate::process::{Process, Start, evergraph};
use crate::skip::skipped;

/// Worst exposure that `systemd-analyze security` may find, in tenths: 0 is tight, 100 is none at all.
const EXPOSURE_MAX: &str = "20";
const UNIT: &str = "deploy/evergraph.service";
const GPU: &str = "deploy/evergraph.service.d/gpu.conf";
const SECRETS: &str = "deploy/evergraph.service.d/secrets.conf";

fn file(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn read(path: &str) -> String {
    fs::read_to_string(file(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// What `systemd-analyze` says and whether it was content; `None`, told on standard error, where there is none.
fn analyze(arguments: &[&str]) -> Option<(bool, String)> {
    match Command::new("systemd-analyze").args(arguments).output() {
        Ok(output) => {
            let said = [output.stdout, output.stderr].concat();
            Some((output.status.success(), String::from_utf8_lossy(&said).into_owned()))
        }
        Err(error) => {
            skipped(&format!(
                "systemd-analyze cannot be run here ({error}); install systemd to check this too"
            ));
            None
        }
    }
}

/// A folder with the unit, for this binary, and with these drop-ins.
fn installed(drop_ins: &[&str]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let here = |text: String| text.replace("/usr/bin/evergraph", env!("CARGO_BIN_EXE_evergraph"));
    fs::write(folder.path().join("evergraph.service"), here(read(UNIT))).unwrap();
    let beside = folder.path().join("evergraph.service.d");
    fs::create_dir(&beside).unwrap();
    for drop_in in drop_ins {
        fs::write(beside.join(Path::new(drop_in).file_name().unwrap()), here(read(drop_in))).unwrap();
    }
    folder
}

#[test]
fn the_unit_is_read_without_a_word_and_is_tight_with_every_drop_in_and_without() {
    for drop_ins in [&[][..], &[GPU], &[SECRETS], &[GPU, SECRETS]] {
        let folder = installed(drop_ins);
        let unit = folder.path().join("evergraph.service");
        let unit = unit.to_str().unwrap();
        let Some((_, said)) = analyze(&["verify", unit]) else { return };
        assert_eq!(said, "", "verify exits with 0 on mistakes and only prints them; {drop_ins:?}");
        let threshold = format!("--threshold={EXPOSURE_MAX}");
        let secure = ["security", "--offline=true", &threshold, "--no-pager", unit];
        let (tight, said) = analyze(&secure).unwrap();
        let overall = said.lines().last().unwrap_or_default();
        assert!(tight, "more exposed than {EXPOSURE_MAX} tenths, {drop_ins:?}: {overall}\n{said}");
        eprintln!("{drop_ins:?}: {overall}");
    }
}

#[test]
fn a_mistake_in_the_unit_or_a_drop_in_would_be_told() {
    for (name, right, wrong) in [
        ("evergraph.service", "Type=notify", "Type=notyfy"),
        ("evergraph.service.d/gpu.conf", "DevicePolicy=closed", "DevicePolicy=clossed"),
        ("evergraph.service.d/secrets.conf", "LoadCredential=keys:/etc", "LoadCredential=keys/x:etc"),
    ] {
        let folder = installed(&[GPU, SECRETS]);
        let path = folder.path().join(name);
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.contains(right), "{name}: {right}");
        fs::write(&path, text.replace(right, wrong)).unwrap();
        let unit = folder.path().join("evergraph.service");
        let Some((_, said)) = analyze(&["verify", unit.to_str().unwrap()]) else { return };
        assert!(said.contains(path.to_str().unwrap()), "{wrong}: {said}");
    }
}

#[test]
fn secrets_that_systemd_hands_over_are_those_that_the_page_shows_settings_for() {
    let credentials: Vec<String> = read(SECRETS)
        .lines()
        .filter_map(|line| line.strip_prefix("LoadCredential=")?.split_once(':'))
        .map(|(name, _)| format!("\"/run/credentials/evergraph.service/{name}\""))
        .collect();
    assert_eq!(credentials.len(), 3);
    let page = read("docs/security.md");
    let shown = page.split("```toml\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    for credential in &credentials {
        assert!(shown.contains(credential.as_str()), "{credential}: {shown}");
    }
    let folder = tempfile::tempdir().unwrap();
    let settings = folder.path().join("evergraph.toml");
    fs::write(&settings, shown).unwrap();
    let (valid, said, told) = evergraph(&["config", "validate", "--config", settings.to_str().unwrap()]);
    assert!(valid, "{said}{told}");
    // systemd shows Environment= to everybody, and a drop-in can be read by everybody.
    assert!(!read(SECRETS).contains("\nEnvironment=") && !read("docs/operate.md").contains("Environment="));
}

#[test]
fn the_unit_leaves_settings_to_the_file() {
    // The environment would beat the file without a word.
    assert!([UNIT, GPU, SECRETS].iter().all(|unit| !read(unit).contains("\nEnvironment=")));
}

/// `behind_filter.py` before a command; what the units' other settings do is not in it.
fn behind_filter(units: &[&str]) -> Vec<String> {
    let mut words =
        vec!["python3".to_owned(), file("tests/it/behind_filter.py").to_str().unwrap().to_owned()];
    words.extend(units.iter().map(|unit| file(unit).to_str().unwrap().to_owned()));
    words.push("--".to_owned());
    words
}

/// Whether a filter can be set here; if not, why is told on standard error.
fn can_filter() -> bool {
    let words = behind_filter(&[UNIT]);
    let output = Command::new(&words[0]).args(&words[1..]).arg("true").output();
    let told = match output {
        Ok(output) if output.status.success() => return true,
        Ok(output) if output.status.code() == Some(3) => String::from_utf8_lossy(&output.stderr).into_owned(),
        Ok(output) => panic!("behind_filter.py: {}", String::from_utf8_lossy(&output.stderr)),
        Err(error) => format!("python3: {error}"),
    };
    skipped(&format!("no filter of system calls can be set here: {}", told.trim()));
    false
}

#[test]
fn the_filter_of_the_tests_refuses_what_the_unit_refuses() {
    if !can_filter() {
        return;
    }
    let tries = "import os, mmap\n\
        try:\n  os.sched_setaffinity(0, os.sched_getaffinity(0)); print('affinity')\n\
        except PermissionError: pass\n\
        try:\n  mmap.mmap(-1, 4096, prot=mmap.PROT_WRITE | mmap.PROT_EXEC); print('execute')\n\
        except PermissionError: pass\n";
    let does = |units: &[&str]| {
        let words = behind_filter(units);
        let output =
            Command::new(&words[0]).args(&words[1..]).args(["python3", "-c", tries]).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    assert_eq!(does(&[UNIT]), "");
    assert_eq!(does(&[UNIT, GPU]), "affinity\nexecute\n", "what a driver needs");
}

/// A daemon whose graph does not fit its bound on memory: it writes to disk and reads from it again.
fn spilling(data: &Path, wrapper: &[String]) -> (Process, Value) {
    let events = data.join("events.csv");
    let rows = (0..60_000_u64).map(|i| format!("u{},i{},{}\n", i % 977, i * i % 1_009, 1_000 + i));
    fs::write(&events, "src,dst,ts\n".to_owned() + &rows.collect::<String>()).unwrap();
    let daemon = Start::in_dir(data)
        .behind(wrapper)
        .set(&format!("ingest.file.path={}", events.display()))
        .set("memory.graph_bytes_max=1048576")
        .set("graph.shards=4")
        .set("learner.train=false")
        .ready();
    let status = daemon.wait_until("taken in, spilled, read and learned from", |status| {
        status["graph"]["edges"] == 60_000
            && status["learner"]["applied_position"].as_u64().is_some_and(|events| events > 1_000)
            && status["memory"]["graph"]["reads"].as_u64().is_some_and(|reads| reads > 0)
    });
    (daemon, status["memory"]["graph"].clone())
}

#[test]
fn a_daemon_behind_the_units_filter_reads_the_disk_as_it_does_without() {
    if !can_filter() {
        return;
    }
    let (free, confined) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (daemon, graph) = spilling(free.path(), &[]);
    let engine = graph["engine"].as_str().unwrap().to_owned();
    assert!(daemon.terminate().success());
    if !engine.starts_with("io_uring") {
        skipped(&format!(
            "whether the unit's filter lets io_uring through: without it the engine is {engine}"
        ));
    }
    let (daemon, graph) = spilling(confined.path(), &behind_filter(&[UNIT]));
    let filtered = fs::read_to_string(format!("/proc/{}/status", daemon.pid())).unwrap();
    assert!(filtered.contains("Seccomp:\t2"), "{filtered}");
    assert_eq!(graph["engine"].as_str(), Some(engine.as_str()), "{graph}");
    assert_eq!((&graph["failures"], &graph["failing"]), (&json!(0), &Value::Null));
    let ask = json!({"nodes": ["u1", "i1"]}).to_string();
    let (status, answer) = daemon.post("/v1/embeddings", "application/json", &ask).unwrap();
    assert_eq!(status, 200, "{answer}");
    assert!(daemon.terminate().success(), "the last checkpoint is written behind the filter, too");
}
