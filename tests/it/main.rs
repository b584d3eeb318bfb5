//! x

mod log;
