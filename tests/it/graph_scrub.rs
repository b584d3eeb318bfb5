//! A forgotten node is nowhere in the graph, once it was scrubbed.

use evergraph::event::{EdgeBatch, EdgeId, EventTime, NodeId, Op};
use evergraph::graph::{GraphOptions, GraphStore};

use crate::faulty_pages::{Fault, Faulty};
use crate::graph_model::oracle::Random;

#[test]
fn a_forgotten_node_is_in_no_byte_of_the_graph() {
    const FORGOTTEN: u32 = 0x3A5C_9E17 >> 8;
    let glass = Faulty::new(|_| Fault::Works);
    // A budget of nothing: whatever the graph holds goes to the disk.
    let store =
        GraphStore::with_budget(GraphOptions { shards: 1, page_entries_max: 64 }, 0, Box::new(glass.clone()));
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
        let (needle, mut found) = (FORGOTTEN.to_le_bytes(), 0);
        // Neighbors stand at every multiple of four bytes, with the direction in the highest bit.
        let is_it = |word: &&[u8]| word[..3] == needle[..3] && word[3] & 0x7F == needle[3];
        glass.each_page(|page| found += page.chunks_exact(4).filter(is_it).count());
        found
    };
    assert!(traces() > 1_000, "the search finds what is there: {}", traces());
    let mut batch = EdgeBatch::default();
    batch.push_edge(NodeId(FORGOTTEN), NodeId(FORGOTTEN), EventTime(0));
    batch.op[0] = Op::DeleteNode;
    apply(batch);
    let edges = store.stats().edges;
    (0..).take_while(|&part| store.scrub_part(part).unwrap()).for_each(drop);
    assert_eq!(traces(), 0);
    assert_eq!((store.stats().edges, store.degree(NodeId(FORGOTTEN))), (edges, 0));
    let stats = store.stats().bytes;
    assert!(stats.on_disk >= stats.entries * 9 / 10, "what was searched is what there is: {stats:?}");
}
