//! `evergraph bench ops` as a user runs it: figures that are all there, words where it cannot run, and files from
//! which the same results follow by plain loops.

use std::path::Path;
use std::process::{Command, Output};

use evergraph::device::cuda::{Cuda, CudaOptions};
use serde_json::Value;

fn ops(folder: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_evergraph"));
    command.args(["bench", "ops"]).args(args).current_dir(folder).output().unwrap()
}

fn succeeds(folder: &Path, args: &[&str]) -> Output {
    let output = ops(folder, args);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output
}

#[test]
fn a_quick_run_tells_everything_about_every_row() {
    let folder = tempfile::tempdir().unwrap();
    let args = ["--quick", "--runs", "1", "--threads", "2", "--op", "linear", "--op", "segment_mean"];
    let more = ["--op", "adam", "--op", "scatter_last", "--op", "sample_recent", "--json", "-"];
    let output = succeeds(folder.path(), &[&args[..], &more].concat());
    let figures: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&figures["bench"], &figures["threads"]), (&"ops".into(), &2.into()));
    assert!(figures["machine"]["cores"].as_u64() >= Some(1));
    let ceilings = figures["ceilings"].as_object().unwrap();
    for name in ["copy_bytes", "copy_in_cache_bytes", "matmul_flops", "copy_one_thread_bytes"] {
        assert!(ceilings[&format!("{name}_per_second")].as_f64() > Some(1e6), "{ceilings:?}");
    }
    let rows = figures["rows"].as_array().unwrap();
    let measured: Vec<(&str, &str)> =
        rows.iter().map(|row| (row["op"].as_str().unwrap(), row["direction"].as_str().unwrap())).collect();
    let expected = [
        ("segment_mean", "forward"),
        ("segment_mean", "backward"),
        ("linear", "forward"),
        ("linear", "backward"),
        ("sample_recent", "forward"),
        ("scatter_last", "forward"),
        ("adam", "forward"),
    ];
    assert_eq!(
        measured, expected,
        "an operation without a quick point that is named is measured at its first one"
    );
    for row in rows {
        let number = |key: &str| row[key].as_f64().unwrap_or_else(|| panic!("{key}: {row}"));
        let rate = match row["ceiling"].as_str().unwrap() {
            "matmul" => number("useful_flops_per_second") * number("seconds") / number("flops"),
            _ => number("useful_bytes_per_second") * number("seconds") / number("bytes_moved"),
        };
        assert!((rate - 1.0).abs() < 1e-9 && number("p95_seconds") >= number("seconds"), "{row}");
        assert!(number("ratio_to_ceiling") > 0.0 && number("runs") >= 1.0, "{row}");
        assert_eq!(
            (&row["device"], &row["cache"], &row["threads"]),
            (&"cpu".into(), &"warm".into(), &2.into())
        );
        assert!(row["id"].as_str().unwrap().starts_with(row["op"].as_str().unwrap()), "{row}");
        assert!(row["shape"].is_array() && row["params"].is_object(), "{row}");
    }
}

#[test]
fn what_there_is_not_is_named_with_what_there_is() {
    let folder = tempfile::tempdir().unwrap();
    for (args, words) in [
        (&["--op", "gather_row"][..], &["gather_row:", "gather_rows", "reference_step"][..]),
        (&["--device", "cuda:0", "--op", "gru_cell"], &["gru_cell", "on a GPU gather_rows"]),
        (&["--device", "tpu"], &["tpu", "cuda"]),
        (&["--runs", "0"], &["--runs"]),
    ] {
        let output = ops(folder.path(), args);
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {text}");
        assert!(words.iter().all(|word| text.contains(word)), "{args:?}: {text}");
    }
    let list = succeeds(folder.path(), &["--list"]);
    assert_eq!(String::from_utf8_lossy(&list.stdout).lines().count(), 16);
}

#[test]
fn without_a_gpu_a_benchmark_for_one_names_what_is_missing() {
    if Cuda::open(0, &CudaOptions::default()).is_ok() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    // An event file is not even looked for.
    for args in [
        &["bench", "ops"][..],
        &["bench", "sample", "--events", "nowhere.csv"],
        &["bench", "train", "--events", "nowhere.csv"],
        &["eval", "--events", "nowhere.csv", "--model", "tgn"],
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_evergraph"))
            .args(args)
            .args(["--device", "cuda:0"])
            .current_dir(&folder)
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success(), "{args:?}: {text}");
        assert!(text.contains("--device cuda:0") && text.contains("opening the GPU"), "{args:?}: {text}");
    }
}

/// A case directory, as anyone else would read it.
struct Cases<'a> {
    folder: &'a Path,
    list: Value,
}

