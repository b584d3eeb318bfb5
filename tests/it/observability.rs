//! What operators look at, against what the daemon says: metric names, dashboards, compose file; what alerts ask for.
//! The alerts themselves are in `alerts.rs`.
//!
//! Outside tools judge where there is one: `promtool` (Debian package `prometheus`). A
//! machine without it says so on standard error and checks the rest.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use evergraph::api::{Health, State};
use evergraph::metrics::{INVENTORY, PROCESS_METRICS};
use serde_json::{Value, json};

use crate::live::Live;
use crate::process::{PATIENCE, Process, Start};
use crate::skip::skipped;

/// Metrics that no dashboard shows, each with the reason.
const ON_NO_DASHBOARD: &[(&str, &str)] =
    &[("process_virtual_memory_bytes", "address space does not show memory in use")];

pub fn file(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

pub fn read(path: &str) -> String {
    fs::read_to_string(file(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Runs a tool with `input`; `None`, told on standard error, where the tool is not installed.
pub fn run(tool: &str, arguments: &[&str], folder: &Path, input: &[u8]) -> Option<Output> {
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
            skipped(&format!("{tool} cannot be run here ({error}); install it to check this too"));
            None
        }
    }
}

pub fn output_text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// The names of all metrics, by the inventory.
pub fn inventory() -> BTreeSet<String> {
    let ours = INVENTORY.into_iter().flatten().map(|info| info.name);
    ours.chain(PROCESS_METRICS).map(str::to_owned).collect()
}

/// Every dashboard by its file name.
fn dashboards() -> Vec<(String, Value)> {
    let mut files: Vec<PathBuf> =
        fs::read_dir(file("dashboards")).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    let open = |path: PathBuf| {
        let text = fs::read_to_string(&path).unwrap();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        (name, serde_json::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display())))
    };
    files.into_iter().map(open).collect()
}

/// The panels of a dashboard that show something.
fn panels(dashboard: &Value) -> Vec<Value> {
    let panels = dashboard["panels"].as_array().unwrap().iter();
    panels.filter(|panel| panel["type"] != "row").cloned().collect()
}

/// What the panels of all dashboards ask, each once.
fn queries() -> BTreeSet<String> {
    let panels = dashboards().into_iter().flat_map(|(_, dashboard)| panels(&dashboard));
    let targets = panels.flat_map(|panel| panel["targets"].as_array().unwrap().clone());
    targets.map(|target| target["expr"].as_str().unwrap().to_owned()).collect()
}

/// The series that a query reads, once for each time it does.
pub fn metrics_in(query: &str) -> Vec<String> {
    let words = query.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
    let metrics =
        words.filter(|word| ["evergraph_", "process_"].iter().any(|prefix| word.starts_with(prefix)));
    metrics.map(str::to_owned).collect()
}

/// The metric behind a series: histograms have three series each.
pub fn family(series: &str) -> &str {
    let is_histogram = |name: &&str| {
        INVENTORY.into_iter().flatten().any(|info| info.name == *name && info.handle.starts_with("Histogram"))
    };
    let bases = ["_bucket", "_sum", "_count"].into_iter().filter_map(|suffix| series.strip_suffix(suffix));
    bases.into_iter().find(is_histogram).unwrap_or(series)
}

