//! Rows in memory and in a real file, through every engine that works here.

use evergraph::device::disk::{EngineChoice, SpillFile};
use evergraph::device::rng::random_u64;
use evergraph::feature::TieredRows;

const DIMENSION: usize = 172;

fn file(folder: &tempfile::TempDir, choice: EngineChoice) -> Option<Box<SpillFile>> {
    match SpillFile::create(folder.path(), "rows", choice) {
        Ok(file) => Some(Box::new(file)),
        Err(error) if choice == EngineChoice::IoUring => {
            super::skip::skipped(&format!("reading rows through io_uring: {error}"));
            None
        }
        Err(error) => panic!("{error}"),
    }
}

fn row(index: u64) -> [f32; DIMENSION] {
    std::array::from_fn(|i| (index * 7 % 10_007) as f32 + i as f32 * 0.5)
}

#[test]
fn rows_come_back_from_a_real_file() {
    for choice in [EngineChoice::Pread, EngineChoice::IoUring] {
        let folder = tempfile::tempdir().unwrap();
        let Some(file) = file(&folder, choice) else { continue };
        let rows = TieredRows::new(DIMENSION, 0, file).unwrap();
        let count = 5 * rows.stats().budget_bytes / 688;
        for index in 0..count {
            rows.set(index, &row(index)).unwrap();
        }
        std::thread::scope(|scope| {
            for reader in 0..3 {
                let rows = &rows;
                scope.spawn(move || {
                    let mut out = vec![0.0; 500 * DIMENSION];
                    for round in 0..10 {
                        let draw = |i| random_u64([reader, round, i, 0]) % count;
                        let indices: Vec<u64> = (0..500).map(draw).collect();
                        let held = (reader == 0).then(|| rows.announce(&indices));
                        rows.gather(&indices, &mut out).unwrap();
                        drop(held);
                        for (index, found) in indices.iter().zip(out.chunks(DIMENSION)) {
                            assert_eq!(found, row(*index), "row {index}");
                        }
                    }
                });
            }
        });
        let stats = rows.stats();
        assert!(stats.reads > 500 && stats.failures == 0 && stats.disk_bytes > 0, "{stats:?}");
    }
}
