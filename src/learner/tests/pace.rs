//! What share of the batches gets a gradient step.

use std::time::Duration;

use super::super::LearnerOptions;
use super::super::pace::{Lag, Pace, share};
use super::Rig;

/// A stream of so many batches a second on a machine that takes so many milliseconds to train on one, and to
/// remember one. Returns the share that was trained on in the second half, and the longest wait there, milliseconds.
fn run(batches: usize, per_second: f64, [train, remember]: [f64; 2], options: &LearnerOptions) -> (f64, f64) {
    let (mut pace, mut now, mut trained, mut longest) = (Pace::default(), 0.0_f64, 0, 0.0_f64);
    for number in 0..batches {
        let arrival = number as f64 * 1_000.0 / per_second;
        now = now.max(arrival);
        let behind = ((now - arrival) * per_second / 1_000.0) as u64 * options.batch_events as u64;
        let lag = Lag { waited: Duration::from_secs_f64((now - arrival) / 1_000.0), behind };
        let trains = pace.next(lag, options);
        if number >= batches / 2 {
            trained += usize::from(trains);
            longest = longest.max(now - arrival);
        }
        now += if trains { train } else { remember };
    }
    (trained as f64 / (batches - batches / 2) as f64, longest)
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
