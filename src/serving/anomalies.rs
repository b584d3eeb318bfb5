//! [`Anomalies`]: how unusual events are, by the model: those that it thought unlikely before it had seen them.
//!
//! The surprise of an event is `-ln p`, where `p` is the score of its pair at its time from before the event was
//! learned. What counts is not the surprise but its percentile: the share of earlier events of the same type, the
//! latest [`WINDOW`] of them, that surprised less; of those that surprised as much, a half. It needs no threshold that
//! depends on the model or on the stream. Negatives play no part in it.
//!
//! The learner judges each batch by the batches before it. The most unusual events of late are kept for requests.

use std::cmp::Ordering;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use crossbeam_channel::{Sender, TrySendError};
use parking_lot::Mutex;

use super::QueryEngine;
use crate::event::{EdgeId, EventTime, NodeId};

/// Events that a percentile is a share of, at most.
pub const WINDOW: usize = 4096;

/// With fewer, there are no percentiles yet.
pub const WINDOW_MIN: usize = 200;

/// What is kept, and who gets all.
#[derive(Clone, Debug, Default)]
pub struct AnomalyOptions {
    /// Events of this percentile or a higher one are kept, 0 to 1.
    pub percentile_min: f32,
    /// So many of the latest are.
    pub kept_max: usize,
    /// Gets every judged event, batch by batch; one that finds it full is left out.
    pub outlet: Option<Sender<Vec<Anomaly>>>,
}

/// How unusual events are.
#[derive(Default)]
pub struct Anomalies {
    options: AnomalyOptions,
    /// By type of edge, and of all.
    windows: Mutex<(HashMap<u16, Window>, Window)>,
    kept: Mutex<VecDeque<Anomaly>>,
}

/// An event that was judged.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Anomaly {
    /// Its log position.
    pub edge: EdgeId,
    /// Its nodes.
    pub src: NodeId,
    /// Its nodes.
    pub dst: NodeId,
    /// Its time.
    pub time: EventTime,
    /// Its type, by number.
    pub kind: u16,
    /// Score of the pair before the event was learned, 0 to 1.
    pub score: f32,
    /// Share of earlier events of its type that surprised less; `None` while there are too few.
    pub percentile: Option<f32>,
}

/// What became of a batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Judged {
    /// Events that have a percentile.
    pub events: usize,
    /// Of these, those that are kept.
    pub unusual: usize,
    /// Events that the outlet had no room for.
    pub left_out: usize,
}

/// The latest surprises, as they came and in order.
#[derive(Default)]
struct Window {
    latest: VecDeque<f32>,
    sorted: Vec<f32>,
}

/// `-ln p` of a probability.
#[must_use]
pub fn surprise(score: f32) -> f32 {
    -score.max(f32::MIN_POSITIVE).ln()
}

impl Window {
    fn percentile(&self, surprise: f32) -> Option<f32> {
        if self.sorted.len() < WINDOW_MIN || surprise.is_nan() {
            return None;
        }
        let below = self.sorted.partition_point(|other| *other < surprise);
        let through = self.sorted.partition_point(|other| *other <= surprise);
        #[allow(clippy::cast_precision_loss)] // a few thousand
        Some((below + through) as f32 / 2.0 / self.sorted.len() as f32)
    }

    fn push(&mut self, surprise: f32) {
        if surprise.is_nan() {
            return;
        }
        let order = |other: &f32| other.total_cmp(&surprise);
        if self.latest.len() == WINDOW
            && let Some(oldest) = self.latest.pop_front()
            && let Ok(place) = self.sorted.binary_search_by(|other| other.total_cmp(&oldest))
        {
            self.sorted.remove(place);
        }
        self.latest.push_back(surprise);
        let place = self.sorted.binary_search_by(order).unwrap_or_else(|place| place);
        self.sorted.insert(place, surprise);
    }
}

impl QueryEngine {
    /// The same, which keeps unusual events.
    #[must_use]
    pub fn with_anomalies(mut self, options: AnomalyOptions) -> Self {
        self.anomalies = Arc::new(Anomalies::new(options));
        self
    }
}

impl Anomalies {
    /// Nothing was judged yet.
    #[must_use]
    pub fn new(options: AnomalyOptions) -> Self {
        Self { options, ..Self::default() }
    }

    /// Events of this percentile or a higher one are kept.
    #[must_use]
    pub fn percentile_min(&self) -> f32 {
        self.options.percentile_min
    }

    /// Judges the events of a batch by those before it.
    pub fn judge(&self, mut events: Vec<Anomaly>) -> Judged {
        let mut judged = Judged::default();
        {
            let (by_type, all) = &mut *self.windows.lock();
            for event in &mut events {
                let window = by_type.entry(event.kind).or_default();
                event.percentile = window.percentile(surprise(event.score));
            }
            for event in &events {
                by_type.entry(event.kind).or_default().push(surprise(event.score));
                all.push(surprise(event.score));
            }
        }
        let is_unusual = |event: &&Anomaly| {
            event.percentile.is_some_and(|percentile| percentile >= self.options.percentile_min)
        };
        judged.events = events.iter().filter(|event| event.percentile.is_some()).count();
        {
            let mut kept = self.kept.lock();
            let before = kept.len();
            kept.extend(events.iter().filter(is_unusual));
            judged.unusual = kept.len() - before;
            let surplus = kept.len().saturating_sub(self.options.kept_max);
            kept.drain(..surplus);
        }
        if let Some(outlet) = &self.options.outlet {
            let count = events.len();
            match outlet.try_send(events) {
                Ok(()) => {}
                Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => judged.left_out = count,
            }
        }
        judged
    }

