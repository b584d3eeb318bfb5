//! The promotion gate: which version of the weights serves requests.
//!
//! What the learner trains is a candidate. One of so many batches is scored, before it is learned, by the candidate, by
//! the published version and by the anchor, the best version that was promoted in the last day: the same node states,
//! the same negatives, and EdgeBank beside. Such batches are the [`evidence`] of a [`Verdict`], which is due when there
//! are enough of them and as much time has passed since the last one as before it since the first promotion, up to a
//! limit. A version is *behind* another where the mean difference of their average precisions is negative, with
//! confidence; *ahead* where it is positive. A candidate is behind, too, where the difference is so large that it would
//! harm, however few batches show it.
//!
//! ```text
//! promoted     the candidate is behind neither the anchor nor the published version, nor behind EdgeBank by more than
//!              a tolerance; or it is ahead of both versions, wherever EdgeBank is
//! rolled back  else, when for several verdicts in a row published was behind the anchor by more than a margin, or
//!              behind EdgeBank by more than the tolerance while the anchor was not
//! held         else
//! ```
//!
//! The first promotion replaces the baseline, not a version. So there the doubt counts against the candidate: with
//! confidence it is not behind EdgeBank by more than the tolerance.
//!
//! The anchor is one set of weights, measured anew on every judged batch beside the candidate. Were a candidate
//! compared with its predecessor alone, a decay too slow to be seen from one to the next would pass again and again. An
//! average of weights would decay with them, and nobody has measured it. A candidate that is promoted with at least the
//! anchor's mean takes its place; after a day without one, the published version does, because a stream may change for
//! good.
//!
//! Promotion makes the published version the previous one, for operators to go back to. A rollback of the gate
//! publishes the anchor again, one of an operator the previous version, each under its own number; the candidate goes
//! on from it with an optimizer that starts afresh, its schedule of learning rates included: moments of other weights
//! would lead it back. What is gone back to is the anchor from then on, and there is no previous version until the next
//! promotion. Before the first promotion there is no published version, and [`BeforePromotion`] is what is served.
//!
//! There is one set of node states, and the candidate writes it. A version's memory updater applies the message that
//! waits for a node to a memory row that the candidates of the past wrote, when it is judged and when it is served. So
//! what is measured is what is served, and a promotion or a rollback changes no memory and no message. A row shown to
//! readers is of the version that was served when its node had its last event.
//!
//! Depends on neither log nor readers: what a verdict causes is in [`publish`](super::publish).

mod evidence;
mod saved;

use self::evidence::{Evidence, LOSS_MAX};
use crate::device::Device;
use crate::model::{ModelError, ModelOptions, Weights};
use crate::serving::Source;
use crate::train::ranking::average_precision;
use crate::train::{LoadError, PreparedBatch, TrainError, Trainer};

pub use self::evidence::{Figures, Predicted};
pub(super) use self::saved::MAGIC;

/// Why no operator can decide where there is no gate.
pub const NO_GATE: &str = "learner.gate.enabled is false: the weights are served as they are trained";

/// Seconds after which an anchor that no promoted candidate has reached gives way to the published version.
const ANCHOR_SECONDS: u64 = 24 * 3600;

/// How far published has to be behind the anchor to be doubted. With enough batches any difference is sure, and a
/// rollback for less than this would throw away more, up to a day of learning, than it gains.
const DOUBT_MARGIN: f64 = 0.005;

/// A candidate whose mean average precision is so much below another version's is behind it, sure or not: few batches
/// show little with confidence.
const HARM: f64 = 0.01;

/// What is served until a version is promoted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BeforePromotion {
    /// The baseline's scores; embeddings of the candidate.
    #[default]
    Baseline,
    /// Nothing.
    NotReady,
    /// The candidate.
    Candidate,
}

/// How often the gate evaluates and decides, and how sure it has to be.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct GateOptions {
    /// One of so many batches is evaluated; at least 1.
    pub every_batches: u64,
    /// Fewest evaluated batches per verdict; at least 1.
    pub window_batches: u64,
    /// Fewest seconds from a verdict to the next; less while the first promotion is less than that ago.
    pub promote_seconds: u64,
    /// How sure a difference has to be; in [0.5, 1).
    pub confidence: f64,
    /// How far a version's average precision may be below EdgeBank's; in [0, 1].
    pub edgebank_tolerance: f64,
    /// Consecutive verdicts that must find the published version behind before a rollback; at least 1.
    pub rollback_windows: u64,
    /// What is served until a version is promoted.
    pub before_promotion: BeforePromotion,
}

