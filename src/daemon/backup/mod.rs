//! Backups of a data directory into a folder or a bucket, beside a running daemon, and back.
//!
//! A backup is a [`Manifest`]: files, each a list of chunks that are named by their SHA-256. Chunks that the repository
//! has are not sent again, and files that did not change since the newest backup are not even read; so every backup is
//! whole, and each but the first costs what is new. A segment of the log is only appended to, so only its last chunk
//! changes.
//!
//! [`Image`] decides what is copied and makes it fit together; [`create`](create()) sends it; [`restore`](restore())
//! brings it back; [`prune`](prune()) removes old backups and the chunks that no other one has. The daemon has no part
//! in it and does not wait, and one that does not run any more can be backed up the same way. It only shows how old the
//! last backup is, from the file that [`record`](record()) leaves in the data directory.
//!
//! Rejected: a server side in the daemon (it would need the credentials of the bucket, and could not save a daemon that
//! does not start), and crates for deduplicating backups (`rustic_core`, with which a copy of a log that is appended to
//! meanwhile has no defined end).

mod create;
mod image;
mod manifest;
mod prune;
mod record;
mod repository;
mod restore;

pub use create::{Created, Pace, create};
pub use image::Image;
pub use manifest::Manifest;
pub use prune::{Pruned, prune};
pub use record::{last_unix_seconds, record};
pub use repository::Repository;
pub use restore::{RESTORING, hold_finished, restore, verify};

/// Chunks on their way at a time.
const PARALLEL: usize = 4;

/// How far a backup or a restore has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// All bytes.
    pub bytes_total: u64,
    /// Bytes that are done.
    pub bytes_done: u64,
    /// Bytes that were sent to the repository, which lacked them.
    pub bytes_sent: u64,
}
