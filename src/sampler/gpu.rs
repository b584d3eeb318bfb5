//! [`CudaLayers`]: samples of one or more layers on a GPU, the twin of [`Layers`](super::Layers) bit for bit. Seeds are
//! uploaded, everything else stays there: kernels derive a layer's seeds from the slots of the one before it, so the
//! host waits for nothing between layers. Of what was found, the host reads the columns that it needs; the others stay
//! on the GPU, for the model.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use super::{
    GpuColumns, HostColumns, HostEdges, Layer, Layers, MessageFlowGraph, SampleRequest, SamplingPolicy, Seeds,
};
use crate::device::cuda::distinct::{DistinctRoom, further};
use crate::device::cuda::sample::{Choice, sample};
use crate::device::cuda::seeds::{GpuSeeds, GpuSlots};
use crate::device::cuda::twins::Request;
use crate::device::cuda::{Arena, Cuda, CudaBuffer, CudaError, DistinctEdges, Fetched, PinnedSlice, Staging};
use crate::event::{EdgeId, EventTime, NodeId};
use crate::graph::{CudaGraph, CudaGraphError, GraphView};

/// Pinned memory through which samples are read: those of some thousand seeds in two layers; larger ones take turns.
const STAGING_BYTES: usize = 16 << 20;

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
    /// For lists of edges.
    listing: Option<DistinctEdges>,
    /// Pinned buffers for seeds, used in turn.
    staged: [Option<StagedSeeds>; 2],
    /// Those that became too small: the end of such memory waits for the whole GPU, also for a step that is recorded
    /// meanwhile.
    outgrown: Vec<StagedSeeds>,
    turn: usize,
    /// Through which samples are read.
    staging: Option<Staging>,
    key: u64,
}

struct StagedSeeds {
    nodes: PinnedSlice<u32>,
    times: PinnedSlice<i64>,
}

impl StagedSeeds {
    /// Takes `seeds`, for which there is room, and has them copied to the GPU, if anywhere.
    fn set(&mut self, seeds: Seeds<'_>, to: Option<&mut GpuSeeds>) -> Result<(), CudaError> {
        for (to, from) in self.nodes.as_mut_slice()?.iter_mut().zip(seeds.nodes) {
            *to = from.0;
        }
        for (to, from) in self.times.as_mut_slice()?.iter_mut().zip(seeds.times) {
            *to = from.0;
        }
        let count = seeds.nodes.len();
        to.map_or(Ok(()), |to| to.set_from_pinned(&self.nodes, &self.times, count))
    }
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
            listing: None,
            staged: [None, None],
            outgrown: Vec::new(),
            turn: 0,
            staging: None,
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
        let place = (&*cuda, cuda.sampling());
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

    /// Copies all layers to `out`, as the CPU has them. Waits for the GPU twice: how many seeds further layers have is
    /// known there only. So is the length of a list of edges, for which it waits once more.
    ///
    /// # Errors
    /// The driver's; `out` is void.
    pub fn read_into(&mut self, out: &mut Layers) -> Result<(), CudaError> {
        self.read_columns(None, out)
    }

    /// The same with the columns of `host` only, if that is given; `out` has the others on the GPU, in place of those
    /// that it had. What was asked of those has to be over: the host has waited for it.
    ///
    /// # Errors
    /// The driver's; `out` is void.
    pub fn read_columns(&mut self, host: Option<HostColumns>, out: &mut Layers) -> Result<(), CudaError> {
        let Self { cuda, layers, count, staging, listing, key, .. } = self;
        let staging = match staging {
            Some(staging) => staging,
            none => none.insert(Staging::new(cuda, STAGING_BYTES)?),
        };
        let layers = &layers[..*count];
        let counts: Vec<_> =
            layers.iter().map(|layer| layer.seeds.fetch_count(staging)).collect::<Result<_, _>>()?;
        let (mut coming, mut slots) = (Vec::with_capacity(layers.len()), Vec::new());
        for (l, (layer, count)) in layers.iter().zip(&counts).enumerate() {
            let seeds = count.read(staging)?.first().map_or(0, |count| *count as usize);
            slots.push((layer, seeds.saturating_mul(layer.slots.fanout())));
            coming.push(Coming::of(layer, (seeds, l + 1 == layers.len()), host, staging)?);
        }
        let (room, spare) = out.room_beside(layers.len());
        let mut staying = host.map(|host| GpuColumns::keep(cuda, &slots, host, spare)).transpose()?;
        let mut listed = None;
        if let Some(at) = staying.as_mut().and_then(|columns| columns.edges.as_mut()) {
            let slots: Vec<_> = slots.iter().map(|(layer, slots)| (&layer.slots, *slots)).collect();
            let listing = room_to_list(cuda, listing, slots.iter().map(|(_, slots)| slots).sum(), *key)?;
            listing.list((cuda, cuda.sampling()), &slots, at.buffer_mut())?;
            listed = Some((listing.fetch_count(staging)?, listing));
        }
        for (coming, layer) in coming.into_iter().zip(room) {
            coming.read_into(layer, staging)?;
        }
        if let Some((count, listing)) = listed {
            let count = count.read(staging)?.first().map_or(0, |count| *count as usize);
            let edges = listing.fetch(staging, count)?.read(staging)?;
            out.listed.extend(edges.into_iter().map(|edge| EdgeId(edge.cast_unsigned())));
        }
        staging.start_over();
        out.keep(staying.map(|columns| columns.publish(cuda)).transpose()?);
        Ok(())
    }

