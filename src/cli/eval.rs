//! `evergraph eval`: measures a model on an event file under a named protocol.
//!
//! Progress, notes and a summary go to standard error; the figures are one JSON object. Wires the file
//! readers to `train::evaluate` and measures nothing itself.

mod progress;
mod report;

use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use clap::{Args, ValueEnum};

use super::events::{read_nodes, read_pairs, read_stream};
use crate::device;
use crate::model::{GraphMixerOptions, ModelOptions, TgatOptions, TgnOptions};
use crate::train::edgebank::{BankRule, EdgeBank};
use crate::train::evaluate::bank::evaluate_bank;
use crate::train::evaluate::learned::{LearnedOptions, Sight, TestThenTrain, evaluate_learned};
use crate::train::evaluate::prequential::evaluate_prequential;
use crate::train::evaluate::{Candidates, PartNegatives, StaticReport};
use crate::train::protocol::{NegativeSource, Populations, Split, draw_masked};
use crate::train::stream::Stream;
use crate::train::{Trainer, TrainerOptions};
use progress::ProgressBars;
use report::Report;

/// Measure a model on an event file
#[derive(Args, Clone, Debug)]
pub struct EvalArgs {
    /// Event file: CSV or CSV.gz with columns src, dst, ts and optionally label, type, f0, f1, …
    #[arg(long, value_name = "FILE")]
    pub events: PathBuf,
    /// What to measure
    #[arg(long, value_enum)]
    pub model: ModelName,
    /// Which pairs EdgeBank holds; also the baseline beside a model under the prequential protocol
    #[arg(long, value_enum, default_value_t = BankName::Unlimited)]
    pub edgebank: BankName,
    /// How to measure: dyglib is the published split at the 0.70 and 0.85 time quantiles with masked
    /// nodes; prequential tests and then trains on every batch once
    #[arg(long, value_enum, default_value_t = ProtocolName::Dyglib)]
    pub protocol: ProtocolName,
    /// Passes over the training part (dyglib)
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub epochs: u32,
    /// Seed of everything random: weights, dropout, negatives, masked nodes
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// Events a batch
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub batch_size: u32,
    /// Negatives of the test part: columns neg_src, neg_dst, one row per test event (dyglib)
    #[arg(long, value_name = "FILE")]
    pub negatives: Option<PathBuf>,
    /// Negatives of the validation part, in the same form (dyglib)
    #[arg(long, value_name = "FILE")]
    pub val_negatives: Option<PathBuf>,
    /// Nodes whose training edges are left out: column node (dyglib)
    #[arg(long, value_name = "FILE")]
    pub masked: Option<PathBuf>,
    /// Rank each test event among this many drawn destinations as well, for the mean reciprocal rank
    /// (dyglib)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub candidates: Option<u32>,
    /// Step size of Adam
    #[arg(long, default_value_t = 1e-3)]
    pub learning_rate: f64,
    /// Share of activations dropped while training; 0.4 for graphmixer and 0.1 for others if not given
    #[arg(long)]
    pub dropout: Option<f64>,
    /// Which edges an event may have as neighbors (prequential)
    #[arg(long, value_enum, default_value_t = SightName::WithinBatch)]
    pub sight: SightName,
    /// Threads to compute with; all cores if not given
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub threads: Option<u32>,
    /// Where the figures go as one JSON object; `-` is standard output
    #[arg(long, value_name = "OUT")]
    pub json: Option<PathBuf>,
}

/// What can be measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ModelName {
    /// Temporal graph network: memory, and attention over the 10 most recent neighbors
    Tgn,
    /// As tgn, with a plain recurrent cell and embeddings that drift with time; looks at no neighbors
    Jodie,
    /// An MLP-Mixer over the 20 most recent edges of a node, without memory
    Graphmixer,
    /// Attention over 20 recent neighbors and 20 of each of theirs, without memory
    Tgat,
    /// The baseline without parameters
    Edgebank,
}

impl ModelName {
    /// The shape of the model; `None` where there is nothing to train.
    fn options(self) -> Option<ModelOptions> {
        Some(match self {
            Self::Tgn => TgnOptions::default().into(),
            Self::Jodie => TgnOptions::jodie().into(),
            Self::Graphmixer => GraphMixerOptions::default().into(),
            Self::Tgat => TgatOptions::default().into(),
            Self::Edgebank => return None,
        })
    }
}

impl EvalArgs {
    /// The model to train, but for the features of the events; `None` where there is nothing to train.
    #[allow(clippy::cast_possible_truncation)]
    fn model_options(&self) -> Option<ModelOptions> {
        let options = self.model.options()?;
        Some(self.dropout.map_or(options, |dropout| options.with_dropout(dropout as f32)))
    }
}

/// Which pairs the baseline holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum BankName {
    /// Every pair seen so far
    Unlimited,
    /// Pairs of the newest 15 % of the events
    Window,
    /// Pairs within the mean repeat interval
    RepeatInterval,
    /// Pairs seen at least as often as the mean pair
    RepeatThreshold,
}

impl BankName {
    fn rule(self) -> BankRule {
        match self {
            Self::Unlimited => BankRule::Unlimited,
            Self::Window => BankRule::Window,
            Self::RepeatInterval => BankRule::RepeatInterval,
            Self::RepeatThreshold => BankRule::RepeatThreshold,
        }
    }
}

/// Which edges an event may have as neighbors under the prequential protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SightName {
    /// Edges of earlier batches
    EarlierBatches,
    /// Also earlier edges of the batch itself
    WithinBatch,
}

