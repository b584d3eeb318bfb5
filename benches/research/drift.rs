//! `evergraph-research drift`: the benefit of continuous training on a stream that changes.
//!
//! The same model goes over the same stream several times side by side: with weights that are frozen after a first
//! part, trained to the end, trained with the same number of extra steps on new events, and with replays of old ones;
//! all of them keep updating node memory, and EdgeBank is the baseline. Every batch is scored by each before any is
//! trained on it, with the same negatives, drawn from the destinations seen so far.

use std::path::PathBuf;

use anyhow::{Context, ensure};
use clap::Args;
use serde::Serialize;

use evergraph::cli::bench::{deliver, per_second, seconds};
use evergraph::cli::eval::ModelName;
use evergraph::cli::eval::plot::{self, Curve};
use evergraph::cli::events::read_stream;
use evergraph::cli::output;
use evergraph::config::ReplayKind;
use evergraph::device::Device;
use evergraph::ingest::generated::GeneratedWorld;
use evergraph::train::edgebank::{BankRule, EdgeBank};
use evergraph::train::evaluate::Contender;
use evergraph::train::evaluate::learned::{Sight, TestThenTrain};
use evergraph::train::protocol::Batch;
use evergraph::train::ranking::RankingMeter;
use evergraph::train::replay::ReplayOptions;
use evergraph::train::stream::{Stream, StreamBuilder};
use evergraph::train::{DestinationPool, StepMode, Trainer, TrainerOptions};

/// What to compare, and on what.
#[derive(Debug, Args)]
pub struct DriftArgs {
    /// Event file: CSV or CSV.gz with columns src, dst, ts; a generated stream whose communities change if not given
    #[arg(long, value_name = "FILE")]
    events: Option<PathBuf>,
    /// Events of the generated stream
    #[arg(long, default_value_t = 60_000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    events_count: u32,
    /// Events after which communities of the generated stream change
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..))]
    era_events: u32,
    /// Events after which weights are frozen; an era, or 30 % of a file if not given
    #[arg(long, value_name = "EVENTS")]
    freeze_after: Option<usize>,
    /// Model to train
    #[arg(long, value_enum, default_value_t = ModelName::Tgn)]
    model: ModelName,
    /// Steps on old events per step on new ones
    #[arg(long, default_value_t = 1.0)]
    replay_ratio: f64,
    /// How old events are chosen
    #[arg(long, value_enum, default_value_t = ReplayKind::Uniform)]
    replay_policy: ReplayKind,
    /// Events per batch
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    batch_events: u32,
    /// Events per point of the curves
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..))]
    point_events: u32,
    /// Step size of Adam
    #[arg(long, default_value_t = 1e-3)]
    learning_rate: f64,
    /// Seed of the stream, weights, dropout and negatives
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Threads to compute with; all cores if not given
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=4096))]
    threads: Option<u32>,
    /// Write the figures as one JSON object to this file; `-` is standard output
    #[arg(long, value_name = "OUT")]
    json: Option<PathBuf>,
    /// Write the curves as an SVG image to this file
    #[arg(long, value_name = "OUT.svg")]
    plot: Option<PathBuf>,
    /// Write a page about them to this file
    #[arg(long, value_name = "OUT.md")]
    page: Option<PathBuf>,
}

/// Figures of a run; average precision is the mean over batches.
#[derive(Serialize)]
struct Figures {
    stream: String,
    events_count: usize,
    nodes_count: usize,
    era_events: Option<usize>,
    freeze_after_events: usize,
    model: String,
    replay_ratio: f64,
    replay_policy: String,
    batch_events: usize,
    point_events: usize,
    learning_rate: f64,
    seed: u64,
    contenders: Vec<Contestant>,
}

/// Figures of one contender.
#[derive(Serialize)]
struct Contestant {
    name: &'static str,
    /// Over all batches after freezing.
    average_precision_after_freezing: Option<f64>,
    /// Over the batches of each era.
    average_precision_by_era: Vec<Option<f64>>,
    /// Over the batches of each point of the curve.
    average_precision_by_point: Vec<Option<f64>>,
    /// Events scored and, where it was done, trained on.
    events_per_second: f64,
}

