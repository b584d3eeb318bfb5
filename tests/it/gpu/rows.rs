//! Rows: gathered and scattered on the GPU and over the bus byte for byte; buffers, streams and the arena in their
//! order; what is refused.

use evergraph::device::cuda::rows::{RowCall, RowLayout, RowList, Table, TableMut};
use evergraph::device::cuda::{Arena, Cuda, CudaBuffer, CudaOptions, CudaWork, RowRoom, Stream};

use super::{Draws, fresh_gpu, gpu, small};

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
fn gathered_rows_are_the_cpus_from_gpu_and_host() {
    let cuda = gpu();
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
                    let case =
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
                    assert_eq!(found.1, wrong, "{case}");
                    assert!(found.0 == expected, "{case}");
                }
            }
        }
    }
}

#[test]
fn every_buffer_gives_its_memory_back() {
    // With a budget that no other test takes from.
    let cuda = fresh_gpu();
    let buffer = CudaBuffer::<u64>::zeros(&cuda, cuda.transfer(), 1000, "a test").unwrap();
    let empty = CudaBuffer::<u64>::from_slice(&cuda, cuda.compute(), &[], "a test").unwrap();
    assert!(cuda.memory().used >= 8000 && empty.copy_to_host().unwrap().is_empty());
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
        // Writing waits for the GPU, and so does giving the memory back: neither spoils anything.
        if wide {
            rows.as_mut_slice().unwrap().fill(0xee);
        }
    } else {
        let rows = CudaBuffer::from_slice(cuda, stream, table, test).unwrap();
        call.gather(Table::Gpu(&rows), layout, &mut to, to_stride).unwrap();
    }
    (to.copy_to_host().unwrap(), errors.copy_to_host().unwrap()[0])
}

#[test]
fn scattered_rows_are_the_cpus_on_gpu_and_host() {
    let cuda = gpu();
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
        let mut on_gpu = CudaBuffer::from_slice(&cuda, stream, &before, test).unwrap();
        let mut arena = Arena::new(before.len(), Some(&cuda)).unwrap();
        let mut on_host = arena.take::<u8>(before.len()).unwrap();
        on_host.as_mut_slice().unwrap().copy_from_slice(&before);
        for table in [TableMut::Gpu(&mut on_gpu), TableMut::Host(&mut on_host)] {
            let call = RowCall { cuda: &cuda, stream, list: RowList::Wide(&list), errors: &mut errors };
            call.scatter(&from, from_stride, table, layout).unwrap();
        }
        assert!(on_gpu.copy_to_host().unwrap() == expected, "width {width}+{gap} on the GPU");
        assert!(on_host.as_slice().unwrap() == expected, "width {width}+{gap} on the host");
        assert_eq!(errors.copy_to_host().unwrap(), [2], "one number that is no row, twice");
    }
}

#[test]
fn buffers_keep_their_order_through_an_arena() {
    let cuda = gpu();
    let (compute, test) = (cuda.compute(), "a test");
    let mut draws = Draws::new(13);
    let mut arena = Arena::new(64 << 20, Some(&cuda)).unwrap();
    for round in 0..20 {
        let values: Vec<u64> = (0..100_000 + round).map(|_| draws.word()).collect();
        let mut up = arena.take::<u64>(values.len()).unwrap();
        let mut down = arena.take::<u64>(values.len()).unwrap();
        up.as_mut_slice().unwrap().copy_from_slice(&values);
        let mut buffer = CudaBuffer::<u64>::zeros(&cuda, compute, values.len(), test).unwrap();
        buffer.copy_from_pinned(&up).unwrap();
        buffer.copy_part_to_pinned(0, &mut down).unwrap();
        up.as_mut_slice().unwrap().fill(0);
        assert!(down.as_slice().unwrap() == values, "round {round}");
        assert!(buffer.copy_to_host().unwrap() == values, "round {round}");
        if round == 5 {
            arena = Arena::new(64 << 20, Some(&cuda)).unwrap();
        }
    }
}

