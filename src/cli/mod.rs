//! Placeholder for `cli`.
pub mod eval;
pub mod events;
pub mod machine;
