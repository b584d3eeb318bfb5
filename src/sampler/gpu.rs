//! [`CudaLayers`]: samples of one or more layers on a GPU, the twin of [`Layers`](super::Layers) bit for bit. Seeds are
//! uploaded, everything else stays there: kernels derive a layer's seeds from the slots of the one before it, so the
//! host waits for nothing between layers.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use super::{Layer, MessageFlowGraph, SampleRequest, SamplingPolicy, Seeds};
use crate::device::cuda::distinct::{DistinctRoom, further};
use crate::device::cuda::sample::{Choice, sample};
use crate::device::cuda::seeds::{GpuSeeds, GpuSlots};
use crate::device::cuda::twins::Request;
use crate::device::cuda::{Arena, Cuda, CudaBuffer, CudaError, PinnedSlice};
use crate::event::{EdgeId, EventTime, NodeId};
use crate::graph::{CudaGraph, CudaGraphError, GraphView};

/// One layer, in the memory of a GPU.
pub struct CudaLayer {
    /// The seeds.
    pub seeds: GpuSeeds,
    /// Their sample.
    pub slots: GpuSlots,
    /// For each slot, which seed of the next layer it is; all ones in empty slots. Void in the last layer.
    pub next: CudaBuffer<u32>,
}

/// Samples of one or more layers on one GPU; buffers are kept from call to call.
pub struct CudaLayers {
    cuda: Arc<Cuda>,
    layers: Vec<CudaLayer>,
    count: usize,
    room: Option<DistinctRoom>,
    /// Pinned buffers for seeds, used in turn.
    staged: [Option<StagedSeeds>; 2],
    turn: usize,
    key: u64,
}

struct StagedSeeds {
    nodes: PinnedSlice<u32>,
    times: PinnedSlice<i64>,
}

impl CudaLayers {
    /// No layers, to sample into.
    #[must_use]
    pub fn new(cuda: &Arc<Cuda>) -> Self {
        Self {
            cuda: cuda.clone(),
            layers: Vec::new(),
            count: 0,
            room: None,
            staged: [None, None],
            turn: 0,
            key: RandomState::new().hash_one(0_u64),
        }
    }

    /// Samples `count` layers from `seeds` on, which are copied. `request.layer` is the number of the first; the others
    /// count up from it. Waits only for the call before the last one to have copied its seeds.
    ///
    /// # Errors
    /// A view that shows what the GPU does not have, a request that no kernel does, no room, or the driver's.
    pub fn sample(
        &mut self,
        graph: &CudaGraph,
        view: GraphView<'_>,
        seeds: Seeds<'_>,
        request: &SampleRequest,
        count: usize,
    ) -> Result<(), CudaGraphError> {
        let view = graph.view(view)?;
        let choice = match request.policy {
            SamplingPolicy::Recent => Choice::Recent,
            SamplingPolicy::Uniform => Choice::Uniform,
        };
        let mut kernel_request = Request {
            seed: request.seed,
            batch: request.batch,
            window: request.window.unwrap_or(-1),
            layer: request.layer,
            fanout: u32::try_from(request.fanout).unwrap_or(u32::MAX),
        };
        self.count = 0;
        self.make_room(seeds.nodes.len(), request.fanout, count)?;
        if count > 0 {
            self.stage(seeds)?;
        }
        let cuda = self.cuda.clone();
        let place = (&*cuda, cuda.compute());
        for l in 0..count {
            let (done, rest) = self.layers.split_at_mut(l);
            let Some(layer) = rest.first_mut() else { break };
            if let (Some(before), Some(room)) = (done.last_mut(), &mut self.room) {
                further(place, (&before.seeds, &before.slots), room, &mut before.next, &mut layer.seeds)?;
            }
            sample(place, (graph.tables(), view), (choice, kernel_request), &layer.seeds, &mut layer.slots)?;
            kernel_request.layer += 1;
        }
        self.count = count;
        Ok(())
    }

    /// The layers, outward from the seeds.
    #[must_use]
    pub fn layers(&self) -> &[CudaLayer] {
        &self.layers[..self.count]
    }

    /// All layers as the CPU has them. Waits for the GPU.
    ///
    /// # Errors
    /// The driver's.
    pub fn to_host(&self) -> Result<Vec<Layer>, CudaError> {
        let last = self.count.saturating_sub(1);
        self.layers().iter().enumerate().map(|(l, layer)| layer.to_host(l == last)).collect()
    }

