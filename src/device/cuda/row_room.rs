//! [`RowRoom`]: rows of a stream in memory of the host that a GPU reads in place, numbered as they come; and
//! [`RowsInPlace`], where some of them are, to fill places of a table on the GPU with.
//!
//! ```text
//!   push ─▶ | segment | segment | segment … |     page-locked, rows at a padded stride
//!                 └─ locate ─▶ addresses ─ fill ─▶ table[place] = row, by the GPU, over the bus
//! ```
//!
//! The room is a ring of segments, each an arena of its own: the first ones are made as rows come, later ones take the
//! memory of the oldest. Rows of the oldest segment are given out no more while the newest is filled, so that its turn
//! comes when nobody holds it; as long as somebody does, no row is taken in. Making a segment takes the system tens of
//! milliseconds, so whoever shares a room makes the next one early and beside it ([`RowRoom::lacking`]).
//!
//! **Order.** A row is written once, before it is given out. What is written later are zeros (a row was cleared) and
//! rows of a segment's next turn: both wait for the fills that were asked for, and none is asked for meanwhile.

#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;

use super::arena::LINE_BYTES;
use super::context::Cuda;
use super::error::CudaError;
use super::memory::CudaBuffer;
use super::row_segment::{Lacking, Made, Segment};
use super::rows::fill_places;
use super::stream::Event;
use super::work::CudaWork;

pub(super) const OPERATION: &str = "filling places with rows of the host";
/// The largest segment, and how many there are at least in a large room.
const SEGMENT_BYTES_MAX: usize = 64 << 20;
const SEGMENTS: usize = 8;
/// A row is padded to a multiple of a line where that wastes no more than this share of it, a seventh.
const WASTE_MAX: usize = 7;
/// The widest access of a kernel.
const WIDEST_BYTES: usize = 16;
/// Of a row that is not in the room, and of one that is zeros.
const ABSENT: u64 = 0;
const ZEROS: u64 = u64::MAX;

/// Values from one row to the next.
fn stride(width: usize) -> usize {
    let padded = |bytes: usize| (width * size_of::<f32>()).next_multiple_of(bytes) / size_of::<f32>();
    let fits = |stride: &usize| WASTE_MAX * (stride - width) <= width;
    [LINE_BYTES, WIDEST_BYTES].map(padded).into_iter().find(fits).unwrap_or(width)
}

/// The last fill that was asked for.
type Reads = Mutex<Option<Event>>;

/// Waits for the fills that were asked for, and lets none be asked for while `then` writes. A GPU that is lost reads
/// nothing any more.
fn alone<R>(reads: &Reads, then: impl FnOnce() -> R) -> R {
    let mut last = reads.lock();
    if let Some(event) = last.take() {
        let _ = event.synchronize();
    }
    then()
}

/// Rows by number, the newest of a stream.
pub struct RowRoom {
    cuda: Arc<Cuda>,
    width: usize,
    stride: usize,
    segment_rows: u64,
    segments_max: usize,
    segments: VecDeque<Arc<Segment>>,
    /// Segments whose rows are not wanted any more. Somebody may still hold them.
    spare: Vec<Arc<Segment>>,
    /// One that was made early, which nobody has seen.
    made: Option<Segment>,
    /// Number of the first segment: that of its first row, counted in segments.
    first_segment: u64,
    /// The first row, and one past the last.
    rows: std::ops::Range<u64>,
    reads: Arc<Reads>,
}

impl RowRoom {
    /// Room for rows of `width` values in some `bytes_max` bytes, which are taken as rows come. The first row gets the
    /// number `first`.
    #[must_use]
    pub fn new(cuda: &Arc<Cuda>, width: usize, bytes_max: u64, first: u64) -> Self {
        let stride = stride(width.max(1));
        let row_bytes = stride * size_of::<f32>();
        let bytes = usize::try_from(bytes_max).unwrap_or(usize::MAX);
        let segment_bytes = (bytes / SEGMENTS).min(SEGMENT_BYTES_MAX).max(row_bytes);
        let segment_rows = (segment_bytes / row_bytes) as u64;
        Self {
            cuda: cuda.clone(),
            width,
            stride,
            segment_rows,
            segments_max: bytes / segment_bytes,
            segments: VecDeque::new(),
            spare: Vec::new(),
            made: None,
            first_segment: first / segment_rows,
            rows: first..first,
            reads: Arc::default(),
        }
    }

    /// How many rows there is room for.
    #[must_use]
    pub fn capacity(&self) -> u64 {
        self.segments_max as u64 * self.segment_rows
    }

    /// Numbers of the rows that are there.
    #[must_use]
    pub fn rows(&self) -> std::ops::Range<u64> {
        self.rows.clone()
    }