/// Nobody waits between: only the order among the streams brings the values over.
#[test]
fn what_goes_to_another_stream_is_there_before_it_is_used() {
    let cuda = gpu();
    let test = "a test";
    let values: Vec<u64> = (0..1000).collect();
    let mut arena = Arena::new(1, Some(&cuda)).unwrap();
    for (first, second) in [(cuda.transfer(), cuda.compute()), (cuda.compute(), cuda.transfer())] {
        let source = CudaBuffer::from_slice(&cuda, first, &values, test).unwrap();
        // Memory of the host that one stream writes and another reads.
        let mut pinned = arena.take::<u64>(values.len()).unwrap();
        let mut reader = CudaBuffer::<u64>::zeros(&cuda, second, values.len(), test).unwrap();
        source.copy_part_to_pinned(0, &mut pinned).unwrap();
        reader.copy_from_pinned(&pinned).unwrap();
        assert!(reader.copy_to_host().unwrap() == values);
        // And that one reads and another writes.
        let mut copy = CudaBuffer::<u64>::zeros(&cuda, first, values.len(), test).unwrap();
        let nothing = CudaBuffer::<u64>::zeros(&cuda, second, values.len(), test).unwrap();
        copy.copy_from_pinned(&pinned).unwrap();
        nothing.copy_part_to_pinned(0, &mut pinned).unwrap();
        assert!(pinned.as_slice().unwrap().iter().all(|value| *value == 0));
        assert!(copy.copy_to_host().unwrap() == values);
    }
}

#[test]
fn what_does_not_fit_is_refused_and_the_gpu_goes_on() {
    let cuda = gpu();
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
        let error = call.gather(Table::Gpu(&table), layout, &mut to, 2).unwrap_err();
        assert!(!error.is_lost() && error.to_string().contains(expected), "{error}");
    }
    let plain = Arena::new(1, None).unwrap().take::<f32>(2).unwrap();
    let call = RowCall { cuda: &cuda, stream, list: RowList::Narrow(&list), errors: &mut errors };
    let error = call.gather(Table::Host(&plain), RowLayout::dense(1, 2), &mut to, 2).unwrap_err();
    assert!(error.to_string().contains("not mapped"), "{error}");
    assert_eq!(to.copy_to_host().unwrap(), [0.0; 2], "nothing was done, and the GPU works");
}

#[test]
fn a_gpu_that_is_not_there_is_an_error_in_words() {
    // Also without any GPU: this is what a daemon meets whose settings name one.
    let error = Cuda::open(4711, &CudaOptions::default()).unwrap_err();
    let message = error.to_string();
    let known = ["libcuda.so.1", "libnvrtc", "no GPU 4711", "update the driver", "driver refused"];
    assert!(known.iter().any(|part| message.contains(part)), "{message}");
    assert!(!error.is_lost() && !error.is_out_of_memory(), "{message}");
}

/// Value `column` of row `row` of a stream.
fn value(row: u64, column: usize) -> f32 {
    (row * 1_000 + column as u64) as f32
}

/// Puts rows of a room to places of a table; those that are not there, and what the places hold then.
fn filled(
    room: &RowRoom,
    work: &std::sync::Arc<CudaWork>,
    rows: &[Option<u64>],
    width: usize,
) -> (usize, Vec<f32>) {
    let located = room.locate(rows.iter().copied());
    let (cuda, stream) = work.context();
    let mut table =
        CudaBuffer::from_slice(cuda, stream, &vec![-1.0_f32; rows.len() * width], "a test").unwrap();
    // From the last place on.
    let place = |row: usize| (rows.len() - 1 - row) as u32;
    let there: Vec<(usize, u32)> =
        (0..rows.len()).filter(|&row| located.has(row)).map(|row| (row, place(row))).collect();
    located.fill(work, &there, &mut table).unwrap();
    let mut read = vec![0.0; width];
    let found = table.copy_to_host().unwrap();
    for &(row, place) in &there {
        located.read(row, &mut read);
        assert_eq!(read, found[place as usize * width..][..width], "the host reads what the GPU does");
    }
    (rows.len() - there.len(), found)
}

