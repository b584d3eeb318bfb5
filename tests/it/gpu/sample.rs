//! The graph on a GPU follows the store batch by batch, on two tiers of memory, and samples of one and more layers are
//! the CPU's bit for bit.

use std::sync::Arc;

use evergraph::device::cuda::Cuda;
use evergraph::event::{EdgeBatch, EdgeId, EventTime, NodeId};
use evergraph::graph::{
    CudaGraph, CudaGraphError, CudaGraphOptions, GraphOptions, GraphStore, GraphView, MirrorOptions,
    Retention,
};
use evergraph::sampler::{CudaLayers, Layer, Layers, SampleRequest, SamplingPolicy, Seeds};

use super::{gpu, small};
use crate::graph_model::oracle::{Random, batches, stream};
use crate::kernels_host::sample::{any_request, seed_requests, training_requests, training_seeds};
use crate::protocol_edgebank::data_folder;

const UNBOUNDED: CudaGraphOptions = CudaGraphOptions {
    form: MirrorOptions { page_log2: 12, block_entries_max: 256 },
    gpu_bytes_max: usize::MAX,
    host_bytes_max: 0,
    table_bytes_max: usize::MAX,
};

/// Samples on both, and compares; returns how many edges were found.
fn compare(
    graph: &CudaGraph,
    on_gpu: &mut CudaLayers,
    view: GraphView<'_>,
    seeds: Seeds<'_>,
    (request, layers): (SampleRequest, usize),
) -> u64 {
    let mut expected = Layers::new();
    expected.sample(view, seeds, &request, layers).unwrap();
    on_gpu.sample(graph, view, seeds, &request, layers).unwrap();
    let mut read = Layers::new();
    on_gpu.read_into(&mut read).unwrap();
    let found = read.layers();
    assert_eq!(found.len(), layers);
    for (number, (found, expected)) in found.iter().zip(expected.layers()).enumerate() {
        let bits = |layer: &Layer| layer.graph.deltas.iter().map(|delta| delta.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(found), bits(expected), "deltas of layer {number}, {request:?}");
        assert!(found == expected, "layer {number}, {request:?}, below {}", view.bound());
    }
    expected.edges()
}

fn one_case(cuda: &Arc<Cuda>, seed: u64) -> u64 {
    let mut random = Random(seed);
    let length = random.pick(&[30, 300, 1_500]);
    let records = stream(&mut random, length, true);
    let cuts: Vec<usize> = (0..20).map(|_| random.pick(&[1, 7, 100, 700])).collect();
    let options = GraphOptions { shards: random.pick(&[1, 4]), page_entries_max: random.pick(&[1, 8, 256]) };
    let form = MirrorOptions {
        page_log2: random.pick(&[3, 6, 12]),
        block_entries_max: random.pick(&[1, 3, 8, 64, 256]),
    };
    // From all pages on the GPU to all but one on the host.
    let gpu_bytes_max = random.pick(&[usize::MAX, 1 << 12, 0]);
    let tiers = CudaGraphOptions { form, gpu_bytes_max, host_bytes_max: 1 << 26, ..UNBOUNDED };
    let mut store = GraphStore::new(options);
    let age = random.pick(&[-1, -1, 50, 1 << 35]);
    if age > 0 {
        store = store.with_retention(Retention { age, lateness: 0 });
    }
    let batches = batches(&records, &cuts);
    let begin = random.pick(&[0, 0, batches.len() / 2]);
    for batch in &batches[..begin] {
        store.apply(batch).unwrap();
    }
    let mut graph = CudaGraph::copy(cuda, &store, tiers).unwrap();
    let mut layers = CudaLayers::new(cuda);
    // How many batches the store is ahead of the GPU, deletions included.
    let ahead = random.pick(&[0, 0, 1, 6]);
    let mut found = 0;
    for (i, batch) in batches.iter().enumerate().skip(begin) {
        for batch in batches[i..].iter().take(1 + ahead) {
            store.apply(batch).unwrap();
        }
        graph.follow(&store, batch).unwrap();
        if i % 10 != 0 && i + 1 != batches.len() {
            continue;
        }
        for bound in [batch.end().0, random.below(batch.end().0 + 1)] {
            let (nodes, times) = seed_requests(&mut random, &batches[..=i], 25);
            let (request, count, _) = any_request(&mut random);
            let since = random.pick(&[i64::MIN, i64::MIN, times[0].0]);
            let view = store.view_at(EdgeId(bound)).keeping(EventTime(since));
            let seeds = Seeds { nodes: &nodes, times: &times };
            found += compare(&graph, &mut layers, view, seeds, (request, count));
        }
    }
    let (on_gpu, on_host) = graph.tables().pages();
    assert_eq!((on_gpu + on_host) as u64, graph.tables().lengths().pages);
    assert!(gpu_bytes_max > 0 || on_gpu <= 1, "{on_gpu} pages on the GPU");
    found
}

