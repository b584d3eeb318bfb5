//! The threads of a leader.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Result;

use super::status::{FRAMES, STATES};
use super::{ClusterStatus, Fault, place_behind, turns};
use crate::api::Heartbeat;
use crate::appender::AppenderStatus;
use crate::config::Config;
use crate::daemon::source_options::replication_options;
use crate::daemon::supervise::Supervisor;
use crate::daemon::{Parts, Stop, Store, unix_ms};
use crate::event::{EdgeId, NodeId};
use crate::ingest::replication::{FrameWriter, StateWriter};
use crate::log::{LogReader, LogReaders};
use crate::serving::{Progress, QueryEngine, SentStates, StateChanges, StateMark};

/// Frames and records that are shipped at a time, at most.
const FRAMES_MAX: usize = 512;
const RECORDS_MAX: usize = 100_000;

/// Pause when the log has nothing new.
const IDLE: Duration = Duration::from_millis(5);

/// Transactions and look-ups at brokers that respond slowly may take so long without a sign of life.
const SHIP_LIMIT: Duration = Duration::from_secs(600);

/// How long a stop ships what is left.
const LAST_TURNS: Duration = Duration::from_secs(5);

/// How often weights are shipped at most.
const WEIGHTS_EVERY: Duration = Duration::from_millis(250);

/// How long states wait for the frames that they are of.
const FRAMES_PATIENCE: Duration = Duration::from_secs(1);

/// How often a mark is sent at least, as a sign of life.
const MARK_EVERY: Duration = Duration::from_secs(1);

/// Starts them.
pub(in crate::daemon) fn start(
    config: &Config,
    (parts, store): (&Parts, &Store),
    supervisor: &Supervisor,
    stop: &Stop,
) -> Result<Vec<JoinHandle<()>>> {
    // No two leaders that begin in the same millisecond have the same.
    let term = u64::try_from(unix_ms()).unwrap_or_default() << 16
        | RandomState::new().build_hasher().finish() & 0xffff;
    // Rows that a run before this one has shipped, of nodes that this one does not know yet, go with the first states.
    let keys = &store.index.stores.keys;
    let ids = u32::try_from(keys.len()).unwrap_or(u32::MAX);
    keys.for_each_named(NodeId(0)..NodeId(ids), 1, |node| parts.engine.states.shipped.touch(node));
    // Nothing is cut before it is known how much is shipped.
    parts.appender.hold_from(EdgeId(0));
    let frames = Frames {
        writer: FrameWriter::new(replication_options(config), term),
        log: store.log.readers(),
        reader: None,
        is_first: true,
        appender: parts.appender.clone(),
        progress: parts.progress.clone(),
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
    let (flag, pulse) = (stop.cluster.clone(), parts.health.heartbeat("ship-frames", SHIP_LIMIT));
    let run = move || frames.run(&Pace { flag: &flag, pulse });
    let frames = supervisor.start("ship-frames", "cluster", &stop.cluster, run)?;
    let (flag, pulse) = (stop.cluster.clone(), parts.health.heartbeat("ship-states", SHIP_LIMIT));
    let run = move || states.run(&Pace { flag: &flag, pulse });
    let states = supervisor.start("ship-states", "cluster", &stop.cluster, run)?;
    Ok(vec![frames, states])
}

/// A sign of life, and whether to go on.
struct Pace<'a> {
    flag: &'a AtomicBool,
    pulse: Heartbeat,
}

impl Pace<'_> {
    fn proceed(&self) -> bool {
        self.pulse.beat();
        !self.flag.load(Ordering::Acquire)
    }
}

/// Ships the log.
struct Frames {
    writer: FrameWriter,
    log: LogReaders,
    /// Stands behind what was shipped, once that is known.
    reader: Option<LogReader>,
    is_first: bool,
    appender: Arc<AppenderStatus>,
    progress: Arc<Progress>,
    status: Arc<ClusterStatus>,
}

impl Frames {
    fn run(mut self, pace: &Pace<'_>) -> Result<(), String> {
        let status = self.status.clone();
        turns(&status, FRAMES, &|| pace.proceed(), || self.turn(pace))?;
        // What was written until the end, as far as that is quick; the next start ships the rest.
        let begun = Instant::now();
        while begun.elapsed() < LAST_TURNS && self.turn(pace).is_ok_and(|pause| pause.is_zero()) {}
        Ok(())
    }

    fn turn(&mut self, pace: &Pace<'_>) -> Result<Duration, Fault> {
        if self.is_first {
            // Who cannot go on with the topic takes it from nobody.
            place_behind(&self.log, self.writer.topic(), self.writer.prepare()?)?;
        }
        if let Some(shipped) = self.writer.connect(self.is_first)? {
            self.is_first = false;
            self.reader = Some(self.log.reader(place_behind(&self.log, self.writer.topic(), shipped)?));
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
        self.writer.ship(&frames, &|| _ = pace.proceed())?;
        self.note(end);
        Ok(Duration::ZERO)
    }

    fn note(&self, end: EdgeId) {
        // The frame before it stays, to be compared at the next start.
        self.appender.hold_from(EdgeId(end.0.saturating_sub(1)));
        self.status.frames_at(end);
        self.progress.set_shipped(end);
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
    fn run(mut self, pace: &Pace<'_>) -> Result<(), String> {
        let status = self.status.clone();
        turns(&status, STATES, &|| pace.proceed(), || self.turn(pace))?;
        // What the learner published last, if brokers are there; else the next start ships it.
        if status.is_running() {
            let _ = self.turn(pace);
        }
        Ok(())
    }

    fn turn(&mut self, pace: &Pace<'_>) -> Result<Duration, Fault> {
        if !self.status.has_frames() {
            // Whether this log goes on with the topics is not known yet.
            return Ok(self.coalesce.max(IDLE));
        }
        self.writer.connect(self.is_first)?;
        self.is_first = false;
        let changes = StateChanges::take(&self.engine, &self.sent);
        let is_due = self.last.is_none_or(|(mark, at)| mark != changes.mark || at.elapsed() >= MARK_EVERY);
        if changes.is_empty() && !is_due {
            return Ok(self.coalesce);
        }
        if !self.frames_reach(changes.mark.position) {
            changes.give_back();
            return Ok(self.coalesce);
        }
        if let Err(fault) = self.writer.ship(&changes, &|| _ = pace.proceed()) {
            changes.give_back();
            (self.sent, self.last) = (SentStates::default(), None);
            return Err(fault.into());
        }
        self.last = Some((changes.mark, Instant::now()));
        self.status.states_at(changes.mark.position, &self.leader, Duration::ZERO);
        changes.note(&mut self.sent);
        // Where weights change with every step, they are what takes the time.
        Ok(if changes.weights.is_some() { self.coalesce.max(WEIGHTS_EVERY) } else { self.coalesce })
    }

    /// Waits a moment until frames are shipped up to a position: no mark is of a position that replicas cannot reach,
    /// however this leader ends.
    fn frames_reach(&self, position: EdgeId) -> bool {
        let begun = Instant::now();
        while self.status.frames() < position {
            if begun.elapsed() >= FRAMES_PATIENCE {
                return false;
            }
            std::thread::sleep(IDLE);
        }
        true
    }
}
