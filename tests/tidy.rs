//! The house rules as a test: reads the repository's files, knows nothing of what the code does.
//!
//! A rule is a plain function from text to breaches, and each is also fed small bad snippets: a rule that
//! never fires is caught there. This file holds what is expected to change: the floors, the walls, the limits.
//! No dependencies, so that it also runs alone: `CARGO_MANIFEST_DIR=$PWD rustc --test tests/tidy.rs`.

#![allow(clippy::expect_used, reason = "a failed expectation is how a test reports")]

#[path = "tidy/file_rules.rs"]
mod file_rules;
#[path = "tidy/source.rs"]
mod source;
#[path = "tidy/tree_rules.rs"]
mod tree_rules;

use source::{Breach, Tree};
use std::path::Path;

/// Imports go down only, never sideways. The roof's modules may use one another and everything below.
const FLOORS: &str = "
    roof    cli daemon config
    edges   ingest api catalog
    7       appender learner
    6       train
    5       serving
    4       model
    3       sampler nn
    2       graph feature log
    1       device
    0       event
    beside  metrics
";

/// Walls beside the floors: who must not know whom although it stands higher.
const WALLS: &[(&str, &str, &str)] = &[
    (
        "ingest api catalog",
        "appender learner train",
        "an edge hands values over; daemon wires it to the loops",
    ),
    (PLAIN, "metrics", "floors 0 to 6 return reports; the loops and the edges count"),
    ("nn", "event graph feature log", "layers know tensors, not that graphs exist"),
    ("model", "graph log", "a model reads sampler's MessageFlowGraph, never the graph itself"),
];

/// Where serde may stand: the edges, the roof, and records that people or other programs read.
const SERDE: &[&str] = &[
    "src/api/",
    "src/ingest/",
    "src/cli/",
    "src/daemon/",
    "src/catalog/",
    "src/config",
    "src/learner/checkpoint.rs",
    "src/train/report.rs",
];

/// Floors below the loops are plain functions.
const PLAIN: &str = "event device graph feature log sampler nn model serving train";

/// Which of them open files, or lend them.
const FILES: &[&str] =
    &["src/log/", "src/device/disk/", "src/device/cuda/cache.rs", "src/device/cuda/texts.rs"];

const FILE_LINES_MAX: usize = 400;
const TEST_FILE_LINES_MAX: usize = 800;
const FUNCTION_LINES_MAX: usize = 70;
const LINE_CHARS_MAX: usize = 120;

/// Not in any text of ours; split so that this file does not break its own rule.
const WORDS: &[(&str, &str)] = &[
    (concat!("FIX", "ME"), "do it now, or open an issue and state the limit as a fact"),
    (concat!("XX", "X"), "do it now, or open an issue and state the limit as a fact"),
    (concat!("TO", "DO"), "do it now, or open an issue and state the limit as a fact"),
    (concat!("neigh", "bour"), "write `neighbor`: one spelling, one search"),
    (concat!("neigh", "bours"), "write `neighbors`: one spelling, one search"),
];

/// Words that are not used for these things in what users and readers of the code see, in any case, with the word to
/// use: docs/glossary.md has the terms.
const TERMS: &[(&str, &str)] = &[
    ("card", "GPU or device"),
    ("cards", "GPUs or devices"),
    ("told", "reported, logged, listed"),
    ("tells", "reports, shows, returns"),
    ("telling", "reporting"),
    ("answer", "response"),
    ("answers", "responses"),
    ("answered", "responded to, served"),
    ("hears", "receives, is notified"),
    ("heard", "received, was notified of"),
    ("as delivered", "by default, with the default settings"),
    ("mails", "messages"),
    ("number_mails", "index_messages"),
    ("look_around", "what it does"),
    ("TgnState", "ModelState"),
    ("event_to_visible", "end-to-end freshness"),
    ("train_events_behind", "learner lag"),
    ("refused_keys", "authentication failures"),
    ("head_timeout_ms", "header_timeout_ms"),
    ("EvergraphCardNotUsed", "EvergraphGpuUnavailable"),
    ("EvergraphBehind", "EvergraphLearnerLagging"),
    ("half within", "p50"),
    ("behaviour", "behavior"),
    ("colour", "color"),
    ("colours", "colors"),
    ("centre", "center"),
    ("initialise", "initialize"),
    ("initialised", "initialized"),
    ("initialisers", "initializers"),
    ("initialising", "initializing"),
    ("optimisation", "optimization"),
    ("optimiser", "optimizer"),
    ("vectorised", "vectorized"),
    ("serialise", "serialize"),
    ("serialised", "serialized"),
    ("normalised", "normalized"),
    ("recognise", "recognize"),
    ("recognised", "recognized"),
    ("synchronise", "synchronize"),
    ("synchronised", "synchronized"),
    ("labelled", "labeled"),
    ("modelled", "modeled"),
    ("cancelled", "canceled"),
    ("favour", "favor"),
    ("honour", "honor"),
    ("licence", "license"),
    ("grey", "gray"),
];

/// Where these are held: the code, and what users read.
const TERMS_IN: &[&str] = &[
    "src/",
    "docs/",
    "deploy/",
    "dashboards/",
    "kernels/",
    "scripts/",
    "benches/",
    "migrations/",
    "README.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
];

#[test]
fn the_house_keeps_its_rules() {
    let tree = Tree::read(Path::new(env!("CARGO_MANIFEST_DIR")));
    assert!(tree.get("src/lib.rs").is_some(), "no sources found: tidy looks in the wrong place");
    let mut breaches: Vec<Breach> = tree.files.iter().flat_map(file_rules::check).collect();
    breaches.extend(tree_rules::check(&tree));
    for breach in &breaches {
        eprintln!("{}:{}: {}: {}", breach.file, breach.line, breach.rule, breach.instead);
    }
    assert!(
        breaches.is_empty(),
        "{} house rules broken, listed above; the reasons are in CONTRIBUTING.md",
        breaches.len()
    );
}
