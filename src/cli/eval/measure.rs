//! Wires one run: contender, protocol and negatives, as the flags select.

use std::path::Path;

use anyhow::{Context, ensure};

use super::given::counts;
use super::report::Report;
use super::{EvalArgs, ModelName, NegativesFlag};
use crate::cli::events::{read_nodes, read_pairs};
use crate::device::{self, Device};
use crate::train::edgebank::EdgeBank;
use crate::train::evaluate::dyglib::{PartNegatives, evaluate_dyglib};
use crate::train::evaluate::learned::{Learned, Sight, TestThenTrain};
use crate::train::evaluate::mrr::{MrrReport, evaluate_mrr};
use crate::train::evaluate::node_label::evaluate_node_label;
use crate::train::evaluate::prequential::evaluate_prequential;
use crate::train::evaluate::{Candidates, EpochOptions, Watch};
use crate::train::historical::PastPairs;
use crate::train::popularity::Popularity;
use crate::train::protocol::{Draw, NegativeSource, Populations, Split, draw_masked};
use crate::train::stream::Stream;
use crate::train::{Trainer, TrainerOptions};

/// Candidates per event under mrr by default.
const CANDIDATES: usize = 100;

/// One run and what it needs.
pub struct Run<'a> {
    /// The flags.
    pub args: &'a EvalArgs,
    /// The events.
    pub stream: &'a Stream,
    /// The device that models compute on.
    pub device: &'a Device,
    /// Receives progress reports.
    pub watch: &'a mut Watch<'a>,
}

