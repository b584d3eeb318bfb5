//! `scripts/gpu-check.sh` meets a GPU for minutes and has to work then: here it runs whole, each step of each
//! group at tiny sizes, with the daemon and the tests as they are, through the driver's calls on the stand-in driver.
//! What needs torch or compute-sanitizer is started all the same, and has to report what is missing.

use std::collections::BTreeMap;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::kernels_compile::nvrtc;
use crate::stand_in::library;

/// Steps that run everywhere, and those that may be skipped, with a word of the reason.
const RUN: [&str; 20] = [
    "smoke",
    "check",
    "tests",
    "train-tgn-0",
    "train-tgn-0-ahead",
    "train-tgn-0-graph",
    "train-tgn-0-direct",
    "train-tgn-0-served",
    "train-tgn-172",
    "train-tgn-172-ahead",
    "train-tgn-172-graph",
    "train-tgn-172-direct",
    "train-tgn-172-served",
    "train-tgat-0",
    "train-graphmixer-0",
    "samples",
    "rows",
    "eval",
    "learn-0",
    "learn-172",
];
const MAY_BE_SKIPPED: [(&str, &str); 15] = [
    ("pyg-0", "not installed"),
    ("pyg-172", "not installed"),
    ("pyg-continual-0", "not installed"),
    ("pyg-continual-172", "not installed"),
    ("profile-tgn-0", "Nsight Compute (ncu) is not installed"),
    ("profile-tgn-172", "Nsight Compute (ncu) is not installed"),
    ("profile-tgat-0", "Nsight Compute (ncu) is not installed"),
    ("profile-graphmixer-0", "Nsight Compute (ncu) is not installed"),
    ("torch-samples", "torch"),
    ("torch-rows", "torch"),
    ("torch-layers", "torch"),
    ("sanitizer-memcheck", "compute-sanitizer is not installed"),
    ("sanitizer-racecheck", "compute-sanitizer is not installed"),
    ("sanitizer-initcheck", "compute-sanitizer is not installed"),
    ("sanitizer-synccheck", "compute-sanitizer is not installed"),
];

/// A bundle as `scripts/gpu-bundle.sh` makes it, of the programs of this build.
fn bundle(folder: &Path) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for (from, to) in [
        (PathBuf::from(env!("CARGO_BIN_EXE_evergraph")), "evergraph"),
        (std::env::current_exe().unwrap(), "it"),
        (root.join("scripts/gpu-check.sh"), "gpu-check.sh"),
    ] {
        symlink(from, folder.join(to)).unwrap();
    }
    for scripts in ["benches/gpu", "benches/learn"] {
        for entry in std::fs::read_dir(root.join(scripts)).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            if name.ends_with(".py") && !name.starts_with("test_") && !folder.join(&name).exists() {
                symlink(&path, folder.join(name)).unwrap();
            }
        }
    }
}

/// Targets are judged from figures of this form, although these are of tiny sizes.
fn judged(made: &Path) {
    let path = made.join("judged.json");
    let judged = Command::new("python3")
        .args(["-B", "report.py", "--parts", "parts", "--events", "e", "--version", "v", "--table", "--json"])
        .arg(&path)
        .current_dir(made)
        .output()
        .unwrap();
    assert!(judged.status.success(), "{}", String::from_utf8_lossy(&judged.stderr));
    let document: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    assert_eq!(document.get("fault"), None, "{document}");
    let open: Vec<&Value> = document["targets"].as_array().unwrap().iter().collect();
    let measured = open.iter().filter(|target| target["verdict"] != "not measured").count();
    assert!(open.len() >= 11 && measured >= 5, "{open:?}");
}

#[test]
fn every_step_runs_on_the_stand_in_driver() {
    if !nvrtc() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (made, tools, out) =
        (folder.path().join("gpu"), folder.path().join("bin"), folder.path().join("out"));
    for each in [&made, &tools] {
        std::fs::create_dir(each).unwrap();
    }
    bundle(&made);
    let smi = tools.join("nvidia-smi");
    std::fs::write(
        &smi,
        "#!/bin/sh\ncase \"$1\" in -L) echo 'GPU 0: stand-in' ;; *) echo stand-in ;; esac\n",
    )
    .unwrap();
    std::fs::set_permissions(&smi, std::fs::Permissions::from_mode(0o755)).unwrap();
    // Kernels that another test has compiled are taken along, as the parts of an earlier run are.
    let kernels = Path::new(env!("CARGO_TARGET_TMPDIR")).join("stand-in-kernels");
    std::fs::create_dir_all(&kernels).unwrap();
    std::fs::create_dir(made.join("parts")).unwrap();
    symlink(&kernels, made.join("parts/kernels")).unwrap();
    let paths = |name, first: &Path| {
        let rest = std::env::var_os(name).unwrap_or_default();
        std::env::join_paths(std::iter::once(first.to_owned()).chain(std::env::split_paths(&rest))).unwrap()
    };
    let output = Command::new("bash")
        .arg(made.join("gpu-check.sh"))
        .args(["--quick", "--seconds", "3600"])
        .env("PATH", paths("PATH", &tools))
        .env("LD_LIBRARY_PATH", paths("LD_LIBRARY_PATH", library()))
        .env("OUT", &out)
        .env_remove("PARTS")
        .output()
        .unwrap();
    let log = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{}: {log}", output.status);
    let document: Value =
        serde_json::from_slice(&std::fs::read(out.join("gpu-check.json")).unwrap()).unwrap();
    let steps: BTreeMap<&str, &Value> = document["steps"]
        .as_array()
        .unwrap()
        .iter()
        .map(|step| (step["step"].as_str().unwrap(), step))
        .collect();
    for name in RUN {
        assert_eq!(steps[name]["ok"], true, "{name}: {}", steps[name]);
    }
    for (name, missing) in MAY_BE_SKIPPED {
        let why = steps[name]["skipped"].as_str().unwrap_or_default();
        assert!(steps[name]["ok"] == true || why.contains(missing), "{name}: {}", steps[name]);
    }
    assert!(steps["tests"]["result"].is_string(), "{}", steps["tests"]);
    assert_eq!(steps.len(), RUN.len() + MAY_BE_SKIPPED.len(), "{:?}", steps.keys());
    // What was computed is there: a figure of each kind.
    for figure in
        ["/training/tgn-172/loss", "/rows/layers/0/seconds/median", "/rows/rows/0/zero_copy_seconds/median"]
    {
        assert!(document.pointer(figure).is_some_and(Value::is_f64), "{figure} in {document}");
    }
    assert!(document["samples"]["seeds_per_batch"] == 1_800, "{}", document["samples"]);
    assert!(document["eval"]["mean_average_precision"].is_f64(), "{}", document["eval"]);
    assert_eq!(document["verified"], serde_json::json!({}), "a quick run verifies nothing");
    assert_eq!(document["architecture"], "sm_90");
    assert_eq!(document["targets"], serde_json::json!([]), "a quick run judges nothing");
    assert_eq!(document.get("fault"), None);
    judged(&made);
}
