//! The promotion gate: which version of the weights serves requests.
//!
//! What the learner trains is a candidate. One of so many batches is scored, before it is learned, by the candidate,
//! by the published version and by the previous version, which was published before it: the same node states, the same
//! negatives, and EdgeBank beside. A window of such batches ends in a [`Verdict`]:
//!
//! ```text
//! promoted     the candidate is not behind the better of published and previous, nor behind EdgeBank, by more than a
//!              tolerance each; or it is ahead of both versions by more than that, wherever EdgeBank is
//! rolled back  else, when for several windows in a row published was behind previous, or behind EdgeBank while
//!              previous was not
//! held         else
//! ```
//!
//! Promotion makes the published version the previous one. A rollback publishes the previous version again, under its
//! own number, and the candidate goes on from it with an optimizer that starts afresh, its schedule of learning rates
//! included: moments of other weights would lead it back. After that there is no previous version until the next
//! promotion. Before the first promotion there is no published version, and [`BeforePromotion`] is what is served.
//!
//! There is one set of node states, and the candidate writes it. A version's memory updater applies the message that
//! waits for a node to a memory row that the candidates of the past wrote, when it is judged and when it is served. So
//! what is measured is what is served, and a promotion or a rollback changes no memory and no message. A row shown to
//! readers is of the version that was served when its node had its last event.
//!
//! Depends on neither log nor readers: what a verdict causes is in [`publish`](super::publish).

use std::io::{Error, Read, Write};

use crate::device::Device;
use crate::model::{ModelError, ModelOptions, Weights, tables};
use crate::nn::Parameters;
use crate::serving::Source;
use crate::train::ranking::average_precision;
use crate::train::{LoadError, PreparedBatch, TrainError, Trainer};

/// Why no operator can decide where there is no gate.
pub const NO_GATE: &str = "learner.gate.enabled is false: the weights are served as they are trained";

/// First bytes of a saved gate.
pub(super) const MAGIC: u64 = u64::from_le_bytes(*b"EVGGATE1");

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

/// How often the gate evaluates, and with what tolerances.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct GateOptions {
    /// One of so many batches is evaluated; at least 1.
    pub every_batches: u64,
    /// Evaluated batches per verdict; at least 1.
    pub window_batches: u64,
    /// How far the candidate's average precision may be below a published version's; in [0, 1].
    pub tolerance: f64,
    /// How far a version's average precision may be below EdgeBank's; in [0, 1].
    pub edgebank_tolerance: f64,
    /// Consecutive windows that must favor the previous version before a rollback; at least 1.
    pub rollback_windows: u64,
    /// What is served until a version is promoted.
    pub before_promotion: BeforePromotion,
}

/// Average precision of each on the same batches; `None` for a version that does not exist.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Figures {
    /// The weights that are trained; 0 in a batch where their numbers were not finite.
    pub candidate: f64,
    /// The weights that are served.
    pub published: Option<f64>,
    /// The weights that were served before them.
    pub kept: Option<f64>,
    /// The baseline.
    pub edgebank: f64,
}

/// The outcome of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The candidate is served from here on.
    Promoted,
    /// The published version stays.
    Held,
    /// The previous version is served again, and the candidate goes on from it.
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

/// A verdict, what it rests on, and the versions it was about.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Decision {
    /// What was decided.
    pub verdict: Verdict,
    /// Means over the window; `None` where an operator decided.
    pub figures: Option<Figures>,
    /// Version of the candidate.
    pub candidate: u64,
    /// Version that was served until then; `None` before the first promotion.
    pub published: Option<u64>,
    /// The previous version.
    pub kept: Option<u64>,
    /// One past the last log record that was learned.
    pub position: u64,
}

/// Sums over the evaluated batches since the last verdict.
#[derive(Clone, Copy, Debug, Default)]
struct Window {
    batches: u64,
    /// Candidate, published, previous, EdgeBank.
    sums: [f64; 4],
}

/// The published and the previous version, and the evidence since the last verdict.
#[derive(Clone, Debug)]
pub struct Gate {
    options: GateOptions,
    published: Option<Weights>,
    kept: Option<Weights>,
    window: Window,
    /// Consecutive windows that favored the previous version.
    doubts: u64,
}

