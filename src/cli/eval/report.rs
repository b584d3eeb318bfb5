//! The figures of an evaluation as one JSON object with stable keys, and as a summary for people.
//! A key that was not measured is absent.

use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::path::Path;

use anyhow::Context;
use serde_json::{Map, Value, json};

use super::plot::Curve;
use super::values::{file_name, name_of};
use super::{BankName, EvalArgs, ModelName, NegativesFlag, ProtocolName};
use crate::cli::device::GpuFacts;
use crate::cli::machine;
use crate::device::DeviceSpec;
use crate::device::matmul::Precision;
use crate::model::walk::Decay;
use crate::model::{EdgeTypes, ModelOptions};
use crate::train::evaluate::dyglib::DyglibReport;
use crate::train::evaluate::mrr::MrrReport;
use crate::train::evaluate::node_label::NodeLabelReport;
use crate::train::evaluate::prequential::{PrequentialFigures, PrequentialReport};
use crate::train::evaluate::{Candidates, Fitted};
use crate::train::protocol::{Populations, Split};
use crate::train::ranking::RankSummary;
use crate::train::stream::Stream;

/// Collects the figures of one run.
pub struct Report {
    values: Map<String, Value>,
}

impl Report {
    /// The values that are known before the run.
    #[must_use]
    pub fn new(args: &EvalArgs, stream: &Stream, threads: usize) -> Self {
        let mut report = Self { values: Map::new() };
        report.set("model", name_of(args.model));
        report.set("protocol", name_of(args.protocol));
        report.set("events", args.events.display().to_string());
        report.set("events_count", stream.len());
        report.set("nodes_count", stream.nodes());
        report.set("batch_size", args.batch_events);
        report.set("seed", args.seed);
        let is_topk = args.protocol == ProtocolName::Topk;
        report.set("negatives", if is_topk { "known".to_owned() } else { args.negatives.name() });
        let prequential = args.protocol == ProtocolName::Prequential;
        if args.model == ModelName::Edgebank || prequential || is_topk {
            report.set("edgebank", name_of::<BankName>(args.edgebank));
        }
        if !prequential {
            report.set("val_negatives", args.val_negatives.name());
        }
        if args.protocol == ProtocolName::Dyglib {
            // A file has negatives for the events of the test part as a whole; those of new nodes alone are drawn.
            let is_given = matches!(args.negatives, NegativesFlag::File(_));
            let inductive = if is_given { NegativesFlag::Random.name() } else { args.negatives.name() };
            report.set("inductive_negatives", inductive);
            report.set("masked", args.masked.as_deref().map_or_else(|| "drawn".to_owned(), file_name));
            report.set_measured("mrr_candidates", args.candidates);
        }
        report.model(args, stream, prequential);
        report.set("machine", machine::facts(threads));
        report
    }

    /// How walks are counted.
    fn walks(&mut self, args: &EvalArgs) {
        self.set("walk_steps", args.walk_steps);
        self.set("walk_dimension", args.walk_dimension);
        match args.walk_decay {
            Decay::Rate(rate) => self.set("walk_decay_rate", rate),
            Decay::Span(power) => self.set("walk_decay_span_power", power),
        }
    }

