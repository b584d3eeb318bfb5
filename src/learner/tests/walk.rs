//! The model of walks in the loop: what readers see of it, what a restart and a deletion leave, and how far its
//! baseline sees.

use super::*;
use crate::device::rng;
use crate::model::walk::{PairTimes, WalkOptions};
use crate::serving::PairScore;

fn walk() -> TrainerOptions {
    let model = WalkOptions { dimension: 32, steps: 2, hidden: [16, 8], ..WalkOptions::default() };
    TrainerOptions { model: model.into(), ..trainer_options() }
}

/// Memory and attention, with walks beside.
fn both() -> TrainerOptions {
    let TrainerOptions { model: ModelOptions::Walk(walks), .. } = walk() else { panic!("another model") };
    TrainerOptions { model: trainer_options().model.with_walks(Some(walks)), ..trainer_options() }
}

fn rig() -> Rig {
    rig_for(walk())
}

fn rig_for(options: TrainerOptions) -> Rig {
    let mut rig = Rig::new();
    rig.restart_for(options.model.needs().row_dim());
    rig
}

/// A learner that has seen nothing, before a gate.
fn learner(rig: &Rig) -> Learner {
    learner_of(rig, walk())
}

fn learner_of(rig: &Rig, options: TrainerOptions) -> Learner {
    let trainer = Trainer::new(options, &Device::Cpu).unwrap();
    let from = Learned { trainer, gate: Some(Gate::new(gate::options())), stream: None, position: EdgeId(0) };
    rig.learner_from(from, drawing_met(rig), Box::new(|_| ()))
}

/// Negatives that their source met are among those of this file.
fn drawing_met(rig: &Rig) -> LearnerOptions {
    LearnerOptions { met_share: 0.25, ..rig.options() }
}

fn saved(learner: &Learner) -> Vec<u8> {
    learner.to_bytes()
}

/// What readers get about all nodes and some pairs.
fn responses(rig: &Rig) -> (Vec<NodeEmbedding>, Vec<PairScore>) {
    let (keys, at) = ((0..32).map(key).collect::<Vec<_>>(), Some(EventTime(10_000)));
    let pairs: Vec<_> = (0..8).flat_map(|u| (8..20).map(move |v| (key(u), key(v)))).collect();
    let engine = &rig.shared.engine;
    let embeddings = engine.embeddings(&keys, at, UnknownKeys::Error).unwrap().embeddings;
    let mut scores = engine.link_scores(&pairs, at, UnknownKeys::Error).unwrap().scores;
    for score in &mut scores {
        // A restart forgets how unusual the latest events were.
        if let PairScore::Found { percentile, .. } = score {
            *percentile = None;
        }
    }
    (embeddings, scores)
}

/// What the trainer itself makes of those pairs.
fn own_scores(learner: &Learner, rig: &Rig) -> Vec<f32> {
    let at = LearnBatch { end: rig.log.end(), ..LearnBatch::default() };
    let candidates: Vec<NodeId> = (8..20).map(NodeId).collect();
    let of = |u| {
        let world = step::world(&rig.shared.engine, (&rig.shared.engine.stores.node_features, None), &at);
        learner.trainer.score_candidates(&world, NodeId(u), EventTime(10_000), &candidates).unwrap()
    };
    (0..8).flat_map(of).collect()
}

/// Event number `i` of a stream with late events, loops and pairs that come again.
fn event(i: u64) -> (u32, u32, i64) {
    let draw = |word, n| rng::below([51, i, word, 0], n);
    let (src, dst) = (draw(0, 8), 8 + (draw(0, 8) * 5 + draw(1, 3)) % 12);
    (src, if draw(2, 20) == 0 { src } else { dst }, i as i64 * 10 - i64::from(draw(3, 4)) * 25)
}

