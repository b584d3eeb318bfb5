//! The search of the row cache's kernel, compiled as C++ for the host, beside that of the table in Rust: same bytes,
//! same slots, also where the device's copy of the entries is behind its copy of the generations.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use evergraph::feature::cache::{CacheDirectory, Found};

/// The search as a program.
fn program(folder: &Path) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/row_cache_kernel.cpp");
    let path = folder.join("row_cache_kernel");
    let flags = ["-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", "-fsanitize=address,undefined"];
    let output = Command::new("g++").args(flags).arg("-o").args([&path, &source]).output();
    let output = output.expect("g++ compiles the kernels; scripts/setup.sh installs it");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    path
}

/// The slots that the program finds.
fn find(program: &Path, (buckets, generations): (&[u8], &[u32]), ids: &[u64]) -> Vec<u32> {
    let input = program.with_extension("in");
    let counts = [(buckets.len() / 128) as u32, generations.len() as u32, ids.len() as u32];
    let parts = [
        bytemuck::cast_slice(&counts),
        buckets,
        bytemuck::cast_slice(generations),
        bytemuck::cast_slice(ids),
    ];
    std::fs::write(&input, parts.concat()).unwrap();
    let mut command = Command::new(program);
    let output = command.stdin(Stdio::from(std::fs::File::open(&input).unwrap())).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output.stdout.chunks_exact(4).map(bytemuck::pod_read_unaligned).collect()
}

#[test]
fn the_kernel_finds_what_the_table_finds_and_nothing_stale() {
    let folder = tempfile::tempdir().unwrap();
    let program = program(folder.path());
    let ids: Vec<u64> = (0..2_000).chain([u64::MAX, 1 << 40]).collect();
    for slots in [1, 5, 700] {
        let mut directory = CacheDirectory::new(slots, 0);
        let (mut found, mut placed) = (Found::default(), Vec::new());
        let mut behind: Option<Vec<u8>> = None;
        for round in 0..30_u64 {
            let rows: Vec<u64> = (0..400).map(|i| (round * 37 + i * (round % 3 + 1)) % 2_000).collect();
            directory.announce(&rows);
            directory.look(&mut found);
            assert_eq!(found.slots(), find(&program, directory.table(), &rows), "round {round}");
            let misses: Vec<u32> =
                (0..).zip(found.slots()).filter(|(_, s)| **s == Found::MISS).map(|(i, _)| i).collect();
            assert_eq!(found.misses(), misses);
            directory.turn(&found, &mut placed);
            let expected: Vec<u32> =
                ids.iter().map(|&id| directory.slot_of(id).unwrap_or(Found::MISS)).collect();
            assert_eq!(find(&program, directory.table(), &ids), expected, "round {round}");
            if let Some(behind) = &behind {
                // Entries of the round before: what they name is found only where it still is.
                let late = find(&program, (behind, directory.table().1), &ids);
                assert!(late.iter().zip(&expected).all(|(late, now)| late == now || *late == Found::MISS));
            }
            behind = Some(directory.table().0.to_vec());
        }
        let counts = directory.counts();
        assert!(counts.evicted > 20 && (slots < 700 || counts.hits > 0), "{counts:?}");
    }
}
