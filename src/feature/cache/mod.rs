//! A cache of rows: a fixed number of them on the device that computes, chosen by when they are needed next.
//! [`CacheDirectory`] decides, [`GpuRows`] moves the rows to a GPU, where they are read in place.
//!
//! # Rounds
//!
//! Training goes in rounds: a batch, and the rows that it reads, each once. Which rows those are is known some rounds
//! ahead, since a sample is a function of the graph and the seeds, and a replay of old events is planned. So rounds are
//! announced in their order, and each is then taken in two steps:
//!
//! ```text
//! announce(rows of round n + W)      as soon as it is known
//! prepare                            round n comes next: bring in what it will miss
//! take                               all rows of round n, from the cache or from where they are kept
//! ```
//!
//! **Reuse**: what is in the cache stays there, across rounds and epochs. A row is evicted only for one that is needed
//! sooner, as far as rounds are known (L. A. Belady, A study of replacement algorithms for a virtual-storage computer,
//! 1966; a row that is needed later than all others is not cached at all, it bypasses the cache). Among rows that no
//! known round needs, those that were used longest ago are evicted first.
//!
//! **Restore**: before a round comes, its misses are brought in, as far as there are empty slots or slots whose row no
//! known round needs. A restored row costs its copy like a miss, but no round waits for it.
//!
//! # Consistency
//!
//! A row that is taken has the bytes of its source. After changing a row in its source, call
//! [`invalidate`](CacheDirectory::invalidate) before the next step. The entry of a row is emptied when its slot is
//! given up ([`table`]), so a slot is never taken for that of the row before.
//!
//! The same rounds give the same slots, at any number of threads: there is no randomness and no clock. A step costs
//! time in proportion to the rows of its round, whatever the number of slots.
//!
//! Does not know what an id refers to.

mod buckets;
mod directory;
mod found;
mod gpu;
mod order;
mod ranks;
mod table;
mod window;

pub use directory::{CacheCounts, CacheDirectory, Placed};
pub use found::Found;
pub use gpu::{GpuRowCounts, GpuRows, RoundRows};

#[cfg(test)]
mod tests;
