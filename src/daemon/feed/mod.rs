//! The change feed: a thread that delivers to a topic of Kafka what the learner has changed.
//!
//! At least once, and nothing is lost: how far it has delivered is in the catalog, as a log position, for one topic at
//! one set of brokers in one format. A start makes the nodes due of what the log has from there to the checkpoint that
//! the learner goes on from; what is behind that, the learner learns again, and its nodes are due by that. Where the
//! log does not tell (it was cut, or nodes were deleted in that part of it, which changes others), all nodes are due.
//!
//! A deleted node has no name any more when it is its turn. So names that the dictionary forgets go to the catalog
//! first ([`Deletions`]) and leave it when the brokers have acknowledged the deletion. A snapshot is written only after
//! those that it no longer contains are there: a start from it repeats all deletions behind it, and no others.

mod deletions;
mod status;
mod worker;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

pub(super) use self::deletions::Deletions;
pub(super) use self::status::FeedStatus;
use self::worker::{Limits, Worker};
use super::source_options::feed_options;
use super::stopped::open_stopped;
use super::supervise::Supervisor;
use super::{PULSE_LIMIT, Parts, Store};
use crate::config::{self, Config, OnNewVersion};
use crate::device::stand_back;
use crate::ingest::produce::FeedTopic;
use crate::serving::{ChangeFeed, FeedOptions};

/// Rows of a slice at most: brokers acknowledge each slice, and take fewer requests for the same rows where it is long.
const SLICE_ROWS: usize = 2048;

/// Follows what is deleted from now on, where the settings ask for a feed. To be called before the index is rebuilt.
///
/// # Errors
/// The catalog cannot be written.
pub(super) fn prepare(config: &Config, store: &Store) -> Result<Option<Arc<Deletions>>> {
    let catalog = store.checkpoints.catalog();
    let target = (!config.feed.topic.is_empty()).then(|| target(config));
    if catalog.lock().forget_feeds_but(target.as_deref())? {
        tracing::warn!(
            "the change feed goes elsewhere, or there is none any more: should it go to the old topic again, give it a \
             new one, since nodes that are deleted meanwhile stay in the old one"
        );
    }
    if target.is_none() {
        // Nobody will deliver them.
        catalog.lock().settle_deletions(i64::MAX)?;
        return Ok(None);
    }
    let keys = store.index.stores.keys.clone();
    keys.follow_forgotten();
    Ok(Some(Arc::new(Deletions::new(keys, catalog))))
}

/// What the readers of a feed read: rows that were delivered elsewhere, or in another form, are not there.
fn target(config: &Config) -> String {
    let feed = &config.feed;
    let brokers = if feed.brokers.is_empty() { &config.ingest.kafka.brokers } else { &feed.brokers };
    format!("{} at {brokers}: {:?} {}", feed.topic, feed.format, feed.collection)
}

/// Has the next start deliver all rows; whether any had been delivered.
///
/// # Errors
/// When there is no feed, a daemon runs on the data directory, or it cannot be opened.
pub fn resend(config: &Config) -> Result<bool> {
    ensure!(!config.feed.topic.is_empty(), "there is no change feed: feed.topic is empty");
    // Opened as a whole, so that no daemon runs on it meanwhile.
    let store = open_stopped(config)?;
    Ok(store.checkpoints.catalog().lock().forget_feeds_but(None)?)
}

/// How rows are taken: of a slice that is delivered at a limited rate, in parts of a second.
fn row_options(settings: &config::Feed) -> FeedOptions {
    let a_quarter_second = usize::try_from(settings.rows_per_second_max / 4).unwrap_or(usize::MAX);
    let is_limited = settings.rows_per_second_max > 0;
    FeedOptions {
        slice_rows: if is_limited { a_quarter_second.clamp(1, SLICE_ROWS) } else { SLICE_ROWS },
        queue_bytes_max: settings.queue_bytes_max,
    }
}

/// Starts the thread, once the learner has taken up its checkpoint and before it goes on.
pub(super) fn start(
    config: &Config,
    (parts, store): (&Parts, &Store),
    deletions: Option<Arc<Deletions>>,
    supervisor: &Supervisor,
    stop: &Arc<AtomicBool>,
) -> Result<Option<JoinHandle<()>>> {
    let Some(deletions) = deletions else { return Ok(None) };
    let settings = &config.feed;
    let limits = Limits {
        coalesce: Duration::from_millis(settings.coalesce_ms),
        cpu_share: settings.cpu_share,
        rows_per_second: settings.rows_per_second_max,
        all_of_a_version: settings.on_new_version == OnNewVersion::All,
    };
    let (outlet, format) = feed_options(config);
    let worker = Worker {
        feed: ChangeFeed::new(parts.engine.clone(), row_options(settings)),
        topic: FeedTopic::new(outlet, format),
        topic_name: settings.topic.clone(),
        target: target(config),
        limits,
        log: store.log.readers(),
        began: parts.progress.learned(),
        deletions,
        catalog: store.checkpoints.catalog(),
        status: parts.feed.clone(),
        saved: None,
        saved_at: None,
        taken_at: Instant::now(),
        failing_since: None,
        is_new_topic: false,
    };
    let (flag, pulse) = (stop.clone(), parts.health.heartbeat("feed", PULSE_LIMIT));
    let nice = u8::try_from(config.learner.nice / 2).unwrap_or_default();
    let run = move || {
        stand_back(nice, "learner.nice");
        worker.run(&flag, || pulse.beat());
        Ok(())
    };
    supervisor.start("feed", "feed", stop, run).map(Some)
}
