//! Frames to bytes and back; bytes that nobody wrote.

use proptest::collection::vec;
use proptest::prelude::*;

use super::super::frame::{PAYLOAD_BYTES_MAX, decode, encode};
use super::super::header::{HEADER_BYTES, Header};
use super::*;
use crate::event::{FeatureColumn, SourceMark};

fn frames() -> impl Strategy<Value = Frame> {
    (0usize..40, any::<u32>(), any::<bool>(), any::<u16>()).prop_flat_map(|(n, first, wide, columns)| {
        let has = move |bit: u16| columns & (1 << bit) != 0;
        let times = if wide { any::<i64>().boxed() } else { (-9i64..1_000_000).boxed() };
        let ops = prop_oneof![Just(Op::Edge), Just(Op::DeleteEdge), Just(Op::Node), Just(Op::DeleteNode)];
        let rows = vec(vec(-1e9f32..1e9, 0..5), if has(0) { n } else { 0 });
        let batch = (
            vec(ops, n),
            vec(any::<u32>().prop_map(NodeId), n),
            vec(any::<u32>().prop_map(NodeId), n),
            vec(times.prop_map(EventTime), n),
            vec(any::<u16>(), n),
            vec(prop_oneof![Just(f32::NAN), -1.0f32..1.0], n),
            rows,
            vec(any::<u128>(), if has(1) { n } else { 0 }),
        );
        let batch = batch.prop_map(move |(op, src, dst, time, edge_type, label, rows, idempotency)| {
            let mut features = FeatureColumn::default();
            rows.iter().enumerate().for_each(|(i, row)| features.push(i, row));
            let op = if has(2) { op } else { vec![Op::Edge; n] };
            let edge_type = if has(3) { edge_type } else { vec![0; n] };
            let label = if has(4) { label } else { vec![f32::NAN; n] };
            let first = EdgeId(first.into());
            EdgeBatch { first, op, src, dst, time, edge_type, label, features, idempotency }
        });
        let key = prop_oneof![
            any::<i64>().prop_map(NodeKey::Int),
            any::<String>().prop_map(|text| NodeKey::from_text(&text)),
        ];
        let mark = any::<Option<(i64, u64)>>();
        let range = (any::<String>(), any::<i32>(), any::<i64>(), any::<i64>(), mark).prop_map(
            |(source, partition, from, to, mark)| {
                let mark = mark.map(|(offset, hash)| SourceMark { offset, hash });
                SourceRange { source: source.into(), partition, from, to, mark }
            },
        );
        (batch, vec(key, 0..5), vec(any::<String>(), 0..3), vec(range, 0..4), any::<i64>()).prop_map(
            |(batch, new_keys, new_types, sources, origin_unix_ms)| {
                let new_types = new_types.into_iter().map(Into::into).collect();
                Frame { batch, new_keys, new_types, sources, origin_unix_ms }
            },
        )
    })
}

/// The header and payload of an encoded frame.
fn encoded(frame: &Frame) -> (Header, Vec<u8>) {
    let mut bytes = Vec::new();
    encode(frame, 0, PAYLOAD_BYTES_MAX, &mut bytes).unwrap();
    let header = Header::parse(bytes.first_chunk().unwrap()).unwrap();
    assert_eq!(header.frame_bytes(), bytes.len() as u64);
    (header, bytes.split_off(HEADER_BYTES))
}

