//! One positive against many: every validation and test event is ranked among its candidates, batch by
//! batch, from the state before the batch (the protocol of the Temporal Graph Benchmark). The split is the
//! published one, no node is masked, and the epoch is chosen by the mean reciprocal rank of validation.

use super::fit::fit;
use super::{Candidates, EpochOptions, EvaluationError, Fitted, Pass, Stage, Trainable, Watch};
use crate::train::protocol::{NegativeSource, Populations};
use crate::train::ranking::RankSummary;
use crate::train::stream::Stream;

/// Figures of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct MrrReport {
    /// The validation part, and how training went.
    pub fitted: Fitted<RankSummary>,
    /// The test part.
    pub test: RankSummary,
}

/// Trains `contender` and ranks the events of validation and test among `candidates` of these parts.
///
/// # Errors
/// When the contender fails, or a part has nothing to rank.
pub fn evaluate_mrr<T: Trainable>(
    stream: &Stream,
    populations: &Populations,
    [validation, test]: [&Candidates; 2],
    contender: &mut T,
    options: &EpochOptions,
    watch: &mut Watch<'_>,
) -> Result<MrrReport, EvaluationError> {
    let parts = [populations.validation().collect(), populations.test().collect()];
    let [validation_rows, test_rows]: [Vec<usize>; 2] = parts;
    let unread = NegativeSource::Given { src: Vec::new(), dst: Vec::new() };
    let pass = |rows, candidates, stage, epoch| Pass {
        stream,
        rows,
        negatives: &unread,
        batch_size: options.batch_size,
        candidates: Some(candidates),
        stage,
        epoch,
    };
    let validate = |contender: &mut T, epoch, watch: &mut Watch<'_>| {
        let ranks =
            pass(&validation_rows, validation, Stage::Validation, epoch).run_ranks(contender, watch)?;
        Ok((ranks.mean_reciprocal_rank, ranks))
    };
    let (fitted, kept) = fit(stream, populations, contender, options, validate, watch)?;
    contender.restore(&kept)?;
    let test = pass(&test_rows, test, Stage::Test, 0).run_ranks(contender, watch)?;
    Ok(MrrReport { fitted, test })
}
