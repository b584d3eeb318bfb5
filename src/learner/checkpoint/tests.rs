//! Checkpoints as files: what is written comes back, little is written where little has changed, damage is found.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use super::*;
use crate::device::disk::WriteRate;
use crate::device::rng;

/// Bytes of which no two kilobytes are equal.
fn noise(bytes: usize, seed: u64) -> Vec<u8> {
    (0..bytes.div_ceil(4) as u64)
        .flat_map(|word| rng::below([seed, word, 0, 0], u32::MAX).to_le_bytes())
        .take(bytes)
        .collect()
}

fn at(position: u64) -> CheckpointHead {
    CheckpointHead { position: EdgeId(position), history: 5, model_version: 6, began_unix_ms: -7 }
}

fn put(dir: &Path, position: u64, payload: &[u8]) -> CheckpointFile {
    write(dir, at(position), Pace::unlimited(), |sink| sink.write_all(payload)).unwrap()
}

fn next(writer: &mut CheckpointWriter, position: u64, payload: &[u8]) -> CheckpointFile {
    writer.write(at(position), false, Pace::unlimited(), |sink| sink.write_all(payload)).unwrap()
}

fn payload(path: &Path) -> Vec<u8> {
    let mut bytes = Vec::new();
    open(path).unwrap().payload.read_to_end(&mut bytes).unwrap();
    bytes
}

fn names(dir: &Path) -> BTreeSet<String> {
    let entries = std::fs::read_dir(dir).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

#[test]
fn what_is_written_comes_back() {
    let dir = tempfile::tempdir().unwrap();
    for (number, size) in [0, 16, 16 << 10, (3 << 20) + 7].into_iter().enumerate() {
        let content = noise(size, 1);
        let file = put(dir.path(), number as u64, &content);
        let path = dir.path().join(&file.name);
        assert_eq!((file.bytes, file.pages.len()), (size as u64, usize::from(size > 0)));
        assert_eq!(open(&path).unwrap().file, file);
        assert!(payload(&path) == content, "{size}");
    }
    assert_eq!(names(dir.path()).len(), 4 + 3, "nothing unfinished is left");
}

#[test]
fn only_what_the_checkpoint_before_did_not_have_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = CheckpointWriter::new(dir.path(), 100);
    let mut content = noise(8 << 20, 1);
    next(&mut writer, 1, &content);
    assert!(writer.is_full() && writer.written() > 8 << 20);
    for round in 2..20_u64 {
        let changed = rng::below([2, round, 0, 0], 8 << 20) as usize;
        content[changed] ^= 1;
        // What comes in front of a flush may grow.
        let front = noise(round as usize, round);
        let save = |sink: &mut Sink<'_>| {
            sink.write_all(&front)?;
            sink.flush()?;
            sink.write_all(&content)
        };
        let file = writer.write(at(round), false, Pace::unlimited(), save).unwrap();
        assert!(writer.written() < 40 << 10, "{} bytes", writer.written());
        let expected = [front, content.clone()].concat();
        assert_eq!(file.bytes, expected.len() as u64);
        assert!(payload(&dir.path().join(&file.name)) == expected, "{round}");
    }
    let full = writer.write(at(20), true, Pace::unlimited(), |sink| sink.write_all(&content)).unwrap();
    assert_eq!(full.pages.len(), 1);
    assert!(writer.is_full() && payload(&dir.path().join(full.name)) == content);
}

#[test]
fn every_so_often_one_refers_to_none_before_it_and_what_is_kept_has_its_pages() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = CheckpointWriter::new(dir.path(), 3);
    let mut content = noise(1 << 20, 1);
    let files: Vec<_> = (1..8)
        .map(|position| {
            content[position as usize * 50_000] ^= 1;
            next(&mut writer, position, &content)
        })
        .collect();
    let pages: Vec<_> = files.iter().map(|file| file.pages.len()).collect();
    assert_eq!(pages, [1, 2, 3, 1, 2, 3, 1]);
    assert!(prune(dir.path()).unwrap().is_empty());
    for gone in [0, 1, 3, 4] {
        std::fs::remove_file(dir.path().join(&files[gone].name)).unwrap();
    }
    std::fs::remove_file(dir.path().join(&files[6].name)).unwrap();
    assert_eq!(prune(dir.path()).unwrap(), files[6].pages);
    for kept in [2, 5] {
        open(&dir.path().join(&files[kept].name)).unwrap();
    }
    // One that is set aside keeps its pages, too.
    let aside = dir.path().join("3.superseded");
    std::fs::rename(dir.path().join(&files[2].name), &aside).unwrap();
    assert!(prune(dir.path()).unwrap().is_empty());
    // Also while it is damaged; pages behind its position are not for it.
    let whole = std::fs::read(&aside).unwrap();
    assert_eq!(super::files(&aside).unwrap(), files[2].pages);
    std::fs::write(&aside, &whole[..60]).unwrap();
    assert!(super::files(&aside).is_err());
    let later = put(dir.path(), 9, b"later");
    std::fs::remove_file(dir.path().join(later.name)).unwrap();
    assert_eq!(prune(dir.path()).unwrap(), later.pages);
    std::fs::remove_file(aside).unwrap();
    assert_eq!(prune(dir.path()).unwrap(), files[2].pages);
    open(&dir.path().join(&files[5].name)).unwrap();
}

