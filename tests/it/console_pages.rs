//! The console as a person meets it: its pages in a browser, on a daemon.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use evergraph::api::{GateDocument, Health, LearnerDocument, State, StatusDocument};
use serde_json::{Value, json};

use crate::browser::{Browser, FOREIGN_NAME};
use crate::console::produce;
use crate::live::Live;
use crate::process::{Process, Start};

/// Every page, by its address and what its title says.
const PAGES: [(&str, &str); 6] = [
    ("", "Overview"),
    ("node", "Node"),
    ("node/u-1", "Node"),
    ("map", "Map"),
    ("events", "Events"),
    ("operations", "Operations"),
];

const ENTER: &str = "\u{e007}";
const ESCAPE: &str = "\u{e00c}";
const TAB: &str = "\u{e004}";

/// Figures of an hour.
const HOUR: u64 = 3600;

/// A daemon that has learned a few hundred events, and does nothing else.
fn daemon(folder: &Path) -> Process {
    let small = ["model.memory_dimension=16", "model.time_dimension=16", "model.embedding_dimension=16"];
    let start = small.iter().fold(Start::in_dir(folder), |start, setting| start.set(setting));
    let process = start.set("index.bytes_max=67108864").set("stream.time_unit=seconds").ready();
    let event = |i: u64| {
        format!("{{\"src\":\"u-{}\",\"dst\":\"i-{}\",\"ts\":{}}}\n", i % 40, i * 7 % 23, 1_700_000_000 + i)
    };
    let events: String = (0..600).map(event).collect();
    assert!(process.push_or_dies(&events, 600));
    process.wait_until("learned", |status| status["learner"]["applied_position"] == 600);
    process
}

/// A number as pages write it.
fn shown(value: &Value) -> String {
    let text = value.as_u64().unwrap().to_string();
    let groups: Vec<&str> =
        text.as_bytes().rchunks(3).rev().map(|group| std::str::from_utf8(group).unwrap()).collect();
    groups.join(",")
}

/// Waits until the overview shows the figures of a status: the page follows within seconds, and a version that was
/// published in between is on one of the two only.
fn wait_for_figures(browser: &Browser, process: &Process) {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let status = process.status();
        let learner = &status["learner"];
        let fixed = |name: &str| format!("{:.4}", learner[name].as_f64().unwrap_or(f64::NAN));
        let expected = [
            ("#graph .value", shown(&status["graph"]["edges"])),
            ("#lag .value", shown(&learner["lag_events"])),
            ("#version .value", learner["model_version"].to_string()),
            ("#quality .value", fixed("average_precision")),
            ("#loss .value", fixed("loss")),
            ("#device", status["device"].as_str().unwrap().to_owned()),
        ];
        let edgebank = ("#quality .figure-note", fixed("edgebank_average_precision"));
        let other = expected.iter().find(|(selector, figure)| browser.text(selector) != *figure);
        let other = other.or_else(|| (!browser.text(edgebank.0).contains(&edgebank.1)).then_some(&edgebank));
        let Some((selector, figure)) = other else { return };
        assert!(Instant::now() < deadline, "{selector} is {:?}, not {figure}", browser.text(selector));
        std::thread::sleep(Duration::from_millis(200));
    }
}