    /// Bytes of the host's memory.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.count() as u64 * self.segment_rows * (self.stride * size_of::<f32>()) as u64
    }

    /// Drops all rows; the next one gets the number `first`. No memory ends: a GPU would be waited for.
    pub fn start_over(&mut self, first: u64) {
        self.spare.extend(self.segments.drain(..));
        self.first_segment = first / self.segment_rows;
        self.rows = first..first;
    }

    /// Takes in the next rows, one after another; returns how many it took: fewer where somebody still holds the
    /// memory that they would get.
    ///
    /// # Errors
    /// The system has no memory for a segment, or the GPU cannot map it.
    pub fn push(&mut self, rows: &[f32]) -> Result<usize, CudaError> {
        let mut taken = 0;
        for row in rows.chunks_exact(self.width.max(1)) {
            let segment = self.rows.end / self.segment_rows - self.first_segment;
            if segment >= self.segments.len() as u64 && !self.begin_segment()? {
                break;
            }
            self.write(self.rows.end, row);
            self.rows.end += 1;
            taken += 1;
        }
        Ok(taken)
    }

    /// Leaves rows out: the next one gets the number `to`. Those between are never asked for.
    pub fn skip_to(&mut self, to: u64) {
        while self.rows.end < to {
            let next = (self.rows.end / self.segment_rows + 1) * self.segment_rows;
            let known = self.rows.end / self.segment_rows - self.first_segment < self.segments.len() as u64;
            if !known && next < to && self.segments.is_empty() {
                self.first_segment = to / self.segment_rows;
                self.rows = to..to;
                return;
            }
            if !known && !matches!(self.begin_segment(), Ok(true)) {
                return;
            }
            self.rows.end = next.min(to);
        }
    }

    /// Makes a row zeros.
    pub fn clear(&mut self, row: u64) {
        if self.rows.contains(&row) {
            let reads = self.reads.clone();
            alone(&reads, || self.write(row, &vec![0.0; self.width]));
        }
    }

    /// Where rows are; `None` stands for a row of zeros.
    #[must_use]
    pub fn locate(&self, rows: impl Iterator<Item = Option<u64>>) -> RowsInPlace {
        let given = self.given_out();
        let mut held = vec![false; self.segments.len()];
        let address = |row: Option<u64>| {
            let Some(row) = row else { return ZEROS };
            if !given.contains(&row) {
                return ABSENT;
            }
            let (segment, at) = self.place(row);
            held[segment] = true;
            self.segments[segment].address + (at * size_of::<f32>()) as u64
        };
        let addresses: Vec<u64> = rows.map(address).collect();
        let held =
            self.segments.iter().zip(held).filter(|(_, held)| *held).map(|(segment, _)| segment.clone());
        let (width, reads) = (self.width, self.reads.clone());
        RowsInPlace { width, addresses, segments: held.collect(), reads }
    }

    /// The rows that are given out: not those of the oldest segment when its next turn is near.
    fn given_out(&self) -> std::ops::Range<u64> {
        let full = self.segments.len() == self.segments_max;
        let retires = full && 2 * (self.rows.end % self.segment_rows) >= self.segment_rows;
        let first = if retires { (self.first_segment + 1) * self.segment_rows } else { self.rows.start };
        first.max(self.rows.start).min(self.rows.end)..self.rows.end
    }

    /// The next segment, if it will be needed soon and has to be made.
    #[must_use]
    pub fn lacking(&self) -> Option<Lacking> {
        let is_half_full = 2 * (self.rows.end % self.segment_rows) >= self.segment_rows;
        let is_there = self.made.is_some() || !self.spare.is_empty();
        (is_half_full && !is_there && self.may_grow()).then(|| self.further())
    }

    /// Takes what was [`lacking`](Self::lacking), unless the room has got it otherwise.
    pub fn add(&mut self, Made(segment): Made) {
        let fits = segment.rows.len() == self.segment_rows as usize * self.stride;
        if fits && self.made.is_none() && self.may_grow() {
            self.made = Some(segment);
        }
    }

    fn may_grow(&self) -> bool {
        self.count() < self.segments_max
    }

    /// Segments, used or not.
    fn count(&self) -> usize {
        self.segments.len() + self.spare.len() + usize::from(self.made.is_some())
    }

    fn further(&self) -> Lacking {
        Lacking { cuda: self.cuda.clone(), len: self.segment_rows as usize * self.stride }
    }

    /// Memory for the next segment: new, or the oldest's if nobody holds it.
    fn begin_segment(&mut self) -> Result<bool, CudaError> {
        if let Some(segment) = self.made.take() {
            self.segments.push_back(Arc::new(segment));
            return Ok(true);
        }
        let free = self.spare.iter_mut().position(|segment| Arc::get_mut(segment).is_some());
        if let Some(free) = free {
            alone(&self.reads, || ());
            self.segments.push_back(self.spare.swap_remove(free));
            return Ok(true);
        }
        if self.may_grow() {
            let Made(segment) = self.further().make()?;
            self.segments.push_back(Arc::new(segment));
            return Ok(true);
        }
        let Some(mut oldest) = self.segments.pop_front() else { return Ok(false) };
        if Arc::get_mut(&mut oldest).is_none() {
            self.segments.push_front(oldest);
            return Ok(false);
        }
        alone(&self.reads, || ());
        self.segments.push_back(oldest);
        self.first_segment += 1;
        self.rows.start = self.rows.start.max(self.first_segment * self.segment_rows);
        Ok(true)
    }

    /// The segment of a row that is there, and its first value in it.
    fn place(&self, row: u64) -> (usize, usize) {
        let segment = (row / self.segment_rows - self.first_segment) as usize;
        (segment, (row % self.segment_rows) as usize * self.stride)
    }

    fn write(&mut self, row: u64, values: &[f32]) {
        let (segment, at) = self.place(row);
        let rows = &self.segments[segment].rows;
        assert!(at + values.len() <= rows.len(), "a row inside of its segment");
        // SAFETY: the row lies in the segment's memory, which lives as long as the segment. Nobody reads it: a new row
        // was given out to nobody, and for another one the caller has waited for the GPU and lets it begin nothing;
        // the host reads rows only by `RowsInPlace::read`, under the same lock.
        unsafe { std::ptr::copy_nonoverlapping(values.as_ptr(), rows.host().add(at), values.len()) };
    }
}

