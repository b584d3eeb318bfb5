//! The checksum of each block on disk, in memory: what tells a torn or a stale block from a good one, and a
//! block that was never written from both.

use hashbrown::HashMap;

/// Blocks whose checksums stand together.
const CHUNK: u64 = 1024;

/// Checksums by block. Memory follows the blocks that were written, not the highest.
#[derive(Default)]
pub(super) struct Sums {
    chunks: HashMap<u64, Box<[u32; CHUNK as usize]>>,
    written: u64,
}

/// The checksum of a block's bytes; never 0, which stands for "never written".
pub(super) fn checksum(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes).max(1)
}

impl Sums {
    /// The checksum of `block`, if it was ever written.
    pub fn get(&self, block: u64) -> Option<u32> {
        let sum = self.chunks.get(&(block / CHUNK))?[(block % CHUNK) as usize];
        (sum != 0).then_some(sum)
    }

    /// Takes note that `block` was written.
    pub fn set(&mut self, block: u64, sum: u32) {
        let chunk = self.chunks.entry(block / CHUNK).or_insert_with(|| Box::new([0; CHUNK as usize]));
        let place = &mut chunk[(block % CHUNK) as usize];
        self.written += u64::from(*place == 0);
        *place = sum;
    }

    /// Forgets blocks before `block`, as many as stand together.
    pub fn forget_below(&mut self, block: u64) {
        let written = &mut self.written;
        self.chunks.retain(|&chunk, sums| {
            let stays = (chunk + 1) * CHUNK > block;
            if !stays {
                *written -= sums.iter().filter(|&&sum| sum != 0).count() as u64;
            }
            stays
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
