//! The fingerprints of the kernels that the other tests here ran, and the architecture of the GPU that they ran on:
//! `EVERGRAPH_GPU_FINGERPRINTS` names a file for them. `scripts/gpu-check.sh` asks for it in the step whose tests verify
//! kernels, and in no other.

use std::path::PathBuf;

use evergraph::device::cuda::{SOURCES, Texts};
use serde_json::Value;

use super::{gpu, options};

#[test]
fn fingerprints_of_all_kernels_are_written_where_they_are_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let sources = options().kernel_sources;
    let texts = sources.as_deref().map_or_else(Texts::default, |folder| Texts::of_folder(folder).unwrap());
    let asked = std::env::var_os("EVERGRAPH_GPU_FINGERPRINTS").map(PathBuf::from);
    let path = asked.unwrap_or_else(|| folder.path().join("fingerprints.json"));
    let found =
        serde_json::json!({ "architecture": gpu().gpu().architecture, "files": texts.fingerprints() });
    std::fs::write(&path, serde_json::to_vec_pretty(&found).unwrap()).unwrap();
    let written: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    assert_eq!(written["files"].as_object().unwrap().len(), SOURCES.len());
}