#[test]
fn readers_see_what_the_trainer_knows_as_soon_as_it_has_learned() {
    let mut rig = rig();
    let mut learner = learner(&rig);
    for round in 0..6 {
        rig.append(edges((round * 30..round * 30 + 30).map(event)), STARTED);
        learner.drain();
        // The gate promotes after windows of four batches; the requests below read the served weights.
        let served = rig.shared.engine.model().unwrap();
        learner.trainer.set_weights(&served).unwrap();
        let (embeddings, scores) = responses(&rig);
        let own = own_scores(&learner, &rig);
        assert!(own.len() == scores.len() && own.iter().any(|score| *score != own[0]));
        for (found, own) in scores.iter().zip(&own) {
            let PairScore::Found { probability, .. } = found else { panic!("{found:?}") };
            let own = crate::model::probability(*own);
            assert!((probability - own).abs() < 1e-5, "round {round}: {probability}, not {own}");
        }
        let dimension = walk().model.needs().embedding_dim;
        for (node, found) in embeddings.iter().enumerate() {
            let NodeEmbedding::Found { vector, cold, .. } = found else { panic!("{found:?}") };
            let known = learner.trainer.state().last_event(NodeId(node as u32)).is_some();
            assert_eq!((vector.len(), *cold), (dimension, !known), "node {node}");
            assert_eq!(vector.iter().any(|value| *value != 0.0), known, "node {node}");
        }
    }
    let report = rig.shared.status.report();
    assert!(
        report.trained == 180 && report.quality.is_some() && report.bytes.memory > 8 * 96 * 4,
        "{report:?}"
    );
}

/// Twenty events, in one round the deletion of a node after them.
fn learn_round(rig: &mut Rig, learner: &mut Learner, round: u64) {
    rig.append(edges((round * 20..round * 20 + 20).map(event)), STARTED);
    if round == 6 {
        let mut batch = EdgeBatch::default();
        record(&mut batch, Op::DeleteNode, 9);
        rig.append(batch, STARTED);
    }
    learner.drain();
}

#[test]
fn wherever_it_is_restarted_it_goes_on_bit_for_bit() {
    for options in [walk(), both()] {
        // The state before each cut is what the run without one had there, and of walks alone so is what readers see:
        // rows of memory are computed anew at a start.
        let seen = |rig: &Rig| (options == walk()).then(|| responses(rig));
        let unbroken: Vec<_> = {
            let mut rig = rig_for(options);
            let mut learner = learner_of(&rig, options);
            let round = |round: u64| {
                learn_round(&mut rig, &mut learner, round);
                (saved(&learner), seen(&rig))
            };
            (0..12).map(round).collect()
        };
        for cut in [1, 4, 6, 7, 11] {
            let mut rig = rig_for(options);
            let mut learner = learner_of(&rig, options);
            for round in 0..12_u64 {
                learn_round(&mut rig, &mut learner, round);
                if round == cut {
                    let from = gate::restored(&learner, options);
                    rig.restart();
                    learner = rig.learner_from(from, drawing_met(&rig), Box::new(|_| ()));
                }
                let found = (saved(&learner), seen(&rig));
                let name = options.model.name();
                assert!(found == unbroken[round as usize], "{name}, cut {cut}, round {round}");
            }
        }
    }
}

#[test]
fn a_deleted_node_is_in_no_part_of_a_model_that_has_both() {
    let (mut rig, scored) = (rig_for(both()), |rig: &Rig, u, v| {
        let found =
            rig.shared.engine.link_scores(&[(key(u), key(v))], Some(EventTime(10_000)), UnknownKeys::Error);
        found.unwrap().scores.remove(0)
    });
    let mut learner = learner_of(&rig, both());
    rig.append(edges((0..60).map(event)), STARTED);
    rig.append(edges([(5, 9, 700), (9, 10, 701)]), STARTED);
    learner.drain();
    let columns = both().model.needs().row_dim();
    let published = |rig: &Rig| {
        let mut row = vec![f32::NAN; columns];
        rig.states().gather(&[NodeId(9)], 0..columns, &mut row);
        row
    };
    let row = published(&rig);
    assert!(row[..6].iter().any(|value| *value != 0.0) && row[6..].iter().any(|value| *value != 0.0));
    let mut batch = EdgeBatch::default();
    record(&mut batch, Op::DeleteNode, 9);
    rig.append(batch, STARTED);
    learner.drain();
    learner.checkpoint_now(&LearnBatch::default(), &|| ()).unwrap();
    assert!(published(&rig).iter().all(|value| *value == 0.0));
    assert_eq!(scored(&rig, 0, 9), scored(&rig, 0, 30), "as a node that it never saw");
    assert!(rig.states().pairs.get(NodeId(5), NodeId(9)).is_none());
}