#[test]
fn a_gpu_that_follows_any_stream_samples_as_the_cpu_from_both_tiers() {
    let cuda = gpu();
    let given = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok());
    let mut found = 0;
    let cases = if small() { 12 } else { 60 };
    for seed in given.map_or(0..cases, |seed: u64| seed..seed + 1) {
        println!("SEED={seed}");
        found += one_case(&cuda, seed);
    }
    assert!(found > 2_000 || given.is_some(), "{found} edges in all samples");
}

/// A thread applies a stream with deletions while the GPU takes a copy and follows it; in the end both hold the same.
fn one_race(cuda: &Arc<Cuda>, seed: u64) -> u64 {
    let mut random = Random(seed);
    let records = stream(&mut random, 1_500, true);
    let batches = batches(&records, &[random.pick(&[3, 40]), 100]);
    let (store, form) = (GraphStore::new(GraphOptions::default()), MirrorOptions::default());
    let follow = |graph: &mut Option<CudaGraph>| {
        let applied = store.applied();
        let graph = graph.get_or_insert_with(|| {
            CudaGraph::copy(cuda, &store, CudaGraphOptions { form, ..UNBOUNDED }).unwrap()
        });
        for batch in batches.iter().filter(|batch| batch.end() <= applied) {
            let at = graph.applied();
            if batch.first <= at && at < batch.end() {
                let rest = (at.0 - batch.first.0) as usize..;
                let rest = EdgeBatch {
                    first: at,
                    op: batch.op[rest.clone()].to_vec(),
                    src: batch.src[rest.clone()].to_vec(),
                    dst: batch.dst[rest.clone()].to_vec(),
                    time: batch.time[rest].to_vec(),
                    ..EdgeBatch::default()
                };
                graph.follow(&store, &rest).unwrap();
            }
        }
        graph.follow_deletions(store.view()).unwrap();
    };
    let mut graph = None;
    let after = random.below(1_000);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| batches.iter().for_each(|batch| drop(store.apply(batch))));
        while !writer.is_finished() {
            if store.applied().0 >= after {
                follow(&mut graph);
            }
        }
    });
    follow(&mut graph);
    let mut layers = CudaLayers::new(cuda);
    let (nodes, times) = seed_requests(&mut random, &batches, 200);
    let request = any_request(&mut random).0;
    let seeds = Seeds { nodes: &nodes, times: &times };
    compare(graph.as_ref().unwrap(), &mut layers, store.view(), seeds, (request, 2))
}

#[test]
fn a_gpu_that_copies_a_graph_while_it_changes_ends_with_what_that_holds() {
    let cuda = gpu();
    let given = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok());
    let cases = if small() { 10 } else { 100 };
    for seed in given.map_or(0..cases, |seed: u64| seed..seed + 1) {
        println!("SEED={seed}");
        one_race(&cuda, seed);
    }
}

