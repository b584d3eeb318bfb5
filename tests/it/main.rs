//! Integration tests, one binary for all.

mod protocol_edgebank;
