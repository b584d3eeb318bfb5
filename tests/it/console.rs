//! The console as a program meets it: files and their headers, the stream of figures, what it costs.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use evergraph::api::{Feed, Health, Keys, State};
use ring::digest::{SHA256, digest};
use serde_json::Value;

use crate::live::Live;
use crate::process::{PATIENCE, Process, Start};

/// Lets a server take new figures at every tick, until it ends or the test does.
pub fn produce(feed: &Arc<Feed>, every: Duration) {
    let feed = Arc::clone(feed);
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(feed.produce(every));
    });
}

/// An open stream of figures.
struct Stream(BufReader<Box<dyn std::io::Read + Send>>);

impl Stream {
    fn open(address: &str, key: Option<&str>) -> Result<Self, u16> {
        let agent: ureq::Agent = ureq::Agent::config_builder()
            // Of the whole stream.
            .timeout_global(Some(PATIENCE * 10))
            .http_status_as_error(false)
            .build()
            .into();
        let mut request = agent.get(format!("http://{address}/ui/live"));
        if let Some(key) = key {
            request = request.header("authorization", format!("Bearer {key}"));
        }
        let response = request.call().unwrap();
        if response.status() != 200 {
            return Err(response.status().as_u16());
        }
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        assert_eq!(response.headers()["cache-control"], "no-store");
        Ok(Self(BufReader::new(Box::new(response.into_body().into_reader()))))
    }

    /// The next event, with its data; `None` once the stream has ended.
    fn next(&mut self) -> Option<(String, Value)> {
        let mut line = || {
            let mut line = String::new();
            self.0.read_line(&mut line).ok().filter(|read| *read > 0).map(|_| line.trim_end().to_owned())
        };
        let (event, data, end) = (line()?, line()?, line()?);
        assert_eq!(end, "");
        let event = event.strip_prefix("event: ").unwrap().to_owned();
        Some((event, serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap()))
    }

    /// The data of the next `status`.
    fn status(&mut self) -> Value {
        std::iter::from_fn(|| self.next()).find(|(event, _)| event == "status").unwrap().1
    }
}

#[test]
fn files_come_with_a_policy_and_only_where_they_are_not_known() {
    let live = Live::start();
    for (path, kind) in [
        ("/ui/", "text/html; charset=utf-8"),
        ("/ui/index.html", "text/html; charset=utf-8"),
        ("/ui/js/main.js", "text/javascript; charset=utf-8"),
        ("/ui/console.css", "text/css; charset=utf-8"),
        ("/ui/icon.svg", "image/svg+xml"),
        ("/ui/vendor/preact.LICENSE", "text/plain; charset=utf-8"),
    ] {
        let file = live.get(path);
        assert_eq!((file.status, file.header("content-type")), (200, Some(kind)), "{path}");
        let policy = file.header("content-security-policy").unwrap();
        for part in
            ["default-src 'none'", "script-src 'self'", "connect-src 'self'", "frame-ancestors 'none'"]
        {
            assert!(policy.contains(part), "{policy}");
        }
        assert!(!policy.contains("unsafe") && !policy.contains("http"), "{policy}");
        assert_eq!(file.header("x-content-type-options"), Some("nosniff"), "{path}");
        let tag = file.header("etag").unwrap();
        let again = live.request("GET", path, &[("if-none-match", tag)], b"");
        assert_eq!((again.status, again.body.len(), again.header("etag")), (304, 0, Some(tag)), "{path}");
        assert_eq!(live.request("GET", path, &[("if-none-match", "\"other\"")], b"").status, 200, "{path}");
    }
    for missing in [
        "/ui/nothing.js",
        "/ui/js",
        "/ui/../Cargo.toml",
        "/ui/%2e%2e/Cargo.toml",
        "/ui/vendor/SHA256SUMS",
        "/ui/%ff",
    ] {
        let refused = live.get(missing);
        assert_eq!((refused.status, refused.error_type().as_str()), (404, "unknown_route"), "{missing}");
    }
}

#[test]
fn browsers_are_led_to_the_console_and_programs_are_not() {
    let live = Live::start();
    let browser = live.request("GET", "/", &[("accept", "text/html,application/xhtml+xml,*/*;q=0.8")], b"");
    assert_eq!((browser.status, browser.header("location")), (303, Some("ui/")));
    let without_slash = live.get("/ui");
    assert_eq!((without_slash.status, without_slash.header("location")), (303, Some("ui/")));
    for accept in ["*/*", "application/json"] {
        let program = live.request("GET", "/", &[("accept", accept)], b"");
        assert_eq!((program.status, program.error_type().as_str()), (404, "unknown_route"), "{accept}");
    }
    let without = Live::with(|state| state.limits.console_pages = 0);
    for path in ["/ui/", "/ui", "/ui/js/main.js", "/ui/live", "/"] {
        let missing = without.request("GET", path, &[("accept", "text/html")], b"");
        assert_eq!((missing.status, missing.error_type().as_str()), (404, "unknown_route"), "{path}");
    }
}

