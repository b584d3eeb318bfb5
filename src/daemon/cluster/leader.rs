//! The threads of a leader.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Result;

use super::status::{FRAMES, STATES};
use super::{ClusterStatus, Fault, ending_at, turns};
use crate::appender::AppenderStatus;
use crate::config::Config;
use crate::daemon::source_options::replication_options;
use crate::daemon::supervise::Supervisor;
use crate::daemon::{PULSE_LIMIT, Parts, Stop, Store, unix_ms};
use crate::event::{EdgeId, NodeId};
use crate::ingest::replication::{FrameWriter, ReplicationFault, Shipped, StateWriter};
use crate::log::{LogReader, LogReaders};
use crate::serving::{QueryEngine, SentStates, StateChanges, StateMark};

/// Frames and records that are shipped at a time, at most.
const FRAMES_MAX: usize = 512;
const RECORDS_MAX: usize = 100_000;

/// Pause when the log has nothing new.
const IDLE: Duration = Duration::from_millis(5);

/// How often a mark is sent at least, as a sign of life.
const MARK_EVERY: Duration = Duration::from_secs(1);

/// Starts them.
pub(in crate::daemon) fn start(
    config: &Config,
    (parts, store): (&Parts, &Store),
    supervisor: &Supervisor,
    stop: &Stop,
) -> Result<Vec<JoinHandle<()>>> {
    let term = u64::try_from(unix_ms()).unwrap_or_default();
    // Rows that a run before this one has shipped, of nodes that this one does not know yet, go with the first states.
    let ids = u32::try_from(store.index.stores.keys.len()).unwrap_or(u32::MAX);
    (0..ids).for_each(|id| parts.engine.states.shipped.touch(NodeId(id)));
    // Nothing is cut before it is known how much is shipped.
    parts.appender.hold_from(EdgeId(0));
    let frames = Frames {
        writer: FrameWriter::new(replication_options(config), term),
        log: store.log.readers(),
        reader: None,
        is_first: true,
        appender: parts.appender.clone(),
        status: parts.cluster.clone(),
    };
    let advertise = &config.cluster.advertise;
    let states = States {
        writer: StateWriter::new(replication_options(config), term, advertise),
        leader: advertise.clone(),
        engine: parts.engine.clone(),
        sent: SentStates::default(),
        last: None,
        is_first: true,
        coalesce: Duration::from_millis(config.cluster.coalesce_ms),
        status: parts.cluster.clone(),
    };
    let (flag, pulse) = (stop.cluster.clone(), parts.health.heartbeat("ship-frames", PULSE_LIMIT));
    let proceed = move || {
        pulse.beat();
        !flag.load(std::sync::atomic::Ordering::Acquire)
    };
    let frames = supervisor.start("ship-frames", "cluster", &stop.cluster, move || frames.run(&proceed))?;
    let (flag, pulse) = (stop.cluster.clone(), parts.health.heartbeat("ship-states", PULSE_LIMIT));
    let proceed = move || {
        pulse.beat();
        !flag.load(std::sync::atomic::Ordering::Acquire)
    };
    let states = supervisor.start("ship-states", "cluster", &stop.cluster, move || states.run(&proceed))?;
    Ok(vec![frames, states])
}

/// Ships the log.
struct Frames {
    writer: FrameWriter,
    log: LogReaders,
    /// Stands behind what was shipped, once that is known.
    reader: Option<LogReader>,
    is_first: bool,
    appender: Arc<AppenderStatus>,
    status: Arc<ClusterStatus>,
}

impl Frames {
    fn run(mut self, proceed: &impl Fn() -> bool) -> Result<(), String> {
        let status = self.status.clone();
        turns(&status, FRAMES, proceed, || self.turn())?;
        // What was written until the end; the next start ships what does not get there now.
        while self.turn().is_ok_and(|pause| pause.is_zero()) {}
        Ok(())
    }

    fn turn(&mut self) -> Result<Duration, Fault> {
        if let Some(shipped) = self.writer.connect(self.is_first)? {
            self.is_first = false;
            self.reader = Some(self.reader_behind(shipped)?);
            self.note(shipped.end);
        }
        let Some(reader) = &mut self.reader else { return Ok(IDLE) };
        let (mut frames, mut records) = (Vec::new(), 0);
        while frames.len() < FRAMES_MAX && records < RECORDS_MAX {
            let Some(frame) = reader.next_frame()? else { break };
            records += frame.batch.len();
            frames.push(frame);
        }
        let Some(end) = frames.last().map(|frame| frame.batch.end()) else { return Ok(IDLE) };
        self.writer.ship(&frames)?;
        self.note(end);
        Ok(Duration::ZERO)
    }

    fn note(&self, end: EdgeId) {
        // The frame before it stays, to be compared at the next start.
        self.appender.hold_from(EdgeId(end.0.saturating_sub(1)));
        self.status.frames_at(end);
    }

    /// A reader of what follows, if the topic holds this log.
    fn reader_behind(&self, shipped: Shipped) -> Result<LogReader, Fault> {
        let Shipped { end, .. } = shipped;
        let topic = || self.writer.topic().to_owned();
        let (first, durable) = (self.log.first(), self.log.durable_end());
        if end < first {
            return Err(ReplicationFault::Cut { topic: topic(), end, first }.into());
        }
        if end > durable {
            return Err(ReplicationFault::Ahead { topic: topic(), end, durable }.into());
        }
        let own = ending_at(&self.log, end)?;
        if own.identity != 0 && own != shipped {
            return Err(ReplicationFault::Foreign { topic: topic(), position: end }.into());
        }
        Ok(self.log.reader(end))
    }
}

/// Ships what the learner publishes.
struct States {
    writer: StateWriter,
    leader: String,
    engine: Arc<QueryEngine>,
    sent: SentStates,
    /// The last mark, and when it was sent.
    last: Option<(StateMark, Instant)>,
    is_first: bool,
    coalesce: Duration,
    status: Arc<ClusterStatus>,
}

impl States {
    fn run(mut self, proceed: &impl Fn() -> bool) -> Result<(), String> {
        let status = self.status.clone();
        turns(&status, STATES, proceed, || self.turn())?;
        // What the learner published last; the next start ships it else.
        let _ = self.turn();
        Ok(())
    }

    fn turn(&mut self) -> Result<Duration, Fault> {
        self.writer.connect(self.is_first)?;
        self.is_first = false;
        let changes = StateChanges::take(&self.engine, &self.sent);
        let is_old = self.last.is_none_or(|(mark, at)| mark != changes.mark || at.elapsed() >= MARK_EVERY);
        if changes.is_empty() && !is_old {
            return Ok(self.coalesce);
        }
        if let Err(fault) = self.writer.ship(&changes) {
            changes.give_back();
            (self.sent, self.last) = (SentStates::default(), None);
            return Err(fault.into());
        }
        self.last = Some((changes.mark, Instant::now()));
        self.status.states_at(changes.mark.position, &self.leader);
        changes.note(&mut self.sent);
        Ok(self.coalesce)
    }
}
