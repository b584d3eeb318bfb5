//! Placeholder for `cli`.
pub mod events;
