//! Where batches begin and end, and what does not depend on it.

use super::*;
use crate::graph::RetentionClock;

/// A feed of the whole log.
fn feed(rig: &Rig, retention: Option<Retention>) -> Feed {
    let (reader, progress) = (rig.log.reader(EdgeId(0)), rig.shared.progress.clone());
    Feed::new(reader, progress, EdgeId(0), FeedMark { clock: RetentionClock::new(retention), known: 0 })
}

#[test]
fn rows_of_nodes_before_the_first_edge_come_in_bounded_batches() {
    let mut rig = Rig::new();
    let count = 50_000_u32;
    let mut rows = EdgeBatch::default();
    for node in 0..count {
        record(&mut rows, Op::Node, node);
        rows.features.push(node as usize, &[node as f32, 1.0]);
    }
    rig.append(rows, STARTED);
    rig.append_edges(10, 100);
    let (mut feed, mut batch) = (feed(&rig, None), LearnBatch::default());
    let (store, mut batches) = (FeatureStore::new(2), 0);
    while feed.position() < rig.shared.progress.indexed() {
        feed.fill(&mut batch, 10, IDLE, Duration::ZERO).unwrap();
        assert!(batch.end.0 - batch.first.0 <= 1 << 14, "{} to {}", batch.first.0, batch.end.0);
        batch.node_rows.set_seen(&store);
        batch.node_rows.set_later(&store);
        batches += 1;
    }
    assert_eq!((batches, batch.edges.len()), (4, 10));
    let mut last = [0.0; 4];
    store.gather(&[16_384, u64::from(count) - 1], &mut last).unwrap();
    assert_eq!(last, [16_384.0, 1.0, 49_999.0, 1.0], "none is left out");
}

#[test]
fn negatives_do_not_depend_on_where_batches_end() {
    let mut rig = Rig::new();
    let events = (0..40_000_u32).map(|i| (i % 8, 8 + i / 11 % 3_000 + i % 7 * 5, i64::from(i)));
    rig.append(edges(events), STARTED);
    let pool = |length: usize| {
        let mut feed = feed(&rig, Some(Retention { age: 9_000, lateness: 0 }));
        let (mut pool, mut batch) = (StreamNegatives::aging(), LearnBatch::default());
        while feed.position() < rig.shared.progress.indexed() {
            feed.fill(&mut batch, length, IDLE, Duration::ZERO).unwrap();
            batch.show_destinations(&mut pool);
        }
        pool.known().nodes().to_vec()
    };
    let expected = pool(200);
    assert!(expected.len() < 2_500, "old ones are gone: {}", expected.len());
    for length in [1, 7, 1_000, 40_000] {
        assert!(pool(length) == expected, "batches of {length}");
    }
}
