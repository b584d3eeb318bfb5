//! Makes a stopped replica the leader: `evergraph cluster promote`.
//!
//! ```text
//! plan       the log here against the topic of frames; what Kafka sources will read; nothing is changed
//! carry out  a new term in both topics, so that an earlier leader ends; the catalog notes that this one leads
//! ```
//! The note stands against `cluster.role = "replica"` until the settings say `leader`, or it is taken back. A replica
//! that has not received all that the topic has is refused: as a leader it could not go on with the topic.

use std::borrow::Cow;

use anyhow::{Result, bail, ensure};

use super::cluster::ending_at;
use super::promotion::open_stopped;
use super::source_options::{kafka_sources, replication_options};
use super::{Store, unix_ms};
use crate::catalog::Catalog;
use crate::config::{ClusterRole, Config};
use crate::event::{EdgeId, PositionLookup};
use crate::ingest::kafka::{PartitionRange, preflight};
use crate::ingest::replication::{FrameWriter, ReplicationFault, Shipped, StateWriter, shipped};

/// The catalog's name for the note: a time, or nothing.
const NAME: &str = "cluster.promoted_unix_ms";

/// What a Kafka source of the new leader will read of a partition.
#[derive(Clone, Debug)]
pub struct Reading {
    /// The source's name.
    pub source: String,
    /// The partition, and the offsets that the broker has of it.
    pub range: PartitionRange,
    /// The next offset by the log; `None` if it has nothing of the partition.
    pub from: Option<i64>,
}

impl Reading {
    /// Offsets that it will read, up to what is there now; `None` where the settings decide where it begins.
    #[must_use]
    pub fn to_read(&self) -> Option<i64> {
        self.from.map(|from| (self.range.high - from.max(self.range.low)).max(0))
    }

    /// Offsets that the log does not have and that are gone from the topic.
    #[must_use]
    pub fn gone(&self) -> i64 {
        self.from.map_or(0, |from| (self.range.low - from).max(0))
    }
}

/// A planned promotion. It holds the lock of the data directory.
pub struct Takeover {
    config: Config,
    store: Store,
    shipped: Shipped,
    /// Where the log ends.
    pub end: EdgeId,
    /// What the Kafka sources of the settings will read.
    pub reading: Vec<Reading>,
}

impl Takeover {
    /// Plans it.
    ///
    /// # Errors
    /// When the settings are not a replica's, a daemon runs on the data directory, brokers cannot be reached, or the log
    /// here is not all that the topic has.
    pub fn plan(config: &Config) -> Result<Self> {
        ensure!(
            config.cluster.role == ClusterRole::Replica,
            "cluster.role is not replica: only a replica is promoted; pass the settings that the replica runs with"
        );
        let store = open_stopped(config)?;
        let (options, log) = (replication_options(config), store.log.readers());
        let (topic, end, shipped) = (options.frames(), log.durable_end(), shipped(&options)?);
        if shipped.end > end {
            bail!(
                "topic {topic} has records up to position {}, and the log here ends at {end}: start this daemon as a \
                 replica until its frames_position is {}, and stop it again",
                shipped.end.0,
                shipped.end.0,
                end = end.0,
            );
        }
        let own = ending_at(&log, shipped.end)?;
        if own.identity != 0 && own != shipped {
            return Err(ReplicationFault::Foreign { topic, position: shipped.end }.into());
        }
        let (positions, mut reading) = (store.positions()?, Vec::new());
        for (_, options) in kafka_sources(config)? {
            let source = options.source_name();
            for range in preflight(&options, super::seek::BROKER_PATIENCE)?.partitions {
                let from = positions.position(&source, range.partition);
                reading.push(Reading { source: source.clone(), range, from });
            }
        }
        Ok(Self { config: config.clone(), store, shipped, end, reading })
    }

    /// The topic of frames, and where it ends.
    #[must_use]
    pub fn topic(&self) -> (String, EdgeId) {
        (replication_options(&self.config).frames(), self.shipped.end)
    }