impl Gate {
    /// A gate before its first promotion.
    #[must_use]
    pub fn new(options: GateOptions) -> Self {
        Self { options, published: None, kept: None, window: Window::default(), doubts: 0 }
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

    /// Numbers of the published and the previous version.
    #[must_use]
    pub fn versions(&self) -> (Option<u64>, Option<u64>) {
        let version = |weights: &Option<Weights>| weights.as_ref().map(|weights| weights.version);
        (version(&self.published), version(&self.kept))
    }

    /// Average precision of the published and the previous version on a batch that is prepared for the trainer's next
    /// step; `None` if it is not evaluated.
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
    ) -> Result<Option<[Option<f64>; 2]>, TrainError> {
        if !trainer.steps().is_multiple_of(self.options.every_batches.max(1)) {
            return Ok(None);
        }
        let mut figures = [None; 2];
        for (weights, figure) in [&self.published, &self.kept].into_iter().zip(&mut figures) {
            let Some(weights) = weights else { continue };
            let (positive, negative) = trainer.score_prepared_by(&trainer.place(weights), batch)?;
            *figure = finite_precision(&positive, &negative);
            if figure.is_none() {
                return Ok(None); // A batch without a finite score does not compare versions.
            }
        }
        Ok(Some(figures))
    }

    /// Adds an evaluated batch; a full window ends in a verdict, and the next one begins.
    pub(super) fn observe(&mut self, figures: &Figures) -> Option<(Verdict, Figures)> {
        let Figures { candidate, published, kept, edgebank } = *figures;
        let added = [candidate, published.unwrap_or(0.0), kept.unwrap_or(0.0), edgebank];
        self.window.sums.iter_mut().zip(added).for_each(|(sum, value)| *sum += value);
        self.window.batches += 1;
        if self.window.batches < self.options.window_batches {
            return None;
        }
        let Window { batches, sums } = std::mem::take(&mut self.window);
        #[allow(clippy::cast_precision_loss)] // windows are short
        let [candidate, published_mean, kept_mean, edgebank] = sums.map(|sum| sum / batches as f64);
        let mean = Figures {
            candidate,
            published: published.map(|_| published_mean),
            kept: kept.map(|_| kept_mean),
            edgebank,
        };
        Some((self.judge(&mean), mean))
    }

    fn judge(&mut self, figures: &Figures) -> Verdict {
        let GateOptions { tolerance, edgebank_tolerance, rollback_windows, .. } = self.options;
        let behind_bank = |ap: f64| ap < figures.edgebank - edgebank_tolerance;
        let doubtful = match (figures.published, figures.kept) {
            (Some(published), Some(kept)) => {
                published < kept - tolerance || (behind_bank(published) && !behind_bank(kept))
            }
            _ => false,
        };
        let best = [figures.published, figures.kept].into_iter().flatten().reduce(f64::max);
        let not_behind = best.is_none_or(|best| figures.candidate >= best - tolerance);
        let ahead = best.is_some_and(|best| figures.candidate > best + tolerance);
        if ahead || (not_behind && !behind_bank(figures.candidate)) {
            self.doubts = 0;
            return Verdict::Promoted;
        }
        self.doubts = if doubtful { self.doubts + 1 } else { 0 };
        if self.doubts > 0 && self.doubts >= rollback_windows { Verdict::RolledBack } else { Verdict::Held }
    }

    /// Makes `candidate` the published version and keeps the one that was. A new window begins, since the current one
    /// compared other versions.
    pub fn promote(&mut self, candidate: Weights) {
        (self.window, self.doubts) = (Window::default(), 0);
        self.kept = self.published.replace(candidate);
    }

    /// Publishes the previous version again, if there is one, has the trainer go on from it, and begins a new window.
    ///
    /// # Errors
    /// When the trainer cannot take these weights; nothing is changed then.
    pub fn roll_back(&mut self, trainer: &mut Trainer) -> Result<(), ModelError> {
        let Some(kept) = &self.kept else { return Ok(()) };
        trainer.go_on_from(kept)?;
        (self.window, self.doubts) = (Window::default(), 0);
        self.published = self.kept.take();
        Ok(())
    }

    /// Writes everything that a later [`Self::load`] needs to go on as if it had never stopped.
    ///
    /// # Errors
    /// What `out` reports.
    pub(super) fn save(&self, out: &mut impl Write) -> std::io::Result<()> {
        for number in [MAGIC, self.doubts, self.window.batches] {
            tables::write_u64(out, number)?;
        }
        tables::write_table(out, &self.window.sums)?;
        for weights in [&self.published, &self.kept] {
            let version = weights.as_ref().map_or(0, |weights| weights.version);
            let bytes = weights.as_ref().map(|weights| weights.parameters().to_bytes()).transpose();
            tables::write_u64(out, version)?;
            tables::write_table(out, &bytes.map_err(Error::other)?.unwrap_or_default())?;
        }
        Ok(())
    }

