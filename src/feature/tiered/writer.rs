//! The thread that writes rows to disk, in few large writes: the blocks that have waited longest, consecutive ones in
//! one write.
//!
//! Nothing is written while a quarter of the memory has room for what waits, so what fits in memory never touches the
//! disk, and rows that arrive in order are written as one long run. Cleared rows are overwritten soon.

use std::time::{Duration, Instant};

use hashbrown::HashSet;
use parking_lot::{Condvar, Mutex};

use super::RowError;
use super::busy::{Claim, Claims};
use super::shared::{Buffer, Shared};
use super::stats::{RowState, add};
use super::sums::checksum;

/// How soon cleared rows are overwritten; a delay, so that many are overwritten in one round.
const FORGET_AFTER: Duration = Duration::from_millis(500);
/// The delay of the next try after a failure: at first, and at most, doubling between.
const RETRY_FIRST: Duration = Duration::from_millis(50);
const RETRY_MOST: Duration = Duration::from_secs(5);
/// How long a row that found no room waits before it tries again.
const LOOK_AGAIN: Duration = Duration::from_millis(10);
/// Blocks handled in one hold of the lock.
const BLOCKS_PER_HOLD: usize = 16;

/// Requests to the writer, and what it reports.
#[derive(Default)]
pub(super) struct WriterState {
    orders: Mutex<Orders>,
    work: Condvar,
    done: Condvar,
}

#[derive(Default)]
struct Orders {
    wake: bool,
    stop: bool,
    /// The deadline for overwriting cleared rows.
    forget: Option<Instant>,
    /// The last try showed that nothing can be written.
    stuck: bool,
    state: RowState,
}

impl WriterState {
    /// There is something to write.
    pub fn wake(&self) {
        let mut orders = self.orders.lock();
        if !orders.wake {
            orders.wake = true;
            self.work.notify_one();
        }
    }

    /// As `wake`, and waits for the end of a round, or briefly.
    pub fn wake_and_wait(&self) {
        let mut orders = self.orders.lock();
        orders.wake = true;
        self.work.notify_one();
        self.done.wait_for(&mut orders, LOOK_AGAIN);
    }

    /// Something on disk has to be overwritten.
    pub fn forget_soon(&self) {
        let mut orders = self.orders.lock();
        if orders.forget.is_none() {
            orders.forget = Some(Instant::now() + FORGET_AFTER);
            self.work.notify_one();
        }
    }

    pub fn stop(&self) {
        self.orders.lock().stop = true;
        self.work.notify_one();
    }

    /// Whether waiting for the writer is futile.
    pub fn is_stuck(&self) -> bool {
        self.orders.lock().stuck
    }

    pub fn state(&self) -> RowState {
        self.orders.lock().state.clone()
    }

    /// Waits for something to do. Returns whether everything has to be written, or `None` at the end. A `pause` after a
    /// failure ends early where some writes work.
    fn next(&self, pause: Option<Duration>) -> Option<bool> {
        let mut orders = self.orders.lock();
        let until = pause.map(|pause| Instant::now() + pause);
        loop {
            if orders.stop {
                return None;
            }
            let now = Instant::now();
            let is_over = |at: Option<Instant>| at.is_some_and(|at| now >= at);
            let all = is_over(until) || is_over(orders.forget);
            let woken = orders.wake && !(orders.stuck && until.is_some());
            if all || woken {
                orders.wake = false;
                if is_over(orders.forget) {
                    orders.forget = None;
                }
                return Some(all);
            }
            match until.into_iter().chain(orders.forget).min() {
                Some(at) => drop(self.work.wait_until(&mut orders, at)),
                None => self.work.wait(&mut orders),
            }
        }
    }

    /// Reports the result of a round.
    fn report(&self, state: RowState, stuck: bool) {
        let mut orders = self.orders.lock();
        (orders.state, orders.stuck) = (state, stuck);
        self.done.notify_all();
    }
}

/// Reports it when the writer ends in a panic: rows then stay in memory.
struct LastWord<'a>(&'a WriterState);

impl Drop for LastWord<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let reason = "the thread that writes feature rows ended in a panic".to_owned();
            self.0.report(RowState::Degraded(reason), true);
        }
    }
}

/// The result of one batch.
#[derive(Default)]
struct Batch {
    taken: usize,
    written: usize,
    /// Blocks that another thread was reading.
    skipped: usize,
    error: Option<String>,
}

/// Writes what has to be written until stopped.
pub(super) fn run(shared: &Shared) {
    let _last_word = LastWord(&shared.writer);
    // Blocks that could not be written when last tried.
    let mut failed = HashSet::new();
    let mut state = RowState::Ok;
    let mut pause: Option<Duration> = None;
    while let Some(all) = shared.writer.next(pause) {
        let mut left = if all { shared.cache.read().queue.len() } else { 0 };
        while left > 0 || shared.cache.read().is_behind() {
            let batch = shared.write_batch(&mut failed);
            left = left.saturating_sub(shared.plan.batch_blocks);
            let failing = batch.error.is_some();
            state = match batch.error {
                Some(error) => RowState::Degraded(error),
                None if failed.is_empty() => RowState::Ok,
                None => state,
            };
            let stuck = failing && batch.written == 0;
            shared.writer.report(state.clone(), stuck);
            if batch.taken == 0 || stuck || shared.writer.orders.lock().stop {
                break;
            }
            if all && batch.skipped > 0 {
                // One of them may have to be overwritten.
                shared.writer.forget_soon();
            }
            if batch.written == 0 && batch.skipped > 0 {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        let next = pause.map_or(RETRY_FIRST, |pause| (pause * 2).min(RETRY_MOST));
        pause = (!failed.is_empty()).then_some(next);
    }
}

/// The disk content of a batch's blocks that memory holds in part.
struct Old<'a> {
    blocks: Vec<(u64, u32)>,
    images: Option<Buffer<'a>>,
}

impl Old<'_> {
    fn get(&self, block: u64, block_bytes: usize) -> Option<&[u8]> {
        let at = self.blocks.binary_search_by_key(&block, |(block, _)| *block).ok()?;
        Some(&self.images.as_ref()?.bytes()[at * block_bytes..][..block_bytes])
    }
}

