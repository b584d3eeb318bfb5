//! Edge: events in. Sources read events where they are (a Kafka topic, a file, an HTTP body), decode them,
//! admit them and hand batches to the log through one bounded queue. A refused event is counted, named
//! and kept as a dead letter before the batch that accounts for it is submitted.
//!
//! Reading order: `decode` (bytes to events), `document` and `registry` (what is written by the schemas of a registry),
//! `mapping` (messages of other shapes), `body` (many of them), `admit` (the stream's rules), `dead_letter`,
//! `handover`, then the sources `kafka`, `replay` (files, read by `rows`) and `push`; `produce` is the other side, a
//! producer for files.
//! Knows the words of the stream and nothing of graphs, learning or what HTTP serves.

pub mod admit;
pub mod body;
pub mod csv;
pub mod dead_letter;
pub mod decode;
pub mod document;
pub mod file_error;
mod fingerprint;
pub mod generated;
mod handover;
pub mod http_client;
pub mod kafka;
pub mod mapping;
mod partition_clock;
pub mod produce;
pub mod push;
pub mod registry;
pub mod rejection;
pub mod replay;
pub mod replication;
mod request_key;
pub mod rows;
mod wire;

pub use handover::{Holds, SourceWiring};

#[cfg(test)]
mod tests {
    pub mod fake_log;
}
