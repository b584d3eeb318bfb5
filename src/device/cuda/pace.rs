//! [`Pace`]: whether a step is launched as a graph, as one that is recorded ahead, or kernel by kernel, whichever took
//! less time lately.
//!
//! A graph saves the launches, but the GPU begins once all of the step is recorded. Recorded while the step before is
//! computed it takes memory of its own, and is done in vain where that step went wrong. Kernel by kernel the GPU begins
//! at once. Which counts for more follows from the model, the batch, the GPU and the host, and what is computed is the
//! same. So all are tried, in turns, and the fastest by the median serves the steps until the next trial.

use std::time::Instant;

/// Steps until the first trial: caches and buffers fill.
const WARM: u64 = 32;
/// Steps of a trial in one way until the next one's turn: the first and the last of them are beside another way's.
const TURN: u64 = 4;
/// Turns of each way.
const TURNS: u64 = 4;
const TRIAL: u64 = TURN * TURNS * WAYS.len() as u64;
/// Steps from a trial to the next.
const PERIOD: u64 = 2048;

/// How a step is launched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Launching {
    /// The way that took less time lately.
    #[default]
    Auto,
    /// As a graph that is recorded while the step before is computed, where the next batch is known by then; else as a
    /// graph.
    Ahead,
    /// As a graph.
    Graph,
    /// Kernel by kernel.
    Direct,
}

/// A way in which one step is launched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Way {
    #[default]
    Ahead,
    Graph,
    Direct,
}

const WAYS: [Way; 3] = [Way::Ahead, Way::Graph, Way::Direct];

/// What is known of the ways.
#[derive(Debug, Default)]
pub(super) struct Pace {
    how: Launching,
    /// Steps that began, and when the last did, if it is not over.
    begun: u64,
    since: Option<Instant>,
    /// When the work for the next one did, and how the last one was launched.
    started: Option<Instant>,
    way: Way,
    /// Seconds of the steps of this trial, by way.
    tried: [Vec<f64>; WAYS.len()],
    /// What the last trial found.
    best: Way,
    /// No step before this one is recorded ahead: one could not be.
    barred: u64,
}

impl Pace {
    /// Of steps that are launched in this way.
    pub fn of(how: Launching) -> Self {
        Self { how, ..Self::default() }
    }

    /// How the step that begins now is launched.
    pub fn begins(&mut self, now: Instant) -> Way {
        let way = self.next();
        if Self::trial(self.begun) == Some(0) {
            // Of a trial whose last step failed.
            self.tried = Default::default();
        }
        self.begun += 1;
        self.since = Some(self.started.take().unwrap_or(now));
        self.way = way;
        way
    }

    /// What comes before a step begins counts as its time from now on, if it does not already.
    pub fn starts(&mut self, now: Instant) {
        self.started.get_or_insert(now);
    }

    /// Whether some steps are recorded ahead, or may be.
    pub fn tries_ahead(&self) -> bool {
        matches!(self.how, Launching::Auto | Launching::Ahead)
    }

    /// A step could not be recorded ahead: for a while none is.
    pub fn bars_ahead(&mut self) {
        self.barred = self.begun + PERIOD;
    }

    /// How the step that begins next will be launched.
    pub fn next(&self) -> Way {
        let way = match self.how {
            Launching::Ahead => Way::Ahead,
            Launching::Graph => Way::Graph,
            Launching::Direct => Way::Direct,
            Launching::Auto => Self::trial(self.begun).map_or(self.best, |step| WAYS[Self::turn(step)]),
        };
        if way == Way::Ahead && self.begun < self.barred { Way::Graph } else { way }
    }

    /// The results of the step that began last are there now.
    pub fn is_over(&mut self, now: Instant) {
        let (Some(since), Some(step)) = (self.since.take(), self.begun.checked_sub(1).and_then(Self::trial))
        else {
            return;
        };
        let place = WAYS.iter().position(|way| *way == self.way).unwrap_or_default();
        self.tried[place].push((now - since).as_secs_f64());
        if step == TRIAL - 1 {
            let tried = std::mem::take(&mut self.tried).map(median);
            let known = WAYS.into_iter().zip(tried).filter_map(|(way, seconds)| Some((way, seconds?)));
            let known: Vec<_> = known.collect();
            // One alone was not compared.
            let best = known.iter().filter(|_| known.len() > 1).min_by(|a, b| a.1.total_cmp(&b.1));
            self.best = best.map_or(self.best, |(way, _)| *way);
        }
    }

    /// The step that began last failed: its time says nothing.
    pub fn failed(&mut self) {
        (self.since, self.started) = (None, None);
    }

    /// Which step of a trial this one is, if one is under way.
    fn trial(step: u64) -> Option<u64> {
        Some(step.checked_sub(WARM)? % PERIOD).filter(|step| *step < TRIAL)
    }

