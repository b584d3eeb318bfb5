//! The first launches on a GPU that has run nothing yet: it opens, reads memory of the host in place, and runs a kernel
//! of every file. Where something is wrong these fail first, and what they print is the first thing to read.
//!
//! `EVERGRAPH_GPU_FINGERPRINTS` names a file for the fingerprints of the kernels that were built: `gpu-check.sh`
//! records them as verified once all tests have passed.

use std::collections::BTreeMap;

use evergraph::device::Device;
use evergraph::device::cuda::rows::{RowCall, RowLayout, RowList, Table};
use evergraph::device::cuda::{Arena, Cuda, CudaBuffer, CudaWork, SOURCES};
use evergraph::graph::{CudaGraph, CudaGraphOptions, MirrorOptions};
use evergraph::sampler::{CudaLayers, Layers, SampleRequest, SamplingPolicy, Seeds};
use evergraph::train::{Trainer, TrainerOptions};

use super::train::{small_mixer, small_tgat, step};
use super::{fresh_gpu, real_gpu};
use crate::tgn_stream::{self, Stream};

#[test]
fn a_gpu_opens_and_reads_memory_of_the_host_in_place() {
    let cuda = fresh_gpu();
    println!("{}, {}", cuda.describe(), cuda.details());
    println!("{:?}, {:?}", cuda.gpu(), cuda.complaints());
    assert!(cuda.gpu().maps_host_memory, "memory of the host cannot be mapped for it");
    read_in_place(&cuda);
}

#[test]
fn a_kernel_of_every_file_is_launched() {
    let cuda = fresh_gpu();
    read_in_place(&cuda);
    let stream = Stream::new(4);
    for model in [tgn_stream::tgn().into(), small_tgat().into(), small_mixer().into()] {
        let work = CudaWork::new(cuda.clone());
        let model_options = TrainerOptions { model, ..tgn_stream::options() };
        let mut trainer = Trainer::new(model_options, &Device::Cuda(work.clone())).unwrap();
        (0..4).for_each(|batch| drop(step(&mut trainer, &stream, batch)));
        println!("{}: {:?}", model.name(), work.recorded());
        assert_eq!(work.recorded().refused, 0, "steps can no longer be captured");
        assert!(real_gpu().is_none() || work.recorded().launched > 0, "{:?}", work.recorded());
    }
    let form = MirrorOptions { page_log2: 6, block_entries_max: 64 };
    let (gpu_bytes_max, table_bytes_max) = (usize::MAX, usize::MAX);
    let tiers = CudaGraphOptions { form, gpu_bytes_max, host_bytes_max: 0, table_bytes_max };
    let graph = CudaGraph::copy(&cuda, &stream.graph, tiers).unwrap();
    let mut layers = CudaLayers::new(&cuda);
    for policy in [SamplingPolicy::Recent, SamplingPolicy::Uniform] {
        let request = SampleRequest { policy, fanout: 4, window: None, seed: 1, batch: 0, layer: 0 };
        let seeds = Seeds { nodes: &stream.src[60..80], times: &stream.times[60..80] };
        layers.sample(&graph, stream.graph.view(), seeds, &request, 2).unwrap();
        let mut read = Layers::new();
        layers.read_into(&mut read).unwrap();
        assert!(read.edges() > 0);
    }
    let launches: BTreeMap<&str, u64> = cuda.launches().into_iter().collect();
    println!("launches: {launches:?}");
    let never: Vec<_> = launches.iter().filter(|(_, count)| **count == 0).collect();
    assert!(launches.len() == SOURCES.len() && never.is_empty(), "never launched: {never:?}");
}

/// Rows of the host's memory that kernels gather over the bus.
fn read_in_place(cuda: &Cuda) {
    let values: Vec<f32> = (0..400).map(|value| value as f32).collect();
    let mut arena = Arena::new(4096, Some(cuda)).unwrap();
    let mut pinned = arena.take::<f32>(values.len()).unwrap();
    pinned.as_mut_slice().unwrap().copy_from_slice(&values);
    let list = CudaBuffer::from_slice(cuda, cuda.compute(), &[3_u32, 0, 99], "a test").unwrap();
    let mut to = CudaBuffer::<f32>::zeros(cuda, cuda.compute(), 12, "a test").unwrap();
    let mut errors = CudaBuffer::<u32>::zeros(cuda, cuda.compute(), 1, "a test").unwrap();
    let (list, errors) = (RowList::Narrow(&list), &mut errors);
    RowCall { cuda, stream: cuda.compute(), list, errors }
        .gather(Table::Host(&pinned), RowLayout::dense(100, 4), &mut to, 4)
        .unwrap();
    let expected: Vec<f32> = [3, 0, 99].iter().flat_map(|row| values[row * 4..][..4].to_vec()).collect();
    assert_eq!(to.copy_to_host().unwrap(), expected);
}
