//! Both engines on a real file: the same bytes, the same errors, alone and from several threads.

use super::*;
use crate::device::rng::random_u64;

/// Every engine that works here.
fn engines() -> Vec<EngineChoice> {
    let folder = tempfile::tempdir().unwrap();
    let uring = SpillFile::create(folder.path(), "probe", EngineChoice::IoUring);
    if let Err(error) = &uring {
        eprintln!("io_uring is not tested: {error}");
    }
    let uring = uring.is_ok().then_some(EngineChoice::IoUring);
    [EngineChoice::Pread].into_iter().chain(uring).collect()
}

/// A file of `pages` pages, each filled with words that hold its number, and nothing beside it in the folder.
fn filled(choice: EngineChoice, pages: usize) -> (tempfile::TempDir, SpillFile) {
    let folder = tempfile::tempdir().unwrap();
    let file = SpillFile::create(folder.path(), "pages", choice).unwrap();
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    let mut buffer = PageBuffer::zeros(256);
    for first in (0..pages).step_by(256) {
        let count = (pages - first).min(256);
        for page in 0..count {
            fill(&mut buffer.bytes_mut()[page * PAGE_BYTES..][..PAGE_BYTES], first + page);
        }
        file.write(first as u64, &buffer, count).unwrap();
    }
    (folder, file)
}

fn fill(bytes: &mut [u8], page: usize) {
    for (word, bytes) in bytes.chunks_exact_mut(8).enumerate() {
        bytes.copy_from_slice(&((page * 1000 + word) as u64).to_le_bytes());
    }
}

fn assert_holds(extents: &[Extent], buffer: &PageBuffer) {
    let pages = extents.iter().flat_map(|extent| (0..extent.pages).map(|i| extent.page as usize + i));
    let mut expected = vec![0; PAGE_BYTES];
    for (page, found) in pages.zip(buffer.bytes().chunks(PAGE_BYTES)) {
        fill(&mut expected, page);
        assert!(found == expected, "page {page} holds something else");
    }
}

fn random(seed: u64, i: u64, bound: u64) -> u64 {
    random_u64([seed, i, 0, 0]) % bound
}

#[test]
fn both_engines_read_the_same_bytes_of_random_extents() {
    for choice in engines() {
        let (_folder, file) = filled(choice, 700);
        let mut buffer = PageBuffer::zeros(0);
        for round in 0..30 {
            let count = [0, 1, 2, 15, 130, 400][round as usize % 6];
            let extent = |i: u64| {
                let page = random(round, 2 * i, 700);
                let longest = (700 - page).min(if i.is_multiple_of(9) { 300 } else { 3 });
                Extent { page, pages: 1 + random(round, 2 * i + 1, longest) as usize }
            };
            let extents: Vec<Extent> = (0..count).map(extent).collect();
            buffer.grow(extents.iter().map(|extent| extent.pages).sum());
            file.read(&extents, &mut buffer).unwrap();
            assert_holds(&extents, &buffer);
        }
    }
}

#[test]
fn several_threads_read_at_once() {
    for choice in engines() {
        let (_folder, file) = filled(choice, 300);
        std::thread::scope(|scope| {
            for thread in 0..8 {
                let file = &file;
                scope.spawn(move || {
                    let mut buffer = PageBuffer::zeros(200);
                    for round in 0..20 {
                        let page = |i| Extent { page: random(thread * 100 + round, i, 300), pages: 1 };
                        let extents: Vec<Extent> = (0..200).map(page).collect();
                        file.read(&extents, &mut buffer).unwrap();
                        assert_holds(&extents, &buffer);
                    }
                });
            }
        });
    }
}

#[test]
fn the_end_of_the_file_is_an_error_that_says_where_and_the_next_read_is_whole() {
    for choice in engines() {
        let (_folder, file) = filled(choice, 300);
        let mut extents: Vec<Extent> = (0..150).map(|page| Extent { page: 2 * page, pages: 1 }).collect();
        let mut buffer = PageBuffer::zeros(151);
        extents.insert(70, Extent { page: 300, pages: 1 });
        for extents in [&extents[..], &extents[70..71]] {
            let error = file.read(extents, &mut buffer).unwrap_err();
            assert_eq!((error.operation, error.offset), ("reading", 300 * PAGE_BYTES as u64));
            assert_eq!(error.source.kind(), io::ErrorKind::UnexpectedEof);
            assert!(error.to_string().contains("4096 bytes at offset 1228800"), "{error}");
        }
        let across = file.read(&[Extent { page: 298, pages: 4 }], &mut buffer).unwrap_err();
        assert_eq!(across.offset, 300 * PAGE_BYTES as u64, "what comes before the end was read");
        extents.remove(70);
        file.read(&extents, &mut buffer).unwrap();
        assert_holds(&extents, &buffer);
    }
}

#[test]
fn what_is_discarded_is_before_the_page_and_the_rest_stays() {
    let (_folder, file) = filled(EngineChoice::Pread, 300);
    file.discard_below(200);
    let extents: Vec<Extent> = (200..300).map(|page| Extent { page, pages: 1 }).collect();
    let mut buffer = PageBuffer::zeros(100);
    file.read(&extents, &mut buffer).unwrap();
    assert_holds(&extents, &buffer);
    file.read(&[Extent { page: 0, pages: 100 }], &mut buffer).unwrap();
    let gone = buffer.bytes().iter().all(|byte| *byte == 0);
    assert!(gone || !file.engine().contains("direct"), "a disk that is one has its place back");
}

#[test]
fn the_engine_says_what_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let file = SpillFile::create(folder.path(), "pages", EngineChoice::Pread).unwrap();
    assert!(file.engine().starts_with("pread, "), "{}", file.engine());
    let file = SpillFile::create(folder.path(), "pages", EngineChoice::Auto).unwrap();
    let uring = SpillFile::create(folder.path(), "other", EngineChoice::IoUring);
    assert_eq!(file.engine().starts_with("io_uring, "), uring.is_ok(), "{}", file.engine());
    let nowhere = folder.path().join("no folder");
    assert!(SpillFile::create(&nowhere, "pages", EngineChoice::Auto).is_err());
}