#[test]
fn where_much_changes_little_more_than_what_is_needed_is_held() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = CheckpointWriter::new(dir.path(), 1_000);
    let mut content = noise(1 << 20, 1);
    for round in 1..20_u64 {
        // A third of the chunks.
        content
            .chunks_mut(16 << 10)
            .skip(round as usize % 3)
            .step_by(3)
            .for_each(|chunk| chunk[7] ^= 1 << (round % 8));
        let file = next(&mut writer, round, &content);
        let bytes = |name: &String| std::fs::metadata(dir.path().join(name)).unwrap().len();
        assert!(file.pages.iter().map(bytes).sum::<u64>() < 2 << 20, "{round}");
    }
}

#[test]
fn a_checkpoint_in_the_place_of_another_has_its_own_pages() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = CheckpointWriter::new(dir.path(), 100);
    let first = next(&mut writer, 7, &noise(1 << 20, 1));
    let second = next(&mut writer, 7, &noise(1 << 20, 2));
    assert!(first.name == second.name && first.pages != second.pages);
    assert!(payload(&dir.path().join(second.name)) == noise(1 << 20, 2));
    assert_eq!(prune(dir.path()).unwrap(), first.pages);
}

#[test]
fn a_file_of_another_version_is_refused_by_its_first_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(put(dir.path(), 7, b"payload").name);
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[7] -= 1;
    std::fs::write(&path, &bytes).unwrap();
    let error = open(&path).unwrap_err().to_string();
    assert!(error.contains("EVGCKPT4") && error.contains("EVGCKPT5"), "{error}");
}

#[test]
fn every_flipped_bit_and_every_cut_is_found_in_all_files_that_a_checkpoint_refers_to() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = CheckpointWriter::new(dir.path(), 100);
    let two = |sink: &mut Sink<'_>, second: &[u8]| {
        sink.write_all(b"first")?;
        sink.flush()?;
        sink.write_all(second)
    };
    writer.write(at(6), true, Pace::unlimited(), |sink| two(sink, b"chunk")).unwrap();
    let file = writer.write(at(7), false, Pace::unlimited(), |sink| two(sink, b"other chunk")).unwrap();
    assert_eq!(file.pages.len(), 2);
    let path = dir.path().join(&file.name);
    assert_eq!(payload(&path), b"firstother chunk");
    for name in file.pages.iter().chain([&file.name]) {
        let damaged = dir.path().join(name);
        let whole = std::fs::read(&damaged).unwrap();
        // The last chunk of the first pages is of no use to it.
        let used = if name == &file.pages[0] { 5 } else { whole.len() };
        for bit in 0..used * 8 {
            let mut flipped = whole.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            std::fs::write(&damaged, &flipped).unwrap();
            let error = open(&path).unwrap_err();
            assert!(matches!(error, CheckpointError::Damaged { .. }), "{name}, bit {bit}: {error}");
        }
        for length in 0..whole.len() {
            std::fs::write(&damaged, &whole[..length]).unwrap();
            assert!(matches!(open(&path), Err(CheckpointError::Damaged { .. })), "{name}, length {length}");
        }
        std::fs::write(&damaged, &whole).unwrap();
        open(&path).unwrap();
    }
    std::fs::remove_file(dir.path().join(&file.pages[0])).unwrap();
    let error = open(&path).unwrap_err().to_string();
    assert!(error.contains(&file.pages[0]) && error.contains("is missing"), "{error}");
}

#[test]
fn a_checkpoint_takes_as_long_as_its_rate_says() {
    let (dir, begun) = (tempfile::tempdir().unwrap(), Instant::now());
    let (rate, hurry) = (WriteRate::new(20 << 20), AtomicBool::new(false));
    let pace = Pace { rate: &rate, hurry: &hurry };
    let content = noise(10 << 20, 3);
    write(dir.path(), at(1), pace, |sink| sink.write_all(&content)).unwrap();
    assert!(begun.elapsed() >= Duration::from_millis(500), "{:?}", begun.elapsed());
}

#[test]
fn a_save_that_fails_leaves_nothing_and_a_folder_that_is_not_there_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = CheckpointWriter::new(dir.path(), 100);
    let failed = writer.write(at(1), false, Pace::unlimited(), |_| Err(io::Error::other("no")));
    assert!(matches!(failed, Err(CheckpointError::Io { .. })));
    assert_eq!(names(dir.path()).len(), 0);
    let content = noise(1 << 20, 1);
    next(&mut writer, 2, &content);
    assert!(writer.is_full(), "nothing refers to what was not finished");
    for full in [false, true] {
        let failed = writer.write(at(3), full, Pace::unlimited(), |_| Err(io::Error::other("no")));
        assert!(matches!(failed, Err(CheckpointError::Io { .. })));
    }
    let file = next(&mut writer, 4, &content);
    assert!(writer.written() < 4 << 10 && payload(&dir.path().join(file.name)) == content);
    let error = write(Path::new("/nonexistent/folder"), at(3), Pace::unlimited(), |_| Ok(())).unwrap_err();
    assert!(error.to_string().contains("/nonexistent/folder"), "{error}");
}