impl std::fmt::Debug for RowRoom {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "RowRoom(rows {:?} of {} values)", self.rows, self.width)
    }
}

/// Where some rows of a [`RowRoom`] are. As long as it lives, they stay there.
pub struct RowsInPlace {
    width: usize,
    addresses: Vec<u64>,
    segments: Vec<Arc<Segment>>,
    reads: Arc<Reads>,
}

impl RowsInPlace {
    /// How many rows were asked for.
    #[must_use]
    pub fn len(&self) -> usize {
        self.addresses.len()
    }

    /// Whether none was.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.addresses.is_empty()
    }

    /// Values of a row.
    #[must_use]
    pub fn width(&self) -> usize {
        self.width
    }

    /// Whether the row at this place of the list is there.
    #[must_use]
    pub fn has(&self, row: usize) -> bool {
        self.addresses.get(row).is_some_and(|address| *address != ABSENT)
    }

    /// Copies a row that is there, as the GPU would read it now.
    pub fn read(&self, row: usize, out: &mut [f32]) {
        let address = self.addresses[row];
        let of = |segment: &&Arc<Segment>| {
            let bytes = (segment.rows.len() * size_of::<f32>()) as u64;
            (segment.address..segment.address + bytes).contains(&address)
        };
        let Some(segment) = self.segments.iter().find(of) else { return out.fill(0.0) };
        let at = (address - segment.address) as usize / size_of::<f32>();
        let out = &mut out[..self.width];
        let _held = self.reads.lock();
        // SAFETY: the row lies in the segment, which is alive, and was written before it was given out; what writes it
        // again holds the lock.
        unsafe { std::ptr::copy_nonoverlapping(segment.rows.host().add(at), out.as_mut_ptr(), out.len()) };
    }

    /// Has the GPU copy rows, by their places in the list, to rows of `table`, each to another one. Does not wait. Not
    /// while the stream is recorded.
    ///
    /// # Errors
    /// A row that is not there, a table that is too short, or the driver's.
    pub fn fill(
        &self,
        work: &Arc<CudaWork>,
        rows: &[(usize, u32)],
        table: &mut CudaBuffer<f32>,
    ) -> Result<(), CudaError> {
        let address = |&(row, place): &(usize, u32)| {
            let address = self.addresses.get(row).copied().filter(|address| *address != ABSENT);
            address.map(|address| [address, u64::from(place)])
        };
        let Some(list) = rows.iter().map(address).collect::<Option<Vec<_>>>() else {
            let mismatch = "a row that is not in the host's room".to_owned();
            return Err(CudaError::Arguments { operation: OPERATION, mismatch });
        };
        let list = work.upload(list.as_flattened());
        let (_, stream) = work.context();
        stream.at_once(OPERATION)?;
        let mut last = self.reads.lock();
        let filled = fill_places(work.context(), list.get()?, rows.len(), self.width, table);
        // Also after a fault: some of the work may have been taken on.
        match stream.record() {
            Ok(event) => *last = Some(event),
            Err(_) => stream.synchronize()?,
        }
        let copied = rows.iter().filter(|(row, _)| self.addresses[*row] != ZEROS).count();
        stream.bus().read_in_place(copied * self.width * size_of::<f32>());
        filled
    }
}

impl std::fmt::Debug for RowsInPlace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "RowsInPlace({} rows of {} values)", self.addresses.len(), self.width)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_padded_to_lines_where_that_costs_little() {
        for (width, expected) in
            [(172, 192), (100, 100), (1, 1), (2, 2), (10, 10), (32, 32), (30, 32), (43, 44), (86, 96)]
        {
            assert_eq!(stride(width), expected, "{width}");
        }
        // Rows begin where the widest access that fits their width can begin.
        for width in 1..600_usize {
            let powers = [width, stride(width)].map(|values| (values * 4).trailing_zeros().min(4));
            assert!(powers[1] >= powers[0], "{width}");
        }
    }
}
