//! What the gate decides by: the scores of all versions on the batches that were judged since the last decision, and
//! how sure they make it that one version is behind another.
//!
//! All versions score the same batches, so a hard batch is hard for all of them, and their differences vary much less
//! than their scores. The mean difference has bounds by the paired bootstrap: [`RESAMPLES`] times as many batches are
//! drawn from the judged ones, with repetition, and the bounds are quantiles of the means of these draws. The draws are
//! keyed by their number, so the same evidence has the same bounds in every run.
//!
//! Knows nothing of what follows from it.

use std::collections::VecDeque;

use crate::device::rng;

/// Most batches that are kept, the newest ones: the candidate changes all the time, and they say most about it.
const BATCHES_MAX: usize = 256;

/// Draws of a bootstrap.
const RESAMPLES: u64 = 1_000;

/// First word of the keys of its random numbers.
const KEY: u64 = u64::from_le_bytes(*b"evidence");

/// Most that a pair can lose; what scores that are not finite lose.
pub(super) const LOSS_MAX: f64 = 30.0;

/// How well a version predicted.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Predicted {
    /// Average precision.
    pub average_precision: f64,
    /// Mean of the negative log-likelihood over positives and negatives, in nats; beyond 30 it counts as 30.
    pub log_loss: f64,
}

impl Predicted {
    /// That of scores that are not finite.
    pub(in crate::learner) const USELESS: Self = Self { average_precision: 0.0, log_loss: LOSS_MAX };
}

/// The figures of each version on the same batches; `None` for a version that does not exist.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Figures {
    /// The weights that are trained.
    pub candidate: Predicted,
    /// The weights that are served.
    pub published: Option<Predicted>,
    /// The best version that was promoted in the last day.
    pub anchor: Option<Predicted>,
    /// Average precision of the baseline, which has no probabilities.
    pub edgebank: f64,
}

/// Numbers of a batch in a saved gate.
const SAVED: usize = 7;

impl Figures {
    fn numbers(&self) -> [f64; SAVED] {
        let none = Predicted { average_precision: f64::NAN, log_loss: f64::NAN };
        let all = [self.candidate, self.published.unwrap_or(none), self.anchor.unwrap_or(none)];
        let [candidate, published, anchor] = all.map(|one| [one.average_precision, one.log_loss]);
        [candidate[0], candidate[1], published[0], published[1], anchor[0], anchor[1], self.edgebank]
    }

    fn from_numbers(numbers: &[f64]) -> Option<Self> {
        let &[candidate, loss, published, published_loss, anchor, anchor_loss, edgebank] = numbers else {
            return None;
        };
        let of = |average_precision: f64, log_loss: f64| {
            average_precision.is_finite().then_some(Predicted { average_precision, log_loss })
        };
        Some(Self {
            candidate: of(candidate, loss)?,
            published: of(published, published_loss),
            anchor: of(anchor, anchor_loss),
            edgebank,
        })
    }
}

/// The batches that were judged since the last decision.
#[derive(Clone, Debug, Default)]
pub(super) struct Evidence {
    newest: VecDeque<Figures>,
    /// All of them.
    judged: u64,
}

impl Evidence {
    pub fn push(&mut self, figures: Figures) {
        if self.newest.len() == BATCHES_MAX {
            self.newest.pop_front();
        }
        self.newest.push_back(figures);
        self.judged += 1;
    }

    /// How many batches were judged.
    pub fn judged(&self) -> u64 {
        self.judged
    }

    /// Means over the batches.
    pub fn mean(&self) -> Figures {
        let mean = |of: &dyn Fn(&Figures) -> Option<f64>| mean(self.newest.iter().filter_map(of));
        let predicted = |of: &dyn Fn(&Figures) -> Option<Predicted>| {
            Some(Predicted {
                average_precision: mean(&|figures| Some(of(figures)?.average_precision))?,
                log_loss: mean(&|figures| Some(of(figures)?.log_loss))?,
            })
        };
        Figures {
            candidate: predicted(&|figures| Some(figures.candidate)).unwrap_or_default(),
            published: predicted(&|figures| figures.published),
            anchor: predicted(&|figures| figures.anchor),
            edgebank: mean(&|figures| Some(figures.edgebank)).unwrap_or_default(),
        }
    }