impl From<SightName> for Sight {
    fn from(name: SightName) -> Self {
        match name {
            SightName::EarlierBatches => Self::EarlierBatches,
            SightName::WithinBatch => Self::WithinBatch,
        }
    }
}

/// How to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ProtocolName {
    /// The published split of DyGLib and TGN
    Dyglib,
    /// Test-then-train in one pass
    Prequential,
}

/// Runs the command.
///
/// # Errors
/// When a file cannot be read or does not fit, the stream cannot be split, or the model diverges.
pub fn run(args: &EvalArgs) -> anyhow::Result<()> {
    if let Some(dropout) = args.dropout {
        ensure!((0.0..1.0).contains(&dropout), "--dropout {dropout} is not in 0..1");
    }
    ensure!(
        args.learning_rate > 0.0 && args.learning_rate.is_finite(),
        "--learning-rate {} is not above 0",
        args.learning_rate
    );
    let threads = args.threads.map_or(0, |threads| threads as usize);
    let pool = rayon::ThreadPoolBuilder::new()
        .num_threads(threads)
        .build()
        .context("cannot start the compute threads")?;
    let report = pool.install(|| measure(args, pool.current_num_threads()))?;
    eprint!("{}", report.summary());
    match &args.json {
        Some(path) => report.write(path),
        None => Ok(()),
    }
}

fn measure(args: &EvalArgs, threads: usize) -> anyhow::Result<Report> {
    let stream = read_stream(&args.events, &mut |note| eprintln!("note: {note}"))?;
    let mut report = Report::new(args, &stream, threads);
    match args.protocol {
        ProtocolName::Dyglib => {
            let (populations, negatives) = dyglib_inputs(args, &stream)?;
            report.populations(&populations);
            report.static_figures(&measure_static(args, &stream, &populations, &negatives)?);
        }
        ProtocolName::Prequential => {
            for (flag, given) in [
                ("--negatives", args.negatives.is_some()),
                ("--val-negatives", args.val_negatives.is_some()),
                ("--masked", args.masked.is_some()),
                ("--candidates", args.candidates.is_some()),
            ] {
                ensure!(!given, "{flag} belongs to --protocol dyglib; leave it out");
            }
            measure_prequential(args, &stream, &mut report)?;
        }
    }
    Ok(report)
}

fn dyglib_inputs(args: &EvalArgs, stream: &Stream) -> anyhow::Result<(Populations, PartNegatives)> {
    let masked = match &args.masked {
        Some(path) => read_nodes(path, stream)?,
        None => draw_masked(stream, args.seed),
    };
    let populations = Populations::new(stream, &masked)?;
    let mut negatives = PartNegatives::drawn(stream, &populations, args.seed);
    let given = |path: &Path, part, expected| -> anyhow::Result<NegativeSource> {
        NegativeSource::given(&read_pairs(path, stream)?, part, expected)
            .with_context(|| format!("{} does not fit the events", path.display()))
    };
    if let Some(path) = &args.val_negatives {
        negatives.validation = given(path, "validation", populations.validation().len())?;
    }
    if let Some(path) = &args.negatives {
        negatives.test = given(path, "test", populations.test().len())?;
    }
    Ok((populations, negatives))
}

fn measure_static(
    args: &EvalArgs,
    stream: &Stream,
    populations: &Populations,
    negatives: &PartNegatives,
) -> anyhow::Result<StaticReport> {
    let candidates = args.candidates.map(|count| Candidates::new(stream, count as usize, args.seed));
    let (rule, batch_size) = (args.edgebank.rule(), args.batch_size as usize);
    let mut bars = ProgressBars::new(args.epochs as usize);
    let mut watch = |progress: &_| bars.show(progress);
    Ok(match args.model_options() {
        None => {
            let candidates = candidates.as_ref();
            evaluate_bank(stream, populations, negatives, rule, batch_size, candidates, &mut watch)?
        }
        Some(model) => {
            let options = LearnedOptions {
                epochs: args.epochs as usize,
                batch_size,
                seed: args.seed,
                candidates: candidates.as_ref(),
            };
            let trainer = trainer(args, model, stream)?;
            evaluate_learned(stream, populations, negatives, trainer, &options, &mut watch)?
        }
    })
}

#[allow(clippy::cast_possible_truncation)]
fn trainer(args: &EvalArgs, model: ModelOptions, stream: &Stream) -> anyhow::Result<Trainer> {
    let probe = device::probe();
    eprintln!("{}", probe.reason);
    let model = model.with_features(stream.feature_dimension(), 0);
    let options = TrainerOptions { model, learning_rate: args.learning_rate as f32, seed: args.seed };
    Ok(Trainer::new(options, &probe.chosen)?)
}

fn measure_prequential(args: &EvalArgs, stream: &Stream, report: &mut Report) -> anyhow::Result<()> {
    let mut bars = ProgressBars::new(1);
    let mut watch = |progress: &_| bars.show(progress);
    let (rule, batch_size, seed) = (args.edgebank.rule(), args.batch_size as usize, args.seed);
    let figures = match args.model_options() {
        None => {
            let mut bank = EdgeBank::new(rule);
            evaluate_prequential(stream, &mut bank, None, batch_size, seed, &mut watch)?
        }
        Some(model) => {
            let trainer = trainer(args, model, stream)?;
            let mut model = TestThenTrain::new(stream, trainer, args.sight.into())?;
            let bank = Some(EdgeBank::new(rule));
            evaluate_prequential(stream, &mut model, bank, batch_size, seed, &mut watch)?
        }
    };
    report.split(Split::by_quantiles(stream.times()), stream.len());
    report.prequential_figures(&figures);
    Ok(())
}
