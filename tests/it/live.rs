//! A live server on a port of its own, over a small graph, and a client that keeps every status.

use std::io::Read;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread::JoinHandle;
use std::time::Duration;

use evergraph::api::{
    self, ApiLimits, ApiState, CheckpointResponse, Decisions, Feed, Health, Info, LogCutResponse,
    LogLevelResponse, LogStatus, ModelResponse, Operator, OperatorError, ReloadResponse, SeekRequest,
    SeekResponse, SnapshotResponse, SourceResponse, State, StatusDocument, TimeUnit, TrainingResponse,
};
use evergraph::device::Device;
use evergraph::event::{
    BodyFormat, EdgeBatch, EdgeId, EventTime, Intake, IntakeError, IntakeResponse, NodeKey, Receipt,
    RejectedEvent, SubmitError,
};
use evergraph::feature::FeatureStore;
use evergraph::graph::{GraphOptions, GraphStore};
use evergraph::metrics::Metrics;
use evergraph::model::{Model, TgnOptions, Weights};
use evergraph::serving::{NodeStates, Progress, QueryEngine, Stores};
use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::oneshot;

use crate::contract;

/// A server that runs until it is dropped.
pub struct Live {
    pub address: SocketAddr,
    pub state: ApiState,
    pub intake: Arc<ScriptedIntake>,
    /// What pages of the console show, once a test produces it.
    pub feed: Arc<Feed>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// A response of the server.
#[derive(Debug)]
pub struct Response {
    pub status: u16,
    pub headers: ureq::http::HeaderMap,
    pub body: Vec<u8>,
}

impl Response {
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.text()))
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }

    /// The word for programs, after checking the shape that every error has.
    pub fn error_type(&self) -> String {
        let body = self.json();
        assert!(body["error"].as_str().is_some_and(|text| !text.is_empty()), "{body}");
        assert!(body["details"].is_object(), "{body}");
        assert_eq!(body["request_id"].as_str(), self.header("x-request-id"), "{body}");
        assert_eq!(body.as_object().map(serde_json::Map::len), Some(4), "{body}");
        body["error_type"].as_str().unwrap_or_default().to_owned()
    }
}

/// Threads for the work on requests: few, so that a request that keeps one without need is noticed.
pub const BLOCKING_THREADS: usize = 4;

/// Length of the embeddings of [`small_engine`].
const DIMENSION: usize = 8;

/// Three events between `alice`, `bob` and 7, in the graph and learned, and weights nobody has trained.
pub fn small_engine() -> QueryEngine {
    with_model(engine_without_model())
}

/// The same, with edge rows that cannot be read while `fault` is set.
pub fn engine_on_disk(fault: Arc<AtomicBool>) -> QueryEngine {
    let mut engine = engine_without_model();
    engine.stores.edge_features = Arc::new(FeatureStore::with_fault(2, fault));
    with_model(engine)
}

fn with_model(engine: QueryEngine) -> QueryEngine {
    let options = TgnOptions {
        memory_dim: 4,
        time_dim: 4,
        embedding_dim: DIMENSION,
        fanout: 3,
        edge_feature_dim: engine.stores.edge_features.dimension(),
        node_feature_dim: 0,
        ..TgnOptions::default()
    };
    engine.publish(Weights::of(Model::new(options, 1, &Device::Cpu).unwrap(), 1)).unwrap();
    engine
}

/// The same graph, before the first weights were published.
pub fn engine_without_model() -> QueryEngine {
    let rows = || FeatureStore::new(0);
    let stores = Stores::new(GraphStore::new(GraphOptions::default()), rows(), rows());
    let engine = QueryEngine::new(stores, Arc::new(NodeStates::new(4)), Arc::new(Progress::new()));
    for (src, dst, time) in [("alice", "bob", 10), ("alice", "7", 20), ("bob", "7", 30)] {
        add_edge(&engine, src, dst, time);
    }
    engine.progress.set_learned(EdgeId(3));
    engine
}

/// Puts an edge into the graph as the appender would; the learner does not see it.
pub fn add_edge(engine: &QueryEngine, src: &str, dst: &str, time: i64) -> EdgeId {
    let first = engine.stores.graph.applied();
    let mut batch = EdgeBatch { first, ..EdgeBatch::default() };
    let [src, dst] = [src, dst].map(|key| engine.stores.keys.intern(&NodeKey::from(key)));
    batch.push_edge(src, dst, EventTime(time));
    engine.progress.set_durable(batch.end());
    engine.stores.graph.apply(&batch).unwrap();
    engine.progress.set_indexed(batch.end());
    engine.progress.set_watermark(EventTime(time));
    first
}

/// Takes bodies of the form `["src", "dst", time]` a line, or the words of a script instead.
pub struct ScriptedIntake {
    engine: Arc<QueryEngine>,
    pub next: Mutex<Option<Result<IntakeResponse, IntakeError>>>,
    pub formats: Mutex<Vec<BodyFormat>>,
    /// The idempotency keys of requests.
    pub keys: Mutex<Vec<Option<String>>>,
    /// While a test holds this, no push gets a response.
    pub hang: Mutex<()>,
}

