//! Files that were cut, changed, renamed or put there by somebody else.

use super::super::frame::{PAYLOAD_BYTES_MAX, encode};
use super::super::header::{HEADER_BYTES, Header};
use super::super::mark;
use super::*;

const SEGMENT: &str = "00000000000000000000.log";

/// Bytes of the frames before frame `i` of a log in one segment.
fn offset_of(frames: &[Frame], i: usize) -> usize {
    let mut bytes = Vec::new();
    frames[..i].iter().for_each(|frame| encode(frame, 0, PAYLOAD_BYTES_MAX, &mut bytes).unwrap());
    bytes.len()
}

/// A disk like `disk` with the content of one file replaced.
fn with(disk: &MemoryDisk, name: &str, content: &[u8]) -> MemoryDisk {
    let copy = disk.after_power_loss(|| true);
    copy.put(name, content);
    copy
}

/// The same without the mark, as a loss of power may leave it.
fn unmarked(disk: &MemoryDisk, name: &str, content: &[u8]) -> MemoryDisk {
    let copy = with(disk, name, content);
    copy.remove(mark::NAME).unwrap();
    copy
}

#[test]
fn a_log_cut_at_any_byte_of_its_last_frame_goes_on() {
    let mut frames = story();
    frames.push(rich(15, 3));
    let disk = MemoryDisk::new();
    write_all(&disk, 1 << 20, &frames);
    let (before, whole) = (&frames[..6], disk.content(SEGMENT));
    let start = offset_of(&frames, 6);
    for length in start..whole.len() {
        let torn = unmarked(&disk, SEGMENT, &whole[..length]);
        let (mut log, recovery) = open(&torn, 1 << 20).unwrap();
        let kept =
            recovery.kept_in.as_ref().map(|path| torn.content(path.file_name().unwrap().to_str().unwrap()));
        assert_eq!(kept, (length > start).then(|| whole[start..length].to_vec()), "what is cut off is kept");
        assert_eq!(recovery.truncated_bytes, (length - start) as u64);
        let cut = (length > start).then(|| (PathBuf::from(DIR).join(SEGMENT), start as u64));
        assert_eq!(recovery.truncated_at, cut);
        assert_eq!((log.end(), recovery.frames_verified), (EdgeId(15), 6));
        assert_same(&drain(&mut log.reader(EdgeId(0))).unwrap(), before);
        log.append(&frames[6]).unwrap();
        log.commit().unwrap();
        drop(log);
        assert_eq!(torn.content(SEGMENT), whole, "cut at byte {length}");
    }
}

/// What may become of a log with one changed bit: an error, or the frames before `torn_from`.
fn check_flipped(disk: &MemoryDisk, segment_bytes: u64, frames: &[Frame], torn_from: usize, what: &str) {
    let (log, recovery) = match open(disk, segment_bytes) {
        Ok(opened) => opened,
        Err(error) => return assert!(error.to_string().contains(DIR), "{what}: {error}"),
    };
    let mut reader = log.reader(EdgeId(0));
    let mut found = Vec::new();
    loop {
        match reader.next_frame() {
            Ok(Some(frame)) => found.push(frame),
            Ok(None) => {
                assert!(recovery.truncated_bytes > 0, "{what}: nothing is reported");
                assert!(found.len() >= torn_from, "{what}: {} frames", found.len());
                assert!(found.len() < frames.len(), "{what}: all frames");
                break;
            }
            Err(error) => {
                let named = matches!(
                    error,
                    LogError::Corrupt { .. } | LogError::Foreign { .. } | LogError::Gap { .. }
                );
                assert!(named && error.to_string().contains(DIR), "{what}: {error}");
                assert_eq!(reader.next_frame().unwrap_err().to_string(), error.to_string());
                break;
            }
        }
    }
    assert_same(&found, &frames[..found.len()]);
}

#[test]
fn no_changed_bit_goes_unnoticed() {
    let frames = story();
    // One segment; several; and a last commit of three frames.
    for (segment_bytes, last_commit) in [(1 << 20, 1), (150, 1), (1 << 20, 3)] {
        let disk = MemoryDisk::new();
        let torn_from = frames.len() - last_commit;
        write_all(&disk, segment_bytes, &frames[..torn_from]);
        let (mut log, _) = open(&disk, segment_bytes).unwrap();
        frames[torn_from..].iter().for_each(|frame| log.append(frame).unwrap());
        log.commit().unwrap();
        drop(log);
        for name in disk.names() {
            let mut content = disk.content(&name);
            for bit in 0..content.len() * 8 {
                content[bit / 8] ^= 1 << (bit % 8);
                let what = format!("bit {bit} of {name}, segments of {segment_bytes}");
                if name == mark::NAME {
                    let (log, recovery) = open(&with(&disk, &name, &content), segment_bytes).unwrap();
                    assert!(recovery.record_unreadable && log.end() == EdgeId(15), "{what}");
                } else {
                    // With the mark, no frame counts as torn.
                    let marked = with(&disk, &name, &content);
                    check_flipped(&marked, segment_bytes, &frames, frames.len(), &what);
                    let unmarked = unmarked(&disk, &name, &content);
                    check_flipped(&unmarked, segment_bytes, &frames, torn_from, &what);
                }
                content[bit / 8] ^= 1 << (bit % 8);
            }
        }
    }
}

