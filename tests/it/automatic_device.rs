//! `device.use = "auto"` on a machine with a GPU, which is the stand-in driver's: it is left alone while kernels are not
//! verified there, and tried where a run of the check has verified them. As it computes on the CPU, the trial is lost.

use std::collections::BTreeMap;
use std::path::Path;

use evergraph::device::cuda::{SOURCES, Texts};

use crate::kernels_compile::nvrtc;
use crate::process::Start;
use crate::stand_in::{kernel_dir, libraries};

/// The device of a daemon with this `device.verified_by`, and why.
fn device(folder: &Path, verified_by: &Path) -> String {
    let settings = [
        "device.use=auto".to_owned(),
        format!("device.verified_by={}", verified_by.display()),
        format!("device.kernel_dir={}", kernel_dir().display()),
        "learner.batch_events=20".to_owned(),
        "model.memory_dimension=8".to_owned(),
        "model.time_dimension=8".to_owned(),
        "model.embedding_dimension=8".to_owned(),
    ];
    let start = settings.iter().fold(Start::in_dir(folder), |start, setting| start.set(setting));
    let daemon = start.env("LD_LIBRARY_PATH", libraries().to_str().unwrap()).ready();
    let device = daemon.status()["device"].as_str().unwrap().to_owned();
    assert!(daemon.metrics().contains("evergraph_device_degraded 0"), "nobody asked for the GPU");
    assert!(daemon.terminate().success());
    device
}

#[test]
fn auto_leaves_a_gpu_alone_until_it_is_verified_and_faster() {
    if !nvrtc() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let found = device(folder.path(), Path::new(""));
    let why =
        format!(" and does not use it: {0} of {0} files of kernels are not verified on sm_90", SOURCES.len());
    assert!(found.starts_with("cpu: device.use = \"auto\" found ") && found.ends_with(&why), "{found}");

    let texts = Texts::default();
    let verified: BTreeMap<&str, String> =
        SOURCES.iter().map(|source| (source.file, texts.fingerprint(source))).collect();
    let results = serde_json::json!({ "verified": verified, "architecture": "sm_90", "quick": false });
    let path = folder.path().join("gpu-check.json");
    std::fs::write(&path, results.to_string()).unwrap();
    let tried = device(folder.path(), &path);
    assert!(tried.starts_with("cpu: ") && tried.contains(" and does not use it: a step takes "), "{tried}");
    assert!(tried.ends_with(" ms on the CPU"), "{tried}");
}
