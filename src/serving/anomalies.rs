//! [`Anomalies`]: how unusual events are, by the model: those that it thought unlikely before it had seen them.
//!
//! The surprise of an event is `-ln p`, where `p` is the score of its pair at its time from before the event was
//! learned. What counts is not the surprise but its percentile: the share of earlier events of the same type, the
//! latest [`WINDOW`] of them, that surprised less; of those that surprised as much, a half. It needs no threshold that
//! depends on the model or on the stream. Negatives play no part in it.
//!
//! The learner judges each batch by the batches before it. The most unusual events of late are kept for requests.

use std::cmp::Ordering;
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

use arc_swap::ArcSwap;
use crossbeam_channel::{Sender, TrySendError};
use parking_lot::Mutex;

use super::QueryEngine;
use crate::event::{EdgeId, EventTime, NodeId};

/// Events that a percentile is a share of, at most.
pub const WINDOW: usize = 4096;

/// Types of edges that have a window of their own; events of further types are judged among all.
const TYPES_MAX: usize = 256;

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
    /// By type of edge, and of all. Only the learner judges.
    windows: Mutex<(HashMap<u16, Window>, Window)>,
    /// The surprises of the window of all, in order, for requests.
    published: ArcSwap<Vec<f32>>,
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
    // Of what is not a number, not a number.
    if score < f32::MIN_POSITIVE { -f32::MIN_POSITIVE.ln() } else { -score.ln() }
}

/// The share of `sorted` surprises that are less than this one, and half of those that are the same; `None` where there
/// are too few.
#[must_use]
pub fn percentile(sorted: &[f32], surprise: f32) -> Option<f32> {
    if sorted.len() < WINDOW_MIN || surprise.is_nan() {
        return None;
    }
    let below = sorted.partition_point(|other| *other < surprise);
    let through = sorted.partition_point(|other| *other <= surprise);
    #[allow(clippy::cast_precision_loss)] // a few thousand
    Some((below + through) as f32 / 2.0 / sorted.len() as f32)
}

impl Window {
    /// Takes in a batch of surprises; as many of the oldest go as there are too many. One pass over the window.
    fn extend(&mut self, mut batch: Vec<f32>) {
        self.latest.extend(&batch);
        let surplus = self.latest.len().saturating_sub(WINDOW);
        let mut gone: Vec<f32> = self.latest.drain(..surplus).collect();
        gone.sort_unstable_by(f32::total_cmp);
        batch.sort_unstable_by(f32::total_cmp);
        let (old, mut gone, mut new) =
            (std::mem::take(&mut self.sorted), gone.into_iter().peekable(), batch.into_iter().peekable());
        self.sorted.reserve_exact(self.latest.len());
        // What goes may be of the batch itself.
        let mut old = old.into_iter().peekable();
        loop {
            let is_new = match (old.peek(), new.peek()) {
                (Some(a), Some(b)) => b.total_cmp(a) == Ordering::Less,
                (None, Some(_)) => true,
                (Some(_), None) => false,
                (None, None) => break,
            };
            let Some(value) = (if is_new { new.next() } else { old.next() }) else { break };
            if gone.next_if(|gone| gone.total_cmp(&value) == Ordering::Equal).is_none() {
                self.sorted.push(value);
            }
        }
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

    /// Judges the events of a batch by those before it. Those whose scores are not numbers are left out.
    pub fn judge(&self, mut events: Vec<Anomaly>) -> Judged {
        events.retain(|event| event.score.is_finite());
        if events.is_empty() {
            return Judged::default();
        }
        self.rank(&mut events);
        let is_unusual = |event: &&Anomaly| {
            event.percentile.is_some_and(|percentile| percentile >= self.options.percentile_min)
        };
        let mut judged = Judged {
            events: events.iter().filter(|event| event.percentile.is_some()).count(),
            ..Judged::default()
        };
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

    /// Gives each event its percentile, and takes all of them into the windows.
    fn rank(&self, events: &mut [Anomaly]) {
        let (by_type, all) = &mut *self.windows.lock();
        let mut batches: HashMap<u16, Vec<f32>> = HashMap::new();
        for event in events.iter_mut() {
            let has_own = by_type.len() < TYPES_MAX || by_type.contains_key(&event.kind);
            let window = if has_own { by_type.entry(event.kind).or_default() } else { &*all };
            let surprise = surprise(event.score);
            event.percentile = percentile(&window.sorted, surprise);
            if has_own {
                batches.entry(event.kind).or_default().push(surprise);
            }
        }
        for (kind, batch) in batches {
            by_type.entry(kind).or_default().extend(batch);
        }
        all.extend(events.iter().map(|event| surprise(event.score)).collect());
        self.published.store(Arc::new(all.sorted.clone()));
    }

    /// The surprises of the latest events of all types, in order, for [`percentile`].
    #[must_use]
    pub fn surprises(&self) -> Arc<Vec<f32>> {
        self.published.load_full()
    }

    /// Takes the surprises from elsewhere; [`surprises`](Self::surprises) of another process.
    pub(super) fn publish(&self, surprises: Vec<f32>) {
        self.published.store(Arc::new(surprises));
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
        if nodes.is_empty() {
            return;
        }
        let gone: HashSet<NodeId> = nodes.iter().copied().collect();
        self.kept.lock().retain(|event| !gone.contains(&event.src) && !gone.contains(&event.dst));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(edge: u64, kind: u16, score: f32) -> Anomaly {
        let (src, dst) = (NodeId(1), NodeId(2));
        Anomaly { edge: EdgeId(edge), src, dst, time: EventTime(9), kind, score, percentile: None }
    }

    fn of_all(anomalies: &Anomalies, score: f32) -> Option<f32> {
        percentile(&anomalies.surprises(), surprise(score))
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
        let found = of_all(&anomalies, 0.5).unwrap();
        assert!((found - (100.0 + 1.0 + 0.0 + 1.0) / 203.0).abs() < 0.01, "{found}");
        assert_eq!(of_all(&anomalies, f32::NAN), None);
        assert_eq!(anomalies.judge(vec![event(203, 0, f32::NAN)]), Judged::default(), "it is left out");
    }

    #[test]
    fn a_window_holds_the_latest_and_the_list_the_latest_unusual_ones() {
        let anomalies = Anomalies::new(options(None));
        let all_alike = |from: u64| (0..WINDOW as u64).map(|i| event(from + i, 0, 0.25)).collect();
        anomalies.judge(all_alike(0));
        assert_eq!(of_all(&anomalies, 0.25), Some(0.5), "all of them surprise as much");
        let likely = (0..WINDOW as u64).map(|i| event(i, 0, 0.75)).collect();
        assert_eq!(anomalies.judge(likely).unusual, 0);
        assert_eq!(of_all(&anomalies, 0.75), Some(0.5), "the others have left");
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
    fn a_window_is_the_sorted_latest_surprises_whatever_batches_they_come_in() {
        let (mut window, mut all) = (Window::default(), Vec::new());
        for batch in 0..60_u64 {
            let count =
                crate::device::rng::below([batch, 0, 7, 0], 500) as u64 + u64::from(batch == 40) * 6_000;
            let batch: Vec<f32> =
                (0..count).map(|i| crate::device::rng::below([batch, i, 8, 0], 300) as f32 / 7.0).collect();
            all.extend(&batch);
            window.extend(batch);
            let mut expected = all[all.len().saturating_sub(WINDOW)..].to_vec();
            expected.sort_unstable_by(f32::total_cmp);
            assert_eq!(window.sorted, expected);
        }
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
