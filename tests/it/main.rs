//! Integration tests, one binary for all: one link instead of many.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod golden_ops;
mod golden_tgn;
mod graph_model;
mod serving;
mod tgn_stream;
mod trainer;
