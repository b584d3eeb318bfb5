//! Replays in the loop: what they train on, what they leave alone, and when they give way.

use super::*;
use crate::train::replay::ReplayPolicy;

fn replaying(rig: &Rig, ratio: f64) -> LearnerOptions {
    LearnerOptions { replay: ReplayOptions { ratio, policy: ReplayPolicy::Uniform }, ..rig.options() }
}

fn counted(rig: &Rig) -> [u64; 2] {
    let steps = &rig.shared.metrics.train.replay_steps;
    ["trained", "skipped"].map(|result| steps.with_label_values(&[result]).get())
}

#[test]
fn replays_train_on_history_and_touch_no_memory() {
    let mut rig = Rig::new();
    rig.append(some_edges(60, 0), STARTED - 1);
    let mut learner = rig.learner(replaying(&rig, 0.5));
    learner.drain();
    // Due with the first, the third and the fifth of six steps; with the first there is nothing old.
    assert_eq!(counted(&rig), [2, 0]);
    let plain = rig.learner(rig.options());
    assert!(plain.trainer.steps() == 0 && learner.trainer.steps() == 6, "a replay is no step of the stream");

    let saved = |learner: &Learner| {
        let (mut all, mut state) = (Vec::new(), Vec::new());
        learner.trainer.save(&mut all).unwrap();
        learner.trainer.state().write(&mut state).unwrap();
        (all, state)
    };
    let before = saved(&learner);
    let first = rig.log.end();
    let now = LearnBatch { first, end: first, ..LearnBatch::default() };
    assert!(learner.replay_one(&now, 0).unwrap());
    let after = saved(&learner);
    assert!(before.1 == after.1, "memory and messages");
    assert!(before.0 != after.0, "weights");
    let edges = learner.replayed.positives().edges.to_vec();
    assert_eq!(edges.len(), 10);
    assert!(edges.windows(2).all(|pair| pair[1].0 == pair[0].0 + 1) && edges[9] < first, "{edges:?}");
}

#[test]
fn what_was_deleted_is_not_replayed() {
    let mut rig = Rig::new();
    rig.append_edges(10, 0);
    let mut learner = rig.learner(replaying(&rig, 1.0));
    let mut batch = some_edges(2, 0);
    batch.op.fill(Op::DeleteEdge);
    record(&mut batch, Op::DeleteNode, 5);
    rig.append(batch, STARTED);
    learner.drain();
    let now = LearnBatch { first: EdgeId(10), end: EdgeId(10), ..LearnBatch::default() };
    assert!(learner.replay_one(&now, 0).unwrap());
    let left: Vec<u64> = learner.replayed.positives().edges.iter().map(|edge| edge.0).collect();
    assert_eq!(left, [2, 3, 4, 6, 7, 8, 9], "of ten, without the first two and the one of node 5");
}

#[test]
fn replays_give_way_to_live_events_that_wait() {
    let mut rig = Rig::new();
    rig.append(some_edges(50, 0), STARTED - 1);
    let mut learner = rig.learner(replaying(&rig, 1.0));
    learner.drain();
    assert_eq!(counted(&rig), [4, 0], "history is in no hurry; before its second batch there is nothing old");
    rig.append(some_edges(30, 100), STARTED);
    learner.drain();
    // While one and two batches wait, and not before the last.
    assert_eq!(counted(&rig), [5, 2]);
}