proptest! {
    #[test]
    fn a_frame_comes_back_as_it_was(frame in frames()) {
        let (header, payload) = encoded(&frame);
        prop_assert_eq!(header.payload_crc, crc32c::crc32c(&payload));
        assert_same(&[decode(&header, &payload).unwrap()], &[frame]);
    }

    #[test]
    fn frames_come_back_through_segments(sizes in vec((0usize..6, any::<bool>()), 0..12), segment_bytes in 1u64..900) {
        let disk = MemoryDisk::new();
        let mut written: Vec<Frame> = Vec::new();
        let (mut log, _) = open(&disk, segment_bytes).unwrap();
        for (n, commit) in sizes {
            let frame = if n == 0 { only_positions(log.end().0) } else { rich(log.end().0, n) };
            log.append(&frame).unwrap();
            written.push(frame);
            if commit {
                log.commit().unwrap();
            }
        }
        log.commit().unwrap();
        assert_same(&drain(&mut log.reader(EdgeId(0))).unwrap(), &written);
        drop(log);
        assert_same(&read_all(&disk).unwrap(), &written);
    }

    /// Checksums do not protect from a writer at fault, nor from one that means harm.
    #[test]
    fn hostile_payloads_are_refused_or_read_without_harm(
        frame in frames(),
        changes in vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        records in prop_oneof![Just(None), any::<u32>().prop_map(Some), (0u32..50).prop_map(Some)],
        columns in any::<u16>(),
        cut in any::<prop::sample::Index>(),
    ) {
        let (mut header, mut payload) = encoded(&frame);
        for (at, byte) in changes {
            if !payload.is_empty() {
                let at = at.index(payload.len());
                payload[at] = byte;
            }
        }
        header.records = records.unwrap_or(header.records);
        header.columns ^= columns & columns.rotate_left(5) & columns.rotate_left(9);
        payload.truncate(cut.index(payload.len() + 200));
        if let Ok(frame) = decode(&header, &payload) {
            let n = header.records as usize;
            prop_assert!(n * 12 <= payload.len(), "records that have no bytes");
            prop_assert_eq!(frame.batch.len(), n);
            for i in 0..n + 2 {
                prop_assert!(frame.batch.features.row(i).len() <= payload.len());
            }
            prop_assert!(encode(&frame, 0, PAYLOAD_BYTES_MAX, &mut Vec::new()).is_ok());
        }
    }

    #[test]
    fn random_bytes_are_never_a_log(bytes in vec(any::<u8>(), 1..400)) {
        let disk = MemoryDisk::new();
        disk.put("00000000000000000000.log", &bytes);
        match open(&disk, 1) {
            Ok((_, recovery)) => prop_assert_eq!(recovery.end, EdgeId(0)),
            Err(error) => prop_assert!(matches!(&error, LogError::Foreign { .. }), "{}", error),
        }
    }
}

#[test]
fn lengths_of_four_gigabytes_allocate_nothing() {
    let (header, _) = encoded(&only_positions(0));
    for columns in 0..512 {
        let header = Header { columns, records: u32::MAX, ..header };
        assert!(decode(&header, &[0xff; 64]).is_err());
        // No record, so that the counts of the lists are reached.
        let header = Header { columns, records: 0, ..header };
        let lists = columns & 0b1_1101_0000 != 0;
        assert!(decode(&header, &[0xff; 64]).is_err(), "{columns:#b}");
        let mut payload = vec![0; 8];
        payload.extend([0xff; 4]);
        assert!(!lists || decode(&header, &payload).is_err(), "{columns:#b}");
    }
}

#[test]
fn feature_rows_that_run_backwards_are_refused() {
    let mut frame = plain(0, 3);
    (0..3).for_each(|i| frame.batch.features.push(i, &[1.0]));
    let (header, payload) = encoded(&frame);
    // Behind src, dst, base and offsets of the times, and two counts.
    let first_end = 12 + 12 + 8 + 12 + 8;
    for (end, allowed) in [(0, true), (1, true), (2, true), (3, false), (u8::MAX, false)] {
        let mut payload = payload.clone();
        payload[first_end] = end;
        assert_eq!(decode(&header, &payload).is_ok(), allowed, "first row ends at {end}");
    }
}

#[test]
fn a_plain_edge_takes_twelve_bytes() {
    assert_eq!(encoded(&plain(0, 1_000)).0.frame_bytes(), 56 + 12 * 1_000);
    let mut wide = plain(0, 1_000);
    wide.batch.time[0] = EventTime::MIN;
    wide.batch.time[1] = EventTime::MAX;
    assert_eq!(encoded(&wide).0.frame_bytes(), 48 + 16 * 1_000);
    // The widest span that four bytes hold, and one more.
    for (span, bytes) in [(u32::MAX.into(), 56 + 24), (i64::from(u32::MAX) + 1, 48 + 32)] {
        let mut edges = plain(0, 2);
        (edges.batch.time[0], edges.batch.time[1]) = (EventTime(-5 + span), EventTime(-5));
        let (header, payload) = encoded(&edges);
        assert_eq!(header.frame_bytes(), bytes);
        assert_same(&[decode(&header, &payload).unwrap()], &[edges]);
    }
}
