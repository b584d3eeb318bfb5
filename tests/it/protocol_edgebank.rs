//! EdgeBank on the benchmark files must give the published figures: this holds the file reader, the
//! split, masking, batch order, the state-before-batch rule and both metrics at once.
//!
//! The files are not part of the repository. They are looked for in `$EVERGRAPH_TEST_DATA` and in
//! `shared/data` beside the repository; without them the tests report a skip and pass.

use std::path::{Path, PathBuf};

use evergraph::cli::events::{read_nodes, read_pairs, read_stream};
use evergraph::train::edgebank::{BankRule, EdgeBank};
use evergraph::train::evaluate::EpochOptions;
use evergraph::train::evaluate::dyglib::{DyglibReport, PartNegatives, evaluate_dyglib};
use evergraph::train::historical::PastPairs;
use evergraph::train::protocol::{NegativeSource, Populations, draw_masked};
use evergraph::train::stream::Stream;

const BATCH: usize = 200;

pub fn data_folder() -> Option<PathBuf> {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR"));
    let beside = ["../shared/data", "../../shared/data"].map(|folder| repository.join(folder));
    let named = std::env::var_os("EVERGRAPH_TEST_DATA").map(PathBuf::from);
    let folders: Vec<PathBuf> = named.into_iter().chain(beside).collect();
    let found = folders.iter().find(|folder| folder.join("protocol").is_dir()).cloned();
    if found.is_none() {
        crate::skip::skipped(&format!(
            "no benchmark files; looked for a folder with protocol/ at {folders:?}"
        ));
    }
    found
}

pub struct Case {
    folder: PathBuf,
    name: &'static str,
    pub stream: Stream,
    pub populations: Populations,
}

impl Case {
    /// The files called `name`, or a loud word that they are not there.
    pub fn find(folder: &Path, name: &'static str) -> Option<Self> {
        let events = folder.join(format!("{name}.csv.gz"));
        if !events.is_file() {
            crate::skip::skipped(&format!("no {}", events.display()));
            return None;
        }
        Some(Self::open(folder, name))
    }

    pub fn open(folder: &Path, name: &'static str) -> Self {
        let stream = read_stream(&folder.join(format!("{name}.csv.gz")), &mut |_| ()).unwrap();
        let masked = folder.join(format!("protocol/{name}-masked-nodes.csv.gz"));
        let populations = Populations::new(&stream, &read_nodes(&masked, &stream).unwrap()).unwrap();
        Self { folder: folder.to_path_buf(), name, stream, populations }
    }

    fn negatives(&self, part: &'static str, kind: &str, expected: usize) -> NegativeSource {
        let file = self.folder.join(format!("protocol/{}-{part}-{kind}.csv.gz", self.name));
        NegativeSource::given(&read_pairs(&file, &self.stream).unwrap(), part, expected).unwrap()
    }

    /// The published validation negatives and those of `kind` for test.
    pub fn part_negatives(&self, kind: &str) -> PartNegatives {
        let mut negatives = PartNegatives::drawn(&self.stream, &self.populations, 0);
        negatives.validation = self.negatives("val", "rnd", self.populations.validation().len());
        negatives.test = self.negatives("test", kind, self.populations.test().len());
        negatives
    }

    fn run(&self, rule: BankRule, kind: &str) -> DyglibReport {
        let (negatives, mut bank) = (self.part_negatives(kind), EdgeBank::new(rule));
        let options = EpochOptions { epochs: 1, batch_size: BATCH, met_share: 0.0, seed: 0 };
        let Self { stream, populations, .. } = self;
        evaluate_dyglib(stream, populations, &negatives, &mut bank, &options, None, &mut |_| ()).unwrap()
    }

    /// Average precision and ROC-AUC of the test part, times 100, as in the table.
    #[track_caller]
    fn expect(&self, rule: BankRule, kind: &str, precision: f64, auc: f64) {
        let found = self.run(rule, kind).test.ranking;
        let (found_precision, found_auc) = (100.0 * found.average_precision, 100.0 * found.auc);
        assert!(
            (found_precision - precision).abs() < 6e-5 && (found_auc - auc).abs() < 6e-5,
            "{} {rule:?} {kind}: {found_precision:.5} {found_auc:.5}, expected {precision} {auc}",
            self.name
        );
    }

