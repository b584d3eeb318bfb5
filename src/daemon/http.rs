//! The HTTP API on its own runtimes, the only async code of the daemon: one for clients, and where health checks and
//! metrics have their own address, another one for these, which clients cannot keep busy.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::num::NonZero;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use axum::Router;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::operator::Operating;
use super::sources::Sources;
use super::tiers::Budgets;
use super::{Parts, StatusSource, cluster, unix_ms};
use crate::api::{
    self, ApiLimits, ApiState, Bulk, Feed, Health, Info, Keys, OPERATIONS_MAX, Routes, State, Tls,
};
use crate::config::Config;
use crate::device::wake_promptly;
use crate::metrics::Metrics;

/// How long open connections may take to end.
const STOP_LIMIT: Duration = Duration::from_secs(10);
/// Threads of the API on a machine with one core: one that is busy must not be the only one.
const THREADS_MIN: usize = 2;
/// Interval of checks for changed files.
const SECRETS_PERIOD: Duration = Duration::from_millis(500);

/// How often pages of the console show new figures.
const CONSOLE_PERIOD: Duration = Duration::from_secs(1);

/// Most files that the daemon has open besides connections: segments of the log, checkpoints, stores, sources.
const FILES_FOR_OTHERS: u64 = 512;

/// The running interface.
pub(super) struct Server {
    runtime: Runtime,
    /// Of the separate address.
    operations: Option<Runtime>,
    address: SocketAddr,
    endpoints: Vec<Endpoint>,
    console: Arc<Feed>,
}

/// Keys and certificate, which are reloaded when their files change.
#[derive(Default)]
struct Secrets {
    /// The keys, if configured.
    keys: Option<Arc<Keys>>,
    /// The certificate, if HTTPS is configured.
    tls: Option<Arc<Tls>>,
    /// The last reported problem of each.
    last_reported: BTreeMap<&'static str, String>,
    /// Why a changed file is not used.
    unusable: BTreeMap<&'static str, String>,
}

impl Secrets {
    fn open(config: &Config) -> Result<Self> {
        let given = |path: &Path| !path.as_os_str().is_empty();
        let api = &config.api;
        let keys = given(&api.keys_file).then(|| Keys::open(&api.keys_file).map(Arc::new)).transpose()?;
        let tls = || Tls::open(&api.tls_certificate, &api.tls_key).map(Arc::new);
        Ok(Self { keys, tls: given(&api.tls_certificate).then(tls).transpose()?, ..Self::default() })
    }

    /// Checks periodically whether keys and certificate have changed or expired, as long as the runtime lives.
    async fn watch(mut self, health: Arc<Health>, metrics: Arc<Metrics>) {
        loop {
            let (health, metrics) = (Arc::clone(&health), Arc::clone(&metrics));
            // A disk that hangs blocks this thread only.
            let refreshed = tokio::task::spawn_blocking(move || {
                self.refresh(&health, &metrics);
                self
            });
            let Ok(secrets) = refreshed.await else { return };
            self = secrets;
            tokio::time::sleep(SECRETS_PERIOD).await;
        }
    }

    fn refresh(&mut self, health: &Health, metrics: &Metrics) {
        if let Some(keys) = &self.keys {
            let outcome = keys.refresh().map_err(|error| error.to_string());
            self.update("keys", outcome, None, health);
        }
        if let Some(tls) = self.tls.clone() {
            let outcome = tls.refresh().map_err(|error| error.to_string());
            let not_after = tls.not_after();
            if let Some(seconds) = not_after {
                metrics.http.certificate_expiry.with_label_values::<&str>(&[]).set(seconds);
            }
            self.update(
                "certificate",
                outcome,
                not_after.and_then(|end| expired(end, unix_ms() / 1000)),
                health,
            );
        }
    }

    /// Records the outcome of a reload, and reports a problem when it changes.
    fn update(
        &mut self,
        what: &'static str,
        outcome: Result<bool, String>,
        expired: Option<String>,
        health: &Health,
    ) {
        match outcome {
            Ok(false) => {}
            Ok(true) => {
                tracing::info!(what, "a file of the HTTP API was reloaded");
                self.unusable.remove(what);
            }
            Err(error) => {
                tracing::error!(
                    what,
                    error,
                    "a file of the HTTP API cannot be reloaded; the loaded one stays in use"
                );
                self.unusable.insert(what, error);
            }
        }
        let wrong = self.unusable.get(what).cloned().or(expired).unwrap_or_default();
        if self.last_reported.get(what) == Some(&wrong) {
            return;
        }
        match wrong.as_str() {
            "" => health.set(what, State::Ok, "as in the file"),
            wrong => {
                if !self.unusable.contains_key(what) {
                    tracing::warn!(what, "{wrong}");
                }
                health.set(what, State::Degraded, wrong);
            }
        }
        self.last_reported.insert(what, wrong);
    }
}

