//! What share of the events gets a gradient step.

use super::super::pace::{Choice, Lag, share};
use super::*;
use crate::train::share::{Chosen, Share};

/// A stream of so many batches a second on a machine that takes so many milliseconds to train on one, and to
/// remember one. Returns the share that was trained on in the second half, and the longest wait there, milliseconds.
fn run(batches: usize, per_second: f64, [train, remember]: [f64; 2], options: &LearnerOptions) -> (f64, f64) {
    let (mut taken, mut now, mut trained, mut longest) = (Share::default(), 0.0_f64, 0.0, 0.0_f64);
    let batch = options.batch_events;
    for number in 0..batches {
        let arrival = number as f64 * 1_000.0 / per_second;
        now = now.max(arrival);
        let behind = ((now - arrival) * per_second / 1_000.0) as u64 * options.batch_events as u64;
        let lag = Lag { waited: Duration::from_secs_f64((now - arrival) / 1_000.0), behind };
        let events = match taken.next([1, number as u64], share(lag, options), (batch, batch)) {
            Chosen::All => 1.0,
            Chosen::Part(places) => places.len() as f64 / batch as f64,
            Chosen::Nothing => 0.0,
        };
        if number >= batches / 2 {
            trained += events;
            longest = longest.max(now - arrival);
        }
        now += remember + events * (train - remember);
    }
    (trained / (batches - batches / 2) as f64, longest)
}

fn options() -> LearnerOptions {
    let lag_target = Duration::from_millis(50);
    LearnerOptions { lag_target, lag_events_max: 20_000, share_min: 0.02, ..Rig::new().options() }
}

#[test]
fn in_overload_the_lag_stays_near_the_target_and_the_share_is_what_the_machine_can_do() {
    // Of 100 batches a second, a share s takes 100 (20 s + (1 - s)) milliseconds: all of the time at 9/19.
    let (share, longest) = run(20_000, 100.0, [20.0, 1.0], &options());
    assert!((share - 9.0 / 19.0).abs() < 0.02, "{share}");
    assert!(longest < 110.0, "{longest} ms");
    let (share, longest) = run(20_000, 40.0, [20.0, 1.0], &options());
    assert!(share == 1.0 && longest < 1.0, "no overload: {share}, {longest} ms");
}

#[test]
fn the_floor_is_trained_on_however_many_events_wait() {
    // Remembering all takes longer than there is time, so more and more wait.
    let (share, longest) = run(20_000, 100.0, [20.0, 11.0], &options());
    assert!((share - 0.02).abs() < 0.001 && longest > 1_000.0, "{share}, {longest} ms");
    let none = LearnerOptions { share_min: 0.0, ..options() };
    assert_eq!(run(20_000, 100.0, [20.0, 11.0], &none).0, 0.0);
}

#[test]
fn without_a_target_only_the_number_of_events_counts() {
    let options = LearnerOptions { lag_target: Duration::ZERO, ..options() };
    let lag = |behind| Lag { waited: Duration::from_secs(3_600), behind };
    assert_eq!((share(lag(20_000), &options), share(lag(20_001), &options)), (1.0, 0.02));
}

#[test]
fn history_is_trained_on_as_a_whole_or_not_at_all_and_scores_are_left_out_in_overload() {
    let mut rig = Rig::new();
    rig.append_edges(10, 100);
    let choice = |history: bool, train: bool, train_history: bool, behind: u64| {
        let began_unix_ms = if history { i64::MAX } else { i64::MIN };
        let options = LearnerOptions {
            train,
            train_history,
            began_unix_ms,
            batch_events: 10,
            lag_events_max: 5,
            share_min: 0.5,
            ..rig.options()
        };
        let batch = LearnBatch {
            edges: (0..10).map(EdgeId).collect(),
            origins_unix_ms: vec![1; 10],
            ..LearnBatch::default()
        };
        let lag = Lag { waited: Duration::ZERO, behind };
        let Choice { mode, scored } = Choice::of(&batch, lag, &mut Share::default(), &options);
        (mode, scored.map(|places| places.len()))
    };
    for behind in [0, 6] {
        assert_eq!(choice(true, true, true, behind), (StepMode::Train, None));
        assert_eq!(choice(true, true, false, behind), (StepMode::StateOnly, None));
        assert_eq!(choice(true, false, false, behind), (StepMode::StateOnly, None));
    }
    assert_eq!(choice(false, true, false, 0), (StepMode::Train, None));
    assert_eq!(choice(false, true, false, 6), (StepMode::Train, Some(5)));
    assert_eq!(choice(false, false, false, 0), (StepMode::Score, None));
    assert_eq!(choice(false, false, false, 6), (StepMode::StateOnly, None));
}

#[test]
fn a_batch_in_overload_is_learned_in_part_and_remembered_as_a_whole() {
    let run = |share_min: f64| {
        let mut rig = Rig::new();
        rig.append_edges(400, 100);
        let lag_events_max = if share_min < 1.0 { 0 } else { u64::MAX };
        let options = LearnerOptions { batch_events: 40, lag_events_max, share_min, ..rig.options() };
        // Weights that stay: memory depends on no choice otherwise.
        let trainer = Trainer::new(TrainerOptions { learning_rate: 0.0, ..trainer_options() }, &Device::Cpu);
        let mut learner = rig.learner_at(trainer.unwrap(), EdgeId(0), options);
        let mut batch = LearnBatch::default();
        for _ in 0..2 {
            learner.feed.fill(&mut batch, 40, IDLE, Duration::ZERO).unwrap();
            learner.learn(&batch).unwrap();
        }
        let status = rig.shared.status.report();
        let memory: Vec<Option<Vec<f32>>> = (0..20)
            .map(|node| learner.trainer.state().written_row(NodeId(node)).map(|(row, _)| row.to_vec()))
            .collect();
        (learner.at_hand.prepared.scored().to_vec(), (status.trained, status.skipped, status.applied), memory)
    };
    let (scored, counts, memory) = run(0.5);
    assert_eq!((scored.len(), counts), (20, (40, 40, 80)));
    assert!(scored.is_sorted_by(|a, b| a < b) && scored[0] < 20 && scored[19] >= 20, "{scored:?}");
    let (all, counts, whole) = run(1.0);
    assert_eq!((all.len(), counts), (40, (80, 0, 80)));
    assert!(memory.iter().flatten().count() > 5);
    let off =
        memory.iter().flatten().flatten().zip(whole.iter().flatten().flatten()).map(|(a, b)| (a - b).abs());
    assert!(off.fold(0.0, f32::max) < 1e-6, "{memory:?} and {whole:?}");
}