    /// Room for `count` layers of `fanout` slots per seed, the first of `seeds` seeds.
    fn make_room(&mut self, seeds: usize, fanout: usize, count: usize) -> Result<(), CudaError> {
        let (cuda, stream) = (self.cuda.clone(), self.cuda.sampling().clone());
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
            small => {
                self.outgrown.extend(small);
                let room = nodes.len().next_power_of_two().max(1024);
                let mut arena =
                    Arena::new(room * (size_of::<u32>() + size_of::<i64>()) + 256, Some(&self.cuda))?;
                StagedSeeds { nodes: arena.take(room)?, times: arena.take(room)? }
            }
        };
        let first = self.layers.first_mut().map(|first| &mut first.seeds);
        let set = staged.set(seeds, first);
        // Kept whatever happened: the end of pinned memory waits for the whole GPU.
        self.staged[self.turn] = Some(staged);
        set?;
        self.turn = 1 - self.turn;
        Ok(())
    }
}

/// Room to list the edges of `slots` slots.
fn room_to_list<'a>(
    cuda: &Cuda,
    kept: &'a mut Option<DistinctEdges>,
    slots: usize,
    key: u64,
) -> Result<&'a mut DistinctEdges, CudaError> {
    let fits = |room: &DistinctEdges| room.slots() >= slots && room.slots() / 8 <= slots.max(1 << 12);
    let found = kept.take().filter(fits);
    let found =
        found.map_or_else(|| DistinctEdges::new(cuda, cuda.sampling(), slots + slots / 4, key), Ok)?;
    Ok(kept.insert(found))
}

/// A layer on its way to the host; columns that the host does not read have no values.
struct Coming {
    seeds: (Fetched<u32>, Fetched<i64>),
    fanout: usize,
    counts: Fetched<u32>,
    neighbors: Fetched<u32>,
    edges: Fetched<u64>,
    times: Fetched<i64>,
    deltas: Fetched<f32>,
    next: Fetched<u32>,
}

impl Coming {
    /// Enqueues copies of a layer of so many seeds.
    fn of(
        layer: &CudaLayer,
        (seeds, is_last): (usize, bool),
        host: Option<HostColumns>,
        staging: &mut Staging,
    ) -> Result<Self, CudaError> {
        let (found, fanout) = (&layer.slots, layer.slots.fanout());
        let slots = seeds.saturating_mul(fanout);
        // Whether everything is read, or something of what not always is.
        let all = host.is_none();
        let reads = |column: fn(HostColumns) -> bool| host.is_none_or(column);
        let of = |wanted: bool, count: usize| if wanted { count } else { 0 };
        let times = layer.seeds.fetch_times(staging, of(all, seeds))?;
        Ok(Self {
            seeds: (layer.seeds.fetch_nodes(staging, seeds)?, times),
            fanout,
            counts: staging.download(&found.counts, seeds)?,
            neighbors: staging.download(&found.neighbors, of(reads(|host| host.neighbors), slots))?,
            edges: staging
                .download(&found.edges, of(reads(|host| host.edges == HostEdges::BySlot), slots))?,
            times: staging.download(&found.times, of(all, slots))?,
            deltas: staging.download(&found.deltas, of(all, slots))?,
            next: staging.download(&layer.next, of(!is_last, slots))?,
        })
    }

    fn read_into(self, layer: &mut Layer, staging: &mut Staging) -> Result<(), CudaError> {
        let ids = |ids: Vec<u32>| ids.into_iter().map(NodeId).collect();
        let instants = |times: Vec<i64>| times.into_iter().map(EventTime).collect();
        layer.nodes = ids(self.seeds.0.read(staging)?);
        layer.times = instants(self.seeds.1.read(staging)?);
        layer.graph = MessageFlowGraph {
            fanout: self.fanout,
            counts: self.counts.read(staging)?,
            neighbors: ids(self.neighbors.read(staging)?),
            edges: self.edges.read(staging)?.into_iter().map(EdgeId).collect(),
            times: instants(self.times.read(staging)?),
            deltas: self.deltas.read(staging)?,
        };
        layer.next = self.next.read(staging)?;
        Ok(())
    }
}
