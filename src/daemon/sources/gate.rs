//! [`Gate`]: what stands before the push source.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use crate::daemon::cluster::ClusterStatus;
use crate::event::{BodyFormat, Intake, IntakeError, IntakeResponse, SubmitError};
use crate::ingest::push::PushIntake;

/// Guards the push source: closed until the log has been read, and again when the daemon ends.
#[derive(Default)]
pub(super) struct Gate {
    pub intake: OnceLock<Arc<PushIntake>>,
    /// As the settings say, also before there is an intake.
    pub is_mapped: bool,
    pub closed: AtomicBool,
    /// Of a replica: what it knows of its leader.
    pub replica: Option<Arc<ClusterStatus>>,
}

impl Intake for Gate {
    fn submit(
        &self,
        body: &[u8],
        format: BodyFormat,
        key: Option<&str>,
    ) -> Result<IntakeResponse, IntakeError> {
        if let Some(cluster) = &self.replica {
            return Err(IntakeError::Refused(SubmitError::Replica { leader: cluster.leader() }));
        }
        match self.intake.get() {
            _ if self.closed.load(Ordering::Acquire) => Err(IntakeError::Refused(SubmitError::ShuttingDown)),
            Some(intake) => intake.submit(body, format, key),
            None => Err(IntakeError::Refused(SubmitError::Restoring)),
        }
    }

    fn is_mapped(&self) -> bool {
        self.is_mapped
    }
}
