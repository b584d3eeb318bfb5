//! [`Shipped`]: pushes that are acknowledged when they are in Kafka, where `cluster.ack` asks for that.

use std::sync::Arc;
use std::time::Duration;

use crate::event::{BodyFormat, Intake, IntakeError, IntakeResponse};
use crate::serving::Progress;

/// An intake whose events have reached the topic of frames when it responds.
pub(in crate::daemon) struct Shipped {
    pub inner: Arc<dyn Intake>,
    pub progress: Arc<Progress>,
    /// How long it waits for that.
    pub patience: Duration,
}

impl Intake for Shipped {
    fn submit(
        &self,
        body: &[u8],
        format: BodyFormat,
        key: Option<&str>,
    ) -> Result<IntakeResponse, IntakeError> {
        let response = self.inner.submit(body, format, key)?;
        let receipt = &response.receipt;
        // Events that were written before may be on their way, too: they are below the end of the log.
        let end = if receipt.duplicates > 0 { self.progress.durable() } else { receipt.end };
        if self.progress.wait_shipped(end, self.patience) {
            return Ok(response);
        }
        Err(IntakeError::OutcomeUnknown(format!(
            "the events are durable on the leader, and did not reach Kafka within {} s (cluster.ack is kafka); send \
             them again with the same idempotency keys, and they are stored once",
            self.patience.as_secs()
        )))
    }

    fn is_mapped(&self) -> bool {
        self.inner.is_mapped()
    }
}
