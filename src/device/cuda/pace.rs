//! [`Pace`]: whether a step is launched as a graph or kernel by kernel, whichever took less time lately.
//!
//! A graph saves the launches, but the GPU begins once all of the step is recorded. Kernel by kernel it begins at once.
//! Which counts for more follows from the model, the batch, the GPU and the host, and what is computed is the same. So
//! both are tried, in turns, and the faster one by the median serves the steps until the next trial.

use std::time::Instant;

/// Steps until the first trial: caches and buffers fill.
const WARM: u64 = 32;
/// Steps of a trial, every other one a graph.
const TRIAL: u64 = 24;
/// Steps from a trial to the next.
const PERIOD: u64 = 2048;

/// How a step is launched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Launching {
    /// The way that took less time lately.
    #[default]
    Auto,
    /// As a graph.
    Graph,
    /// Kernel by kernel.
    Direct,
}

/// What is known of both ways.
#[derive(Debug, Default)]
pub(super) struct Pace {
    how: Launching,
    /// Steps that began, and when the last did, if it is not over.
    begun: u64,
    since: Option<Instant>,
    /// Seconds of the steps of this trial: as graphs, and kernel by kernel.
    tried: [Vec<f64>; 2],
    /// What the last trial found.
    direct: bool,
}

impl Pace {
    /// Of steps that are launched in this way.
    pub fn of(how: Launching) -> Self {
        Self { how, ..Self::default() }
    }

    /// Whether the step that begins now is launched kernel by kernel.
    pub fn begins(&mut self, now: Instant) -> bool {
        let step = self.begun;
        self.begun += 1;
        self.since = Some(now);
        if Self::trial(step) == Some(0) {
            // Of a trial whose last step failed.
            self.tried = Default::default();
        }
        match self.how {
            Launching::Graph => false,
            Launching::Direct => true,
            Launching::Auto => Self::trial(step).map_or(self.direct, |turn| turn % 2 == 1),
        }
    }

    /// The results of the step that began last are there now.
    pub fn is_over(&mut self, now: Instant) {
        let (Some(since), Some(turn)) = (self.since.take(), self.begun.checked_sub(1).and_then(Self::trial))
        else {
            return;
        };
        self.tried[(turn % 2) as usize].push((now - since).as_secs_f64());
        if turn == TRIAL - 1 {
            let [graph, direct] = &mut self.tried;
            if let (Some(graph), Some(direct)) = (median(graph), median(direct)) {
                self.direct = direct < graph;
            }
            self.tried = Default::default();
        }
    }

    /// The step that began last failed: its time says nothing.
    pub fn failed(&mut self) {
        self.since = None;
    }

    /// Which step of a trial this one is, if one is under way.
    fn trial(step: u64) -> Option<u64> {
        Some(step.checked_sub(WARM)? % PERIOD).filter(|turn| *turn < TRIAL)
    }
}

fn median(seconds: &mut [f64]) -> Option<f64> {
    seconds.sort_unstable_by(f64::total_cmp);
    seconds.get(seconds.len() / 2).copied()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// How many of the next steps are launched directly, if those take so many seconds and graphs take one.
    fn direct_of(pace: &mut Pace, steps: u64, direct_seconds: f64) -> usize {
        let mut step = |_| {
            let now = Instant::now();
            let direct = pace.begins(now);
            pace.is_over(now + Duration::from_secs_f64(if direct { direct_seconds } else { 1.0 }));
            direct
        };
        (0..steps).map(&mut step).filter(|direct| *direct).count()
    }

    #[test]
    fn the_faster_way_serves_until_the_other_one_is() {
        let mut pace = Pace::default();
        assert_eq!(direct_of(&mut pace, WARM, 0.5), 0, "graphs come first");
        assert_eq!(direct_of(&mut pace, TRIAL, 0.5), TRIAL as usize / 2);
        assert_eq!(
            direct_of(&mut pace, PERIOD - TRIAL, 3.0),
            (PERIOD - TRIAL) as usize,
            "until the next trial"
        );
        assert_eq!(direct_of(&mut pace, TRIAL, 3.0), TRIAL as usize / 2);
        assert_eq!(direct_of(&mut pace, PERIOD - TRIAL, 3.0), 0);
    }

    #[test]
    fn a_few_slow_steps_decide_nothing() {
        let mut pace = Pace::default();
        direct_of(&mut pace, WARM, 0.5);
        let now = Instant::now();
        for turn in 0..TRIAL {
            let direct = pace.begins(now);
            let seconds = if turn < 6 { 100 } else { 2 - u64::from(direct) };
            pace.is_over(now + Duration::from_secs(seconds));
        }
        assert!(pace.begins(now));
    }

    #[test]
    fn what_was_asked_for_is_not_tried() {
        for (how, direct) in [(Launching::Graph, 0), (Launching::Direct, 3_000)] {
            assert_eq!(direct_of(&mut Pace::of(how), 3_000, 0.5), direct, "{how:?}");
        }
    }

    #[test]
    fn steps_without_a_time_leave_it_as_it_was() {
        let mut pace = Pace::default();
        let now = Instant::now();
        assert_eq!((0..WARM + TRIAL).filter(|_| pace.begins(now)).count(), TRIAL as usize / 2);
        pace.is_over(now);
        pace.is_over(now);
        assert!(!pace.begins(now));
        pace.failed();
        direct_of(&mut pace, PERIOD - TRIAL - 1, 0.5);
        assert_eq!(direct_of(&mut pace, TRIAL, 0.5), TRIAL as usize / 2);
        assert!(pace.begins(now), "times of the trial before are gone");
    }
}
