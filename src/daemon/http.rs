//! The HTTP interface on a runtime of its own, the only async code of the daemon.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::sources::Sources;
use super::{Parts, StatusSource, unix_ms};
use crate::api::{self, ApiLimits, ApiState, Info};
use crate::config::Config;

/// How long open connections may take to end.
const STOP_LIMIT: Duration = Duration::from_secs(10);

/// The running interface.
pub(super) struct Server {
    runtime: Runtime,
    address: SocketAddr,
    stop: oneshot::Sender<()>,
    served: JoinHandle<std::io::Result<()>>,
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
        let state = state(config, parts, sources, status, device);
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .max_blocking_threads(state.limits.blocking_threads())
            .thread_name("http")
            .enable_all()
            .build()
            .context("cannot start the HTTP threads")?;
        let listen = config.api.listen;
        let listener = runtime.block_on(TcpListener::bind(listen)).with_context(|| {
            format!("cannot listen on {listen}; set api.listen or --listen to a free address")
        })?;
        let address = listener.local_addr()?;
        let router = api::router(state);
        let (stop, stopped) = oneshot::channel::<()>();
        let shutdown = async move {
            // A dropped sender means the daemon is gone: the same as a signal.
            let _ = stopped.await;
        };
        let served = runtime.spawn(api::serve(listener, router, shutdown));
        Ok(Self { runtime, address, stop, served })
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Takes no new connections, finishes the requests of open ones as far as they end in time, and ends.
    pub(super) fn stop(self) {
        // The receiver is gone only if the server has ended already.
        let _ = self.stop.send(());
        match self.runtime.block_on(async { tokio::time::timeout(STOP_LIMIT, self.served).await }) {
            Ok(Ok(Ok(()))) => {}
            Ok(Ok(Err(error))) => tracing::error!(%error, "the HTTP interface ended with an error"),
            Ok(Err(error)) => tracing::error!(%error, "the HTTP interface panicked"),
            Err(_) => tracing::warn!("connections that did not end in time were cut"),
        }
        self.runtime.shutdown_timeout(Duration::from_secs(2));
    }
}

fn state(config: &Config, parts: &Parts, sources: &Sources, status: &StatusSource, device: &str) -> ApiState {
    let limits = ApiLimits {
        concurrent_queries: config.api.concurrent_requests_max,
        concurrent_pushes: config.api.concurrent_requests_max,
        body_bytes: config.api.body_bytes_max,
        request_timeout: Duration::from_millis(config.api.request_timeout_ms),
        batch_items: config.api.batch_items_max,
        wait: Duration::from_millis(config.api.wait_ms_max),
    };
    let status = status.clone();
    ApiState {
        engine: parts.engine.clone(),
        intake: sources.intake(),
        metrics: parts.metrics.clone(),
        health: parts.health.clone(),
        limits,
        info: Info {
            name: "evergraph".to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            device: device.to_owned(),
            model: "tgn".to_owned(),
            embedding_dimension: config.model.embedding_dimension,
            started_unix_ms: unix_ms(),
        },
        status: Arc::new(move || serde_json::to_value(status.document()).unwrap_or_default()),
    }
}
