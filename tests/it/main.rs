//! Every integration test, in one binary: one link instead of many.

mod api;
mod live;
mod observability;
