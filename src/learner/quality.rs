//! Quality over the last batches, measured before the model learned from them, beside EdgeBank.

use std::collections::VecDeque;

/// Quality on one batch. Values are in [0, 1]; a batch-wise mean is reported, as the
/// papers do.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct BatchQuality {
    /// Average precision of the model.
    pub average_precision: f64,
    /// Area under its ROC curve.
    pub auc: f64,
    /// Mean reciprocal rank of true destinations among random candidates, if any were ranked.
    pub mrr: Option<f64>,
    /// Average precision of EdgeBank, which has the pairs that the graph keeps, on the same positives and negatives.
    pub baseline: f64,
}

/// The mean over the last batches.
#[derive(Debug)]
pub struct QualityWindow {
    batches: VecDeque<BatchQuality>,
    /// Mean reciprocal ranks of the last batches of which positives were ranked, which not all are.
    ranks: VecDeque<f64>,
    capacity: usize,
    ranks_capacity: usize,
}

impl QualityWindow {
    /// An empty window over the last `capacity` batches, and over the last `ranks_capacity` of those of which positives
    /// are ranked.
    #[must_use]
    pub fn new(capacity: usize, ranks_capacity: usize) -> Self {
        let (capacity, ranks_capacity) = (capacity.max(1), ranks_capacity.max(1));
        Self { batches: VecDeque::new(), ranks: VecDeque::new(), capacity, ranks_capacity }
    }

    /// Adds a batch; the oldest leaves when the window is full.
    pub fn push(&mut self, batch: BatchQuality) {
        push(&mut self.batches, batch, self.capacity);
        batch.mrr.into_iter().for_each(|mrr| push(&mut self.ranks, mrr, self.ranks_capacity));
    }

    /// The mean, or `None` before the first batch.
    #[must_use]
    pub fn mean(&self) -> Option<BatchQuality> {
        if self.batches.is_empty() {
            return None;
        }
        let mean = |of: fn(&BatchQuality) -> f64| {
            self.batches.iter().map(of).sum::<f64>() / count(self.batches.len())
        };
        Some(BatchQuality {
            average_precision: mean(|batch| batch.average_precision),
            auc: mean(|batch| batch.auc),
            mrr: (!self.ranks.is_empty()).then(|| self.ranks.iter().sum::<f64>() / count(self.ranks.len())),
            baseline: mean(|batch| batch.baseline),
        })
    }
}

/// Adds `value` to a window of so many.
fn push<T>(window: &mut VecDeque<T>, value: T, capacity: usize) {
    if window.len() == capacity {
        window.pop_front();
    }
    window.push_back(value);
}

#[allow(clippy::cast_precision_loss)] // windows are short
fn count(n: usize) -> f64 {
    n as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mean_is_over_the_last_batches_and_over_ranked_ones() {
        let mut window = QualityWindow::new(2, 2);
        assert_eq!(window.mean(), None);
        for (ap, mrr) in [(0.1, None), (0.4, Some(0.5)), (0.8, None)] {
            window.push(BatchQuality { average_precision: ap, auc: ap, mrr, baseline: 0.5 });
        }
        let mean = window.mean().unwrap();
        assert!((mean.average_precision - 0.6).abs() < 1e-12);
        assert_eq!(mean.mrr, Some(0.5));
        assert!((mean.baseline - 0.5).abs() < 1e-12);
        let mut window = QualityWindow::new(20, 2);
        for mrr in [0.1, 0.2, 0.4] {
            window.push(BatchQuality { mrr: Some(mrr), ..BatchQuality::default() });
        }
        assert!((window.mean().unwrap().mrr.unwrap() - 0.3).abs() < 1e-12, "the last two");
    }
}