    /// Takes over the topics, and notes that this daemon leads.
    ///
    /// # Errors
    /// When an earlier leader has shipped more meanwhile, or brokers or catalog refuse.
    pub fn carry_out(self) -> Result<()> {
        let options = replication_options(&self.config);
        let found = FrameWriter::new(options.clone(), 0).connect(true)?;
        ensure!(
            found == Some(self.shipped),
            "the earlier leader has shipped more meanwhile, and ends now: start this daemon as a replica until it has \
             that, stop it, and promote it again"
        );
        StateWriter::new(options, 0, &self.config.cluster.advertise).connect(true)?;
        note(&self.store, &unix_ms().to_string())
    }
}

/// Takes the note back: the daemon is a replica again. Returns whether there was one.
///
/// # Errors
/// When a daemon runs on the data directory, or the catalog refuses.
pub fn take_back(config: &Config) -> Result<bool> {
    let store = open_stopped(config)?;
    let was = store.checkpoints.with_catalog(|catalog| catalog.operator_value(NAME))?;
    note(&store, "")?;
    Ok(was.is_some_and(|text| !text.is_empty()))
}

fn note(store: &Store, text: &str) -> Result<()> {
    store.checkpoints.with_catalog(|catalog| catalog.set_operator_value(NAME, text))
}

/// The settings with the role that the daemon has: a replica that was promoted leads. Settings that say so themselves
/// make the note void.
///
/// # Errors
/// When the catalog cannot be read or written.
pub fn with_role(config: &Config) -> Result<Cow<'_, Config>> {
    let path = config.data.dir.join("catalog.sqlite");
    if config.cluster.role == ClusterRole::Single || !path.exists() {
        return Ok(Cow::Borrowed(config));
    }
    let noted = Catalog::open_read_only(&path)?.operator_value(NAME)?.filter(|text| !text.is_empty());
    match (config.cluster.role, noted) {
        (_, None) => Ok(Cow::Borrowed(config)),
        (ClusterRole::Replica, Some(_)) => {
            let mut leads = config.clone();
            leads.cluster.role = ClusterRole::Leader;
            Ok(Cow::Owned(leads))
        }
        (_, Some(_)) => {
            Catalog::open(&path)?.set_operator_value(NAME, "")?;
            Ok(Cow::Borrowed(config))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_read_and_what_is_gone_is_counted() {
        let counts = |from| {
            let range = PartitionRange { partition: 0, low: 10, high: 100 };
            let reading = Reading { source: "kafka:t".to_owned(), range, from };
            (reading.to_read(), reading.gone())
        };
        assert_eq!(counts(Some(40)), (Some(60), 0));
        assert_eq!(counts(Some(100)), (Some(0), 0));
        assert_eq!(counts(Some(4)), (Some(90), 6));
        assert_eq!(counts(Some(900)), (Some(0), 0), "another topic of this name");
        assert_eq!(counts(None), (None, 0));
    }

    #[test]
    fn a_promoted_replica_leads_until_settings_say_who_does() {
        let folder = tempfile::tempdir().unwrap();
        let mut config = Config::load(None, &[]).unwrap();
        config.data.dir = folder.path().to_path_buf();
        config.cluster.role = ClusterRole::Replica;
        let role = |config: &Config| with_role(config).unwrap().cluster.role;
        assert_eq!(role(&config), ClusterRole::Replica, "there is no data directory yet");
        let catalog = Catalog::open(&folder.path().join("catalog.sqlite")).unwrap();
        assert_eq!(role(&config), ClusterRole::Replica);
        catalog.set_operator_value(NAME, "1").unwrap();
        assert_eq!(role(&config), ClusterRole::Leader);
        config.cluster.role = ClusterRole::Leader;
        assert_eq!(role(&config), ClusterRole::Leader);
        config.cluster.role = ClusterRole::Replica;
        assert_eq!(role(&config), ClusterRole::Replica, "the settings have decided meanwhile");
    }
}
