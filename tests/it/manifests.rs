//! The Helm chart and the manifests that it renders, against the daemon: settings that it knows, routes that it has.
//! That the manifests are what the chart renders, and fit Kubernetes, is checked by `scripts/kubernetes.sh` in CI.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

use serde_json::Value;

use crate::observability::{file, read};

const MANIFEST: &str = "deploy/kubernetes/evergraph.yaml";
const STATEFUL_SET: &str = "deploy/helm/evergraph/templates/statefulset.yaml";
const EVERYTHING: &str = "deploy/helm/evergraph/ci/everything.yaml";

/// The lines of the block of text that follows `key: |`, without their common indentation.
fn text_of(yaml: &str, key: &str) -> String {
    let mut lines = yaml.lines().skip_while(|line| line.trim() != format!("{key}: |")).skip(1).peekable();
    let indentation = lines.peek().map_or(0, |line| line.len() - line.trim_start().len());
    assert!(indentation > 0, "no text under {key}");
    let inside = |line: &&str| line.trim().is_empty() || line.starts_with(&" ".repeat(indentation));
    lines
        .take_while(inside)
        .map(|line| format!("{}\n", line.get(indentation..).unwrap_or_default()))
        .collect()
}

#[test]
fn the_daemon_takes_the_settings_that_the_chart_gives_it() {
    let folder = tempfile::tempdir().unwrap();
    let settings = folder.path().join("evergraph.toml");
    let check = |text: &str| {
        fs::write(&settings, text).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_evergraph"));
        command.args(["check", "--listen", "127.0.0.1:0", "--set", "ingest.kafka.brokers="]);
        command.arg("--config").arg(&settings).arg("--data").arg(folder.path().join("data"));
        let output = command.output().unwrap();
        (output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned())
    };
    for (path, key) in [(MANIFEST, "evergraph.toml"), (EVERYTHING, "config")] {
        let text = text_of(&read(path), key);
        assert!(text.contains("[ingest.kafka]\n"), "{path}: {text}");
        let (content, said) = check(&text);
        assert!(content && said.contains("ok    settings: valid"), "{path}: {said}");
    }
    let (content, _) = check("[ingest.kafka]\nbroker = \"\"\n");
    assert!(!content, "an unknown key would be told");
}

#[test]
fn probes_and_scrapes_ask_for_routes_that_there_are() {
    let document: Value = serde_json::from_str(&read("tests/it/openapi.json")).unwrap();
    let routes: BTreeSet<&String> = document["paths"].as_object().unwrap().keys().collect();
    let monitor = read("deploy/helm/evergraph/templates/servicemonitor.yaml");
    let all = read(MANIFEST) + &read(STATEFUL_SET) + &monitor;
    let asked: BTreeSet<String> = all
        .split("path: /")
        .skip(1)
        .map(|rest| format!("/{}", rest.split([',', ' ', '\n']).next().unwrap()))
        .collect();
    for wanted in ["/livez", "/readyz", "/metrics"] {
        assert!(asked.contains(wanted), "{asked:?}");
    }
    assert!(asked.iter().all(|path| routes.contains(path)), "{asked:?} of {routes:?}");
}

#[test]
fn the_pod_may_do_little_and_listens_where_it_is_probed() {
    let manifest = read(MANIFEST);
    for line in [
        "runAsNonRoot: true",
        "readOnlyRootFilesystem: true",
        "allowPrivilegeEscalation: false",
        "automountServiceAccountToken: false",
        "type: RuntimeDefault",
        "value: 0.0.0.0:8080",
        "containerPort: 8080",
        "value: 0.0.0.0:8081",
        "containerPort: 8081",
        "mountPath: /var/lib/evergraph",
        "value: /var/lib/evergraph",
    ] {
        assert!(manifest.lines().any(|found| found.trim() == line), "{line}");
    }
    let user = read("deploy/Dockerfile").contains("-o 65532") && manifest.contains("runAsUser: 65532");
    assert!(user, "the image's folder belongs to the pod's user");
}

#[test]
fn links_of_the_chart_lead_to_what_everybody_uses() {
    for (link, original) in [("alerts.yml", "deploy/alerts.yml"), ("dashboards", "dashboards")] {
        let link = file("deploy/helm/evergraph/files").join(link);
        assert!(link.is_symlink(), "{}", link.display());
        assert_eq!(fs::canonicalize(&link).unwrap(), fs::canonicalize(file(original)).unwrap());
    }
}

/// The documents of the manifest with their kinds and names.
fn objects() -> Vec<(String, String, String)> {
    let manifest = read(MANIFEST);
    let value = |text: &str, key: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(key)).unwrap_or_default();
        line.trim().to_owned()
    };
    let documents = manifest.split("\n---\n").filter(|text| text.contains("\nkind: "));
    documents.map(|text| (value(text, "kind:"), value(text, "  name:"), text.to_owned())).collect()
}

#[test]
fn what_is_rendered_asks_for_keys_and_keeps_operations_inside() {
    let objects = objects();
    let of = |kind: &str, name: &str| {
        let found = objects.iter().find(|(found, named, _)| found == kind && named == name);
        found.unwrap_or_else(|| panic!("no {kind} {name}")).2.as_str()
    };
    let set = of("StatefulSet", "evergraph");
    for line in
        ["secretName: evergraph-keys", "value: /etc/evergraph-keys/keys", "podManagementPolicy: Parallel"]
    {
        assert!(set.lines().any(|found| found.trim() == line), "{line}");
    }
    let services: Vec<_> = objects.iter().filter(|(kind, ..)| kind == "Service").collect();
    assert_eq!(services.len(), 3);
    for (_, name, text) in services {
        let inside = text.contains("type: ClusterIP") && name == "evergraph-operations";
        assert_eq!(text.contains("8081"), inside, "health checks and metrics have no other service: {name}");
    }
    let policy = of("NetworkPolicy", "evergraph");
    let rules: Vec<&str> = policy.split("- ports:").skip(1).collect();
    assert_eq!(rules.len(), 2, "{policy}");
    for (rule, port) in rules.iter().zip(["http", "operations"]) {
        let lines: Vec<&str> = rule.lines().map(str::trim).collect();
        assert!(lines.contains(&format!("- port: {port}").as_str()), "{rule}");
        assert!(lines.contains(&"from:") && lines.contains(&"- podSelector: {}"), "not everybody: {rule}");
    }
}
