//! `evergraph ingest`: pushes a file of events as a producer would.
