//! The row cache's table on a GPU: [`GpuRowTable`] is a copy of it, in which [`find`](GpuRowTable::find) looks up
//! the rows of a round. The twin is `feature::cache::CacheDirectory`; both find the same slots and list the same
//! misses.
//!
//! A copy that is behind finds less, never something else, as long as its generations are up to date: an entry counts
//! only with the generation of its slot.

use super::context::Cuda;
use super::declare::kernels;
use super::error::CudaError;
use super::launch::{Launch, to_u32};
use super::memory::CudaBuffer;
use super::stream::Stream;
use super::twins::{ROW_CACHE_TILE, RowCacheBucket, RowCacheTable};

/// Which slot holds the row of an id, in a GPU's memory.
pub struct GpuRowTable {
    buckets: CudaBuffer<RowCacheBucket>,
    generations: CudaBuffer<u32>,
}

/// What was found for the ids of a round, in a GPU's memory.
pub struct GpuFound {
    /// The slot of each id; all ones where it is in none.
    pub slots: CudaBuffer<u32>,
    /// Which places of the round were missed, ascending; only the first [`miss_count`](Self::miss_count) count.
    pub misses: CudaBuffer<u32>,
    /// One number.
    pub miss_count: CudaBuffer<u32>,
    tiles: CudaBuffer<u32>,
}

impl GpuFound {
    /// Room for `most` ids.
    ///
    /// # Errors
    /// [`CudaError::OutOfMemory`].
    pub fn new(cuda: &Cuda, stream: &Stream, most: usize) -> Result<Self, CudaError> {
        let operation = "making room for slots of rows";
        let tiles = most.div_ceil(ROW_CACHE_TILE as usize);
        Ok(Self {
            slots: CudaBuffer::zeros(cuda, stream, most, operation)?,
            misses: CudaBuffer::zeros(cuda, stream, most, operation)?,
            miss_count: CudaBuffer::zeros(cuda, stream, 1, operation)?,
            tiles: CudaBuffer::zeros(cuda, stream, tiles, operation)?,
        })
    }
}

impl GpuRowTable {
    /// A copy of the table that `CacheDirectory::table` gives: its buckets as bytes, and a generation per slot. Waits.
    ///
    /// # Errors
    /// Bytes that are no whole buckets, or the driver's.
    pub fn copy(
        cuda: &Cuda,
        stream: &Stream,
        (buckets, generations): (&[u8], &[u32]),
    ) -> Result<Self, CudaError> {
        let operation = "copying the table of the row cache";
        let buckets = whole_buckets(operation, buckets)?;
        Ok(Self {
            buckets: CudaBuffer::from_slice(cuda, stream, &buckets, operation)?,
            generations: CudaBuffer::from_slice(cuda, stream, generations, operation)?,
        })
    }

    /// Takes over what changed since. Waits.
    ///
    /// # Errors
    /// A table of another size, or the driver's.
    pub fn update(&mut self, (buckets, generations): (&[u8], &[u32])) -> Result<(), CudaError> {
        let buckets = whole_buckets("copying the table of the row cache", buckets)?;
        self.buckets.copy_from(&buckets)?;
        self.generations.copy_from(generations)
    }

    /// Finds the slots of the first `count` of `ids`. Does not wait.
    ///
    /// # Errors
    /// Room that does not fit, a buffer of another stream, or the driver's.
    pub fn find(
        &self,
        cuda: &Cuda,
        (ids, count): (&CudaBuffer<u64>, usize),
        found: &mut GpuFound,
    ) -> Result<(), CudaError> {
        let context = (cuda, self.buckets.stream());
        find(context, self, (ids, count), &mut found.slots, &mut found.tiles)?;
        let misses = (&mut found.misses, &mut found.miss_count);
        list_misses(context, count, (&found.slots, &found.tiles), misses)
    }

    fn argument<'a>(
        &'a self,
        launch: &mut Launch<'a>,
        operation: &'static str,
    ) -> Result<RowCacheTable, CudaError> {
        Ok(RowCacheTable {
            buckets: launch.reading(&self.buckets),
            generations: launch.reading(&self.generations),
            bucket_count: to_u32(operation, "buckets", self.buckets.len())?,
            slot_count: to_u32(operation, "slots", self.generations.len())?,
        })
    }
}

kernels! {
    /// The slot of each of the first `count` of `ids`, and how many of each tile are in none.
    fn find = row_cache_find(
        table: &GpuRowTable, (ids, count): (&CudaBuffer<u64>, usize), slots: &mut CudaBuffer<u32>,
        misses: &mut CudaBuffer<u32>,
    ) {
        let operation = "looking rows up";
        pass built(RowCacheTable, |launch| table.argument(&mut launch, operation)?), read(ids, count, "ids"),
            u32(count, "ids"), write(slots, count, "slots"),
            write(misses, count.div_ceil(ROW_CACHE_TILE as usize), "tiles");
        grid count, ROW_CACHE_TILE;
        skip false;
        text "{count} ids";
        safe "A table has a bucket at least, and the kernel takes no slot that has no generation; there is room for a
              slot of each id and a number of each tile.";
    }

    /// Lists the places of the first `count` slots that are none, and counts them.
    fn list_misses = row_cache_misses(
        count: usize, (slots, tiles): (&CudaBuffer<u32>, &CudaBuffer<u32>),
        (misses, miss_count): (&mut CudaBuffer<u32>, &mut CudaBuffer<u32>),
    ) {
        let operation = "listing rows that are missed";
        pass read(slots, count, "slots"), u32(count, "ids"),
            read(tiles, count.div_ceil(ROW_CACHE_TILE as usize), "tiles"), write(misses, count, "misses"),
            write(miss_count, 1, "the number of misses");
        grid count, ROW_CACHE_TILE;
        skip false;
        text "{count} ids";
        safe "Slots and numbers of tiles are as [`find`] left them, so there are no more misses than ids.";
    }
}

fn whole_buckets(operation: &'static str, bytes: &[u8]) -> Result<Vec<RowCacheBucket>, CudaError> {
    let (buckets, rest) = bytes.as_chunks::<{ size_of::<RowCacheBucket>() }>();
    if buckets.is_empty() || !rest.is_empty() {
        let mismatch = format!("{} bytes are no whole buckets", bytes.len());
        return Err(CudaError::Arguments { operation, mismatch });
    }
    Ok(buckets.iter().map(|bucket| bytemuck::pod_read_unaligned(bucket)).collect())
}
