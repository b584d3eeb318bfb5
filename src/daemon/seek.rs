//! Moves a Kafka source to another position: of a stopped daemon here, of a running one in `sources/moving`.
//!
//! Positions are stored in the frames of the log, so a seek is a frame without events: a run of offsets per partition,
//! from the current position to the target. Forward, the run accounts for the skipped offsets; backward, it ends before
//! it begins, and the offsets between are read and stored again. Like any frame it is durable, applies to all
//! partitions or none, and has its place in the order of the log. Repeating a seek finds the partitions at the target
//! and writes nothing.

use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use super::source_options::kafka_sources;
use super::stopped::{Stopped, open_stopped};
use super::unix_ms;
use crate::api::{PartitionSeek, SeekResponse};
use crate::config::Config;
use crate::event::{EdgeBatch, EdgeId, ORIGIN_HISTORY, PositionLookup, SourceRange};
use crate::ingest::kafka::{KafkaFault, KafkaSourceOptions, PartitionRange, offsets_at, preflight};
use crate::log::Frame;

/// Timeout of requests to the brokers.
pub(super) const BROKER_PATIENCE: Duration = Duration::from_secs(10);

/// Where to continue reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// At the oldest message that the broker has.
    Earliest,
    /// After the newest message.
    Latest,
    /// At this offset.
    Offset(i64),
    /// At the first message that is no older, in milliseconds since the Unix epoch.
    Time(i64),
}

impl FromStr for Target {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let number = |digits: &str| digits.parse::<i64>().ok().filter(|number| *number >= 0);
        let found = match text.split_once(':') {
            None if text == "earliest" => Some(Self::Earliest),
            None if text == "latest" => Some(Self::Latest),
            Some(("offset", digits)) => number(digits).map(Self::Offset),
            Some(("time", digits)) => number(digits).map(Self::Time),
            _ => None,
        };
        found.ok_or("write earliest, latest, offset:N or time:MS")
    }
}

/// What a seek does to one partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// The partition, and the offsets that the broker has of it.
    pub range: PartitionRange,
    /// The next offset to read according to the log; `None` if it has nothing of the partition.
    pub from: Option<i64>,
    /// The next offset to read after the seek.
    pub to: i64,
}

impl Step {
    /// Number of offsets that will never be read.
    #[must_use]
    pub fn skipped(&self) -> i64 {
        (self.to - self.from.unwrap_or(self.range.low)).max(0)
    }

    /// Number of offsets that will be read again, as far as the broker still has them.
    #[must_use]
    pub fn read_again(&self) -> i64 {
        self.from.map_or(0, |from| (from.min(self.range.high) - self.to).max(0))
    }
}

/// What a seek would do.
pub struct Plan {
    source: Arc<str>,
    steps: Vec<Step>,
    /// Whether a partition was not read to its end yet: it is history up to there, before and after the seek.
    is_history: bool,
}

impl Plan {
    /// Plans a seek of one partition, or all, to `target`, from where `positions` has the source. With `anew`, also
    /// partitions that stand there begin anew: what was read before is not compared. `other_cluster` returns the
    /// cluster that the topic was read from, if it is another one.
    ///
    /// # Errors
    /// When no broker is reachable, the topic is of another cluster, the partition does not exist, or the broker does
    /// not have the offset.
    pub(super) fn of(
        options: &KafkaSourceOptions,
        (target, partition, anew): (Target, Option<i32>, bool),
        positions: &dyn PositionLookup,
        other_cluster: impl FnOnce(&str, &str) -> Result<Option<String>>,
    ) -> Result<Self> {
        let source: Arc<str> = options.source_name().into();
        let report = preflight(options, BROKER_PATIENCE)?;
        if let Some(found) = report.cluster_id
            && let Some(remembered) = other_cluster(&options.topic, &found)?
        {
            let topic = options.topic.clone();
            return Err(KafkaFault::OtherCluster { topic, remembered, found }.into());
        }
        let mut ranges = report.partitions;
        if let Some(wanted) = partition {
            let known: Vec<i32> = ranges.iter().map(|range| range.partition).collect();
            ranges.retain(|range| range.partition == wanted);
            ensure!(!ranges.is_empty(), "{source} has no partition {wanted}; there are {known:?}");
        }
        let targets = match target {
            Target::Time(at) => offsets_at(options, &ranges, at, BROKER_PATIENCE)?,
            target => ranges.iter().map(|range| offset_of(target, range, &source)).collect::<Result<_>>()?,
        };
        let step = |(range, to): (PartitionRange, i64)| Step {
            range,
            from: positions.position(&source, range.partition),
            to,
        };
        let steps =
            ranges.into_iter().zip(targets).map(step).filter(|step| anew || step.from != Some(step.to));
        let steps: Vec<Step> = steps.collect();
        let origin = |step: &Step| positions.origin_unix_ms(&source, step.range.partition);
        let is_history = steps.iter().any(|step| origin(step).is_none_or(|origin| origin == ORIGIN_HISTORY));
        Ok(Self { source, steps, is_history })
    }

