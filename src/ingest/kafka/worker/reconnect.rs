//! A new client after a long outage.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use rdkafka::consumer::Consumer;

use super::super::partition::Partition;
use super::Worker;
use super::poll::Ends;

/// Most old clients that have not closed yet.
const CLOSING_MAX: usize = 4;

impl Worker {
    /// Begins with a new client once this one has had no broker for long. What was gathered and not submitted is read
    /// again; what is on its way to the log is waited for, because reading starts at the log's positions. Dead letters
    /// of a batch that the log refused meanwhile are delivered and counted again.
    pub(super) fn reconnect_if_lost(&mut self) {
        let lasted = self.consumer.context().outage.lasted();
        if lasted < self.options.outage_max || self.partitions.values().any(Partition::is_on_its_way) {
            return;
        }
        // Nobody connects without a token, and another client would have none either.
        if self.consumer.context().session.is_logged_out() {
            return self.consumer.context().outage.restart();
        }
        self.closing.retain(|thread| !thread.is_finished());
        if self.closing.len() >= CLOSING_MAX {
            self.consumer.context().outage.restart();
            let why = "clients of before do not close: restart the daemon if the brokers are reachable";
            return tracing::error!(source = %self.source, clients = CLOSING_MAX, "no new client is made: {why}");
        }
        let client = match self.consumer.context().connect_again() {
            Ok(client) => client,
            Err(fault) => {
                // What keeps this client from connecting stays the source's fault.
                self.consumer.context().outage.restart();
                return tracing::warn!(source = %self.source, "no new client can be made: {fault}");
            }
        };
        let seconds = lasted.as_secs();
        tracing::warn!(source = %self.source, seconds, "no broker was connected for long; a new client takes over");
        self.stats.count_reconnect();
        let old = std::mem::replace(&mut self.consumer, client);
        // Closing can hang inside librdkafka. Without a thread the closure is dropped here, which closes it as well.
        let closing = std::thread::Builder::new().name("kafka-close".into()).spawn(move || drop(old));
        self.closing.extend(closing);
        self.partitions.clear();
        self.shared.set_unassigned();
        self.ends = Ends::default();
        (self.look_at, self.watermarks_fetched_at) = (Some(Instant::now()), None);
        (self.blocked_since, self.holding, self.fault_shown) = (None, false, true);
        self.shared.is_holding.store(false, Relaxed);
    }
}
