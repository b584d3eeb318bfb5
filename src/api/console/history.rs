//! Figures over time, in bounded memory: the curves that a page shows when it opens.
//!
//! There are at most [`POINTS_MAX`] points. When they are all taken, every second one goes and from then on one is kept
//! half as often. So the curves always cover the whole run, and what is missing are details of long ago. Counts are
//! kept as counts: their differences are exact rates over any interval.

use std::collections::VecDeque;

use serde::Serialize;

use super::super::status::{DecisionDocument, StatusDocument};

/// Most points.
const POINTS_MAX: usize = 720;

/// Most decisions of the gate.
const DECISIONS_MAX: usize = 50;

/// The figures so far, column by column, which is how they are drawn.
#[derive(Debug, Serialize)]
pub(super) struct History {
    /// Every so many ticks are kept.
    stride: u64,
    #[serde(skip)]
    ticks: u64,
    points_max: usize,
    /// Milliseconds since the Unix epoch.
    at_unix_ms: Vec<i64>,
    stored_events: Vec<u64>,
    learned_events: Vec<u64>,
    lag_events: Vec<u64>,
    freshness_p50_seconds: Vec<Option<f64>>,
    freshness_p99_seconds: Vec<Option<f64>>,
    average_precision: Vec<Option<f64>>,
    edgebank_average_precision: Vec<Option<f64>>,
    /// The latest decisions of the gate that were seen at a tick, oldest first.
    decisions: VecDeque<DecisionDocument>,
}

impl History {
    pub(super) fn new() -> Self {
        Self {
            stride: 1,
            ticks: 0,
            points_max: POINTS_MAX,
            at_unix_ms: Vec::new(),
            stored_events: Vec::new(),
            learned_events: Vec::new(),
            lag_events: Vec::new(),
            freshness_p50_seconds: Vec::new(),
            freshness_p99_seconds: Vec::new(),
            average_precision: Vec::new(),
            edgebank_average_precision: Vec::new(),
            decisions: VecDeque::new(),
        }
    }

    /// Takes the figures of one tick.
    pub(super) fn record(&mut self, at_unix_ms: i64, status: &StatusDocument) {
        let learner = &status.learner;
        self.note(learner.gate.as_ref().and_then(|gate| gate.last.as_ref()));
        let is_due = self.ticks.is_multiple_of(self.stride);
        self.ticks += 1;
        if !is_due {
            return;
        }
        if self.at_unix_ms.len() == self.points_max {
            self.thin();
        }
        self.at_unix_ms.push(at_unix_ms);
        self.stored_events.push(status.log.durable_position);
        self.learned_events.push(learner.applied_position);
        self.lag_events.push(learner.lag_events);
        self.freshness_p50_seconds.push(learner.end_to_end_freshness_p50_seconds);
        self.freshness_p99_seconds.push(learner.end_to_end_freshness_p99_seconds);
        self.average_precision.push(learner.average_precision);
        self.edgebank_average_precision.push(learner.edgebank_average_precision);
    }

    fn note(&mut self, last: Option<&DecisionDocument>) {
        let Some(last) = last else { return };
        if self.decisions.back().is_some_and(|known| is_same(known, last)) {
            return;
        }
        if self.decisions.len() == DECISIONS_MAX {
            self.decisions.pop_front();
        }
        self.decisions.push_back(last.clone());
    }

    fn thin(&mut self) {
        fn halve<T>(column: &mut Vec<T>) {
            let mut number = 0_usize;
            column.retain(|_| {
                number += 1;
                !number.is_multiple_of(2)
            });
        }
        self.stride *= 2;
        halve(&mut self.at_unix_ms);
        halve(&mut self.stored_events);
        halve(&mut self.learned_events);
        halve(&mut self.lag_events);
        halve(&mut self.freshness_p50_seconds);
        halve(&mut self.freshness_p99_seconds);
        halve(&mut self.average_precision);
        halve(&mut self.edgebank_average_precision);
    }
}

/// A roll-back can have the position of the promotion that it undoes.
fn is_same(one: &DecisionDocument, other: &DecisionDocument) -> bool {
    let facts =
        |decision: &DecisionDocument| (decision.position, decision.verdict, decision.candidate_version);
    facts(one) == facts(other)
}

#[cfg(test)]
mod tests {
    use super::super::super::status::{GateDocument, LogStatus};
    use super::*;

    fn at(tick: i64) -> StatusDocument {
        let log = LogStatus { durable_position: tick.unsigned_abs() * 10, ..LogStatus::default() };
        StatusDocument { log, ..StatusDocument::default() }
    }

    #[test]
    fn points_are_bounded_evenly_spaced_and_reach_from_the_begin_to_now() {
        let mut history = History::new();
        for tick in 0..10_000 {
            history.record(tick, &at(tick));
            assert!(history.at_unix_ms.len() <= POINTS_MAX);
        }
        assert_eq!(history.stride, 16);
        assert_eq!(history.at_unix_ms[0], 0);
        assert!(
            history.at_unix_ms.windows(2).all(|pair| pair[1] - pair[0] == 16),
            "{:?}",
            history.at_unix_ms
        );
        assert!(history.at_unix_ms.last() > Some(&9_980));
        let exact = |(at, stored): (&i64, &u64)| *stored == at.unsigned_abs() * 10;
        assert!(history.at_unix_ms.iter().zip(&history.stored_events).all(exact));
        assert_eq!(history.average_precision.len(), history.at_unix_ms.len());
    }

    #[test]
    fn a_decision_is_kept_once_and_the_latest_are() {
        let mut history = History::new();
        for position in (0..60).flat_map(|position| [position, position]) {
            history.record(0, &after(decision(position)));
        }
        let kept: Vec<u64> = history.decisions.iter().map(|decision| decision.position).collect();
        assert_eq!(kept, (10..60).collect::<Vec<_>>());
    }

    #[test]
    fn decisions_at_one_position_are_told_apart_by_verdict_and_version() {
        let mut history = History::new();
        let promoted = DecisionDocument { verdict: "promoted", ..decision(7) };
        let rolled_back = DecisionDocument { verdict: "rolled_back", ..decision(7) };
        let next = DecisionDocument { candidate_version: 3, ..rolled_back.clone() };
        for last in [&promoted, &promoted, &rolled_back, &rolled_back, &next] {
            history.record(0, &after(last.clone()));
        }
        let kept: Vec<_> =
            history.decisions.iter().map(|kept| (kept.verdict, kept.candidate_version)).collect();
        assert_eq!(kept, [("promoted", 2), ("rolled_back", 2), ("rolled_back", 3)]);
    }

    fn after(last: DecisionDocument) -> StatusDocument {
        let mut status = at(1);
        status.learner.gate = Some(GateDocument {
            promoted: 0,
            held: 0,
            rolled_back: 0,
            previous_version: None,
            anchor_version: None,
            last: Some(last),
        });
        status
    }

    fn decision(position: u64) -> DecisionDocument {
        DecisionDocument {
            verdict: "held",
            position,
            candidate_version: 2,
            published_version: Some(1),
            anchor_version: None,
            candidate_average_precision: 0.5,
            published_average_precision: Some(0.5),
            anchor_average_precision: None,
            edgebank_average_precision: 0.5,
            candidate_log_loss: 0.5,
            published_log_loss: None,
            anchor_log_loss: None,
        }
    }
}
