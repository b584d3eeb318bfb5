//! Values that are written as text and are more than that: addresses, devices, decays.

use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs};

use serde::de::Error;
use serde::{Deserialize, Deserializer};

use crate::device::DeviceSpec;
use crate::model::walk::Decay;

/// A text that is never shown.
#[derive(Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct Secret(pub String);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_empty() { "\"\"" } else { "***" })
    }
}

/// `HOST:PORT`, where the host may be a name. A name with addresses of both kinds means the IPv4 one, which
/// is what `localhost` is taken for.
pub(super) fn address<'de, D: Deserializer<'de>>(deserializer: D) -> Result<SocketAddr, D::Error> {
    address_of(&String::deserialize(deserializer)?)
}

/// The same, where an empty text means none.
pub(super) fn maybe_address<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<SocketAddr>, D::Error> {
    let text = String::deserialize(deserializer)?;
    if text.is_empty() { Ok(None) } else { address_of(&text).map(Some) }
}

fn address_of<E: Error>(text: &str) -> Result<SocketAddr, E> {
    let refuse = |why: &str| {
        let allowed = "write HOST:PORT, for example 127.0.0.1:8080 or localhost:8080";
        E::custom(format!("{text:?} is no address to listen on: {why}; {allowed}"))
    };
    let found: Vec<SocketAddr> =
        text.to_socket_addrs().map_err(|error| refuse(&error.to_string()))?.collect();
    let chosen = found.iter().find(|address| address.is_ipv4()).or(found.first());
    chosen.copied().ok_or_else(|| refuse("the name has no address"))
}

/// `auto`, `cpu` or `cuda:N`.
pub(super) fn spec<'de, D: Deserializer<'de>>(deserializer: D) -> Result<DeviceSpec, D::Error> {
    String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
}

/// A rate, or `span:` and a power.
pub(super) fn decay<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Decay, D::Error> {
    String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
}
