//! What every HTTP client of this program needs: which certificates it trusts, and names as parts of addresses.

use std::path::Path;

use thiserror::Error;
use ureq::tls::{PemItem, RootCerts, parse_pem};

/// Why a file of certificates cannot be used.
#[derive(Debug, Error)]
pub enum TrustError {
    /// It cannot be read.
    #[error(transparent)]
    Read(#[from] std::io::Error),
    /// It is no PEM.
    #[error(transparent)]
    Pem(#[from] ureq::Error),
    /// It is empty of what is wanted.
    #[error("it holds no certificate in PEM")]
    Empty,
}

/// The certificates that are trusted: those of a PEM file, or the public ones without one.
///
/// # Errors
/// The file cannot be read or holds no certificate.
pub fn trusted_roots(file: Option<&Path>) -> Result<RootCerts, TrustError> {
    match file {
        Some(path) => roots_of(&std::fs::read(path)?),
        None => Ok(RootCerts::WebPki),
    }
}

/// The certificates of a text in PEM, as those that are trusted.
///
/// # Errors
/// The text holds no certificate.
pub fn roots_of(text: &[u8]) -> Result<RootCerts, TrustError> {
    let mut found = Vec::new();
    for item in parse_pem(text) {
        if let PemItem::Certificate(certificate) = item? {
            found.push(certificate);
        }
    }
    if found.is_empty() { Err(TrustError::Empty) } else { Ok(RootCerts::new_with_certs(&found)) }
}

/// A name as a segment of a path: all but letters, digits and `-._~` is percent-encoded. RFC 3986, section 2.1.
#[must_use]
pub fn path_segment(name: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    let code = |byte: u8| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") };
    name.bytes().map(code).collect()
}