#[test]
fn damage_before_a_later_commit_is_no_torn_write() {
    let disk = MemoryDisk::new();
    write_all(&disk, 1 << 20, &story());
    let mut content = disk.content(SEGMENT);
    let (start, next) = (offset_of(&story(), 1), offset_of(&story(), 2));
    content[start..next].fill(0);
    match open(&with(&disk, SEGMENT, &content), 1 << 20).err().unwrap() {
        LogError::Corrupt { path, offset, position, .. } => {
            assert_eq!(path, PathBuf::from(DIR).join(SEGMENT));
            assert_eq!((offset, position), (start as u64, EdgeId(3)));
        }
        other => panic!("{other}"),
    }
    // Nothing was cut: the bytes are still there to be repaired.
    assert_eq!(disk.content(SEGMENT).len(), content.len());
    // The same frame with the same zeros, but nothing behind it.
    let (log, recovery) = open(&unmarked(&disk, SEGMENT, &content[..next]), 1 << 20).unwrap();
    assert_eq!((log.end(), recovery.truncated_bytes), (EdgeId(3), (next - start) as u64));
}

#[test]
fn later_frames_of_the_same_commit_do_not_save_a_torn_one() {
    let disk = MemoryDisk::new();
    write_all(&disk, 1 << 20, &story()[..1]);
    let (mut log, _) = open(&disk, 1 << 20).unwrap();
    story()[1..].iter().for_each(|frame| log.append(frame).unwrap());
    log.commit().unwrap();
    drop(log);
    let mut content = disk.content(SEGMENT);
    content[offset_of(&story(), 1)..offset_of(&story(), 2)].fill(0);
    assert_same(&read_all(&unmarked(&disk, SEGMENT, &content)).unwrap(), &story()[..1]);
}

#[test]
fn an_earlier_segment_that_was_cut_is_an_error_when_read() {
    let frames = story();
    let disk = MemoryDisk::new();
    write_all(&disk, 150, &frames);
    assert!(segments(&disk).len() >= 3, "{:?}", disk.names());
    let name = disk.names()[0].clone();
    let content = disk.content(&name);
    for length in 0..content.len() {
        let cut = with(&disk, &name, &content[..length]);
        let (log, _) = open(&cut, 150).unwrap();
        let error = drain(&mut log.reader(EdgeId(0))).unwrap_err();
        let named = matches!(error, LogError::Corrupt { .. } | LogError::Gap { .. });
        assert!(named, "cut to {length} bytes: {error}");
        // What lies behind is still there.
        assert_same(&drain(&mut log.reader(EdgeId(11))).unwrap(), &frames[5..]);
    }
}

#[test]
fn a_missing_segment_is_a_gap() {
    let disk = MemoryDisk::new();
    write_all(&disk, 1, &story());
    for missing in &segments(&disk) {
        let copy = disk.after_power_loss(|| true);
        copy.remove(missing).unwrap();
        let error = read_all(&copy).unwrap_err();
        // Only the mark knows of the last one.
        let named = matches!(&error, LogError::Gap { offset: 0, .. } | LogError::CutShort { found: 0, .. });
        assert!(named, "{missing}: {error}");
    }
}

#[test]
fn a_renamed_segment_is_a_gap() {
    let disk = MemoryDisk::new();
    write_all(&disk, 1 << 20, &[plain(0, 3)]);
    let renamed = MemoryDisk::new();
    renamed.put("00000000000000000004.log", &disk.content(SEGMENT));
    let error = open(&renamed, 1).err().unwrap();
    assert!(matches!(&error, LogError::Gap { expected: EdgeId(4), found: EdgeId(0), .. }), "{error}");
}

#[test]
fn other_peoples_files_are_named() {
    for (name, content) in [
        (SEGMENT, &b"#!/bin/sh\necho this is no log, whatever it is called\n"[..]),
        ("app.log", b"anything"),
        ("+0000000000000000007.log", b""),
        ("99999999999999999999.log", b""),
    ] {
        let disk = MemoryDisk::new();
        disk.put(name, content);
        let error = open(&disk, 1).err().unwrap();
        assert!(matches!(&error, LogError::Foreign { .. }), "{name}: {error}");
        assert!(error.to_string().contains(name), "{error}");
        assert_eq!(disk.content(name), content, "left as it was");
    }
    let disk = MemoryDisk::new();
    disk.put("lost+found", b"");
    assert!(open(&disk, 1).is_ok(), "names without the suffix are not ours");
}

