//! The fingerprints of the kernels that the other tests here ran: `EVERGRAPH_GPU_FINGERPRINTS` names a file for them.
//! `scripts/gpu-check.sh` asks for it in the step whose tests verify kernels, and in no other.

use std::collections::BTreeMap;
use std::path::PathBuf;

use evergraph::device::cuda::{SOURCES, Texts};

use super::options;

#[test]
fn fingerprints_of_all_kernels_are_written_where_they_are_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let sources = options().kernel_sources;
    let texts = sources.as_deref().map_or_else(Texts::default, |folder| Texts::of_folder(folder).unwrap());
    let asked = std::env::var_os("EVERGRAPH_GPU_FINGERPRINTS").map(PathBuf::from);
    let path = asked.unwrap_or_else(|| folder.path().join("fingerprints.json"));
    let by_file: BTreeMap<&str, String> =
        SOURCES.iter().map(|source| (source.file, texts.fingerprint(source))).collect();
    std::fs::write(&path, serde_json::to_vec_pretty(&by_file).unwrap()).unwrap();
    let written: BTreeMap<String, String> = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    assert_eq!(written.len(), SOURCES.len());
}
