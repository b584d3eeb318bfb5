//! The figures of an evaluation as one JSON object with stable keys, and as a summary for people.
//! A key that was not measured is absent.

use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::path::Path;

use anyhow::Context;
use clap::ValueEnum;
use serde_json::{Map, Value, json};

use super::{BankName, EvalArgs, ModelName, ProtocolName};
use crate::cli::machine;
use crate::train::evaluate::StaticReport;
use crate::train::evaluate::prequential::{PrequentialFigures, PrequentialReport};
use crate::train::protocol::{Populations, Split};
use crate::train::stream::Stream;

/// Collects the figures of one run.
pub struct Report {
    values: Map<String, Value>,
}

impl Report {
    /// What is known before the run.
    #[must_use]
    pub fn new(args: &EvalArgs, stream: &Stream, threads: usize) -> Self {
        let mut report = Self { values: Map::new() };
        report.set("model", name_of(args.model));
        report.set("protocol", name_of(args.protocol));
        report.set("events", args.events.display().to_string());
        report.set("events_count", stream.len());
        report.set("nodes_count", stream.nodes());
        report.set("batch_size", args.batch_size);
        report.set("seed", args.seed);
        report.set("negatives", file_or_drawn(args.negatives.as_deref()));
        let prequential = args.protocol == ProtocolName::Prequential;
        if args.model == ModelName::Edgebank || prequential {
            report.set("edgebank", name_of::<BankName>(args.edgebank));
        }
        if !prequential {
            report.set("val_negatives", file_or_drawn(args.val_negatives.as_deref()));
            report.set("masked", file_or_drawn(args.masked.as_deref()));
        }
        if let Some(candidates) = args.candidates {
            report.set("mrr_candidates", candidates);
        }
        if let Some(model) = args.model_options() {
            report.set("learning_rate", args.learning_rate);
            report.set("dropout", args.dropout.unwrap_or_else(|| shortest(model.dropout())));
            if prequential {
                report.set("sight", name_of(args.sight));
            }
        }
        report.set("machine", machine::facts(threads));
        report
    }

    fn set(&mut self, key: &str, value: impl Into<Value>) {
        self.values.insert(key.to_owned(), value.into());
    }

    fn set_measured(&mut self, key: &str, value: Option<impl Into<Value>>) {
        if let Some(value) = value {
            self.set(key, value);
        }
    }

    /// Sizes of the parts.
    pub fn populations(&mut self, populations: &Populations) {
        self.set("masked_nodes_count", populations.masked);
        self.set("train_events_count", populations.train.len());
        self.set("inductive_events_count", populations.inductive.len());
        self.set("val_events_count", populations.validation().len());
        self.set("test_events_count", populations.test().len());
    }

    /// Size of the last 15 %.
    pub fn split(&mut self, split: Split, events: usize) {
        self.set("last15_events_count", events - split.test);
    }

    /// Figures under the published protocol.
    pub fn static_figures(&mut self, figures: &StaticReport) {
        let test = &figures.test.ranking;
        self.set("test_average_precision", test.average_precision);
        self.set("test_auc", test.auc);
        self.set("test_pooled_average_precision", test.pooled_average_precision);
        self.set("val_average_precision", figures.validation.ranking.average_precision);
        self.set("val_auc", figures.validation.ranking.auc);
        self.set_measured(
            "inductive_average_precision",
            figures.inductive.map(|p| p.ranking.average_precision),
        );
        self.set_measured("inductive_auc", figures.inductive.map(|p| p.ranking.auc));
        self.set_measured("test_mrr", figures.test.mean_reciprocal_rank);
        self.set_measured("train_events_per_second", figures.train_events_per_second);
        if figures.epochs > 0 {
            self.set("epochs", figures.epochs);
            self.set("best_epoch", figures.best_epoch);
        }
    }

    /// Figures of test-then-train.
    pub fn prequential_figures(&mut self, figures: &PrequentialReport) {
        self.set("epochs", 1);
        self.set("train_events_per_second", figures.events_per_second);
        self.figures_of("", &figures.contender);
        if let Some(baseline) = &figures.baseline {
            self.figures_of("edgebank_", baseline);
        }
    }

    fn figures_of(&mut self, prefix: &str, figures: &PrequentialFigures) {
        self.set(&format!("{prefix}mean_average_precision"), figures.all.average_precision);
        self.set(&format!("{prefix}mean_auc"), figures.all.auc);
        self.set(&format!("{prefix}pooled_average_precision"), figures.all.pooled_average_precision);
        self.set(&format!("{prefix}deciles_average_precision"), json!(figures.deciles));
        let last15 = figures.last15;
        self.set_measured(&format!("{prefix}last15_average_precision"), last15.map(|s| s.average_precision));
        self.set_measured(&format!("{prefix}last15_auc"), last15.map(|s| s.auc));
    }

    /// The figures that people ask for first, one a line.
    #[must_use]
    pub fn summary(&self) -> String {
        let text = |key: &str| self.values.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
        let mut out = format!("\n{} on {}, protocol {}\n", text("model"), text("events"), text("protocol"));
        for (key, label, scale) in [
            ("test_average_precision", "test average precision (mean over batches)", 100.0),
            ("test_auc", "test ROC-AUC (mean over batches)", 100.0),
            ("test_pooled_average_precision", "test average precision (pooled)", 100.0),
            ("val_average_precision", "validation average precision", 100.0),
            ("inductive_average_precision", "new nodes average precision", 100.0),
            ("test_mrr", "test mean reciprocal rank", 1.0),
            ("mean_average_precision", "average precision over the whole stream", 100.0),
            ("last15_average_precision", "average precision over the last 15 %", 100.0),
            ("edgebank_mean_average_precision", "EdgeBank over the whole stream", 100.0),
            ("edgebank_last15_average_precision", "EdgeBank over the last 15 %", 100.0),
            ("best_epoch", "best epoch", 1.0),
            ("train_events_per_second", "events trained per second", 1.0),
        ] {
            let Some(value) = self.values.get(key) else { continue };
            let shown = match value.as_f64() {
                _ if value.is_u64() => value.to_string(),
                Some(number) if number >= 1000.0 => format!("{number:.0}"),
                Some(number) => format!("{:.4}", scale * number),
                None => continue,
            };
            let _ = writeln!(out, "  {label:<44} {shown:>10}");
        }
        out
    }

    /// Writes the JSON object to `path`; `-` is standard output.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn write(&self, path: &Path) -> anyhow::Result<()> {
        let mut text = serde_json::to_string_pretty(&self.values)?;
        text.push('\n');
        if path == Path::new("-") {
            std::io::stdout().write_all(text.as_bytes()).context("cannot write to standard output")
        } else {
            fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
        }
    }
}

/// The number as it was written: 0.1 in 32 bits is 0.1, not what 64 bits make of it.
fn shortest(value: f32) -> f64 {
    value.to_string().parse().unwrap_or(f64::NAN)
}

fn name_of<T: ValueEnum>(value: T) -> String {
    value.to_possible_value().map_or_else(String::new, |name| name.get_name().to_owned())
}

fn file_or_drawn(path: Option<&Path>) -> String {
    let name = path.and_then(Path::file_name).map(|name| name.to_string_lossy().into_owned());
    name.unwrap_or_else(|| "drawn".to_owned())
}
