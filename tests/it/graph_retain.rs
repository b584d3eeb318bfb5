//! What the graph lets go of: old edges go and newer ones answer as before; a forgotten node is nowhere.

use std::sync::{Arc, Mutex};

use evergraph::device::disk::{DiskError, EngineChoice, Extent, PageBuffer, PageFile, SpillFile};
use evergraph::event::{EdgeBatch, EdgeId, EventTime, NodeId, Op};
use evergraph::graph::{GraphOptions, GraphStore};
use evergraph::sampler::{MessageFlowGraph, SampleRequest, SamplingPolicy, Seeds, sample};

use crate::graph_model::oracle::{Random, batches, stream};

fn ask(store: &GraphStore, nodes: &[NodeId], times: &[EventTime], window: i64) -> Vec<MessageFlowGraph> {
    let policies = [SamplingPolicy::Recent, SamplingPolicy::Uniform];
    let answers = policies.map(|policy| {
        let mut out = MessageFlowGraph::new();
        let request = SampleRequest { policy, fanout: 8, window: Some(window), seed: 1, batch: 2, layer: 0 };
        sample(store.view(), Seeds { nodes, times }, &request, &mut out).unwrap();
        out
    });
    answers.into()
}

#[test]
fn what_is_inside_the_window_answers_as_before_and_the_rest_is_given_back() {
    let folder = tempfile::tempdir().unwrap();
    for seed in 0..40 {
        let mut random = Random(seed);
        let mut records = stream(&mut random, 3_000, true);
        if seed % 4 == 0 {
            // A stream whose clock runs evenly, so that pages of hubs grow old one by one.
            records = (0..40_000_u32)
                .map(|i| crate::graph_model::oracle::Record::Edge { src: i % 3, dst: i % 50, time: i.into() })
                .collect();
        }
        let options = GraphOptions {
            shards: random.pick(&[1, 4]),
            page_entries_max: random.pick(&[8, 64, 256]),
            ..GraphOptions::default()
        };
        let file = SpillFile::create(folder.path(), "graph", EngineChoice::Auto).unwrap();
        let spilled = GraphStore::with_budget(options, random.pick(&[0, 100_000]), Box::new(file));
        let (whole, resident) = (GraphStore::new(options), GraphStore::new(options));
        let (mut times, mut floor) = (Vec::new(), EventTime::MIN);
        for batch in batches(&records, &[500]) {
            for store in [&whole, &resident, &spilled] {
                store.apply(&batch).unwrap();
            }
            times.extend(batch.time.iter().copied());
            if random.chance(3) {
                floor = floor.max(random.pick(&times));
                let released: Vec<u64> =
                    [&resident, &spilled].map(|store| store.release_before(floor).unwrap()).into();
                assert_eq!(released[0], released[1]);
                let later: Vec<EventTime> = times.iter().copied().filter(|&time| time >= floor).collect();
                let asked: Vec<EventTime> = (0..60).map(|_| random.pick(&later)).collect();
                let nodes: Vec<NodeId> = (0..60).map(|_| NodeId(random.below(50) as u32)).collect();
                // One question at a time has a window that ends at the floor.
                for (node, time) in nodes.iter().zip(&asked) {
                    let window = time.0.saturating_sub(floor.0);
                    let (node, time) = (std::slice::from_ref(node), std::slice::from_ref(time));
                    let expected = ask(&whole, node, time, window);
                    assert_eq!(ask(&resident, node, time, window), expected, "seed {seed}");
                    assert_eq!(ask(&spilled, node, time, window), expected, "seed {seed}");
                }
            }
        }
        let latest = whole.latest_time().unwrap();
        resident.release_before(latest).unwrap();
        let (before, after) = (whole.stats(), resident.stats());
        if seed % 4 == 0 {
            assert_eq!(
                before.directed_entries,
                after.directed_entries + after.expired_entries,
                "seed {seed}"
            );
            let chunks = |stats: &evergraph::graph::GraphStats| stats.bytes.entries + stats.bytes.slack;
            assert!(chunks(&after) < chunks(&before) / 4, "{after:?}");
        }
    }
}

/// A disk whose bytes can be looked through.
#[derive(Clone, Default)]
struct Glass(Arc<Mutex<Vec<u8>>>);

impl PageFile for Glass {
    fn read(&self, extents: &[Extent], into: &mut PageBuffer) -> Result<(), DiskError> {
        let bytes = self.0.lock().unwrap();
        let mut rest = into.bytes_mut();
        for extent in extents {
            let (head, tail) = rest.split_at_mut(extent.bytes());
            head.copy_from_slice(&bytes[extent.offset() as usize..][..extent.bytes()]);
            rest = tail;
        }
        Ok(())
    }

    fn write(&self, page: u64, from: &PageBuffer, pages: usize) -> Result<(), DiskError> {
        let extent = Extent { page, pages };
        let (start, end) = (extent.offset() as usize, extent.offset() as usize + extent.bytes());
        let mut bytes = self.0.lock().unwrap();
        let length = bytes.len().max(end);
        bytes.resize(length, 0);
        bytes[start..end].copy_from_slice(&from.bytes()[..extent.bytes()]);
        Ok(())
    }

    fn engine(&self) -> String {
        "glass".to_owned()
    }
}

#[test]
fn a_forgotten_node_is_in_no_byte_of_the_graph() {
    const FORGOTTEN: u32 = 0x3A5C_9E17 >> 8;
    let glass = Glass::default();
    // A budget of nothing: whatever the graph holds goes to the disk.
    let store = GraphStore::with_budget(
        GraphOptions { shards: 1, page_entries_max: 64, ..GraphOptions::default() },
        0,
        Box::new(glass.clone()),
    );
    let mut random = Random(4);
    let mut first = 0;
    let mut apply = |batch: EdgeBatch| {
        let batch = EdgeBatch { first: EdgeId(first), ..batch };
        first += batch.len() as u64;
        store.apply(&batch).unwrap();
    };
    for round in 0..30 {
        let mut batch = EdgeBatch::default();
        for i in 0..500 {
            let other = NodeId(random.below(300) as u32);
            let src = if i % 7 == 0 { NodeId(FORGOTTEN) } else { NodeId(random.below(300) as u32) };
            batch.push_edge(src, other, EventTime(round * 500 + i));
        }
        apply(batch);
    }
    let traces = || {
        let bytes = glass.0.lock().unwrap();
        let needle = FORGOTTEN.to_le_bytes();
        // Neighbors stand at every multiple of four bytes, with the direction in the highest bit.
        bytes.chunks_exact(4).filter(|word| word[..3] == needle[..3] && word[3] & 0x7F == needle[3]).count()
    };
    assert!(traces() > 1_000, "the search finds what is there: {}", traces());
    let mut batch = EdgeBatch::default();
    batch.push_edge(NodeId(FORGOTTEN), NodeId(FORGOTTEN), EventTime(0));
    batch.op[0] = Op::DeleteNode;
    apply(batch);
    let edges = store.stats().edges;
    store.scrub().unwrap();
    assert_eq!(traces(), 0);
    assert_eq!((store.stats().edges, store.degree(NodeId(FORGOTTEN))), (edges, 0));
    let stats = store.stats().bytes;
    assert!(stats.on_disk >= stats.entries * 9 / 10, "what was searched is what there is: {stats:?}");
}
