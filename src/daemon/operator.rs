//! Carries out admin requests on a running daemon: passes each to the part concerned, and waits for it where needed.

use std::str::FromStr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;

use super::log_level;
use super::reload::Reloading;
use super::seek::{self, Target};
use super::snapshots::{SnapshotRequests, Wanted};
use super::sources::Sources;
use super::training::TrainingPause;
use crate::api::{
    CheckpointResponse, Decisions, Health, LogCutResponse, LogLevelResponse, ModelResponse, Operator,
    OperatorError, ReloadResponse, SeekRequest, SeekResponse, SnapshotResponse, SourceResponse, State,
    TrainingResponse,
};
use crate::appender::{AppenderStatus, snapshot};
use crate::catalog::{Catalog, CatalogError};
use crate::learner::{LearnerStatus, NoResponse, Operated, Operation, OperationError, WantedCheckpoint};

/// Longest wait for the learner to take up a change that needs no file.
const CHANGE_LIMIT: Duration = Duration::from_secs(20);

/// The parts that admin requests reach.
pub(super) struct Operating {
    pub learner: Arc<LearnerStatus>,
    pub sources: Sources,
    pub health: Arc<Health>,
    pub snapshots: Arc<SnapshotRequests>,
    pub catalog: Arc<Mutex<Catalog>>,
    pub appender: Arc<AppenderStatus>,
    pub reloading: Arc<OnceLock<Reloading>>,
    /// Whether the settings train.
    pub trains: bool,
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

    /// Has the learner publish other weights; it records the decision.
    fn decide(&self, operation: Operation, limit: Duration) -> Result<ModelResponse, OperatorError> {
        self.is_running()?;
        let operated = self.learner.operations.wait(operation, limit)?;
        let Operated { position, served, published, candidate } = operated;
        Ok(ModelResponse {
            model_version: served,
            replaced_version: published,
            candidate_version: candidate,
            position: position.0,
            memory_restored: false,
        })
    }
}

impl From<OperationError> for OperatorError {
    fn from(error: OperationError) -> Self {
        match error {
            OperationError::Refused(why) => Self::Invalid(why),
            OperationError::Failed(why) => Self::Failed(why),
            OperationError::Unsettled(why) => Self::Unsettled(why),
        }
    }
}

impl From<NoResponse> for OperatorError {
    fn from(why: NoResponse) -> Self {
        match why {
            NoResponse::NotTaken(why) => Self::Failed(why),
            NoResponse::Unknown(why) => Self::Unsettled(why),
        }
    }
}

impl Operator for Operating {
    fn checkpoint(&self, limit: Duration) -> Result<CheckpointResponse, OperatorError> {
        self.is_running()?;
        let made = self.learner.requests.wait(WantedCheckpoint::Full, limit)?;
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

    fn seek(&self, source: &str, request: &SeekRequest) -> Result<SeekResponse, OperatorError> {
        self.is_running()?;
        let invalid = |why: &str| OperatorError::Invalid(format!("to: {why}, not {:?}", request.to));
        let target = Target::from_str(&request.to).map_err(invalid)?;
        let (wanted, apply) = ((target, request.partition), !request.dry_run);
        let steps = self.sources.seek(source, wanted, apply, &self.appender)?;
        Ok(seek::response(source, apply, &steps))
    }

    fn reload(&self) -> Result<ReloadResponse, OperatorError> {
        self.is_running()?;
        let nothing = || OperatorError::Failed("there is nothing to reload settings from".to_owned());
        let reloading = self.reloading.get().ok_or_else(nothing)?;
        reloading.reload().map_err(|error| OperatorError::Invalid(format!("{error:#}")))
    }

    fn log_level(&self) -> LogLevelResponse {
        log_level::get()
    }

    fn set_log_level(&self, level: &str) -> Result<LogLevelResponse, OperatorError> {
        log_level::set(level)
    }
}

impl Decisions for Operating {
    fn promote(&self, version: Option<u64>, limit: Duration) -> Result<ModelResponse, OperatorError> {
        self.decide(Operation::Promote(version), limit)
    }

    fn roll_back(&self, limit: Duration) -> Result<ModelResponse, OperatorError> {
        self.decide(Operation::RollBack, limit)
    }

    fn set_training_paused(&self, paused: bool, by: &str) -> Result<TrainingResponse, OperatorError> {
        self.is_running()?;
        if !self.trains {
            let why = "learner.train is false in the settings: no weights are trained in any case";
            return Err(OperatorError::Invalid(why.to_owned()));
        }
        let not_stored = |error: CatalogError| OperatorError::Failed(format!("nothing was changed: {error}"));
        let (pause, done) = {
            let catalog = self.catalog.lock();
            let now = || TrainingPause { by: by.to_owned(), since_unix_ms: super::unix_ms() };
            // One that is paused already stays as it was.
            let before = TrainingPause::of(&catalog).map_err(not_stored)?;
            let pause = paused.then(|| before.unwrap_or_else(now));
            TrainingPause::record(pause.as_ref(), &catalog).map_err(not_stored)?;
            // Under the lock, so that the learner gets requests in the order in which the catalog did.
            (pause, self.learner.operations.submit(Operation::Train(!paused)))
        };
        let done = done.and_then(|done| self.learner.operations.response(&done, CHANGE_LIMIT));
        // The catalog has it, so the next start follows it whatever the learner did.
        done.map_err(|why| {
            let what = if paused { "paused" } else { "resumed" };
            OperatorError::Unsettled(format!(
                "training is {what} from the next start on, and perhaps before: {why}"
            ))
        })?;
        Ok(TrainingResponse {
            paused,
            since_unix_ms: pause.as_ref().map(|pause| pause.since_unix_ms),
            by: pause.map(|pause| pause.by),
        })
    }

    fn snapshot(&self, limit: Duration) -> Result<SnapshotResponse, OperatorError> {
        self.is_running()?;
        let position = self.snapshots.wait(Wanted::Snapshot, limit)?.snapshot;
        Ok(SnapshotResponse { name: snapshot::name(position), position: position.0 })
    }

    fn cut_log(&self, limit: Duration) -> Result<LogCutResponse, OperatorError> {
        self.is_running()?;
        let kept = self.snapshots.wait(Wanted::Cut, limit)?;
        Ok(LogCutResponse { first_position: kept.log_first.0, bytes: kept.log_bytes })
    }
}
