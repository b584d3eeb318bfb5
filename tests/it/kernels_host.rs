//! The kernels under `kernels/` without a GPU: their text is compiled as C++ behind `kernels_host/emulator.hpp`, which
//! runs every thread of a launch, and what they compute is compared with the CPU's twin bit for bit.
//!
//! A program per kernel reads jobs from its standard input and writes outputs to its standard output, both as arrays
//! of bytes with their lengths. What differs between a GPU and this is how long things take and how threads of
//! different blocks interleave.

pub mod nn;
mod rows;
pub mod sample;
mod twins;

use std::io::{Seek, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use evergraph::device::cuda::{SOURCES, Simulator, Source};

use crate::gpu::simulated::Simulated;

/// The programs beside this file, each compiled when it is first asked for.
static PROGRAMS: [(&str, OnceLock<PathBuf>); 3] =
    [("nn", OnceLock::new()), ("rows", OnceLock::new()), ("sample", OnceLock::new())];

/// Where the program `name` is.
fn program(name: &str) -> &'static Path {
    let (_, path) = PROGRAMS.iter().find(|program| program.0 == name).expect("a program beside this file");
    path.get_or_init(|| {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/kernels_host").join(name);
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("kernels_host");
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join(name);
        compile(&source.with_extension("cpp"), &path);
        path
    })
}

/// Compiles `source` to `program` with checks of addresses and of undefined behavior, and with products and sums fused
/// wherever a compiler for a GPU may do so.
pub fn compile(source: &Path, program: &Path) {
    let own = program.with_extension(std::process::id().to_string());
    let flags = format!(
        "-std=c++17 -O1 -g1 -Wall -Wextra -Werror -Wno-unknown-pragmas -Wno-unused-function \
         {} -ffp-contract=fast -fexpensive-optimizations -fsanitize=address,undefined -fno-sanitize-recover=all",
        if cfg!(target_arch = "x86_64") && nn::twin_fuses() { "-mfma" } else { "" },
    );
    let output = Command::new("g++")
        .args(flags.split_whitespace())
        .arg("-o")
        .args([&own, source])
        .output()
        .expect("g++ compiles the kernels; scripts/setup.sh installs it");
    assert!(output.status.success(), "{}: {}", source.display(), String::from_utf8_lossy(&output.stderr));
    std::fs::rename(own, program).unwrap();
}

/// The output of the program `name` for `job`.
fn run(name: &str, job: &Arrays) -> Arrays {
    let mut input = tempfile::tempfile().unwrap();
    input.write_all(&job.bytes).unwrap();
    input.rewind().unwrap();
    let output = Command::new(program(name))
        // Coroutines have stacks of their own, which the leak check does not know.
        .env("ASAN_OPTIONS", "detect_leaks=0:detect_stack_use_after_return=0")
        .stdin(Stdio::from(input))
        .output()
        .unwrap();
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{name}: {}, {message}", output.status);
    Arrays { bytes: output.stdout, read: 0 }
}

/// Arrays of plain numbers in a row, as they go to a program and come back.
#[derive(Default)]
struct Arrays {
    bytes: Vec<u8>,
    read: usize,
}

impl Arrays {
    fn push<T: bytemuck::NoUninit>(&mut self, values: &[T]) -> &mut Self {
        let bytes: &[u8] = bytemuck::cast_slice(values);
        self.bytes.extend((bytes.len() as u64).to_le_bytes());
        self.bytes.extend(bytes);
        self
    }

    fn take<T: bytemuck::AnyBitPattern + bytemuck::NoUninit>(&mut self) -> Vec<T> {
        let (length, rest) = self.bytes[self.read..].split_first_chunk::<8>().expect("an array is missing");
        let length = u64::from_le_bytes(*length) as usize;
        let values = rest[..length].chunks_exact(size_of::<T>()).map(bytemuck::pod_read_unaligned).collect();
        self.read += 8 + length;
        values
    }

    fn is_empty(&self) -> bool {
        self.read == self.bytes.len()
    }
}

#[test]
fn every_declared_kernel_is_in_the_table_of_the_simulated_gpu() {
    let gpu = Simulated::start();
    for (name, _) in SOURCES.iter().flat_map(Source::kernels) {
        let error = gpu.launch(name, 1, 1, &[]).unwrap_err();
        let found = error == format!("{name} takes other arguments");
        assert!(found, "{error}: add a line to tests/it/gpu/kernels.hpp");
    }
}
