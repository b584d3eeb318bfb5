//! How a command reaches a running daemon: where it listens, and the key that it asks for.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use clap::Args;
use ureq::tls::{PemItem, RootCerts, parse_pem};

/// A running daemon.
#[derive(Debug, Args)]
pub(super) struct DaemonArgs {
    /// Address of the daemon's HTTP interface
    #[arg(long, value_name = "URL", env = "EVERGRAPH_URL", default_value = "http://127.0.0.1:8080")]
    pub url: String,
    /// File that holds a key of the daemon's api.keys_file, and nothing else; needed if it has keys
    #[arg(long, value_name = "FILE", env = "EVERGRAPH_KEY_FILE")]
    key_file: Option<PathBuf>,
    /// File of PEM certificates that the daemon's is checked against, for https with a certificate of one's own;
    /// without it, those that browsers trust
    #[arg(long, value_name = "FILE", env = "EVERGRAPH_CA_FILE")]
    ca_file: Option<PathBuf>,
}

impl DaemonArgs {
    /// The key to send, if there is one.
    ///
    /// # Errors
    /// The file cannot be read or holds something else.
    pub fn key(&self) -> Result<Option<String>> {
        let Some(path) = &self.key_file else { return Ok(None) };
        let text = std::fs::read_to_string(path).with_context(|| format!("--key-file {}", path.display()))?;
        let key = text.trim();
        let whole = !key.is_empty() && key.bytes().all(|byte| byte.is_ascii_graphic());
        ensure!(whole, "--key-file {}: it must hold one key and nothing else", path.display());
        Ok(Some(key.to_owned()))
    }

    /// Whom to believe about who the daemon is.
    ///
    /// # Errors
    /// The file cannot be read or holds no certificate.
    pub fn roots(&self) -> Result<RootCerts> {
        let Some(path) = &self.ca_file else { return Ok(RootCerts::WebPki) };
        let whose = || format!("--ca-file {}", path.display());
        let text = std::fs::read(path).with_context(whose)?;
        let mut found = Vec::new();
        for item in parse_pem(&text) {
            if let PemItem::Certificate(certificate) = item.with_context(whose)? {
                found.push(certificate);
            }
        }
        ensure!(!found.is_empty(), "{}: it holds no certificate in PEM", whose());
        Ok(RootCerts::new_with_certs(&found))
    }
}