#[test]
fn figures_are_those_of_the_status_and_a_pushed_event_appears() {
    let Some(browser) = Browser::start() else { return };
    let folder = tempfile::tempdir().unwrap();
    let process = daemon(folder.path());
    browser.open(&process.url("/"));
    browser.wait("document.querySelector('#pulse')?.innerText.includes('Live')");
    wait_for_figures(&browser, &process);
    let sources = browser.text("[aria-label=Sources] tbody");
    assert!(sources.contains("http") && sources.contains("600"), "{sources}");
    browser.wait("document.querySelectorAll('.uplot canvas').length === 4");

    // By keyboard alone, from the link to the page to the event that is there.
    browser.script("location.hash = '#/events'");
    browser.type_into("[name=src]", "u-1");
    browser.press(&format!("{TAB}newcomer{TAB}1700009999{ENTER}"));
    browser.wait("document.querySelector('.visible') !== null");
    let steps = browser.text(".pushed");
    assert!(steps.contains("position 600") && steps.contains("visible"), "{steps}");
    assert_eq!(process.status()["log"]["durable_position"], 601);
    browser.wait("document.querySelector('.pushed p')?.innerText.includes('after')");
    // What is rejected says why.
    browser.script("document.querySelector('[name=features]').value = '1 2'");
    browser.type_into("[name=src]", ENTER);
    browser.wait("/edge has 2 features/.test(document.querySelector('.pushed .notice.bad')?.innerText)");
    browser.script("location.hash = '#/node/newcomer'");
    assert_eq!(browser.text("#degree .value"), "1");
    let edges = browser.text("[aria-label='Newest edges'] tbody");
    assert!(edges.contains("u-1") && edges.contains("from neighbor"), "{edges}");
    // Its one edge, by the arrow keys and Enter. A canvas has its height once its points are drawn: before, no key
    // leads to any.
    browser.wait("document.querySelector('.drawing canvas').style.height");
    browser.script("document.querySelector('.drawing canvas').focus()");
    browser.press("\u{e014}");
    browser.wait("document.querySelector('.tip')?.innerText.includes('u-1')");
    browser.press(ENTER);
    browser.wait("location.hash === '#/node/u-1'");
    // What was pushed is still there.
    browser.script("location.hash = '#/events'");
    browser.wait("document.querySelectorAll('.pushed').length === 2");
    browser.script("location.hash = '#/node/newcomer'");
    let like = browser.text("[aria-label='Most similar nodes'] tbody");
    assert!(like.contains("i-") || like.contains("u-"), "{like}");
    browser.script("location.hash = '#/node/nobody'");
    browser.wait("document.body.innerText.includes('There is no node')");
    assert_nothing_went_wrong(&browser, &process, &["404", "422"]);
}

/// No request has left the daemon, and nothing was logged but refusals that a test caused.
fn assert_nothing_went_wrong(browser: &Browser, process: &Process, expected: &[&str]) {
    let mine = process.url("/");
    let foreign: Vec<String> =
        browser.requested().into_iter().filter(|url| !url.starts_with(&mine)).collect();
    assert!(foreign.iter().all(|url| url.starts_with("data:") || url.starts_with("chrome:")), "{foreign:?}");
    let is_expected = |entry: &Value| {
        let text = entry["message"].as_str().unwrap();
        expected.iter().any(|word| text.contains(word))
    };
    let logged: Vec<Value> = browser.logged().into_iter().filter(|entry| !is_expected(entry)).collect();
    assert!(logged.is_empty(), "{logged:#?}");
}

fn axe() -> Option<String> {
    let file =
        Path::new(env!("CARGO_MANIFEST_DIR")).join(".cache/tools/axe/axe_playwright_python/axe.min.js");
    let text = std::fs::read_to_string(&file).ok();
    if text.is_none() {
        let required = std::env::var_os("EVERGRAPH_BROWSER").is_some();
        assert!(!required, "EVERGRAPH_BROWSER requires {}: scripts/console.sh axe", file.display());
        crate::skip::skipped("accessibility of the console is not judged: run scripts/console.sh axe");
    }
    text
}

/// Fails where axe finds something in the page as it is now.
fn assert_is_for_everybody(browser: &Browser, axe: &str, what: &str) {
    if browser.script("return window.axe === undefined") == true {
        browser.script(axe);
    }
    let found = browser.asynchronous(
        "const done = arguments[arguments.length - 1];
         axe.run(document, { resultTypes: ['violations'] }).then(
           ({ violations }) => done(violations.map(({ id, impact, help, nodes }) =>
             ({ id, impact, help, nodes: nodes.map(({ html, failureSummary }) => html + ' ' + failureSummary) }))),
           (error) => done([String(error)]));",
    );
    assert_eq!(found, json!([]), "{what}: {found:#}");
}

/// What a page has to show before it is judged.
fn settle(browser: &Browser, title: &str) {
    browser.wait(&format!("document.querySelector('h1')?.innerText.startsWith({title:?})"));
    browser.wait("document.querySelector('#pulse').innerText.includes('Live')");
    browser.wait("!/Loading|Computing embeddings/.test(document.querySelector('main').innerText)");
}

