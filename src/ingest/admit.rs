//! What every source asks of an event before it is stored: feature rows of the stream's length, and an
//! event time that is neither too late nor too far ahead.
//!
//! Lateness is measured against the stream's high water, the latest event time of what is *durable*.
//! A source judges through an [`AdmitCursor`] of its own, which also sees the batch it is building and
//! publishes it with [`AdmitCursor::commit`] once the batch is durable. So a batch that the log refused
//! is judged again as it was the first time, and so is one that is read again after a restart.
//!
//! Only edges have lateness and raise the high water: node features are often loaded from tables with
//! arbitrary times, and deletions name a time to delete up to.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use super::decode::TIME_LIMIT;
use super::rejection::{Reason, Rejection};
use crate::event::{Event, EventTime};

/// What happens to an edge that is later than the allowed lateness.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LatePolicy {
    /// It is stored, in time order, and counted.
    #[default]
    Accept,
    /// It is counted and not stored.
    Drop,
    /// It becomes a dead letter.
    DeadLetter,
}

/// What the stream asks of its events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AdmitOptions {
    /// Length of edge feature rows; 0 means that edges carry none.
    pub edge_feature_dim: usize,
    /// Length of node feature rows; 0 means that nodes carry none.
    pub node_feature_dim: usize,
    /// An edge is late when its time is below the high water by more than this, in the stream's unit;
    /// `None` means that no edge is late.
    pub allowed_lateness: Option<i64>,
    /// What happens to late edges.
    pub late: LatePolicy,
    /// An edge is refused when its time is above the high water by more than this, in the stream's unit:
    /// one wild timestamp would make everything after it late. The first edge is always admitted.
    pub future_limit: Option<i64>,
}

/// The stream's rules and its high water, shared by all sources.
#[derive(Debug)]
pub struct Admission {
    options: AdmitOptions,
    /// `i64::MIN` before the first edge.
    high_water: AtomicI64,
}

impl Admission {
    /// Rules for a stream whose latest stored event time is `high_water`.
    #[must_use]
    pub fn new(options: AdmitOptions, high_water: Option<EventTime>) -> Arc<Self> {
        Arc::new(Self { options, high_water: AtomicI64::new(high_water.unwrap_or(EventTime::MIN).0) })
    }

    /// The latest event time among durable edges that came through here or were there at the start.
    #[must_use]
    pub fn high_water(&self) -> Option<EventTime> {
        let time = EventTime(self.high_water.load(Ordering::Relaxed));
        (time != EventTime::MIN).then_some(time)
    }

    /// A cursor to judge the events of one source (or one partition) with.
    #[must_use]
    pub fn cursor(self: &Arc<Self>) -> AdmitCursor {
        AdmitCursor { admission: Arc::clone(self), ahead: EventTime::MIN, sealed: EventTime::MIN }
    }
}

/// Whether an event is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is.
    Accept,
    /// It is, although it is late.
    AcceptLate,
    /// It is not, and is only counted.
    Drop(Rejection),
    /// It is not, and becomes a dead letter.
    Refuse(Rejection),
}

/// Judges events in the order of one source.
#[derive(Debug)]
pub struct AdmitCursor {
    admission: Arc<Admission>,
    /// Latest time accepted, durable or not.
    ahead: EventTime,
    /// The same up to the end of the batch that was handed in last.
    sealed: EventTime,
}

impl AdmitCursor {
    /// Judges the next event.
    pub fn judge(&mut self, event: &Event) -> Verdict {
        let options = self.admission.options;
        match event {
            Event::Edge(edge) => {
                match check_dimension("edge", edge.features.len(), options.edge_feature_dim) {
                    Ok(()) => self.judge_time(edge.time),
                    Err(rejection) => Verdict::Refuse(rejection),
                }
            }
            Event::Node { features, .. } => {
                match check_dimension("node", features.len(), options.node_feature_dim) {
                    Ok(()) => Verdict::Accept,
                    Err(rejection) => Verdict::Refuse(rejection),
                }
            }
            Event::DeleteEdge { .. } | Event::DeleteNode { .. } => Verdict::Accept,
        }
    }

    /// What was judged so far is a batch that is being handed in.
    pub fn seal(&mut self) {
        self.sealed = self.ahead;
    }

    /// What was judged up to the last [`seal`](Self::seal) is durable.
    pub fn commit(&mut self) {
        self.admission.high_water.fetch_max(self.sealed.0, Ordering::Relaxed);
    }

    /// What was judged since the last [`commit`](Self::commit) will be judged again.
    pub fn rewind(&mut self) {
        self.ahead = EventTime::MIN;
        self.sealed = EventTime::MIN;
    }

