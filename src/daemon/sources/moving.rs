//! A seek of a Kafka source while the daemon runs. The source is paused, or has failed; it is ended, a frame in the log
//! moves its positions, and another one that counts on starts from there, paused as before. So nothing that was read
//! before the seek is stored behind it.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::{Running, STOP_LIMIT, Sources};
use crate::api::OperatorError;
use crate::appender::AppenderStatus;
use crate::daemon::seek::{Plan, Step, Target};
use crate::ingest::kafka::{KafkaFault, KafkaSource, KafkaState};

/// Longest wait for the frame in the log.
const FRAME_LIMIT: Duration = Duration::from_secs(30);

impl Sources {
    /// Moves a Kafka source to `target`, or only reports what that would do to each partition that is not there yet.
    ///
    /// # Errors
    /// When there is no such Kafka source, it is neither paused nor failed, the brokers do not respond or do not have
    /// the position, or the log cannot be written.
    pub(in crate::daemon) fn seek(
        &self,
        name: &str,
        (target, partition): (Target, Option<i32>),
        apply: bool,
        appender: &AppenderStatus,
    ) -> Result<Vec<Step>, OperatorError> {
        let busy = || OperatorError::Failed("another seek is under way; retry when it is done".to_owned());
        let _one_at_a_time = self.0.moving.try_lock().ok_or_else(busy)?;
        let source = self.kafka_source(name)?;
        let Some((options, wiring)) = self.0.kafka.get().and_then(|topics| topics.get(name)) else {
            return Err(busy());
        };
        let has_ended = matches!(source.status().state, KafkaState::Failed { .. } | KafkaState::Stopped);
        let plan = || {
            let other_cluster = |topic: &str, cluster: &str| Ok((options.clusters.0)(topic, cluster));
            let positions = &*wiring.positions;
            Plan::of(options, (target, partition, has_ended), positions, other_cluster).map_err(|error| {
                if error.is::<KafkaFault>() {
                    OperatorError::Failed(format!("nothing was changed: {error:#}"))
                } else {
                    OperatorError::Invalid(format!("{error:#}"))
                }
            })
        };
        let planned = plan()?;
        if !apply || planned.steps().is_empty() {
            return Ok(planned.steps().to_vec());
        }
        if self.0.stop.load(Ordering::Acquire) {
            return Err(OperatorError::Failed("the daemon stops".to_owned()));
        }
        if !self.0.holds.has(name) && !has_ended {
            let why = format!("{name} is running: pause it first, and resume it after the seek");
            return Err(OperatorError::Invalid(why));
        }
        let moved = if source.stop(STOP_LIMIT) && source.is_settled() {
            // What was on its way to the log is there now.
            plan().and_then(|plan| carry_out(&plan, appender).map(|()| plan.steps().to_vec()))
        } else {
            let why = format!("nothing was changed: what {name} read last is not stored yet; retry later");
            Err(OperatorError::Failed(why))
        };
        let next = source.start_again(options.clone(), wiring.clone());
        let next = next.map_err(|error| {
            OperatorError::Unsettled(format!("{name} does not start again, only the daemon does: {error}"))
        })?;
        self.replace(&source, next);
        moved
    }

    fn kafka_source(&self, name: &str) -> Result<Arc<KafkaSource>, OperatorError> {
        let running = self.0.running.lock();
        let known: Vec<&str> = running.iter().map(Running::name).collect();
        match running.iter().find(|running| running.name() == name) {
            Some(Running::Kafka { source }) => Ok(source.clone()),
            Some(_) => Err(OperatorError::Invalid(format!("{name} has no positions: only Kafka can seek"))),
            None => Err(OperatorError::UnknownSource {
                requested: name.to_owned(),
                known: known.into_iter().map(str::to_owned).collect(),
            }),
        }
    }

    fn replace(&self, old: &Arc<KafkaSource>, next: KafkaSource) {
        let mut running = self.0.running.lock();
        for slot in running.iter_mut() {
            if let Running::Kafka { source } = slot
                && Arc::ptr_eq(source, old)
            {
                // Dropped, it ends by itself.
                if !self.0.stop.load(Ordering::Acquire) {
                    *source = Arc::new(next);
                }
                return;
            }
        }
    }
}

/// Has the appender write the frame of a plan.
fn carry_out(plan: &Plan, appender: &AppenderStatus) -> Result<(), OperatorError> {
    let frame = plan.frame(crate::event::EdgeId(0));
    let outcome = appender.request_move(frame.sources, frame.origin_unix_ms);
    let written = outcome.recv_timeout(FRAME_LIMIT).or_else(|waited| {
        // One that is not withdrawn is being written.
        if appender.withdraw_move() { Err(waited) } else { outcome.recv_timeout(FRAME_LIMIT) }
    });
    match written {
        Ok(Ok(())) => Ok(()),
        Ok(Err(error)) => Err(OperatorError::Failed(format!("nothing was changed: {error}"))),
        Err(_) => Err(OperatorError::Failed("nothing was changed: the log takes no frame now".to_owned())),
    }
}