impl Intake for ScriptedIntake {
    fn submit(
        &self,
        body: &[u8],
        format: BodyFormat,
        key: Option<&str>,
    ) -> Result<IntakeResponse, IntakeError> {
        self.formats.lock().push(format);
        self.keys.lock().push(key.map(str::to_owned));
        drop(self.hang.lock());
        if let Some(scripted) = self.next.lock().take() {
            return scripted;
        }
        let text = String::from_utf8_lossy(body);
        assert!(!text.contains("panic"), "a defect, on demand");
        let mut positions = Vec::new();
        let mut rejected = Vec::new();
        for (index, line) in text.lines().enumerate() {
            match serde_json::from_str::<(String, String, i64)>(line) {
                Ok((src, dst, time)) => positions.push(add_edge(&self.engine, &src, &dst, time)),
                Err(error) => rejected.push(RejectedEvent {
                    index,
                    reason: "malformed_json",
                    detail: error.to_string(),
                }),
            }
        }
        let end = EdgeId(self.engine.freshness().indexed_position);
        let first = positions.first().copied().unwrap_or(end);
        let receipt = Receipt { first, end, accepted: positions.len() as u64, duplicates: 0 };
        Ok(IntakeResponse { receipt, rejected })
    }
}

/// Does as if it did what it is asked for; knows the source `http` and the level `info`.
struct ScriptedOperator;

impl Operator for ScriptedOperator {
    fn checkpoint(&self, _: Duration) -> Result<CheckpointResponse, OperatorError> {
        Ok(CheckpointResponse { name: "3.checkpoint".into(), position: 3, model_version: 1 })
    }

    fn set_paused(&self, source: &str, paused: bool, by: &str) -> Result<SourceResponse, OperatorError> {
        if source != "http" {
            return Err(OperatorError::UnknownSource {
                requested: source.into(),
                known: vec!["http".into()],
            });
        }
        let (by, since_unix_ms) = (paused.then(|| by.to_owned()), paused.then_some(1));
        Ok(SourceResponse { source: source.into(), paused, by, since_unix_ms })
    }

    fn seek(&self, source: &str, request: &SeekRequest) -> Result<SeekResponse, OperatorError> {
        if source == "http" {
            return Err(OperatorError::Invalid("http has no positions".into()));
        }
        Ok(SeekResponse { source: source.into(), done: !request.dry_run, partitions: Vec::new() })
    }

    fn reload(&self) -> Result<ReloadResponse, OperatorError> {
        Ok(ReloadResponse::default())
    }

    fn log_level(&self) -> LogLevelResponse {
        LogLevelResponse { level: "info".into(), configured: "info".into() }
    }

    fn set_log_level(&self, level: &str) -> Result<LogLevelResponse, OperatorError> {
        match level {
            "info" => Ok(self.log_level()),
            "full" => Err(OperatorError::Failed("no room".into())),
            _ => Err(OperatorError::Invalid(format!("{level} is no level"))),
        }
    }
}

impl Decisions for ScriptedOperator {
    fn promote(&self, version: Option<u64>, _: Duration) -> Result<ModelResponse, OperatorError> {
        match version {
            None | Some(7) => Ok(ModelResponse {
                model_version: 7,
                replaced_version: Some(5),
                candidate_version: 7,
                position: 3,
                memory_restored: false,
            }),
            Some(13) => Err(OperatorError::Unsettled("no checkpoint keeps it".into())),
            Some(version) => Err(OperatorError::Invalid(format!("version {version} is not at hand"))),
        }
    }

    fn roll_back(&self, _: Duration) -> Result<ModelResponse, OperatorError> {
        Err(OperatorError::Invalid("there is no previous version to roll back to".into()))
    }

    fn set_training_paused(&self, paused: bool, by: &str) -> Result<TrainingResponse, OperatorError> {
        let (by, since_unix_ms) = (paused.then(|| by.to_owned()), paused.then_some(1));
        Ok(TrainingResponse { paused, by, since_unix_ms })
    }

    fn snapshot(&self, _: Duration) -> Result<SnapshotResponse, OperatorError> {
        Ok(SnapshotResponse { name: "3.snapshot".into(), position: 3 })
    }

    fn cut_log(&self, _: Duration) -> Result<LogCutResponse, OperatorError> {
        Ok(LogCutResponse { first_position: 2, bytes: 1 })
    }
}

/// The intake's result when the log refuses.
pub fn refused(error: SubmitError) -> Result<IntakeResponse, IntakeError> {
    Err(IntakeError::Refused(error))
}

/// The status of a daemon that does nothing else.
fn small_status(engine: &QueryEngine) -> StatusDocument {
    let log = LogStatus { bytes: 1, ..LogStatus::default() };
    StatusDocument { log, freshness: engine.freshness().into(), ..StatusDocument::default() }
}

impl Live {
    pub fn start() -> Self {
        Self::with(|_| {})
    }

