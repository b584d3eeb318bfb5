//! What runs on a card does the same as its twin on the processor. Each test says so and passes where there is no card;
//! `EVERGRAPH_GPU=require` makes that a failure, as `scripts/gpu-check.sh` does; `small` also takes small sizes, for tools
//! under which a card is slow.

use std::sync::{Arc, OnceLock};

use evergraph::device::cuda::rows::{RowCall, RowLayout, RowList, Table, TableMut};
use evergraph::device::cuda::{Arena, Cuda, CudaBuffer, CudaOptions, Stream};
use evergraph::device::rng;

use crate::skip::skipped;

const OPTIONS: CudaOptions = CudaOptions { memory_bytes_max: 4 << 30, kernel_dir: None };

/// The first card, opened once for all tests.
fn card() -> Option<Arc<Cuda>> {
    static CARD: OnceLock<Result<Arc<Cuda>, String>> = OnceLock::new();
    match CARD.get_or_init(|| Cuda::open(0, &OPTIONS).map_err(|error| error.to_string())) {
        Ok(card) => Some(card.clone()),
        Err(error) => {
            let wish = std::env::var_os("EVERGRAPH_GPU");
            assert!(wish.is_none(), "EVERGRAPH_GPU={wish:?}, and {error}");
            skipped(&format!("nothing runs on a card: {error}"));
            None
        }
    }
}

fn small() -> bool {
    std::env::var_os("EVERGRAPH_GPU").is_some_and(|value| value == "small")
}

/// Random numbers of one test, by place.
struct Draws {
    seed: u64,
    at: u64,
}

impl Draws {
    fn new(seed: u64) -> Self {
        Self { seed, at: 0 }
    }

    fn word(&mut self) -> u64 {
        self.at += 1;
        rng::random_u64([self.seed, self.at, 0, 0])
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.word() % bound as u64) as usize
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.word() as u8).collect()
    }
}

/// `to[i] = table[list[i]]`, zeros for what is no row; how many were wrong.
fn gathered(table: &[u8], layout: RowLayout, list: &[u64], to: &mut [u8], to_stride: usize) -> u32 {
    let mut wrong = 0;
    for (place, &row) in list.iter().enumerate() {
        let into = &mut to[place * to_stride..][..layout.width];
        if row < layout.rows as u64 {
            into.copy_from_slice(&table[row as usize * layout.stride..][..layout.width]);
        } else {
            into.fill(0);
            wrong += u32::from(row != u64::MAX);
        }
    }
    wrong
}

/// Width, space after each row of the table, space after each row in order.
const SHAPES: [(usize, usize, usize); 14] = [
    (1, 0, 0),
    (3, 2, 5),
    (4, 0, 0),
    (16, 0, 0),
    (64, 0, 16),
    (100, 28, 0),
    (128, 0, 0),
    (129, 0, 3),
    (344, 0, 0),
    (344, 40, 0),
    (400, 0, 112),
    (688, 0, 0),
    (688, 80, 16),
    (4100, 0, 0),
];

#[test]
fn gathered_rows_are_the_processors_from_card_and_host() {
    let Some(cuda) = card() else { return };
    let mut draws = Draws::new(7);
    for (width, gap, to_gap) in SHAPES {
        let many = if small() { (50, 131) } else { (1000, 4097) };
        for (rows, count) in [(1, 1), (7, 3), many] {
            let layout = RowLayout { rows, width, stride: width + gap };
            let table = draws.bytes(rows * layout.stride);
            let list: Vec<u64> = (0..count)
                .map(|_| match draws.below(20) {
                    0 => u64::MAX,
                    1 => rows as u64 + draws.below(1 << 20) as u64,
                    _ => draws.below(rows) as u64,
                })
                .collect();
            let to_stride = width + to_gap;
            let before = draws.bytes(count * to_stride);
            let mut expected = before.clone();
            let wrong = gathered(&table, layout, &list, &mut expected, to_stride);
            for stream in [cuda.compute(), cuda.transfer()] {
                for (over_bus, wide) in [(false, false), (false, true), (true, false), (true, true)] {
                    let told =
                        format!("width {width}+{gap} to +{to_gap}, {rows} rows, bus {over_bus}, wide {wide}");
                    let found = gather_once(
                        &cuda,
                        stream,
                        (&table, layout),
                        &list,
                        (&before, to_stride),
                        over_bus,
                        wide,
                    );
                    assert_eq!(found.1, wrong, "{told}");
                    assert!(found.0 == expected, "{told}");
                }
            }
        }
    }
}

