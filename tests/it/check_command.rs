//! `evergraph check` finds what `evergraph serve` would refuse, and changes nothing.

use std::path::Path;
use std::process::Command;

use crate::broker::Broker;
use crate::process::Start;

/// Whether `check` passes with these settings, and its output.
fn check(data: &Path, settings: &[&str]) -> (bool, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_evergraph"));
    command.args(["check", "--listen", "127.0.0.1:0", "--data"]).arg(data);
    for setting in settings {
        command.args(["--set", setting]);
    }
    let output = command.output().unwrap();
    let text =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    (output.status.success(), text)
}

#[test]
fn a_fresh_directory_passes_and_stays_untouched() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let (content, output) = check(&data, &["stream.late_policy=drop"]);
    assert!(content, "{output}");
    assert!(output.contains("warn  settings: stream.late_policy never decides"), "{output}");
    assert!(!data.exists());
}

#[test]
fn a_missing_gpu_is_a_fault_and_available_ones_are_listed() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let (content, output) = check(&data, &["device.use=cuda:99"]);
    assert!(
        !content && output.contains("FAULT device: device.use = \"cuda:99\" but it cannot be used: "),
        "{output}"
    );
    assert!(output.contains("ok    cuda: driver for CUDA "), "{output}");
    assert!(!data.exists(), "a check keeps no kernels");
    let (content, output) = check(&data, &["device.use=cpu"]);
    assert!(content && output.contains("ok    device: cpu: device.use = \"cpu\""), "{output}");
    assert!(!output.contains("cuda: driver"), "nobody looks: {output}");
    let (content, output) = check(&data, &["device.use=gpu"]);
    assert!(!content && output.contains("write auto, cpu, or cuda:N"), "{output}");
}

#[test]
fn a_daemon_without_the_gpu_that_its_settings_name_runs_and_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let mut daemon = Start::in_dir(folder.path()).set("device.use=cuda:99").spawn();
    let warned = daemon.wait_for_line("computing on the CPU").unwrap();
    assert!(warned.contains("WARN") && warned.contains("cuda:99"), "{warned}");
    daemon.kill();
    let daemon = Start::in_dir(folder.path()).set("device.use=cuda:99").ready();
    let (code, ready) = daemon.get("/readyz").unwrap();
    assert_eq!((code, &ready["status"]), (200, &"degraded".into()), "{ready}");
    assert_eq!(ready["checks"]["device"]["state"], "degraded");
    let detail = ready["checks"]["device"]["detail"].as_str().unwrap().to_owned();
    assert!(detail.starts_with("device.use = \"cuda:99\" but it cannot be used: "), "{detail}");
    assert_eq!(daemon.status()["device"], format!("cpu: {detail}"));
    let metrics = daemon.metrics();
    assert!(metrics.contains("\nevergraph_device_degraded 1\n"), "{metrics}");
    let (code, _) =
        daemon.post("/v1/events", "application/json", r#"{"src": "a", "dst": "b", "ts": 1}"#).unwrap();
    assert_eq!(code, 200, "events are taken in");
    assert!(daemon.terminate().success());
}

#[test]
fn settings_that_do_not_fit_the_data_are_found() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = Start::in_dir(folder.path()).ready();
    daemon.post("/v1/events", "application/json", r#"{"src": "a", "dst": "b", "ts": 1}"#).unwrap();
    assert!(daemon.terminate().success());
    let (content, output) = check(folder.path(), &[]);
    assert!(content && output.contains("ok    checkpoint: ") && output.contains("fits [model]"), "{output}");
    for (setting, fault) in [
        ("stream.edge_feature_dimension=3", "FAULT catalog: stream.edge_feature_dimension = 3"),
        ("model.embedding_dimension=64", "FAULT checkpoint: "),
        ("ingest.file.path=/nonexistent.csv", "FAULT file: cannot open /nonexistent.csv"),
    ] {
        let (content, output) = check(folder.path(), &[setting]);
        assert!(!content && output.contains(fault), "{setting}: {output}");
        let refused = Start::in_dir(folder.path()).set(setting).fails();
        assert!(!refused.is_empty(), "{setting}");
    }
    let (content, output) = check(folder.path(), &["output.level=inof"]);
    assert!(!content && output.contains("output.level = \"inof\""), "{output}");
}

#[test]
fn an_event_file_with_rows_of_another_length_is_found() {
    let folder = tempfile::tempdir().unwrap();
    let events = folder.path().join("events.csv");
    std::fs::write(&events, "src,dst,ts,f0\na,b,1,0.5\n").unwrap();
    let path = format!("ingest.file.path={}", events.display());
    let (content, output) = check(folder.path(), &[&path]);
    assert!(
        !content && output.contains("FAULT file: ") && output.contains("every event would be rejected"),
        "{output}"
    );
    let (content, output) = check(folder.path(), &[&path, "stream.edge_feature_dimension=1"]);
    assert!(content, "{output}");
}

#[test]
fn both_topics_are_looked_at() {
    let Some(broker) = Broker::shared() else { return };
    broker.create_topic("check-events", 2);
    let folder = tempfile::tempdir().unwrap();
    let brokers = format!("ingest.kafka.brokers={}", broker.bootstrap());
    let settings =
        [&brokers, "ingest.kafka.topic=check-events", "ingest.kafka.dead_letter_topic=check-letters"];
    if broker.is_kafka() {
        let (content, output) = check(folder.path(), &settings);
        assert!(
            !content && output.contains("FAULT dead letters: ") && output.contains("check-letters"),
            "{output}"
        );
    }
    broker.create_topic("check-letters", 1);
    let (content, output) = check(folder.path(), &settings);
    assert!(
        content && output.contains("ok    dead letters: topic check-letters has 1 partitions"),
        "{output}"
    );
}