    /// The model's options.
    fn model(&mut self, args: &EvalArgs, stream: &Stream, prequential: bool) {
        let model = args.model_options();
        if model.is_some() {
            self.set("learning_rate", args.learning_rate);
            self.set("device", args.compute.device.to_string());
            let embeds = model.is_some_and(|model| model.needs().embeds());
            if args.compute.device == DeviceSpec::Cpu && embeds {
                self.set("matmul_precision", Precision::from(args.matmul_precision).name());
            }
        }
        if args.met_share() > 0.0 && (prequential || model.is_some()) {
            self.set("met_negatives", args.met_share());
        }
        if prequential && model.is_some() {
            self.set("train_share", args.train_share);
        }
        if let Some(model) = model.filter(|model| model.needs().embeds()) {
            self.set("embedding_dimension", model.needs().embedding_dim);
            if model.ticks_per_second().is_some() {
                self.set("time_unit", name_of(args.time_unit));
            }
            if model.needs().memory_dim > 0 {
                self.set("gradient_delay_batches", args.gradient_delay_batches);
            }
            self.set("dropout", args.dropout.unwrap_or_else(|| shortest(model.dropout())));
            if let Some(aggregator) = args.aggregator {
                self.set("aggregator", name_of(aggregator));
            }
            if args.walks {
                self.set("walks", true);
                self.walks(args);
            }
            if args.edge_types > 0 {
                self.set("edge_types", args.edge_types);
                self.set("edge_type_dimension", args.edge_type_dimension);
                self.set("unknown_type_events_count", unknown_types(stream, model.edge_types()));
            }
            if prequential {
                self.set("sight", name_of(args.sight));
            }
        }
        match model {
            Some(ModelOptions::Walk(_)) => self.walks(args),
            Some(ModelOptions::Dysat(dysat)) => {
                self.set("snapshots", dysat.snapshots);
                self.set("snapshot_width", dysat.snapshot_width);
            }
            _ => {}
        }
        if args.model == ModelName::Poptrack || args.protocol == ProtocolName::Topk {
            self.set("half_life_events", args.half_life);
        }
    }

