//! HTTPS: a certificate and its key from files, and the listener that does the handshakes.
//!
//! Each handshake runs in its own task, for at most [`HANDSHAKE_MAX`], so that a silent client does not block
//! accepting. There are at most as many concurrent handshakes as connections. A renewed certificate applies to new
//! connections.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use axum::serve::Listener;
use thiserror::Error;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::{Error as PemError, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{Error as RustlsError, ServerConfig};
use tokio_rustls::server::TlsStream;

use super::ApiLimits;
use super::certificate::not_after;
use super::connections::prepare;
use super::reload::Reloaded;
use crate::metrics::Metrics;

/// Longest time for a handshake.
const HANDSHAKE_MAX: Duration = Duration::from_secs(5);

/// Why HTTPS cannot be served.
#[derive(Debug, Error)]
pub enum TlsError {
    /// A file holds no certificates or no key.
    #[error("{path} cannot be used: {}; it must be PEM, see api.tls_certificate and api.tls_key", words(.reason))]
    Pem {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: PemError,
    },
    /// Certificate and key do not match, or their kind is not supported.
    #[error("the certificate {certificate} cannot be served with the key {key}: {reason}")]
    Refused {
        /// File of the certificate.
        certificate: PathBuf,
        /// File of its key.
        key: PathBuf,
        /// What is wrong.
        reason: RustlsError,
    },
}

/// What is wrong with a PEM file, without its bytes: they may be those of a key.
fn words(reason: &PemError) -> String {
    match reason {
        PemError::MissingSectionEnd { .. } => "a section has no end".to_owned(),
        PemError::IllegalSectionStart { .. } => "a section has no proper beginning".to_owned(),
        other => other.to_string(),
    }
}

/// A certificate with its chain, and its key.
pub struct Tls(Reloaded<Served, 2>);

/// What the files hold.
struct Served {
    config: Arc<ServerConfig>,
    not_after: Option<i64>,
}

impl Tls {
    /// Reads certificate and key.
    ///
    /// # Errors
    /// A file cannot be read, or the two do not match.
    pub fn open(certificate: &Path, key: &Path) -> Result<Self, TlsError> {
        Reloaded::open([certificate.to_path_buf(), key.to_path_buf()], read).map(Self)
    }

    /// Reloads both if one changed; returns whether one did. Invalid files leave the certificate unchanged, and are
    /// reported once.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn refresh(&self) -> Result<bool, TlsError> {
        self.0.refresh(read)
    }

    /// When the first certificate of the chain expires, seconds since the Unix epoch; `None` if unknown.
    #[must_use]
    pub fn not_after(&self) -> Option<i64> {
        self.0.get().not_after
    }

    /// Serves HTTPS on a listener.
    #[must_use]
    pub fn listen(
        self: Arc<Self>,
        listener: TcpListener,
        limits: &ApiLimits,
        metrics: Arc<Metrics>,
    ) -> TlsListener {
        TlsListener { tls: self, listener, limits: *limits, metrics, handshakes: JoinSet::new() }
    }
}

fn read([certificate, key]: &[PathBuf; 2]) -> Result<Served, TlsError> {
    let refuse = |path: &PathBuf| {
        let path = path.clone();
        move |reason| TlsError::Pem { path, reason }
    };
    let chain = CertificateDer::pem_file_iter(certificate).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let chain =
        chain.and_then(|chain| if chain.is_empty() { Err(PemError::NoItemsFound) } else { Ok(chain) });
    let chain = chain.map_err(refuse(certificate))?;
    let secret = PrivateKeyDer::from_pem_file(key).map_err(refuse(key))?;
    let not_after = chain.iter().filter_map(|certificate| not_after(certificate)).min();
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, secret));
    let mut config = config.map_err(|reason| {
        let (certificate, key) = (certificate.clone(), key.clone());
        TlsError::Refused { certificate, key, reason }
    })?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Served { config: Arc::new(config), not_after })
}

type Handshake = Option<(TlsStream<TcpStream>, SocketAddr)>;

/// Accepts connections whose handshake is over.
pub struct TlsListener {
    tls: Arc<Tls>,
    listener: TcpListener,
    limits: ApiLimits,
    metrics: Arc<Metrics>,
    handshakes: JoinSet<Handshake>,
}

impl TlsListener {
    fn start_handshake(&mut self, stream: TcpStream, address: SocketAddr) {
        prepare(&stream, self.limits.stall);
        let acceptor = TlsAcceptor::from(Arc::clone(&self.tls.0.get().config));
        let refused = self.metrics.http.refused_connections.clone();
        self.handshakes.spawn(async move {
            match tokio::time::timeout(HANDSHAKE_MAX, acceptor.accept(stream)).await {
                Ok(Ok(stream)) => Some((stream, address)),
                Ok(Err(error)) => {
                    refused.with_label_values(&["handshake"]).inc();
                    tracing::debug!(%address, %error, "a TLS handshake failed");
                    None
                }
                Err(_) => {
                    refused.with_label_values(&["handshake_timeout"]).inc();
                    tracing::debug!(%address, "a TLS handshake took too long");
                    None
                }
            }
        });
    }
}

impl Listener for TlsListener {
    type Io = TlsStream<TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        loop {
            tokio::select! {
                (stream, address) = Listener::accept(&mut self.listener),
                    if self.handshakes.len() < self.limits.connections => self.start_handshake(stream, address),
                Some(handshake) = self.handshakes.join_next(), if !self.handshakes.is_empty() => {
                    if let Ok(Some(handshake)) = handshake {
                        return handshake;
                    }
                }
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}