#[test]
fn another_version_is_named_and_left_alone() {
    let disk = MemoryDisk::new();
    write_all(&disk, 1 << 20, &[plain(0, 3), plain(3, 1)]);
    for frame in [0, 1] {
        let mut content = disk.content(SEGMENT);
        let at = offset_of(&[plain(0, 3)], frame);
        content[at + 4] = 2;
        let crc = crc32c::crc32c(&content[at..at + 44]);
        content[at + 44..at + 48].copy_from_slice(&crc.to_le_bytes());
        match open(&with(&disk, SEGMENT, &content), 1 << 20).err().unwrap() {
            LogError::Version { offset, expected: 1, found: 2, .. } => assert_eq!(offset, at as u64),
            other => panic!("{other}"),
        }
    }
}

#[test]
fn a_payload_that_contradicts_itself_is_named() {
    let disk = MemoryDisk::new();
    write_all(&disk, 1 << 20, &[plain(0, 3)]);
    let mut content = disk.content(SEGMENT);
    let mut header = Header::parse(content.first_chunk().unwrap()).unwrap();
    header.records = 4;
    content[..HEADER_BYTES].copy_from_slice(&header.to_bytes());
    let error = read_all(&with(&disk, SEGMENT, &content)).unwrap_err();
    assert!(matches!(&error, LogError::Malformed { offset: 0, .. }), "{error}");
}

#[test]
fn damage_in_the_last_commit_is_refused_once_that_commit_is_recorded() {
    let disk = MemoryDisk::new();
    write_all(&disk, 1 << 20, &story());
    let (whole, last) = (disk.content(SEGMENT), offset_of(&story(), 5));
    for at in last..whole.len() {
        let mut damaged = whole.clone();
        damaged[at] ^= 1;
        for (what, content) in [("changed", &damaged[..]), ("cut off", &whole[..at])] {
            let error = open(&with(&disk, SEGMENT, content), 1 << 20).err();
            let error = error.unwrap_or_else(|| panic!("byte {at} is {what}, and the log opens"));
            assert!(error.to_string().contains("position 10"), "byte {at} is {what}: {error}");
        }
    }
}

#[test]
fn a_torn_write_behind_the_mark_is_cut_off_and_the_mark_moves_on() {
    let disk = MemoryDisk::new();
    write_all(&disk, 1 << 20, &story());
    let mut content = disk.content(SEGMENT);
    let end = content.len();
    content.extend_from_slice(&content.clone()[..40]);
    let torn = with(&disk, SEGMENT, &content);
    let (log, recovery) = open(&torn, 1 << 20).unwrap();
    assert_eq!((recovery.recorded, recovery.truncated_bytes, log.end()), (Some(EdgeId(15)), 40, EdgeId(15)));
    drop(log);
    assert_eq!((torn.content(SEGMENT).len(), torn.content(mark::NAME)), (end, disk.content(mark::NAME)));
    // A killed process writes nothing more: the mark of its last commit is there all the same.
    let (mut log, _) = open(&torn, 1 << 20).unwrap();
    log.append(&plain(15, 2)).unwrap();
    log.commit().unwrap();
    let killed = torn.after_power_loss(|| true);
    let content = killed.content(SEGMENT);
    killed.put(SEGMENT, &content[..content.len() - 1]);
    let error = open(&killed, 1 << 20).err().unwrap();
    assert!(matches!(&error, LogError::Corrupt { position: EdgeId(15), .. }), "{error}");
}

#[test]
fn torn_tails_are_kept_apart_up_to_a_number_and_zeros_are_not() {
    let disk = MemoryDisk::new();
    write_all(&disk, 1 << 20, &[plain(0, 3)]);
    let whole = disk.content(SEGMENT);
    for round in 1..=40u8 {
        disk.put(SEGMENT, &[&whole[..], &[round; 5]].concat());
        let (_, recovery) = open(&disk, 1 << 20).unwrap();
        let kept = recovery.kept_in.unwrap();
        assert_eq!(disk.content(kept.file_name().unwrap().to_str().unwrap()), [round; 5]);
    }
    assert_eq!(disk.names().iter().filter(|name| name.ends_with(".torn")).count(), 16);
    disk.put(SEGMENT, &[&whole[..], &[0; 5]].concat());
    let (_, recovery) = open(&disk, 1 << 20).unwrap();
    assert_eq!((recovery.truncated_bytes, recovery.kept_in), (5, None));
    // Without room for a copy the log opens all the same.
    disk.put(SEGMENT, &[&whole[..], &[7; 5]].concat());
    disk.set_capacity(Some(0));
    let (log, recovery) = open(&disk, 1 << 20).unwrap();
    assert_eq!((log.end(), recovery.truncated_bytes, recovery.kept_in), (EdgeId(3), 5, None));
}