    /// The place among [`WAYS`] of the one whose turn it is at a step of a trial.
    fn turn(step: u64) -> usize {
        (step / TURN) as usize % WAYS.len()
    }
}

fn median(mut seconds: Vec<f64>) -> Option<f64> {
    seconds.sort_unstable_by(f64::total_cmp);
    seconds.get(seconds.len() / 2).copied()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const OF_EACH: usize = (TRIAL / 3) as usize;
    const BETWEEN: u64 = PERIOD - TRIAL;

    /// How many of the next steps are launched in each way, if they take so many seconds.
    fn taken(pace: &mut Pace, steps: u64, seconds: [f64; 3]) -> [usize; 3] {
        let mut taken = [0; 3];
        for _ in 0..steps {
            let (now, expected) = (Instant::now(), pace.next());
            let way = pace.begins(now);
            assert_eq!(way, expected);
            let place = WAYS.iter().position(|each| *each == way).unwrap();
            taken[place] += 1;
            pace.is_over(now + Duration::from_secs_f64(seconds[place]));
        }
        taken
    }

    #[test]
    fn the_fastest_way_serves_until_another_one_is() {
        let mut pace = Pace::default();
        assert_eq!(taken(&mut pace, WARM, [1.0, 2.0, 0.5]), [WARM as usize, 0, 0], "that comes first");
        assert_eq!(taken(&mut pace, TRIAL, [1.0, 2.0, 0.5]), [OF_EACH; 3]);
        assert_eq!(
            taken(&mut pace, BETWEEN, [1.0, 2.0, 3.0]),
            [0, 0, BETWEEN as usize],
            "until the next trial"
        );
        assert_eq!(taken(&mut pace, TRIAL, [1.0, 0.9, 3.0]), [OF_EACH; 3]);
        assert_eq!(taken(&mut pace, BETWEEN, [1.0, 2.0, 3.0]), [0, BETWEEN as usize, 0]);
        taken(&mut pace, TRIAL, [1.0, 2.0, 3.0]);
        assert_eq!(taken(&mut pace, BETWEEN, [1.0, 2.0, 3.0]), [BETWEEN as usize, 0, 0]);
    }

    #[test]
    fn a_few_slow_steps_decide_nothing() {
        let mut pace = Pace::default();
        taken(&mut pace, WARM, [1.0; 3]);
        let now = Instant::now();
        for step in 0..TRIAL {
            let direct = pace.begins(now) == Way::Direct;
            let seconds = if step % 7 == 0 { 100 } else { 2 - u64::from(direct) };
            pace.is_over(now + Duration::from_secs(seconds));
        }
        assert_eq!(pace.begins(now), Way::Direct);
    }

    #[test]
    fn what_comes_before_a_step_counts_if_that_is_said() {
        let mut pace = Pace::default();
        taken(&mut pace, WARM, [1.0; 3]);
        let begun = Instant::now();
        for _ in 0..TRIAL {
            let graph = pace.next() == Way::Graph;
            pace.starts(begun);
            // It is under way already.
            pace.starts(begun + Duration::from_secs(if graph { 0 } else { 8 }));
            // From the start on graphs are over first, and from the begin on last.
            let now = begun + Duration::from_secs(if graph { 1 } else { 9 });
            pace.begins(now);
            pace.is_over(now + Duration::from_secs(if graph { 2 } else { 1 }));
        }
        assert_eq!(pace.next(), Way::Graph);
    }

    #[test]
    fn a_way_that_fails_is_left_for_a_while() {
        let mut pace = Pace::of(Launching::Ahead);
        pace.bars_ahead();
        assert_eq!(taken(&mut pace, PERIOD + 5, [1.0; 3]), [5, PERIOD as usize, 0]);
    }

    #[test]
    fn what_was_asked_for_is_not_tried() {
        let ways = [Launching::Ahead, Launching::Graph, Launching::Direct];
        for (place, how) in ways.into_iter().enumerate() {
            let mut expected = [0; 3];
            expected[place] = 3_000;
            assert_eq!(taken(&mut Pace::of(how), 3_000, [0.5; 3]), expected, "{how:?}");
        }
    }

    #[test]
    fn steps_without_a_time_leave_it_as_it_was() {
        let mut pace = Pace::default();
        let now = Instant::now();
        let direct = (0..WARM + TRIAL).filter(|_| pace.begins(now) == Way::Direct).count();
        assert_eq!(direct, OF_EACH);
        pace.is_over(now);
        pace.is_over(now);
        assert_eq!(pace.begins(now), Way::Ahead);
        pace.starts(now + Duration::from_secs(3600));
        pace.failed();
        assert!(pace.started.is_none(), "what the step that failed began");
        taken(&mut pace, BETWEEN - 1, [1.0, 1.0, 0.5]);
        assert_eq!(taken(&mut pace, TRIAL, [1.0, 1.0, 0.5]), [OF_EACH; 3]);
        assert_eq!(pace.begins(now), Way::Direct, "times of the trial before are gone");
    }
}
