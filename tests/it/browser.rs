//! A browser for tests: Debian's Chromium through its driver, by the WebDriver protocol, which is JSON over HTTP.
//!
//! Only what the tests of the console need, over the HTTP client that other tests use: the crates for the protocol bring
//! an HTTP stack of their own and 21 packages, for the same few requests. One browser runs at a time: it takes a few
//! hundred megabytes and a core.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use base64::Engine as _;
use serde_json::{Value, json};

/// How long a page may take to become what a test waits for.
const PATIENCE: Duration = Duration::from_secs(30);

/// The member that refers to an element, by the WebDriver standard.
const ELEMENT: &str = "element-6066-11e4-a52e-4f735466cecf";

/// A name that leads to this machine, and that no daemon without keys takes for its own.
pub const FOREIGN_NAME: &str = "evergraph.example";

/// No name leads anywhere but this machine's: what tries to leave it fails, and is in the log.
const ARGUMENTS: [&str; 9] = [
    "--headless=new",
    "--no-sandbox",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
    "--hide-scrollbars",
    "--force-color-profile=srgb",
    "--host-resolver-rules=MAP evergraph.example 127.0.0.1, MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
];

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// A browser with one tab.
pub struct Browser {
    agent: ureq::Agent,
    driver: Child,
    address: String,
    session: String,
    _alone: MutexGuard<'static, ()>,
}

impl Browser {
    /// Starts one; `None`, and says so, where there is no Chromium or no driver of it.
    pub fn start() -> Option<Self> {
        let there =
            |name: &str| Command::new(name).arg("--version").output().is_ok_and(|said| said.status.success());
        if !there("chromedriver") || !there("chromium") {
            let required = std::env::var_os("EVERGRAPH_BROWSER").is_some();
            assert!(!required, "EVERGRAPH_BROWSER requires chromium and chromedriver: scripts/setup.sh test");
            crate::skip::skipped(
                "the console is not tested in a browser: scripts/setup.sh test installs chromium",
            );
            return None;
        }
        let alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        let mut command = Command::new("chromedriver");
        let mut driver =
            command.arg("--port=0").stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let said = BufReader::new(driver.stdout.take().unwrap());
        let port = said.lines().map_while(Result::ok).find_map(|line| {
            let port = line.split("successfully on port ").nth(1)?;
            Some(port.trim_end_matches('.').to_owned())
        });
        let address = format!("http://127.0.0.1:{}", port.expect("the driver says where it listens"));
        // A browser that hangs fails its test.
        let agent = ureq::Agent::config_builder()
            .timeout_global(Some(PATIENCE * 3))
            .http_status_as_error(false)
            .build()
            .into();
        let mut browser = Self { agent, driver, address, session: String::new(), _alone: alone };
        let wanted = json!({ "alwaysMatch": {
            "browserName": "chrome",
            "goog:loggingPrefs": { "browser": "ALL", "performance": "ALL" },
            "goog:chromeOptions": { "args": ARGUMENTS },
        }});
        let session = browser.send("POST", "/session", &json!({ "capabilities": wanted }));
        browser.session = format!("/session/{}", session["sessionId"].as_str().unwrap());
        Some(browser)
    }

    fn send(&self, method: &str, path: &str, body: &Value) -> Value {
        let request = ureq::http::Request::builder().method(method).uri(format!("{}{path}", self.address));
        let request = request.header("content-type", "application/json");
        let sent = match method {
            "POST" => self.agent.run(request.body(body.to_string()).unwrap()),
            _ => self.agent.run(request.body(()).unwrap()),
        };
        let mut response = sent.unwrap_or_else(|error| panic!("{method} {path}: {error}"));
        let found = response.body_mut().with_config().limit(64 << 20).read_to_string().unwrap();
        let mut found: Value = serde_json::from_str(&found).unwrap();
        assert_eq!(response.status(), 200, "{method} {path} {body}: {}", found["value"]["message"]);
        found["value"].take()
    }

    fn command(&self, method: &str, path: &str, body: &Value) -> Value {
        self.send(method, &format!("{}{path}", self.session), body)
    }

    /// Opens a page.
    pub fn open(&self, url: &str) {
        self.command("POST", "/url", &json!({ "url": url }));
    }

    /// What a script, the body of a function, returns.
    pub fn script(&self, script: &str) -> Value {
        self.command("POST", "/execute/sync", &json!({ "script": script, "args": [] }))
    }