#[test]
fn batches_of_a_real_stream_are_sampled_on_a_gpu_as_by_the_cpu() {
    let Some(folder) = data_folder() else { return };
    let stream = evergraph::cli::events::read_stream(&folder.join("wikipedia.csv.gz"), &mut |_| ()).unwrap();
    let cuda = gpu();
    let store = GraphStore::new(GraphOptions::default());
    // A third of the pages in the GPU's memory.
    let tiers = CudaGraphOptions { gpu_bytes_max: 2 << 20, host_bytes_max: 1 << 26, ..UNBOUNDED };
    let mut graph = CudaGraph::copy(&cuda, &store, tiers).unwrap();
    let (mut layers, mut random, mut found) = (CudaLayers::new(&cuda), Random(1), 0);
    let step = if small() { 60 } else { 10 };
    for (number, begin) in (0..stream.len()).step_by(6_000).enumerate() {
        let rows = begin..(begin + 6_000).min(stream.len());
        let batch = stream.edge_batch(rows.clone(), |_| true);
        store.apply(&batch).unwrap();
        graph.follow(&store, &batch).unwrap();
        if number % 8 != 7 {
            continue;
        }
        let (nodes, times) = training_seeds(&stream, rows.step_by(step), &mut random);
        let seeds = Seeds { nodes: &nodes, times: &times };
        let [recent, uniform] = training_requests(number as u64);
        let view = store.view_at(EdgeId(begin as u64 + 3_000));
        found += compare(&graph, &mut layers, view, seeds, (recent, 1));
        found += compare(&graph, &mut layers, view, seeds, (uniform, 2));
    }
    // All at once, in pieces.
    let copied = CudaGraph::copy(&cuda, &store, UNBOUNDED).unwrap();
    let (nodes, times) = training_seeds(&stream, (0..stream.len()).step_by(10 * step), &mut random);
    let [recent, _] = training_requests(0);
    compare(&copied, &mut layers, store.view(), Seeds { nodes: &nodes, times: &times }, (recent, 2));
    let (on_gpu, on_host) = graph.tables().pages();
    assert!(found > 20_000 && on_gpu > 10 && on_host > 10, "{found} edges, {on_gpu} and {on_host} pages");
}

#[test]
fn what_a_gpu_does_not_have_or_cannot_do_is_refused_in_words() {
    let cuda = gpu();
    let store = GraphStore::new(GraphOptions::default());
    let mut batch = EdgeBatch::default();
    for i in 0..100 {
        batch.push_edge(NodeId(i % 7), NodeId(8 + i), EventTime(i.into()));
    }
    let mut graph = CudaGraph::copy(&cuda, &store, UNBOUNDED).unwrap();
    store.apply(&batch).unwrap();
    let seeds = Seeds { nodes: &[NodeId(0); 3], times: &[EventTime(50); 3] };
    let request = SampleRequest {
        policy: SamplingPolicy::Uniform,
        fanout: 33,
        window: None,
        seed: 1,
        batch: 2,
        layer: 0,
    };
    let mut layers = CudaLayers::new(&cuda);
    let error = layers.sample(&graph, store.view(), seeds, &request, 1).unwrap_err();
    assert!(matches!(error, CudaGraphError::Behind { .. }), "{error}");
    assert!(error.to_string().contains("edge 0, and edges up to 100"), "{error}");
    graph.follow(&store, &batch).unwrap();
    let error = layers.sample(&graph, store.view(), seeds, &request, 1).unwrap_err().to_string();
    assert!(error.contains("a uniform sample of 33 slots"), "{error}");
    let lopsided = Seeds { nodes: &[NodeId(0); 3], times: &[EventTime(50); 2] };
    let error = layers.sample(&graph, store.view(), lopsided, &request, 1).unwrap_err().to_string();
    assert!(error.contains("3 nodes and 2 times"), "{error}");
    let mut read = Layers::new();
    layers.read_into(&mut read).unwrap();
    assert!(read.layers().is_empty(), "nothing is left of what failed");
    compare(&graph, &mut layers, store.view(), seeds, (SampleRequest { fanout: 32, ..request }, 2));

    // Two pages fit, and the third has no place.
    let form = MirrorOptions { page_log2: 5, block_entries_max: 32 };
    let tiers = CudaGraphOptions { form, gpu_bytes_max: 384, host_bytes_max: 384, ..UNBOUNDED };
    let error = CudaGraph::copy(&cuda, &store, tiers).err().unwrap();
    assert!(matches!(&error, CudaGraphError::Cuda(error) if error.is_out_of_memory()), "{error}");
    assert!(error.to_string().contains("allow more"), "{error}");
    let tiers = CudaGraphOptions { table_bytes_max: 1_000, ..UNBOUNDED };
    let error = CudaGraph::copy(&cuda, &store, tiers).err().unwrap();
    assert!(error.to_string().contains("1000 are allowed"), "{error}");
}
