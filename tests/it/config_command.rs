//! `evergraph config`: what is in effect, what is wrong, what may be written.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use crate::contract::fits;

/// The command with these arguments and variables: exit code, standard output, standard error.
fn config(args: &[&str], variables: &[(&str, &str)]) -> (i32, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_evergraph"));
    let output = command.arg("config").args(args).envs(variables.iter().copied()).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

fn file(folder: &Path, text: &str) -> PathBuf {
    let path = folder.join("evergraph.toml");
    std::fs::write(&path, text).unwrap();
    path
}

#[test]
fn what_is_in_effect_is_shown_with_its_origin_and_can_be_read_again() {
    let folder = tempfile::tempdir().unwrap();
    let text = "[learner]\nseed = 5\n[ingest.kafka.properties]\n\"sasl.username\" = \"me\"\n";
    let path = file(folder.path(), text);
    let path = path.to_str().unwrap();
    let secret = ("EVERGRAPH__INGEST__KAFKA__PROPERTIES__SASL__PASSWORD", "hunter2");
    let variables = [("EVERGRAPH__LEARNER__THREADS", "3"), secret];
    let args = ["show", "--config", path, "--listen", "localhost:0", "--set", "graph.shards=8"];
    let (code, shown, stderr) = config(&args, &variables);
    assert_eq!(code, 0, "{stderr}");
    for (line, origin) in [
        ("listen = \"localhost:0\"", "# the flag --listen"),
        ("shards = 8", "# the flag --set graph.shards"),
        ("seed = 5", path),
        ("threads = 3", "# EVERGRAPH__LEARNER__THREADS"),
        ("\"sasl.password\" = \"***\"", "# EVERGRAPH__INGEST__KAFKA__PROPERTIES__SASL__PASSWORD"),
        ("fanout = 10", "# default"),
    ] {
        let found = shown.lines().find(|found| found.starts_with(line));
        assert!(found.is_some_and(|found| found.ends_with(origin)), "{line} {origin}: {shown}");
    }
    assert!(!shown.contains("hunter2"), "{shown}");

    // Without the secret, the output is the same.
    let again = file(&tempfile::tempdir().unwrap().keep(), &shown.replace("\"sasl.password\"", "# "));
    let args = ["show", "--config", again.to_str().unwrap(), "--json"];
    let (code, second, stderr) = config(&args, &[]);
    assert_eq!(code, 0, "{stderr}");
    let (_, first, _) = config(
        &["show", "--config", path, "--listen", "localhost:0", "--set", "graph.shards=8", "--json"],
        &variables[..1],
    );
    let values = |text: &str| -> Vec<(Value, Value)> {
        let settings: Value = serde_json::from_str(text).unwrap();
        let settings = settings.as_array().unwrap().iter();
        settings.map(|setting| (setting["key"].clone(), setting["value"].clone())).collect()
    };
    assert_eq!(values(&first), values(&second));
    std::fs::remove_dir_all(again.parent().unwrap()).unwrap();

    let (_, changed, _) = config(&["show", "--changed", "--config", path, "--json"], &variables);
    let changed: Value = serde_json::from_str(&changed).unwrap();
    let mut keys: Vec<_> = changed.as_array().unwrap().iter().map(|setting| &setting["key"]).collect();
    keys.sort_by_key(|key| key.to_string());
    let properties = ["ingest.kafka.properties.sasl.password", "ingest.kafka.properties.sasl.username"];
    assert_eq!(keys, [properties[0], properties[1], "learner.seed", "learner.threads"]);
    assert!(changed.as_array().unwrap().iter().all(|setting| setting["origin"] != "default"));

    let (code, _, stderr) = config(&["show", "--set", "learner.sed=1"], &[]);
    assert!(code == 78 && stderr.contains("did you mean `seed`"), "{stderr}");
}

#[test]
fn all_faults_are_reported_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let text = "[learner]\nbatch_event = 64\nthreads = \"many\"\n[graph]\nshards = 3\n";
    let path = file(folder.path(), text);
    let args = ["validate", "--config", path.to_str().unwrap(), "--set", "checkpoint.keep=0"];
    let (code, stdout, stderr) = config(&args, &[("EVERGRAPH__API__DIR", "x")]);
    assert_eq!(code, 78, "{stdout}{stderr}");
    let place = path.display();
    for fault in [
        format!(
            "FAULT learner.batch_event ({place}): there is no such setting; did you mean learner.batch_events?"
        ),
        format!("FAULT learner.threads ({place}): "),
        format!("FAULT graph.shards ({place}): 3: must be a power of two"),
        "FAULT checkpoint.keep (the flag --set checkpoint.keep): 0: must be at least 1".to_owned(),
        "FAULT api.dir (the environment): there is no such setting; did you mean data.dir?".to_owned(),
    ] {
        assert!(stdout.lines().any(|line| line.starts_with(&fault)), "{fault}\nnot in\n{stdout}");
    }
    assert_eq!(stdout.lines().count(), 5, "{stdout}");
    assert!(stderr.contains("5 fault(s)"), "{stderr}");
    let (code, stdout, _) = config(&[args.as_slice(), &["--json"]].concat(), &[]);
    let document: Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!(
        (code, &document["valid"], document["faults"].as_array().unwrap().len()),
        (78, &json!(false), 4)
    );

    let (code, stdout, _) = config(&["validate", "--set", "stream.late_policy=drop"], &[]);
    assert!(
        code == 0 && stdout.contains("warn  stream.late_policy") && stdout.contains("ok    "),
        "{stdout}"
    );
}

#[test]
fn the_schema_takes_what_is_read_and_refuses_what_is_not() {
    let (code, schema, stderr) = config(&["schema"], &[]);
    assert_eq!(code, 0, "{stderr}");
    let schema: Value = serde_json::from_str(&schema).unwrap();
    let (_, shown, _) = config(&["show", "--json"], &[]);
    let shown: Value = serde_json::from_str(&shown).unwrap();
    let mut settings = json!({});
    for setting in shown.as_array().unwrap() {
        let place =
            setting["key"].as_str().unwrap().split('.').fold(&mut settings, |table, name| &mut table[name]);
        *place = setting["value"].clone();
    }
    fits(&schema, &settings).unwrap();
    for (pointer, wrong) in [
        ("/learner/seed", json!(-1)),
        ("/learner/train", json!("yes")),
        ("/model/kind", json!("gcn")),
        ("/model/heads", json!(0)),
        ("/api/listen", json!(8080)),
        ("/graph", json!({ "shard": 64 })),
    ] {
        let mut settings = settings.clone();
        *settings.pointer_mut(pointer).unwrap() = wrong;
        assert!(fits(&schema, &settings).is_err(), "{pointer}");
    }
}