/// A contender during the run.
struct Runner<'a> {
    name: &'static str,
    contender: Box<dyn Contender + 'a>,
    /// Row from which on weights are frozen.
    freeze: usize,
    after: RankingMeter,
    eras: Vec<RankingMeter>,
    points: Vec<RankingMeter>,
    seconds: f64,
}

/// Measures, and writes the outputs.
pub fn run(args: &DriftArgs) -> anyhow::Result<()> {
    let rate = args.learning_rate;
    ensure!(rate > 0.0 && rate.is_finite(), "--learning-rate {rate} is not above 0");
    let ratio = args.replay_ratio;
    ensure!((0.0..=100.0).contains(&ratio), "--replay-ratio {ratio} is not in 0..=100");
    let (name, stream, era) = match &args.events {
        Some(path) => (path.display().to_string(), read_stream(path, &mut output::print_status)?, None),
        None => ("generated".to_owned(), generated(args), Some(args.era_events as usize)),
    };
    let pool = rayon::ThreadPoolBuilder::new().num_threads(args.threads.map_or(0, |n| n as usize)).build();
    let pool = pool.context("cannot start the compute threads")?;
    let threads = pool.current_num_threads();
    let figures = pool.install(|| measure(args, name, &stream, era))?;
    for one in &figures.contenders {
        let ap = one.average_precision_after_freezing.map_or("-".to_owned(), |ap| format!("{ap:.4}"));
        output::print_status(&format!("{:<24} AP {ap}   {:.0} events/s", one.name, one.events_per_second));
    }
    let marks: Vec<usize> = match era {
        Some(era) => (1..).map(|i| i * era).take_while(|&row| row < figures.events_count).collect(),
        None => vec![figures.freeze_after_events],
    };
    let marks: Vec<usize> = marks.iter().map(|row| row / figures.point_events).collect();
    let write = |path: &Option<PathBuf>, text: &dyn Fn() -> String| match path {
        Some(path) => {
            std::fs::write(path, text()).with_context(|| format!("cannot write {}", path.display()))
        }
        None => Ok(()),
    };
    write(&args.plot, &|| plot::svg(&curves(&figures), &marks))?;
    write(&args.page, &|| page(&figures))?;
    deliver(args.json.as_deref(), "drift", threads, figures)
}

fn generated(args: &DriftArgs) -> Stream {
    let world = GeneratedWorld { seed: args.seed, era_events: u64::from(args.era_events) };
    let mut builder = StreamBuilder::new();
    (0..u64::from(args.events_count)).for_each(|i| builder.push(&world.event(i)));
    builder.finish()
}

/// How a stream is cut: into eras, and into points of the curves; and the row at which weights are frozen.
#[derive(Clone, Copy)]
struct Cuts {
    length: usize,
    era: Option<usize>,
    point: usize,
    freeze: usize,
}

fn measure(args: &DriftArgs, name: String, stream: &Stream, era: Option<usize>) -> anyhow::Result<Figures> {
    let (length, point) = (stream.len(), args.point_events as usize);
    let freeze = args.freeze_after.or(era).unwrap_or(length * 3 / 10);
    ensure!(freeze < length, "--freeze-after {freeze}: the stream has {length} events");
    let cuts = Cuts { length, era, point, freeze };
    let mut runners = runners(args, stream, cuts)?;
    race(args, stream, cuts, &mut runners)?;
    Ok(Figures {
        stream: name,
        events_count: length,
        nodes_count: stream.nodes(),
        era_events: era,
        freeze_after_events: freeze,
        model: format!("{:?}", args.model).to_lowercase(),
        replay_ratio: args.replay_ratio,
        replay_policy: format!("{:?}", args.replay_policy).to_lowercase(),
        batch_events: args.batch_events as usize,
        point_events: point,
        learning_rate: args.learning_rate,
        seed: args.seed,
        contenders: runners.into_iter().map(|runner| runner.figures(length)).collect(),
    })
}

