//! The change feed: a thread that delivers to a topic of Kafka what the learner has changed.
//!
//! At least once, and nothing is lost: how far it has delivered is in the catalog, as a log position. A start makes the
//! nodes due of what the log has from there to the checkpoint that the learner goes on from; what is behind that, the
//! learner learns again, and its nodes are due by that. Where the log does not tell (it was cut, or nodes were deleted
//! in that part of it, which changes others), all nodes are due.
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
use std::time::Duration;

use anyhow::Result;

pub(super) use self::deletions::Deletions;
pub(super) use self::status::FeedStatus;
use self::worker::{Limits, Worker};
use super::source_options::feed_options;
use super::supervise::Supervisor;
use super::{PULSE_LIMIT, Parts, Store};
use crate::config::{Config, OnNewVersion};
use crate::device::stand_back;
use crate::ingest::produce::FeedTopic;
use crate::serving::ChangeFeed;

/// Follows what is deleted from now on, where the settings ask for a feed. To be called before the index is rebuilt.
///
/// # Errors
/// The catalog cannot be written.
pub(super) fn prepare(config: &Config, store: &Store) -> Result<Option<Arc<Deletions>>> {
    let catalog = store.checkpoints.catalog();
    if config.feed.topic.is_empty() {
        if catalog.lock().forget_feeds()? {
            tracing::warn!(
                "there is no change feed any more: should one begin again, give it a new topic, since nodes that are \
                 deleted meanwhile stay in the old one"
            );
        }
        return Ok(None);
    }
    let keys = store.index.stores.keys.clone();
    keys.follow_forgotten();
    Ok(Some(Arc::new(Deletions::new(keys, catalog))))
}

/// Has the next start deliver all rows; whether any had been delivered.
///
/// # Errors
/// When a daemon runs on the data directory, or it cannot be opened.
pub fn resend(config: &Config) -> Result<bool> {
    // Opened as a whole, so that no daemon runs on it meanwhile.
    let store = Store::open(config)?;
    Ok(store.checkpoints.catalog().lock().forget_feeds()?)
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
        feed: ChangeFeed::new(parts.engine.clone()),
        topic: FeedTopic::new(outlet, format),
        name: settings.topic.clone(),
        limits,
        log: store.log.readers(),
        began: parts.progress.learned(),
        deletions,
        catalog: store.checkpoints.catalog(),
        status: parts.feed.clone(),
        saved: None,
        saved_at: None,
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
