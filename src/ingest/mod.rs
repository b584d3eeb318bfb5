//! Placeholder for `ingest`.

pub mod csv;