    /// A server over [`small_engine`], with changes.
    pub fn with(change: impl FnOnce(&mut ApiState)) -> Self {
        let engine = Arc::new(small_engine());
        let intake = Arc::new(ScriptedIntake {
            engine: Arc::clone(&engine),
            next: Mutex::default(),
            formats: Mutex::default(),
            keys: Mutex::default(),
            hang: Mutex::default(),
        });
        let (health, about) = (Health::new(), Arc::clone(&engine));
        health.set(Health::DAEMON, State::Ok, "running");
        let mut state = ApiState {
            engine,
            intake: Some(Arc::clone(&intake) as Arc<dyn Intake>),
            operator: Arc::new(ScriptedOperator),
            metrics: Metrics::new(),
            health,
            keys: None,
            allowed_hosts: Vec::new(),
            access_log: false,
            bulk: api::Bulk::start(0).unwrap(),
            limits: ApiLimits::default(),
            info: Info {
                version: "0.1.0".into(),
                device: "cpu".into(),
                model: "tgn".into(),
                embedding_dimension: DIMENSION,
                edge_feature_dimension: 2,
                node_feature_dimension: 0,
                time_unit: Some(TimeUnit::Milliseconds),
                started_unix_ms: 1,
            },
            status: Arc::new(move || small_status(&about)),
        };
        change(&mut state);
        Self::serve(state, intake)
    }

    fn serve(state: ApiState, intake: Arc<ScriptedIntake>) -> Self {
        let (stop, stopped) = oneshot::channel();
        let (send_address, address) = std::sync::mpsc::channel();
        let routes = api::Routes::new(state.clone());
        let feed = routes.feed();
        let (router, limits) = (routes.merged(), state.limits);
        let metrics = state.metrics.clone();
        let thread = std::thread::spawn(move || {
            let mut builder = tokio::runtime::Builder::new_multi_thread();
            let builder = builder.worker_threads(2).max_blocking_threads(BLOCKING_THREADS);
            let runtime = builder.enable_all().build().unwrap();
            runtime.block_on(async {
                let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
                send_address.send(listener.local_addr().unwrap()).unwrap();
                let stopped = async { drop(stopped.await) };
                api::serve(api::plain(listener, &limits), router, limits, metrics, stopped).await;
            });
        });
        let (address, stop, thread) = (address.recv().unwrap(), Some(stop), Some(thread));
        Self { address, state, intake, feed, stop, thread }
    }

    /// Begins the shutdown and returns at once.
    pub fn begin_stop(&mut self) {
        self.feed.end();
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(());
        }
    }

    /// Waits until the server has returned.
    pub fn join(&mut self) {
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }

    pub fn get(&self, path: &str) -> Response {
        self.request("GET", path, &[], b"")
    }

    pub fn post(&self, path: &str, body: &Value) -> Response {
        self.send_json(path, body.to_string().as_bytes())
    }

    pub fn send_json(&self, path: &str, body: &[u8]) -> Response {
        self.request("POST", path, &[("content-type", "application/json")], body)
    }

    pub fn send_lines(&self, path: &str, body: &str) -> Response {
        self.request("POST", path, &[("content-type", "application/x-ndjson")], body.as_bytes())
    }

    /// Sends a request; every response is checked against the OpenAPI document.
    pub fn request(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Response {
        let agent: ureq::Agent = ureq::Agent::config_builder()
            .timeout_global(Some(crate::process::PATIENCE * 3))
            .http_status_as_error(false)
            .allow_non_standard_methods(true)
            .max_redirects(0)
            .build()
            .into();
        let mut request =
            ureq::http::Request::builder().method(method).uri(format!("http://{}{path}", self.address));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let response = if body.is_empty() && method != "POST" {
            agent.run(request.body(()).unwrap())
        } else {
            agent.run(request.body(body).unwrap())
        };
        let (parts, body) = response.unwrap_or_else(|error| panic!("{method} {path}: {error}")).into_parts();
        let mut bytes = Vec::new();
        body.into_reader().read_to_end(&mut bytes).unwrap();
        let status = parts.status.as_u16();
        let plain = plain(&parts.headers, &bytes);
        if let Err(why) = contract::check(method, path, &parts.headers, status, &plain) {
            panic!("the response is not as documented: {why}");
        }
        Response { status, headers: parts.headers, body: bytes }
    }

    /// The value of one series of `/metrics`, by the text before the value.
    pub fn metric(&self, series: &str) -> Option<f64> {
        let text = self.get("/metrics").text();
        text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' ')?.parse().ok())
    }
}

/// A body as it was before compression.
pub fn plain(headers: &ureq::http::HeaderMap, body: &[u8]) -> Vec<u8> {
    if headers.get("content-encoding").is_none_or(|encoding| encoding != "gzip") {
        return body.to_vec();
    }
    let mut plain = Vec::new();
    flate2::read::GzDecoder::new(body).read_to_end(&mut plain).unwrap();
    plain
}

impl Drop for Live {
    fn drop(&mut self) {
        self.begin_stop();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            eprintln!("the server of this test panicked");
        }
    }
}

/// The latest event time of [`small_engine`].
pub const LATEST: EventTime = EventTime(30);