/// The outcome of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The candidate is served from here on.
    Promoted,
    /// The published version stays.
    Held,
    /// An earlier version is served again, and the candidate goes on from it.
    RolledBack,
}

impl Verdict {
    /// As it is written in the catalog, in metrics and in the status.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Promoted => "promoted",
            Self::Held => "held",
            Self::RolledBack => "rolled_back",
        }
    }
}

/// Numbers of the versions that a gate has; `None` for one that it has not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Versions {
    /// The one that is served.
    pub published: Option<u64>,
    /// The previous one.
    pub kept: Option<u64>,
    /// The best one that was promoted in the last day.
    pub anchor: Option<u64>,
}

/// A verdict, what it rests on, and the versions it was about.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Decision {
    /// What was decided.
    pub verdict: Verdict,
    /// Means over the evidence; `None` where an operator decided.
    pub figures: Option<Figures>,
    /// Version of the candidate.
    pub candidate: u64,
    /// The versions until then.
    pub versions: Versions,
    /// One past the last log record that was learned.
    pub position: u64,
}

/// The version that candidates are compared with.
#[derive(Clone, Debug)]
struct Anchor {
    weights: Weights,
    /// When it became the anchor, seconds since the Unix epoch.
    since: u64,
}

/// The versions besides the candidate, and the evidence since the last verdict.
#[derive(Clone, Debug)]
pub struct Gate {
    options: GateOptions,
    published: Option<Weights>,
    kept: Option<Weights>,
    anchor: Option<Anchor>,
    evidence: Evidence,
    /// Consecutive verdicts that found the published version behind.
    doubts: u64,
    /// When the first version was promoted, seconds since the Unix epoch.
    began: u64,
    /// When the last verdict was given.
    decided: u64,
}

impl Gate {
    /// A gate before its first promotion.
    #[must_use]
    pub fn new(options: GateOptions) -> Self {
        let (published, kept, anchor) = (None, None, None);
        Self {
            options,
            published,
            kept,
            anchor,
            evidence: Evidence::default(),
            doubts: 0,
            began: 0,
            decided: 0,
        }
    }

    /// The weights that are served; `None` before the first promotion.
    #[must_use]
    pub fn published(&self) -> Option<&Weights> {
        self.published.as_ref()
    }

    /// What scores pairs now; `None`: nothing is served yet.
    #[must_use]
    pub fn scores(&self) -> Option<Source> {
        match self.options.before_promotion {
            _ if self.published.is_some() => Some(Source::Model),
            BeforePromotion::Baseline => Some(Source::Baseline),
            BeforePromotion::Candidate => Some(Source::Candidate),
            BeforePromotion::NotReady => None,
        }
    }

    /// The previous version, unless it was rolled back.
    #[must_use]
    pub fn kept(&self) -> Option<&Weights> {
        self.kept.as_ref()
    }

    /// The best version that was promoted in the last day.
    #[must_use]
    pub fn anchor(&self) -> Option<&Weights> {
        self.anchor.as_ref().map(|anchor| &anchor.weights)
    }

    /// Numbers of its versions.
    #[must_use]
    pub fn versions(&self) -> Versions {
        let version = |weights: Option<&Weights>| weights.map(|weights| weights.version);
        Versions {
            published: version(self.published()),
            kept: version(self.kept()),
            anchor: version(self.anchor()),
        }
    }

    /// How well the published version and the anchor predict a batch that is prepared for the trainer's next step;
    /// `None` if it is not evaluated.
    ///
    /// # Errors
    /// The batch was prepared for another state.
    ///
    /// # Panics
    /// If the batch was prepared for a state-only update.
    pub fn rivals(
        &self,
        trainer: &Trainer,
        batch: &PreparedBatch,
    ) -> Result<Option<[Option<Predicted>; 2]>, TrainError> {
        if !trainer.steps().is_multiple_of(self.options.every_batches.max(1)) {
            return Ok(None);
        }
        let mut found = [None; 2];
        for (place, weights) in [self.published(), self.anchor()].into_iter().enumerate() {
            let Some(weights) = weights else { continue };
            if place == 1 && self.published().is_some_and(|published| published.version == weights.version) {
                found[1] = found[0];
                continue;
            }
            let (positive, negative) = trainer.score_prepared_by(&trainer.place(weights), batch)?;
            if positive.is_empty() {
                return Ok(None); // Such a batch has no average precision, whoever scores it.
            }
            // Were a version without finite scores not judged, no verdict could replace it.
            found[place] = Some(predicted(&positive, &negative).unwrap_or(Predicted::USELESS));
        }
        Ok(Some(found))
    }

