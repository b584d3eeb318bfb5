//! Integration tests, one binary for all.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod broker;
mod eval_command;
mod graph_model;
mod kafka_ingest;
mod protocol_edgebank;