impl Shared {
    /// Writes the blocks that have waited longest, as many as make a batch.
    fn write_batch(&self, failed: &mut HashSet<u64>) -> Batch {
        let mut batch = Batch::default();
        let mut claims = self.busy.claims();
        let blocks = self.cache.write().next_blocks(self.plan.batch_blocks);
        batch.taken = blocks.len();
        let (mut ready, partial) = self.claim_dirty(&blocks, &mut claims, failed, &mut batch);
        let old = self.read_old(partial, &mut ready, failed, &mut batch);
        let mut image = self.buffer();
        for run in ready.chunk_by(|a, b| a + 1 == *b) {
            match self.write_run(run, &old, &mut image) {
                Ok(()) => {
                    batch.written += run.len();
                    failed.retain(|block| !run.contains(block));
                }
                Err(error) => {
                    batch.error = Some(error);
                    failed.extend(run);
                }
            }
            claims.release(run.iter().copied());
        }
        self.cache.write().trim();
        batch
    }

    /// Claims those of `blocks` that are dirty and not being read, and keeps their units in memory. Returns them, and
    /// which of them have to be read first.
    fn claim_dirty(
        &self,
        blocks: &[u64],
        claims: &mut Claims<'_>,
        failed: &mut HashSet<u64>,
        batch: &mut Batch,
    ) -> (Vec<u64>, Vec<(u64, u32)>) {
        let (mut ready, mut partial) = (Vec::new(), Vec::new());
        for blocks in blocks.chunks(BLOCKS_PER_HOLD) {
            let mut cache = self.cache.write();
            for &block in blocks {
                if block < cache.first {
                    cache.discard(block);
                    failed.remove(&block);
                } else if !cache.is_dirty(block) {
                    failed.remove(&block);
                } else if claims.claim(block) == Claim::Taken {
                    cache.queue_block(block);
                    batch.skipped += 1;
                } else {
                    partial.extend(cache.hold(block).map(|sum| (block, sum)));
                    ready.push(block);
                }
            }
        }
        (ready, partial)
    }

    /// Reads what is on disk of the blocks in `partial`. One that cannot be read is not `ready`.
    fn read_old(
        &self,
        mut partial: Vec<(u64, u32)>,
        ready: &mut Vec<u64>,
        failed: &mut HashSet<u64>,
        batch: &mut Batch,
    ) -> Old<'_> {
        if partial.is_empty() {
            return Old { blocks: partial, images: None };
        }
        let mut images = self.buffer();
        if self.read_blocks(&partial, &mut images).is_err() {
            // One by one, so that those that can be read are written.
            let mut one = self.buffer();
            let mut read = Vec::with_capacity(partial.len());
            let bytes = self.shape.block_bytes();
            for found in partial {
                match self.read_blocks(&[found], &mut one) {
                    Ok(()) => {
                        let at = read.len() * bytes;
                        images.bytes_mut()[at..at + bytes].copy_from_slice(&one.bytes()[..bytes]);
                        read.push(found);
                    }
                    Err(error) => {
                        self.cache.write().unhold(found.0);
                        ready.retain(|block| *block != found.0);
                        failed.insert(found.0);
                        batch.error = Some(unreadable(&error));
                    }
                }
            }
            partial = read;
        }
        Old { blocks: partial, images: Some(images) }
    }

    /// Writes the consecutive blocks of `run`, which are claimed and held, through `image`.
    fn write_run(&self, run: &[u64], old: &Old<'_>, image: &mut Buffer<'_>) -> Result<(), String> {
        let bytes = self.shape.block_bytes();
        for (block, image) in run.iter().zip(image.bytes_mut().chunks_exact_mut(bytes)) {
            match old.get(*block, bytes) {
                Some(old) => image.copy_from_slice(old),
                None => image.fill(0),
            }
        }
        let places = image.bytes_mut().chunks_mut(bytes * BLOCKS_PER_HOLD);
        for (blocks, images) in run.chunks(BLOCKS_PER_HOLD).zip(places) {
            let mut cache = self.cache.write();
            for (block, image) in blocks.iter().zip(images.chunks_exact_mut(bytes)) {
                cache.copy_into(*block, image);
            }
        }
        let images = image.bytes().chunks_exact(bytes);
        let sums: Vec<u32> = images.take(run.len()).map(checksum).collect();
        let written =
            self.file.write(self.shape.extent(run[0]).page, image, run.len() * self.shape.block_pages);
        let counters = &self.counters;
        match &written {
            Ok(()) => {
                add(&counters.writes, 1);
                add(&counters.written_bytes, run.len() * bytes);
            }
            Err(_) => add(&counters.failures, 1),
        }
        let settled: Vec<_> = run.iter().zip(sums).zip(image.bytes().chunks_exact(bytes)).collect();
        for settled in settled.chunks(BLOCKS_PER_HOLD) {
            let mut cache = self.cache.write();
            for ((block, sum), image) in settled {
                match written {
                    Ok(()) => cache.written(**block, *sum, image),
                    Err(_) => cache.not_written(**block, image),
                }
            }
        }
        written.map_err(|error| error.to_string())
    }
}

fn unreadable(error: &RowError) -> String {
    format!("rows beside a changed one could not be read, so their block is not written: {error}")
}