    /// Adds an evaluated batch at `now`, seconds since the Unix epoch. Returns the verdict, if one is due, and the
    /// means it rests on; then the evidence begins anew.
    pub(super) fn observe(&mut self, figures: &Figures, now: u64) -> Option<(Verdict, Figures)> {
        self.evidence.push(*figures);
        // Before the first promotion it is 0. A clock that was set back behind it has the waits grow again from here.
        self.began = self.began.min(now);
        // The first versions are young, and the next ones much better: they do not stay for as long.
        let wait = self.options.promote_seconds.min(self.decided.saturating_sub(self.began));
        // A clock that was set back does not hold verdicts up.
        let waited = now.abs_diff(self.decided) >= wait;
        let is_due = waited || figures.published.is_none();
        if !is_due || self.evidence.judged() < self.options.window_batches {
            return None;
        }
        let mean = self.evidence.mean();
        let verdict = self.judge(&mean);
        (self.evidence, self.decided) = (Evidence::default(), now);
        Some((verdict, mean))
    }

    fn judge(&mut self, mean: &Figures) -> Verdict {
        let GateOptions { confidence, edgebank_tolerance, rollback_windows, .. } = self.options;
        let ap = |of: Predicted| of.average_precision;
        let bounds = |of: &dyn Fn(&Figures) -> Option<f64>| self.evidence.bounds(confidence, of);
        let against = |rival: &dyn Fn(&Figures) -> Option<Predicted>| {
            bounds(&|figures| Some(ap(figures.candidate) - ap(rival(figures)?)))
        };
        let rivals = [against(&|figures| figures.published), against(&|figures| figures.anchor)];
        let ahead_of_bank = |of: &dyn Fn(&Figures) -> Option<Predicted>| {
            bounds(&|figures| Some(ap(of(figures)?) - figures.edgebank + edgebank_tolerance))
        };
        let bank = ahead_of_bank(&|figures| Some(figures.candidate));
        let passes_bank = bank.is_none_or(|bank| match mean.published {
            Some(_) => bank.upper >= 0.0,
            None => bank.lower >= 0.0,
        });
        let harms =
            |rival: Option<Predicted>| rival.is_some_and(|rival| ap(mean.candidate) < ap(rival) - HARM);
        let behind = rivals.iter().flatten().any(|rival| rival.upper < 0.0)
            || [mean.published, mean.anchor].into_iter().any(harms);
        let ahead = mean.published.is_some() && rivals.iter().flatten().all(|rival| rival.lower > 0.0);
        if ahead || (!behind && passes_bank) {
            self.doubts = 0;
            return Verdict::Promoted;
        }
        let behind_bank = |of| ahead_of_bank(of).is_some_and(|bank| bank.upper < 0.0);
        let behind_anchor = bounds(&|figures| Some(ap(figures.published?) - ap(figures.anchor?)));
        let is_doubtful = behind_anchor.is_some_and(|found| found.upper < -DOUBT_MARGIN)
            || (behind_bank(&|figures| figures.published) && !behind_bank(&|figures| figures.anchor));
        self.doubts = if is_doubtful { self.doubts + 1 } else { 0 };
        if self.doubts > 0 && self.doubts >= rollback_windows { Verdict::RolledBack } else { Verdict::Held }
    }

    /// An anchor from more than a day ago gives way to the published version. Not before a rollback, which goes back to
    /// the anchor that the verdict was about.
    pub(super) fn give_way(&mut self, now: u64) {
        let is_old = |anchor: &Anchor| now.abs_diff(anchor.since) > ANCHOR_SECONDS;
        if let (Some(true), Some(published)) = (self.anchor.as_ref().map(is_old), &self.published) {
            self.anchor = Some(Anchor { weights: published.clone(), since: now });
        }
    }

    /// Makes `candidate` the published version at `now`, seconds since the Unix epoch, and keeps the one that was. The
    /// evidence begins anew, since it compared other versions. The first that is promoted is the anchor.
    pub fn promote(&mut self, candidate: Weights, now: u64) {
        self.begin_anew(now);
        self.anchor.get_or_insert_with(|| Anchor { weights: candidate.clone(), since: now });
        self.kept = self.published.replace(candidate);
        if self.kept.is_none() && self.began == 0 {
            self.began = now;
        }
    }

