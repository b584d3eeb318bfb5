//! The threads of a replica.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result};
use crossbeam_channel::{Receiver, SendTimeoutError, Sender, bounded};

use super::status::{FRAMES, STATES};
use super::{ClusterStatus, Fault, ending_at, turns};
use crate::config::Config;
use crate::daemon::source_options::replication_options;
use crate::daemon::supervise::Supervisor;
use crate::daemon::{PULSE_LIMIT, Parts, Stop, Store, unix_ms};
use crate::device::Device;
use crate::ingest::replication::{FrameReader, Mark, ReplicationOptions, Shipped, StateMessage, StateReader};
use crate::log::Frame;
use crate::model::{ModelOptions, Weights};
use crate::nn::Parameters;
use crate::serving::{Applied, StateFollower};

/// Groups of frames that wait for the appender.
const WAITING_MAX: usize = 4;

/// Frames of a group at most, and bytes that end it.
const GROUP_MAX: usize = 256;
const GROUP_BYTES: usize = 8 << 20;

/// How long a reader waits for a message.
const WAIT: Duration = Duration::from_millis(50);

/// Pause until the graph is looked at again that does not hold a position yet.
const UNTIL_INDEXED: Duration = Duration::from_millis(2);

/// What receives.
pub(in crate::daemon) struct Receiving {
    pub threads: Vec<JoinHandle<()>>,
    /// Groups of frames that follow the log.
    pub frames: Receiver<Vec<Frame>>,
}

/// Starts the threads.
pub(in crate::daemon) fn start(
    config: &Config,
    (parts, store): (&Parts, &Store),
    supervisor: &Supervisor,
    stop: &Stop,
) -> Result<Receiving> {
    let log = store.log.readers();
    let (sender, receiver) = bounded(WAITING_MAX);
    let frames = Frames {
        options: replication_options(config),
        reader: None,
        last: ending_at(&log, log.durable_end()).context("the end of the event log cannot be read")?,
        sender,
        status: parts.cluster.clone(),
    };
    let states = States {
        options: replication_options(config),
        reader: None,
        follower: StateFollower::new(parts.engine.clone()),
        model: config.model_options(),
        weights: None,
        is_following: false,
        status: parts.cluster.clone(),
    };
    let (flag, pulse) = (stop.cluster.clone(), parts.health.heartbeat("receive-frames", PULSE_LIMIT));
    let run = move || frames.run(&flag, &|| pulse.beat());
    let frames = supervisor.start("receive-frames", "cluster", &stop.cluster, run)?;
    let (flag, pulse) = (stop.cluster.clone(), parts.health.heartbeat("receive-states", PULSE_LIMIT));
    let run = move || states.run(&flag, &|| pulse.beat());
    let states = supervisor.start("receive-states", "cluster", &stop.cluster, run)?;
    Ok(Receiving { threads: vec![frames, states], frames: receiver })
}

fn proceed(stop: &AtomicBool, pulse: &impl Fn()) -> bool {
    pulse();
    !stop.load(Ordering::Acquire)
}

/// Receives the log.
struct Frames {
    options: ReplicationOptions,
    reader: Option<FrameReader>,
    /// What the appender has been given.
    last: Shipped,
    sender: Sender<Vec<Frame>>,
    status: Arc<ClusterStatus>,
}

impl Frames {
    fn run(mut self, stop: &AtomicBool, pulse: &impl Fn()) -> Result<(), String> {
        let status = self.status.clone();
        let proceed = || proceed(stop, pulse);
        status.frames_at(self.last.end);
        turns(&status, FRAMES, &proceed, || {
            let turned = self.turn(&proceed);
            if turned.is_err() {
                self.reader = None;
            }
            turned
        })
    }

    fn turn(&mut self, proceed: &impl Fn() -> bool) -> Result<Duration, Fault> {
        let reader = match &mut self.reader {
            Some(reader) => reader,
            none => none.insert(FrameReader::open(&self.options, self.last)?),
        };
        let (mut group, mut bytes, mut wait) = (Vec::new(), 0, WAIT);
        while group.len() < GROUP_MAX && bytes < GROUP_BYTES {
            match reader.next(wait)? {
                Some(frame) => {
                    bytes += reader.frame_bytes();
                    group.push(frame);
                }
                None if group.is_empty() => return Ok(Duration::ZERO),
                None => break,
            }
            // What is there already comes along.
            wait = Duration::ZERO;
        }
        self.last = reader.position();
        self.hand_over(group, proceed);
        self.status.frames_at(self.last.end);
        Ok(Duration::ZERO)
    }

