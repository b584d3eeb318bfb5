//! Events from a Kafka topic, exactly once by effect.
//!
//! The log's frames hold the offsets of the events they hold, so the log alone determines where to resume: every
//! partition is read from its position by [`PositionLookup`](crate::event::PositionLookup). A source reads all
//! partitions of its topic, new ones included, and is no member of a group: daemons share nothing, and two that read
//! one topic read everything each, whatever their groups are called. Offsets committed to Kafka are for outside tools
//! only.
//! Every submission states the run of offsets it accounts for, refused events included, and a refused event
//! is delivered as a dead letter first.
//!
//! The source has a thread of its own (`worker`), librdkafka's callbacks leave notes for it (`context`),
//! and everyone may see how it stands (`status`). A broker that is away, a missing topic or bad
//! credentials degrade the source and are named ([`KafkaFault`]); it recovers by itself, after a long `outage` with a
//! new client. Where it logs in by tokens (`login`), one that cannot be had is such a fault, too. It ends only when
//! going on would lose or falsify data: the position is one that the broker does not have, or has for another message
//! (`identity`). While an operator holds it ([`Holds`]) it reads nothing. Knows nothing of how the log stores events.

mod context;
mod fault;
mod identity;
mod letter;
mod login;
mod options;
mod origin;
mod outage;
mod partition;
mod preflight;
mod sample;
mod status;
mod worker;

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender};
use parking_lot::Mutex;

pub(in crate::ingest) use context::other;
pub use fault::KafkaFault;
pub(in crate::ingest) use identity::is_compacted;
pub(in crate::ingest) use login::Session;
pub use login::{Token, token_of_response};
pub use options::{ClusterMemory, DataLossPolicy, KafkaClientOptions, KafkaSourceOptions};
pub(in crate::ingest) use preflight::config_fault;
pub use preflight::{LoggedIn, PartitionRange, PreflightReport, offsets_at, preflight, what_is_missing};
pub use sample::{SampledMessage, newest};
pub use status::{KafkaState, KafkaStatus, PartitionStatus};

use super::rejection::IngestStats;
use super::{Holds, SourceWiring};

/// A running Kafka source. Dropping it requests a stop and does not wait.
pub struct KafkaSource {
    shared: Arc<status::Shared>,
    stats: Arc<IngestStats>,
    holds: Arc<Holds>,
    name: Arc<str>,
    /// Disconnected when the thread has ended and the consumer is closed.
    ended: Mutex<Receiver<()>>,
}

impl KafkaSource {
    /// Starts reading on a thread of its own. The broker need not be there yet.
    ///
    /// # Errors
    /// When an option or property is not valid.
    pub fn start(options: KafkaSourceOptions, wiring: SourceWiring) -> Result<Self, KafkaFault> {
        Self::start_with(options, wiring, Arc::default())
    }

    /// Starts another one in place of this one, which has ended. It counts on.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn start_again(&self, options: KafkaSourceOptions, wiring: SourceWiring) -> Result<Self, KafkaFault> {
        Self::start_with(options, wiring, Arc::clone(&self.stats))
    }

    fn start_with(
        options: KafkaSourceOptions,
        wiring: SourceWiring,
        stats: Arc<IngestStats>,
    ) -> Result<Self, KafkaFault> {
        let shared = Arc::new(status::Shared::default());
        let name: Arc<str> = options.source_name().into();
        let (positions, status) = (Arc::clone(&wiring.positions), Arc::clone(&shared));
        let consumer =
            context::SourceContext::new(options, Arc::clone(&name), positions, status).connect()?;
        let (alive, ended) = crossbeam_channel::bounded(0);
        let holds = Arc::clone(&wiring.holds);
        let worker = worker::Worker::new(consumer, wiring, Arc::clone(&stats));
        std::thread::Builder::new()
            .name("kafka-source".into())
            .spawn(move || {
                worker.run();
                drop::<Sender<()>>(alive);
            })
            .map_err(|e| KafkaFault::Other { code: "thread".into(), detail: e.to_string() })?;
        Ok(Self { shared, stats, holds, name, ended: Mutex::new(ended) })
    }

    /// Has it end, without waiting for that.
    pub fn request_stop(&self) {
        self.shared.stop.store(true, Relaxed);
    }

    /// The name under which the log keeps positions, for example `kafka:payments`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// How the source stands.
    #[must_use]
    pub fn status(&self) -> KafkaStatus {
        self.shared.status(self.holds.has(&self.name))
    }

    /// The source's counters.
    #[must_use]
    pub fn stats(&self) -> &Arc<IngestStats> {
        &self.stats
    }

    /// Stops: awaits the outcomes of the batches in flight, commits and closes the consumer. Waits at
    /// most `timeout`; returns whether the thread has ended. Closing can hang inside librdkafka, and then
    /// the thread is left behind.
    pub fn stop(&self, timeout: Duration) -> bool {
        self.request_stop();
        matches!(
            self.ended.lock().recv_timeout(timeout),
            Err(crossbeam_channel::RecvTimeoutError::Disconnected)
        )
    }
}

impl KafkaSource {
    /// Whether a source that has ended left nothing on its way to the log.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        !self.shared.left_in_flight.load(Relaxed)
    }
}

impl Drop for KafkaSource {
    fn drop(&mut self) {
        self.request_stop();
    }
}