#[test]
fn a_deleted_node_leaves_no_row_no_pair_and_no_byte_of_its_own() {
    let mut rig = rig();
    let mut learner = learner(&rig);
    rig.append(edges((0..60).map(event)), STARTED);
    // Times that nobody else has.
    let (odd, pair) = (77_777_i64, PairTimes::key(NodeId(9), NodeId(25)));
    rig.append(edges([(25, 9, odd), (9, 25, odd + 1)]), STARTED);
    // The stream's clock knows the times, though not the nodes, of the ten latest events.
    rig.append(edges((2..20).map(|i| (2, 10, odd + i))), STARTED);
    learner.drain();
    let row = |learner: &Learner| {
        let mut row = vec![0.0; walk().model.needs().row_dim()];
        learner.trainer.state().walks.as_ref().unwrap().write_row(NodeId(9), &mut row);
        row
    };
    let vectors = row(&learner)[..96].to_vec();
    let traces = |learner: &Learner| {
        let bytes = saved(learner);
        let (odd, pair, row) = (odd.to_le_bytes(), pair.to_le_bytes(), bytemuck::cast_slice(&vectors[32..]));
        let traces: [&[u8]; 3] = [&odd, &pair, row];
        traces.map(|trace| bytes.windows(trace.len()).any(|window| window == trace))
    };
    assert_eq!(traces(&learner), [true; 3], "the search finds what is there");
    let mut batch = EdgeBatch::default();
    record(&mut batch, Op::DeleteNode, 9);
    rig.append(batch, STARTED);
    learner.drain();
    let before = responses(&rig);
    learner.checkpoint_now(&LearnBatch::default(), &|| ()).unwrap();
    assert_eq!(traces(&learner), [false; 3]);
    assert!(row(&learner).iter().all(|value| *value == 0.0));
    let engine = &rig.shared.engine;
    assert!(engine.states.pairs.get(NodeId(25), NodeId(9)).is_none() && !engine.states.has(NodeId(9)));
    assert!(engine.states.pairs.get(NodeId(2), NodeId(10)).is_some(), "others keep theirs");
    let mut published = vec![9.0; walk().model.needs().row_dim()];
    engine.states.gather(&[NodeId(9)], 0..engine.states.dimension(), &mut published);
    assert!(published.iter().all(|value| *value == 0.0));
    // To the model it is a node that it never saw.
    let (embeddings, scores) = responses(&rig);
    assert!((&embeddings, &scores) == (&before.0, &before.1), "already before its pairs went");
    assert_eq!(embeddings[9], embeddings[30]);
    assert_eq!(
        scores[1],
        engine.link_scores(&[(key(0), key(30))], Some(EventTime(10_000)), UnknownKeys::Error).unwrap().scores
            [0]
    );
}

#[test]
fn its_baseline_sees_as_little_of_the_batch_as_it_does() {
    let mut rig = rig();
    rig.append(edges((0..10).map(|i| (i % 2, 8 + i % 2, i64::from(i)))), STARTED);
    let mut learner = learner(&rig);
    learner.drain();
    let baseline = rig.shared.status.report().quality.unwrap().baseline;
    assert!((baseline - 0.5).abs() < 1e-9, "all pairs are new to it: {baseline}");
}

#[test]
fn a_backlog_updates_state_without_being_trained_on() {
    let mut rig = rig();
    rig.append(edges((0..100).map(event)), STARTED);
    let options = LearnerOptions { lag_events_max: 20, ..rig.options() };
    let trainer = Trainer::new(walk(), &Device::Cpu).unwrap();
    let mut behind = rig.learner_at(trainer, EdgeId(0), options);
    behind.drain();
    let report = rig.shared.status.report();
    assert_eq!((report.trained, report.skipped, report.applied), (30, 70, 100));
    let mut prompt = {
        rig.restart();
        rig.learner_at(Trainer::new(walk(), &Device::Cpu).unwrap(), EdgeId(0), rig.options())
    };
    prompt.drain();
    assert!(behind.trainer.state() == prompt.trainer.state(), "the same walks");
}
