//! x
mod golden_ops;
