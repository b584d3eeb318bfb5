//! Connections: how many are open at a time, how long a request may take to arrive, and how they are shut down.
//!
//! A connection is closed when the header of its next request does not arrive within [`ApiLimits::head`], whether the
//! client is slow or idle, and when the client reads nothing of a response for [`ApiLimits::stall`], or on average less
//! than [`ApiLimits::bytes_per_second_min`]. So an inactive client holds none of the [`ApiLimits::connections`]. More
//! connections wait to be accepted.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use axum::serve::{Listener, ListenerExt};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use prometheus::IntGauge;
use socket2::SockRef;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

use super::ApiLimits;
use super::admin::Peer;
use super::paced::Paced;
use super::transfer::Pace;
use crate::metrics::Metrics;

/// How long open requests may take to finish once the shutdown began.
const DRAIN_LIMIT: Duration = Duration::from_secs(8);
/// Size of a connection's read buffer in bytes; a request header has to fit in.
const BUFFER_BYTES_MAX: usize = 64 << 10;

/// Bytes of a connection that wait in the system to be sent for the first time, at most. The system would take
/// megabytes, and ask for more only when a third of them is read, for which a slow but honest client takes longer than
/// it may.
const UNSENT_BYTES_MAX: u32 = 128 << 10;

/// Listens for HTTP without TLS.
#[must_use]
pub fn plain(listener: TcpListener, limits: &ApiLimits) -> impl Listener<Addr = SocketAddr> + use<> {
    let stall = limits.stall;
    listener.tap_io(move |stream| prepare(stream, stall))
}

/// Disables Nagle's algorithm, so small responses are sent at once; has the system take few bytes at a time, so that it
/// shows how fast the client reads, and close a connection whose client acknowledges nothing for `stall`.
pub(super) fn prepare(stream: &TcpStream, stall: Duration) {
    let stall = u32::try_from(stall.as_millis()).unwrap_or(u32::MAX);
    let timeout = rustix::net::sockopt::set_tcp_user_timeout(stream, stall).map_err(io::Error::from);
    let unsent = SockRef::from(stream).set_tcp_notsent_lowat(UNSENT_BYTES_MAX);
    if let Err(error) = stream.set_nodelay(true).and(timeout).and(unsent) {
        tracing::debug!(%error, "a connection could not be prepared");
    }
}

/// Counts a connection while it is open.
struct Open(IntGauge);

impl Open {
    fn one_of(gauge: &IntGauge) -> Self {
        gauge.inc();
        Self(gauge.clone())
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.dec();
    }
}

/// Why the daemon closed a broken connection; `None` if the client did.
fn refusal(error: &hyper::Error) -> Option<&'static str> {
    if error.is_timeout() {
        return Some("header_timeout");
    }
    let cause = std::error::Error::source(error).and_then(|cause| cause.downcast_ref::<io::Error>());
    if cause.is_some_and(|cause| cause.kind() == io::ErrorKind::TimedOut) {
        return Some("response_timeout");
    }
    error.is_parse().then_some("malformed")
}

/// Serves `router` on `listener` until `shutdown` resolves; then takes no new connections, finishes the open
/// requests within 8 seconds and returns; the caller cuts off the rest.
pub async fn serve(
    mut listener: impl Listener<Addr = SocketAddr>,
    router: Router,
    limits: ApiLimits,
    metrics: Arc<Metrics>,
    shutdown: impl Future<Output = ()> + Send + 'static,
) {
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(limits.head).max_buf_size(BUFFER_BYTES_MAX);
    let pace = Pace { rate: limits.bytes_per_second_min, grace: limits.stall };
    let room = Arc::new(Semaphore::new(limits.connections));
    let open = GracefulShutdown::new();
    tokio::pin!(shutdown);
    loop {
        let next = async {
            // Never closed, so there is always a permit in the end.
            let place = Arc::clone(&room).acquire_owned().await;
            (place, listener.accept().await)
        };
        let (place, (stream, address)) = tokio::select! {
            next = next => next,
            () = &mut shutdown => break,
        };
        let routes = TowerToHyperService::new(router.clone());
        let service = service_fn(move |mut request: Request<Incoming>| {
            request.extensions_mut().insert(Peer(address));
            routes.call(request)
        });
        let stream = TokioIo::new(Paced::new(stream, pace));
        let connection = open.watch(http.serve_connection(stream, service));
        let refused = metrics.http.refused_connections.clone();
        let count = Open::one_of(&metrics.http.open_connections);
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                if let Some(reason) = refusal(&error) {
                    refused.with_label_values(&[reason]).inc();
                }
                tracing::debug!(%address, %error, "a connection broke off");
            }
            drop((place, count));
        });
    }
    drop(listener);
    if tokio::time::timeout(DRAIN_LIMIT, open.shutdown()).await.is_err() {
        tracing::warn!(
            limit_seconds = DRAIN_LIMIT.as_secs(),
            "open HTTP requests did not end in time and are cut off"
        );
    }
}
