//! What readers see: rows of node memory, times of pairs, weights, and what a verdict of the gate leads to.

use std::sync::Arc;

use super::gate::{Decision, Figures, Predicted, Verdict, predicted};
use super::measure::unix_seconds;
use super::step::Taken;
use super::{Gate, LearnBatch, Learner, LearnerError, Versions};
use crate::event::{EdgeId, NodeId};
use crate::graph::RetentionBounds;
use crate::model::walk::PairTimes;
use crate::model::{Model, Weights};
use crate::serving::Source;
use crate::train::{StepMode, TrainError};

impl Learner {
    /// The weights that are served: the published version, or the candidate while there is none.
    pub(super) fn served(&self) -> Result<Weights, TrainError> {
        let published = self.gate.as_ref().and_then(Gate::published);
        published.map_or_else(|| self.trainer.weights(), |published| Ok(published.clone()))
    }

    /// Publishes the memory of `nodes`; messages of events that are not `kept` have no features.
    pub(super) fn publish_rows(&self, kept: RetentionBounds, nodes: &[NodeId]) -> Result<(), TrainError> {
        let engine = &self.shared.engine;
        let publish = |node, row: &[f32], updated| engine.states.publish(node, row, updated);
        let placed = self.placed();
        let model = placed.as_deref().unwrap_or_else(|| self.trainer.model());
        self.trainer.publish_rows_by(model, kept, &engine.stores.edge_features, nodes, publish)
    }

    /// Publishes all that was learned below `position`: the memory of `nodes`, pairs and weights.
    pub(super) fn publish_everything(
        &mut self,
        kept: RetentionBounds,
        nodes: &[NodeId],
        position: EdgeId,
    ) -> Result<(), LearnerError> {
        let states = self.shared.engine.states.clone();
        let _publication = states.publication();
        self.on_gpu(|learner| learner.publish_rows(kept, nodes))?;
        self.publish_pairs();
        self.on_gpu(Self::publish_weights)?;
        self.shared.progress.set_learned(position);
        Ok(())
    }

    /// Publishes the times of all pairs, in a model that has them.
    pub(super) fn publish_pairs(&self) {
        let states = &self.shared.engine.states;
        let Some(walks) = &self.trainer.state().walks else { return };
        walks.origin().into_iter().for_each(|origin| states.set_origin(origin));
        walks.pairs().for_each(|(key, times)| states.pairs.publish(key, times));
    }

    /// The published version where the trainer computes, if there is one.
    pub(super) fn placed(&self) -> Option<Arc<Model>> {
        self.gate.as_ref().and_then(Gate::published).map(|published| self.trainer.place(published))
    }

    /// Publishes the memory of the nodes of the batch that was just learned, and the times of its pairs.
    pub(super) fn publish_batch(&mut self) -> Result<(), TrainError> {
        // The batch is learned: if a GPU fails, only the published rows are computed again.
        self.on_gpu(|learner| learner.publish_memory())?;
        let states = &self.shared.engine.states;
        let Some(walks) = &self.trainer.state().walks else { return Ok(()) };
        // A stream that turns out to have begun at another time has other readings in every row.
        let began = states.origin().zip(walks.origin());
        if began.is_some_and(|(known, origin)| known != origin) {
            let nodes = self.trainer.state().known();
            let kept = self.shared.progress.kept();
            self.on_gpu(|learner| learner.publish_rows(kept, &nodes))?;
        }
        let states = &self.shared.engine.states;
        let Some(walks) = &self.trainer.state().walks else { return Ok(()) };
        walks.origin().into_iter().for_each(|origin| states.set_origin(origin));
        let events = self.at_hand.prepared.positives();
        for (&u, &v) in events.src.iter().zip(events.dst) {
            walks.pair(u, v).into_iter().for_each(|times| states.pairs.publish(PairTimes::key(u, v), times));
        }
        Ok(())
    }

    fn publish_memory(&self) -> Result<(), TrainError> {
        let states = &self.shared.engine.states;
        let publish = |node, row: &[f32], updated| states.publish(node, row, updated);
        let placed = self.placed();
        let model = placed.as_deref().unwrap_or_else(|| self.trainer.model());
        let rows = &self.shared.engine.stores.edge_features;
        self.trainer.publish_learned(model, rows, &self.at_hand.prepared, publish)
    }

    /// Publishes the weights that serve requests, and what scores pairs.
    pub(super) fn publish_weights(&mut self) -> Result<(), TrainError> {
        let scores = self.gate.as_ref().map_or(Some(Source::Model), Gate::scores);
        for source in Source::ALL {
            let is_it = i64::from(scores == Some(source));
            self.shared.metrics.model.score_source.with_label_values(&[source.name()]).set(is_it);
        }
        let Some(scores) = scores else { return Ok(()) };
        let weights = self.served()?;
        self.version = weights.version;
        if let Err(error) = self.shared.engine.publish_for(weights, scores) {
            tracing::error!(%error, "weights could not be published");
        }
        self.shared.metrics.model.version.set(self.version.cast_signed());
        self.shared.metrics.model.published_timestamp.set(unix_seconds());
        Ok(())
    }