#[test]
fn pages_are_for_everybody_and_fit_small_screens() {
    let Some(browser) = Browser::start() else { return };
    let Some(axe) = axe() else { return };
    let folder = tempfile::tempdir().unwrap();
    let process = daemon(folder.path());
    for (width, dark) in [(1280, false), (360, true)] {
        browser.appear(width, 900, dark);
        browser.open(&process.url("/ui/"));
        for (page, title) in PAGES {
            browser.script(&format!("location.hash = '#/{page}'"));
            settle(&browser, title);
            let wide = browser.script("return document.documentElement.scrollWidth");
            assert!(wide.as_u64() <= Some(u64::from(width)), "{page} is {wide} wide at {width}");
            assert_is_for_everybody(&browser, &axe, &format!("/{page}, {width} wide, dark: {dark}"));
        }
    }
    assert_nothing_went_wrong(&browser, &process, &[]);
}

#[test]
fn a_key_is_asked_for_kept_in_the_tab_and_operates() {
    let Some(browser) = Browser::start() else { return };
    let folder = tempfile::tempdir().unwrap();
    let keys = folder.path().join("keys");
    std::fs::write(&keys, "read who aaaaaaaaaaaaaaaa\nadmin me bbbbbbbbbbbbbbbb\n").unwrap();
    let process =
        Start::in_dir(&folder.path().join("data")).set(&format!("api.keys_file={}", keys.display())).ready();
    browser.open(&process.url("/ui/#/operations"));
    let axe = axe();
    let judge = |what: &str| axe.iter().for_each(|axe| assert_is_for_everybody(&browser, axe, what));
    browser.wait("document.querySelector('[type=password]') !== null");
    judge("the form for a key");
    browser.type_into("[type=password]", &format!("schl\u{fc}ssel-\u{3b1}{ENTER}"));
    browser.wait("document.querySelector('.notice.bad')?.innerText.includes('printable ASCII')");
    browser.type_into("[type=password]", &format!("\u{e009}a\u{e000}cccccccccccccccc{ENTER}"));
    browser.wait("document.querySelector('.notice.bad')?.innerText.includes('unknown to this daemon')");
    browser.type_into("[type=password]", &format!("\u{e009}a\u{e000}aaaaaaaaaaaaaaaa{ENTER}"));
    let ask = |button: &str| {
        browser.click(button);
        browser.wait("document.querySelector('dialog')?.open");
    };
    // A key to read does not operate, and the page says so.
    ask("#source-http");
    browser.click("#confirm");
    browser.wait("document.querySelector('#outcome').innerText.includes('role')");
    browser.script(
        "window.isOld = true; sessionStorage.setItem('evergraph-key:/', 'bbbbbbbbbbbbbbbb'); location.reload()",
    );
    browser.wait("!window.isOld && document.querySelector('#source-http') !== null");
    // What is not confirmed does not happen.
    ask("#source-http");
    judge("a question");
    assert!(browser.text("dialog").contains("until it is resumed"));
    browser.press(ESCAPE);
    browser.wait("document.querySelector('dialog') === null");
    browser.wait("document.activeElement.id === 'source-http'");
    ask("#source-http");
    browser.click("#confirm");
    browser.wait("document.querySelector('#outcome').innerText.includes('source http is paused')");
    browser.wait("document.querySelector('#source-http').innerText === 'Resume'");
    let paused = browser.text("main");
    assert!(paused.contains("paused by me"), "{paused}");
    ask("#source-http");
    browser.click("#confirm");
    browser.wait("document.querySelector('#source-http').innerText === 'Pause'");
    // Without an event there is nothing to keep, and no button for it.
    assert_eq!(browser.script("return document.querySelector('#checkpoint').disabled"), true);
    let event = crate::process::client()
        .post(process.url("/v1/events"))
        .header("authorization", "Bearer bbbbbbbbbbbbbbbb");
    event.header("content-type", "application/json").send(r#"{"src":1,"dst":2,"ts":3}"#).unwrap();
    browser.wait("document.body.innerText.includes('as of position 1')");
    ask("#checkpoint");
    browser.click("#confirm");
    browser.wait("document.querySelector('#outcome').innerText.includes('durable')");
    let kept =
        browser.script("return [localStorage.length, document.cookie, Object.keys(sessionStorage).join()]");
    assert_eq!(kept, json!([0, "", "evergraph-key:/"]));
    assert_nothing_went_wrong(&browser, &process, &["401", "403"]);
}

#[test]
fn a_page_says_when_it_is_stale_and_when_the_daemon_restores() {
    let Some(browser) = Browser::start() else { return };
    let mut live = Live::start();
    browser.open(&format!("http://{}/ui/", live.address));
    // A connection on which nothing comes is given up.
    browser.script(
        "const open = fetch; window.opened = 0; window.fetch = (...of) => (window.opened++, open(...of))",
    );
    browser.wait("window.opened > 0");
    produce(&live.feed, Duration::from_millis(100));
    browser.wait("document.querySelector('#pulse')?.innerText === 'Live'");
    live.state.metrics.log.replay_position.set(250);
    live.state.metrics.log.replay_end_position.set(1000);
    live.state.health.set(Health::DAEMON, State::Failed, Health::STARTING);
    browser.wait("document.querySelector('#pulse').innerText === 'Restoring'");
    assert!(browser.text("main").contains("250 of 1,000 events, 25.0 %"));
    live.state.health.set(Health::DAEMON, State::Ok, "running");
    live.state.health.set("log", State::Degraded, "the disk is full");
    browser.wait("document.querySelector('#pulse').innerText === 'Live, degraded'");
    assert!(browser.text("main").contains("log, degraded: the disk is full"));
    live.state.health.set("log", State::Failed, "the disk is gone");
    browser.wait("document.querySelector('#pulse').innerText === 'Live, failing'");
    assert!(browser.text("main .notice.bad").contains("log, failed: the disk is gone"));
    live.begin_stop();
    live.join();
    browser.wait("document.querySelector('#pulse').innerText.startsWith('Stale')");
    browser.wait("document.querySelector('#pulse').innerText.includes('no figures for')");
    assert_eq!(browser.text("#pulse [role=status]"), "Stale", "an age is not announced every second");
}

/// Changes what pages take for the figures: `change` is a statement about `found`, one figure after the other.
fn change_figures(browser: &Browser, change: &str) {
    browser.script(&format!(
        "const parse = JSON.parse; window.taken = 0;
         JSON.parse = (text) => {{
           const found = parse(text);
           if (found?.at_unix_ms && found.status) {{ {change}; window.taken += 1; }}
           return found;
         }};"
    ));
}

#[test]
fn rates_are_of_the_last_seconds_however_far_apart_the_points_of_curves_are() {
    let Some(browser) = Browser::start() else { return };
    let folder = tempfile::tempdir().unwrap();
    let process = daemon(folder.path());
    browser.open(&process.url("/ui/"));
    browser.wait("document.querySelector('#pulse')?.innerText === 'Live'");
    // The curves of a page that has been open for a day: they are there, and their points are far apart.
    browser.wait("document.querySelector('[aria-label=Throughput] .legend') !== null");
    let set = browser.asynchronous(
        "const done = arguments[arguments.length - 1];
         const widen = ({ live }) => { live.history.stride = 128; done(true); };
         import('/ui/js/live.js').then(widen, (error) => done(`${error}`));",
    );
    assert_eq!(set, true);
    let events: String = (0..500)
        .map(|i| format!("{{\"src\":\"u-1\",\"dst\":\"i-1\",\"ts\":{}}}\n", 1_700_001_000 + i))
        .collect();
    assert!(process.push_or_dies(&events, 500));
    let value = "document.querySelector('#events-rate .value').innerText";
    browser.wait(&format!("Number({value}) > 0"));
    let begun = Instant::now();
    browser.wait(&format!("{value} === '0'"));
    assert!(begun.elapsed() < Duration::from_secs(9), "the rate fell after {:?}", begun.elapsed());
    let legend = browser.text("[aria-label=Throughput] .legend");
    assert!(legend.starts_with("stored\n0\n"), "{legend}");
    assert_nothing_went_wrong(&browser, &process, &[]);
}

#[test]
fn a_page_under_a_foreign_name_says_why_it_is_refused_and_asks_for_no_key() {
    let Some(browser) = Browser::start() else { return };
    let live = Live::start();
    browser.open(&format!("http://{FOREIGN_NAME}:{}/ui/", live.address.port()));
    browser.wait("document.querySelector('#pulse')?.innerText === 'Not connected'");
    let main = browser.text("main");
    assert!(main.contains(FOREIGN_NAME) && main.contains("api.allowed_hosts"), "{main}");
    assert_eq!(browser.script("return document.querySelector('[type=password]')"), Value::Null);
}

#[test]
fn a_stream_that_cannot_be_read_is_closed_and_an_upgrade_loads_the_new_page() {
    let Some(browser) = Browser::start() else { return };
    // With one place, a connection that stays open would keep the next one out.
    let live = Live::with(|state| state.limits.console_pages = 1);
    produce(&live.feed, Duration::from_millis(100));
    browser.open(&format!("http://{}/ui/", live.address));
    browser.wait("document.querySelector('#pulse')?.innerText === 'Live'");
    change_figures(&browser, "if (!window.broke) { window.broke = true; throw new Error('unreadable'); }");
    browser.wait("window.broke && window.taken > 3");
    change_figures(&browser, "window.isOld = true; found.status.version = 'next'");
    browser.wait("!window.isOld && window.taken === undefined && document.querySelector('#pulse') !== null");
    browser.wait("document.querySelector('#pulse').innerText === 'Live'");
}

#[test]
fn an_event_without_a_time_follows_the_latest_one_and_the_first_needs_one() {
    const LATEST: i64 = 1_700_000_000_000_000_001;
    let Some(browser) = Browser::start() else { return };
    let folder = tempfile::tempdir().unwrap();
    let process = Start::in_dir(folder.path()).ready();
    browser.open(&process.url("/ui/#/events"));
    browser.wait("document.querySelector('[name=time]')?.required");
    let push = |src: &str| {
        browser.type_into("[name=src]", src);
        browser.press(&format!("{TAB}shop{ENTER}"));
    };
    push("first");
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(process.status()["log"]["durable_position"], 0, "no unit of time is guessed");
    // Nanoseconds, which the numbers of a page are too coarse for.
    assert!(process.push_or_dies(&format!("{{\"src\":\"a\",\"dst\":\"b\",\"ts\":{LATEST}}}\n"), 1));
    browser.wait("document.querySelector('[name=time]').required === false");
    browser.type_into("[name=src]", ENTER);
    browser.wait("document.querySelector('.visible')");
    let (status, found) = process.get("/v1/nodes/first/neighbors?limit=1").unwrap();
    let time = found["neighbors"][0]["time"].as_i64().unwrap();
    assert!(status == 200 && time > LATEST && time < LATEST + 1_000, "{found}");
    assert_nothing_went_wrong(&browser, &process, &[]);
}

#[test]
fn a_roll_back_to_another_version_than_it_named_does_not_happen() {
    let Some(browser) = Browser::start() else { return };
    let previous = Arc::new(AtomicU64::new(3));
    let shown = Arc::clone(&previous);
    let live = Live::with(|state| {
        state.status = Arc::new(move || {
            let gate = GateDocument {
                promoted: 2,
                held: 0,
                rolled_back: 0,
                previous_version: Some(shown.load(Ordering::Relaxed)),
                anchor_version: None,
                last: None,
            };
            let learner =
                LearnerDocument { model_version: 4, gate: Some(gate), ..LearnerDocument::default() };
            StatusDocument { learner, ..StatusDocument::default() }
        });
    });
    produce(&live.feed, Duration::from_millis(100));
    browser.open(&format!("http://{}/ui/", live.address));
    browser.script(
        "sessionStorage.setItem('evergraph-key:/', 'aaaaaaaaaaaaaaaa'); location.hash = '#/operations'",
    );
    browser.click("#roll-back");
    assert!(browser.text("dialog").contains("Serve version 3 again?"));
    previous.store(2, Ordering::Relaxed);
    browser.click("#confirm");
    let outcome = "document.querySelector('#outcome').innerText";
    browser.wait(&format!(
        "{outcome}.includes('Nothing was done') && {outcome}.includes('the previous one is 2')"
    ));
}

#[test]
fn the_api_reference_works_under_its_policy() {
    let Some(browser) = Browser::start() else { return };
    let live = Live::start();
    browser.open(&format!("http://{}/docs/", live.address));
    browser.click(".opblock-summary");
    browser.wait("document.querySelector('.opblock-body')");
    let logged = browser.logged();
    assert!(logged.is_empty(), "{logged:#?}");
}

/// As many figures as an hour brings, in some seconds.
#[test]
fn a_page_that_is_open_for_an_hour_does_not_grow() {
    let Some(browser) = Browser::start() else { return };
    let live = Live::start();
    browser.open(&format!("http://{}/ui/", live.address));
    let received = || browser.script("return window.evergraphReceived ?? 0").as_u64().unwrap();
    // Counted where the page reads the stream.
    let counting = "window.evergraphReceived = 0;
        const parse = JSON.parse; JSON.parse = (text) => { const found = parse(text);
        if (found?.at_unix_ms && found.status) window.evergraphReceived += 1; return found; };";
    browser.script(counting);
    produce(&live.feed, Duration::from_millis(4));
    // Curves are full after 720 figures; from then on nothing is added.
    let wait_for = |figures: u64| {
        let deadline = Instant::now() + Duration::from_secs(120);
        while received() < figures {
            assert!(Instant::now() < deadline, "{} figures of {figures} have come", received());
            std::thread::sleep(Duration::from_millis(50));
        }
    };
    wait_for(1_000);
    let before = browser.heap_bytes();
    wait_for(1_000 + HOUR);
    let after = browser.heap_bytes();
    println!("{before} bytes, {after} after {HOUR} figures more");
    assert!(after < before + 1_000_000.0, "{before} bytes have become {after} after {HOUR} figures");
    let nodes = browser.script("return document.querySelectorAll('*').length").as_u64().unwrap();
    assert!(nodes < 600, "{nodes} elements");
}

/// The edits of Wikipedia: who, which page, when.
fn stream(data: &Path) -> Vec<(String, String, i64)> {
    let file = std::fs::File::open(data.join("wikipedia.csv.gz")).unwrap();
    let rows = csv::Reader::from_reader(flate2::read::GzDecoder::new(file)).into_records().map(|row| {
        let row = row.unwrap();
        let time = row[2].parse::<f64>().unwrap();
        (format!("editor-{}", &row[0]), format!("page-{}", &row[1]), time as i64)
    });
    rows.collect()
}

/// A screenshot of the whole page as it is now.
fn take(browser: &Browser, dark: bool, path: &Path) {
    const HEIGHT_MAX: u64 = 1_600;
    let height = browser.script("return document.documentElement.scrollHeight").as_u64().unwrap();
    browser.appear(1280, u32::try_from(height.min(HEIGHT_MAX)).unwrap(), dark);
    // Charts take the new size and colors.
    std::thread::sleep(Duration::from_secs(2));
    browser.save_screenshot(path);
    browser.appear(1280, 900, false);
}

#[test]
#[ignore = "makes the pictures of docs/console.md: make screenshots DATA=folder"]
fn pictures_of_the_pages_are_taken() {
    const EVENTS: usize = 40_000;
    const EVENTS_PER_SECOND: usize = 400;
    // Nothing is promised here, so `make test`, which has no stream, has nothing to miss.
    let Some(data) = std::env::var_os("DATA").map(PathBuf::from) else { return };
    let folder = tempfile::tempdir().unwrap();
    let images = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/images");
    let start = Start::in_dir(&folder.path().join("data")).set("index.bytes_max=268435456");
    let start = start.set("learner.gate.promote_seconds=15").set("memory.graph_bytes_max=16777216");
    let process = start.set("stream.time_unit=seconds").ready();
    let browser = Browser::start().expect("pictures need a browser");
    browser.appear(1280, 900, false);
    browser.open(&process.url("/ui/"));
    for second in stream(&data)[..EVENTS].chunks(EVENTS_PER_SECOND) {
        let begun = Instant::now();
        let line = |(src, dst, time): &(String, String, i64)| {
            format!("{}\n", json!({ "src": src, "dst": dst, "ts": time }))
        };
        assert!(process.push_or_dies(&second.iter().map(line).collect::<String>(), second.len() as u64));
        std::thread::sleep(Duration::from_secs(1).saturating_sub(begun.elapsed()));
    }
    for (name, dark) in [("console-overview", false), ("console-overview-dark", true)] {
        take(&browser, dark, &images.join(format!("{name}.png")));
    }
    for (page, title) in
        [("node/editor-286", "Node"), ("map", "Map"), ("events", "Events"), ("operations", "Operations")]
    {
        browser.script(&format!("location.hash = '#/{page}'"));
        settle(&browser, title);
        if title == "Events" {
            browser.type_into("[name=src]", "editor-1185");
            browser.press(&format!("{TAB}page-8418{ENTER}"));
            browser.wait("document.querySelector('.pushed p')");
        }
        take(&browser, false, &images.join(format!("console-{}.png", title.to_lowercase())));
    }
}