    /// Waits for room. A group that is not taken before a stop is received again by the next start.
    fn hand_over(&self, group: Vec<Frame>, proceed: &impl Fn() -> bool) {
        let mut group = group;
        while let Err(SendTimeoutError::Timeout(back)) = self.sender.send_timeout(group, WAIT) {
            if !proceed() {
                return;
            }
            group = back;
        }
    }
}

/// Receives what was learned.
struct States {
    options: ReplicationOptions,
    reader: Option<StateReader>,
    follower: StateFollower,
    model: ModelOptions,
    /// Hash of the weights that were received last.
    weights: Option<u64>,
    /// Whether a mark was applied.
    is_following: bool,
    status: Arc<ClusterStatus>,
}

impl States {
    fn run(mut self, stop: &AtomicBool, pulse: &impl Fn()) -> Result<(), String> {
        let status = self.status.clone();
        let proceed = || proceed(stop, pulse);
        turns(&status, STATES, &proceed, || {
            let turned = self.turn(&proceed);
            if turned.is_err() {
                // A new one reads all there is: marks that were passed already wait until one has caught up.
                self.reader = None;
            }
            turned
        })
    }

    fn turn(&mut self, proceed: &impl Fn() -> bool) -> Result<Duration, Fault> {
        let reader = match &mut self.reader {
            Some(reader) => reader,
            none => none.insert(StateReader::open(&self.options)?),
        };
        match reader.next(WAIT)? {
            Some(StateMessage::Row(row)) => self.follower.take_row(row),
            Some(StateMessage::Pair(key, times)) => self.follower.take_pair(key, times),
            Some(StateMessage::Surprises(surprises)) => self.follower.take_surprises(surprises),
            Some(StateMessage::Mark(mark)) => self.apply(&mark, proceed)?,
            Some(StateMessage::Weights { .. } | StateMessage::Claimed | StateMessage::Begun) | None => {}
        }
        Ok(Duration::ZERO)
    }

    fn apply(&mut self, mark: &Mark, proceed: &impl Fn() -> bool) -> Result<(), Fault> {
        if let Some((hash, pieces)) = mark.weights
            && self.weights != Some(hash)
        {
            let bytes = self.reader.as_ref().and_then(|reader| reader.weights(hash, pieces));
            // Compaction may have replaced some by those of a later mark, which comes.
            let Some(bytes) = bytes else { return Ok(()) };
            let version = mark.state.served.map_or(0, |(version, _)| version);
            self.follower.take_weights(self.read_weights(&bytes, version).map_err(Fault::Final)?);
            self.weights = Some(hash);
        }
        loop {
            match self.follower.apply(&mark.state).map_err(|error| Fault::Final(error.to_string()))? {
                Applied::Yes => {
                    let age = unix_ms().saturating_sub(mark.at_unix_ms);
                    // Only of one that was there already, or clocks would have to agree.
                    let age = if self.is_following { 0 } else { u64::try_from(age).unwrap_or_default() };
                    self.is_following = true;
                    self.status.states_at(mark.state.position, &mark.leader, Duration::from_millis(age));
                }
                Applied::Behind => self.status.alive(),
                Applied::NotIndexed if proceed() => {
                    self.status.report();
                    std::thread::sleep(UNTIL_INDEXED);
                    continue;
                }
                Applied::NotIndexed => {}
            }
            return Ok(());
        }
    }

    fn read_weights(&self, bytes: &[u8], version: u64) -> Result<Weights, String> {
        let unfit = |error: String| {
            format!(
                "the weights of the leader do not fit the settings here ({error}): [model] and [stream] have to be \
                 those of the leader"
            )
        };
        let parameters =
            Parameters::from_bytes(&Device::Cpu, bytes).map_err(|error| unfit(error.to_string()))?;
        let weights = Weights::new(self.model, &parameters, version);
        weights.map_err(|error| unfit(error.to_string()))
    }
}
