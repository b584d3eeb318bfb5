//! Logging in by tokens (SASL/OAUTHBEARER): from a token endpoint (`oidc`, whose responses `response` reads) or signed
//! for Amazon MSK (`msk`), as the properties say (`settings`).
//!
//! All clients with the same properties share a [`Login`], whose thread fetches a token and renews it at 80 % of its
//! lifetime, so that nobody who reads waits for an endpoint. Each client is given the newest one (`session`). What
//! fails is tried again, and a token outlasts failures until it expires; then clients wait, and report why.

mod msk;
mod oidc;
mod response;
mod session;
mod settings;

use std::path::Path;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};
use parking_lot::{Condvar, Mutex};
use ureq::tls::RootCerts;

use super::KafkaFault;
use crate::device::KafkaToken;
use crate::ingest::dead_letter::unix_ms;
use crate::ingest::http_client::{TrustError, roots_of, trusted_roots};
use msk::Msk;
use oidc::Oidc;
pub use response::token_of_response;
pub(in crate::ingest) use session::Session;
use settings::{IssuerSettings, LoginSettings, ca_property};
pub(super) use settings::{TOKEN_ENDPOINT, is_ours};

/// The next try after a failure, …
const FIRST_REST: Duration = Duration::from_secs(1);
/// … twice as long after each further one, and at most so long.
const LONGEST_REST: Duration = Duration::from_secs(15);
/// The clock is looked at so often: it stands still while a machine is suspended, and tokens expire.
const CLOCK_INTERVAL: Duration = Duration::from_secs(5);

/// A token with which clients log in.
#[derive(Clone)]
pub struct Token {
    /// What brokers check.
    pub value: String,
    /// Who logs in.
    pub principal: String,
    /// Until when, milliseconds since the Unix epoch.
    pub valid_until_ms: i64,
    /// When to fetch the next one.
    pub renew_at_ms: i64,
}

impl Token {
    fn new(value: String, principal: String, now_ms: i64, valid_until_ms: i64) -> Self {
        let renew_at_ms = now_ms + valid_until_ms.saturating_sub(now_ms) / 5 * 4;
        Self { value, principal, valid_until_ms, renew_at_ms }
    }
}

enum Issuer {
    Oidc(Oidc),
    Msk(Msk),
}

impl Issuer {
    fn open(settings: &IssuerSettings) -> Result<Self, KafkaFault> {
        let wrong =
            |property: &str, detail: String| KafkaFault::BadOption { property: property.into(), detail };
        match settings {
            IssuerSettings::Oidc { endpoint, client, secret, scope, ca_file, ca_pem } => {
                let roots = roots(ca_file, ca_pem);
                let roots = roots.map_err(|error| wrong(ca_property(ca_pem), error.to_string()))?;
                Ok(Self::Oidc(Oidc::new(endpoint, client, secret, scope, roots)))
            }
            IssuerSettings::AwsMskIam { region } => Msk::new(region, msk::aws_variables())
                .map(Self::Msk)
                .map_err(|detail| wrong("sasl.oauthbearer.aws.region", detail)),
        }
    }

    fn fetch(&self) -> Result<Token, String> {
        match self {
            Self::Oidc(oidc) => oidc.fetch(unix_ms()),
            Self::Msk(msk) => msk.fetch(unix_ms()),
        }
    }

    fn describe(&self) -> String {
        match self {
            Self::Oidc(oidc) => oidc.endpoint.clone(),
            Self::Msk(msk) => msk.describe(),
        }
    }
}

fn roots(ca_file: &str, ca_pem: &str) -> Result<RootCerts, TrustError> {
    if ca_pem.is_empty() {
        return trusted_roots((!ca_file.is_empty()).then_some(Path::new(ca_file)));
    }
    roots_of(ca_pem.as_bytes())
}

#[derive(Default)]
struct State {
    /// The newest token and its number, from 1 on.
    token: Option<(u64, Arc<Token>)>,
    /// Why the last try failed, if it did.
    failure: Option<String>,
    failures: u64,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    /// After every try.
    changed: Condvar,
}

impl Shared {
    fn take(&self, token: Token, issuer: &str) {
        let mut state = self.state.lock();
        if state.failure.take().is_some() {
            tracing::info!(issuer, "tokens for Kafka can be had again");
        }
        let number = state.token.as_ref().map_or(0, |(number, _)| *number) + 1;
        state.token = Some((number, Arc::new(token)));
        self.changed.notify_all();
    }

    fn fail(&self, why: String, issuer: &str) {
        let mut state = self.state.lock();
        if state.failure.as_ref() != Some(&why) {
            let fault = fault(issuer, why.clone());
            let left = state.token.as_ref().map_or(0, |(_, token)| token.valid_until_ms - unix_ms());
            tracing::warn!(fault = fault.word(), valid_ms = left.max(0), "{fault}");
        }
        state.failure = Some(why);
        state.failures += 1;
        self.changed.notify_all();
    }
}

fn fault(issuer: &str, detail: String) -> KafkaFault {
    KafkaFault::Token { issuer: issuer.to_owned(), detail }
}