    /// What a script calls its last argument with.
    pub fn asynchronous(&self, script: &str) -> Value {
        self.command("POST", "/execute/async", &json!({ "script": script, "args": [] }))
    }

    /// Waits until an expression has a value that counts as true, and returns it.
    pub fn wait(&self, expression: &str) -> Value {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let found = self.script(&format!("return ({expression});"));
            let counts = match &found {
                Value::Null => false,
                Value::Bool(found) => *found,
                Value::String(text) => !text.is_empty(),
                Value::Number(number) => number.as_f64() != Some(0.0),
                Value::Array(_) | Value::Object(_) => true,
            };
            if counts {
                return found;
            }
            let page = || self.script("return document.body.innerText");
            assert!(Instant::now() < deadline, "not on the page: {expression}; it shows: {}", page());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// The text of the element that a selector finds, once there is one.
    pub fn text(&self, selector: &str) -> String {
        let found = self.wait(&format!("document.querySelector({selector:?})?.innerText"));
        found.as_str().unwrap().to_owned()
    }

    fn element(&self, selector: &str) -> String {
        self.wait(&format!("document.querySelector({selector:?}) !== null"));
        let found = self.command("POST", "/element", &json!({ "using": "css selector", "value": selector }));
        found[ELEMENT].as_str().unwrap().to_owned()
    }

    /// Clicks on an element as a person does: it has to be visible.
    pub fn click(&self, selector: &str) {
        self.command("POST", &format!("/element/{}/click", self.element(selector)), &json!({}));
    }

    /// Types into an element; `\u{e007}` is the enter key.
    pub fn type_into(&self, selector: &str, text: &str) {
        self.command("POST", &format!("/element/{}/value", self.element(selector)), &json!({ "text": text }));
    }

    /// Presses keys where the focus is.
    pub fn press(&self, keys: &str) {
        let each = keys.chars().flat_map(|key| {
            ["keyDown", "keyUp"].map(|kind| json!({ "type": kind, "value": key.to_string() }))
        });
        let keyboard = json!({ "type": "key", "id": "keyboard", "actions": each.collect::<Vec<_>>() });
        self.command("POST", "/actions", &json!({ "actions": [keyboard] }));
    }

    /// A command of the browser's own protocol.
    pub fn devtools(&self, command: &str, parameters: &Value) -> Value {
        self.command("POST", "/goog/cdp/execute", &json!({ "cmd": command, "params": parameters }))
    }

    /// The size of the window, and whether the system is dark.
    pub fn appear(&self, width: u32, height: u32, dark: bool) {
        let size = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": false });
        self.devtools("Emulation.setDeviceMetricsOverride", &size);
        let scheme = if dark { "dark" } else { "light" };
        let scheme = json!({ "features": [{ "name": "prefers-color-scheme", "value": scheme }] });
        self.devtools("Emulation.setEmulatedMedia", &scheme);
    }

    /// What the page and the browser have logged since the last call.
    pub fn logged(&self) -> Vec<Value> {
        self.command("POST", "/se/log", &json!({ "type": "browser" })).as_array().unwrap().clone()
    }

    /// The addresses that were requested since the last call.
    pub fn requested(&self) -> Vec<String> {
        let events = self.command("POST", "/se/log", &json!({ "type": "performance" }));
        let url = |event: &Value| {
            let event: Value = serde_json::from_str(event["message"].as_str()?).ok()?;
            let message = &event["message"];
            let is_request = message["method"] == "Network.requestWillBeSent";
            is_request.then(|| message["params"]["request"]["url"].as_str().unwrap().to_owned())
        };
        events.as_array().unwrap().iter().filter_map(url).collect()
    }

    /// Bytes that the page's JavaScript holds, once garbage is collected.
    pub fn heap_bytes(&self) -> f64 {
        self.devtools("HeapProfiler.collectGarbage", &json!({}));
        self.devtools("Runtime.getHeapUsage", &json!({}))["usedSize"].as_f64().unwrap()
    }

    /// What the window shows, as a PNG file.
    pub fn save_screenshot(&self, path: &Path) {
        let image = self.command("GET", "/screenshot", &json!({}));
        let image = base64::engine::general_purpose::STANDARD.decode(image.as_str().unwrap()).unwrap();
        std::fs::write(path, image).unwrap();
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // The driver ends its browser when the session ends, and not always when it is killed itself.
        if !self.session.is_empty() {
            let _ = self.agent.delete(format!("{}{}", self.address, self.session)).call();
        }
        let _ = self.driver.kill();
        let _ = self.driver.wait();
    }
}
