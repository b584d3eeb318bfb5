//! Placeholder for `ingest`.

pub mod csv;
pub mod generated;