    /// Bounds of the mean of a difference, each of which holds with this confidence; `None` if no batch has it.
    pub fn bounds(&self, confidence: f64, of: impl Fn(&Figures) -> Option<f64>) -> Option<Bounds> {
        let differences: Vec<f64> = self.newest.iter().filter_map(of).collect();
        Bounds::of(&differences, confidence)
    }

    pub fn to_numbers(&self) -> (u64, Vec<f64>) {
        (self.judged, self.newest.iter().flat_map(Figures::numbers).collect())
    }

    /// The evidence that became these numbers; `None` if there is none such.
    pub fn from_numbers(judged: u64, numbers: &[f64]) -> Option<Self> {
        let newest: Option<VecDeque<_>> = numbers.chunks(SAVED).map(Figures::from_numbers).collect();
        newest.filter(|newest| newest.len() <= BATCHES_MAX).map(|newest| Self { newest, judged })
    }
}

/// Bounds of a mean.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Bounds {
    pub lower: f64,
    pub upper: f64,
}

impl Bounds {
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss)] // small numbers
    fn of(differences: &[f64], confidence: f64) -> Option<Self> {
        let count = differences.len() as u32;
        let mut means: Vec<f64> = (0..RESAMPLES)
            .filter_map(|resample| {
                let prefix = rng::prefix([KEY, u64::from(count), resample]);
                let drawn = |i| rng::scale(rng::draw(prefix, u64::from(i)), count) as usize;
                mean((0..count).map(|i| differences[drawn(i)]))
            })
            .collect();
        means.sort_by(f64::total_cmp);
        let beyond = ((1.0 - confidence) * RESAMPLES as f64) as usize;
        Some(Self { lower: *means.get(beyond)?, upper: *means.iter().nth_back(beyond)? })
    }
}

#[allow(clippy::cast_precision_loss)] // few
fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (sum, count) = values.fold((0.0, 0_u32), |(sum, count), value| (sum + value, count + 1));
    (count > 0).then(|| sum / f64::from(count))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_hold_as_often_as_they_say() {
        let outside = |upper: bool| {
            (0..400_u64)
                .filter(|&case| {
                    let drawn: Vec<f64> =
                        (0..40).map(|i| f64::from(rng::normal_f32([case, i, 7, 0]))).collect();
                    let Bounds { lower, upper: above } = Bounds::of(&drawn, 0.95).unwrap();
                    assert!(lower < above, "case {case}");
                    if upper { above < 0.0 } else { lower > 0.0 }
                })
                .count()
        };
        // A bound of 95 % is missed in 5 % of the cases; of few values slightly more often.
        let missed = [outside(true), outside(false)];
        assert!(missed.iter().all(|missed| (10..=36).contains(missed)), "{missed:?} of 400");
    }

    #[test]
    fn one_value_is_its_own_bounds_and_none_has_none() {
        assert_eq!(Bounds::of(&[0.25], 0.95), Some(Bounds { lower: 0.25, upper: 0.25 }));
        assert_eq!(Bounds::of(&[], 0.95), None);
        let (one, two) = (Bounds::of(&[0.1, 0.3, 0.2], 0.9), Bounds::of(&[0.1, 0.3, 0.2], 0.9));
        assert!(one == two && one.is_some(), "the same in every run");
    }

    #[test]
    fn the_newest_batches_are_kept_and_come_back() {
        let mut evidence = Evidence::default();
        for i in 0..BATCHES_MAX + 3 {
            let one = Predicted { average_precision: i as f64, log_loss: 0.5 };
            evidence.push(Figures { candidate: one, published: Some(one), anchor: None, edgebank: 1.0 });
        }
        assert_eq!((evidence.newest.len(), evidence.judged()), (BATCHES_MAX, BATCHES_MAX as u64 + 3));
        let mean = evidence.mean();
        assert_eq!((mean.candidate.average_precision, mean.anchor), (3.0 + 127.5, None));
        let (judged, numbers) = evidence.to_numbers();
        let again = Evidence::from_numbers(judged, &numbers).unwrap();
        assert!(again.newest == evidence.newest && again.judged == judged);
        assert!(Evidence::from_numbers(judged, &numbers[1..]).is_none());
        assert!(Evidence::from_numbers(1, &[f64::NAN; SAVED]).is_none());
    }
}
