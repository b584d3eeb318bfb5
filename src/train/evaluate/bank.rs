//! EdgeBank under the published protocol: the bank starts with the masked training edges and takes in
//! each scored batch.

use super::{Candidates, EvaluationError, PartNegatives, Pass, Stage, StaticReport, Watch};
use crate::train::edgebank::{BankRule, EdgeBank};
use crate::train::protocol::{Batch, NegativeSource, Populations};
use crate::train::stream::Stream;

/// Scores validation, test and inductive test. The inductive pass starts from the bank as it stood
/// before test, as it does for learned models.
///
/// # Errors
/// When a part has nothing to score.
pub fn evaluate_bank(
    stream: &Stream,
    populations: &Populations,
    negatives: &PartNegatives,
    rule: BankRule,
    batch_size: usize,
    candidates: Option<&Candidates>,
    watch: &mut Watch<'_>,
) -> Result<StaticReport, EvaluationError> {
    let mut bank = EdgeBank::new(rule);
    let mut batch = Batch::default();
    batch.load(stream, populations.train.iter().copied());
    bank.observe(&batch.src, &batch.dst, &batch.times);

    let mut run = |bank: &mut EdgeBank,
                   rows: &[usize],
                   negatives: &NegativeSource,
                   candidates: Option<&Candidates>,
                   stage| {
        Pass { stream, rows, negatives, batch_size, candidates, stage, epoch: 0 }.run(bank, watch)
    };
    let rows: Vec<usize> = populations.validation().collect();
    let validation = run(&mut bank, &rows, &negatives.validation, None, Stage::Validation)?;
    let mut before_test = bank.clone();
    let rows: Vec<usize> = populations.test().collect();
    let test = run(&mut bank, &rows, &negatives.test, candidates, Stage::Test)?;
    let inductive = match populations.inductive.as_slice() {
        [] => None,
        rows => Some(run(&mut before_test, rows, &negatives.inductive, None, Stage::Inductive)?),
    };
    Ok(StaticReport { validation, test, inductive, epochs: 0, best_epoch: 0, train_events_per_second: None })
}
