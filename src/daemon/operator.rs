//! Carries out admin requests on a running daemon: passes each to the part concerned, and waits for it where needed.

use std::sync::Arc;
use std::time::Duration;

use super::log_level;
use super::sources::Sources;
use crate::api::{
    CheckpointResponse, Health, LogLevelResponse, Operator, OperatorError, SourceResponse, State,
};
use crate::learner::LearnerStatus;

/// The parts that admin requests reach.
pub(super) struct Operating {
    pub learner: Arc<LearnerStatus>,
    pub sources: Sources,
    pub health: Arc<Health>,
}

impl Operating {
    /// Refuses while the daemon starts or stops: the request would not be handled, or its effect would be lost.
    fn is_running(&self) -> Result<(), OperatorError> {
        let checks = self.health.readiness().checks;
        match checks.get(Health::DAEMON) {
            Some(check) if check.state != State::Ok => {
                Err(OperatorError::Failed(format!("the daemon is {}; retry later", check.detail)))
            }
            _ => Ok(()),
        }
    }
}

impl Operator for Operating {
    fn checkpoint(&self, limit: Duration) -> Result<CheckpointResponse, OperatorError> {
        self.is_running()?;
        let response = self.learner.requests.submit().map_err(OperatorError::Failed)?;
        let late = |_| {
            let seconds = limit.as_secs();
            OperatorError::Failed(format!("no checkpoint within {seconds} s; it may still be written"))
        };
        let made = response.recv_timeout(limit).map_err(late)?.map_err(OperatorError::Failed)?;
        let (name, position) = (made.name, made.position.0);
        Ok(CheckpointResponse { name, position, model_version: made.model_version })
    }

    fn set_paused(&self, source: &str, paused: bool, by: &str) -> Result<SourceResponse, OperatorError> {
        self.is_running()?;
        let held = self.sources.set_paused(source, paused, by)?;
        Ok(SourceResponse {
            source: source.to_owned(),
            paused: held.is_some(),
            since_unix_ms: held.as_ref().map(|row| row.since_unix_ms),
            by: held.map(|row| row.by),
        })
    }

    fn log_level(&self) -> LogLevelResponse {
        log_level::get()
    }

    fn set_log_level(&self, level: &str) -> Result<LogLevelResponse, OperatorError> {
        log_level::set(level)
    }
}
