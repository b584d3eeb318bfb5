//! Alerts of `deploy/alerts.yml`: each is about metrics that exist, fires when it should and not before (`promtool test
//! rules`), and has a page under `docs/runbook` whose words can be trusted. Whether a real Prometheus finds what they
//! ask for is tested in `observability.rs`.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use crate::observability::{family, file, inventory, metrics_in, output_text, read, run};

/// What an expression may use beside our metrics.
const NOT_OURS: &[&str] = &["up", "absent(up"];
/// Where the links to the pages begin: at an external label of Prometheus, else at the pages that the package installs.
const PAGES: &str =
    "{{ with $externalLabels.runbook_docs }}{{ . }}{{ else }}file:///usr/share/doc/evergraph/docs{{ end }}";
/// The parts of a page, in this order.
const PARTS: [&str; 4] = ["What it means", "What to look at", "What to do", "How to tell it is over"];

/// One rule: its name and its lines.
fn alerts() -> Vec<(String, String)> {
    let rules = read("deploy/alerts.yml");
    let alerts = rules.split("      - alert: ").skip(1).map(|rule| rule.split_once('\n').unwrap());
    alerts.map(|(name, lines)| (name.to_owned(), lines.to_owned())).collect()
}

/// What follows `key` in the lines of a rule.
fn value<'a>(lines: &'a str, key: &str) -> Option<&'a str> {
    lines.lines().find_map(|line| line.trim().strip_prefix(key))
}

#[test]
fn alerts_ask_for_metrics_that_exist() {
    let known = inventory();
    let alerts = alerts();
    assert!(alerts.len() >= 20, "{}", alerts.len());
    for (name, lines) in alerts {
        let query = value(&lines, "expr: ").unwrap();
        let metrics = metrics_in(query);
        assert!(
            !metrics.is_empty() || NOT_OURS.iter().any(|other| query.starts_with(other)),
            "{name}: {query}"
        );
        for series in metrics {
            assert!(known.contains(family(&series)), "{name}: {series} does not exist");
        }
    }
}

#[test]
fn alerts_fire_in_trouble_and_only_then() {
    let folder = tempfile::tempdir().unwrap();
    for path in ["deploy/alerts.yml", "deploy/prometheus.yml", "tests/it/alerts_test.yml"] {
        fs::copy(file(path), folder.path().join(Path::new(path).file_name().unwrap())).unwrap();
    }
    for arguments in [&["check", "config", "prometheus.yml"][..], &["test", "rules", "alerts_test.yml"]] {
        if let Some(output) = run("promtool", arguments, folder.path(), b"") {
            assert!(output.status.success(), "{arguments:?}: {}", output_text(&output));
        }
    }
}

#[test]
fn every_alert_has_a_test_that_it_fires_and_one_that_it_is_silent() {
    let tests = read("tests/it/alerts_test.yml");
    let tests: Vec<(&str, &str)> =
        tests.split("\n  - name: ").skip(1).map(|test| test.split_once('\n').unwrap()).collect();
    for (name, lines) in alerts() {
        let metrics = metrics_in(value(&lines, "expr: ").unwrap());
        for (state, expected) in [("fires", true), ("is silent", false)] {
            let wanted = format!("{name} {state}");
            let found = tests.iter().find(|(title, _)| title.trim_start_matches('\'').starts_with(&wanted));
            let (_, body) = found.unwrap_or_else(|| panic!("no test \"{wanted}\""));
            let fires = body.contains(&format!("alertname=\"{name}\"}}', value: 1"));
            assert_eq!(fires, expected, "{wanted}");
            for series in &metrics {
                assert!(
                    body.contains(series.as_str()),
                    "{wanted}: without {series} it could not do otherwise"
                );
            }
        }
    }
}

#[test]
fn every_alert_has_a_page_and_every_page_an_alert() {
    let index = read("docs/runbook/README.md");
    let mut pages = BTreeSet::from(["README.md".to_owned()]);
    for (name, lines) in alerts() {
        let page = format!("docs/runbook/{name}.md");
        let link = format!("'{PAGES}/runbook/{name}.md'");
        assert_eq!(
            value(&lines, "runbook_url: "),
            Some(link.as_str()),
            "{name}: an absolute link to its page"
        );
        let severity = value(&lines, "labels: { severity: ").unwrap().trim_end_matches(" }");
        let text = read(&page);
        assert!(text.starts_with(&format!("# {name}\n\nSeverity: {severity}. ")), "{page}");
        let mut rest = text.as_str();
        for part in PARTS {
            let (_, after) = rest.split_once(&format!("\n## {part}\n\n")).unwrap_or_else(|| {
                panic!("{page}: no part \"{part}\", or not in its place");
            });
            assert!(after.split("\n## ").next().unwrap().trim().len() > 40, "{page}: {part}");
            rest = after;
        }
        assert!(index.contains(&format!("| [{name}]({name}.md) | {severity} | ")), "{name} in the index");
        pages.insert(format!("{name}.md"));
    }
    let found = fs::read_dir(file("docs/runbook")).unwrap();
    let found: BTreeSet<String> =
        found.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    assert_eq!(found, pages);
}

#[test]
fn pages_name_metrics_settings_panels_and_pages_that_exist() {
    let known = inventory();
    let settings = read("deploy/evergraph.toml");
    let mut panels = String::new();
    for entry in fs::read_dir(file("dashboards")).unwrap() {
        panels += &fs::read_to_string(entry.unwrap().path()).unwrap();
    }
    let mut checked = [0; 4];
    for (name, _) in alerts() {
        let text = read(&format!("docs/runbook/{name}.md"));
        for series in metrics_in(&text) {
            checked[0] += 1;
            assert!(known.contains(family(&series)), "{name}: {series}");
        }
        for word in text.split('`').skip(1).step_by(2) {
            let Some((section, key)) = word.split(" = ").next().unwrap().rsplit_once('.') else { continue };
            let is_setting = settings.contains(&format!("\n[{section}]\n"));
            if is_setting && !key.contains(' ') && key != "*" {
                checked[1] += 1;
                let body = settings.split_once(&format!("\n[{section}]\n")).unwrap().1;
                let body = body.split("\n[").next().unwrap();
                assert!(body.lines().any(|line| line.starts_with(&format!("{key} ="))), "{name}: {word}");
            }
        }
        for link in text.split("](").skip(1).map(|rest| rest.split(')').next().unwrap()) {
            checked[2] += 1;
            let path = link.split('#').next().unwrap();
            assert!(file("docs/runbook").join(path).exists(), "{name}: {link}");
        }
        for panel in text.replace('\n', " ").split("- \"").skip(1).map(|rest| rest.split('"').next().unwrap())
        {
            checked[3] += 1;
            assert!(panels.contains(&format!("\"title\": \"{panel}\"")), "{name}: no panel \"{panel}\"");
        }
    }
    assert!(checked.iter().all(|count| *count > 3), "{checked:?}: the words are not found any more");
}
