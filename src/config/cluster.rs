//! `[cluster]`: whether the daemon stands alone, leads, or follows a leader.

use serde::Deserialize;

use super::Config;
use super::check::Faults;
use crate::device::DeviceSpec;
use crate::train::{RANKS_MAX, not_shared};

/// What a daemon is among others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ClusterRole {
    /// It stands alone.
    Single,
    /// It takes events, learns, and ships both to its replicas.
    Leader,
    /// It serves what a leader has shipped.
    Replica,
}

/// When a leader acknowledges a push.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ClusterAck {
    /// When it is durable on the leader.
    Local,
    /// When it is in the topic that replicas read, too.
    Kafka,
}

impl Config {
    /// Processes that cannot train together.
    pub(super) fn check_ranks(&self, faults: &mut Faults) {
        let (ranks, seconds) = (self.learner.ranks, self.learner.ranks_deadline_seconds);
        let (possible, allowed) = ((1..=50).contains(&seconds), "must be at least 1 and at most 50");
        faults.require(possible, "learner.ranks_deadline_seconds", seconds, allowed);
        let fits = ranks.is_power_of_two() && ranks <= RANKS_MAX;
        faults.require(fits, "learner.ranks", ranks, "must be 1, 2, 4 or 8");
        // A replica that has its leader's file learns nothing.
        if ranks == 1 || self.cluster.role == ClusterRole::Replica {
            return;
        }
        let is_cpu = !matches!(self.device.spec, DeviceSpec::Cuda(_));
        faults.require(
            is_cpu,
            "learner.ranks",
            ranks,
            "must be 1 where device.use is cuda: ranks train on CPUs",
        );
        let batch = self.learner.batch_events;
        let part = self.trainer_options().model.needs().part_events;
        let allowed =
            "must be at most learner.batch_events / 100, for graphmixer / 25, or there is no share for each";
        faults.require(batch >= part * ranks, "learner.ranks", ranks, allowed);
        let allowed = "must be 1, unless model.kind is tgn, jodie or graphmixer, and \
                       learner.gradient_delay_batches is 0";
        let is_shared = not_shared(&self.trainer_options()).is_none();
        faults.require(is_shared, "learner.ranks", ranks, allowed);
    }

    /// Roles without what they need, or with what they must not have.
    pub(super) fn check_cluster(&self, faults: &mut Faults) {
        let (cluster, kafka) = (&self.cluster, &self.ingest.kafka);
        let (low, allowed) =
            (cluster.max_staleness_ms, "must be at least 1000: leaders send a sign of life each second");
        faults.require(low >= 1000, "cluster.max_staleness_ms", low, allowed);
        let (coalesce, allowed) = (cluster.coalesce_ms, "must be at most 1000");
        faults.require(coalesce <= 1000, "cluster.coalesce_ms", coalesce, allowed);
        // Leader and replicas may have one file.
        let ships = cluster.ack == ClusterAck::Local || cluster.role != ClusterRole::Single;
        faults.require(ships, "cluster.ack", "kafka", "must be local where cluster.role is single");
        if cluster.role == ClusterRole::Single {
            return;
        }
        let has_brokers = !cluster.brokers.is_empty() || !kafka.brokers.is_empty();
        let allowed = "needs brokers: set cluster.brokers or ingest.kafka.brokers";
        faults.require(has_brokers, "cluster.role", format!("{:?}", cluster.role).to_lowercase(), allowed);
        let topics = &cluster.topics;
        let is_name = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        let fits = !topics.is_empty() && topics.len() <= 200 && topics.chars().all(is_name);
        let allowed = "must be 1 to 200 letters, digits, '.', '_' and '-': names of topics begin with it";
        faults.require(fits, "cluster.topics", topics, allowed);
        if cluster.role == ClusterRole::Replica {
            let allowed = "must be empty on a replica: its leader delivers that";
            faults.require(self.feed.topic.is_empty(), "feed.topic", &self.feed.topic, allowed);
            faults.require(
                self.anomalies.topic.is_empty(),
                "anomalies.topic",
                &self.anomalies.topic,
                allowed,
            );
        }
    }
}
