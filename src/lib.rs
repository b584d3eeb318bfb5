//! Evergraph: a daemon that keeps a temporal graph from an event stream, continuously trains a
//! temporal graph network on it, and serves fresh node embeddings and link scores.
//!
//! The modules in reading order, lowest floor first. Imports go down only; `tests/tidy.rs` holds it.
//! `ARCHITECTURE.md` walks an event, a query and a training step through them.

// Floor 0: the words.
pub mod event;
// Floor 1: where numbers live.
pub mod device;
// Floor 2: truth, index, rows.
pub mod feature;
pub mod graph;
pub mod log;
// Floor 3: who are my neighbors; layers.
pub mod nn;
pub mod sampler;
// Floor 4: temporal graph networks, in the papers' words.
pub mod model;
// Floor 5: what readers see.
pub mod serving;
// Floor 6: one step, and its evaluation.
pub mod train;
// Floor 7: the two loops that change state.
pub mod appender;
pub mod learner;
// Edges: ingest, HTTP API, catalog.
pub mod api;
pub mod catalog;
pub mod ingest;
// Beside: usable by all, imports nothing.
pub mod metrics;
// Roof: wires everything, decides nothing.
pub mod cli;
pub mod config;
pub mod daemon;
