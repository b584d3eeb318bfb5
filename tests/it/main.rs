//! Integration tests, one binary for all.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod api;
mod live;
mod observability;