    #[track_caller]
    fn expect_populations(&self, events: usize, nodes: usize, parts: [usize; 5]) {
        let p = &self.populations;
        let found = [p.masked, p.split.validation, p.train.len(), p.validation().len(), p.test().len()];
        assert_eq!((self.stream.len(), self.stream.nodes(), found), (events, nodes, parts), "{}", self.name);
        let drawn = Populations::new(&self.stream, &draw_masked(&self.stream, 0)).unwrap();
        assert_eq!(drawn.masked, p.masked, "our own draw masks as many nodes");
        assert!(!p.inductive.is_empty() && p.inductive.len() < p.test().len());
    }
}

#[test]
fn uci() {
    let Some(folder) = data_folder() else { return };
    let case = Case::open(&folder, "uci");
    case.expect_populations(59_835, 1_899, [189, 41_884, 34_352, 8_975, 8_976]);
    case.expect(BankRule::Unlimited, "rnd", 76.2015, 77.3010);
    case.expect(BankRule::Window, "hist", 65.0329, 69.1306);
    case.expect(BankRule::Unlimited, "hist", 44.2856, 35.0081);
    case.expect(BankRule::RepeatInterval, "ind", 57.4685, 58.0313);
}

#[test]
fn wikipedia() {
    let Some(folder) = data_folder() else { return };
    let case = Case::open(&folder, "wikipedia");
    case.expect_populations(157_474, 9_227, [922, 110_232, 81_029, 23_621, 23_621]);
    case.expect(BankRule::Unlimited, "rnd", 90.3710, 90.7793);
    case.expect(BankRule::RepeatThreshold, "hist", 73.0904, 77.1024);
    case.expect(BankRule::RepeatThreshold, "ind", 80.8113, 81.8283);
}

#[test]
fn us_legis_with_twelve_distinct_times() {
    let Some(folder) = data_folder() else { return };
    let case = Case::open(&folder, "uslegis");
    case.expect_populations(60_396, 225, [22, 45_441, 34_512, 10_005, 4_950]);
    case.expect(BankRule::Window, "rnd", 58.3858, 62.5733);
    case.expect(BankRule::Unlimited, "rnd", 55.4472, 59.0267);
    case.expect(BankRule::Window, "hist", 63.3082, 67.5000);
    case.expect(BankRule::Window, "ind", 65.0076, 68.8567);
}

#[test]
fn enron() {
    let Some(case) = data_folder().and_then(|folder| Case::find(&folder, "enron")) else { return };
    case.expect_populations(125_235, 184, [18, 87_664, 69_452, 18_786, 18_785]);
    case.expect(BankRule::Window, "rnd", 83.5319, 87.0476);
    case.expect(BankRule::Unlimited, "rnd", 80.3654, 85.3644);
    case.expect(BankRule::RepeatInterval, "hist", 76.9004, 79.8339);
    case.expect(BankRule::RepeatThreshold, "ind", 73.9606, 75.0234);
}

/// The draw of past pairs is another one than that of the files, of one definition: about the same figures.
#[test]
fn past_pairs_drawn_here_are_as_hard_as_those_of_the_files() {
    let Some(folder) = data_folder() else { return };
    for (name, rule, kind, precision) in [
        ("uci", BankRule::Unlimited, "hist", 44.2856),
        ("uci", BankRule::RepeatInterval, "ind", 57.4685),
        ("wikipedia", BankRule::RepeatThreshold, "hist", 73.0904),
        ("wikipedia", BankRule::RepeatThreshold, "ind", 80.8113),
    ] {
        let case = Case::open(&folder, name);
        let Case { stream, populations, .. } = &case;
        let (rows, part): (Vec<usize>, Vec<usize>) =
            ((0..stream.len()).collect(), populations.test().collect());
        let from = if kind == "ind" { populations.split.test } else { 0 };
        let past = PastPairs { stream, rows: &rows, from, seed: 1 };
        let mut negatives = PartNegatives::drawn(stream, populations, 0);
        negatives.test = past.negatives(&part, BATCH);
        let (mut bank, options) =
            (EdgeBank::new(rule), EpochOptions { epochs: 1, batch_size: BATCH, met_share: 0.0, seed: 0 });
        let report = evaluate_dyglib(stream, populations, &negatives, &mut bank, &options, None, &mut |_| ());
        let found = 100.0 * report.unwrap().test.ranking.average_precision;
        assert!(
            (found - precision).abs() < 0.5,
            "{name} {rule:?} {kind}: {found}, the files give {precision}"
        );
    }
}
