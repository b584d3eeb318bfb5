//! Ranking figures over scores of positive and negative pairs: average precision, ROC-AUC and
//! reciprocal rank, each with a stated rule for ties, and their mean over batches beside the pooled
//! figure.
//!
//! Average precision adds up precision times gain in recall after each *whole group* of equal scores,
//! so no order inside a tie can help; a constant score gets the share of positives. Half a tie counts
//! in ROC-AUC and in the rank. A score that is not a number is below all that are, and ties with its like.
//! Knows nothing of graphs, models or protocols.

use std::cmp::Ordering;

/// The order of scores.
fn compare(a: f32, b: f32) -> Ordering {
    b.is_nan().cmp(&a.is_nan()).then_with(|| if a.is_nan() { Ordering::Equal } else { a.total_cmp(&b) })
}

/// Average precision of `positive` against `negative` scores, `0..=1`; `None` without a positive.
#[must_use]
pub fn average_precision(positive: &[f32], negative: &[f32]) -> Option<f64> {
    if positive.is_empty() {
        return None;
    }
    let (mut hits, mut seen, mut sum) = (0_u64, 0_u64, 0.0);
    for group in TieGroups::new(positive, negative) {
        hits += group.positive;
        seen += group.positive + group.negative;
        if group.positive > 0 {
            sum += as_f64(group.positive) * as_f64(hits) / as_f64(seen);
        }
    }
    Some(sum / positive.len() as f64)
}

/// Area under the ROC curve, `0..=1`: the chance that a positive scores above a negative, half of it
/// if they score the same. `None` unless there is one of each.
#[must_use]
pub fn roc_auc(positive: &[f32], negative: &[f32]) -> Option<f64> {
    if positive.is_empty() || negative.is_empty() {
        return None;
    }
    let (mut above, mut sum) = (0_u64, 0.0);
    for group in TieGroups::new(positive, negative) {
        sum += as_f64(group.negative) * (as_f64(above) + 0.5 * as_f64(group.positive));
        above += group.positive;
    }
    Some(sum / (positive.len() as f64 * negative.len() as f64))
}

/// The rank of `positive` among `candidates`, from 1: the mean of the rank if it stood before all candidates of
/// its score and of the rank if it stood behind them (the rule of the Temporal Graph Benchmark).
#[must_use]
pub fn rank(positive: f32, candidates: &[f32]) -> f64 {
    let above = candidates.iter().filter(|score| compare(**score, positive).is_gt()).count();
    let not_below = candidates.iter().filter(|score| compare(**score, positive).is_ge()).count();
    1.0 + 0.5 * (above + not_below) as f64
}

/// One over the [`rank`], `0..=1`.
#[must_use]
pub fn reciprocal_rank(positive: f32, candidates: &[f32]) -> f64 {
    rank(positive, candidates).recip()
}

/// Ranks up to this one are hits.
const HIT: f64 = 10.0;

/// Collects ranks.
#[derive(Clone, Copy, Debug, Default)]
pub struct RankMeter {
    reciprocal_sum: f64,
    hits: usize,
    events: usize,
}

/// Figures over many ranks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RankSummary {
    /// Mean of one over the rank, `0..=1`.
    pub mean_reciprocal_rank: f64,
    /// Share of events with a rank of at most 10.
    pub hits_at_10: f64,
    /// Number of events.
    pub events: usize,
}

impl RankMeter {
    /// Adds a [`rank`]; an infinite one is a miss.
    pub fn push(&mut self, rank: f64) {
        self.reciprocal_sum += rank.recip();
        self.hits += usize::from(rank <= HIT);
        self.events += 1;
    }

    /// The figures; `None` before the first rank.
    #[must_use]
    pub fn summary(&self) -> Option<RankSummary> {
        let share = |sum: f64| sum / self.events as f64;
        (self.events > 0).then(|| RankSummary {
            mean_reciprocal_rank: share(self.reciprocal_sum),
            hits_at_10: share(self.hits as f64),
            events: self.events,
        })
    }
}

