//! x
mod golden_tgn;
mod graph_model;
mod serving;
mod tgn_stream;
mod trainer;
mod golden_ops;