/// The problem of a certificate that expires at `end`, at `now`; both in seconds since the Unix epoch.
fn expired(end: i64, now: i64) -> Option<String> {
    (end < now).then(|| {
        let days = (now - end) / 86_400;
        format!("the certificate expired {days} days ago and clients refuse it; replace it with a valid one")
    })
}

/// One listening address.
struct Endpoint {
    address: SocketAddr,
    stop: oneshot::Sender<()>,
    served: JoinHandle<()>,
}

impl Endpoint {
    fn open(
        runtime: &Runtime,
        key: &str,
        listen: SocketAddr,
        tls: Option<Arc<Tls>>,
        (routes, limits, metrics): (Router, ApiLimits, Arc<Metrics>),
    ) -> Result<Self> {
        let listener = runtime
            .block_on(TcpListener::bind(listen))
            .with_context(|| format!("cannot listen on {listen}; set {key} to a free address"))?;
        let address = listener.local_addr()?;
        let (stop, stopped) = oneshot::channel::<()>();
        let shutdown = async move {
            // A dropped sender means the daemon is gone: the same as a signal.
            let _ = stopped.await;
        };
        let served = match tls {
            Some(tls) => {
                let listener = tls.listen(listener, &limits, metrics.clone());
                runtime.spawn(api::serve(listener, routes, limits, metrics, shutdown))
            }
            None => {
                let listener = api::plain(listener, &limits);
                runtime.spawn(api::serve(listener, routes, limits, metrics, shutdown))
            }
        };
        Ok(Self { address, stop, served })
    }
}

impl Server {
    /// Binds the address and serves.
    pub(super) fn start(
        config: &Config,
        parts: &Parts,
        sources: &Sources,
        status: &StatusSource,
        device: &str,
    ) -> Result<Self> {
        let secrets = Secrets::open(config)?;
        let keys = secrets.keys.clone();
        let bulk = Bulk::start(bulk_nice(config)).context("cannot start the threads for large requests")?;
        let state = ApiState { keys, ..state(config, parts, sources, status, (device, bulk)) };
        let threads = std::thread::available_parallelism().map_or(THREADS_MIN, NonZero::get).max(THREADS_MIN);
        let runtime = runtime("http", threads, state.limits.blocking_threads())?;
        let separate = config.api.operations_listen.map(|_| runtime_of_operations()).transpose()?;
        let (limits, listen) = (state.limits, config.api.listen);
        allow_files_for(limits.connections * (1 + usize::from(config.api.operations_listen.is_some())));
        let routes = Routes::new(state);
        let console = routes.feed();
        let service = |routes| (routes, limits, parts.metrics.clone());
        let data = |routes| {
            Endpoint::open(&runtime, "api.listen or --listen", listen, secrets.tls.clone(), service(routes))
        };
        let endpoints = match (config.api.operations_listen, &separate) {
            (None, _) | (_, None) => vec![data(routes.merged())?],
            (Some(apart), Some(separate)) => {
                let (routes, operations) = routes.separate();
                let data = data(routes)?;
                let operations =
                    Endpoint::open(separate, "api.operations_listen", apart, None, service(operations))?;
                tracing::info!(address = %operations.address, "health checks and metrics have a separate address");
                vec![data, operations]
            }
        };
        runtime.spawn(secrets.watch(parts.health.clone(), parts.metrics.clone()));
        if limits.console_pages > 0 {
            runtime.spawn(Arc::clone(&console).produce(CONSOLE_PERIOD));
        }
        Ok(Self { runtime, operations: separate, address: endpoints[0].address, endpoints, console })
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Accepts no new connections, finishes open requests within the limit, and ends.
    pub(super) fn stop(self) {
        self.console.end();
        let served: Vec<_> = self
            .endpoints
            .into_iter()
            .map(|endpoint| {
                // The receiver is gone only if the server has ended already.
                let _ = endpoint.stop.send(());
                endpoint.served
            })
            .collect();
        let all_served = async {
            for endpoint in served {
                if let Err(error) = endpoint.await {
                    tracing::error!(%error, "the HTTP API panicked");
                }
            }
        };
        if self.runtime.block_on(async { tokio::time::timeout(STOP_LIMIT, all_served).await }).is_err() {
            tracing::warn!("connections that did not end in time were closed");
        }
        self.runtime.shutdown_timeout(Duration::from_secs(2));
        if let Some(operations) = self.operations {
            operations.shutdown_timeout(Duration::from_secs(2));
        }
    }
}

fn runtime(name: &'static str, threads: usize, blocking_threads: usize) -> Result<Runtime> {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(threads).max_blocking_threads(blocking_threads).thread_name(name).enable_all();
    builder.on_thread_start(wake_promptly);
    builder.build().context("cannot start the HTTP threads")
}

/// One thread, which only passes scrapes on.
fn runtime_of_operations() -> Result<Runtime> {
    runtime("operations", 1, OPERATIONS_MAX)
}

/// Raises the limit of open files as far as allowed, and warns if connections could use it up: then the log could not
/// open its next segment.
fn allow_files_for(connections: usize) {
    let mut limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
        match setrlimit(Resource::Nofile, raised) {
            Ok(()) => limit = raised,
            Err(error) => tracing::debug!(%error, "the limit of open files could not be raised"),
        }
    }
    let needed = connections as u64 + FILES_FOR_OTHERS;
    if let Some(allowed) = limit.current.filter(|allowed| *allowed < needed) {
        tracing::warn!(
            allowed,
            needed,
            "connections may use up the limit of open files: raise it (ulimit -n, LimitNOFILE=) or lower \
             api.connections_max"
        );
    }
}