#[test]
fn the_next_segment_of_a_room_is_made_beside_it() {
    let cuda = gpu();
    let (work, width) = (CudaWork::new(cuda.clone()), 8);
    let mut room = RowRoom::new(&cuda, width, 8 * 8 * 32, 0);
    let rows = |ids: std::ops::Range<u64>| -> Vec<f32> {
        ids.flat_map(|row| (0..width).map(move |column| value(row, column))).collect()
    };
    let mut half = 0;
    let lacking = loop {
        assert!(half < room.capacity());
        assert_eq!(room.push(&rows(half..half + 1)).unwrap(), 1);
        half += 1;
        if let Some(lacking) = room.lacking() {
            break lacking;
        }
    };
    let before = room.bytes();
    room.add(lacking.make().unwrap());
    let after = room.bytes();
    assert!(after == 2 * before && room.lacking().is_none(), "{before} {after}");
    // The rest of the segment, and the first of the next.
    assert_eq!(room.push(&rows(half..2 * half + 1)).unwrap() as u64, half + 1);
    assert_eq!(room.bytes(), after, "what was made is used");
    let (missing, found) = filled(&room, &work, &[Some(0), Some(2 * half)], width);
    assert!(missing == 0 && found[..width] == rows(2 * half..2 * half + 1) && found[width..] == rows(0..1));
}

#[test]
fn rows_of_a_stream_are_read_in_place_while_there_is_room() {
    let cuda = gpu();
    let work = CudaWork::new(cuda.clone());
    for width in [1_usize, 2, 3, 8, 86, 100, 172] {
        // Eight segments of four rows, padding included.
        let bytes = (8 * 4 * 4 * width.next_multiple_of(4) * 8).div_ceil(7) as u64;
        let mut room = RowRoom::new(&cuda, width, bytes, 5);
        let capacity = room.capacity();
        assert!((24..=160).contains(&capacity), "{capacity} rows of {width}");
        let rows = |ids: std::ops::Range<u64>| -> Vec<f32> {
            ids.flat_map(|row| (0..width).map(move |column| value(row, column))).collect()
        };
        assert_eq!(room.push(&rows(5..20)).unwrap(), 15);
        room.clear(9);
        room.clear(4);
        let wanted = [Some(5), None, Some(19), Some(9), Some(20), Some(4), Some(6)];
        let (missing, found) = filled(&room, &work, &wanted, width);
        assert_eq!(missing, 2, "rows 20 and 4");
        for (row, found) in wanted.iter().zip(found.chunks(width).rev()) {
            let expected: Vec<f32> = match row {
                Some(20 | 4) => vec![-1.0; width],
                Some(9) | None => vec![0.0; width],
                Some(row) => (0..width).map(|column| value(*row, column)).collect(),
            };
            assert_eq!(found, expected, "row {row:?} of {width}");
        }
        // What somebody holds stays, and rows that need its memory do not come in.
        let held = room.locate([Some(6)].into_iter());
        let first = room.push(&rows(20..20 + 3 * capacity)).unwrap() as u64;
        assert!(first > 0 && first < 2 * capacity, "{first} of {capacity}");
        let mut read = vec![0.0; width];
        held.read(0, &mut read);
        assert_eq!(read, rows(6..7));
        drop(held);
        let next = room.rows().end;
        assert_eq!(room.push(&rows(next..next + 3 * capacity)).unwrap() as u64, 3 * capacity);
        let there = room.rows();
        assert!(there.end - there.start <= capacity && there.end - there.start > capacity / 2, "{there:?}");
        let (missing, found) = filled(&room, &work, &[Some(there.end - 1), Some(there.start - 1)], width);
        assert!(missing == 1 && found[width..] == rows(there.end - 1..there.end), "{found:?}");
        room.skip_to(there.end + 7);
        assert_eq!(room.push(&rows(there.end + 7..there.end + 9)).unwrap(), 2);
        let (missing, found) = filled(&room, &work, &[Some(there.end + 8)], width);
        assert!(missing == 0 && found == rows(there.end + 8..there.end + 9), "{found:?}");
        room.start_over(1_000);
        assert_eq!(room.push(&rows(1_000..1_003)).unwrap(), 3);
        let (missing, found) = filled(&room, &work, &[Some(1_001), Some(there.end + 8)], width);
        assert!(missing == 1 && found[width..] == rows(1_001..1_002), "{found:?}");
    }
}
