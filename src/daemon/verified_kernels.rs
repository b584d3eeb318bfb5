//! Whether the kernels are verified on an architecture: each has the text with which `scripts/gpu-check.sh` passed
//! every test there. kernels/verified.json, which is compiled in, has what we ran; `device.verified_by` names the
//! results of a run of the operator's own.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;

use crate::device::cuda::{SOURCES, Source, Texts};

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

/// That all kernels are verified on GPUs of this architecture; `own` are results of a run, an empty path none.
pub(super) fn check(architecture: &str, own: &Path) -> Result<(), Refusal> {
    let committed: BTreeMap<String, BTreeMap<String, Verified>> = serde_json::from_str(COMMITTED)
        .map_err(|error| Refusal::Fault(format!("kernels/verified.json: {error}")))?;
    let own = match own.as_os_str().is_empty() {
        true => BTreeMap::new(),
        false => of_results(own, architecture)
            .map_err(|why| Refusal::Fault(format!("device.verified_by = {own:?} cannot be used: {why}")))?,
    };
    let texts = Texts::default();
    let is_verified = |file: &str, fingerprint: &str| {
        let run = committed.get(file).and_then(|by_architecture| by_architecture.get(architecture));
        run.is_some_and(|run| run.fingerprint == fingerprint)
            || own.get(file).is_some_and(|verified| verified == fingerprint)
    };
    let is_missing = |source: &&Source| !is_verified(source.file, &texts.fingerprint(source));
    match (SOURCES.iter().filter(is_missing).count(), SOURCES.len()) {
        (0, _) => Ok(()),
        (missing, of) => {
            let why = format!("{missing} of {of} files of kernels are not verified on {architecture}");
            Err(Refusal::Missing(why))
        }
    }
}

/// Fingerprints by file, of the results of a run.
fn of_results(path: &Path, architecture: &str) -> Result<BTreeMap<String, String>, String> {
    let text = std::fs::read(path).map_err(|error| error.to_string())?;
    let results: Results = serde_json::from_slice(&text).map_err(|error| error.to_string())?;
    if results.quick {
        return Err("it is of a quick run, which verifies nothing".to_owned());
    }
    match results.architecture.as_deref() {
        Some(ran_on) if ran_on == architecture => Ok(results.verified),
        ran_on => Err(format!("it is of {}, and the GPU is {architecture}", ran_on.unwrap_or("no GPU"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_are_verified_by_a_whole_run_with_the_same_texts_on_the_same_architecture() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("gpu-check.json");
        let write = |architecture: &str, quick: bool, change: bool| {
            let texts = Texts::default();
            let mut verified: BTreeMap<&str, String> =
                SOURCES.iter().map(|source| (source.file, texts.fingerprint(source))).collect();
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
        assert_eq!(check("sm_07", Path::new("")), Err(Refusal::Missing(all)));
        write("sm_07", false, true);
        assert!(matches!(check("sm_07", &path), Err(Refusal::Missing(why)) if why.starts_with("1 of ")));
        write("sm_08", false, false);
        assert!(fault(&path).ends_with("it is of sm_08, and the GPU is sm_07"), "{}", fault(&path));
        write("sm_07", true, false);
        assert!(fault(&path).contains("quick run"), "{}", fault(&path));
        std::fs::write(&path, "{").unwrap();
        assert!(fault(&path).contains("gpu-check.json"), "{}", fault(&path));
        assert!(fault(&folder.path().join("none")).starts_with("device.verified_by"));
    }
}
