//! Keeps web pages away from a daemon without keys.
//!
//! A page in a browser on a machine that reaches the daemon can make that browser send requests. Where keys are
//! required it has none. Where not, two headers give it away, which pages cannot change: `Origin` names the page's
//! server, and `Host` the name by which the page looked the daemon up. A name that a stranger can register and point to
//! this machine (DNS rebinding) would make the page look like the daemon's own, so `Host` has to be an address, a name
//! without dots, a name under `localhost`, or a configured one.

use std::net::{Ipv4Addr, Ipv6Addr};

use axum::extract::Request;
use axum::http::header::{HOST, ORIGIN};

use super::error::ApiError;

/// Refuses what a page of another server sent, or may have sent. `allowed` are further names; one that begins with a
/// dot stands for all names that end with it.
pub(super) fn refuse_pages(request: &Request, allowed: &[String]) -> Result<(), ApiError> {
    let sent = request.headers().get_all(HOST).iter().map(|host| host.to_str().unwrap_or("?"));
    let target = request.uri().authority().map(|authority| authority.as_str());
    for host in sent.chain(target) {
        if !is_ours(host_name(host), allowed) {
            return Err(ApiError::UnknownHost { host: host_name(host).to_owned() });
        }
    }
    let Some(origin) = request.headers().get(ORIGIN) else { return Ok(()) };
    let host = request.headers().get(HOST).and_then(|host| host.to_str().ok());
    let own =
        |scheme: &str| host.is_some_and(|host| origin.as_bytes() == format!("{scheme}://{host}").as_bytes());
    if own("http") || own("https") { Ok(()) } else { Err(ApiError::ForeignPage) }
}

/// A host without its port.
fn host_name(host: &str) -> &str {
    if let Some((address, _)) = host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        return address;
    }
    host.rsplit_once(':').map_or(host, |(name, _)| name)
}

fn is_ours(name: &str, allowed: &[String]) -> bool {
    let name = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
    let is_address = name.parse::<Ipv4Addr>().is_ok() || name.parse::<Ipv6Addr>().is_ok();
    let listed = |allowed: &String| {
        let allowed = allowed.to_ascii_lowercase();
        name == allowed || (allowed.starts_with('.') && name.ends_with(&allowed))
    };
    is_address || !name.contains('.') || name.ends_with(".localhost") || allowed.iter().any(listed)
}

#[cfg(test)]
mod tests {
    use axum::body::Body;

    use super::*;

    fn judge(host: &str, origin: Option<&str>, allowed: &[&str]) -> Result<(), ApiError> {
        let mut request = Request::builder().header(HOST, host);
        if let Some(origin) = origin {
            request = request.header(ORIGIN, origin);
        }
        let allowed: Vec<String> = allowed.iter().map(|&name| name.to_owned()).collect();
        refuse_pages(&request.body(Body::empty()).unwrap(), &allowed)
    }

    #[test]
    fn names_that_strangers_can_register_are_refused() {
        for ours in [
            "localhost",
            "localhost:8080",
            "LOCALHOST.:8080",
            "graph.localhost:1",
            "127.0.0.1:8080",
            "10.1.2.3",
            "[::1]:8080",
            "[2001:db8::1]",
            "evergraph:8080",
        ] {
            assert!(judge(ours, None, &[]).is_ok(), "{ours}");
        }
        for foreign in
            ["evil.example:8080", "127.0.0.1.evil.example", "localhost.evil.example", "1.2.3.4.5", "a.b"]
        {
            assert!(matches!(judge(foreign, None, &[]), Err(ApiError::UnknownHost { .. })), "{foreign}");
        }
        let allowed = ["graph.example.org", ".svc.cluster.local"];
        assert!(judge("Graph.Example.org:443", None, &allowed).is_ok());
        assert!(judge("evergraph.default.svc.cluster.local", None, &allowed).is_ok());
        assert!(judge("x.graph.example.org", None, &allowed).is_err());
        assert!(judge("evilsvc.cluster.local", None, &allowed).is_err());
    }

    #[test]
    fn pages_of_other_servers_are_refused_and_our_own_page_is_not() {
        let host = "localhost:8080";
        assert!(judge(host, Some("http://localhost:8080"), &[]).is_ok(), "the page /docs");
        assert!(judge(host, Some("https://localhost:8080"), &[]).is_ok());
        for foreign in
            ["http://localhost:3000", "http://localhost", "http://evil.example", "null", "file://", ""]
        {
            assert!(matches!(judge(host, Some(foreign), &[]), Err(ApiError::ForeignPage)), "{foreign}");
        }
        let rebound = judge("evil.example", Some("http://evil.example"), &[]);
        assert!(matches!(rebound, Err(ApiError::UnknownHost { .. })));
    }

    #[test]
    fn a_name_in_the_request_line_counts_too() {
        let request = Request::builder().uri("http://evil.example/v1/status").header(HOST, "localhost");
        assert!(refuse_pages(&request.body(Body::empty()).unwrap(), &[]).is_err());
        assert!(refuse_pages(&Request::new(Body::empty()), &[]).is_ok(), "browsers always send a host");
    }
}
