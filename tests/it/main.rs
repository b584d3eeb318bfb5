//! Integration tests, one binary for all: one link instead of many.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod api;
mod bench_command;
mod bench_ops;
mod bench_questions;
mod broker;
mod check_command;
mod contract;
mod crash;
mod daemon;
mod demo;
mod eval_command;
mod forget;
mod gate;
mod golden_models;
mod golden_ops;
mod graph_model;
mod graph_retain;
mod graph_scrub;
mod graph_spill;
mod kafka_daemon;
mod kafka_ingest;
mod kernels_host;
mod live;
mod log;
mod models;
mod observability;
mod process;
mod protocol_edgebank;
mod protocol_learned;
mod serving;
mod skip;
mod tgn_stream;
mod tiered_rows;
mod trainer;
