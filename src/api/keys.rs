//! Authentication: bearer keys, each with a name and a [`Role`], read from a file.
//!
//! One key per line, `role name key`, with an optional [`RateLimit`] in requests per second, such as `50/s`. Empty
//! lines and those that begin with `#` are ignored:
//!
//! ```text
//! read   dashboard  GqTUVFbPpfCPRqQN0zY1JJQ7  50/s
//! write  checkout   o2mD6Wm1u0FPd2q7mBqXlYbE
//! ```
//!
//! To rotate a key, add the new one, move its clients, and remove the old one: the file is reloaded while the daemon
//! runs, and an invalid file leaves the keys unchanged. The time of a comparison depends only on the lengths of the
//! keys.

use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use axum::extract::{Request, State};
use axum::http::Extensions;
use axum::http::header::{AUTHORIZATION, ORIGIN};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use subtle::ConstantTimeEq;
use thiserror::Error;

use super::App;
use super::admin::Peer;
use super::browser::refuse_pages;
use super::error::ApiError;
use super::rate_limit::RateLimit;
use super::reload::Reloaded;
use super::transfer::Client;

/// Shortest key that is accepted, in bytes.
const KEY_BYTES_MIN: usize = 16;

/// Highest rate limit of a key, requests per second.
const RATE_LIMIT_MAX: u32 = 1_000_000;

/// What a key may be used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Embeddings, link scores, nodes, and the status.
    Read,
    /// Pushing events.
    Write,
    /// All routes, admin routes included.
    Admin,
}

impl Role {
    /// Its name in the file.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Admin => "admin",
        }
    }

    fn of_name(name: &str) -> Option<Self> {
        [Self::Read, Self::Write, Self::Admin].into_iter().find(|role| role.name() == name)
    }

    fn covers(self, needed: Self) -> bool {
        self == Self::Admin || self == needed
    }
}

/// Why a file of keys cannot be used. Never contains a key.
#[derive(Debug, Error)]
pub enum KeysError {
    /// It cannot be read.
    #[error("the keys of the HTTP interface cannot be read from {path}: {reason}; see api.keys_file")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        reason: std::io::Error,
    },
    /// A line is not a key.
    #[error("{path}, line {line}: {reason}; write `role name key` or `role name key 50/s`, one key per line")]
    Line {
        /// The file.
        path: PathBuf,
        /// Number of the line, from 1.
        line: usize,
        /// What is wrong with it.
        reason: String,
    },
    /// It contains no key, so that every request would be refused.
    #[error("{path} contains no key; write `role name key`, one key per line, or leave api.keys_file empty")]
    Empty {
        /// The file.
        path: PathBuf,
    },
}

struct Key {
    role: Role,
    name: Arc<str>,
    secret: String,
    rate_limit: Option<RateLimit>,
}

/// The keys of a file, which can change while the daemon runs.
pub struct Keys(Reloaded<Vec<Key>, 1>);

impl Keys {
    /// Reads a file of keys.
    ///
    /// # Errors
    /// The file cannot be read, or a line is not a key.
    pub fn open(path: &Path) -> Result<Self, KeysError> {
        Reloaded::open([path.to_path_buf()], read).map(Self)
    }

    /// Reloads the file if it changed; returns whether it did. An invalid file leaves the keys unchanged, and is
    /// reported once.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn refresh(&self) -> Result<bool, KeysError> {
        self.0.refresh(read)
    }

    /// Number of keys.
    #[must_use]
    pub fn count(&self) -> usize {
        self.0.get().len()
    }

    /// The caller, if the key that was sent allows `needed` now.
    fn admit(&self, sent: Option<&[u8]>, needed: Role) -> Result<Caller, ApiError> {
        let Some(sent) = sent else { return Err(ApiError::Unauthenticated { sent: false }) };
        let (keys, mut known) = (self.0.get(), None);
        for key in keys.iter() {
            if bool::from(key.secret.as_bytes().ct_eq(sent)) {
                known = Some(key);
            }
        }
        let Some(Key { role, name, rate_limit, .. }) = known else {
            return Err(ApiError::Unauthenticated { sent: true });
        };
        if let Some(rate_limit) = rate_limit.as_ref().filter(|rate_limit| !rate_limit.allows(Instant::now()))
        {
            return Err(ApiError::TooFast { name: name.to_string(), per_second: rate_limit.per_second() });
        }
        if !role.covers(needed) {
            let (role, needed) = (role.name(), needed.name());
            return Err(ApiError::Forbidden { name: name.to_string(), role, needed });
        }
        Ok(Caller(Arc::clone(name)))
    }
}