    /// The GPU that computed, if one did.
    pub fn gpu(&mut self, gpu: Option<&GpuFacts>) {
        self.set_measured("gpu", gpu.map(|gpu| json!(gpu)));
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
    pub fn dyglib_figures(&mut self, figures: &DyglibReport) {
        let (test, validation) = (&figures.test.ranking, &figures.fitted.validation.ranking);
        let inductive = figures.inductive.map(|part| part.ranking);
        for (part, summary) in [("test", Some(*test)), ("val", Some(*validation)), ("inductive", inductive)] {
            let Some(summary) = summary else { continue };
            self.set(&format!("{part}_average_precision"), summary.average_precision);
            self.set(&format!("{part}_auc"), summary.auc);
            self.set(&format!("{part}_pooled_average_precision"), summary.pooled_average_precision);
            self.set(&format!("{part}_pooled_auc"), summary.pooled_auc);
        }
        self.set_measured("test_mrr", figures.test.ranks.map(|ranks| ranks.mean_reciprocal_rank));
        self.set_measured("test_hits_at_10", figures.test.ranks.map(|ranks| ranks.hits_at_10));
        self.fitted(&figures.fitted, "val_average_precision_by_epoch");
    }

    /// Candidates per event.
    pub fn candidates(&mut self, validation: &Candidates, test: &Candidates) {
        self.set("val_mrr_candidates", validation.count());
        self.set("mrr_candidates", test.count());
    }

    /// Figures of one positive against many.
    pub fn mrr_figures(&mut self, figures: &MrrReport) {
        for (part, ranks) in [("test", &figures.test), ("val", &figures.fitted.validation)] {
            self.set(&format!("{part}_mrr"), ranks.mean_reciprocal_rank);
            self.set(&format!("{part}_hits_at_10"), ranks.hits_at_10);
        }
        self.fitted(&figures.fitted, "val_mrr_by_epoch");
    }

    /// Ranks of the test part by a baseline beside the model.
    pub fn ranks_beside(&mut self, baseline: ModelName, ranks: &RankSummary) {
        let name = name_of(baseline);
        self.set(&format!("{name}_test_mrr"), ranks.mean_reciprocal_rank);
        self.set(&format!("{name}_test_hits_at_10"), ranks.hits_at_10);
    }

    /// Figures of labels of nodes.
    pub fn node_label_figures(&mut self, figures: &NodeLabelReport) {
        self.set("test_label_auc", figures.test_auc);
        self.set("val_label_auc", figures.validation_auc);
        self.set("val_average_precision", figures.fitted.validation.ranking.average_precision);
        for (part, count) in ["train", "val", "test"].iter().zip(figures.positives) {
            self.set(&format!("{part}_positive_labels_count"), count);
        }
        self.fitted(&figures.fitted, "val_average_precision_by_epoch");
    }

    /// How training went.
    fn fitted<V>(&mut self, fitted: &Fitted<V>, curve: &str) {
        self.set_measured("train_events_per_second", fitted.train_events_per_second);
        if fitted.epochs > 0 {
            self.set("epochs", fitted.epochs);
            self.set("best_epoch", fitted.best_epoch);
            self.set(curve, json!(fitted.curve));
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

    /// The headline figures, one per line.
    #[must_use]
    pub fn summary(&self) -> String {
        let text = |key: &str| self.values.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
        let mut out = format!("\n{} on {}, protocol {}\n", text("model"), text("events"), text("protocol"));
        let number = |key: &str| self.values.get(key).map(Value::to_string).unwrap_or_default();
        let (negatives, batch, seed) = (text("negatives"), number("batch_size"), number("seed"));
        let _ = write!(out, "  negatives {negatives}");
        let is_prequential = text("protocol") == name_of(ProtocolName::Prequential);
        if let Some(met) = self.values.get("met_negatives").filter(|_| is_prequential) {
            let _ = write!(out, " ({met} of them met by the source)");
        }
        if let Some(drawn) =
            Some(text("inductive_negatives")).filter(|drawn| !drawn.is_empty() && *drawn != negatives)
        {
            let _ = write!(out, " (for new nodes {drawn})");
        }
        let _ = write!(out, ", batches of {batch}, seed {seed}");
        if let Some(sight) = Some(text("sight")).filter(|sight| !sight.is_empty()) {
            let _ = write!(out, ", neighbors {sight}");
        }
        out.push('\n');
        for (key, label, scale) in [
            ("test_average_precision", "test average precision (mean over batches)", 100.0),
            ("test_auc", "test ROC-AUC (mean over batches)", 100.0),
            ("test_pooled_average_precision", "test average precision (pooled)", 100.0),
            ("val_average_precision", "validation average precision", 100.0),
            ("inductive_average_precision", "new nodes average precision", 100.0),
            ("inductive_pooled_average_precision", "new nodes average precision (pooled)", 100.0),
            ("test_label_auc", "test ROC-AUC of labels (pooled)", 100.0),
            ("val_label_auc", "validation ROC-AUC of labels (pooled)", 100.0),
            ("test_mrr", "test mean reciprocal rank", 1.0),
            ("test_hits_at_10", "test hits at 10", 1.0),
            ("edgebank_test_mrr", "EdgeBank, test mean reciprocal rank", 1.0),
            ("edgebank_test_hits_at_10", "EdgeBank, test hits at 10", 1.0),
            ("poptrack_test_mrr", "PopTrack, test mean reciprocal rank", 1.0),
            ("poptrack_test_hits_at_10", "PopTrack, test hits at 10", 1.0),
            ("val_mrr", "validation mean reciprocal rank", 1.0),
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

    /// The learning curves, in percent: one of the run and, where a baseline ran beside it, one of that.
    #[must_use]
    pub fn curves(&self) -> Vec<Curve> {
        let model = self.values.get("model").and_then(Value::as_str).unwrap_or_default();
        let of = |key: &str, name: String, axis: &'static str| {
            let values = self.values.get(key)?.as_array()?;
            let percent = values.iter().map(|value| value.as_f64().map(|value| 100.0 * value)).collect();
            Some(Curve { name, axis, values: percent })
        };
        let tenth = "tenth of the stream";
        let curves = [
            of("val_average_precision_by_epoch", format!("{model}: validation AP"), "epoch"),
            of("val_mrr_by_epoch", format!("{model}: validation MRR"), "epoch"),
            of("deciles_average_precision", format!("{model}: AP"), tenth),
            of("edgebank_deciles_average_precision", "edgebank: AP".to_owned(), tenth),
        ];
        curves.into_iter().flatten().collect()
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

/// The number of events whose type the model ignores.
fn unknown_types(stream: &Stream, known: EdgeTypes) -> usize {
    stream.types().iter().filter(|kind| !known.knows(**kind)).count()
}

/// The shortest decimal of the 32-bit number: 0.1, not its 64-bit expansion.
fn shortest(value: f32) -> f64 {
    value.to_string().parse().unwrap_or(f64::NAN)
}
