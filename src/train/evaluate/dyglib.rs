//! The published protocol of average precision: train with masked nodes, choose the epoch by validation,
//! test once. Test and inductive test each start from what the chosen epoch left after validation.

use super::fit::fit;
use super::{Candidates, EpochOptions, EvaluationError, Fitted, Pass, PassReport, Stage, Trainable, Watch};
use crate::train::protocol::{Draw, NegativeSource, Populations};
use crate::train::stream::Stream;

/// Figures under the published protocol.
#[derive(Clone, Debug, PartialEq)]
pub struct DyglibReport {
    /// The validation part, and how training went.
    pub fitted: Fitted<PassReport>,
    /// The test part: all of its events.
    pub test: PassReport,
    /// Test events of new nodes; `None` if there are none.
    pub inductive: Option<PassReport>,
}

/// The negatives of each part that is scored.
pub struct PartNegatives {
    /// Of the validation part.
    pub validation: NegativeSource,
    /// Of the test part.
    pub test: NegativeSource,
    /// Of the inductive test.
    pub inductive: NegativeSource,
}

impl PartNegatives {
    /// Negatives drawn by `seed`: from all distinct destinations of the stream, and for the inductive
    /// test from the destinations of its events.
    #[must_use]
    pub fn drawn(stream: &Stream, populations: &Populations, seed: u64) -> Self {
        let all = |draw: Draw| NegativeSource::drawn(stream, 0..stream.len(), draw.seed(seed, 0));
        let subset = populations.inductive.iter().copied();
        Self {
            validation: all(Draw::Validation),
            test: all(Draw::Test),
            inductive: NegativeSource::drawn(stream, subset, Draw::Inductive.seed(seed, 0)),
        }
    }
}

/// Trains `contender` and scores validation, test and inductive test. With `candidates` the events of the
/// test part are ranked among them as well.
///
/// # Errors
/// When the contender fails, or a part has nothing to score.
pub fn evaluate_dyglib<T: Trainable>(
    stream: &Stream,
    populations: &Populations,
    negatives: &PartNegatives,
    contender: &mut T,
    options: &EpochOptions,
    candidates: Option<&Candidates>,
    watch: &mut Watch<'_>,
) -> Result<DyglibReport, EvaluationError> {
    let parts = [populations.validation().collect(), populations.test().collect()];
    let [validation_rows, test_rows]: [Vec<usize>; 2] = parts;
    let pass = |rows, negatives, stage, epoch| {
        let candidates = if stage == Stage::Test { candidates } else { None };
        Pass { stream, rows, negatives, batch_size: options.batch_size, candidates, stage, epoch }
    };
    let validate = |contender: &mut T, epoch, watch: &mut Watch<'_>| {
        let pass = pass(&validation_rows, &negatives.validation, Stage::Validation, epoch);
        let report = pass.run(contender, watch)?;
        Ok((report.ranking.average_precision, report))
    };
    let (fitted, kept) = fit(stream, populations, contender, options, validate, watch)?;
    contender.restore(&kept)?;
    let test = pass(&test_rows, &negatives.test, Stage::Test, 0).run(contender, watch)?;
    let inductive = match populations.inductive.as_slice() {
        [] => None,
        rows => {
            contender.restore(&kept)?;
            Some(pass(rows, &negatives.inductive, Stage::Inductive, 0).run(contender, watch)?)
        }
    };
    Ok(DyglibReport { fitted, test, inductive })
}
