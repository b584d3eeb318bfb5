//! x
mod golden_tgn;
mod graph_model;
