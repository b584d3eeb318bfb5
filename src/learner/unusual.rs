//! How unusual the events of a batch were to the model that had not learned them yet.

use super::{LearnBatch, Learner, Shared};
use crate::model::probability;
use crate::serving::{Anomaly, Judged, surprise};

/// The events of a batch that were scored, until they are judged.
#[derive(Default)]
pub(super) struct Unjudged(Vec<Anomaly>);

impl Unjudged {
    /// Judges them by those of the batches before, which have been.
    pub fn judge(&mut self, shared: &Shared) {
        let (events, metrics) = (std::mem::take(&mut self.0), &shared.metrics.anomaly);
        events.iter().for_each(|event| metrics.surprise.observe(f64::from(surprise(event.score))));
        let Judged { events, unusual, left_out } = shared.engine.anomalies.judge(events);
        metrics.judged.inc_by(events as u64);
        metrics.unusual.inc_by(unusual as u64);
        metrics.left_out.inc_by(left_out as u64);
    }
}

impl Learner {
    /// The events of the batch at hand that were scored: `logits` are theirs, in order.
    pub(super) fn scored(&self, batch: &LearnBatch, logits: &[f32]) -> Unjudged {
        let event = |(&place, &logit): (&u32, &f32)| {
            let i = place as usize;
            Anomaly {
                edge: batch.edges[i],
                src: batch.src[i],
                dst: batch.dst[i],
                time: batch.times[i],
                kind: batch.kinds[i],
                score: probability(logit),
                percentile: None,
            }
        };
        let events: Vec<Anomaly> = self.at_hand.prepared.scored().iter().zip(logits).map(event).collect();
        self.shared.metrics.anomaly.unscored.inc_by((batch.edges.len() - events.len()) as u64);
        Unjudged(events)
    }
}
