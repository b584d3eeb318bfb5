//! Rows of nodes are seen from their place in the log on, whatever the graph is ahead.

use super::*;

/// Length of a node's row.
const ROW: usize = 2;

fn options() -> TrainerOptions {
    TrainerOptions { model: TgnOptions { node_feature_dim: ROW, ..tgn() }.into(), ..trainer_options() }
}

/// A rig whose nodes have rows.
fn rig() -> Rig {
    let mut rig = Rig::new();
    let old = &rig.shared.engine;
    let stores = Stores { node_features: Arc::new(FeatureStore::new(ROW)), ..old.stores.clone() };
    let engine = QueryEngine::new(stores, old.states.clone(), rig.shared.progress.clone());
    rig.shared.engine = Arc::new(engine);
    rig
}

/// Indexes a row of a node, as an appender does.
fn append_row(rig: &mut Rig, node: u32, row: [f32; ROW]) {
    let mut batch = EdgeBatch::default();
    record(&mut batch, Op::Node, node);
    batch.features.push(0, &row);
    rig.append(batch, STARTED);
    rig.shared.engine.stores.node_features.set(u64::from(node), &row).unwrap();
}

/// The scores of the next batch, which is learned. Computed on the rows for requests they would be others, if those are
/// `ahead`.
fn learn_next(learner: &mut Learner, batch: &mut LearnBatch, ahead: bool) -> (Vec<f32>, Vec<f32>) {
    learner.feed.fill(batch, learner.options.batch_events, IDLE, Duration::ZERO).unwrap();
    batch.node_rows.set_seen(&learner.node_rows);
    let negatives = learner.negatives(batch);
    learner.prepare(batch, &negatives, &Choice::all(StepMode::Train)).unwrap();
    let scores = learner.trainer.score_prepared(&learner.at_hand.prepared).unwrap();
    let engine = learner.shared.engine.clone();
    let world = step::world(&engine, (&engine.stores.node_features, None), batch);
    let (mut newest, preparer) = (PreparedBatch::default(), learner.trainer.preparer());
    let positives = Positives { src: &batch.src, dst: &batch.dst, times: &batch.times, edges: &batch.edges };
    let against = Negatives { src: &batch.src, dst: &negatives };
    preparer.sample(&world, &positives, &against, StepMode::Train, &mut newest).unwrap();
    preparer.expect(|node| learner.trainer.state().mailbox.pending_event(node), &mut newest);
    preparer.gather(&world, &mut newest).unwrap();
    assert_eq!(learner.trainer.score_prepared(&newest).unwrap() != scores, ahead);
    learner.learn_anywhere(batch).unwrap();
    scores
}

#[test]
fn a_later_row_of_a_node_changes_no_score_before_it() {
    for batch_events in [200, 300] {
        let scores = |with_row: bool| {
            let mut rig = rig();
            append_row(&mut rig, 8, [0.5, -1.0]);
            rig.append_edges(200, 100);
            if with_row {
                append_row(&mut rig, 3, [5.0, -7.0]);
                append_row(&mut rig, 8, [-3.0, 2.0]);
            }
            let options = LearnerOptions { batch_events, ..rig.options() };
            let trainer = Trainer::new(self::options(), &Device::Cpu).unwrap();
            let mut learner = rig.learner_at(trainer, EdgeId(0), options);
            let mut batch = LearnBatch::default();
            let first = learn_next(&mut learner, &mut batch, with_row);
            assert_eq!(batch.edges.len(), 200);
            rig.append_edges(50, 400);
            (first, learn_next(&mut learner, &mut batch, false))
        };
        let (plain, later) = (scores(false), scores(true));
        assert_eq!(plain.0, later.0, "batches of {batch_events}");
        assert_ne!(plain.1, later.1, "the row counts from its place on");
    }
}

#[test]
fn a_restart_sees_the_rows_as_of_its_checkpoint() {
    let mut rig = rig();
    append_row(&mut rig, 3, [0.5, -1.0]);
    rig.append_edges(40, 100);
    let trainer = Trainer::new(options(), &Device::Cpu).unwrap();
    let mut learner = rig.learner_at(trainer, EdgeId(0), rig.options());
    learner.drain();
    let (mut bytes, position) = (Vec::new(), learner.learned);
    learner.trainer.save(&mut bytes).unwrap();
    rig.append_edges(10, 200);
    append_row(&mut rig, 3, [9.0, 9.0]);
    append_row(&mut rig, 4, [9.0, 9.0]);
    let mut batch = LearnBatch::default();
    let expected = learn_next(&mut learner, &mut batch, true);
    rig.restart();
    let restored = Trainer::load(options(), &Device::Cpu, &mut &bytes[..]).unwrap();
    let mut again = rig.learner_at(restored, position, rig.options());
    assert_eq!(learn_next(&mut again, &mut batch, true), expected);

    let mut batch = EdgeBatch::default();
    record(&mut batch, Op::DeleteNode, 3);
    rig.append(batch, STARTED);
    again.drain();
    let mut row = [1.0; ROW];
    again.node_rows.row_into(3, &mut row).unwrap();
    assert_eq!(row, [0.0; ROW], "a deleted node's row goes");
    again.node_rows.row_into(4, &mut row).unwrap();
    assert_eq!(row, [9.0; ROW]);
}
