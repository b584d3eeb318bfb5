//! The figures that open pages show, as server-sent events.
//!
//! One task makes one text a second, whatever the number of pages, and hands the same bytes to each of them. A page
//! that reads slowly skips texts and holds one at most. So a page costs the daemon a write a second and a place among
//! [`ApiLimits::console_pages`](super::super::ApiLimits), and while no page is open nothing is written at all.
//!
//! ```text
//! event: history    the curves so far, once, when a page opens
//! event: status     the status document, the health checks and the progress of a start, every second
//! ```
//!
//! A stream ends after [`STREAM_MAX`], so that a key which was removed is asked for again, and when the daemon stops.
//! The page then opens another one.

use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::Extension;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::HeaderValue;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderName};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use parking_lot::Mutex;
use serde::Serialize;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{Instant, MissedTickBehavior, interval, timeout_at};

use super::super::envelope::{Permit, blocking};
use super::super::error::ApiError;
use super::super::health::{Health, HealthReport};
use super::super::status::StatusDocument;
use super::super::{App, StatusSource};
use super::history::History;
use crate::metrics::Metrics;

/// Longest life of a stream.
const STREAM_MAX: Duration = Duration::from_secs(600);

/// Proxies that collect a response before they pass it on are asked not to.
const NO_BUFFERING: HeaderName = HeaderName::from_static("x-accel-buffering");

/// What all pages are shown.
pub struct Feed {
    status: StatusSource,
    health: Arc<Health>,
    metrics: Arc<Metrics>,
    history: Mutex<History>,
    texts: watch::Sender<Text>,
    pages: Arc<Semaphore>,
}

#[derive(Clone)]
enum Text {
    Latest(Bytes),
    /// The daemon stops.
    Ended,
}

/// What a page is shown every second.
#[derive(Serialize)]
struct Figures<'a> {
    at_unix_ms: i64,
    status: &'a StatusDocument,
    health: HealthReport,
    /// While the daemon reads its log at a start.
    restoring: Option<Restoring>,
}

#[derive(Serialize)]
struct Restoring {
    position: i64,
    end_position: i64,
}

impl Feed {
    /// Nothing is shown until [`produce`](Self::produce) runs.
    pub(in super::super) fn new(
        status: StatusSource,
        health: Arc<Health>,
        metrics: Arc<Metrics>,
        pages_max: usize,
    ) -> Arc<Self> {
        Arc::new(Self {
            status,
            health,
            metrics,
            history: Mutex::new(History::new()),
            texts: watch::Sender::new(Text::Latest(Bytes::new())),
            pages: Arc::new(Semaphore::new(pages_max)),
        })
    }

    /// Takes the figures at every tick and writes them for the pages that are open. Ends with [`end`](Self::end).
    pub async fn produce(self: Arc<Self>, every: Duration) {
        let mut ticks = interval(every);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut ended = self.texts.subscribe();
        loop {
            let stop = pin!(ended.wait_for(|text| matches!(text, Text::Ended)));
            tokio::select! {
                _ = stop => return,
                _ = ticks.tick() => {}
            }
            let feed = Arc::clone(&self);
            if let Err(error) = tokio::task::spawn_blocking(move || feed.tick()).await {
                tracing::error!(%error, "the console shows no new figures for a second");
            }
        }
    }

    /// Ends all streams: what follows is the end of the daemon.
    pub fn end(&self) {
        self.texts.send_replace(Text::Ended);
    }

    fn tick(&self) {
        let (now, status) = (now_unix_ms(), (self.status)());
        let restoring = self.restoring();
        if restoring.is_none() {
            self.history.lock().record(now, &status);
        }
        // The producer has a receiver of its own.
        if self.texts.receiver_count() < 2 {
            return;
        }
        let text = self.status_event(now, &status, restoring);
        self.texts.send_if_modified(|last| {
            let is_open = matches!(last, Text::Latest(_));
            if is_open {
                *last = Text::Latest(text);
            }
            is_open
        });
    }

    /// What a page gets first.
    fn opening(&self) -> Bytes {
        let history = event("history", &*self.history.lock());
        let status = self.status_event(now_unix_ms(), &(self.status)(), self.restoring());
        [history, status].concat().into()
    }

    fn status_event(&self, at_unix_ms: i64, status: &StatusDocument, restoring: Option<Restoring>) -> Bytes {
        event("status", &Figures { at_unix_ms, status, health: self.health.everything(), restoring })
    }

    /// How far a start is.
    fn restoring(&self) -> Option<Restoring> {
        let starts = |check: &super::super::Check| check.detail == Health::STARTING;
        self.health.readiness().checks.get(Health::DAEMON).is_some_and(starts).then(|| Restoring {
            position: self.metrics.log.replay_position.get(),
            end_position: self.metrics.log.replay_end_position.get(),
        })
    }
}

fn event(name: &str, data: &impl Serialize) -> Bytes {
    match serde_json::to_string(data) {
        Ok(json) => format!("event: {name}\ndata: {json}\n\n").into(),
        Err(error) => {
            tracing::error!(%error, name, "figures for the console could not be written");
            Bytes::new()
        }
    }
}

fn now_unix_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

/// One stream.
struct Page {
    opening: Option<Bytes>,
    texts: watch::Receiver<Text>,
    until: Instant,
    _place: OwnedSemaphorePermit,
}

impl Page {
    async fn next(&mut self) -> Option<Bytes> {
        if let Some(opening) = self.opening.take() {
            return Some(opening);
        }
        // A page that is slower than the figures has the next one whenever it asks.
        if Instant::now() >= self.until {
            return None;
        }
        timeout_at(self.until, self.texts.changed()).await.ok()?.ok()?;
        match &*self.texts.borrow_and_update() {
            Text::Latest(text) => Some(text.clone()),
            Text::Ended => None,
        }
    }
}

/// `/ui/live`
pub(super) async fn live(
    State(app): State<App>,
    Extension(permit): Extension<Permit>,
) -> Result<Response, ApiError> {
    let feed = Arc::clone(&app.feed);
    let full = |_| ApiError::NoPlaceForPage { places: app.state.limits.console_pages };
    let place = Arc::clone(&feed.pages).try_acquire_owned().map_err(full)?;
    let mut texts = feed.texts.subscribe();
    if matches!(&*texts.borrow_and_update(), Text::Ended) {
        return Err(ApiError::ShuttingDown);
    }
    let opening = blocking(Some(permit), app.state.limits.request_timeout, move || feed.opening()).await?;
    let page = Page { opening: Some(opening), texts, until: Instant::now() + STREAM_MAX, _place: place };
    let texts = stream::unfold(page, async |mut page| {
        let text = page.next().await?;
        Some((Ok::<_, Infallible>(text), page))
    });
    let headers = [
        (CONTENT_TYPE, HeaderValue::from_static("text/event-stream")),
        (CACHE_CONTROL, HeaderValue::from_static("no-store")),
        (NO_BUFFERING, HeaderValue::from_static("no")),
    ];
    Ok((headers, Body::from_stream(texts)).into_response())
}
