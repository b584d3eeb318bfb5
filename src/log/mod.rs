//! Floor 2: the event log, which is the database. Every record that was accepted stands here in order
//! of arrival, with the names it was the first to use and the source offsets it was read from; the
//! graph, the features and the models are made from it and can be made again.
//!
//! Holds bytes and positions. Knows nothing of what records mean: dense ids are not looked up, deletions
//! are not applied.
//!
//! # Constraints
//! - A frame is in the log whole or not at all, and so are its source offsets: "stored" and "read up to"
//!   cannot disagree.
//! - A [`commit`](Log::commit) that returned is never lost, nor is one of its bytes changed unnoticed. A
//!   commit that failed has left nothing.
//! - Only a write that a crash has interrupted is cut off, and what is cut off is kept in a file beside the log. Any
//!   other damage is an error that names the file, the byte and what to do: durable records are never dropped in
//!   silence.
//! - One writer, held by a lock on the directory; any number of readers beside it. They see durable
//!   frames only and never wait for a write.
//!
//! # Layout
//! A directory holds a `LOCK` file, the mark `DURABLE` (its layout is in `mark.rs`), copies of torn tails (`*.torn`)
//! and segments, named by the position of their first record
//! (`00000000000000000000.log`). A segment is frames and nothing else. All numbers are little-endian.
//!
//! ```text
//! byte  0  magic "EVGF"                       4
//!       4  version, 1                         2   places of magic, version and header checksum
//!       6  columns present, one bit each      2   are the same in every version
//!       8  position of the first record       8
//!      16  number of records, n               4
//!      20  length of the payload              4   at most 2^30
//!      24  offset at which the commit began   8
//!      32  origin, ms since the Unix epoch    8
//!      40  CRC32C of the payload              4
//!      44  CRC32C of bytes 0..44              4
//!      48  payload:
//!          src                                4n
//!          dst                                4n
//!          time: bit 0 set: base 8, offsets   4n  base + offset, modulo 2^64
//!                bit 0 not set                8n
//!   bit 1  op                                 n   left out if every record adds an edge
//!   bit 2  edge type                          2n  left out if every one is 0
//!   bit 3  label                              4n  left out if every one is NaN
//!   bit 4  features: rows r, values v         8
//!            ends of rows, values             4r + 4v
//!   bit 5  idempotency hashes                 16n
//!   bit 6  new keys: count                    4
//!            each: 0, number                  1 + 8
//!            or    1, length, text            1 + 4 + length
//!   bit 7  new types: count                   4
//!            each: length, text               4 + length
//!   bit 8  sources: count                     4
//!            each: length, name, partition,   4 + length + 4
//!                  from, to                   8 + 8
//!   bit 9  and in each: 1, offset and hash    1 + 8 + 8   of the last message, or 0 and 16 zero bytes
//! ```
//!
//! A plain edge takes **12 bytes** (16 where a frame spans 2^32 units of time or more), and a frame 56
//! more. Columns are copied, not converted: encoding and decoding run at the speed of memory.
//!
//! A log that was [cut](Log::cut) begins with a later segment; what its first records were is then in a snapshot.
//!
//! # Operation
//! [`append`](Log::append) encodes into memory; `commit` writes everything appended at once and syncs
//! once, so the cost of a sync is shared by whatever has gathered meanwhile. Readers then see the new
//! durable length under a mutex that is held for a few instructions. A segment is begun when the last
//! one has reached its size, and its name is made durable before anything is written to it.
//!
//! After a crash the end of the last segment may hold any mixture of the pages of the last commit. What
//! distinguishes this from damage is the commit's offset in every header: a commit begins only when the one
//! before is durable, so a broken frame with a *later commit* behind it was durable once, and its log is
//! refused; a broken frame with at most its own commit behind it was never confirmed, and is cut off
//! with what follows. No commit vouches for the last one; the mark does, which names the durable length and is written
//! after every commit: a broken frame before it was durable. The mark itself is synced when the log is closed, so only
//! a loss of power can leave it behind the last commits, and only then does damage to these look like a torn write.
//! [`Recovery`] reports what was cut, where its copy is, and what the mark said.

mod error;
mod files;
mod frame;
mod header;
mod mark;
mod payload;
mod reader;
mod recovery;
mod segment;
mod shipping;
mod storage;
mod torn;
mod writer;

#[cfg(test)]
pub(crate) mod tests;

use std::path::PathBuf;

pub use error::LogError;
pub use files::{LogFiles, MARK_NAME, SegmentFile, files, is_file_of_log};
pub use frame::Frame;
pub use reader::{LogReader, LogReaders, read_only};
pub use recovery::Recovery;
pub use shipping::NoFrame;
pub use storage::{Access, LogFile, LogStorage};
pub use writer::Log;

/// Where the log is and how it is cut into files.
#[derive(Clone, Debug)]
pub struct LogOptions {
    /// The directory of the segments; nothing else should be kept there.
    pub dir: PathBuf,
    /// A segment that has reached this length is followed by a new one, bytes. Segments are longer by up
    /// to one commit.
    pub segment_bytes: u64,
}