#[test]
fn every_buffer_gives_its_memory_back() {
    if card().is_none() {
        return;
    }
    // With a budget that no other test takes from.
    let cuda = Cuda::open(0, &OPTIONS).unwrap();
    let mut buffer = CudaBuffer::<u64>::zeros(&cuda, cuda.transfer(), 1000, "a test").unwrap();
    let empty = CudaBuffer::<u64>::from_slice(&cuda, cuda.compute(), &[], "a test").unwrap();
    assert!(cuda.memory().used >= 8000 && empty.copy_to_host().unwrap().is_empty());
    buffer.hand_to(cuda.compute()).unwrap();
    drop((buffer, empty));
    assert_eq!(cuda.memory().used, 0);
    assert!(cuda.memory().peak >= 8000);
    cuda.compute().synchronize().unwrap();
}

fn gather_once(
    cuda: &Cuda,
    stream: &Stream,
    (table, layout): (&[u8], RowLayout),
    list: &[u64],
    (before, to_stride): (&[u8], usize),
    over_bus: bool,
    wide: bool,
) -> (Vec<u8>, u32) {
    let test = "a test";
    let narrow: Vec<u32> = list.iter().map(|&row| u32::try_from(row).unwrap_or(u32::MAX)).collect();
    let narrow = CudaBuffer::from_slice(cuda, stream, &narrow, test).unwrap();
    let long = CudaBuffer::from_slice(cuda, stream, list, test).unwrap();
    let list = if wide { RowList::Wide(&long) } else { RowList::Narrow(&narrow) };
    let mut errors = CudaBuffer::zeros(cuda, stream, 1, test).unwrap();
    let mut to = CudaBuffer::from_slice(cuda, stream, before, test).unwrap();
    let call = RowCall { cuda, stream, list, errors: &mut errors };
    if over_bus {
        let mut arena = Arena::new(table.len(), Some(cuda)).unwrap();
        let mut rows = arena.take::<u8>(table.len()).unwrap();
        rows.as_mut_slice().unwrap().copy_from_slice(table);
        call.gather(Table::Host(&rows), layout, &mut to, to_stride).unwrap();
        // Writing waits for the card, and so does giving the memory back: neither spoils anything.
        if wide {
            rows.as_mut_slice().unwrap().fill(0xee);
        }
    } else {
        let rows = CudaBuffer::from_slice(cuda, stream, table, test).unwrap();
        call.gather(Table::Card(&rows), layout, &mut to, to_stride).unwrap();
    }
    (to.copy_to_host().unwrap(), errors.copy_to_host().unwrap()[0])
}

#[test]
fn scattered_rows_are_the_processors_on_card_and_host() {
    let Some(cuda) = card() else { return };
    let stream = cuda.compute();
    let mut draws = Draws::new(11);
    for (width, gap, from_gap) in SHAPES {
        let (rows, count, test) = (501, 300, "a test");
        let layout = RowLayout { rows, width, stride: width + gap };
        // Every row at most once: the first of a shuffled order, with some that are none.
        let mut order: Vec<u64> = (0..rows as u64).collect();
        for place in 0..count {
            let other = place + draws.below(rows - place);
            order.swap(place, other);
        }
        let mut list = order[..count].to_vec();
        (list[3], list[77]) = (u64::MAX, rows as u64);
        let from_stride = width + from_gap;
        let from = draws.bytes(count * from_stride);
        let before = draws.bytes(rows * layout.stride);
        let mut expected = before.clone();
        for (place, &row) in list.iter().enumerate().filter(|(_, row)| **row < rows as u64) {
            expected[row as usize * layout.stride..][..width]
                .copy_from_slice(&from[place * from_stride..][..width]);
        }
        let from = CudaBuffer::from_slice(&cuda, stream, &from, test).unwrap();
        let list = CudaBuffer::from_slice(&cuda, stream, &list, test).unwrap();
        let mut errors = CudaBuffer::zeros(&cuda, stream, 1, test).unwrap();
        let mut on_card = CudaBuffer::from_slice(&cuda, stream, &before, test).unwrap();
        let mut arena = Arena::new(before.len(), Some(&cuda)).unwrap();
        let mut on_host = arena.take::<u8>(before.len()).unwrap();
        on_host.as_mut_slice().unwrap().copy_from_slice(&before);
        for table in [TableMut::Card(&mut on_card), TableMut::Host(&mut on_host)] {
            let call = RowCall { cuda: &cuda, stream, list: RowList::Wide(&list), errors: &mut errors };
            call.scatter(&from, from_stride, table, layout).unwrap();
        }
        assert!(on_card.copy_to_host().unwrap() == expected, "width {width}+{gap} on the card");
        assert!(on_host.as_slice().unwrap() == expected, "width {width}+{gap} on the host");
        assert_eq!(errors.copy_to_host().unwrap(), [2], "one number that is no row, twice");
    }
}

