//! [`fit`]: the loop over epochs that protocols with a training part share.
//!
//! The stream is forgotten before each epoch and rolls on through validation. The epoch with the highest
//! validation figure is kept, with what was learned and the state after validation.

use super::{Epoch, EvaluationError, Trainable, Watch};
use crate::train::protocol::{Draw, NegativeSource, Populations};
use crate::train::stream::Stream;

/// How a contender is trained.
#[derive(Clone, Copy, Debug)]
pub struct EpochOptions {
    /// Passes over the training part, at least 1; a contender that does not learn has one.
    pub epochs: usize,
    /// Events a batch, at least 1.
    pub batch_size: usize,
    /// Share of the negatives of training that are destinations which the source met before, 0 to 1.
    pub met_share: f64,
    /// Seed of the negatives of training.
    pub seed: u64,
}

/// The best epoch.
#[derive(Clone, Debug, PartialEq)]
pub struct Fitted<V> {
    /// What validation found.
    pub validation: V,
    /// Epochs trained; 0 for a contender that does not learn.
    pub epochs: usize,
    /// The epoch with the highest validation figure, counted from 1; 0 if there was none.
    pub best_epoch: usize,
    /// The validation figure of each epoch.
    pub curve: Vec<f64>,
    /// Events trained on per second of training time, over all epochs.
    pub train_events_per_second: Option<f64>,
}

/// Trains `contender`, validates each epoch, and returns what the best one found and left. `validate` is given the
/// number of the epoch, 0 if the contender does not learn, and returns the figure to choose by.
pub(super) fn fit<T: Trainable, V>(
    stream: &Stream,
    populations: &Populations,
    contender: &mut T,
    options: &EpochOptions,
    mut validate: impl FnMut(&mut T, usize, &mut Watch<'_>) -> Result<(f64, V), EvaluationError>,
    watch: &mut Watch<'_>,
) -> Result<(Fitted<V>, T::Kept), EvaluationError> {
    let epochs = if T::LEARNS { options.epochs.max(1) } else { 1 };
    let number = |epoch: usize| if T::LEARNS { epoch } else { 0 };
    let mut best: Option<(usize, V, T::Kept)> = None;
    let (mut curve, mut seconds) = (Vec::<f64>::new(), 0.0);
    for epoch in 1..=epochs {
        contender.reset();
        let seed = Draw::Train.seed(options.seed, epoch as u64);
        let negatives = NegativeSource::drawn(stream, populations.train.iter().copied(), seed);
        let negatives = negatives.with_met(stream, &populations.train, options.met_share);
        let mut watch_training = |progress: &_| watch(progress);
        let mut part = Epoch::new(
            stream,
            &populations.train,
            &negatives,
            options.batch_size,
            epoch,
            &mut watch_training,
        );
        contender.train(&mut part)?;
        seconds += part.record.seconds;
        let (figure, validation) = validate(contender, number(epoch), watch)?;
        let better = curve.iter().all(|&earlier| figure > earlier);
        curve.push(figure);
        if better {
            best = Some((number(epoch), validation, contender.keep()?));
        }
    }
    let Some((best_epoch, validation, kept)) = best else {
        return Err(EvaluationError::NothingScored { part: "validation" });
    };
    let trained = (epochs * populations.train.len()) as f64;
    let train_events_per_second = T::LEARNS.then(|| trained / seconds.max(f64::MIN_POSITIVE));
    Ok((Fitted { validation, epochs: number(epochs), best_epoch, curve, train_events_per_second }, kept))
}
