//! A leader and its replicas. The leader has two threads more than a daemon that stands alone: one ships the frames of
//! its log, one what the learner has published. A replica has two in place of its sources and its learner: one receives
//! frames, which its appender writes and indexes, one receives states and applies them.
//!
//! ```text
//! leader   log ──frames──▶ <topics>.frames        learner ──rows, weights──▶ <topics>.states
//! replica  <topics>.frames ──▶ appender ──▶ log, graph     <topics>.states ──▶ node states, weights ──▶ API
//! ```
//! Nothing of a leader waits for its replicas: an event is acknowledged when it is durable here, or a push when it is
//! in Kafka, where that is asked for ([`acknowledge`]). A fault that time does not mend ends the thread, and with it
//! the daemon: another leader took over, or the topics hold another log.

mod acknowledge;
mod leader;
mod replica;
mod status;

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::Result;

use self::acknowledge::Shipped as ShippedIntake;
pub(super) use self::replica::{Receiving, start as receive};
pub(super) use self::status::ClusterStatus;
use super::supervise::Supervisor;
use super::{Parts, Stop, Store};
use crate::config::{ClusterAck, ClusterRole, Config};
use crate::event::{EdgeId, Intake};
use crate::ingest::replication::{ReplicationFault, Shipped};
use crate::log::{Frame, LogError, LogReaders};
use crate::serving::Progress;

/// Pause after a fault that may pass, and the longest after several.
const RETRY: Duration = Duration::from_millis(500);
const RETRY_MAX: Duration = Duration::from_secs(5);

/// Ships the log and what is learned, where the daemon leads; the threads that do.
pub(super) fn ship(
    config: &Config,
    shared: (&Parts, &Store),
    supervisor: &Supervisor,
    stop: &Stop,
) -> Result<Vec<JoinHandle<()>>> {
    match config.cluster.role {
        ClusterRole::Leader => leader::start(config, shared, supervisor, stop),
        ClusterRole::Single | ClusterRole::Replica => Ok(Vec::new()),
    }
}

/// The intake of pushed events, which are acknowledged as `cluster.ack` says.
pub(super) fn acknowledging(
    config: &Config,
    intake: Option<Arc<dyn Intake>>,
    progress: &Arc<Progress>,
) -> Option<Arc<dyn Intake>> {
    if config.cluster.ack == ClusterAck::Local || config.cluster.role != ClusterRole::Leader {
        return intake;
    }
    // There is time left to say so.
    let patience = Duration::from_millis(config.api.request_timeout_ms) * 9 / 10;
    let shipped =
        |inner| Arc::new(ShippedIntake { inner, progress: progress.clone(), patience }) as Arc<dyn Intake>;
    intake.map(shipped)
}

/// Where a log goes on that the topic of frames has up to `shipped`: the topic has to hold this log.
pub(super) fn place_behind(log: &LogReaders, topic: &str, shipped: Shipped) -> Result<EdgeId, Fault> {
    let (end, first, durable, topic) = (shipped.end, log.first(), log.durable_end(), topic.to_owned());
    if shipped == Shipped::default() {
        // Nothing is there: replicas begin with a backup if this log was cut.
        return Ok(first);
    }
    if end < first {
        return Err(ReplicationFault::Cut { topic, end, first }.into());
    }
    if end > durable {
        return Err(ReplicationFault::Ahead { topic, end, durable }.into());
    }
    let own = ending_at(log, end)?;
    if own.identity != 0 && own != shipped {
        return Err(ReplicationFault::Foreign { topic, position: end }.into());
    }
    Ok(end)
}

/// How a log ends that has the frame of the record before `end`.
fn ending_at(log: &LogReaders, end: EdgeId) -> Result<Shipped, LogError> {
    let Some(last) = end.0.checked_sub(1).map(EdgeId).filter(|last| *last >= log.first()) else {
        return Ok(Shipped { end, identity: 0 });
    };
    let mut reader = log.reader(last);
    while let Some(frame) = reader.next_frame()? {
        if frame.batch.end() >= end {
            return Ok(Shipped { end: frame.batch.end(), identity: identity_of(&frame)? });
        }
    }
    Ok(Shipped { end, identity: 0 })
}

fn identity_of(frame: &Frame) -> Result<u64, LogError> {
    let mut bytes = Vec::new();
    frame.write_to(&mut bytes)?;
    // Just written, so it is a frame.
    Ok(Frame::identity_of(&bytes).unwrap_or_default())
}

/// Why a turn of one of the threads failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum Fault {
    /// It is tried again.
    #[error("{0}")]
    Passing(String),
    /// The daemon ends.
    #[error("{0}")]
    Final(String),
}

impl From<ReplicationFault> for Fault {
    fn from(fault: ReplicationFault) -> Self {
        let words = fault.to_string();
        if fault.is_passing() { Self::Passing(words) } else { Self::Final(words) }
    }
}

impl From<LogError> for Fault {
    fn from(error: LogError) -> Self {
        Self::Final(error.to_string())
    }
}

/// Takes turns until `proceed` is false; a turn returns how long to pause. What fails is tried again, unless time does
/// not mend it.
fn turns(
    status: &ClusterStatus,
    what: &'static str,
    proceed: &impl Fn() -> bool,
    mut turn: impl FnMut() -> Result<Duration, Fault>,
) -> Result<(), String> {
    let mut retry = RETRY;
    while proceed() {
        match turn() {
            Ok(rest) => {
                status.running(what);
                retry = RETRY;
                crate::serving::pause(rest, proceed);
            }
            Err(Fault::Passing(why)) => {
                status.failing(what, &why);
                crate::serving::pause(retry, proceed);
                retry = (retry * 2).min(RETRY_MAX);
            }
            Err(Fault::Final(why)) => return Err(why),
        }
    }
    Ok(())
}