#[test]
fn buffers_keep_their_order_through_streams_and_arena() {
    let Some(cuda) = card() else { return };
    let (compute, transfer, test) = (cuda.compute(), cuda.transfer(), "a test");
    let mut draws = Draws::new(13);
    let mut arena = Arena::new(64 << 20, Some(&cuda)).unwrap();
    for round in 0..20 {
        let values: Vec<u64> = (0..100_000 + round).map(|_| draws.word()).collect();
        let mut up = arena.take::<u64>(values.len()).unwrap();
        let mut down = arena.take::<u64>(values.len()).unwrap();
        up.as_mut_slice().unwrap().copy_from_slice(&values);
        let mut buffer = CudaBuffer::<u64>::zeros(&cuda, transfer, values.len(), test).unwrap();
        buffer.copy_from_pinned(&up).unwrap();
        buffer.hand_to(compute).unwrap();
        buffer.copy_to_pinned(&mut down).unwrap();
        up.as_mut_slice().unwrap().fill(0);
        assert!(down.as_slice().unwrap() == values, "round {round}");
        assert!(buffer.copy_to_host().unwrap() == values, "round {round}");
        if round == 5 {
            arena = Arena::new(64 << 20, Some(&cuda)).unwrap();
        }
    }
}

#[test]
fn what_does_not_fit_is_refused_and_the_card_goes_on() {
    let Some(cuda) = card() else { return };
    let (stream, test) = (cuda.compute(), "asking for too much");
    let budget = cuda.memory().budget;
    let error = CudaBuffer::<u8>::zeros(&cuda, stream, budget + 1, test).unwrap_err();
    assert!(error.is_out_of_memory() && error.to_string().contains(test), "{error}");
    assert!(CudaBuffer::<u64>::zeros(&cuda, stream, usize::MAX, test).unwrap_err().is_out_of_memory());
    let list = CudaBuffer::from_slice(&cuda, stream, &[0_u32], test).unwrap();
    let table = CudaBuffer::from_slice(&cuda, cuda.transfer(), &[1_f32, 2.0], test).unwrap();
    let mut to = CudaBuffer::<f32>::zeros(&cuda, stream, 2, test).unwrap();
    let mut errors = CudaBuffer::<u32>::zeros(&cuda, stream, 1, test).unwrap();
    for (layout, expected) in [
        (RowLayout::dense(1, 2), "hand it over first"),
        (RowLayout::dense(2, 2), "2 rows of 2 values"),
        (RowLayout { rows: 1, width: 2, stride: 1 }, "1 apart"),
    ] {
        let call = RowCall { cuda: &cuda, stream, list: RowList::Narrow(&list), errors: &mut errors };
        let error = call.gather(Table::Card(&table), layout, &mut to, 2).unwrap_err();
        assert!(!error.is_lost() && error.to_string().contains(expected), "{error}");
    }
    let plain = Arena::new(1, None).unwrap().take::<f32>(2).unwrap();
    let call = RowCall { cuda: &cuda, stream, list: RowList::Narrow(&list), errors: &mut errors };
    let error = call.gather(Table::Host(&plain), RowLayout::dense(1, 2), &mut to, 2).unwrap_err();
    assert!(error.to_string().contains("not mapped"), "{error}");
    assert_eq!(to.copy_to_host().unwrap(), [0.0; 2], "nothing was done, and the card works");
}