#[allow(clippy::cast_precision_loss)]
fn as_f64(count: u64) -> f64 {
    count as f64
}

/// How many positives and negatives share one score.
struct TieGroup {
    positive: u64,
    negative: u64,
}

/// Groups of equal scores, highest first.
struct TieGroups {
    scores: Vec<(f32, bool)>,
    next: usize,
}

impl TieGroups {
    fn new(positive: &[f32], negative: &[f32]) -> Self {
        let labeled = positive.iter().map(|&s| (s, true)).chain(negative.iter().map(|&s| (s, false)));
        let mut scores: Vec<_> = labeled.collect();
        scores.sort_unstable_by(|a, b| compare(b.0, a.0));
        Self { scores, next: 0 }
    }
}

impl Iterator for TieGroups {
    type Item = TieGroup;

    fn next(&mut self) -> Option<TieGroup> {
        let rest = self.scores.get(self.next..)?;
        let score = rest.first()?.0;
        let group = rest.iter().take_while(|other| compare(other.0, score).is_eq());
        let (mut positive, mut negative) = (0, 0);
        for &(_, is_positive) in group {
            if is_positive { positive += 1 } else { negative += 1 }
        }
        self.next += (positive + negative) as usize;
        Some(TieGroup { positive, negative })
    }
}

/// Collects the scores of batches.
#[derive(Clone, Debug, Default)]
pub struct RankingMeter {
    positive: Vec<f32>,
    negative: Vec<f32>,
    precision_sum: f64,
    auc_sum: f64,
    batches: usize,
}

/// Figures over many batches.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RankingSummary {
    /// Unweighted mean over batches of average precision, `0..=1`.
    pub average_precision: f64,
    /// Unweighted mean over batches of ROC-AUC, `0..=1`.
    pub auc: f64,
    /// Average precision over all scores at once, `0..=1`.
    pub pooled_average_precision: f64,
    /// ROC-AUC over all scores at once, `0..=1`.
    pub pooled_auc: f64,
    /// Number of batches.
    pub batches: usize,
    /// Number of positives.
    pub events: usize,
}

impl RankingMeter {
    /// Adds the scores of one batch and returns its average precision; ignores a batch without a
    /// positive or without a negative.
    pub fn push(&mut self, positive: &[f32], negative: &[f32]) -> Option<f64> {
        let (precision, auc) = (average_precision(positive, negative)?, roc_auc(positive, negative)?);
        self.precision_sum += precision;
        self.auc_sum += auc;
        self.batches += 1;
        self.positive.extend_from_slice(positive);
        self.negative.extend_from_slice(negative);
        Some(precision)
    }

    /// Mean over the batches so far of average precision; `None` before the first.
    #[must_use]
    pub fn average_precision(&self) -> Option<f64> {
        (self.batches > 0).then(|| self.precision_sum / self.batches as f64)
    }