/// Between that of what serves small requests, 0, and that of the learner.
fn bulk_nice(config: &Config) -> u8 {
    u8::try_from(config.learner.nice / 2).unwrap_or_default()
}

fn state(
    config: &Config,
    parts: &Parts,
    sources: &Sources,
    status: &StatusSource,
    (device, bulk): (&str, Arc<Bulk>),
) -> ApiState {
    let budgets = Budgets::of(config);
    let limits = ApiLimits {
        connections: config.api.connections_max,
        head: Duration::from_millis(config.api.header_timeout_ms),
        stall: Duration::from_millis(config.api.request_timeout_ms),
        body_grace: Duration::from_millis(config.api.body_pause_ms_max),
        bytes_per_second_min: config.api.bytes_per_second_min,
        late_bodies: config.api.late_bodies_max,
        bodies_bytes: usize::try_from(budgets.bodies).unwrap_or(usize::MAX),
        responses_bytes: usize::try_from(budgets.responses).unwrap_or(usize::MAX),
        concurrent_queries: config.api.concurrent_requests_max,
        concurrent_pushes: config.api.concurrent_requests_max,
        body_bytes: config.api.body_bytes_max,
        request_timeout: Duration::from_millis(config.api.request_timeout_ms),
        batch_items: config.api.batch_items_max,
        wait: Duration::from_millis(config.api.wait_ms_max),
        compress_bytes_min: config.api.compress_bytes_min,
        console_pages: config.api.console_pages_max,
    };
    let status = status.clone();
    let operator = Operating {
        learner: parts.learner.clone(),
        sources: sources.clone(),
        health: parts.health.clone(),
        snapshots: parts.snapshots.clone(),
        catalog: parts.catalog.clone(),
        appender: parts.appender.clone(),
        reloading: parts.reloading.clone(),
        trains: config.learner.train,
    };
    ApiState {
        engine: parts.engine.clone(),
        intake: cluster::acknowledging(config, sources.intake(), &parts.progress),
        operator: Arc::new(operator),
        metrics: parts.metrics.clone(),
        health: parts.health.clone(),
        keys: None,
        allowed_hosts: config.api.allowed_hosts(),
        access_log: config.output.access_log,
        bulk,
        limits,
        info: Info {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            device: device.to_owned(),
            model: config.model.kind.name(),
            embedding_dimension: config.model_options().needs().embedding_dim,
            edge_feature_dimension: config.stream.edge_feature_dimension,
            node_feature_dimension: config.stream.node_feature_dimension,
            time_unit: config.stream.time_unit.into(),
            started_unix_ms: unix_ms(),
        },
        status: Arc::new(move || status.document()),
    }
}
