//! `device.use = "auto"` on a machine with a GPU, which is the stand-in driver's: it is left alone while kernels are not
//! verified there, and tried where a run of the check has verified them. As it computes on the CPU, the trial is lost.

use std::path::Path;
use std::process::Command;

use evergraph::device::cuda::{SOURCES, Texts};

use crate::kernels_compile::nvrtc;
use crate::process::Start;
use crate::stand_in::{kernel_dir, libraries, metric};

/// Settings of a daemon with this `device.verified_by`.
fn settings(verified_by: &Path) -> Vec<String> {
    vec![
        "device.use=auto".to_owned(),
        format!("device.verified_by={}", verified_by.display()),
        format!("device.kernel_dir={}", kernel_dir().display()),
        "learner.batch_events=20".to_owned(),
        "model.memory_dimension=8".to_owned(),
        "model.time_dimension=8".to_owned(),
        "model.embedding_dimension=8".to_owned(),
    ]
}

/// The device of such a daemon, and why; and whether it reports that it lacks a GPU.
fn device(folder: &Path, verified_by: &Path) -> (String, bool) {
    let start = settings(verified_by).iter().fold(Start::in_dir(folder), |start, setting| start.set(setting));
    let daemon = start.env("LD_LIBRARY_PATH", libraries().to_str().unwrap()).ready();
    let device = daemon.status()["device"].as_str().unwrap().to_owned();
    let degraded = metric(&daemon, "evergraph_device_degraded");
    assert!(daemon.terminate().success());
    (device, degraded == Some(1.0))
}

/// Whether `evergraph check` finds no fault, and its line about the device.
fn check(folder: &Path, verified_by: &Path) -> (bool, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_evergraph"));
    command.args(["check", "--listen", "127.0.0.1:0", "--data"]).arg(folder.join("checked"));
    for setting in settings(verified_by) {
        command.args(["--set", &setting]);
    }
    let output = command.env("LD_LIBRARY_PATH", libraries()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let line = text.lines().find(|line| line.contains(" device: ")).unwrap_or(&text).to_owned();
    (output.status.success(), line)
}

#[test]
fn auto_leaves_a_gpu_alone_until_it_is_verified_and_faster() {
    if !nvrtc() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (found, degraded) = device(folder.path(), Path::new(""));
    let why =
        format!(" and does not use it: {0} of {0} files of kernels are not verified on sm_90", SOURCES.len());
    assert!(found.starts_with("cpu: device.use = \"auto\" found ") && found.ends_with(&why), "{found}");
    assert!(!degraded, "nobody asked for the GPU");

    let verified = Texts::default().fingerprints();
    let results = serde_json::json!({ "verified": verified, "architecture": "sm_90", "quick": false });
    let path = folder.path().join("gpu-check.json");
    std::fs::write(&path, results.to_string()).unwrap();
    let (passes, line) = check(folder.path(), &path);
    assert!(passes && line.ends_with(" and tries it at a start"), "{line}");
    let (tried, degraded) = device(folder.path(), &path);
    assert!(tried.starts_with("cpu: ") && tried.contains(" and does not use it: a step takes "), "{tried}");
    assert!(tried.ends_with(" ms on the CPU, and it has to be 1.25 times as fast") && !degraded, "{tried}");

    std::fs::write(&path, "{").unwrap();
    let (passes, line) = check(folder.path(), &path);
    assert!(!passes && line.starts_with("FAULT device: device.verified_by = "), "{line}");
    let (refused, degraded) = device(folder.path(), &path);
    assert!(refused.contains("gpu-check.json") && degraded, "{refused}");
}
