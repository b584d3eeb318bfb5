//! The gate in the loop: what is served, what is taken back, and that a restart changes none of it.

use super::*;
use crate::learner::{BeforePromotion, Figures, Predicted};
use crate::model::{Model, Weights};
use crate::serving::{EmbeddingResponse, PairScore, QueryError, ScoreResponse, Source};

/// Every batch is judged, and four of them make a window.
pub(super) fn options() -> GateOptions {
    GateOptions {
        every_batches: 1,
        window_batches: 4,
        promote_seconds: 0,
        confidence: 0.9,
        edgebank_tolerance: 0.5,
        rollback_windows: 2,
        before_promotion: BeforePromotion::Candidate,
    }
}

/// A model that is large enough to learn from what little there is.
fn able() -> TrainerOptions {
    let shape = TgnOptions { memory_dim: 16, time_dim: 16, embedding_dim: 16, ..TgnOptions::default() };
    let model = ModelOptions::from(shape).with_features(1, 0);
    TrainerOptions { model, learning_rate: 5e-3, seed: 2, ..TrainerOptions::default() }
}

/// What a restart of `learner` begins with.
pub(super) fn restored(learner: &Learner, trainer: TrainerOptions) -> Learned {
    restored_with(learner, trainer, options())
}

fn restored_with(learner: &Learner, trainer: TrainerOptions, gate: GateOptions) -> Learned {
    let bytes = learner.to_bytes();
    let mut input = bytes.as_slice();
    let stores = &learner.shared.engine.stores;
    let (options, stores) = ((trainer, Some(gate)), Around { stores, pairs_max: 0, log_is_whole: true });
    let loaded = Learned::load(learner.learned, options, &Device::Cpu, stores, &mut input).unwrap();
    assert!(input.is_empty() && loaded.stream.is_some());
    loaded
}

/// A gated learner, what it decides, and where the stream is.
struct Gated {
    rig: Rig,
    learner: Learner,
    decisions: Arc<parking_lot::Mutex<Vec<Decision>>>,
    time: i64,
}

impl Gated {
    fn new() -> Self {
        let mut rig = Rig::new();
        rig.restart_for(16);
        let trainer = Trainer::new(able(), &Device::Cpu).unwrap();
        let from = Learned { trainer, gate: Some(Gate::new(options())), stream: None, position: EdgeId(0) };
        let decisions = Arc::default();
        let learner = rig.learner_from(from, rig.options(), recorder(&decisions));
        Self { rig, learner, decisions, time: 0 }
    }

    /// Learns whole windows of a stream in which everybody meets two of many destinations, and returns the decisions.
    fn windows(&mut self, count: u32) -> Vec<Verdict> {
        let before = self.decisions.lock().len();
        for _ in 0..count * 4 {
            let dst = |at: i64| if at < 48 { 8 + at as u32 % 24 } else { 8 + at as u32 % 2 };
            let event = |i: i64| ((self.time + i) as u32 % 8, dst(self.time + i), self.time + i);
            self.rig.append(edges((0..10).map(event)), STARTED);
            self.time += 10;
        }
        self.learner.drain();
        self.decisions.lock()[before..].iter().map(|decision| decision.verdict).collect()
    }

    /// Goes on as after a restart, with another step size.
    fn restart(&mut self, learning_rate: f32) {
        self.restart_with(learning_rate, options());
    }

    fn restart_with(&mut self, learning_rate: f32, gate: GateOptions) {
        let from = restored_with(&self.learner, TrainerOptions { learning_rate, ..able() }, gate);
        self.rig.restart();
        self.learner = self.rig.learner_from(from, self.rig.options(), recorder(&self.decisions));
    }

    fn last(&self) -> Decision {
        *self.decisions.lock().last().unwrap()
    }

    fn served(&self) -> Arc<Weights> {
        self.rig.shared.engine.model().unwrap()
    }

    fn status(&self) -> GateReport {
        self.rig.shared.status.report().gate
    }
}

fn recorder(decisions: &Arc<parking_lot::Mutex<Vec<Decision>>>) -> DecisionRecorder {
    let decisions = decisions.clone();
    Box::new(move |decision| decisions.lock().push(*decision))
}

/// The weights of a step later with all signs turned: what was likely is unlikely.
fn damaged(weights: &Weights) -> Weights {
    let mut model: Model = weights.model().clone();
    let names: Vec<String> = model.parameters.iter().map(|(name, _)| name.to_owned()).collect();
    for name in names {
        let id = model.parameters.find(&name).unwrap();
        model.parameters.get_mut(id).data_mut().iter_mut().for_each(|value| *value = -*value);
    }
    Weights::of(model, weights.version + 1)
}