    /// The percentile of a score among the latest events of all types; `None` while there are too few.
    #[must_use]
    pub fn percentile(&self, score: f32) -> Option<f32> {
        self.windows.lock().1.percentile(surprise(score))
    }

    /// The latest of those that are kept and have this percentile or a higher one, the newest first.
    #[must_use]
    pub fn latest(&self, percentile_min: f32, most: usize) -> Vec<Anomaly> {
        let kept = self.kept.lock();
        let is_wanted = |event: &&Anomaly| {
            event.percentile.and_then(|found| found.partial_cmp(&percentile_min)) != Some(Ordering::Less)
        };
        kept.iter().rev().filter(is_wanted).take(most).copied().collect()
    }

    /// Forgets the events of deleted nodes.
    pub fn forget(&self, nodes: &[NodeId]) {
        if !nodes.is_empty() {
            self.kept.lock().retain(|event| !nodes.contains(&event.src) && !nodes.contains(&event.dst));
        }
    }

    /// Bytes held.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let (by_type, _) = &*self.windows.lock();
        (by_type.len() + 1) * WINDOW * 2 * size_of::<f32>()
            + self.kept.lock().capacity() * size_of::<Anomaly>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(edge: u64, kind: u16, score: f32) -> Anomaly {
        let (src, dst) = (NodeId(1), NodeId(2));
        Anomaly { edge: EdgeId(edge), src, dst, time: EventTime(9), kind, score, percentile: None }
    }

    fn options(outlet: Option<Sender<Vec<Anomaly>>>) -> AnomalyOptions {
        AnomalyOptions { percentile_min: 0.9, kept_max: 3, outlet }
    }

    #[test]
    fn an_event_is_judged_by_the_batches_before_it_and_by_events_of_its_type() {
        let anomalies = Anomalies::new(options(None));
        let batch =
            |kind, from: u64| (0..100).map(|i| event(from + i, kind, (i + 1) as f32 / 100.0)).collect();
        assert_eq!(anomalies.judge(batch(0, 0)), Judged::default(), "there is nothing to judge by");
        assert_eq!(anomalies.judge(batch(0, 100)).events, 0);
        // 200 scores, two of each hundredth: of 0.5 there are 100 lower surprises and two that are the same.
        let judged = anomalies.judge(vec![event(200, 0, 0.5), event(201, 1, 0.5), event(202, 0, 0.001)]);
        assert_eq!(judged, Judged { events: 2, unusual: 1, left_out: 0 });
        let [unusual] = &anomalies.latest(0.0, 9)[..] else { panic!("{:?}", anomalies.latest(0.0, 9)) };
        assert_eq!((unusual.edge, unusual.percentile), (EdgeId(202), Some(1.0)));
        let found = anomalies.percentile(0.5).unwrap();
        assert!((found - (100.0 + 1.0 + 0.0 + 1.0) / 203.0).abs() < 0.01, "{found}");
        assert_eq!(anomalies.percentile(f32::NAN), None);
    }

    #[test]
    fn a_window_holds_the_latest_and_the_list_the_latest_unusual_ones() {
        let anomalies = Anomalies::new(options(None));
        let all_alike = |from: u64| (0..WINDOW as u64).map(|i| event(from + i, 0, 0.25)).collect();
        anomalies.judge(all_alike(0));
        assert_eq!(anomalies.percentile(0.25), Some(0.5), "all of them surprise as much");
        let likely = (0..WINDOW as u64).map(|i| event(i, 0, 0.75)).collect();
        assert_eq!(anomalies.judge(likely).unusual, 0);
        assert_eq!(anomalies.percentile(0.75), Some(0.5), "the others have left");
        assert_eq!(anomalies.windows.lock().1.latest.len(), WINDOW);
        for i in 0..5 {
            anomalies.judge(vec![event(i, 0, 0.1)]);
        }
        let edges = |found: Vec<Anomaly>| found.iter().map(|event| event.edge.0).collect::<Vec<_>>();
        assert_eq!(edges(anomalies.latest(0.0, 9)), [4, 3, 2]);
        assert_eq!(edges(anomalies.latest(0.9, 2)), [4, 3]);
        anomalies.forget(&[NodeId(7)]);
        assert_eq!(anomalies.latest(0.0, 9).len(), 3);
        anomalies.forget(&[NodeId(2)]);
        assert_eq!(anomalies.latest(0.0, 9), []);
    }

    #[test]
    fn what_the_outlet_has_no_room_for_is_counted() {
        let (sender, receiver) = crossbeam_channel::bounded(1);
        let anomalies = Anomalies::new(options(Some(sender)));
        assert_eq!(anomalies.judge(vec![event(0, 0, 0.5)]).left_out, 0);
        assert_eq!(anomalies.judge(vec![event(1, 0, 0.5), event(2, 0, 0.5)]).left_out, 2);
        assert_eq!(receiver.try_recv().unwrap().len(), 1);
    }
}