    /// A gate from what [`save`](Self::save) wrote behind [`MAGIC`], with these options.
    ///
    /// # Errors
    /// The bytes are damaged, or hold weights of another model.
    pub(super) fn load(
        options: GateOptions,
        model: ModelOptions,
        device: &Device,
        input: &mut impl Read,
    ) -> Result<Self, LoadError> {
        let mut gate = Self::new(options);
        gate.doubts = tables::read_u64(input)?;
        gate.window.batches = tables::read_u64(input)?;
        let sums: Vec<f64> = tables::read_table(input)?;
        gate.window.sums.iter_mut().zip(sums).for_each(|(sum, saved)| *sum = saved);
        for weights in [&mut gate.published, &mut gate.kept] {
            let version = tables::read_u64(input)?;
            let bytes: Vec<u8> = tables::read_table(input)?;
            if !bytes.is_empty() {
                *weights = Some(Weights::new(model, &Parameters::from_bytes(device, &bytes)?, version)?);
            }
        }
        Ok(gate)
    }
}

/// Average precision, if all scores are finite and there is one to compute.
pub(super) fn finite_precision(positive: &[f32], negative: &[f32]) -> Option<f64> {
    let finite = positive.iter().chain(negative).all(|score| score.is_finite());
    if finite { average_precision(positive, negative) } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPTIONS: GateOptions = GateOptions {
        every_batches: 1,
        window_batches: 1,
        tolerance: 0.01,
        edgebank_tolerance: 0.02,
        rollback_windows: 3,
        before_promotion: BeforePromotion::Baseline,
    };

    fn verdicts(figures: &[(f64, Option<f64>, Option<f64>, f64)]) -> Vec<Verdict> {
        let mut gate = Gate::new(OPTIONS);
        let observe = |&(candidate, published, kept, edgebank)| {
            gate.observe(&Figures { candidate, published, kept, edgebank }).unwrap().0
        };
        figures.iter().map(observe).collect()
    }

    #[test]
    fn a_candidate_is_compared_with_edgebank_and_with_the_better_version() {
        use Verdict::{Held, Promoted};
        for (figures, expected) in [
            ((0.80, None, None, 0.81), Promoted),
            ((0.80, None, None, 0.83), Held),
            ((0.80, Some(0.805), None, 0.5), Promoted),
            ((0.80, Some(0.82), None, 0.5), Held),
            ((0.80, Some(0.70), Some(0.82), 0.5), Held),
            // Behind EdgeBank, and yet the best there is.
            ((0.80, Some(0.70), Some(0.75), 0.9), Promoted),
            ((0.80, Some(0.795), None, 0.9), Held),
        ] {
            assert_eq!(verdicts(&[figures]), [expected], "{figures:?}");
        }
    }

    #[test]
    fn only_windows_in_a_row_take_a_version_back() {
        use Verdict::{Held, Promoted, RolledBack};
        let bad = (0.5, Some(0.6), Some(0.8), 0.4);
        let unsure = (0.5, Some(0.8), Some(0.8), 0.4);
        assert_eq!(verdicts(&[bad, bad, unsure, bad, bad, bad]), [Held, Held, Held, Held, Held, RolledBack]);
        // Both behind EdgeBank: the previous one is no better. Only one of them: it is.
        let both = (0.5, Some(0.70), Some(0.705), 0.8);
        assert_eq!(verdicts(&[both; 4]), [Held; 4]);
        let one = (0.5, Some(0.775), Some(0.784), 0.8);
        assert_eq!(verdicts(&[one; 3]), [Held, Held, RolledBack]);
        // A candidate as good as the previous version is promoted.
        let cured = (0.8, Some(0.6), Some(0.8), 0.4);
        assert_eq!(verdicts(&[bad, bad, cured, bad]), [Held, Held, Promoted, Held]);
    }

    #[test]
    fn a_window_is_judged_by_its_mean() {
        let mut gate = Gate::new(GateOptions { window_batches: 2, ..OPTIONS });
        let figures = |candidate| Figures { candidate, published: Some(0.8), kept: None, edgebank: 0.5 };
        assert_eq!(gate.observe(&figures(0.7)), None);
        let (verdict, mean) = gate.observe(&figures(0.9)).unwrap();
        assert_eq!((verdict, mean.kept), (Verdict::Promoted, None));
        assert!((mean.candidate - 0.8).abs() < 1e-9 && (mean.published.unwrap() - 0.8).abs() < 1e-9);
        assert_eq!(gate.observe(&figures(0.1)), None, "the next window begins empty");
    }

    #[test]
    fn scores_that_are_not_finite_are_no_figure() {
        assert_eq!(finite_precision(&[1.0, 2.0], &[0.0, 0.5]), Some(1.0));
        assert_eq!(finite_precision(&[1.0, f32::NAN], &[0.0, 0.5]), None);
        assert_eq!(finite_precision(&[], &[]), None);
    }
}