    /// [Promotes](Self::promote) by a verdict with these means: a candidate that reaches the anchor takes its place.
    pub(super) fn promote_by(&mut self, mean: &Figures, candidate: Weights, now: u64) {
        self.give_way(now);
        let reached = |anchor: Predicted| mean.candidate.average_precision >= anchor.average_precision;
        if mean.anchor.is_none_or(reached) {
            self.anchor = None;
        }
        self.promote(candidate, now);
    }

    /// Publishes the previous version again, if there is one, has the trainer go on from it, and begins anew.
    ///
    /// # Errors
    /// When the trainer cannot take these weights; nothing is changed then.
    pub fn roll_back(&mut self, trainer: &mut Trainer, now: u64) -> Result<(), ModelError> {
        self.go_back_to(self.kept.clone(), trainer, now)
    }

    /// The same with the anchor.
    ///
    /// # Errors
    /// As [`roll_back`](Self::roll_back).
    pub(super) fn roll_back_to_anchor(&mut self, trainer: &mut Trainer, now: u64) -> Result<(), ModelError> {
        self.go_back_to(self.anchor().cloned(), trainer, now)
    }

    fn go_back_to(&mut self, to: Option<Weights>, trainer: &mut Trainer, now: u64) -> Result<(), ModelError> {
        let Some(weights) = to else { return Ok(()) };
        trainer.go_on_from(&weights)?;
        self.begin_anew(now);
        self.anchor = Some(Anchor { weights: weights.clone(), since: now });
        (self.published, self.kept) = (Some(weights), None);
        Ok(())
    }

    fn begin_anew(&mut self, now: u64) {
        (self.evidence, self.doubts, self.decided) = (Evidence::default(), 0, now);
    }
}

