//! One client and its tokens: every client is made here or has a [`Session`], so that none is made that cannot log in.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use rdkafka::ClientContext;
use rdkafka::admin::AdminClient;
use rdkafka::client::Client;
use rdkafka::config::{ClientConfig, FromClientConfigAndContext};
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext};
use rdkafka::producer::{BaseProducer, Producer, ProducerContext};

use super::super::preflight::config_fault;
use super::super::{KafkaClientOptions, KafkaFault};
use super::settings::LoginSettings;
use super::{Login, Token};
use crate::device::set_kafka_token;

/// What every kind of client has inside.
pub(in crate::ingest) trait Native {
    /// Where its callbacks go.
    type Context: ClientContext;
    /// The client inside.
    fn native(&self) -> &Client<Self::Context>;
}

impl<C: ConsumerContext> Native for BaseConsumer<C> {
    type Context = C;
    fn native(&self) -> &Client<C> {
        self.client()
    }
}

impl<C: ProducerContext> Native for BaseProducer<C> {
    type Context = C;
    fn native(&self) -> &Client<C> {
        self.client()
    }
}

impl<C: ClientContext> Native for AdminClient<C> {
    type Context = C;
    fn native(&self) -> &Client<C> {
        self.inner()
    }
}

/// Keeps one client logged in, where it logs in by tokens.
#[derive(Default)]
pub(in crate::ingest) struct Session {
    login: Option<Arc<Login>>,
    /// The number of the token that the client has.
    given: AtomicU64,
    /// Failures of the login that were counted already.
    failures: AtomicU64,
}

impl Session {
    /// How these options say to log in. Begins to fetch tokens.
    ///
    /// # Errors
    /// When a property is missing or wrong.
    pub fn of(options: &KafkaClientOptions) -> Result<Self, KafkaFault> {
        let settings = LoginSettings::of(&options.properties)?;
        let login = settings.map(Login::shared).transpose()?;
        let failures = login.as_ref().map_or(0, |login| login.failures()).into();
        Ok(Self { login, failures, ..Self::default() })
    }

    /// Whether tokens have to be renewed.
    pub fn is_by_token(&self) -> bool {
        self.login.is_some()
    }

    /// Gives the client a token before it is asked to do something, and waits for one if there is none yet.
    ///
    /// # Errors
    /// Why there is no token.
    pub fn log_in(&self, client: &impl Native, wait: Duration) -> Result<(), KafkaFault> {
        let Some(login) = &self.login else { return Ok(()) };
        login.token(wait)?;
        self.renew(client).map_or(Ok(()), Err)
    }

    /// Gives the client the newest token, if it does not have it; returns why it is logged out, if it is.
    pub fn renew(&self, client: &impl Native) -> Option<KafkaFault> {
        let login = self.login.as_ref()?;
        let (number, token) = match login.newest() {
            Ok(newest) => newest,
            Err(fault) => return fault,
        };
        if self.given.load(Relaxed) == number {
            return None;
        }
        match set_kafka_token(client.native(), &login.native(&token)) {
            Ok(()) => {
                self.given.store(number, Relaxed);
                None
            }
            Err(why) => Some(login.fault(format!("gives a token that the client does not take: {why}"))),
        }
    }

    /// How many times no token could be had since this was asked last.
    pub fn take_failures(&self) -> u64 {
        let now = self.login.as_ref().map_or(0, |login| login.failures());
        now - self.failures.swap(now, Relaxed)
    }

    /// Whether a client would have to log in with no valid token.
    pub fn is_logged_out(&self) -> bool {
        self.login.as_ref().is_some_and(|login| login.newest().is_err())
    }

    /// Where tokens come from, in words, and the one that is valid, waiting for it if there is none yet.
    ///
    /// # Errors
    /// Why there is no token.
    pub fn token(&self, wait: Duration) -> Result<Option<(String, Arc<Token>)>, KafkaFault> {
        let Some(login) = &self.login else { return Ok(None) };
        Ok(Some((login.issuer().to_owned(), login.token(wait)?)))
    }
}

impl KafkaClientOptions {
    /// A client for some requests, logged in; waits at most so long for a token.
    ///
    /// # Errors
    /// When an option or property is not valid, or there is no token.
    pub(in crate::ingest) fn open<K, C>(
        &self,
        config: &ClientConfig,
        context: C,
        wait: Duration,
    ) -> Result<K, KafkaFault>
    where
        K: Native + FromClientConfigAndContext<C>,
        C: ClientContext,
    {
        let session = Session::of(self)?;
        let client: K = config.create_with_context(context).map_err(|error| config_fault(&error))?;
        session.log_in(&client, wait)?;
        Ok(client)
    }
}
