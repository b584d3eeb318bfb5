//! Which types nodes have received: what readers see of it, and what a restart and a deletion leave.

use super::*;

/// Edges of [`some_edges`], of types 0 to 2 by source.
fn append_typed(rig: &mut Rig, count: u32, time: i64) {
    let mut batch = some_edges(count, time);
    batch.edge_type = batch.src.iter().map(|src| (src.0 % 3) as u16).collect();
    rig.append(batch, STARTED);
}

/// The destinations of types 1 and 2, as readers see them.
fn received(rig: &Rig) -> [Vec<u32>; 2] {
    [1, 2].map(|number| {
        let bits = rig.states().received.bits(number, 32);
        (0..32).filter(|node| bits[0] >> node & 1 == 1).collect()
    })
}

/// The same by reading the log.
fn logged(rig: &Rig, without: &[u32]) -> [Vec<u32>; 2] {
    let (mut reader, mut found) = (rig.log.readers().reader(EdgeId(0)), [const { Vec::new() }; 2]);
    while let Some(frame) = reader.next_frame().unwrap() {
        let batch = &frame.batch;
        for (node, number) in batch.dst.iter().zip(&batch.edge_type).filter(|(_, number)| **number > 0) {
            found[usize::from(*number) - 1].push(node.0);
        }
    }
    found.map(|mut nodes| {
        nodes.sort_unstable();
        nodes.dedup();
        nodes.retain(|node| !without.contains(node));
        nodes
    })
}

#[test]
fn types_are_those_of_the_log_after_every_batch_and_every_kind_of_start() {
    let mut rig = Rig::new();
    append_typed(&mut rig, 3, 100);
    let mut learner = rig.learner(rig.options());
    learner.drain();
    let few = received(&rig);
    assert!(few == logged(&rig, &[]) && !few[0].is_empty() && !few[1].is_empty(), "{few:?}");
    append_typed(&mut rig, 40, 200);
    assert_eq!(received(&rig), few, "they follow what is learned");
    learner.drain();
    let all = received(&rig);
    assert!(all == logged(&rig, &[]) && all != few, "{all:?}");
    // From a checkpoint.
    let from = gate::restored(&learner, trainer_options());
    rig.restart();
    let mut learner = rig.learner_from(from, rig.options(), Box::new(|_| ()));
    assert_eq!(received(&rig), all);
    rig.append(edges([(1, 30, 300)]), STARTED);
    append_typed(&mut rig, 1, 301);
    learner.drain();
    assert_eq!(received(&rig), logged(&rig, &[]));
    // From the log, where a checkpoint has nothing of the stream.
    rig.restart();
    rig.learner_at(trainer(), rig.log.end(), rig.options());
    assert_eq!(received(&rig), logged(&rig, &[]));
}

#[test]
fn a_deleted_node_is_of_no_type_from_the_next_checkpoint_on() {
    let mut rig = Rig::new();
    append_typed(&mut rig, 40, 100);
    let mut learner = rig.learner(rig.options());
    learner.drain();
    let gone = received(&rig)[0][0];
    let mut batch = EdgeBatch::default();
    record(&mut batch, Op::DeleteNode, gone);
    rig.append(batch, STARTED);
    learner.drain();
    learner.checkpoint_at_end(&LearnBatch::default(), &|| ());
    let left = logged(&rig, &[gone]);
    assert!(received(&rig) == left && left != logged(&rig, &[]), "{left:?}");
    let stream = gate::restored(&learner, trainer_options()).stream.unwrap();
    assert_eq!(stream.received.bits(1, 32)[0] >> gone & 1, 0);
}