#[test]
fn dashboards_and_metrics_know_each_other() {
    let known = inventory();
    let shown: BTreeSet<String> = queries()
        .iter()
        .flat_map(|query| metrics_in(query))
        .map(|series| family(&series).to_owned())
        .collect();
    let unknown: Vec<&String> = shown.difference(&known).collect();
    assert!(unknown.is_empty(), "a dashboard reads metrics that do not exist: {unknown:?}");
    let mut left_out: BTreeSet<String> = known.difference(&shown).cloned().collect();
    for (name, reason) in ON_NO_DASHBOARD {
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
fn dashboards_keep_grafanas_rules() {
    let mut known = BTreeSet::new();
    for (name, dashboard) in dashboards() {
        let stem = name.strip_suffix(".json").unwrap_or_else(|| panic!("{name} is no dashboard"));
        assert_eq!(dashboard["uid"], format!("evergraph-{stem}"), "{name}");
        assert!(
            known.insert(dashboard["title"].as_str().unwrap().to_owned()),
            "{name}: the title of another"
        );
        assert_eq!(
            (&dashboard["editable"], &dashboard["tags"]),
            (&false.into(), &json!(["evergraph"])),
            "{name}"
        );
        let link = &dashboard["links"][0];
        assert_eq!((&link["type"], &link["tags"]), (&"dashboards".into(), &json!(["evergraph"])), "{name}");
        check_variables(&name, &dashboard);
        check_panels(&name, &dashboard);
    }
    assert!(known.len() >= 5, "{known:?}");
}

fn check_variables(name: &str, dashboard: &Value) {
    let variables = dashboard["templating"]["list"].as_array().unwrap();
    let variable = |wanted: &str| variables.iter().find(|variable| variable["name"] == wanted).unwrap();
    assert_eq!(variable("datasource")["type"], "datasource", "{name}");
    for wanted in ["job", "instance"] {
        let variable = variable(wanted);
        assert_eq!(variable["datasource"]["uid"], "${datasource}", "{name}: {wanted}");
        assert_eq!((&variable["refresh"], &variable["multi"]), (&2.into(), &true.into()), "{name}: {wanted}");
        assert_eq!(variable["allValue"], ".+", "{name}: {wanted}");
    }
}

fn check_panels(name: &str, dashboard: &Value) {
    let (mut ids, mut titles, mut cells) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    for panel in dashboard["panels"].as_array().unwrap() {
        assert!(ids.insert(panel["id"].as_u64().unwrap()), "{name}: the id of another: {panel}");
        let [x, y, w, h] = ["x", "y", "w", "h"].map(|key| panel["gridPos"][key].as_u64().unwrap());
        assert!(x + w <= 24, "{name}: wider than the page: {panel}");
        for cell in (y..y + h).flat_map(|row| (x..x + w).map(move |column| (row, column))) {
            assert!(cells.insert(cell), "{name}: two panels in one place: {panel}");
        }
    }
    for panel in panels(dashboard) {
        let title = format!("{name}: {}", panel["title"].as_str().unwrap());
        assert!(titles.insert(title.clone()), "{title}: twice");
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
        targets.iter().for_each(|target| check_query(&title, target["expr"].as_str().unwrap()));
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
        assert!(output.status.success(), "{}", output_text(&output));
    }
}

/// Metrics that a daemon at work on pushed events does not have, or has at zero, each with the reason.
/// Every other one of ours has to have a value.
const ABSENT: &[(&str, &str)] = &[
    ("evergraph_ingest_lag_records", "there is no Kafka here"),
    ("evergraph_device_memory_bytes", "no GPU is open"),
    ("evergraph_device_row_cache_rows_total", "no GPU is open"),
    ("evergraph_device_edge_rows_total", "no GPU is open"),
    ("evergraph_device_samples_total", "no GPU is open"),
    ("evergraph_device_bus_bytes_total", "no GPU is open"),
    ("evergraph_http_certificate_expiry_timestamp_seconds", "it speaks no HTTPS"),
    ("evergraph_http_authentication_failures_total", "it asks for no key"),
    ("evergraph_backup_last_success_timestamp_seconds", "there is no backup"),
];
const ZERO: &[(&str, &str)] = &[
    ("evergraph_graph_expired_edges_total", "everything is kept"),
    ("evergraph_graph_idle_nodes_removed_total", "everything is kept"),
    ("evergraph_graph_unknown_type_edges_total", "the model has no edge types"),
    ("evergraph_http_held_bytes", "bodies and responses are small"),
    ("evergraph_log_first_position", "nothing is cut off the log"),
    ("evergraph_log_replay_position", "it starts with an empty log"),
    ("evergraph_log_replay_end_position", "it starts with an empty log"),
    ("evergraph_ingest_paused", "nothing holds the sources up"),
    ("evergraph_ingest_reconnects_total", "the broker is there"),
    ("evergraph_ingest_token_failures_total", "it logs in without tokens"),
    ("evergraph_log_commit_failures_total", "the disk works"),
    ("evergraph_log_disk_full", "the disk has room"),
    ("evergraph_log_torn_bytes", "no write was interrupted"),
    ("evergraph_spill_reads_total", "all of it is in memory"),
    ("evergraph_spill_failures_total", "the disk works"),
    ("evergraph_spill_degraded", "the disk works"),
    ("evergraph_train_evicted_pairs_total", "there are few pairs"),
    ("evergraph_train_exchanged_bytes_total", "it trains alone"),
    ("evergraph_train_skipped_events_total", "the learner keeps up"),
    ("evergraph_anomaly_unscored_events_total", "the learner keeps up"),
    ("evergraph_anomaly_left_out_events_total", "it has no topic of anomalies"),
    ("evergraph_anomaly_delivered_events_total", "it has no topic of anomalies"),
    ("evergraph_feed_rows_total", "it has no change feed"),
    ("evergraph_feed_deletions_total", "it has no change feed"),
    ("evergraph_feed_failures_total", "it has no change feed"),
    ("evergraph_feed_index_rows_total", "it has no change feed"),
    ("evergraph_feed_pending_nodes", "it has no change feed"),
    ("evergraph_cluster_failures_total", "it stands alone"),
    ("evergraph_cluster_frames_position", "it stands alone"),
    ("evergraph_cluster_staleness_seconds", "it stands alone"),
    ("evergraph_cluster_states_position", "it stands alone"),
    ("evergraph_feed_behind_seconds", "it has no change feed"),
    ("evergraph_feed_position", "it has no change feed"),
    ("evergraph_index_oldest_row_seconds", "nothing happens any more"),
    ("evergraph_index_pending_nodes", "nothing happens any more"),
    ("evergraph_learner_lag_events", "the learner has caught up"),
    ("evergraph_train_nonfinite_total", "every loss is finite"),
    ("evergraph_train_storage_failures_total", "the disk works"),
    ("evergraph_checkpoint_failures_total", "the disk works"),
    ("evergraph_snapshot_failures_total", "the disk works"),
    ("evergraph_device_degraded", "no GPU is asked for"),
];

/// A daemon that has met everything that a push can bring: good events, one sent twice, one that is late, one
/// that is refused, one body that is too large, one
/// connection that speaks something else.
struct AtWork {
    daemon: Process,
    time: Cell<i64>,
    _data: tempfile::TempDir,
}

impl AtWork {
    fn start() -> Self {
        let data = tempfile::tempdir().unwrap();
        let daemon = Start::in_dir(data.path())
            .set("stream.allowed_lateness=100")
            .set("learner.batch_events=20")
            .set("checkpoint.interval_seconds=1")
            .set("snapshot.interval_seconds=1")
            .set("api.body_bytes_max=100000")
            .set("memory.graph_bytes_max=1048576")
            .set("learner.gate.every_batches=1")
            .set("learner.gate.window_batches=1")
            .set("learner.gate.promote_seconds=0")
            .set("learner.replay.ratio=1")
            .set("index.bytes_max=1073741824")
            .ready();
        let at_work = Self { daemon, time: Cell::new(1_000), _data: data };
        at_work.push_good_events();
        let twice = json!({"src": "u1", "dst": "i1", "ts": 1_200, "idempotency_key": "once"});
        for event in [&twice, &twice, &json!({"src": "u1", "dst": "i2", "ts": 7})] {
            assert_eq!(at_work.push(event), 200, "{event}");
        }
        assert_eq!(at_work.push(&json!({"src": "u1", "dst": "i2"})), 422, "an event without a time");
        assert_eq!(at_work.push(&json!("x".repeat(200_000))), 413);
        at_work.daemon.get("/v1/nodes/u1").unwrap();
        at_work.daemon.post("/v1/admin/checkpoints", "application/json", "").unwrap();
        at_work.say_nonsense();
        at_work.daemon.wait_until("trained, measured and caught up", |status| {
            let learner = &status["learner"];
            learner["average_precision"].is_number()
                && learner["mrr"].is_number()
                && learner["lag_events"] == 0
        });
        for (path, body) in [
            ("/v1/embeddings", json!({ "nodes": ["u1"] })),
            ("/v1/links/score", json!({ "pairs": [{ "src": "u1", "dst": "i1" }] })),
            ("/v1/links/top", json!({ "src": ["u1"] })),
            ("/v1/nodes/similar", json!({ "nodes": ["u1"] })),
        ] {
            at_work.daemon.post(path, "application/json", &body.to_string()).unwrap();
        }
        let saved = Instant::now() + PATIENCE;
        let is_saved = |text: &str| {
            let written =
                ["checkpoint", "snapshot"].map(|what| format!("evergraph_{what}_duration_seconds_count 0"));
            written.iter().all(|none| !text.contains(none.as_str()))
        };
        while !is_saved(&at_work.daemon.metrics()) {
            assert!(Instant::now() < saved, "no checkpoint and snapshot were written");
            at_work.push_good_events();
            std::thread::sleep(Duration::from_millis(100));
        }
        at_work
    }

    fn push(&self, event: &Value) -> u16 {
        self.daemon.post("/v1/events", "application/json", &event.to_string()).unwrap().0
    }

    /// Sends what is no HTTP, and waits until that is noticed.
    fn say_nonsense(&self) {
        let mut stream = TcpStream::connect(self.daemon.url("").replace("http://", "")).unwrap();
        stream.write_all(b"\0\x01 nonsense\r\n\r\n").unwrap();
        drop(stream.read_to_end(&mut Vec::new()));
    }

    /// 100 events in the order of time.
    fn push_good_events(&self) {
        let from = self.time.replace(self.time.get() + 100);
        let event = |t: i64| json!({"src": format!("u{}", t % 7), "dst": format!("i{}", t % 5), "ts": t});
        assert_eq!(self.push(&(from..from + 100).map(event).collect()), 200);
    }
}

#[test]
fn a_scrape_of_a_daemon_at_work_has_a_value_for_every_metric_and_promtool_has_nothing_to_say() {
    let at_work = AtWork::start();
    at_work.daemon.wait_until("caught up", |status| status["learner"]["lag_events"] == 0);
    let deadline = Instant::now() + PATIENCE;
    while ["pending_nodes", "oldest_row_seconds"]
        .iter()
        .any(|name| !at_work.daemon.metrics().contains(&format!("\nevergraph_index_{name} 0\n")))
    {
        assert!(Instant::now() < deadline, "the index does not settle");
    }
    let response = crate::process::client().get(at_work.daemon.url("/metrics")).call().unwrap();
    let kind = response.headers()["content-type"].to_str().unwrap().to_owned();
    assert!(kind.starts_with("text/plain; version=0.0.4"), "{kind}");
    let text = response.into_body().read_to_string().unwrap();
    let absent: BTreeSet<String> = ABSENT.iter().map(|(name, _)| (*name).to_owned()).collect();
    let types = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next());
    let scraped: BTreeSet<String> = types.map(str::to_owned).collect();
    assert_eq!(scraped, inventory().difference(&absent).cloned().collect());

    let samples = text.lines().filter(|line| !line.starts_with('#'));
    let valued = samples.filter(|line| line.rsplit(' ').next().is_some_and(|value| value != "0"));
    let valued: BTreeSet<&str> = valued.map(|line| family(line.split(['{', ' ']).next().unwrap())).collect();
    let ours = scraped.into_iter().filter(|name| name.starts_with("evergraph_"));
    let zero: BTreeSet<String> = ours.filter(|name| !valued.contains(name.as_str())).collect();
    assert_eq!(zero, ZERO.iter().map(|(name, _)| (*name).to_owned()).collect(), "left at zero");
    let route = "\nevergraph_http_request_duration_seconds_count{route=\"/v1/nodes/{key}\"} 1\n";
    assert!(text.contains(route), "routes are templates, never keys");
    if let Some(output) = run("promtool", &["check", "metrics"], Path::new("/"), text.as_bytes()) {
        assert!(output.status.success() && output_text(&output).is_empty(), "{}", output_text(&output));
    }
}

/// A Prometheus server that scrapes a daemon five times a second and evaluates our alerts every second.
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
            "global: {{ scrape_interval: 200ms, evaluation_interval: 1s }}\nrule_files: [alerts.yml]\nscrape_configs:\n\
             - job_name: evergraph\n  static_configs: [{{ targets: [\"{target}\"] }}]\n"
        );
        fs::copy(file("deploy/alerts.yml"), folder.path().join("alerts.yml")).unwrap();
        fs::write(folder.path().join("prometheus.yml"), config).unwrap();
        let address = format!("127.0.0.1:{}", crate::ports::free());
        let started = Command::new("prometheus")
            .args(["--config.file=prometheus.yml", "--storage.tsdb.path=data", "--log.level=error"])
            .arg(format!("--web.listen-address={address}"))
            .current_dir(folder.path())
            .stdout(Stdio::null())
            .spawn();
        match started {
            Ok(child) => Some(Self { child, url: format!("http://{address}"), _folder: folder }),
            Err(error) => {
                skipped(&format!("prometheus cannot be run here ({error}); install it to check this too"));
                None
            }
        }
    }

    /// How many series `query` has now; `None` while the server does not answer.
    fn count(&self, query: &str) -> Option<usize> {
        let coded: String = query.bytes().map(|byte| format!("%{byte:02X}")).collect();
        self.ask(&format!("query?query={coded}"))?["result"].as_array().map(Vec::len)
    }

    /// The `data` of an answer of the server's interface; `None` while it does not answer.
    fn ask(&self, path: &str) -> Option<Value> {
        let text = crate::process::client().get(format!("{}/api/v1/{path}", self.url)).call().ok()?;
        let mut response: Value = serde_json::from_str(&text.into_body().read_to_string().ok()?).ok()?;
        Some(response["data"].take())
    }

    /// Every alert that the server knows, once it has evaluated all of them.
    fn alerts(&self) -> Vec<Value> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let rules = self.ask("rules").and_then(|data| data["groups"][0]["rules"].as_array().cloned());
            match rules {
                Some(rules) if rules.iter().all(|rule| rule["health"] != "unknown") => return rules,
                rules => assert!(Instant::now() < deadline, "alerts were not evaluated: {rules:?}"),
            }
            std::thread::sleep(Duration::from_millis(200));
        }
    }
}

