//! Partitions whose next message names a schema that cannot be had now: the registry does not respond. They are paused,
//! and read on from that message when it may have come back.

use std::time::Instant;

use rdkafka::TopicPartitionList;
use rdkafka::consumer::Consumer;

use super::super::context::other;
use super::super::fault::KafkaFault;
use super::Worker;

impl Worker {
    /// Pauses partitions that have begun to wait, and takes those up again that have waited long enough.
    pub(super) fn wait_for_schemas(&mut self) -> Result<(), KafkaFault> {
        let now = Instant::now();
        for (id, partition) in &mut self.partitions {
            let Some(wait) = &mut partition.schema_wait else { continue };
            let mut list = TopicPartitionList::with_capacity(1);
            list.add_partition(&self.options.topic, *id);
            if let Some(detail) = wait.unreported.take() {
                self.consumer.pause(&list).map_err(|e| other(&e))?;
                self.shared.schema_unknown(*id, &detail);
            }
            if wait.until <= now {
                partition.end_schema_wait();
                // While everything is held it stays held.
                if !self.holding {
                    self.consumer.resume(&list).map_err(|e| other(&e))?;
                }
            }
        }
        Ok(())
    }
}
