//! Limits on requests and connections.

use std::time::Duration;

use super::export::EXPORTS_MAX;

/// Limits on requests and connections.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ApiLimits {
    /// Connections at a time, for each address; more wait to be accepted.
    pub connections: usize,
    /// Longest time for the header of a request to arrive, counted from when the connection is ready for it.
    pub head: Duration,
    /// Longest time that a client may read nothing of a response.
    pub stall: Duration,
    /// Longest time that a client may send nothing of a body.
    pub body_grace: Duration,
    /// The slowest that a client may send a body or read a response on average, bytes per second.
    pub bytes_per_second_min: u32,
    /// Bodies of one client that may keep the daemon waiting at a time.
    pub late_bodies: usize,
    /// Bytes of large bodies in memory at a time; a client gets half at most.
    pub bodies_bytes: usize,
    /// Bytes of large responses in memory at a time, until they are sent; a client gets half at most.
    pub responses_bytes: usize,
    /// Concurrent queries, waiting ones included; more are refused with 503. Waiting ones hold no thread.
    pub concurrent_queries: usize,
    /// Concurrent pushes; more are refused with 503. Separate from queries, so that readers who wait for an event
    /// cannot block its push.
    pub concurrent_pushes: usize,
    /// Largest body in bytes.
    pub body_bytes: usize,
    /// Longest time for a body to arrive and, once it has, for the work on the request; the time that a
    /// request waits for `min_position` comes on top.
    pub request_timeout: Duration,
    /// Most nodes, pairs or neighbors in one request.
    pub batch_items: usize,
    /// Longest time that a request may wait for `min_position`.
    pub wait: Duration,
    /// Smallest response that is compressed, in bytes; 0: none is.
    pub compress_bytes_min: usize,
    /// Open pages of the console; 0: there is none.
    pub console_pages: usize,
}

impl ApiLimits {
    /// Threads that the blocking pool of the runtime may need: one for each admitted request, and some for
    /// status and metrics, which are never refused.
    #[must_use]
    pub fn blocking_threads(&self) -> usize {
        self.concurrent_queries
            .saturating_add(self.concurrent_pushes)
            .saturating_add(OPERATIONS_MAX + ADMIN_REQUESTS_MAX + EXPORTS_MAX + CONSOLE)
    }
}

/// What makes the figures of the console.
const CONSOLE: usize = 1;

/// Concurrent admin requests; a checkpoint takes as long as the disk.
pub(super) const ADMIN_REQUESTS_MAX: usize = 4;

/// Concurrent status requests, and scrapes; each has a reserved thread.
pub const OPERATIONS_MAX: usize = 32;

impl Default for ApiLimits {
    fn default() -> Self {
        Self {
            connections: 1024,
            head: Duration::from_secs(75),
            stall: Duration::from_secs(30),
            body_grace: Duration::from_secs(5),
            bytes_per_second_min: 16 << 10,
            late_bodies: 128,
            bodies_bytes: 256 << 20,
            responses_bytes: 512 << 20,
            concurrent_queries: 64,
            concurrent_pushes: 16,
            body_bytes: 8 << 20,
            request_timeout: Duration::from_secs(30),
            batch_items: 10_000,
            wait: Duration::from_secs(10),
            compress_bytes_min: 1 << 20,
            console_pages: 64,
        }
    }
}