    /// The figures; `None` if no batch was added.
    #[must_use]
    pub fn summary(&self) -> Option<RankingSummary> {
        Some(RankingSummary {
            average_precision: self.average_precision()?,
            auc: self.auc_sum / self.batches as f64,
            pooled_average_precision: average_precision(&self.positive, &self.negative)?,
            pooled_auc: roc_auc(&self.positive, &self.negative)?,
            batches: self.batches,
            events: self.positive.len(),
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn known_values() {
        let ap = average_precision(&[0.9, 0.7], &[0.8, 0.1]).unwrap();
        assert!((ap - 0.8333).abs() < 1e-4, "{ap}");
        assert_eq!(average_precision(&[0.5; 7], &[0.5; 7]), Some(0.5), "constant scores earn the base rate");
        assert_eq!(average_precision(&[1.0, 1.0], &[0.0; 9]), Some(1.0));
        assert_eq!(roc_auc(&[0.9, 0.7], &[0.8, 0.1]), Some(0.75));
        assert_eq!(roc_auc(&[0.5; 3], &[0.5; 4]), Some(0.5));
        assert_eq!(average_precision(&[], &[1.0]), None);
        assert_eq!(roc_auc(&[1.0], &[]), None);
    }

    #[test]
    fn a_tie_counts_as_half_a_place() {
        assert_eq!(reciprocal_rank(0.9, &[0.1, 0.2]), 1.0);
        assert_eq!(reciprocal_rank(0.1, &[0.2, 0.3]), 1.0 / 3.0);
        for candidates in [1, 9, 100] {
            let constant = reciprocal_rank(0.5, &vec![0.5; candidates]);
            assert!((constant - 2.0 / (candidates as f64 + 2.0)).abs() < 1e-12);
        }
    }

    #[test]
    fn what_is_not_a_number_ranks_behind_all_numbers() {
        for nan in [f32::NAN, -f32::NAN] {
            assert_eq!(average_precision(&[nan], &[f32::NEG_INFINITY, 0.0, 1.0]), Some(0.25));
            assert_eq!(roc_auc(&[nan], &[f32::NEG_INFINITY]), Some(0.0));
            assert_eq!((roc_auc(&[nan], &[f32::NAN]), roc_auc(&[-1.0], &[nan])), (Some(0.5), Some(1.0)));
            assert_eq!((rank(nan, &[0.5, -7.0]), rank(-7.0, &[nan, nan])), (3.0, 1.0));
            assert_eq!(rank(nan, &[f32::NAN; 3]), 2.5, "all alike are a tie");
        }
    }

    #[test]
    fn the_mean_over_batches_weighs_a_short_batch_like_a_full_one() {
        let mut meter = RankingMeter::default();
        meter.push(&[0.9; 8], &[0.1; 8]);
        meter.push(&[0.1], &[0.9]);
        meter.push(&[], &[]);
        let summary = meter.summary().unwrap();
        assert_eq!((summary.batches, summary.events), (2, 9));
        assert_eq!(summary.average_precision, 0.75);
        assert_eq!(summary.auc, 0.5);
        assert!(summary.pooled_average_precision > 0.8);
        assert!(RankingMeter::default().summary().is_none());
    }

    /// Precision at the threshold of every positive, counted pair by pair.
    fn slow_average_precision(positive: &[f32], negative: &[f32]) -> f64 {
        let precision = |threshold: f32| {
            let hits = positive.iter().filter(|&&s| s >= threshold).count() as f64;
            hits / (hits + negative.iter().filter(|&&s| s >= threshold).count() as f64)
        };
        positive.iter().map(|&s| precision(s)).sum::<f64>() / positive.len() as f64
    }

    fn slow_auc(positive: &[f32], negative: &[f32]) -> f64 {
        let mut sum = 0.0;
        for p in positive {
            for n in negative {
                sum += if p > n { 1.0 } else { f64::from(u8::from(p == n)) / 2.0 };
            }
        }
        sum / (positive.len() * negative.len()) as f64
    }

    /// Few distinct values, so that ties are common.
    fn scores() -> impl Strategy<Value = Vec<f32>> {
        prop::collection::vec((0_u8..12).prop_map(|s| f32::from(s) / 11.0), 1..60)
    }

    proptest! {
        #[test]
        fn agrees_with_counting_pair_by_pair(positive in scores(), negative in scores()) {
            let ap = average_precision(&positive, &negative).unwrap();
            prop_assert!((ap - slow_average_precision(&positive, &negative)).abs() < 1e-12);
            let auc = roc_auc(&positive, &negative).unwrap();
            prop_assert!((auc - slow_auc(&positive, &negative)).abs() < 1e-12);
            prop_assert!((roc_auc(&negative, &positive).unwrap() + auc - 1.0).abs() < 1e-12);
        }
    }
}
