//! Before a replica leads: `evergraph cluster promote`, on its stopped daemon, with the settings that it will lead
//! with.
//!
//! ```text
//! plan       the log here against the topic of frames; what Kafka sources will read; nothing is changed
//! carry out  a new term in both topics: an earlier leader that still runs ships nothing more, and ends
//! ```
//! A replica that has not received all that the topic has is refused: as a leader it could not go on with the topic.
//! Nothing is noted in the data directory: who leads is what settings say, and only those.

use std::collections::BTreeSet;

use anyhow::{Result, bail, ensure};

use super::cluster::place_behind;
use super::seek::BROKER_PATIENCE;
use super::source_options::{kafka_sources, replication_options};
use super::stopped::{Stopped, open_stopped};
use crate::config::{ClusterRole, Config};
use crate::event::{EdgeId, PositionLookup};
use crate::ingest::kafka::{PartitionRange, preflight};
use crate::ingest::replication::{FrameWriter, Shipped, StateWriter, shipped};

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

    /// Whether the log has offsets that the topic never had: it is another one of the same name.
    #[must_use]
    pub fn is_beyond(&self) -> bool {
        self.from.is_some_and(|from| from > self.range.high)
    }
}

/// A planned promotion. It holds the lock of the data directory.
pub struct Takeover {
    config: Config,
    _store: Stopped,
    shipped: Shipped,
    /// Where the log ends.
    pub end: EdgeId,
    /// What the Kafka sources of the settings will read.
    pub reading: Vec<Reading>,
    /// Kafka sources that the log has events of and that the settings do not name.
    pub unnamed: Vec<String>,
}

impl Takeover {
    /// Plans it.
    ///
    /// # Errors
    /// When the settings are not a leader's, a daemon runs on the data directory, brokers cannot be reached, or the log
    /// here cannot go on with the topic.
    pub fn plan(config: &Config) -> Result<Self> {
        ensure!(
            config.cluster.role == ClusterRole::Leader,
            "cluster.role is not leader: pass the settings that this daemon will lead with"
        );
        let store = open_stopped(config)?;
        let (options, log) = (replication_options(config), store.log.readers());
        let (topic, end, shipped) = (options.frames(), log.durable_end(), shipped(&options)?);
        if shipped.end > end {
            bail!(
                "topic {topic} has records up to position {shipped}, and the log here ends at {}: start this daemon as \
                 a replica until its frames_position is {shipped}, and stop it again",
                end.0,
                shipped = shipped.end.0,
            );
        }
        place_behind(&log, &topic, shipped)?;
        let (positions, mut reading) = (store.positions()?, Vec::new());
        let mut unnamed: BTreeSet<String> =
            positions.all().iter().map(|position| position.source.to_string()).collect();
        unnamed.retain(|source| source.starts_with("kafka:"));
        for (_, options) in kafka_sources(config)? {
            let source = options.source_name();
            unnamed.remove(&source);
            for range in preflight(&options, BROKER_PATIENCE)?.partitions {
                let from = positions.position(&source, range.partition);
                reading.push(Reading { source: source.clone(), range, from });
            }
        }
        let unnamed = unnamed.into_iter().collect();
        Ok(Self { config: config.clone(), _store: store, shipped, end, reading, unnamed })
    }

    /// The topic of frames, and where it ends.
    #[must_use]
    pub fn topic(&self) -> (String, EdgeId) {
        (replication_options(&self.config).frames(), self.shipped.end)
    }

    /// Takes over the topics.
    ///
    /// # Errors
    /// When an earlier leader has shipped more meanwhile, or brokers refuse.
    pub fn carry_out(self) -> Result<()> {
        let options = replication_options(&self.config);
        let found = FrameWriter::new(options.clone(), 0).connect(true)?;
        ensure!(
            found == Some(self.shipped),
            "the earlier leader has shipped more meanwhile, and ends now: start this daemon as a replica until it has \
             that, stop it, and promote it again"
        );
        StateWriter::new(options, 0, &self.config.cluster.advertise).connect(true)?;
        Ok(())
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
            (reading.to_read(), reading.gone(), reading.is_beyond())
        };
        assert_eq!(counts(Some(40)), (Some(60), 0, false));
        assert_eq!(counts(Some(100)), (Some(0), 0, false));
        assert_eq!(counts(Some(4)), (Some(90), 6, false));
        assert_eq!(counts(Some(900)), (Some(0), 0, true));
        assert_eq!(counts(None), (None, 0, false));
    }
}
