//! An operator's correction of where in time the stream stands, for a stopped daemon.
//!
//! A clock follows the events that agree ([`StreamClock`]). If many agree on a wrong time, all later requests without a
//! time, the watermark and retention stand there for good. A correction names the latest time that the edges which are
//! in the log by then may have had; later times among them do not move a clock. The edges stay where they are. It is
//! kept in the catalog, and each later one replaces it.

use anyhow::{Context, Result, bail};

use super::checkpoints::Checkpoints;
use super::stopped::open_stopped;
use crate::config::Config;
use crate::event::{ClockRules, EdgeId, EventTime, Op, StreamClock};

/// The catalog's name for it.
const NAME: &str = "clock.correction";

/// What a correction changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Correction {
    /// It concerns the records below this position.
    pub below: EdgeId,
    /// Where the stream stands without it; `None` without an edge.
    pub from: Option<EventTime>,
    /// Where it stands with it; `None` if no edge counts.
    pub to: Option<EventTime>,
}

/// What corrects the clocks, if an operator has.
///
/// # Errors
/// When the catalog cannot be read or holds something else.
pub(super) fn clock_correction(checkpoints: &Checkpoints) -> Result<Option<(EdgeId, EventTime)>> {
    let Some(text) = checkpoints.with_catalog(|catalog| catalog.operator_value(NAME))? else {
        return Ok(None);
    };
    let parse = |text: &str| {
        let (below, latest) = text.split_once(':')?;
        Some((EdgeId(below.parse().ok()?), EventTime(latest.parse().ok()?)))
    };
    match parse(&text) {
        Some(found) => Ok(Some(found)),
        None => bail!("the catalog holds {NAME} = {text:?}, which is no position and time; set it again"),
    }
}

/// Plans that no edge in the log moves a clock past `latest`, and records it if `apply`.
///
/// # Errors
/// When a daemon runs on the data directory, or log or catalog cannot be read or written.
pub fn correct_clock(config: &Config, latest: EventTime, apply: bool) -> Result<Correction> {
    let store = open_stopped(config)?;
    let (below, future_limit) = (store.log.durable_end(), config.stream.future_limit());
    let known = clock_correction(&store.checkpoints)?;
    let clock = |not_after| StreamClock::new(ClockRules { future_limit, not_after });
    let (mut before, mut after, mut from) = (clock(known), clock(Some((below, latest))), EdgeId(0));
    if store.log.readers().first() > EdgeId(0) {
        let snapshot = store.newest_snapshot()?.context("the log was cut, and no snapshot can be read")?;
        let saved = snapshot.capture.graph.clock;
        (before, after) = (saved.corrected(before.rules()), saved.corrected(after.rules()));
        from = snapshot.capture.position();
    }
    let mut reader = store.log.reader(from);
    while let Some(frame) = reader.next_frame().context("the event log cannot be read")? {
        let batch = &frame.batch;
        for i in (0..batch.len()).filter(|&i| batch.op[i] == Op::Edge) {
            before.observe(batch.id(i), batch.time[i]);
            after.observe(batch.id(i), batch.time[i]);
        }
    }
    if apply {
        let value = format!("{}:{}", below.0, latest.0);
        store.checkpoints.with_catalog(|catalog| catalog.set_operator_value(NAME, &value))?;
    }
    Ok(Correction { below, from: before.latest(), to: after.latest() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::Store;
    use crate::event::{EdgeBatch, NodeId};
    use crate::log::Frame;

    #[test]
    fn a_correction_sets_the_clock_back_for_every_later_start() {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path().display().to_string();
        let settings = [("data.dir", dir.as_str()), ("stream.future_limit", "1000")];
        let config =
            Config::load(None, &settings.map(|(key, value)| (key.to_owned(), value.to_owned()))).unwrap();
        let mut store = Store::open(&config).unwrap();
        let mut batch = EdgeBatch::default();
        let wild = 4_000_000_000_000_000_000;
        let times = (100..120).chain((0..20).map(|i| wild + i));
        times.for_each(|time| batch.push_edge(NodeId(0), NodeId(1), EventTime(time)));
        let new_keys = vec!["a".into(), "b".into()];
        store.log.append(&Frame { batch, new_keys, ..Frame::default() }).unwrap();
        store.log.commit().unwrap();
        drop(store);
        let latest = || {
            let mut store = Store::open(&config).unwrap();
            let interrupt = std::sync::atomic::AtomicBool::new(false);
            store
                .rebuild(
                    crate::graph::Keeping::Within(crate::graph::RetentionBounds::default()),
                    &crate::daemon::Starting {
                        interrupt: &interrupt,
                        metrics: &crate::metrics::Metrics::new(),
                    },
                )
                .unwrap();
            store.index.stores.graph.latest_time().map(|time| time.0)
        };
        assert_eq!(latest(), Some(wild + 19));
        let planned = correct_clock(&config, EventTime(5_000), false).unwrap();
        let (from, to) = (Some(EventTime(wild + 19)), Some(EventTime(119)));
        assert_eq!(planned, Correction { below: EdgeId(40), from, to });
        assert_eq!(latest(), Some(wild + 19), "it was only planned");
        assert_eq!(correct_clock(&config, EventTime(5_000), true).unwrap(), planned);
        assert_eq!(latest(), Some(119));
        assert_eq!(correct_clock(&config, EventTime(110), true).unwrap().to, Some(EventTime(110)));
        assert_eq!(latest(), Some(110));
    }
}