    /// The steps, one per partition that is not at the target yet.
    #[must_use]
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// Name of the source in the log.
    #[must_use]
    pub fn source(&self) -> &str {
        &self.source
    }

    /// The frame that carries it out, at the end of the log.
    pub(super) fn frame(&self, end: EdgeId) -> Frame {
        frame(end, &self.source, &self.steps, if self.is_history { ORIGIN_HISTORY } else { unix_ms() })
    }
}

/// What a seek does, as the API describes it.
#[must_use]
pub fn response(source: &str, done: bool, steps: &[Step]) -> SeekResponse {
    let partition = |step: &Step| PartitionSeek {
        partition: step.range.partition,
        from: step.from,
        to: step.to,
        skipped: step.skipped(),
        read_again: step.read_again(),
        broker_earliest: step.range.low,
        broker_latest: step.range.high,
    };
    SeekResponse { source: source.to_owned(), done, partitions: steps.iter().map(partition).collect() }
}

/// A planned seek of a stopped daemon. It holds the lock of the data directory.
pub struct Seek {
    store: Stopped,
    /// What it would do.
    pub plan: Plan,
}

impl Seek {
    /// Plans a seek of one partition, or all, to `target`, of the source of this name, which may be left out where
    /// there is one.
    ///
    /// # Errors
    /// When a daemon runs on the data directory, no broker is configured or reachable, there is no such source or
    /// partition, or the broker does not have the offset.
    pub fn plan(
        config: &Config,
        source: Option<&str>,
        target: Target,
        partition: Option<i32>,
    ) -> Result<Self> {
        let sources: Vec<KafkaSourceOptions> =
            kafka_sources(config)?.into_iter().map(|(_, options)| options).collect();
        ensure!(
            !sources.is_empty(),
            "ingest.kafka.brokers is empty: only a Kafka source can seek; pass the settings that the daemon runs with"
        );
        let names = sources.iter().map(KafkaSourceOptions::source_name);
        let name = one_of(source, &names.collect::<Vec<_>>())?;
        let options = sources.iter().find(|options| options.source_name() == name);
        let options = options.context("the source is gone")?;
        let store = open_stopped(config)?;
        let (positions, checkpoints) = (store.positions()?, &store.checkpoints);
        let other_cluster = |topic: &str, cluster: &str| checkpoints.other_cluster(topic, cluster);
        let plan = Plan::of(options, (target, partition, false), &positions, other_cluster)?;
        Ok(Self { store, plan })
    }

    /// Applies the seek; durable on return.
    ///
    /// # Errors
    /// When the log cannot be written; then nothing has changed.
    pub fn carry_out(mut self) -> Result<()> {
        if self.plan.steps.is_empty() {
            return Ok(());
        }
        let log = &mut self.store.log;
        log.append(&self.plan.frame(log.durable_end()))?;
        log.commit().context("nothing was changed")?;
        Ok(())
    }
}

/// The source that is meant: the one that is named, or the only one there is.
///
/// # Errors
/// When there is none of the name, or one has to be named.
pub fn one_of(wanted: Option<&str>, sources: &[String]) -> Result<String> {
    let known = sources.join(", ");
    match (wanted, sources) {
        (Some(wanted), _) => {
            ensure!(
                sources.iter().any(|source| source == wanted),
                "no Kafka source has the name {wanted}; there are {known}"
            );
            Ok(wanted.to_owned())
        }
        (None, [only]) => Ok(only.clone()),
        (None, _) => bail!("there are several Kafka sources: name one of {known}"),
    }
}

fn offset_of(target: Target, range: &PartitionRange, source: &str) -> Result<i64> {
    match target {
        Target::Earliest => Ok(range.low),
        Target::Offset(offset) if (range.low..=range.high).contains(&offset) => Ok(offset),
        Target::Offset(offset) => {
            let PartitionRange { partition, low, high } = range;
            bail!("{source}, partition {partition}: the broker has the offsets {low} to {high}, not {offset}")
        }
        Target::Latest | Target::Time(_) => Ok(range.high),
    }
}

