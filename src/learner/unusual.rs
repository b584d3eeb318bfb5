//! How unusual the events of a batch were to the model that had not learned them yet.

use super::{LearnBatch, Learner};
use crate::model::probability;
use crate::serving::{Anomaly, Judged, surprise};

impl Learner {
    /// Judges the events of the batch at hand that were scored: `logits` are theirs, in order.
    pub(super) fn judge(&self, batch: &LearnBatch, logits: &[f32]) {
        let metrics = &self.shared.metrics.anomaly;
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
        let events: Vec<Anomaly> = self.prepared.scored().iter().zip(logits).map(event).collect();
        metrics.unscored.inc_by((batch.edges.len() - events.len()) as u64);
        events.iter().for_each(|event| metrics.surprise.observe(f64::from(surprise(event.score))));
        let Judged { events, unusual, left_out } = self.shared.engine.anomalies.judge(events);
        metrics.judged.inc_by(events as u64);
        metrics.unusual.inc_by(unusual as u64);
        metrics.left_out.inc_by(left_out as u64);
    }
}