    /// Publishes what the step of `batch` calls for: the trained weights where no gate stands before them, or the
    /// weights of its verdict.
    pub(super) fn promote(
        &mut self,
        batch: &LearnBatch,
        taken: &Taken,
        edgebank: Option<f64>,
    ) -> Result<(), TrainError> {
        let Some(gate) = &mut self.gate else {
            return if taken.mode == StepMode::Train { self.publish_weights() } else { Ok(()) };
        };
        let cold = gate.published().is_none();
        let decision =
            judged(taken, edgebank).and_then(|figures| gate.observe(&figures, (self.options.clock)()));
        if let Some((verdict, figures)) = decision {
            self.carry_out(batch, verdict, figures)?;
        } else if cold && taken.mode == StepMode::Train {
            self.publish_weights()?;
        }
        Ok(())
    }

    fn carry_out(
        &mut self,
        batch: &LearnBatch,
        verdict: Verdict,
        figures: Figures,
    ) -> Result<(), TrainError> {
        let Some(gate) = &mut self.gate else { return Ok(()) };
        let decision = Decision {
            verdict,
            figures: Some(figures),
            candidate: self.trainer.steps(),
            versions: gate.versions(),
            position: batch.end.0,
        };
        let now = (self.options.clock)();
        match verdict {
            Verdict::Promoted => gate.promote_by(&figures, self.trainer.weights()?, now),
            Verdict::Held => gate.give_way(now),
            Verdict::RolledBack => {
                if let Err(error) = gate.roll_back_to_anchor(&mut self.trainer, now) {
                    tracing::error!(%error, "nothing is rolled back: the candidate cannot take the earlier weights");
                    return Ok(());
                }
            }
        }
        if verdict != Verdict::Held || decision.versions.published.is_none() {
            self.publish_weights()?;
        }
        // Who sees a decision in the status finds it in the catalog.
        (self.record.decision)(&decision);
        self.report(&decision, figures);
        Ok(())
    }

    fn report(&self, decision: &Decision, figures: Figures) {
        let Decision { verdict, candidate, versions, position, .. } = *decision;
        let metrics = &self.shared.metrics.gate;
        metrics.decisions.with_label_values(&[verdict.name()]).inc();
        let predicted = [
            ("candidate", Some(figures.candidate)),
            ("published", figures.published),
            ("anchor", figures.anchor),
        ];
        let precisions = predicted.map(|(of, found)| (of, found.map(|found| found.average_precision)));
        let losses = predicted.map(|(of, found)| (of, found.map(|found| found.log_loss)));
        let bank = [("edgebank", Some(figures.edgebank))];
        let gauges = precisions.into_iter().chain(bank).map(|found| (&metrics.average_precision, found));
        for (gauge, (of, value)) in gauges.chain(losses.map(|found| (&metrics.log_loss, found))) {
            match value {
                Some(value) => gauge.with_label_values(&[of]).set(value),
                // A label that was never set cannot be removed.
                None => drop(gauge.remove_label_values(&[of])),
            }
        }
        let Versions { published, anchor, .. } = versions;
        let name = verdict.name();
        let [candidate_ap, published_ap, anchor_ap] = precisions.map(|(_, found)| found);
        let edgebank_ap = figures.edgebank;
        macro_rules! log {
            ($level:ident, $text:literal) => {
                tracing::$level!(
                    position,
                    candidate,
                    published,
                    anchor,
                    candidate_ap,
                    published_ap,
                    anchor_ap,
                    edgebank_ap,
                    $text
                )
            };
        }
        match verdict {
            Verdict::RolledBack => {
                log!(
                    warn,
                    "gate: {name}: the anchor is served again; node memory is as the later weights wrote it"
                );
            }
            _ => log!(info, "gate: {name}"),
        }
        let versions = self.gate.as_ref().map(Gate::versions).unwrap_or_default();
        self.shared.status.update(|report| {
            *report.gate.count(verdict) += 1;
            report.gate.versions = versions;
            report.gate.last = Some(*decision);
        });
    }
}

/// Figures of an evaluated batch; `None` if it was not evaluated or has no finite score.
fn judged(taken: &Taken, edgebank: Option<f64>) -> Option<Figures> {
    let [published, anchor] = taken.rivals?;
    let own = predicted(&taken.report.positive, &taken.report.negative);
    let candidate = own.or(published.map(|_| Predicted::USELESS))?;
    Some(Figures { candidate, published, anchor, edgebank: edgebank? })
}
