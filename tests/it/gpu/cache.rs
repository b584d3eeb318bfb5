//! The row cache's table on a GPU finds what the CPU's finds, and lists the same misses. Rows that stay on a GPU
//! are those of their source.

use std::collections::BTreeSet;

use evergraph::device::cuda::row_cache::{GpuFound, GpuRowTable};
use evergraph::device::cuda::{CudaBuffer, CudaWork};
use evergraph::device::rng;
use evergraph::feature::cache::{CacheDirectory, Found, GpuRows, RoundRows};

use super::gpu;

#[test]
fn rows_are_looked_up_on_a_gpu_as_by_the_cpu_and_nothing_stale_is_found() {
    let cuda = gpu();
    let (stream, test) = (cuda.compute(), "a test");
    for slots in [1_u32, 5, 700] {
        let mut directory = CacheDirectory::new(slots, 0);
        let mut table = GpuRowTable::copy(&cuda, stream, directory.table()).unwrap();
        let (mut found, mut placed) = (Found::default(), Vec::new());
        let mut on_gpu = GpuFound::new(&cuda, stream, 1_300).unwrap();
        let mut behind: Option<Vec<u8>> = None;
        // Also ids that no row has.
        let all: Vec<u64> = (0..1_200).chain([u64::MAX, 1 << 40]).collect();
        let some = CudaBuffer::from_slice(&cuda, stream, &all, test).unwrap();
        for round in 0..20_u64 {
            let count = [400, 1_300, 256, 1, 0][round as usize % 5];
            let rows: Vec<u64> = (0..count).map(|i| (round * 37 + i * (round % 3 + 1)) % 4_000).collect();
            directory.announce(&rows);
            directory.look_up(&mut found);
            table.update(directory.table()).unwrap();
            let ids = CudaBuffer::from_slice(&cuda, stream, &rows, test).unwrap();
            table.find(&cuda, (&ids, rows.len()), &mut on_gpu).unwrap();
            let misses = on_gpu.miss_count.copy_to_host().unwrap()[0] as usize;
            assert_eq!(on_gpu.slots.copy_to_host().unwrap()[..rows.len()], *found.slots(), "round {round}");
            assert_eq!(on_gpu.misses.copy_to_host().unwrap()[..misses], *found.misses(), "round {round}");
            directory.turn(&found, &mut placed);
            table.update(directory.table()).unwrap();
            table.find(&cuda, (&some, all.len()), &mut on_gpu).unwrap();
            let slots = on_gpu.slots.copy_to_host().unwrap();
            let expected = all.iter().map(|&id| directory.slot_of(id).unwrap_or(Found::MISS));
            assert!(slots[..all.len()].iter().copied().eq(expected), "after round {round}");
            if let Some(behind) = &behind {
                // Entries of rounds ago with the generations of today: what they name is found only where it still is.
                table.update((behind, directory.table().1)).unwrap();
                table.find(&cuda, (&ids, rows.len()), &mut on_gpu).unwrap();
                let late = on_gpu.slots.copy_to_host().unwrap();
                for (&id, &slot) in rows.iter().zip(&late) {
                    assert!(
                        slot == Found::MISS || directory.slot_of(id) == Some(slot),
                        "round {round}, row {id}"
                    );
                }
            }
            behind = Some(directory.table().0.to_vec());
        }
        assert!(directory.counts().evicted > 10, "{:?}", directory.counts());
    }
    let error = GpuRowTable::copy(&cuda, stream, (&[0; 130], &[])).err().unwrap().to_string();
    assert!(error.contains("130 bytes are no whole buckets"), "{error}");
}

#[test]
fn rows_that_stay_on_a_gpu_are_those_of_their_source() {
    const WIDTH: usize = 3;
    let row = |id: u64| [0, 1, 2].map(|column| id as f32 * 10.0 + column as f32);
    for places in [45, 70, 300] {
        let work = CudaWork::new(gpu());
        let (mut rows, mut table) =
            (GpuRows::new(places, WIDTH), work.pooled::<f32>(places as usize * WIDTH));
        let round = |number: u64| {
            let draw = |place| u64::from(rng::below([5, number, place, 0], 120));
            (0..40).map(draw).collect::<BTreeSet<_>>().into_iter().collect::<Vec<_>>()
        };
        for number in 0..40 {
            let (ids, next) = (round(number), round(number + 1));
            let values: Vec<f32> = ids.iter().flat_map(|&id| row(id)).collect();
            let next: &[u64] = if number % 5 == 4 { &[] } else { &next };
            let read = RoundRows { ids: &ids, in_place: None, values: &values };
            let found = rows.round(&work, table.get_mut().unwrap(), &read, next).unwrap();
            let all = table.read(places as usize * WIDTH);
            for (&id, place) in ids.iter().zip(found) {
                assert_eq!(all[place as usize * WIDTH..][..WIDTH], row(id), "row {id} of round {number}");
            }
        }
        work.check().unwrap();
        let counts = rows.counts();
        assert!(counts.hits > 0 && (places == 300) == (counts.hits > counts.misses), "{places}: {counts:?}");
    }
}