/// All contenders, before the first event.
fn runners<'a>(args: &DriftArgs, stream: &'a Stream, cuts: Cuts) -> anyhow::Result<Vec<Runner<'a>>> {
    let options = args.model.options().with_context(|| {
        format!("--model {:?} does not learn on samples of neighbors; name one that does", args.model)
    })?;
    let trainer = TrainerOptions {
        model: options.with_features(stream.feature_dimension(), 0),
        #[allow(clippy::cast_possible_truncation)] // step sizes of 32 bits
        learning_rate: args.learning_rate as f32,
        seed: args.seed,
        ..TrainerOptions::default()
    };
    let learned = |ratio, repeats| -> anyhow::Result<Box<dyn Contender + 'a>> {
        let trainer = Trainer::new(trainer, &Device::Cpu)?;
        let replays = ReplayOptions { ratio, policy: args.replay_policy.into() };
        let contender = TestThenTrain::new(stream, trainer, Sight::WithinBatch)?;
        Ok(Box::new(contender.replaying(replays).repeating(repeats)))
    };
    let ratio = args.replay_ratio;
    let never = cuts.length;
    let bank = Box::new(EdgeBank::new(BankRule::Unlimited));
    let mut runners = vec![
        Runner::new("frozen", learned(0.0, 0.0)?, cuts.freeze, cuts),
        Runner::new("trained on", learned(0.0, 0.0)?, never, cuts),
        Runner::new("edgebank", bank, never, cuts),
    ];
    if ratio > 0.0 {
        runners.insert(2, Runner::new("trained on, with extra steps", learned(0.0, ratio)?, never, cuts));
        runners.insert(3, Runner::new("trained on, with replay", learned(ratio, 0.0)?, never, cuts));
    }
    Ok(runners)
}

