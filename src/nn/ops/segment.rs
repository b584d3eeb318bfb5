//! Sums and means over groups of rows that stand together.
//!
//! ```text
//! sum   y_g = sum_i x_i              dx_i = dy_g
//! mean  y_g = sum_i x_i / n_g        dx_i = dy_g / n_g
//! ```

use std::sync::Arc;

use crate::device::Device;
use crate::device::cuda::layers as gpu;
use crate::nn::cpu::broadcast::broadcast;
use crate::nn::cpu::segment::{Csr, Slots, sum};
use crate::nn::tape::Walk;
use crate::nn::{Tape, Tensor, Var};

/// Which rows of a value form a group.
#[derive(Clone, Debug)]
pub enum Groups {
    /// Group `g` is rows `offsets[g]..offsets[g + 1]`: one offset more than groups, from 0 to the number of rows,
    /// never falling.
    Offsets(Arc<Vec<u32>>),
    /// Group `g` is the first `counts[g]` of the `slots` rows from `g * slots` on; the others belong to nobody.
    Slots {
        /// Rows per group, K.
        slots: usize,
        /// Occupied slots per group, at most `slots`.
        counts: Arc<Vec<u32>>,
    },
}

/// Does `$work` with the members of `$groups` as what they are, so that its loops are compiled for each kind.
macro_rules! over {
    ($groups:expr, $members:ident => $work:expr) => {
        match $groups {
            Groups::Offsets(offsets) => {
                let $members = &Csr(offsets);
                $work
            }
            Groups::Slots { slots, counts } => {
                let $members = &Slots { counts, slots: *slots };
                $work
            }
        }
    };
}

impl Groups {
    /// Number of groups.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::Offsets(offsets) => offsets.len().saturating_sub(1),
            Self::Slots { counts, .. } => counts.len(),
        }
    }

    /// Whether there are no groups.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// That these are groups of `rows` rows.
    pub(super) fn check(&self, rows: usize) {
        match self {
            Self::Offsets(offsets) => {
                assert_eq!(offsets.first(), Some(&0), "groups: the first offset is not 0");
                assert_eq!(offsets.last().map(|end| *end as usize), Some(rows), "groups: the last offset");
                assert!(offsets.is_sorted(), "groups: an offset is smaller than the one before it");
            }
            Self::Slots { slots, counts } => {
                assert_eq!(slots * counts.len(), rows, "groups: {slots} slots for {}", counts.len());
                assert!(counts.iter().all(|n| *n as usize <= *slots), "groups: more than {slots} slots");
            }
        }
    }
}

/// How the rows of a group become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reduce {
    /// Their sum.
    Sum,
    /// Their mean.
    Mean,
}

impl Tape<'_> {
    /// One row per group: `[rows, c]` to `[groups, c]`. A group without rows gives zeros.
    ///
    /// # Panics
    /// If the groups are not those of the value's rows.
    pub fn reduce(&mut self, x: Var, groups: &Groups, reduce: Reduce) -> Var {
        let (rows, cols) = self.value(x).shape();
        groups.check(rows);
        let needs = self.needs(x);
        let mut y = self.room(groups.len(), cols);
        let mean = reduce == Reduce::Mean;
        match self.device() {
            Device::Cpu => {
                let (out, x_data) = (y.data_mut(), self.value(x).data());
                over!(groups, members => sum(out, cols, true, members, x_data, cols, mean));
            }
            Device::Cuda(work) => match groups {
                Groups::Offsets(_) => work.refuse("a sum of groups of rows"),
                Groups::Slots { slots, counts } => work.run(|context| {
                    let (filled, x) = (work.upload(counts), self.value(x).on_gpu()?);
                    let groups = (filled.get()?, counts.len(), *slots);
                    gpu::reduce_slots(context, groups, x, cols, mean, y.on_gpu_mut()?)
                }),
            },
        }
        let groups = groups.clone();
        self.push_with(y, needs, move |_, d, walk| {
            let cols = d.cols();
            write_or_add(walk, x, |dx| match (d.device(), &groups) {
                (Device::Cpu, _) => {
                    over!(&groups, members => broadcast(dx.data_mut(), members, d.data(), cols, mean))
                }
                (Device::Cuda(work), Groups::Slots { slots, counts }) => work.run(|context| {
                    let filled = work.upload(counts);
                    let groups = (filled.get()?, counts.len(), *slots);
                    gpu::broadcast_slots(context, groups, d.on_gpu()?, cols, mean, dx.on_gpu_mut()?)
                }),
                (Device::Cuda(work), Groups::Offsets(_)) => work.refuse("a sum of groups of rows"),
            });
            walk.give(d);
        })
    }
}

/// Writes the gradient of `x` with `write`, into fresh memory; where that has to be added to what is there, by way of
/// other memory.
fn write_or_add(walk: &mut Walk<'_>, x: Var, write: impl FnOnce(&mut Tensor)) {
    if walk.overwrites(x) {
        return walk.flow_with(x, |dx, _| write(dx));
    }
    let mut dx = walk.take_like(x);
    write(&mut dx);
    walk.flow(x, dx);
}