#[test]
fn libraries_are_those_that_were_fetched() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("console/vendor");
    let sums = std::fs::read_to_string(folder.join("SHA256SUMS")).unwrap();
    let mut listed: Vec<&str> = Vec::new();
    for (sum, name) in sums.lines().map(|line| line.split_once("  ").unwrap()) {
        let found = digest(&SHA256, &std::fs::read(folder.join(name)).unwrap());
        let found: String = found.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(found, sum, "{name} was changed: run scripts/console.sh vendor");
        listed.push(name);
    }
    let files =
        std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut files: Vec<String> = files.filter(|name| name != "SHA256SUMS").collect();
    files.sort();
    listed.sort_unstable();
    assert_eq!(files, listed);
    let text =
        |path: &str| std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap();
    let (script, notice) = (text("scripts/console.sh"), text("NOTICE").to_lowercase());
    let packages = script.lines().filter_map(|line| line.trim().strip_prefix('"')?.split_once(" sha512-"));
    let named: Vec<&str> = packages.map(|(package, _)| package).collect();
    assert_eq!(named.len(), 3, "{named:?}");
    for package in named {
        assert!(notice.contains(package), "NOTICE lacks {package}, which is in the binary");
    }
}

#[test]
fn figures_need_a_key_where_the_daemon_has_keys_and_files_do_not() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("keys");
    std::fs::write(&file, "read who aaaaaaaaaaaaaaaa\nwrite shop bbbbbbbbbbbbbbbb\n").unwrap();
    let live = Live::with(|state| state.keys = Some(Arc::new(Keys::open(&file).unwrap())));
    let address = live.address.to_string();
    assert_eq!(live.get("/ui/").status, 200);
    assert_eq!(live.get("/ui/live").status, 401);
    let of = |key| Stream::open(&address, Some(key)).map(|_| ());
    assert_eq!(
        (of("aaaaaaaaaaaaaaaa"), of("bbbbbbbbbbbbbbbb"), of("cccccccccccccccc")),
        (Ok(()), Err(403), Err(401))
    );
    let foreign = Live::start().request("GET", "/ui/live", &[("origin", "http://elsewhere.example")], b"");
    assert_eq!(foreign.error_type(), "foreign_page");
}

#[test]
fn a_stream_begins_with_the_curves_and_goes_on_with_the_status() {
    let live = Live::start();
    produce(&live.feed, Duration::from_millis(20));
    std::thread::sleep(Duration::from_millis(200));
    let mut stream = Stream::open(&live.address.to_string(), None).unwrap();
    let (event, history) = stream.next().unwrap();
    assert_eq!(event, "history");
    let points = |name: &str| history[name].as_array().unwrap().len();
    assert!(points("at_unix_ms") >= 3, "{history}");
    for column in
        ["stored_events", "learned_events", "lag_events", "average_precision", "edgebank_average_precision"]
    {
        assert_eq!(points(column), points("at_unix_ms"), "{column}");
    }
    let (first, expected) = (stream.status(), live.get("/v1/status").json());
    assert_eq!(first["status"]["freshness"], expected["freshness"]);
    assert_eq!(first["health"]["checks"]["daemon"]["state"], "ok");
    assert_eq!(first["restoring"], Value::Null);
    // The first figures are the page's own; those of all pages come after them.
    let mut last = stream.status();
    for _ in 0..3 {
        let next = stream.status();
        assert!(next["at_unix_ms"].as_i64() > last["at_unix_ms"].as_i64());
        last = next;
    }
    live.state.health.set(Health::DAEMON, State::Failed, Health::STARTING);
    live.state.metrics.log.replay_position.set(5);
    live.state.metrics.log.replay_end_position.set(9);
    let restoring =
        std::iter::from_fn(|| Some(stream.status())).take(20).find(|found| !found["restoring"].is_null());
    assert_eq!(restoring.unwrap()["restoring"], serde_json::json!({ "position": 5, "end_position": 9 }));
}