/// Runs all contenders over the stream, batch by batch.
fn race(args: &DriftArgs, stream: &Stream, cuts: Cuts, runners: &mut [Runner<'_>]) -> anyhow::Result<()> {
    let (mut batch, mut pool, mut start) = (Batch::default(), DestinationPool::new(), 0);
    while start < cuts.length {
        // A batch ends where an era, a point of the curve or the part before freezing does.
        let parts = [Some(cuts.point), cuts.era].into_iter().flatten().map(|part| (start / part + 1) * part);
        let freeze = (start < cuts.freeze).then_some(cuts.freeze);
        let ends = parts.chain(freeze).chain([start + args.batch_events as usize]);
        let end = ends.fold(cuts.length, usize::min);
        batch.load(stream, start..end);
        if pool.is_empty() {
            pool.extend(&batch.dst);
        }
        batch.negative_src.clone_from(&batch.src);
        pool.draw(args.seed, start as u64, batch.src.len(), &mut batch.negative_dst);
        for runner in &mut *runners {
            runner.take(&batch, start, cuts)?;
        }
        pool.extend(&batch.dst);
        start = end;
    }
    Ok(())
}

impl<'a> Runner<'a> {
    fn new(name: &'static str, contender: Box<dyn Contender + 'a>, freeze: usize, cuts: Cuts) -> Self {
        let meters = |part: usize| (0..cuts.length.div_ceil(part)).map(|_| RankingMeter::default()).collect();
        let (eras, points) = (meters(cuts.era.unwrap_or(cuts.length)), meters(cuts.point));
        Self { name, contender, freeze, after: RankingMeter::default(), eras, points, seconds: 0.0 }
    }

    fn take(&mut self, batch: &Batch, start: usize, cuts: Cuts) -> anyhow::Result<()> {
        let mode = if start < self.freeze { StepMode::Train } else { StepMode::Score };
        let (took, scores) = seconds(|| self.contender.take(batch, mode));
        let scores = scores?;
        self.seconds += took;
        let late = (start >= cuts.freeze).then_some(&mut self.after);
        let era = self.eras.get_mut(start / cuts.era.unwrap_or(cuts.length));
        for meter in [era, self.points.get_mut(start / cuts.point), late].into_iter().flatten() {
            meter.push(&scores.positive, &scores.negative);
        }
        Ok(())
    }

    fn figures(self, events: usize) -> Contestant {
        let all = |meters: &[RankingMeter]| meters.iter().map(RankingMeter::average_precision).collect();
        Contestant {
            name: self.name,
            average_precision_after_freezing: self.after.average_precision(),
            average_precision_by_era: all(&self.eras),
            average_precision_by_point: all(&self.points),
            events_per_second: per_second(events, self.seconds),
        }
    }
}

fn curves(figures: &Figures) -> Vec<Curve> {
    let percent = |values: &[Option<f64>]| values.iter().map(|value| value.map(|ap| 100.0 * ap)).collect();
    let curve = |one: &Contestant| Curve {
        name: one.name.to_owned(),
        axis: if figures.point_events == 1_000 { "thousand events" } else { "point" },
        values: percent(&one.average_precision_by_point),
    };
    figures.contenders.iter().map(curve).collect()
}

/// The page of the figures.
fn page(figures: &Figures) -> String {
    let Figures { stream, events_count, freeze_after_events, model, batch_events, point_events, .. } =
        figures;
    let seed = figures.seed;
    let what = match figures.era_events {
        Some(era) => format!(
            "a {stream} shop ({events_count} events): users visit items of the genre they like. Every {era} events \
             (dashed lines) the catalog changes: items change genres, and genres change their features. Three \
             catalogs alternate"
        ),
        None => format!("{stream} ({events_count} events)"),
    };
    let eras: Vec<String> = match figures.era_events {
        Some(era) => (1..=events_count.div_ceil(era)).map(|n| format!("era {n}")).collect(),
        None => Vec::new(),
    };
    let figure = |ap: &Option<f64>| ap.map_or("-".to_owned(), |ap| format!("{ap:.3}"));
    let row = |one: &Contestant| {
        let by_era = if eras.is_empty() { &[][..] } else { &one.average_precision_by_era[..] };
        let cells = [&one.average_precision_after_freezing].into_iter().chain(by_era).map(figure);
        format!("| {} | {} |\n", one.name, cells.collect::<Vec<_>>().join(" | "))
    };
    let head = format!("| | {} |\n", [&["after freezing".to_owned()][..], &eras].concat().join(" | "));
    let line = format!("|---|{}\n", "--:|".repeat(1 + eras.len()));
    let rows: String = figures.contenders.iter().map(row).collect();
    format!(
        "# Continuous training on a stream that drifts\n\n\
         <!-- Made by `make drift`: change benches/research/drift.rs, not this. -->\n\n\
         Average precision of {model} on {what}.\n\n\
         Every batch of {batch_events} is scored before it is trained on, against as many random destinations.\n\
         `frozen` trains on the first {freeze_after_events} events only, but keeps updating node memory.\n\
         Replay is {} step(s) on old events ({}) for each on new ones; extra steps are as many on\n\
         each new batch, before memory takes that in. Seed {seed}, learning rate {}; one run, on the CPU. Points of\n\
         the curves are {point_events} events.\n\n\
         ![Average precision over the stream](drift.svg)\n\n{head}{line}{rows}\n\
         All points of the curves are in [drift.json](drift.json).\n",
        figures.replay_ratio, figures.replay_policy, figures.learning_rate,
    )
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: DriftArgs,
    }

    #[test]
    fn all_go_alike_until_one_is_frozen_and_every_batch_counts_once() {
        let line =
            "drift --events-count 900 --era-events 300 --point-events 100 --batch-events 70 --model jodie";
        let args = Line::parse_from(line.split(' ')).args;
        let stream = generated(&args);
        let figures = measure(&args, "generated".to_owned(), &stream, Some(300)).unwrap();
        let [frozen, trained, repeated, replayed, bank] = &figures.contenders[..] else {
            panic!("five contenders")
        };
        assert_eq!(figures.contenders.iter().map(|one| one.average_precision_by_era.len()).max(), Some(3));
        let points = |one: &Contestant| one.average_precision_by_point.clone();
        assert!(points(bank).len() == 9 && points(bank).iter().all(Option::is_some));
        assert_eq!(points(frozen)[..3], points(trained)[..3]);
        assert_ne!(points(frozen)[3..], points(trained)[3..]);
        for other in [replayed, trained] {
            assert_ne!(points(repeated)[1..], points(other)[1..]);
        }
        assert_ne!(points(replayed)[1..], points(trained)[1..]);
        assert_eq!(frozen.average_precision_by_era[0], trained.average_precision_by_era[0]);
        let page = page(&figures);
        assert!(page.contains("| era 3 |") && page.contains("\n| edgebank | "), "{page}");
        assert_eq!(curves(&figures).len(), 5);
    }
}