/// As many windows as it takes until everybody has learned whom the sources meet.
fn learned() -> Gated {
    let mut gated = Gated::new();
    for _ in 0..60 {
        let verdict = gated.windows(1)[0];
        let Figures { candidate, published, anchor, .. } = gated.last().figures.unwrap();
        let able = |version: Option<Predicted>| version.is_some_and(|found| found.average_precision > 0.85);
        let all = [Some(candidate), published, anchor].into_iter().all(able);
        let versions = gated.learner.gate.as_ref().unwrap().versions();
        if all && verdict == Verdict::Promoted && versions.anchor == versions.published {
            return gated;
        }
    }
    panic!("nothing was learned: {:?}", gated.last());
}

#[test]
fn a_candidate_is_served_step_by_step_until_the_first_is_promoted() {
    let mut gated = Gated::new();
    gated.rig.append_edges(10, 0);
    gated.learner.drain();
    assert_eq!((gated.served().version, gated.decisions.lock().len()), (1, 0));
    gated.rig.append_edges(30, 10);
    gated.learner.drain();
    assert_eq!((gated.last().verdict, gated.served().version), (Verdict::Promoted, 4));
    gated.rig.append_edges(30, 50);
    gated.learner.drain();
    assert_eq!(gated.served().version, 4, "between two windows what is served stays");
    assert_eq!(gated.rig.shared.status.report().model_version, 4);
}

/// What readers get of node 1, and of the pairs of node 1 with 11 and 4, of which it met the first.
fn asked(rig: &Rig) -> Result<(EmbeddingResponse, ScoreResponse), QueryError> {
    let engine = &rig.shared.engine;
    let pairs = [(key(1), key(11)), (key(1), key(4))];
    let embeddings = engine.embeddings(&[key(1)], None, UnknownKeys::Error)?;
    Ok((embeddings, engine.link_scores(&pairs, None, UnknownKeys::Error)?))
}

#[test]
fn until_the_first_promotion_the_settings_decide_what_is_served() {
    let asked_before = |before_promotion| {
        let mut rig = Rig::new();
        let gate = Gate::new(GateOptions { before_promotion, ..options() });
        let from = Learned { trainer: trainer(), gate: Some(gate), stream: None, position: EdgeId(0) };
        let mut learner = rig.learner_from(from, rig.options(), Box::new(|_| ()));
        rig.append_edges(30, 100);
        learner.drain();
        let before = asked(&rig);
        rig.append_edges(10, 130);
        learner.drain();
        (before, asked(&rig).unwrap(), learner.version)
    };
    let (before, (embedding, score), version) = asked_before(BeforePromotion::NotReady);
    assert_eq!(before, Err(QueryError::NotReady));
    assert_eq!((embedding.source, score.source, version), (Source::Model, Source::Model, 4));
    let (before, after, _) = asked_before(BeforePromotion::Candidate);
    let (embedding, score) = before.unwrap();
    assert_eq!((embedding.source, score.source), (Source::Candidate, Source::Candidate));
    assert_eq!((embedding.freshness.model_version, score.freshness.model_version), (3, 3));
    assert_eq!((after.0.source, after.1.source), (Source::Model, Source::Model));
    let (before, after, _) = asked_before(BeforePromotion::Baseline);
    let (embedding, score) = before.unwrap();
    assert_eq!((embedding.source, score.source), (Source::Candidate, Source::Baseline));
    assert_eq!((embedding.freshness.model_version, score.freshness.model_version), (3, 0));
    let of = |i: usize| match score.scores[i] {
        PairScore::Found { probability, cold, .. } => (probability, cold),
        _ => panic!("{score:?}"),
    };
    assert!(of(0).0 > 0.5 && of(1) == (0.0, false), "{score:?}");
    assert_eq!((after.0.source, after.1.source), (Source::Model, Source::Model));
}

#[test]
fn a_damaged_candidate_is_held_back() {
    let mut gated = learned();
    gated.restart(1e-9);
    let (served, good) = (gated.served(), gated.learner.trainer.weights().unwrap());
    gated.learner.trainer.set_weights(&damaged(&good)).unwrap();
    assert_eq!(gated.windows(2), [Verdict::Held; 2], "{:?}", gated.last());
    assert_eq!(gated.served().version, served.version);
    let (status, last) = (gated.status(), gated.last());
    assert_eq!((status.promoted, status.held, status.last), (0, 2, Some(last)));
    assert_eq!((last.versions.published, last.position), (Some(served.version), gated.learner.learned.0));
    let figures = last.figures.unwrap();
    let (candidate, published) = (figures.candidate, figures.published.unwrap());
    assert!(published.average_precision > candidate.average_precision + 0.05, "{last:?}");
    assert!(published.log_loss < candidate.log_loss, "{last:?}");
    let counted = gated.rig.shared.metrics.gate.decisions.with_label_values(&["held"]).get();
    assert_eq!(counted, 2);
}