#[test]
fn streams_are_bounded_and_a_closed_page_gives_its_place_back() {
    let live = Live::with(|state| state.limits.console_pages = 2);
    let address = live.address.to_string();
    produce(&live.feed, Duration::from_millis(10));
    let [one, _two] = [(); 2].map(|()| Stream::open(&address, None).unwrap());
    let refused = live.get("/ui/live");
    assert_eq!((refused.status, refused.error_type().as_str()), (503, "no_place_for_page"));
    let words = refused.json()["error"].as_str().unwrap().to_owned();
    assert!(words.contains("all 2 places") && words.contains("api.console_pages_max"), "{words}");
    // An alert fires about load that is refused; one page more is none.
    let overloaded = live.metric("evergraph_http_rejected_total{reason=\"overloaded\"}");
    assert_eq!(overloaded.unwrap_or_default(), 0.0);
    assert_eq!(live.get("/v1/status").status, 200, "others are served");
    drop(one);
    let until = Instant::now() + Duration::from_secs(10);
    while Stream::open(&address, None).is_err() {
        assert!(Instant::now() < until, "the place of a page that is gone stays taken");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_page_that_opens_during_a_stop_hears_of_it() {
    let live = Live::start();
    live.feed.end();
    let refused = live.get("/ui/live");
    assert_eq!((refused.status, refused.error_type().as_str()), (503, "shutting_down"));
}

#[test]
fn a_stop_ends_the_streams_of_open_pages() {
    let mut live = Live::start();
    produce(&live.feed, Duration::from_secs(3600));
    let mut stream = Stream::open(&live.address.to_string(), None).unwrap();
    stream.status();
    let begun = Instant::now();
    live.begin_stop();
    let late = std::iter::from_fn(|| stream.next()).count();
    assert!(late <= 1, "{late} events after the end: only the first figures may have been on their way");
    live.join();
    assert!(
        begun.elapsed() < Duration::from_secs(4),
        "an open page held the server for {:?}",
        begun.elapsed()
    );
}

#[test]
fn a_map_places_nodes_by_their_embeddings() {
    let live = Live::start();
    let map = live.get("/v1/map").json();
    let names: Vec<String> =
        map["nodes"].as_array().unwrap().iter().map(|node| node["node"].to_string()).collect();
    assert_eq!((names.len(), &map["nodes_total"]), (3, &3.into()), "{map}");
    for name in ["\"alice\"", "\"bob\"", "7"] {
        assert!(names.contains(&name.to_owned()), "{names:?}");
    }
    let shares: Vec<f64> = map["explained"].as_array().unwrap().iter().filter_map(Value::as_f64).collect();
    assert!(
        shares[0] >= shares[1] && (shares.iter().sum::<f64>() - 1.0).abs() < 1e-6,
        "three points lie in a plane"
    );
    // So their distances are those of the embeddings.
    let keys = serde_json::json!({ "nodes": ["alice", "bob", 7] });
    let found = live.post("/v1/embeddings", &keys).json();
    let vector = |place: usize| -> Vec<f64> {
        let entry = &found["embeddings"][place]["embedding"];
        entry.as_array().unwrap().iter().filter_map(Value::as_f64).collect()
    };
    let place = |name: &str| -> Vec<f64> {
        let node = &map["nodes"][names.iter().position(|found| found == name).unwrap()];
        ["x", "y"].map(|axis| node[axis].as_f64().unwrap()).to_vec()
    };
    let apart = |one: &[f64], other: &[f64]| -> f64 {
        one.iter().zip(other).map(|(one, other)| (one - other).powi(2)).sum::<f64>().sqrt()
    };
    for ((i, one), (j, other)) in [((0, "\"alice\""), (1, "\"bob\"")), ((1, "\"bob\""), (2, "7"))] {
        let (expected, found) = (apart(&vector(i), &vector(j)), apart(&place(one), &place(other)));
        assert!((expected - found).abs() < 1e-4, "{one} and {other}: {expected}, {found} on the map");
    }
    assert_eq!(live.get("/v1/map?limit=2").json()["nodes"].as_array().unwrap().len(), 2);
    for (query, status) in [("limit=0", 422), ("limit=5001", 413), ("size=3", 422), ("limit=x", 422)] {
        assert_eq!(live.get(&format!("/v1/map?{query}")).status, status, "{query}");
    }
}

/// Time that a process has computed.
pub fn cpu_seconds(pid: u32) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit_once(") ").unwrap().1.split(' ').collect();
    let ticks: f64 = [11, 12].map(|field: usize| fields[field].parse::<f64>().unwrap()).iter().sum();
    ticks / 100.0
}

#[test]
#[ignore = "measures: needs a machine that does little else"]
fn fifty_open_pages_cost_two_percent_of_a_core_at_most() {
    const SECONDS: u64 = 8;
    let folder = tempfile::tempdir().unwrap();
    let process: Process = Start::in_dir(folder.path()).ready();
    let events: String =
        (0..10_000).map(|i| format!("{{\"src\":{},\"dst\":{},\"ts\":{i}}}\n", i % 900, i % 77)).collect();
    assert!(process.push_or_dies(&events, 10_000));
    process.wait_until("learned", |status| status["learner"]["applied_position"] == 10_000);
    std::thread::sleep(Duration::from_secs(3));
    let share = || {
        let before = cpu_seconds(process.pid());
        std::thread::sleep(Duration::from_secs(SECONDS));
        (cpu_seconds(process.pid()) - before) / SECONDS as f64
    };
    let alone = share();
    let address = process.url("").trim_start_matches("http://").to_owned();
    for _ in 0..50 {
        let mut stream = Stream::open(&address, None).unwrap();
        std::thread::spawn(move || while stream.next().is_some() {});
    }
    std::thread::sleep(Duration::from_secs(2));
    let with_pages = share();
    println!("{:.2} % of a core without pages, {:.2} % with 50", 100.0 * alone, 100.0 * with_pages);
    assert!(with_pages - alone <= 0.02, "{alone} {with_pages}");
}
