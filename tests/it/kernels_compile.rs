//! Every kernel compiles for the GPUs it is meant for, spills nothing, and takes what its launcher passes. Needs NVRTC
//! (`scripts/setup.sh test` installs it) and no GPU.

use std::collections::BTreeSet;
use std::path::Path;

use evergraph::device::cuda::{
    CudaError, Entry, HEADERS, SOURCES, Source, nvrtc_version, parameter_bytes, usage,
};

use crate::skip::skipped;

/// The oldest and the newest architecture that kernels are tuned for.
const ARCHITECTURES: [&str; 2] = ["sm_80", "sm_90"];
/// Bytes of registers that one thread may write to memory for lack of room. None: a kernel that spills is to be cut.
const SPILL_BYTES_MAX: u32 = 0;

/// Whether NVRTC is here. Where it is required, as in `.ci/run`, it has to be.
pub fn nvrtc() -> bool {
    match nvrtc_version() {
        Ok((major, _)) => {
            assert!(major >= 13, "NVRTC {major} is older than the kernels' compiler in setup.sh");
            true
        }
        Err(error) => {
            assert!(std::env::var_os("EVERGRAPH_NVRTC").is_none(), "EVERGRAPH_NVRTC requires it: {error}");
            skipped(&format!("kernels are not compiled: {error}"));
            false
        }
    }
}

fn folder() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels")
}

#[test]
fn every_file_of_the_folder_is_compiled_in() {
    let mut there = BTreeSet::new();
    for entry in std::fs::read_dir(folder()).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        if name.ends_with(".cu") || name.ends_with(".cuh") {
            there.insert(name);
        }
    }
    let known = SOURCES.iter().map(|source| source.file).chain(HEADERS.iter().map(|(name, _)| *name));
    let known: BTreeSet<String> = known.map(str::to_owned).collect();
    assert_eq!(known, there, "name them in src/device/cuda/module.rs");
}

#[test]
fn every_kernel_compiles_without_spills_and_takes_what_launchers_pass() {
    if !nvrtc() {
        return;
    }
    for source in SOURCES {
        for architecture in ARCHITECTURES {
            let compiled = source.compile(architecture).unwrap_or_else(|error| panic!("{error}"));
            let usages = usage(&compiled.log);
            assert!(!usages.is_empty(), "{}: no figures in the log:\n{}", source.file, compiled.log);
            for usage in &usages {
                println!("{architecture} {}: {usage:?}", source.file);
                assert!(usage.registers > 0, "{usage:?}");
                let spilled = usage.spill_store_bytes.max(usage.spill_load_bytes);
                assert!(
                    (0..=SPILL_BYTES_MAX).contains(&spilled),
                    "{} for {architecture} spills: {usage:?}",
                    source.file
                );
                parameter_bytes(&compiled.cubin, &usage.kernel).unwrap();
            }
            let named: BTreeSet<&str> = usages.iter().map(|usage| usage.kernel.as_str()).collect();
            let missing = source.kernels().find(|(name, _)| !named.contains(name));
            assert!(missing.is_none(), "{} has no kernel {missing:?}: {named:?}", source.file);
        }
    }
}

#[test]
fn spills_and_parameters_are_seen_where_there_are_some() {
    if !nvrtc() {
        return;
    }
    // 64 values of each thread that stay alive, with room for 32 registers.
    let text = r#"
        extern "C" __global__ void __launch_bounds__(1024, 2)
        spills(float* out, const float* in, int n, unsigned long long far, unsigned char last) {
            float a[64];
            #pragma unroll
            for (int i = 0; i < 64; i++) a[i] = in[i * n + threadIdx.x];
            for (int k = 0; k < n; k++) {
                #pragma unroll
                for (int i = 0; i < 64; i++) a[i] = a[i] * a[(i * 7 + 3) & 63] + in[k];
            }
            #pragma unroll
            for (int i = 0; i < 64; i++) out[i * n + threadIdx.x + far + last] = a[i];
        }"#;
    let source = |parameters| Source {
        file: "spills.cu",
        text,
        entries: Box::leak(Box::new([Entry { names: &["spills"], parameters }])),
    };
    for architecture in ARCHITECTURES {
        let compiled = source(&[8, 8, 4, 8, 1]).compile(architecture).unwrap();
        let usages = usage(&compiled.log);
        assert!(usages[0].spill_store_bytes > 0 && usages[0].stack_bytes > 0, "{usages:?}");
        assert_eq!(parameter_bytes(&compiled.cubin, "spills").unwrap(), [8, 8, 4, 8, 1]);
        assert!(parameter_bytes(&compiled.cubin, "other").unwrap().is_empty(), "it has no such kernel");
        for cut in [0, 40, 64, 1000, compiled.cubin.len() / 2] {
            assert!(parameter_bytes(&compiled.cubin[..cut], "spills").is_err(), "cut at {cut}");
        }
    }
    // A launcher that passes something else gets an error before anything runs.
    let error = source(&[8, 8, 8, 8, 1]).compile("sm_90").unwrap_err().to_string();
    assert!(error.contains("spills takes [8, 8, 4, 8, 1] bytes, launchers pass [8, 8, 8, 8, 1]"), "{error}");
}

#[test]
fn a_text_that_is_wrong_is_refused_with_file_and_line() {
    if !nvrtc() {
        return;
    }
    let wrong = |text| Source { file: "wrong.cu", text, entries: &[] };
    let error = wrong("\nint f() { return x; }\n").compile("sm_90").unwrap_err();
    let message = error.to_string();
    assert!(matches!(error, CudaError::Kernel { .. }) && message.contains("wrong.cu(2)"), "{message}");
    assert!(
        message.starts_with("kernels/wrong.cu for sm_90: ") && message.contains("\"x\" is undefined"),
        "{message}"
    );
    assert!(wrong("int a;\0").compile("sm_90").unwrap_err().to_string().contains("zero byte"));
    assert!(wrong("#include \"nowhere.cuh\"\n").compile("sm_90").is_err());
    assert!(wrong("").compile("sm_7").is_err(), "no such architecture");
}