impl Drop for Scraper {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn every_panel_and_every_alert_finds_data_of_a_daemon_at_work() {
    let at_work = AtWork::start();
    let address = at_work.daemon.url("").replace("http://", "");
    let Some(scraper) = Scraper::start(&address) else { return };
    let deadline = Instant::now() + PATIENCE;
    let scraped = "count_over_time(evergraph_build_info[1m]) > 10";
    while scraper.count(scraped).is_none_or(|series| series == 0) {
        assert!(Instant::now() < deadline, "Prometheus took no ten samples within a minute");
        at_work.push_good_events();
        at_work.daemon.get("/v1/nodes/u1").unwrap();
        std::thread::sleep(Duration::from_millis(100));
    }
    for query in queries() {
        let filled = query.replace("$__rate_interval", "1m").replace("$job", ".+").replace("$instance", ".+");
        let shown = scraper.count(&filled).is_some_and(|series| series > 0);
        let excused = metrics_in(&query).iter().any(|name| ABSENT.iter().any(|(absent, _)| absent == name));
        assert_ne!(shown, excused, "data, or none where there is an excuse: {query}");
    }
    let alerts = scraper.alerts();
    assert!(alerts.len() >= 20, "{}", alerts.len());
    for alert in alerts {
        let (name, query) = (alert["name"].as_str().unwrap(), alert["query"].as_str().unwrap());
        assert_eq!(alert["health"], "ok", "{name}: {alert}");
        assert_ne!(alert["state"], "firing", "{name}: the daemon is well: {alert}");
        // What it compares is there to be compared; only then is it empty because all is well.
        for selector in selectors(query) {
            let found = scraper.count(&selector).is_some_and(|series| series > 0);
            let excused = UNSEEN.iter().any(|(part, _)| selector.contains(part));
            assert_ne!(found, excused, "{name}: series, or none where there is an excuse: {selector}");
        }
    }
}

/// Parts of selectors of alerts that find nothing at a daemon at work, each with the reason.
const UNSEEN: &[(&str, &str)] = &[
    ("evergraph_backup_last_success_timestamp_seconds", "there is no backup"),
    ("evergraph_ingest_lag_records", "there is no Kafka here"),
    ("code=~\"5..\"", "no request has failed"),
    ("evergraph_http_certificate_expiry_timestamp_seconds", "it speaks no HTTPS"),
];

/// The metrics that a query reads, each with the braces behind it.
fn selectors(query: &str) -> BTreeSet<String> {
    let mut rest = query;
    let mut found = BTreeSet::new();
    for name in metrics_in(query) {
        rest = rest.split_once(&name).unwrap().1;
        let braces =
            rest.starts_with('{').then(|| rest.split_inclusive('}').next()).flatten().unwrap_or_default();
        found.insert(format!("{name}{braces}"));
    }
    found
}

#[test]
fn a_daemon_that_is_not_ready_fails_the_health_check_of_compose() {
    let compose = read("deploy/compose.yaml");
    assert!(compose.contains(r#"test: ["CMD", "/usr/bin/evergraph", "status", "--ready"]"#));
    let live = Live::start();
    let probe = |flags: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_evergraph"));
        let output =
            command.args(["status", "--url", &format!("http://{}", live.address)]).args(flags).output();
        let output = output.unwrap();
        (output.status.success(), output_text(&output))
    };
    let (ready, text) = probe(&["--ready"]);
    assert!(ready && text.contains("\"daemon\""), "{text}");
    live.state.health.set(Health::DAEMON, State::Failed, "starting");
    let (ready, text) = probe(&["--ready"]);
    assert!(!ready && text.contains("starting") && text.contains("not ready"), "{text}");
    assert!(probe(&[]).0, "the status of a daemon that starts can be read");
}

#[test]
fn what_containers_mount_and_set_exists() {
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
    let places = [
        "deploy/compose.yaml",
        "deploy/compose.cluster.yaml",
        "deploy/Dockerfile",
        "deploy/evergraph.service",
        "deploy/kubernetes/evergraph.yaml",
    ];
    let settings = places.map(read).concat();
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