/// Bytes of a row, rows of a list. Short lists show the price of a call, long ones that of a byte.
const FIGURES: [(usize, usize); 12] = [
    (16, 1_000_000),
    (64, 1_000_000),
    (128, 1_000_000),
    (344, 1_000),
    (344, 300_000),
    (400, 300_000),
    (688, 1_000),
    (688, 10_000),
    (688, 300_000),
    (1376, 100_000),
    (4096, 100_000),
    (4100, 100_000),
];

/// Seconds of one gather, the median over runs of calls in a row, timed by the card.
fn gather_seconds(cuda: &Cuda, table: Table<'_, u8>, layout: RowLayout, list: &CudaBuffer<u64>) -> f64 {
    let (stream, test) = (list.stream(), "a measurement");
    let mut to = CudaBuffer::<u8>::zeros(cuda, stream, list.len() * layout.width, test).unwrap();
    let mut errors = CudaBuffer::zeros(cuda, stream, 1, test).unwrap();
    let mut calls = |count: usize| {
        let begin = stream.record_timed().unwrap();
        for _ in 0..count {
            let call = RowCall { cuda, stream, list: RowList::Wide(list), errors: &mut errors };
            let again = match &table {
                Table::Card(rows) => Table::Card(rows),
                Table::Host(rows) => Table::Host(rows),
            };
            call.gather(again, layout, &mut to, layout.width).unwrap();
        }
        let end = stream.record_timed().unwrap();
        end.seconds_since(&begin).unwrap() / count as f64
    };
    calls(3);
    let mut seconds: Vec<f64> = (0..7).map(|_| calls(20)).collect();
    seconds.sort_by(f64::total_cmp);
    assert_eq!(errors.copy_to_host().unwrap(), [0]);
    seconds[seconds.len() / 2]
}

#[test]
#[ignore = "measures"]
fn figures_of_gathering_rows() {
    use std::io::Write;
    let Some(cuda) = card() else { return };
    let stream = cuda.compute();
    let bytes = if small() { 1 << 20 } else { 1 << 30 };
    let mut arena = Arena::new(bytes, Some(&cuda)).unwrap();
    let mut host = arena.take::<u8>(bytes).unwrap();
    host.as_mut_slice().unwrap().fill(1);
    let on_card = CudaBuffer::<u8>::zeros(&cuda, stream, bytes, "a measurement").unwrap();
    let mut draws = Draws::new(17);
    for (width, count) in FIGURES {
        let layout = RowLayout::dense(bytes / width, width);
        let list: Vec<u64> = (0..count).map(|_| draws.below(layout.rows) as u64).collect();
        let list = CudaBuffer::from_slice(&cuda, stream, &list, "a measurement").unwrap();
        for (source, table) in [("card", Table::Card(&on_card)), ("host", Table::Host(&host))] {
            let seconds = gather_seconds(&cuda, table, layout, &list);
            let rows = layout.rows;
            let line = format!(
                "{{\"op\": \"gather\", \"source\": \"{source}\", \"row_bytes\": {width}, \"rows\": {rows}, \
                 \"count\": {count}, \"seconds\": {seconds:e}}}\n"
            );
            print!("{line}");
            if let Some(path) = std::env::var_os("EVERGRAPH_GPU_FIGURES") {
                let mut file = std::fs::OpenOptions::new().create(true).append(true).open(path).unwrap();
                file.write_all(line.as_bytes()).unwrap();
            }
        }
    }
}

#[test]
fn a_card_that_is_not_there_is_an_error_in_words() {
    // Also without any card: this is what a daemon meets whose settings name one.
    let error = Cuda::open(4711, &CudaOptions::default()).unwrap_err();
    let said = error.to_string();
    let known = ["libcuda.so.1", "libnvrtc", "no card 4711", "update the driver", "driver refused"];
    assert!(known.iter().any(|part| said.contains(part)), "{said}");
    assert!(!error.is_lost() && !error.is_out_of_memory(), "{said}");
}
