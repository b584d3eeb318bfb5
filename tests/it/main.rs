//! Integration tests, one binary for all.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod eval_command;
mod golden_ops;
mod golden_tgn;
mod graph_model;
mod protocol_edgebank;
mod protocol_learned;
