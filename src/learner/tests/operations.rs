//! What operators ask of the loop: what a checkpoint then holds, which numbers versions have, and what is recorded.

use parking_lot::Mutex;

use super::*;
use crate::model::Weights;

type Decisions = Arc<Mutex<Vec<Decision>>>;

/// A gate that decides nothing itself.
fn idle_gate() -> Gate {
    Gate::new(GateOptions { window_batches: 1_000_000, ..gate::options() })
}

/// A learner with such a gate over what is indexed, and what is decided.
fn gated(rig: &Rig, options: LearnerOptions) -> (Learner, Decisions) {
    let decisions = Decisions::default();
    let recorded = decisions.clone();
    let from = Learned { trainer: trainer(), gate: Some(idle_gate()), stream: None, position: EdgeId(0) };
    let learner = rig.learner_from(from, options, Box::new(move |decision| recorded.lock().push(*decision)));
    (learner, decisions)
}

/// Has the loop carry out an operation.
fn operate(learner: &mut Learner, operation: Operation) -> Result<Operated, OperationError> {
    let outcome = learner.shared.status.operations.submit(operation).unwrap();
    learner.operate(&LearnBatch::default(), &|| ());
    outcome.try_recv().unwrap()
}

fn learn_more(rig: &mut Rig, learner: &mut Learner) {
    rig.append_edges(20, 1_000 + rig.log.end().0.cast_signed());
    learner.drain();
}

#[test]
fn the_checkpoint_of_a_decision_holds_no_pair_of_a_deleted_node() {
    let mut rig = Rig::new();
    rig.append_edges(40, 100);
    let (mut learner, _) = gated(&rig, rig.options());
    learner.drain();
    assert_eq!(learner.bank.score(NodeId(1), NodeId(11)), 1.0);
    let mut batch = EdgeBatch::default();
    record(&mut batch, Op::DeleteNode, 11);
    rig.append(batch, STARTED);
    learner.drain();
    let operated = operate(&mut learner, Operation::Promote(None)).unwrap();
    assert_eq!(learner.checkpointed, Some(operated.position));
    assert_eq!(learner.bank.score(NodeId(1), NodeId(11)), 0.0);
}

#[test]
fn a_version_number_never_names_two_sets_of_weights_through_a_rollback() {
    let mut rig = Rig::new();
    let (mut learner, decisions) = gated(&rig, rig.options());
    let nothing = operate(&mut learner, Operation::Promote(None)).unwrap_err();
    assert_eq!(nothing, OperationError::Refused("nothing was learned yet".to_owned()));
    let mut served = Vec::new();
    for _ in 0..2 {
        learn_more(&mut rig, &mut learner);
        served.push(operate(&mut learner, Operation::Promote(None)).unwrap().served);
    }
    let back = operate(&mut learner, Operation::RollBack).unwrap();
    assert_eq!((back.served, back.published), (served[0], Some(served[1])));
    // The candidate goes on from other weights than those that were promoted last, and nothing was learned since.
    assert!(back.candidate > served[1], "{back:?} after {served:?}");
    let again = operate(&mut learner, Operation::Promote(None)).unwrap();
    assert_eq!((again.served, again.published), (back.candidate, Some(served[0])));
    let recorded: Vec<_> =
        decisions.lock().iter().map(|one| (one.verdict, one.candidate, one.versions.published)).collect();
    assert_eq!(
        recorded,
        [
            (Verdict::Promoted, served[0], None),
            (Verdict::Promoted, served[1], Some(served[0])),
            (Verdict::RolledBack, back.candidate, Some(served[1])),
            (Verdict::Promoted, again.served, Some(served[0])),
        ]
    );
}

#[test]
fn a_rollback_to_weights_that_do_not_fit_changes_nothing() {
    let mut rig = Rig::new();
    let (mut learner, decisions) = gated(&rig, rig.options());
    learn_more(&mut rig, &mut learner);
    let model = TgnOptions { memory_dim: 8, ..tgn() }.into();
    let wider = Trainer::new(TrainerOptions { model, ..trainer_options() }, &Device::Cpu).unwrap();
    let weights: Weights = wider.weights().unwrap();
    learner.gate.as_mut().unwrap().promote(weights, 0);
    let served = operate(&mut learner, Operation::Promote(None)).unwrap().served;
    let versions = learner.gate.as_ref().unwrap().versions();
    let error = operate(&mut learner, Operation::RollBack).unwrap_err();
    assert!(error.to_string().starts_with("nothing was changed"), "{error}");
    assert_eq!(learner.gate.as_ref().unwrap().versions(), versions);
    assert_eq!(rig.shared.engine.model().unwrap().version, served);
    assert_eq!(decisions.lock().len(), 1);
}

#[test]
fn a_decision_that_no_checkpoint_keeps_is_recorded_and_reported_as_such() {
    let mut rig = Rig::new();
    let missing = rig.folder.path().join("missing");
    let (mut learner, decisions) = gated(&rig, LearnerOptions { checkpoint_dir: missing, ..rig.options() });
    learn_more(&mut rig, &mut learner);
    let error = operate(&mut learner, Operation::Promote(None)).unwrap_err();
    assert!(error.to_string().contains("a restart forgets it"), "{error}");
    let decided = *decisions.lock().first().unwrap();
    assert_eq!(
        (decided.verdict, decided.candidate),
        (Verdict::Promoted, rig.shared.engine.model().unwrap().version)
    );
}

#[test]
fn a_learner_that_begins_without_a_file_writes_one_before_it_names_one() {
    let mut rig = Rig::new();
    rig.append_edges(30, 100);
    // As learner.start = "latest" has it: a position, and nothing learned.
    let mut learner = rig.learner_at(trainer(), rig.log.end(), rig.options());
    assert_eq!(learner.checkpointed, None);
    let requested = rig.shared.status.requests.submit(WantedCheckpoint::Any).unwrap();
    learner.checkpoint_now(&LearnBatch::default(), &|| ()).unwrap();
    let Durable { name, position, .. } = requested.try_recv().unwrap().unwrap();
    assert_eq!(position, rig.log.end());
    assert!(rig.folder.path().join(&name).is_file(), "{name}");
}
