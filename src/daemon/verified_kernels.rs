//! Whether the kernels are verified on an architecture: each has the text with which `scripts/gpu-check.sh` passed
//! every test there. kernels/verified.json, which is compiled in, has what we ran; `device.verified_by` names the
//! results of a run of the operator's own.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;

use crate::device::cuda::Texts;

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
    /// Of the GPU that ran the tests.
    #[serde(default)]
    architecture: Option<String>,
    quick: bool,
}

/// Why kernels do not count as verified, in words.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// What is missing.
    Missing(String),
    /// What `device.verified_by` names is of no use.
    Fault(String),
}

/// That all kernels are verified on GPUs of this architecture; `own` are results of a run, an empty path none, which
/// are read where those that are compiled in do not suffice.
pub(super) fn check(architecture: &str, own: &Path) -> Result<(), Refusal> {
    let committed: BTreeMap<String, BTreeMap<String, Verified>> = serde_json::from_str(COMMITTED)
        .map_err(|error| Refusal::Fault(format!("kernels/verified.json: {error}")))?;
    let ours = |file| committed.get(file).and_then(|by_architecture| by_architecture.get(architecture));
    let mut missing = Texts::default().fingerprints();
    let of = missing.len();
    missing.retain(|file, fingerprint| ours(*file).is_none_or(|run| run.fingerprint != *fingerprint));
    let mut more = String::new();
    if !missing.is_empty() && !own.as_os_str().is_empty() {
        let results = read(own)
            .map_err(|why| Refusal::Fault(format!("device.verified_by = {own:?} cannot be used: {why}")))?;
        let ran_on = results.architecture.as_deref().unwrap_or("no GPU");
        if ran_on == architecture {
            missing.retain(|file, fingerprint| results.verified.get(*file) != Some(fingerprint));
        } else {
            more = format!(", and device.verified_by is of {ran_on}");
        }
    }
    match missing.len() {
        0 => Ok(()),
        missing => Err(Refusal::Missing(format!(
            "{missing} of {of} files of kernels are not verified on {architecture}{more}"
        ))),
    }
}

/// The results of a whole run.
fn read(path: &Path) -> Result<Results, String> {
    let text = std::fs::read(path).map_err(|error| error.to_string())?;
    let results: Results = serde_json::from_slice(&text).map_err(|error| error.to_string())?;
    match results.quick {
        true => Err("it is of a quick run, which verifies nothing".to_owned()),
        false => Ok(results),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::cuda::SOURCES;

    #[test]
    fn kernels_are_verified_by_a_whole_run_with_the_same_texts_on_the_same_architecture() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("gpu-check.json");
        let write = |architecture: &str, quick: bool, change: bool| {
            let mut verified = Texts::default().fingerprints();
            if change {
                verified.insert(SOURCES[0].file, "another".into());
            }
            let results = serde_json::json!({
                "verified": verified, "architecture": architecture, "quick": quick, "more": 1
            });
            std::fs::write(&path, results.to_string()).unwrap();
        };
        let fault = |path: &Path| match check("sm_07", path) {
            Err(Refusal::Fault(why)) => why,
            other => panic!("{other:?}"),
        };
        // No GPU has this number.
        write("sm_07", false, false);
        assert_eq!(check("sm_07", &path), Ok(()));
        let all = format!("{0} of {0} files of kernels are not verified on sm_07", SOURCES.len());
        assert_eq!(check("sm_07", Path::new("")), Err(Refusal::Missing(all.clone())));
        write("sm_07", false, true);
        assert!(matches!(check("sm_07", &path), Err(Refusal::Missing(why)) if why.starts_with("1 of ")));
        write("sm_08", false, false);
        let of_another = format!("{all}, and device.verified_by is of sm_08");
        assert_eq!(check("sm_07", &path), Err(Refusal::Missing(of_another)));
        write("sm_07", true, false);
        assert!(fault(&path).contains("quick run"), "{}", fault(&path));
        std::fs::write(&path, "{").unwrap();
        assert!(fault(&path).contains("gpu-check.json"), "{}", fault(&path));
        assert!(fault(&folder.path().join("none")).starts_with("device.verified_by"));
    }
}