    fn judge_time(&mut self, time: EventTime) -> Verdict {
        if !(-TIME_LIMIT..=TIME_LIMIT).contains(&time.0) {
            let detail = format!("time {time} does not lie within ±2^62");
            return Verdict::Refuse(Rejection::new(Reason::BadTime, detail));
        }
        let options = self.admission.options;
        let high = self.ahead.max(EventTime(self.admission.high_water.load(Ordering::Relaxed)));
        if high == EventTime::MIN {
            self.ahead = time;
            return Verdict::Accept;
        }
        if let Some(limit) = options.future_limit
            && time.0 > high.0.saturating_add(limit)
        {
            let detail = format!("time {time} is more than {limit} after the latest event time {high}");
            return Verdict::Refuse(Rejection::new(Reason::TooFarAhead, detail));
        }
        self.ahead = high.max(time);
        match options.allowed_lateness {
            Some(allowed) if time.0 < high.0.saturating_sub(allowed) => {
                let detail =
                    format!("time {time} is more than {allowed} before the latest event time {high}");
                let rejection = Rejection::new(Reason::TooLate, detail);
                match options.late {
                    LatePolicy::Accept => Verdict::AcceptLate,
                    LatePolicy::Drop => Verdict::Drop(rejection),
                    LatePolicy::DeadLetter => Verdict::Refuse(rejection),
                }
            }
            _ => Verdict::Accept,
        }
    }
}

fn check_dimension(what: &str, found: usize, expected: usize) -> Result<(), Rejection> {
    if found == 0 || found == expected {
        return Ok(());
    }
    let detail = format!(
        "the {what} has {found} features, the stream's {what} feature dimension is {expected}; \
         send {expected} or none, or set the dimension to {found}"
    );
    Err(Rejection::new(Reason::FeatureDimension, detail))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{EdgeEvent, NodeKey};

    fn edge(time: i64, features: usize) -> Event {
        Event::Edge(EdgeEvent {
            src: NodeKey::Int(1),
            dst: NodeKey::Int(2),
            time: EventTime(time),
            edge_type: None,
            features: vec![0.5; features],
            label: None,
        })
    }

    fn reason(verdict: &Verdict) -> Option<Reason> {
        match verdict {
            Verdict::Accept | Verdict::AcceptLate => None,
            Verdict::Drop(r) | Verdict::Refuse(r) => Some(r.reason),
        }
    }

    #[test]
    fn rows_have_the_streams_length_or_none() {
        let options = AdmitOptions { edge_feature_dim: 3, ..AdmitOptions::default() };
        let mut cursor = Admission::new(options, None).cursor();
        assert_eq!(cursor.judge(&edge(1, 0)), Verdict::Accept);
        assert_eq!(cursor.judge(&edge(1, 3)), Verdict::Accept);
        assert_eq!(reason(&cursor.judge(&edge(1, 2))), Some(Reason::FeatureDimension));
        let node = Event::Node { key: NodeKey::Int(1), time: EventTime(0), features: vec![1.0; 3] };
        assert_eq!(reason(&cursor.judge(&node)), Some(Reason::FeatureDimension));
    }

    #[test]
    fn lateness_counts_from_what_is_durable_or_in_the_same_batch() {
        let options = AdmitOptions {
            allowed_lateness: Some(10),
            late: LatePolicy::DeadLetter,
            ..AdmitOptions::default()
        };
        let admission = Admission::new(options, Some(EventTime(100)));
        let mut cursor = admission.cursor();
        assert_eq!(cursor.judge(&edge(90, 0)), Verdict::Accept, "exactly the allowed lateness");
        assert_eq!(reason(&cursor.judge(&edge(89, 0))), Some(Reason::TooLate));
        assert_eq!(cursor.judge(&edge(200, 0)), Verdict::Accept);
        assert_eq!(reason(&cursor.judge(&edge(189, 0))), Some(Reason::TooLate), "its own batch counts");
        assert_eq!(
            admission.cursor().judge(&edge(95, 0)),
            Verdict::Accept,
            "not durable, not seen by others"
        );
        cursor.rewind();
        assert_eq!(cursor.judge(&edge(95, 0)), Verdict::Accept, "judged again as the first time");
        assert_eq!(cursor.judge(&edge(200, 0)), Verdict::Accept);
        cursor.seal();
        assert_eq!(cursor.judge(&edge(300, 0)), Verdict::Accept, "of the next batch");
        cursor.commit();
        assert_eq!(admission.high_water(), Some(EventTime(200)));
        assert_eq!(reason(&admission.cursor().judge(&edge(95, 0))), Some(Reason::TooLate));
    }

    #[test]
    fn policies_and_extremes() {
        for (late, expected) in [(LatePolicy::Accept, None), (LatePolicy::Drop, Some(Reason::TooLate))] {
            let options = AdmitOptions { allowed_lateness: Some(0), late, ..AdmitOptions::default() };
            let mut cursor = Admission::new(options, Some(EventTime(5))).cursor();
            assert_eq!(reason(&cursor.judge(&edge(4, 0))), expected);
        }
        let options = AdmitOptions {
            allowed_lateness: Some(i64::MAX),
            future_limit: Some(100),
            ..AdmitOptions::default()
        };
        let admission = Admission::new(options, None);
        let mut cursor = admission.cursor();
        assert_eq!(cursor.judge(&edge(50, 0)), Verdict::Accept, "the first edge sets the clock");
        assert_eq!(reason(&cursor.judge(&edge(151, 0))), Some(Reason::TooFarAhead));
        assert_eq!(cursor.judge(&edge(150, 0)), Verdict::Accept);
        assert_eq!(cursor.judge(&edge(-(1 << 62), 0)), Verdict::Accept, "no overflow");
        let delete = Event::DeleteNode { key: NodeKey::Int(1) };
        assert_eq!(cursor.judge(&delete), Verdict::Accept);
    }
}
