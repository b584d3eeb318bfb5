//! What operators look at, against what the daemon says: metric names, dashboard, alerts, service unit.
//!
//! Outside tools judge where there is one: `promtool` (Debian package `prometheus`) and `systemd-analyze`. A
//! machine without them says so on standard error and checks the rest.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use evergraph::metrics::{INVENTORY, Metrics, PROCESS_METRICS, set_state};
use serde_json::Value;

use crate::live::Live;

/// Metrics that the dashboard leaves out, each with the reason.
const NOT_ON_THE_DASHBOARD: &[(&str, &str)] =
    &[("process_virtual_memory_bytes", "address space says nothing about memory in use")];

/// What a query may use beside our metrics.
const NOT_OURS: &[&str] = &["up"];

fn file(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn read(path: &str) -> String {
    fs::read_to_string(file(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Runs a tool with `input`; `None`, told on standard error, where the tool is not installed.
fn run(tool: &str, arguments: &[&str], folder: &Path, input: &[u8]) -> Option<Output> {
    let started = Command::new(tool)
        .args(arguments)
        .current_dir(folder)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    match started {
        Ok(mut child) => {
            child.stdin.take().unwrap().write_all(input).unwrap();
            Some(child.wait_with_output().unwrap())
        }
        Err(error) => {
            eprintln!("SKIPPED: {tool} cannot be run here ({error}); install it to check this too");
            None
        }
    }
}

fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// The names of all metrics, by the inventory.
fn inventory() -> BTreeSet<String> {
    let ours = INVENTORY.into_iter().flatten().map(|info| info.name);
    ours.chain(PROCESS_METRICS).map(str::to_owned).collect()
}

/// The panels of the dashboard that show something.
fn panels() -> Vec<Value> {
    let dashboard: Value = serde_json::from_str(&read("dashboards/overview.json")).unwrap();
    let panels = dashboard["panels"].as_array().unwrap().iter();
    panels.filter(|panel| panel["type"] != "row").cloned().collect()
}

fn queries() -> Vec<String> {
    let targets = panels().into_iter().flat_map(|panel| panel["targets"].as_array().unwrap().clone());
    targets.map(|target| target["expr"].as_str().unwrap().to_owned()).collect()
}

/// The series that a query reads, once for each time it does.
fn metrics_in(query: &str) -> Vec<String> {
    let words = query.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
    let metrics =
        words.filter(|word| ["evergraph_", "process_"].iter().any(|prefix| word.starts_with(prefix)));
    metrics.map(str::to_owned).collect()
}

/// The metric behind a series: histograms have three series each.
fn family(series: &str) -> &str {
    let is_histogram = |name: &&str| {
        INVENTORY.into_iter().flatten().any(|info| info.name == *name && info.handle.starts_with("Histogram"))
    };
    let bases = ["_bucket", "_sum", "_count"].into_iter().filter_map(|suffix| series.strip_suffix(suffix));
    bases.into_iter().find(is_histogram).unwrap_or(series)
}

#[test]
fn dashboard_and_metrics_know_each_other() {
    let known = inventory();
    let shown: BTreeSet<String> = queries()
        .iter()
        .flat_map(|query| metrics_in(query))
        .map(|series| family(&series).to_owned())
        .collect();
    let unknown: Vec<&String> = shown.difference(&known).collect();
    assert!(unknown.is_empty(), "the dashboard reads metrics that do not exist: {unknown:?}");
    let mut left_out: BTreeSet<String> = known.difference(&shown).cloned().collect();
    for (name, reason) in NOT_ON_THE_DASHBOARD {
        assert!(left_out.remove(*name), "{name} is excused ({reason}) and yet shown, or does not exist");
    }
    assert!(left_out.is_empty(), "metrics that no panel shows: {left_out:?}");
}

#[test]
fn histograms_are_read_by_their_series_and_labels_exist() {
    for query in queries() {
        for series in metrics_in(&query) {
            let info = INVENTORY.into_iter().flatten().find(|info| info.name == family(&series));
            let Some(info) = info else { continue };
            let histogram = info.handle.starts_with("Histogram");
            assert_eq!(histogram, family(&series) != series, "{series} in {query}");
            let selector = query.split_once(&series).unwrap().1.split_once('}').unwrap().0;
            for matcher in selector.trim_start_matches('{').split(", ") {
                let label = matcher.split(['=', '!']).next().unwrap();
                let known = ["job", "instance", "le"].contains(&label) || info.labels.contains(&label);
                assert!(known, "{series} has no label {label}: {query}");
            }
        }
    }
}

#[test]
fn the_dashboard_keeps_grafanas_rules() {
    let dashboard: Value = serde_json::from_str(&read("dashboards/overview.json")).unwrap();
    assert_eq!(dashboard["editable"], false);
    let variables = dashboard["templating"]["list"].as_array().unwrap();
    let variable = |name: &str| variables.iter().find(|variable| variable["name"] == name).unwrap();
    assert_eq!(variable("datasource")["type"], "datasource");
    for name in ["job", "instance"] {
        let variable = variable(name);
        assert_eq!(variable["datasource"]["uid"], "${datasource}", "{name}");
        assert_eq!((&variable["refresh"], &variable["multi"]), (&2.into(), &true.into()), "{name}");
        assert_eq!(variable["allValue"], ".+", "{name}");
    }
    let mut ids = BTreeSet::new();
    for panel in panels() {
        let title = panel["title"].as_str().unwrap();
        assert!(!title.is_empty() && ids.insert(panel["id"].as_u64().unwrap()), "{panel}");
        assert!(
            panel["description"].as_str().is_some_and(|text| text.ends_with('.')),
            "{title}: description"
        );
        assert!(panel["fieldConfig"]["defaults"]["unit"].is_string(), "{title}: unit");
        let targets = panel["targets"].as_array().unwrap();
        assert!(!targets.is_empty(), "{title}: nothing to show");
        for source in targets.iter().map(|target| &target["datasource"]).chain([&panel["datasource"]]) {
            assert_eq!(source["uid"], "${datasource}", "{title}");
        }
        targets.iter().for_each(|target| check_query(title, target["expr"].as_str().unwrap()));
    }
}

/// Every selector is narrowed by job and instance; every counter is read as a rate over Grafana's interval.
fn check_query(title: &str, query: &str) {
    let selectors = metrics_in(query).len();
    assert!(selectors > 0, "{title}: {query}");
    for matcher in ["job=~\"$job\"", "instance=~\"$instance\""] {
        assert_eq!(
            query.matches(matcher).count(),
            selectors,
            "{title}: {matcher} in every selector of {query}"
        );
    }
    for (at, _) in query.match_indices('[') {
        assert!(query[at..].starts_with("[$__rate_interval]"), "{title}: {query}");
    }
    for series in metrics_in(query) {
        let cumulative = ["_total", "_bucket", "_sum", "_count"].iter().any(|end| series.ends_with(end));
        let rated = ["rate(", "increase("].iter().any(|call| query.contains(&format!("{call}{series}{{")));
        assert_eq!(cumulative, rated, "{title}: rate() is for counters, and only for them: {query}");
    }
}

#[test]
fn promtool_reads_every_query() {
    let mut rules = "groups:\n- name: dashboard\n  rules:\n".to_owned();
    for (index, query) in queries().iter().enumerate() {
        let query = query.replace("$__rate_interval", "5m");
        rules += &format!("  - record: panel:{index}\n    expr: '{}'\n", query.replace('\'', "''"));
    }
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("rules.yml"), rules).unwrap();
    if let Some(output) = run("promtool", &["check", "rules", "rules.yml"], folder.path(), b"") {
        assert!(output.status.success(), "{}", said(&output));
    }
}

/// Gives every metric a value and every label a series, as a daemon in full work has.
fn touch_everything(metrics: &Metrics) {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs_f64();
    metrics.build.info.with_label_values(&["0.1.0", "cpu"]).set(1);
    for result in ["accepted", "duplicate", "rejected"] {
        metrics.ingest.events.with_label_values(&["push", result]).inc();
    }
    metrics.ingest.rejected_events.with_label_values(&["bad_id"]).inc();
    metrics.ingest.dead_letters.with_label_values(&["push"]).inc();
    metrics.ingest.lag_records.with_label_values(&["0"]).set(3);
    metrics.ingest.watermark.inc();
    set_state(&metrics.ingest.source_state, "push", "running", &["running", "failed"]);
    metrics.log.commit_duration.observe(0.002);
    metrics.graph.apply_duration.observe(0.001);
    metrics.graph.bytes.with_label_values(&["entries"]).set(1 << 20);
    metrics.train.steps.with_label_values(&["train"]).inc();
    metrics.train.step_duration.with_label_values(&["forward"]).observe(0.01);
    metrics.eval.average_precision.set(0.9);
    metrics.eval.baseline_average_precision.with_label_values(&["edgebank"]).set(0.8);
    metrics.model.published_timestamp.set(now);
    metrics.model.event_to_visible.observe(0.2);
    metrics.checkpoint.duration.observe(0.3);
    metrics.checkpoint.last_success_timestamp.set(now);
}

#[test]
fn a_scrape_over_http_holds_every_metric_and_promtool_has_nothing_to_say() {
    let live = Live::start();
    touch_everything(&live.state.metrics);
    live.get("/v1/nodes/7");
    let answer = live.get("/metrics");
    assert!(answer.header("content-type").is_some_and(|kind| kind.starts_with("text/plain; version=0.0.4")));
    let text = answer.text();
    let types = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next());
    let scraped: BTreeSet<String> = types.map(str::to_owned).collect();
    assert_eq!(scraped, inventory());
    let route = "evergraph_http_request_duration_seconds_count{route=\"/v1/nodes/{key}\"}";
    assert_eq!(live.metric(route), Some(1.0), "routes are templates, never keys");
    if let Some(output) = run("promtool", &["check", "metrics"], Path::new("/"), text.as_bytes()) {
        assert!(output.status.success() && said(&output).is_empty(), "{}", said(&output));
    }
}

/// A Prometheus server that scrapes a daemon five times a second.
struct Scraper {
    child: Child,
    url: String,
    _folder: tempfile::TempDir,
}

impl Scraper {
    /// `None`, told on standard error, where Prometheus is not installed.
    fn start(target: &str) -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let config = format!(
            "global: {{ scrape_interval: 200ms }}\nscrape_configs:\n- job_name: evergraph\n  static_configs: [{{ targets: \
             [\"{target}\"] }}]\n"
        );
        fs::write(folder.path().join("prometheus.yml"), config).unwrap();
        // The port is free when asked for; it is taken again at once.
        let address = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let started = Command::new("prometheus")
            .args(["--config.file=prometheus.yml", "--storage.tsdb.path=data", "--log.level=error"])
            .arg(format!("--web.listen-address={address}"))
            .current_dir(folder.path())
            .stdout(Stdio::null())
            .spawn();
        match started {
            Ok(child) => Some(Self { child, url: format!("http://{address}"), _folder: folder }),
            Err(error) => {
                eprintln!("SKIPPED: prometheus cannot be run here ({error}); install it to check this too");
                None
            }
        }
    }

    /// How many series `query` has now; `None` while the server does not answer.
    fn count(&self, query: &str) -> Option<usize> {
        let coded: String = query.bytes().map(|byte| format!("%{byte:02X}")).collect();
        let text = ureq::get(format!("{}/api/v1/query?query={coded}", self.url)).call().ok()?;
        let answer: Value = serde_json::from_str(&text.into_body().read_to_string().ok()?).ok()?;
        answer["data"]["result"].as_array().map(Vec::len)
    }
}

impl Drop for Scraper {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn every_panel_shows_data_of_a_daemon_at_work() {
    let live = Live::start();
    let Some(scraper) = Scraper::start(&live.address.to_string()) else { return };
    let deadline = Instant::now() + Duration::from_secs(60);
    let scraped = "count_over_time(evergraph_build_info[1m]) > 10";
    while scraper.count(scraped).is_none_or(|series| series == 0) {
        assert!(Instant::now() < deadline, "Prometheus took no ten samples within a minute");
        touch_everything(&live.state.metrics);
        live.get("/v1/nodes/7");
        std::thread::sleep(Duration::from_millis(100));
    }
    for query in queries() {
        let filled = query.replace("$__rate_interval", "1m").replace("$job", ".+").replace("$instance", ".+");
        let series = scraper.count(&filled);
        assert!(series.is_some_and(|series| series > 0), "no data: {query}");
    }
}

#[test]
fn alerts_fire_in_trouble_and_only_then() {
    let alerts = read("deploy/alerts.yml");
    let known = inventory();
    for line in alerts.lines().filter_map(|line| line.trim().strip_prefix("expr: ")) {
        let metrics = metrics_in(line);
        assert!(!metrics.is_empty() || NOT_OURS.iter().any(|name| line.starts_with(name)), "{line}");
        for series in metrics {
            assert!(known.contains(family(&series)), "{series} does not exist: {line}");
        }
    }
    let folder = tempfile::tempdir().unwrap();
    for path in ["deploy/alerts.yml", "deploy/prometheus.yml", "tests/it/alerts_test.yml"] {
        fs::copy(file(path), folder.path().join(Path::new(path).file_name().unwrap())).unwrap();
    }
    for arguments in [&["check", "config", "prometheus.yml"][..], &["test", "rules", "alerts_test.yml"]] {
        if let Some(output) = run("promtool", arguments, folder.path(), b"") {
            assert!(output.status.success(), "{arguments:?}: {}", said(&output));
        }
    }
    let tested = read("tests/it/alerts_test.yml");
    for name in alerts.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")) {
        assert!(tested.contains(&format!("alertname=\"{name}\"")), "{name} is not tested");
    }
}

#[test]
fn the_service_unit_is_read_without_a_word_and_is_tight() {
    let unit =
        read("deploy/evergraph.service").replace("/usr/bin/evergraph", env!("CARGO_BIN_EXE_evergraph"));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("evergraph.service");
    fs::write(&path, unit).unwrap();
    let path = path.to_str().unwrap();
    if let Some(output) = run("systemd-analyze", &["verify", path], folder.path(), b"") {
        assert_eq!(said(&output), "", "verify exits with 0 on mistakes and only prints them");
    }
    let secure = ["security", "--offline=true", "--threshold=20", "--no-pager", path];
    if let Some(output) = run("systemd-analyze", &secure, folder.path(), b"") {
        assert!(output.status.success(), "exposure above 2.0: {}", said(&output));
    }
}

#[test]
fn what_compose_mounts_and_sets_exists() {
    let compose = read("deploy/compose.yaml");
    let mounts: Vec<&str> = compose
        .lines()
        .filter_map(|line| line.trim().strip_prefix("- ")?.split(':').next())
        .filter(|host| host.starts_with('.'))
        .collect();
    assert!(mounts.len() >= 4, "{mounts:?}");
    for mount in mounts {
        assert!(file("deploy").join(mount).exists(), "{mount}");
    }
    let settings =
        read("deploy/compose.yaml") + &read("deploy/Dockerfile") + &read("deploy/evergraph.service");
    let defaults = read("deploy/evergraph.toml");
    let names = settings.split(|c: char| !(c.is_ascii_uppercase() || c == '_'));
    let names: BTreeSet<&str> = names.filter_map(|word| word.strip_prefix("EVERGRAPH__")).collect();
    assert!(!names.is_empty());
    for name in names {
        let lower = name.to_ascii_lowercase().replace("__", ".");
        let (section, key) = lower.rsplit_once('.').unwrap();
        let body = defaults.split_once(&format!("[{section}]\n")).map(|(_, rest)| rest);
        let body = body.map(|rest| rest.split("\n[").next().unwrap_or_default());
        let set = body.is_some_and(|body| body.lines().any(|line| line.starts_with(&format!("{key} ="))));
        assert!(set, "EVERGRAPH__{name}: no key {key} under [{section}] of the default file");
    }
}
