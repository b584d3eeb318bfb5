//! What there is an end of: numbers of types, nodes, and the patience of whoever waits for a sign of life.

use std::cell::Cell;

use super::*;
use crate::event::NodeNames;

#[test]
fn edge_types_past_the_last_number_are_none_and_reported() {
    let disk = MemoryDisk::new();
    let mut appender = appender(&disk);
    let events = (0..65_540_i64).map(|i| {
        let mut incoming = edge("a", "b", i);
        let Event::Edge(edge) = &mut incoming.event else { unreachable!() };
        edge.edge_type = Some(format!("t{i}").into());
        incoming
    });
    submit(&mut appender, [batch(events.collect())]);
    assert_eq!(appender.index.stores.types.len(), 65_535);
    assert!(appender.out_of_types);
    let frame = appender.log.reader(EdgeId(0)).next_frame().unwrap().unwrap();
    assert_eq!(frame.batch.edge_type[65_533..], [65_534, 65_535, 0, 0, 0, 0, 0]);
}

/// How many nodes have a name, and the places of the events that were refused.
fn nodes_after(appender: &mut Appender, events: Vec<Incoming>) -> (usize, Vec<usize>) {
    let refused = match &submit(appender, [batch(events)])[0] {
        Ok(_) => Vec::new(),
        Err(SubmitError::Unstorable { events, detail }) => {
            assert!(detail.contains("at most 4 (stream.nodes_max)"), "{detail}");
            events.iter().map(|event| event.index).collect()
        }
        Err(error) => panic!("{error}"),
    };
    (appender.index.stores.keys.count(), refused)
}

#[test]
fn events_on_their_way_add_no_nodes_beyond_the_limit() {
    let disk = MemoryDisk::new();
    let mut appender = appender(&disk);
    appender.options.nodes_max = 4;
    let node = |key: &str| Incoming::new(Event::DeleteNode { key: NodeKey::from_text(key) });
    assert_eq!(nodes_after(&mut appender, vec![edge("a", "b", 0), edge("b", "c", 1)]), (3, vec![]));
    // Room for one: two new names do not fit, and take none of it.
    let events = vec![edge("d", "e", 2), edge("f", "a", 3), edge("f", "f", 4), edge("g", "a", 5)];
    assert_eq!(nodes_after(&mut appender, events), (3, vec![0, 3]));
    let without = vec![edge("f", "a", 3), edge("f", "f", 4), edge("a", "c", 5)];
    assert_eq!(nodes_after(&mut appender, without), (4, vec![]));
    assert_eq!(nodes_after(&mut appender, vec![edge("h", "h", 6)]), (4, vec![0]));
    // A deletion makes room for one, within its batch as well.
    let events = vec![node("b"), edge("h", "h", 7), edge("b", "a", 8)];
    assert_eq!(nodes_after(&mut appender, events), (4, vec![2]));
    assert_eq!(nodes_after(&mut appender, vec![node("b"), edge("h", "h", 7)]), (4, vec![]));
    assert_eq!(nodes_after(&mut appender, vec![edge("b", "a", 9)]), (4, vec![0]));
    assert_eq!(nodes_after(&mut appender, vec![node("a"), edge("a", "h", 10)]), (4, vec![]));
}

#[test]
fn a_long_deletion_gives_signs_of_life() {
    let disk = MemoryDisk::new();
    let mut appender = appender(&disk);
    let names: Vec<String> = (0..100).map(|i| format!("n{i}")).collect();
    let edges: Vec<Incoming> = (0..50_000_i64).map(|i| edge("hub", &names[i as usize % 100], i)).collect();
    for events in edges.chunks(1_000) {
        submit(&mut appender, [batch(events.to_vec())]);
    }
    let (sender, replies) = unbounded();
    let pulses = Cell::new(0);
    let delete = Incoming::new(Event::DeleteNode { key: NodeKey::from_text("hub") });
    appender.write(vec![submission(batch(vec![delete]), &sender)], &|| pulses.set(pulses.get() + 1));
    assert!(replies.recv().unwrap().is_ok());
    assert_eq!(appender.index.stores.graph.stats().edges, 0);
    assert!(pulses.get() >= 10, "{} for 50,000 edges", pulses.get());
}