fn read([path]: &[PathBuf; 1]) -> Result<Vec<Key>, KeysError> {
    let text = std::fs::read_to_string(path)
        .map_err(|reason| KeysError::Unreadable { path: path.clone(), reason })?;
    if !text.is_empty() && !text.ends_with('\n') {
        let reason = "the last line has no end: a file that is being written is not read".to_owned();
        return Err(KeysError::Line { path: path.clone(), line: text.lines().count(), reason });
    }
    let mut keys: Vec<Key> = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        if line.trim().is_empty() || line.trim_start().starts_with('#') {
            continue;
        }
        let refuse = |reason: String| KeysError::Line { path: path.clone(), line: number, reason };
        let key = parse(line).map_err(refuse)?;
        if keys.iter().any(|other| other.secret == key.secret) {
            return Err(refuse("the key is also on an earlier line".to_owned()));
        }
        keys.push(key);
    }
    if keys.is_empty() { Err(KeysError::Empty { path: path.clone() }) } else { Ok(keys) }
}

fn parse(line: &str) -> Result<Key, String> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let (role, name, secret, rate_limit) = match words[..] {
        [role, name, secret] => (role, name, secret, None),
        [role, name, secret, rate_limit] => (role, name, secret, Some(rate_limit)),
        _ => return Err(format!("{} words, there must be 3 or 4", words.len())),
    };
    let role = Role::of_name(role).ok_or("the role must be read, write or admin")?;
    if secret.len() < KEY_BYTES_MIN {
        return Err(format!("the key has {} bytes, at least {KEY_BYTES_MIN} are needed", secret.len()));
    }
    if !secret.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err("a key must be printable ASCII".to_owned());
    }
    let rate_limit = rate_limit.map(parse_rate_limit).transpose()?;
    Ok(Key { role, name: name.into(), secret: secret.to_owned(), rate_limit })
}

/// Requests per second, as in `50/s`. The word may be a misplaced key, so errors do not repeat it.
fn parse_rate_limit(word: &str) -> Result<RateLimit, String> {
    let number = word.strip_suffix("/s").and_then(|number| number.parse::<NonZeroU32>().ok());
    let number = number.filter(|number| number.get() <= RATE_LIMIT_MAX);
    number
        .map(RateLimit::new)
        .ok_or_else(|| format!("the fourth word must be a rate limit from 1/s to {RATE_LIMIT_MAX}/s"))
}

/// The bearer token of the request.
fn bearer(request: &Request) -> Option<&[u8]> {
    let sent = request.headers().get(AUTHORIZATION)?.as_bytes();
    let (scheme, key) = sent.split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then(|| key.trim_ascii())
}

/// The caller: the name of a key, or `local` for a local program where there are no keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Caller(pub Arc<str>);

/// Who may do what a request asks for.
#[derive(Default)]
pub(super) struct Known {
    client: Option<Client>,
    caller: Option<Caller>,
}

impl Known {
    /// Who sent `request`, if its key has the role. Without keys all routes are open, but not for web pages of other
    /// servers, and the admin routes are for local programs only, and not for any page.
    pub(super) fn of(app: &App, needed: Role, request: &Request) -> Result<Self, ApiError> {
        let keys = app.state.keys.as_ref();
        let caller = match keys {
            Some(keys) => keys.admit(bearer(request), needed)?,
            None if needed == Role::Admin && !is_local(request) => return Err(ApiError::LocalOnly),
            None => refuse_pages(request, &app.state.allowed_hosts).map(|()| Caller("local".into()))?,
        };
        let peer = || request.extensions().get::<Peer>().map(|peer| Client::at(peer.0.ip()));
        let client = if keys.is_some() { Some(Client::Key(Arc::clone(&caller.0))) } else { peer() };
        Ok(Self { client, caller: (needed == Role::Admin).then_some(caller) })
    }

