//! Rows that stay on a GPU are those of their source.

use std::collections::BTreeSet;

use evergraph::device::cuda::CudaWork;
use evergraph::device::rng;
use evergraph::feature::cache::{GpuRows, RoundRows};

use super::gpu;

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
