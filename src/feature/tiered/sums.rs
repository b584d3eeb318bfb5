//! The checksum of each block on disk, in memory: it distinguishes a torn or a stale block from a good one, and a block
//! that was never written from both.

use hashbrown::HashMap;

/// Blocks whose checksums are stored in one array.
const CHUNK: u64 = 1024;

/// Checksums by block. Memory follows the blocks that were written, not the highest.
#[derive(Default)]
pub(super) struct Sums {
    chunks: HashMap<u64, Box<[u32; CHUNK as usize]>>,
    written: u64,
}

/// The checksum of a block's bytes; never 0, which means "never written".
pub(super) fn checksum(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes).max(1)
}

impl Sums {
    /// The checksum of `block`, if it was ever written.
    pub fn get(&self, block: u64) -> Option<u32> {
        let sum = self.chunks.get(&(block / CHUNK))?[(block % CHUNK) as usize];
        (sum != 0).then_some(sum)
    }

    /// Records that `block` was written.
    pub fn set(&mut self, block: u64, sum: u32) {
        let chunk = self.chunks.entry(block / CHUNK).or_insert_with(|| Box::new([0; CHUNK as usize]));
        let place = &mut chunk[(block % CHUNK) as usize];
        self.written += u64::from(*place == 0);
        *place = sum;
    }

    /// Forgets blocks before `block`.
    pub fn forget_below(&mut self, block: u64) {
        let written = &mut self.written;
        self.chunks.retain(|&chunk, sums| {
            let gone = block.saturating_sub(chunk * CHUNK).min(CHUNK) as usize;
            let gone = &mut sums[..gone];
            *written -= gone.iter().filter(|&&sum| sum != 0).count() as u64;
            gone.fill(0);
            (chunk + 1) * CHUNK > block
        });
    }

    /// How many blocks were written and not forgotten.
    pub fn written(&self) -> u64 {
        self.written
    }

    /// Bytes held.
    pub fn bytes(&self) -> u64 {
        (self.chunks.len() * size_of::<[u32; CHUNK as usize]>() + self.chunks.allocation_size()) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_forgotten_ends_at_its_block() {
        let mut sums = Sums::default();
        (0..5 * CHUNK).step_by(3).for_each(|block| sums.set(block, 7));
        let mut gone = 0;
        for (end, chunks) in [(5, 5), (CHUNK, 4), (2 * CHUNK + 100, 3), (50, 3), (5 * CHUNK + 1, 0)] {
            sums.forget_below(end);
            gone = end.max(gone);
            let left: Vec<u64> = (0..5 * CHUNK).filter(|&block| sums.get(block).is_some()).collect();
            let expected = (0..5 * CHUNK).step_by(3).filter(|&block| block >= gone);
            assert!(left.iter().copied().eq(expected), "below {end}");
            assert_eq!((sums.chunks.len(), sums.written()), (chunks, left.len() as u64));
        }
    }
}