fn frame(end: EdgeId, source: &Arc<str>, steps: &[Step], origin_unix_ms: i64) -> Frame {
    let run = |step: &Step| SourceRange {
        source: source.clone(),
        partition: step.range.partition,
        from: step.from.unwrap_or(step.to),
        to: step.to,
        // What is there is not compared with what was read before: the operator has decided.
        mark: None,
    };
    let batch = EdgeBatch { first: end, ..EdgeBatch::default() };
    Frame { batch, sources: steps.iter().map(run).collect(), origin_unix_ms, ..Frame::default() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::appender::Positions;
    use crate::log::{Log, LogOptions};

    fn step(partition: i32, from: Option<i64>, to: i64) -> Step {
        Step { range: PartitionRange { partition, low: 10, high: 100 }, from, to }
    }

    #[test]
    fn what_is_skipped_and_what_is_read_again_is_counted() {
        let counts = |step: Step| (step.skipped(), step.read_again());
        assert_eq!(counts(step(0, Some(40), 100)), (60, 0));
        assert_eq!(counts(step(0, Some(40), 10)), (0, 30));
        assert_eq!(counts(step(0, None, 25)), (15, 0));
        assert_eq!(counts(step(0, None, 10)), (0, 0));
        assert_eq!(counts(step(0, Some(5), 10)), (5, 0));
        assert_eq!(counts(step(0, Some(900), 10)), (0, 90));
    }

    #[test]
    fn a_seek_stands_in_the_log_and_is_found_by_every_start() {
        let folder = tempfile::tempdir().unwrap();
        let open = || {
            let options = LogOptions { dir: folder.path().to_path_buf(), segment_bytes: 1 << 20 };
            Log::open(options).unwrap().0
        };
        let source: Arc<str> = "kafka:t".into();
        let at = |log: &Log| {
            let positions = Positions::of_log(None, &mut log.reader(EdgeId(0))).unwrap();
            (0..3).map(|partition| positions.position(&source, partition)).collect::<Vec<_>>()
        };
        let mut log = open();
        let mut seek = |steps: &[Step]| {
            log.append(&frame(log.durable_end(), &source, steps, 1)).unwrap();
            log.commit().unwrap();
            at(&log)
        };
        assert_eq!(seek(&[step(0, None, 40), step(1, None, 10)]), [Some(40), Some(10), None]);
        let back = [step(0, Some(40), 12), step(1, Some(10), 90)];
        assert_eq!(seek(&back), [Some(12), Some(90), None]);
        assert_eq!(seek(&back), [Some(12), Some(90), None], "the same once more changes nothing");
        drop(log);
        let log = open();
        assert_eq!((at(&log), log.durable_end()), (vec![Some(12), Some(90), None], EdgeId(0)));
    }

    #[test]
    fn the_only_source_needs_no_name_and_one_of_several_does() {
        let sources = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        assert_eq!(one_of(None, &sources(&["kafka:a"])).unwrap(), "kafka:a");
        let both = sources(&["kafka:a", "kafka:b"]);
        assert_eq!(one_of(Some("kafka:b"), &both).unwrap(), "kafka:b");
        for (wanted, expected) in
            [(None, "name one of kafka:a, kafka:b"), (Some("a"), "no Kafka source has the name a")]
        {
            let said = one_of(wanted, &both).unwrap_err().to_string();
            assert!(said.contains(expected), "{said}");
        }
    }

    #[test]
    fn where_to_is_read_and_nonsense_is_not() {
        let good = [
            ("earliest", Target::Earliest),
            ("latest", Target::Latest),
            ("offset:7", Target::Offset(7)),
            ("time:1700000000000", Target::Time(1_700_000_000_000)),
        ];
        good.iter().for_each(|(text, read)| assert_eq!(text.parse(), Ok(*read)));
        for bad in ["", "7", "offset:", "offset:-1", "time:noon", "newest", "earliest:1"] {
            assert!(bad.parse::<Target>().unwrap_err().contains("offset:N"), "{bad}");
        }
    }

    #[test]
    fn an_offset_that_the_broker_does_not_have_is_refused_with_those_that_it_has() {
        let range = PartitionRange { partition: 3, low: 10, high: 100 };
        assert_eq!(offset_of(Target::Offset(100), &range, "kafka:t").unwrap(), 100);
        let message = offset_of(Target::Offset(101), &range, "kafka:t").unwrap_err().to_string();
        assert!(message.contains("partition 3") && message.contains("10 to 100"), "{message}");
        let offsets =
            [Target::Earliest, Target::Latest].map(|target| offset_of(target, &range, "t").unwrap());
        assert_eq!(offsets, [10, 100]);
    }
}
