//! Placeholder for `ingest`.