#[test]
fn a_candidate_that_blows_up_is_held_back() {
    let mut gated = learned();
    // It writes the memory that the others read, so soon all are lost, and a later verdict is a matter of chance.
    gated.restart_with(1e3, GateOptions { edgebank_tolerance: 0.02, ..options() });
    let served = gated.served().version;
    assert_eq!(gated.windows(1), [Verdict::Held], "{:?}", gated.last());
    assert_eq!(gated.served().version, served);
}

#[test]
fn a_published_version_without_finite_scores_is_useless_and_replaced() {
    let mut gated = learned();
    gated.restart(1e-9);
    let mut model: Model = gated.learner.trainer.weights().unwrap().model().clone();
    let name = model.parameters.iter().last().unwrap().0.to_owned();
    let id = model.parameters.find(&name).unwrap();
    model.parameters.get_mut(id).data_mut().fill(f32::NAN);
    let lost = Weights::of(model, gated.served().version + 1);
    gated.learner.gate.as_mut().unwrap().promote(lost, 0);
    assert_eq!(gated.windows(1), [Verdict::Promoted], "{name}");
    assert_eq!(gated.last().figures.unwrap().published, Some(Predicted::USELESS));
}

#[test]
fn a_published_version_that_is_damaged_is_rolled_back_and_learning_goes_on_from_the_previous_one() {
    let mut gated = learned();
    // Four batches of ten events are few to be surer by.
    gated.restart_with(1e-9, GateOptions { confidence: 0.6, ..options() });
    let good = gated.served();
    let bad = damaged(&gated.learner.trainer.weights().unwrap());
    gated.learner.trainer.set_weights(&bad).unwrap();
    let gate = gated.learner.gate.as_mut().unwrap();
    gate.promote(bad, 0);
    gated.learner.publish_weights().unwrap();
    assert_ne!(gated.served().version, good.version);
    assert_eq!(gated.learner.gate.as_ref().unwrap().versions().anchor, Some(good.version));
    assert_eq!(gated.windows(2), [Verdict::Held, Verdict::RolledBack], "{:?}", gated.last());
    assert_eq!(gated.served().version, good.version);
    let bytes = |weights: &Weights| weights.parameters().to_bytes().unwrap();
    assert!(
        bytes(&gated.learner.trainer.weights().unwrap()) == bytes(&good),
        "the candidate goes on from it"
    );
    assert_eq!((gated.status().rolled_back, gated.status().versions.kept), (1, None));
    gated.restart(able().learning_rate);
    assert_eq!(gated.served().version, good.version, "after a restart too");
    assert_eq!(gated.windows(1), [Verdict::Promoted], "{:?}", gated.last());
    assert_eq!(gated.status().versions.kept, Some(good.version));
}

#[test]
fn without_a_gate_in_the_settings_a_saved_one_is_left_alone_and_where_none_was_saved_one_begins() {
    let gated = learned();
    let stores = &gated.learner.shared.engine.stores;
    let around = Around { stores, pairs_max: 0, log_is_whole: true };
    let load =
        |bytes: &[u8], gate| Learned::load(EdgeId(0), (able(), gate), &Device::Cpu, around, &mut { bytes });
    let whole = gated.learner.to_bytes();
    assert!(load(&whole, None).unwrap().gate.is_none());
    assert!(load(&whole, Some(options())).unwrap().gate.unwrap().published().is_some());
    let mut bytes = Vec::new();
    gated.learner.trainer.save(&mut bytes).unwrap();
    let fresh = load(&bytes, Some(options())).unwrap();
    assert!(fresh.gate.unwrap().published().is_none() && fresh.stream.is_none());
    let wrong = load(&[&bytes[..], b"anything"].concat(), None);
    assert!(wrong.err().unwrap().to_string().contains("a section that begins with"));
    let restored = Trainer::load(able(), &Device::Cpu, &mut &bytes[..]).unwrap();
    let ungated = gated.rig.learner_at(restored, gated.learner.learned, gated.rig.options());
    assert_eq!(ungated.served().unwrap().version, gated.learner.trainer.steps(), "the candidate is served");
}