    /// Room for `count` layers of `fanout` slots per seed, the first of `seeds` seeds.
    fn make_room(&mut self, seeds: usize, fanout: usize, count: usize) -> Result<(), CudaError> {
        let (cuda, stream) = (self.cuda.clone(), self.cuda.compute().clone());
        let fits = |layer: &CudaLayer, most: usize| {
            layer.seeds.most() >= most
                && layer.slots.fanout() == fanout
                && layer.seeds.most() <= 4 * most.max(64)
        };
        let mut most = seeds;
        for l in 0..count {
            if self.layers.get(l).is_some_and(|layer| fits(layer, most)) {
                // What follows is sized for the seeds that there may be, not only for those that there are.
                most = self.layers[l].seeds.most();
            } else {
                self.layers.truncate(l);
                let slots = most.saturating_mul(fanout);
                self.layers.push(CudaLayer {
                    seeds: GpuSeeds::new(&cuda, &stream, most)?,
                    slots: GpuSlots::new(&cuda, &stream, most, fanout)?,
                    next: CudaBuffer::zeros(&cuda, &stream, slots, "making room for samples")?,
                });
            }
            most = most.saturating_mul(fanout);
            let is_last = l + 1 == count;
            if !is_last && self.room.as_ref().is_none_or(|room| room.slots() < most) {
                self.room = Some(DistinctRoom::new(&cuda, &stream, most, self.key)?);
            }
        }
        Ok(())
    }

    /// Copies the seeds to the first layer, through memory from which the GPU copies asynchronously.
    fn stage(&mut self, seeds: Seeds<'_>) -> Result<(), CudaError> {
        let (nodes, times) = (seeds.nodes, seeds.times);
        if nodes.len() != times.len() {
            let mismatch = format!("{} nodes and {} times", nodes.len(), times.len());
            return Err(CudaError::Arguments { operation: "setting seeds", mismatch });
        }
        let mut staged = match self.staged[self.turn].take() {
            Some(staged) if staged.nodes.len() >= nodes.len() => staged,
            _ => {
                let room = nodes.len().next_power_of_two().max(1024);
                let mut arena =
                    Arena::new(room * (size_of::<u32>() + size_of::<i64>()) + 256, Some(&self.cuda))?;
                StagedSeeds { nodes: arena.take(room)?, times: arena.take(room)? }
            }
        };
        for (to, from) in staged.nodes.as_mut_slice()?.iter_mut().zip(nodes) {
            *to = from.0;
        }
        for (to, from) in staged.times.as_mut_slice()?.iter_mut().zip(times) {
            *to = from.0;
        }
        if let Some(first) = self.layers.first_mut() {
            first.seeds.set_from_pinned(&staged.nodes, &staged.times, nodes.len())?;
        }
        self.staged[self.turn] = Some(staged);
        self.turn = 1 - self.turn;
        Ok(())
    }
}

impl CudaLayer {
    fn to_host(&self, is_last: bool) -> Result<Layer, CudaError> {
        let (nodes, times) = self.seeds.to_host()?;
        let (seeds, fanout) = (nodes.len(), self.slots.fanout());
        let slots = seeds * fanout;
        Ok(Layer {
            nodes: nodes.into_iter().map(NodeId).collect(),
            times: times.into_iter().map(EventTime).collect(),
            graph: MessageFlowGraph {
                fanout,
                counts: front(&self.slots.counts, seeds)?,
                neighbors: front(&self.slots.neighbors, slots)?.into_iter().map(NodeId).collect(),
                edges: front(&self.slots.edges, slots)?.into_iter().map(EdgeId).collect(),
                times: front(&self.slots.times, slots)?.into_iter().map(EventTime).collect(),
                deltas: front(&self.slots.deltas, slots)?,
            },
            next: if is_last { Vec::new() } else { front(&self.next, slots)? },
        })
    }
}

/// The first `len` values of a buffer.
fn front<T: bytemuck::Pod>(buffer: &CudaBuffer<T>, len: usize) -> Result<Vec<T>, CudaError> {
    let mut all = buffer.copy_to_host()?;
    all.truncate(len);
    Ok(all)
}