/// Every login that is in use, with what it was made from.
static LOGINS: Mutex<Vec<(LoginSettings, Weak<Login>)>> = Mutex::new(Vec::new());

/// Tokens for all clients that log in alike.
struct Login {
    issuer: String,
    extensions: Vec<(String, String)>,
    shared: Arc<Shared>,
    /// Disconnected, it ends the thread.
    _alive: Sender<()>,
}

impl Login {
    /// The login with these settings, which may be in use already.
    ///
    /// # Errors
    /// When trusted certificates cannot be used, or no region is known.
    fn shared(settings: LoginSettings) -> Result<Arc<Self>, KafkaFault> {
        let mut logins = LOGINS.lock();
        logins.retain(|(_, login)| login.strong_count() > 0);
        let known = logins.iter().find(|(known, _)| *known == settings);
        if let Some(login) = known.and_then(|(_, login)| login.upgrade()) {
            return Ok(login);
        }
        let login = Arc::new(Self::start(&settings)?);
        logins.push((settings, Arc::downgrade(&login)));
        Ok(login)
    }

    fn start(settings: &LoginSettings) -> Result<Self, KafkaFault> {
        let source = Issuer::open(&settings.issuer)?;
        let (issuer, shared) = (source.describe(), Arc::new(Shared::default()));
        let (alive, ended) = crossbeam_channel::bounded(0);
        let theirs = Arc::clone(&shared);
        std::thread::Builder::new()
            .name("kafka-login".into())
            .spawn(move || keep_valid(&source, &theirs, &ended))
            .map_err(|e| KafkaFault::Other { code: "thread".into(), detail: e.to_string() })?;
        Ok(Self { issuer, extensions: settings.extensions.clone(), shared, _alive: alive })
    }

    /// Where tokens come from, in words.
    fn issuer(&self) -> &str {
        &self.issuer
    }

    fn failures(&self) -> u64 {
        self.shared.state.lock().failures
    }

    fn fault(&self, detail: String) -> KafkaFault {
        fault(&self.issuer, detail)
    }

    fn native<'a>(&'a self, token: &'a Token) -> KafkaToken<'a> {
        let Token { value, principal, valid_until_ms, .. } = token;
        KafkaToken { value, principal, valid_until_ms: *valid_until_ms, extensions: &self.extensions }
    }

    /// The token that is valid and its number, or why there is none: nothing while the first one is on its way.
    fn newest(&self) -> Result<(u64, Arc<Token>), Option<KafkaFault>> {
        let state = self.shared.state.lock();
        match &state.token {
            Some((number, token)) if token.valid_until_ms > unix_ms() => Ok((*number, Arc::clone(token))),
            _ => Err(state.failure.clone().map(|why| self.fault(why))),
        }
    }

    /// The token that is valid; waits for it unless the last try failed.
    fn token(&self, wait: Duration) -> Result<Arc<Token>, KafkaFault> {
        let deadline = Instant::now() + wait;
        loop {
            match self.newest() {
                Ok((_, token)) => return Ok(token),
                Err(Some(fault)) => return Err(fault),
                Err(None) => {}
            }
            let mut state = self.shared.state.lock();
            let is_new = state.failure.is_some()
                || state.token.as_ref().is_some_and(|(_, token)| token.valid_until_ms > unix_ms());
            if !is_new && self.shared.changed.wait_until(&mut state, deadline).timed_out() {
                return Err(self.fault(format!("has not responded within {} s", wait.as_secs())));
            }
        }
    }
}

/// Fetches tokens until nobody needs them any more.
fn keep_valid(issuer: &Issuer, shared: &Shared, ended: &Receiver<()>) {
    let (mut rest, name) = (FIRST_REST, issuer.describe());
    loop {
        let now_ms = unix_ms();
        let due_ms = match issuer.fetch() {
            Ok(token) => {
                rest = FIRST_REST;
                let due_ms = token.renew_at_ms.max(now_ms + to_ms(FIRST_REST));
                shared.take(token, &name);
                due_ms
            }
            Err(why) => {
                let due_ms = unix_ms() + to_ms(rest);
                rest = (rest * 2).min(LONGEST_REST);
                shared.fail(why, &name);
                due_ms
            }
        };
        if !wait_until(due_ms, ended) {
            return;
        }
    }
}

fn to_ms(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX)
}

/// Waits until the clock shows this time, or has not been set back since; returns whether tokens are still needed.
fn wait_until(due_ms: i64, ended: &Receiver<()>) -> bool {
    let left = |at_ms: i64| Duration::from_millis(u64::try_from(at_ms - unix_ms()).unwrap_or(0));
    let latest = Instant::now() + left(due_ms);
    loop {
        let rest = left(due_ms).min(latest.saturating_duration_since(Instant::now()));
        if rest.is_zero() {
            return true;
        }
        match ended.recv_timeout(rest.min(CLOCK_INTERVAL)) {
            Err(RecvTimeoutError::Timeout) => {}
            _ => return false,
        }
    }
}