    /// Notes it for what comes later.
    pub(super) fn note(&self, extensions: &mut Extensions) {
        self.client.clone().map(|client| extensions.insert(client));
        self.caller.clone().map(|caller| extensions.insert(caller));
    }
}

/// Admits requests whose key has the role.
pub(super) async fn authorize(
    State((app, needed)): State<(App, Role)>,
    mut request: Request,
    next: Next,
) -> Response {
    match Known::of(&app, needed, &request) {
        Err(refused) => refused.into_response(),
        Ok(known) => {
            known.note(request.extensions_mut());
            let mut response = next.run(request).await;
            known.note(response.extensions_mut());
            response
        }
    }
}

/// Whether the client is a local program, and not a page in a browser.
fn is_local(request: &Request) -> bool {
    let peer = request.extensions().get::<Peer>();
    peer.is_some_and(|peer| peer.0.ip().to_canonical().is_loopback())
        && !request.headers().contains_key(ORIGIN)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    const KEYS: &str = concat!(
        "# who\n\nread dashboard aaaaaaaaaaaaaaaa\n",
        " write  shop bbbbbbbbbbbbbbbb \n",
        "admin me cccccccccccccccc\n",
    );

    fn file(text: &str) -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("keys");
        std::fs::write(&path, text).unwrap();
        (folder, path)
    }

    #[test]
    fn a_key_allows_what_its_role_allows() {
        let (_folder, path) = file(KEYS);
        let keys = Keys::open(&path).unwrap();
        assert_eq!(keys.count(), 3);
        let may = |secret: &str, role| keys.admit(Some(secret.as_bytes()), role);
        for (secret, read, write) in [
            ("aaaaaaaaaaaaaaaa", true, false),
            ("bbbbbbbbbbbbbbbb", false, true),
            ("cccccccccccccccc", true, true),
        ] {
            assert_eq!((may(secret, Role::Read).is_ok(), may(secret, Role::Write).is_ok()), (read, write));
        }
        let refused = may("aaaaaaaaaaaaaaaa", Role::Write).unwrap_err().to_string();
        assert!(refused.contains("dashboard") && !refused.contains("aaaa"), "{refused}");
        for wrong in ["", "aaaaaaaaaaaaaaa", "aaaaaaaaaaaaaaab", "aaaaaaaaaaaaaaaaa", "dashboard"] {
            assert!(matches!(may(wrong, Role::Read), Err(ApiError::Unauthenticated { sent: true })));
        }
        assert!(matches!(keys.admit(None, Role::Read), Err(ApiError::Unauthenticated { sent: false })));
    }

    #[test]
    fn a_rate_limit_applies_to_its_key_only() {
        let (_folder, path) = file("read slow aaaaaaaaaaaaaaaa 3/s\nread other bbbbbbbbbbbbbbbb\n");
        let keys = Keys::open(&path).unwrap();
        let admit = |secret: &str, role| keys.admit(Some(secret.as_bytes()), role);
        assert!(matches!(admit("aaaaaaaaaaaaaaaa", Role::Write), Err(ApiError::Forbidden { .. })));
        let responses: Vec<_> = (0..20).map(|_| admit("aaaaaaaaaaaaaaaa", Role::Read)).collect();
        let passed = responses.iter().filter(|response| response.is_ok()).count();
        assert!((2..=4).contains(&passed), "an attempt with the wrong role counts, too: {passed}");
        let refused = responses.into_iter().find_map(Result::err).unwrap();
        assert!(matches!(&refused, ApiError::TooFast { name, per_second: 3 } if name == "slow"), "{refused}");
        assert!((0..100).all(|_| admit("bbbbbbbbbbbbbbbb", Role::Read).is_ok()));
    }

    #[test]
    fn a_file_that_cannot_be_used_names_its_line_and_no_key() {
        for (text, expected) in [
            ("root me aaaaaaaaaaaaaaaa\n", "line 1: the role must be read, write or admin"),
            ("\nread aaaaaaaaaaaaaaaa\n", "line 2: 2 words"),
            ("read me short-aaaa\n", "line 1: the key has 10 bytes"),
            ("read me aaaaaaaaaaaaaaaä\n", "printable ASCII"),
            (
                "read a aaaaaaaaaaaaaaaa\nwrite b aaaaaaaaaaaaaaaa\n",
                "line 2: the key is also on an earlier line",
            ),
            ("read me bbbbbbbbbbbbbbbb aaaaaaaaaaaaaaaa\n", "line 1: the fourth word must be a rate limit"),
            ("read me aaaaaaaaaaaaaaaa 0/s\n", "from 1/s to 1000000/s"),
            ("read me aaaaaaaaaaaaaaaa 1000001/s\n", "from 1/s to 1000000/s"),
            ("read me aaaaaaaaaaaaaaaa 5/s 6/s\n", "line 1: 5 words, there must be 3 or 4"),
            ("# nobody\n", "contains no key"),
        ] {
            let (_folder, path) = file(text);
            let message = Keys::open(&path).err().unwrap().to_string();
            assert!(message.contains(expected) && !message.contains("aaaa"), "{message}");
        }
        let gone = Keys::open(Path::new("/nowhere/keys")).err().unwrap().to_string();
        assert!(gone.contains("/nowhere/keys") && gone.contains("api.keys_file"), "{gone}");
    }

    #[test]
    fn local_clients_are_programs_on_this_machine_and_not_pages() {
        let from = |peer: &str, origin: Option<&str>| {
            let mut request = Request::new(axum::body::Body::empty());
            request.extensions_mut().insert(Peer(peer.parse().unwrap()));
            if let Some(origin) = origin {
                request.headers_mut().insert(ORIGIN, origin.parse().unwrap());
            }
            is_local(&request)
        };
        for local in ["127.0.0.1:5", "127.9.9.9:5", "[::1]:5", "[::ffff:127.0.0.1]:5"] {
            assert!(from(local, None), "{local}");
            assert!(!from(local, Some("http://localhost")), "{local}");
        }
        for other in ["10.0.0.1:5", "[2001:db8::1]:5", "[::ffff:10.0.0.1]:5", "0.0.0.0:5"] {
            assert!(!from(other, None), "{other}");
        }
        assert!(!is_local(&Request::new(axum::body::Body::empty())), "the peer is unknown");
    }

    #[test]
    fn a_changed_file_is_loaded_and_an_invalid_one_is_not() {
        let (_folder, path) = file(KEYS);
        let keys = Keys::open(&path).unwrap();
        assert!(!keys.refresh().unwrap());
        std::fs::write(&path, "read dashboard dddddddddddddddd\n").unwrap();
        assert!(keys.refresh().unwrap());
        let may = |secret: &str| keys.admit(Some(secret.as_bytes()), Role::Read).is_ok();
        assert!(may("dddddddddddddddd") && !may("aaaaaaaaaaaaaaaa"));
        std::fs::write(&path, "nonsense\n").unwrap();
        assert!(!keys.refresh().unwrap(), "it may be on its way");
        assert!(keys.refresh().is_err());
        assert!(!keys.refresh().unwrap(), "reported once");
        assert!(may("dddddddddddddddd"));
        std::fs::remove_file(&path).unwrap();
        assert!(!keys.refresh().unwrap());
        assert!(keys.refresh().is_err(), "another reason is reported, too");
        assert!(may("dddddddddddddddd"));
        // What counts is the file, not when it was written: this one is renamed into its place.
        let other = path.with_extension("new");
        std::fs::write(&other, "read dashboard eeeeeeeeeeeeeeee\n").unwrap();
        std::fs::rename(&other, &path).unwrap();
        assert!(keys.refresh().unwrap() && may("eeeeeeeeeeeeeeee"));
        // Caught half written, it is read again when it is whole.
        std::fs::write(&path, "read dashboard ffffffffffffffff").unwrap();
        assert!(!keys.refresh().unwrap());
        std::fs::OpenOptions::new().append(true).open(&path).unwrap().write_all(b"\n").unwrap();
        assert!(keys.refresh().unwrap() && may("ffffffffffffffff"));
    }
}