/// How well these scores predict, if all are finite and there are some of both.
pub(super) fn predicted(positive: &[f32], negative: &[f32]) -> Option<Predicted> {
    let finite = positive.iter().chain(negative).all(|score| score.is_finite());
    let average_precision = if finite { average_precision(positive, negative)? } else { return None };
    // ln(1 + e^x), without an overflow.
    let softplus = |x: f64| x.max(0.0) + (-x.abs()).exp().ln_1p();
    let losses = positive.iter().map(|&score| softplus(-f64::from(score)));
    let losses = losses.chain(negative.iter().map(|&score| softplus(f64::from(score))));
    #[allow(clippy::cast_precision_loss)] // a batch
    let count = (positive.len() + negative.len()) as f64;
    let log_loss = losses.map(|loss| loss.min(LOSS_MAX)).sum::<f64>() / count;
    Some(Predicted { average_precision, log_loss })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::rng;
    use crate::model::{Model, TgnOptions};

    const OPTIONS: GateOptions = GateOptions {
        every_batches: 1,
        window_batches: 8,
        promote_seconds: 0,
        confidence: 0.95,
        edgebank_tolerance: 0.02,
        rollback_windows: 2,
        before_promotion: BeforePromotion::Baseline,
    };

    fn weights(version: u64) -> Weights {
        let tiny =
            TgnOptions { memory_dim: 2, time_dim: 2, embedding_dim: 2, heads: 1, ..TgnOptions::default() };
        Weights::of(Model::new(tiny, 1, &Device::Cpu).unwrap(), version)
    }

    /// A gate over a stream in which every version has a quality of its own, and some batches are harder than others.
    struct Trial {
        gate: Gate,
        /// Of the versions 1, 2, and so on.
        qualities: Vec<f64>,
        batches: u64,
        now: u64,
        /// How far scores of a version vary from batch to batch beside those of others.
        noise: f64,
    }

    impl Trial {
        fn new(options: GateOptions) -> Self {
            let gate = Gate::new(options);
            Self { gate, qualities: Vec::new(), batches: 0, now: 1_000_000, noise: 0.002 }
        }

        /// Judges a candidate of this quality until there is a verdict.
        fn judge(&mut self, quality: f64, edgebank: f64) -> Verdict {
            self.qualities.push(quality);
            loop {
                self.batches += 1;
                let noise = |word, sd: f64| sd * f64::from(rng::normal_f32([3, self.batches, word, 0]));
                let hard = noise(0, 0.03);
                let of = |quality: f64, word| Predicted {
                    average_precision: quality + hard + noise(word, self.noise),
                    log_loss: 1.0 - quality,
                };
                let rival = |version: Option<u64>, word| {
                    version.map(|version| of(self.qualities[version as usize - 1], word))
                };
                let Versions { published, anchor, .. } = self.gate.versions();
                let figures = Figures {
                    candidate: of(quality, 1),
                    published: rival(published, 2),
                    anchor: if anchor == published { rival(published, 2) } else { rival(anchor, 3) },
                    edgebank: edgebank + hard,
                };
                self.now += 1;
                let Some((verdict, mean)) = self.gate.observe(&figures, self.now) else { continue };
                match verdict {
                    Verdict::Promoted => {
                        self.gate.promote_by(&mean, weights(self.qualities.len() as u64), self.now);
                    }
                    Verdict::Held => self.gate.give_way(self.now),
                    Verdict::RolledBack => {}
                }
                return verdict;
            }
        }

        /// Quality of what is served.
        fn served(&self) -> Option<f64> {
            self.gate.versions().published.map(|version| self.qualities[version as usize - 1])
        }
    }

    #[test]
    fn a_healthy_candidate_is_promoted_again_and_again() {
        let mut trial = Trial::new(OPTIONS);
        let verdicts: Vec<Verdict> =
            (0..30).map(|window| trial.judge(0.80 + 0.002 * f64::from(window), 0.75)).collect();
        assert_eq!(verdicts, [Verdict::Promoted; 30]);
        assert_eq!(trial.gate.versions(), Versions { published: Some(30), kept: Some(29), anchor: Some(30) });
        // One that stays as good as it is passes nearly always.
        let same = (0..40).filter(|_| trial.judge(0.858, 0.75) == Verdict::Promoted).count();
        assert!(same >= 28, "{same} of 40");
    }

    #[test]
    fn a_spoilt_candidate_is_held_however_little_is_known() {
        // The first of the batches is scored before the candidate learns anything that spoils it, and one is lucky.
        let mut gate = Gate::new(GateOptions { window_batches: 4, ..OPTIONS });
        gate.promote(weights(1), 1_000);
        let of = |average_precision| Predicted { average_precision, log_loss: 0.1 };
        let figures = |candidate| {
            let served = Some(of(1.0));
            Figures { candidate: of(candidate), published: served, anchor: served, edgebank: 0.5 }
        };
        let verdicts = [1.0, 1.0, 1.0, 0.34].map(|candidate| gate.observe(&figures(candidate), 2_000));
        assert_eq!(verdicts[3].map(|(verdict, _)| verdict), Some(Verdict::Held));
    }

    #[test]
    fn a_slow_decay_is_stopped() {
        let mut trial = Trial::new(OPTIONS);
        trial.noise = 0.01;
        let _: Vec<Verdict> = (0..5).map(|_| trial.judge(0.80, 0.5)).collect();
        let verdicts: Vec<Verdict> =
            (1..=40).map(|window| trial.judge(0.80 - 0.005 * f64::from(window), 0.5)).collect();
        assert!(!verdicts[10..].contains(&Verdict::Promoted), "{verdicts:?}");
        assert!(trial.served().unwrap() >= 0.785, "0.2 were lost in steps of 0.005: {:?}", trial.served());
        let promoted = verdicts.iter().filter(|&&verdict| verdict == Verdict::Promoted).count();
        assert!(promoted <= 4, "{verdicts:?}");
    }

    #[test]
    fn one_that_starts_worse_than_edgebank_is_not_served() {
        let mut trial = Trial::new(OPTIONS);
        for quality in [0.5, 0.6, 0.7, 0.77] {
            assert_eq!((trial.judge(quality, 0.8), trial.served()), (Verdict::Held, None), "{quality}");
        }
        assert_eq!(
            (trial.judge(0.79, 0.8), trial.served()),
            (Verdict::Promoted, Some(0.79)),
            "within the tolerance"
        );
        // A stream that repeats itself more: all are behind, and the best there is is served.
        assert_eq!(trial.judge(0.79, 0.9), Verdict::Held);
        assert_eq!(trial.judge(0.82, 0.9), Verdict::Promoted);
    }

    #[test]
    fn a_published_version_that_stays_behind_the_anchor_is_taken_back() {
        use Verdict::{Held, Promoted, RolledBack};
        let mut trial = Trial::new(OPTIONS);
        assert_eq!(trial.judge(0.80, 0.5), Promoted);
        // An operator promotes what is worse.
        trial.qualities.push(0.70);
        trial.gate.promote(weights(2), trial.now);
        let versions = Versions { published: Some(2), kept: Some(1), anchor: Some(1) };
        assert_eq!(trial.gate.versions(), versions);
        assert_eq!([trial.judge(0.70, 0.5), trial.judge(0.70, 0.5)], [Held, RolledBack]);
        // Another that is as good as the anchor ends the doubts.
        let mut trial = Trial::new(OPTIONS);
        assert_eq!(trial.judge(0.80, 0.5), Promoted);
        trial.qualities.push(0.70);
        trial.gate.promote(weights(2), trial.now);
        assert_eq!([0.70, 0.81, 0.70].map(|quality| trial.judge(quality, 0.5)), [Held, Promoted, Held]);
    }

    #[test]
    fn from_the_first_promotion_on_verdicts_take_their_time() {
        let mut trial = Trial::new(GateOptions { promote_seconds: 300, ..OPTIONS });
        assert_eq!((trial.judge(0.5, 0.8), trial.batches), (Verdict::Held, 8));
        assert_eq!((trial.judge(0.90, 0.8), trial.batches), (Verdict::Promoted, 16));
        // A batch takes a second. Young versions are replaced earlier.
        let next = |trial: &mut Trial, quality| {
            let before = trial.batches;
            assert_eq!(trial.judge(quality, 0.8), Verdict::Promoted);
            trial.batches - before
        };
        let waits = [0.902, 0.904, 0.906, 0.908, 0.91, 0.912, 0.914, 0.916, 0.918];
        let waits = waits.map(|quality| next(&mut trial, quality));
        assert_eq!(waits, [8, 8, 16, 32, 64, 128, 256, 300, 300]);
        trial.gate.promote(weights(1), trial.now);
        assert_eq!(next(&mut trial, 0.92), 300, "an operator's counts, too");
        trial.now += 1_000;
        assert_eq!(next(&mut trial, 0.93), 8, "and enough batches");
        trial.now -= 900_000;
        assert_eq!(next(&mut trial, 0.94), 8, "the clock was set back");
        let waits = [0.942, 0.944, 0.946, 0.948, 0.95, 0.952, 0.954];
        let waits = waits.map(|quality| next(&mut trial, quality));
        assert_eq!(waits, [8, 15, 30, 60, 120, 240, 300], "as after the first promotion");
    }

    #[test]
    fn a_small_difference_holds_a_candidate_and_takes_nothing_back() {
        let mut trial = Trial::new(OPTIONS);
        trial.noise = 0.0002;
        assert_eq!(trial.judge(0.80, 0.5), Verdict::Promoted);
        trial.qualities.push(0.797);
        trial.gate.promote(weights(2), trial.now);
        let verdicts: Vec<Verdict> = (0..4).map(|_| trial.judge(0.797, 0.5)).collect();
        assert_eq!(verdicts, [Verdict::Held; 4], "surely behind the anchor, by 0.003");
    }

    #[test]
    fn a_rollback_goes_back_to_the_anchor_that_it_was_decided_by() {
        let mut trial = Trial::new(OPTIONS);
        assert_eq!(trial.judge(0.80, 0.5), Verdict::Promoted);
        trial.qualities.push(0.70);
        trial.gate.promote(weights(2), trial.now);
        assert_eq!(trial.judge(0.70, 0.5), Verdict::Held);
        trial.now += ANCHOR_SECONDS;
        assert_eq!(trial.judge(0.70, 0.5), Verdict::RolledBack);
        assert_eq!(trial.gate.versions().anchor, Some(1), "however old it is");
    }

    #[test]
    fn an_anchor_of_more_than_a_day_ago_gives_way() {
        let mut trial = Trial::new(OPTIONS);
        assert_eq!(trial.judge(0.80, 0.5), Verdict::Promoted);
        trial.qualities.push(0.70);
        trial.gate.promote(weights(2), trial.now);
        trial.now += ANCHOR_SECONDS;
        assert_eq!((trial.judge(0.70, 0.5), trial.gate.versions().anchor), (Verdict::Held, Some(2)));
        assert_eq!(trial.judge(0.70, 0.5), Verdict::Promoted);
    }

    #[test]
    fn scores_that_are_not_finite_are_no_figure_and_great_ones_are() {
        let sure = predicted(&[1_000.0, 2.0], &[-1_000.0, 0.5]).unwrap();
        assert!(sure.average_precision == 1.0 && (sure.log_loss - 0.275).abs() < 0.01, "{sure:?}");
        assert_eq!(predicted(&[-1_000.0], &[1_000.0]).unwrap().log_loss, LOSS_MAX);
        assert_eq!(predicted(&[1.0, f32::NAN], &[0.0, 0.5]), None);
        assert_eq!(predicted(&[], &[]), None);
    }
}
