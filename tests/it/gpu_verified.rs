//! Which kernels have been verified on a GPU since they last changed: docs/benchmarks/gpu/kernels.md, from the
//! fingerprints in kernels/verified.json, which `scripts/gpu-check.sh` left, and the kernels as they are. A kernel that changes
//! makes the page wrong until it is written anew (`UPDATE=1 cargo test --test it gpu_verified`), which lists the change.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};

use evergraph::device::cuda::Texts;
use serde::Deserialize;

const HEAD: &str = "# Kernels verified on a GPU

<!-- Written by tests/it/gpu_verified.rs from verified.json and kernels/: run it with UPDATE=1. -->

A kernel is verified when `gpu-check.sh` has launched it on a GPU and every parity test has passed. It counts as verified
until its file changes, or a header that the file includes. `device.use = \"auto\"` takes a GPU only where all are verified
on its architecture.

| file | state | GPU | driver | date |
| --- | --- | --- | --- | --- |
";

/// What verified a file of kernels, by architecture of the GPU.
type ByArchitecture = BTreeMap<String, Verified>;

/// A run that verified a file of kernels.
#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Verified {
    fingerprint: String,
    gpu: Option<String>,
    driver: Option<String>,
    date: String,
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/benchmarks/gpu")
}

/// The page for fingerprints of today, by file.
fn page(verified: &BTreeMap<String, ByArchitecture>, today: &[(&str, String)]) -> String {
    let mut page = HEAD.to_owned();
    let mut unchanged = 0;
    for (file, fingerprint) in today {
        let entries = verified.get(*file).map(|all| all.iter().collect()).unwrap_or_default();
        let entries: Vec<(&String, &Verified)> = entries;
        let (same, other): (Vec<_>, Vec<_>) =
            entries.into_iter().partition(|(_, entry)| entry.fingerprint == *fingerprint);
        let (state, shown) = match (same.is_empty(), other.is_empty()) {
            (false, _) => ("verified", same),
            (true, false) => ("changed since it was verified", other),
            (true, true) => ("never run on a GPU", vec![]),
        };
        unchanged += usize::from(state == "verified");
        let column = |of: &dyn Fn(&String, &Verified) -> String| {
            let texts: Vec<String> = shown.iter().map(|(name, entry)| of(name, entry)).collect();
            if texts.is_empty() { "-".to_owned() } else { texts.join(", ") }
        };
        let text = |value: &Option<String>| value.clone().unwrap_or_else(|| "-".to_owned());
        let gpu = column(&|name, entry| format!("{} ({name})", text(&entry.gpu)));
        let (driver, date) =
            (column(&|_, entry| text(&entry.driver)), column(&|_, entry| entry.date.clone()));
        writeln!(page, "| {file} | {state} | {gpu} | {driver} | {date} |").unwrap();
    }
    writeln!(page, "\n{unchanged} of {} files are verified.", today.len()).unwrap();
    page
}

#[test]
fn the_page_of_verified_kernels_is_that_of_the_kernels_as_they_are() {
    let today: Vec<_> = Texts::default().fingerprints().into_iter().collect();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels/verified.json");
    let verified: BTreeMap<String, ByArchitecture> =
        serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let gone: Vec<_> = verified.keys().filter(|file| !today.iter().any(|(name, _)| name == file)).collect();
    assert!(gone.is_empty(), "verified.json names {gone:?}, which kernels/ does not have: take them out");
    let (page, target) = (page(&verified, &today), folder().join("kernels.md"));
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&target, &page).unwrap();
    }
    let committed = std::fs::read_to_string(&target).unwrap_or_default();
    assert!(
        committed == page,
        "a kernel or verified.json changed: run this test with UPDATE=1, which writes\n{page}"
    );
}

#[test]
fn a_kernel_that_changes_is_no_longer_verified() {
    let one = |fingerprint: &str| Verified {
        fingerprint: fingerprint.into(),
        gpu: Some("a GPU".into()),
        driver: None,
        date: "2026-12-01".into(),
    };
    let on = |architecture: &str, fingerprint: &str| (architecture.to_owned(), one(fingerprint));
    let verified = BTreeMap::from([
        ("a.cu".to_owned(), BTreeMap::from([on("sm_80", "0"), on("sm_90", "1")])),
        ("b.cu".to_owned(), BTreeMap::from([on("sm_80", "2"), on("sm_90", "2")])),
    ]);
    let today = [("a.cu", "1".to_owned()), ("b.cu", "3".to_owned()), ("c.cu", "4".to_owned())];
    let page = page(&verified, &today);
    for line in [
        "| a.cu | verified | a GPU (sm_90) | - | 2026-12-01 |",
        "| b.cu | changed since it was verified | a GPU (sm_80), a GPU (sm_90) | -, - | 2026-12-01, 2026-12-01 |",
        "| c.cu | never run on a GPU | - | - | - |",
        "1 of 3 files are verified.",
    ] {
        assert!(page.contains(line), "{page}");
    }
}
