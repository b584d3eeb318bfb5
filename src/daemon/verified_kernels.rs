//! Whether the kernels are verified on an architecture: each has the text with which `scripts/gpu-check.sh` passed
//! every test there. kernels/verified.json, which is compiled in, has what we ran; `device.verified_by` names the
//! results of a run of the operator's own.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;

use crate::device::cuda::{SOURCES, Texts};

const COMMITTED: &str = include_str!("../../kernels/verified.json");

/// A run that verified a file of kernels.
#[derive(Deserialize)]
struct Verified {
    fingerprint: String,
}

/// What a run of the check leaves, as far as it is read here.
#[derive(Deserialize)]
struct Results {
    verified: BTreeMap<String, String>,
    machine: Machine,
}

#[derive(Deserialize)]
struct Machine {
    gpu: Gpu,
}

#[derive(Deserialize)]
struct Gpu {
    /// As 9.0 for sm_90.
    compute_cap: Option<String>,
}

/// That all kernels are verified on GPUs of this architecture; `own` are results of a run, an empty path none.
///
/// # Errors
/// In words: how many are not, or that `own` cannot be read.
pub(super) fn check(architecture: &str, own: &Path) -> Result<(), String> {
    let wrong = |what: &dyn std::fmt::Display| format!("device.verified_by = {own:?} cannot be read: {what}");
    let committed: BTreeMap<String, BTreeMap<String, Verified>> =
        serde_json::from_str(COMMITTED).map_err(|error| format!("kernels/verified.json: {error}"))?;
    let own = match own.as_os_str().is_empty() {
        true => BTreeMap::new(),
        false => {
            let text = std::fs::read(own).map_err(|error| wrong(&error))?;
            of_results(&text, architecture).map_err(|error| wrong(&error))?
        }
    };
    let texts = Texts::default();
    let is_verified = |file: &str, fingerprint: &str| {
        let ours =
            committed.get(file).and_then(|by| by.get(architecture)).map(|run| run.fingerprint.as_str());
        ours == Some(fingerprint) || own.get(file).is_some_and(|verified| verified == fingerprint)
    };
    let missing =
        SOURCES.iter().filter(|source| !is_verified(source.file, &texts.fingerprint(source))).count();
    match missing {
        0 => Ok(()),
        missing => {
            Err(format!("{missing} of {} files of kernels are not verified on {architecture}", SOURCES.len()))
        }
    }
}

/// Fingerprints by file, of results of a run on this architecture.
fn of_results(text: &[u8], architecture: &str) -> Result<BTreeMap<String, String>, serde_json::Error> {
    let Results { verified, machine } = serde_json::from_slice(text)?;
    let ran_on = machine.gpu.compute_cap.map(|capability| format!("sm_{}", capability.replace('.', "")));
    Ok(if ran_on.as_deref() == Some(architecture) { verified } else { BTreeMap::new() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_are_verified_by_a_run_with_the_same_texts_on_the_same_architecture() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("gpu-check.json");
        let write = |capability: &str, change: bool| {
            let texts = Texts::default();
            let mut verified: BTreeMap<&str, String> =
                SOURCES.iter().map(|source| (source.file, texts.fingerprint(source))).collect();
            if change {
                verified.insert(SOURCES[0].file, "another".into());
            }
            let results = serde_json::json!({
                "verified": verified, "machine": { "gpu": { "compute_cap": capability } }, "more": 1
            });
            std::fs::write(&path, results.to_string()).unwrap();
        };
        // No GPU has this number.
        write("0.7", false);
        assert_eq!(check("sm_07", &path), Ok(()));
        assert_eq!(
            check("sm_08", &path).unwrap_err(),
            format!("{0} of {0} files of kernels are not verified on sm_08", SOURCES.len())
        );
        write("0.7", true);
        assert!(check("sm_07", &path).unwrap_err().starts_with("1 of "));
        std::fs::write(&path, "{").unwrap();
        let why = check("sm_07", &path).unwrap_err();
        assert!(why.contains("device.verified_by") && why.contains("gpu-check.json"), "{why}");
        assert!(check("sm_07", &folder.path().join("none")).unwrap_err().contains("cannot be read"));
        assert!(check("sm_07", Path::new("")).is_err());
    }
}