impl Cases<'_> {
    fn point(&self, op: &str) -> &Value {
        let points = self.list["points"].as_array().unwrap();
        points.iter().find(|point| point["op"] == op).unwrap()
    }

    fn bytes(&self, entry: &Value) -> Vec<[u8; 4]> {
        let bytes = std::fs::read(self.folder.join(entry["file"].as_str().unwrap())).unwrap();
        bytes.as_chunks().0.to_vec()
    }

    fn numbers(&self, entry: &Value) -> Vec<usize> {
        assert_eq!(entry["kind"], "u32");
        self.bytes(entry).into_iter().map(|b| u32::from_le_bytes(b) as usize).collect()
    }

    /// Values, generated by the formula of the documentation.
    fn values(&self, entry: &Value) -> Vec<f32> {
        let seed = self.list["seed"].as_u64().unwrap();
        let golden = 0x9E37_79B9_7F4A_7C15u64;
        let base = seed.wrapping_add(entry["stream"].as_u64().unwrap().wrapping_mul(golden));
        let [low, high] = ["low", "high"].map(|key| entry[key].as_f64().unwrap() as f32);
        let len: u64 = entry["shape"].as_array().unwrap().iter().map(|n| n.as_u64().unwrap()).product();
        (0..len)
            .map(|i| {
                let mut z = base.wrapping_add(i).wrapping_add(golden);
                z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
                z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
                let f = ((z ^ (z >> 31)) >> 40) as f32 * (1.0 / 16_777_216.0);
                low + (high - low) * f
            })
            .collect()
    }

    /// The samples and the sum of an output are those of `expected`.
    fn check(&self, point: &Value, name: &str, expected: &[f64]) {
        let output = &point["outputs"][name];
        let stride = output["stride"].as_u64().unwrap() as usize;
        let samples: Vec<f32> = self.bytes(output).into_iter().map(f32::from_le_bytes).collect();
        assert_eq!(samples.len() as u64, output["count"].as_u64().unwrap());
        assert_eq!(samples.len(), expected.len().div_ceil(stride));
        let top = expected.iter().fold(0.0f64, |top, v| top.max(v.abs()));
        for (sample, want) in samples.iter().zip(expected.iter().step_by(stride)) {
            assert!((f64::from(*sample) - want).abs() <= 1e-5 * top, "{name}: {sample} for {want}");
        }
        let (sum, want) = (output["sum"].as_f64().unwrap(), expected.iter().sum::<f64>());
        assert!(
            (sum - want).abs() <= 1e-6 * expected.iter().map(|v| v.abs()).sum::<f64>(),
            "{name}: {sum} {want}"
        );
    }
}

/// `out[to] += x[from]` for every pair, rows of `cols`.
fn add_rows(rows: usize, cols: usize, x: &[f32], pairs: impl Iterator<Item = (usize, usize)>) -> Vec<f64> {
    let mut out = vec![0.0; rows * cols];
    for (from, to) in pairs {
        for c in 0..cols {
            out[to * cols + c] += f64::from(x[from * cols + c]);
        }
    }
    out
}

#[test]
fn others_can_compute_the_same_from_the_files() {
    let folder = tempfile::tempdir().unwrap();
    let args = ["--quick", "--op", "gather_rows", "--op", "segment_mean", "--cases", "."];
    succeeds(folder.path(), &args);
    let text = std::fs::read(folder.path().join("cases.json")).unwrap();
    let cases = Cases { folder: folder.path(), list: serde_json::from_slice(&text).unwrap() };

    let point = cases.point("gather_rows");
    let cols = point["params"]["row_bytes"].as_u64().unwrap() as usize / 4;
    let rows = point["params"]["table_rows"].as_u64().unwrap() as usize;
    let (table, d) = (cases.values(&point["inputs"]["table"]), cases.values(&point["inputs"]["grad_out"]));
    let index = cases.numbers(&point["inputs"]["index"]);
    let pairs = || index.iter().copied().enumerate();
    cases.check(point, "out", &add_rows(index.len(), cols, &table, pairs().map(|(i, row)| (row, i))));
    cases.check(point, "grad_table", &add_rows(rows, cols, &d, pairs()));

    let point = cases.point("segment_mean");
    let cols = point["params"]["row_bytes"].as_u64().unwrap() as usize / 4;
    let (x, d) = (cases.values(&point["inputs"]["x"]), cases.values(&point["inputs"]["grad_out"]));
    let offsets = cases.numbers(&point["inputs"]["offsets"]);
    let (mut out, mut dx) = (vec![0.0; d.len()], vec![0.0; x.len()]);
    for (g, segment) in offsets.windows(2).enumerate() {
        let share = 1.0 / (segment[1] - segment[0]) as f64;
        for (row, c) in (segment[0]..segment[1]).flat_map(|row| (0..cols).map(move |c| (row, c))) {
            out[g * cols + c] += f64::from(x[row * cols + c]) * share;
            dx[row * cols + c] = f64::from(d[g * cols + c]) * share;
        }
    }
    cases.check(point, "out", &out);
    cases.check(point, "grad_x", &dx);
}