impl Run<'_> {
    /// Average precision under the published protocol.
    ///
    /// # Errors
    /// When files or flags do not fit the events, or the model diverges.
    pub fn dyglib(self, report: &mut Report) -> anyhow::Result<()> {
        let Self { args, stream, device, .. } = self;
        let masked = match &args.masked {
            Some(path) => read_nodes(path, stream)?,
            None => draw_masked(stream, args.seed),
        };
        let populations = Populations::new(stream, &masked)?;
        report.populations(&populations);
        let negatives = self.part_negatives(&populations)?;
        let candidates = args.candidates.map(|count| Candidates::drawn(stream, count as usize, args.seed));
        let (candidates, options, watch) = (candidates.as_ref(), self.epoch_options(), self.watch);
        let figures = match args.model {
            ModelName::Edgebank => {
                let mut bank = EdgeBank::new(args.edgebank.rule());
                evaluate_dyglib(stream, &populations, &negatives, &mut bank, &options, candidates, watch)
            }
            ModelName::Poptrack => {
                let mut counts = Popularity::new(args.half_life);
                evaluate_dyglib(stream, &populations, &negatives, &mut counts, &options, candidates, watch)
            }
            _ => {
                let mut model = Learned::new(stream, &populations, trainer(args, stream, device)?)?;
                evaluate_dyglib(stream, &populations, &negatives, &mut model, &options, candidates, watch)
            }
        }?;
        report.dyglib_figures(&figures);
        Ok(())
    }

    /// One positive against many.
    ///
    /// # Errors
    /// When files or flags do not fit the events, or the model diverges.
    pub fn mrr(mut self, report: &mut Report) -> anyhow::Result<()> {
        let Self { args, stream, .. } = self;
        ensure!(args.masked.is_none(), "--masked belongs to --protocol dyglib; leave it out");
        let populations = Populations::new(stream, &[])?;
        report.populations(&populations);
        let (validation, test) = (populations.validation(), populations.test());
        let of = |flag, part, range: std::ops::Range<usize>| self.candidates(flag, part, range, &populations);
        let validation = of(&args.val_negatives, "validation", validation)?;
        let test = of(&args.negatives, "test", test)?;
        report.candidates(&validation, &test);
        let figures = self.ranked(args.model, &populations, [&validation, &test])?;
        report.mrr_figures(&figures);
        Ok(())
    }

    /// One positive against every destination so far, and the baselines beside it.
    ///
    /// # Errors
    /// When flags do not fit the events, or the model diverges.
    pub fn topk(mut self, report: &mut Report) -> anyhow::Result<()> {
        let Self { args, stream, .. } = self;
        self.refuse_given_negatives()?;
        ensure!(args.masked.is_none(), "--masked belongs to --protocol dyglib; leave it out");
        let populations = Populations::new(stream, &[])?;
        report.populations(&populations);
        // The epoch is chosen by few candidates: every destination for each event of each epoch would take hours.
        let count = args.candidates.map_or(CANDIDATES, |count| count as usize);
        let parts = [&Candidates::drawn(stream, count, args.seed), &Candidates::known(stream)];
        report.candidates(parts[0], parts[1]);
        let figures = self.ranked(args.model, &populations, parts)?;
        report.mrr_figures(&figures);
        for baseline in [ModelName::Edgebank, ModelName::Poptrack] {
            if baseline != args.model {
                report.ranks_beside(baseline, &self.ranked(baseline, &populations, parts)?.test);
            }
        }
        Ok(())
    }

    /// Ranks of validation and test by a model or baseline, among the candidates of each.
    fn ranked(
        &mut self,
        model: ModelName,
        populations: &Populations,
        parts: [&Candidates; 2],
    ) -> anyhow::Result<MrrReport> {
        let options = self.epoch_options();
        let Self { args, stream, device, watch } = self;
        Ok(match model {
            ModelName::Edgebank => {
                let mut bank = EdgeBank::new(args.edgebank.rule());
                evaluate_mrr(stream, populations, parts, &mut bank, &options, watch)
            }
            ModelName::Poptrack => {
                let mut counts = Popularity::new(args.half_life);
                evaluate_mrr(stream, populations, parts, &mut counts, &options, watch)
            }
            _ => {
                let mut model = Learned::new(stream, populations, trainer(args, stream, device)?)?;
                evaluate_mrr(stream, populations, parts, &mut model, &options, watch)
            }
        }?)
    }

    /// Labels of nodes.
    ///
    /// # Errors
    /// When files or flags do not fit the events, or the model diverges.
    pub fn node_label(self, report: &mut Report) -> anyhow::Result<()> {
        self.refuse_negatives()?;
        let Self { args, stream, device, .. } = self;
        let populations = Populations::new(stream, &[])?;
        report.populations(&populations);
        let (options, watch) = (self.epoch_options(), self.watch);
        let figures = match args.model {
            ModelName::Edgebank | ModelName::Poptrack => {
                anyhow::bail!("--protocol node-label needs a model with node embeddings, such as tgn or walk")
            }
            _ => {
                let mut model = Learned::new(stream, &populations, trainer(args, stream, device)?)?;
                evaluate_node_label(stream, &populations, &mut model, &options, watch)
            }
        }?;
        report.node_label_figures(&figures);
        Ok(())
    }

    /// Test-then-train.
    ///
    /// # Errors
    /// When flags do not fit, or the model diverges.
    pub fn prequential(self, report: &mut Report) -> anyhow::Result<()> {
        self.refuse_negatives()?;
        let Self { args, stream, device, watch } = self;
        let bank = || EdgeBank::new(args.edgebank.rule());
        let blind = || Some((bank(), Sight::EarlierBatches));
        let (batch_size, draws) = (args.batch_events as usize, (args.seed, args.met_share()));
        let figures = match args.model {
            ModelName::Edgebank => evaluate_prequential(stream, &mut bank(), None, batch_size, draws, watch),
            ModelName::Poptrack => {
                let mut counts = Popularity::new(args.half_life);
                evaluate_prequential(stream, &mut counts, blind(), batch_size, draws, watch)
            }
            _ => {
                let trainer = trainer(args, stream, device)?;
                // A walk model sees nothing of its batch.
                let samples = trainer.model().needs().embeds();
                let sight = if samples { args.sight.into() } else { Sight::EarlierBatches };
                let mut model = TestThenTrain::new(stream, trainer, sight)?.learning_from(args.train_share);
                evaluate_prequential(stream, &mut model, Some((bank(), sight)), batch_size, draws, watch)
            }
        }?;
        report.split(Split::by_quantiles(stream.times()), stream.len());
        report.prequential_figures(&figures);
        Ok(())
    }

    /// Refuses the flags of protocols that score given negatives.
    fn refuse_negatives(&self) -> anyhow::Result<()> {
        self.refuse_given_negatives()?;
        let args = self.args;
        for (flag, given) in
            [("--masked", args.masked.is_some()), ("--candidates", args.candidates.is_some())]
        {
            ensure!(!given, "{flag} belongs to --protocol dyglib or mrr; leave it out");
        }
        Ok(())
    }

    /// Refuses the flags of negatives.
    fn refuse_given_negatives(&self) -> anyhow::Result<()> {
        let args = self.args;
        for (flag, given) in [
            ("--negatives", args.negatives != NegativesFlag::Random),
            ("--val-negatives", args.val_negatives != NegativesFlag::Random),
        ] {
            ensure!(!given, "{flag} belongs to --protocol dyglib or mrr; leave it out");
        }
        Ok(())
    }

    fn epoch_options(&self) -> EpochOptions {
        let EvalArgs { epochs, batch_events, seed, .. } = *self.args;
        let met_share = self.args.met_share();
        EpochOptions { epochs: epochs as usize, batch_size: batch_events as usize, met_share, seed }
    }

    /// The negatives of all parts; those of the inductive test are random unless pairs of the past are requested.
    fn part_negatives(&self, populations: &Populations) -> anyhow::Result<PartNegatives> {
        let Self { args, stream, .. } = self;
        let mut negatives = PartNegatives::drawn(stream, populations, args.seed);
        let all: Vec<usize> = (0..stream.len()).collect();
        let parts = [
            ("validation", &args.val_negatives, populations.validation(), &mut negatives.validation),
            ("test", &args.negatives, populations.test(), &mut negatives.test),
        ];
        for (part, flag, range, source) in parts {
            let rows = &all[range.clone()];
            match flag {
                NegativesFlag::Random => {}
                NegativesFlag::File(path) => *source = given(path, stream, part, rows.len())?,
                NegativesFlag::Historical => *source = self.past(&all, 0, rows),
                NegativesFlag::Inductive => *source = self.past(&all, range.start, rows),
            }
        }
        let (new, test) = (&populations.inductive, populations.split.test);
        match args.negatives {
            NegativesFlag::Historical => negatives.inductive = self.past(new, 0, new),
            NegativesFlag::Inductive => negatives.inductive = self.past(new, test, new),
            NegativesFlag::Random | NegativesFlag::File(_) => {}
        }
        Ok(negatives)
    }

    /// Negatives from pairs of `rows`, not seen before row `from`.
    fn past(&self, rows: &[usize], from: usize, part: &[usize]) -> NegativeSource {
        let seed = Draw::Past.seed(self.args.seed, part.first().map_or(0, |&row| row as u64));
        PastPairs { stream: self.stream, rows, from, seed }.negatives(part, self.args.batch_events as usize)
    }

    fn candidates(
        &self,
        flag: &NegativesFlag,
        part: &'static str,
        range: std::ops::Range<usize>,
        populations: &Populations,
    ) -> anyhow::Result<Candidates> {
        let Self { args, stream, .. } = self;
        let count = args.candidates.map_or(CANDIDATES, |count| count as usize);
        Ok(match flag {
            NegativesFlag::Random => Candidates::drawn(stream, count, args.seed),
            NegativesFlag::Historical => {
                Candidates::historical(stream, populations.split.validation, count, args.seed)
            }
            NegativesFlag::Inductive => {
                anyhow::bail!(
                    "inductive negatives belong to --protocol dyglib; mrr has random, historical or a file"
                )
            }
            NegativesFlag::File(path) => {
                ensure!(
                    args.candidates.is_none(),
                    "--candidates is for drawn ones; {} has its own",
                    path.display()
                );
                let (pairs, counts) = (read_pairs(path, stream)?, counts(path, part, range.len())?);
                Candidates::given(stream, &pairs, counts, part, range)
                    .with_context(|| format!("{} does not fit the events", path.display()))?
            }
        })
    }
}

fn given(
    path: &Path,
    stream: &Stream,
    part: &'static str,
    expected: usize,
) -> anyhow::Result<NegativeSource> {
    NegativeSource::given(&read_pairs(path, stream)?, part, expected)
        .with_context(|| format!("{} does not fit the events", path.display()))
}

#[allow(clippy::cast_possible_truncation)]
fn trainer(args: &EvalArgs, stream: &Stream, device: &Device) -> anyhow::Result<Trainer> {
    if *device == Device::Cpu {
        eprintln!("{}", device::probe().reason);
    }
    let model = args.model_options().context("a baseline is not trained")?;
    let model = model.with_features(stream.feature_dimension(), 0);
    let options = TrainerOptions {
        model,
        learning_rate: args.learning_rate as f32,
        gradient_delay_batches: args.gradient_delay_batches,
        precision: args.matmul_precision.checked()?,
        seed: args.seed,
        ..TrainerOptions::default()
    };
    let mut trainer = Trainer::new(options, device)?;
    args.compute.prepare(&mut trainer);
    Ok(trainer)
}
