//! A new client after a long outage.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use rdkafka::consumer::Consumer;

use super::super::partition::Partition;
use super::Worker;
use super::poll::Ends;

impl Worker {
    /// Begins with a new client once this one has had no broker for long. What was gathered and not submitted is read
    /// again; what is on its way to the log is waited for, because reading starts at the log's positions.
    pub(super) fn reconnect_if_lost(&mut self) {
        let lasted = self.consumer.context().outage.lasted();
        let is_closing = self.closing.as_ref().is_some_and(|thread| !thread.is_finished());
        if lasted < self.options.outage_max
            || is_closing
            || self.partitions.values().any(Partition::is_on_its_way)
        {
            return;
        }
        let client = match self.consumer.context().connect_again() {
            Ok(client) => client,
            Err(fault) => {
                // A new outage, so that the next attempt waits as this one did.
                self.consumer.context().outage.note(0, true);
                return self.shared.set_fault(fault);
            }
        };
        let seconds = lasted.as_secs();
        tracing::warn!(source = %self.source, seconds, "no broker was connected for long; a new client takes over");
        self.stats.count_reconnect();
        let old = std::mem::replace(&mut self.consumer, client);
        // Closing can hang inside librdkafka. Without a thread the closure is dropped here, which closes it as well.
        let closing = std::thread::Builder::new().name("kafka-close".into()).spawn(move || drop(old));
        self.closing = closing.ok();
        self.partitions.clear();
        self.ends = Ends::default();
        (self.look_at, self.watermarks_fetched_at) = (Some(Instant::now()), None);
        (self.blocked_since, self.holding, self.fault_shown) = (None, false, true);
        self.shared.is_holding.store(false, Relaxed);
    }
}
