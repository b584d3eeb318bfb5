//! Placeholder for `ingest`.

pub mod generated;
