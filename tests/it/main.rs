//! x
mod graph_model;
