//! Disks that fill up, fail, write short and lose power.

use std::io::ErrorKind;

use proptest::collection::vec;
use proptest::prelude::*;

use super::faulty::Operation;
use super::*;

/// Content of every file.
fn contents(disk: &MemoryDisk) -> Vec<(String, Vec<u8>)> {
    disk.names().into_iter().map(|name| (name.clone(), disk.content(&name))).collect()
}

/// Appends and commits; on an error, checks that the log is as before and returns the error.
fn try_commit(log: &mut Log, frames: &[Frame]) -> Result<(), LogError> {
    let (end, bytes) = (log.durable_end(), log.bytes());
    frames.iter().for_each(|frame| log.append(frame).unwrap());
    log.commit().map(|_| ()).inspect_err(|_| {
        assert_eq!((log.end(), log.durable_end(), log.bytes()), (end, end, bytes));
    })
}

#[test]
fn a_full_disk_keeps_nothing_and_the_retry_succeeds() {
    for segment_bytes in [1, 150, 1 << 20] {
        let unbroken = MemoryDisk::new();
        write_all(&unbroken, segment_bytes, &story());
        let total: usize = contents(&unbroken).iter().map(|(_, content)| content.len()).sum();
        for capacity in 0..total {
            let disk = MemoryDisk::new();
            let (mut log, _) = open(&disk, segment_bytes).unwrap();
            disk.set_capacity(Some(capacity));
            let mut refused = 0;
            for (i, frame) in story().iter().enumerate() {
                if let Err(error) = try_commit(&mut log, std::slice::from_ref(frame)) {
                    refused += 1;
                    assert!(error.is_disk_full(), "{error}");
                    assert_same(&drain(&mut log.reader(EdgeId(0))).unwrap(), &story()[..i]);
                    let lost = disk.after_power_loss(|| false);
                    assert_same(&read_all(&lost).unwrap(), &story()[..i]);
                    assert!(try_commit(&mut log, std::slice::from_ref(frame)).is_err(), "still full");
                    disk.set_capacity(None);
                    try_commit(&mut log, std::slice::from_ref(frame)).unwrap();
                }
            }
            assert_eq!(refused, 1);
            assert_eq!(contents(&disk), contents(&unbroken));
        }
    }
}

#[test]
fn short_writes_are_continued() {
    for limit in [1, 7, 100] {
        let (disk, unbroken) = (MemoryDisk::new(), MemoryDisk::new());
        disk.set_write_limit(Some(limit));
        write_all(&disk, 200, &story());
        write_all(&unbroken, 200, &story());
        assert_eq!(contents(&disk), contents(&unbroken));
    }
}

#[test]
fn an_operation_that_fails_can_be_repeated() {
    use Operation::{Create, SetLength, Sync, SyncDirectory, Write};
    let kinds = [&[Write][..], &[Sync], &[Create], &[SyncDirectory], &[Write, SetLength], &[Sync, SetLength]];
    for (operations, times) in kinds.into_iter().flat_map(|kind| (1..4).map(move |times| (kind, times))) {
        let disk = MemoryDisk::new();
        let (mut log, _) = open(&disk, 1).unwrap();
        for (i, frame) in story().iter().enumerate() {
            operations.iter().for_each(|&operation| disk.fail(operation, times, ErrorKind::Other));
            while let Err(error) = try_commit(&mut log, std::slice::from_ref(frame)) {
                assert!(!error.is_disk_full(), "{error}");
                assert_same(&drain(&mut log.reader(EdgeId(0))).unwrap(), &story()[..i]);
            }
            // Only what was written again after a failed sync can be there.
            assert_same(&read_all(&disk.after_power_loss(|| false)).unwrap(), &story()[..=i]);
        }
    }
}

#[test]
fn a_failed_commit_leaves_no_byte_in_the_file() {
    let (disk, unbroken) = (MemoryDisk::new(), MemoryDisk::new());
    let (mut log, _) = open(&disk, 1 << 20).unwrap();
    try_commit(&mut log, &[plain(0, 3)]).unwrap();
    let before = contents(&disk);
    disk.fail(Operation::Sync, 1, ErrorKind::Other);
    try_commit(&mut log, &[rich(3, 9)]).unwrap_err();
    assert_eq!(contents(&disk), before);
    // If they cannot be cut off either, the next commit does it first, even if it is shorter.
    disk.fail(Operation::Sync, 1, ErrorKind::Other);
    disk.fail(Operation::SetLength, 1, ErrorKind::Other);
    try_commit(&mut log, &[rich(3, 9)]).unwrap_err();
    assert_ne!(contents(&disk), before);
    try_commit(&mut log, &[plain(3, 1)]).unwrap();
    write_all(&unbroken, 1 << 20, &[plain(0, 3), plain(3, 1)]);
    assert_eq!(contents(&disk), contents(&unbroken));
}

#[test]
fn a_reader_never_holds_bytes_of_a_failed_commit() {
    let disk = MemoryDisk::new();
    let (mut log, _) = open(&disk, 1 << 20).unwrap();
    let mut reader = log.reader(EdgeId(0));
    try_commit(&mut log, &[plain(0, 3)]).unwrap();
    disk.fail(Operation::Sync, 1, ErrorKind::Other);
    disk.fail(Operation::SetLength, 1, ErrorKind::Other);
    try_commit(&mut log, &[rich(3, 9)]).unwrap_err();
    assert_same(&drain(&mut reader).unwrap(), &[plain(0, 3)]);
    try_commit(&mut log, &[plain(3, 1)]).unwrap();
    assert_same(&drain(&mut reader).unwrap(), &[plain(3, 1)]);
}

#[test]
fn interrupted_calls_are_repeated() {
    let disk = MemoryDisk::new();
    let (mut log, _) = open(&disk, 1 << 20).unwrap();
    disk.fail(Operation::Write, 1, ErrorKind::Interrupted);
    try_commit(&mut log, &story()).unwrap();
    disk.fail(Operation::Read, 1, ErrorKind::Interrupted);
    assert_same(&drain(&mut log.reader(EdgeId(0))).unwrap(), &story());
}

#[test]
fn a_reader_reports_a_disk_that_cannot_be_read_and_goes_on_when_it_can() {
    let disk = MemoryDisk::new();
    let (mut log, _) = open(&disk, 1 << 20).unwrap();
    try_commit(&mut log, &story()).unwrap();
    disk.fail(Operation::Read, 1, ErrorKind::Other);
    let mut reader = log.reader(EdgeId(0));
    assert!(matches!(reader.next_frame(), Err(LogError::Io { operation: "read", .. })));
    assert_same(&drain(&mut reader).unwrap(), &story());
}

#[test]
fn frames_of_a_killed_process_are_durable_before_they_are_shown() {
    let (disk, whole) = (MemoryDisk::new(), MemoryDisk::new());
    write_all(&disk, 1 << 20, &story()[..5]);
    write_all(&whole, 1 << 20, &story());
    let name = &disk.names()[0];
    let written = disk.content(name).len();
    let file = disk.storage().open(name, Access::Write).unwrap();
    file.write_at(&whole.content(name)[written..], written as u64).unwrap();
    assert_same(&read_all(&disk.after_power_loss(|| false)).unwrap(), &story()[..5]);
    assert_same(&read_all(&disk).unwrap(), &story());
    assert_same(&read_all(&disk.after_power_loss(|| false)).unwrap(), &story());
}

/// One step of a life with accidents.
#[derive(Clone, Debug)]
enum Step {
    /// Commits so many frames.
    Commit(usize),
    /// Makes the next operations of a kind fail.
    Fail(Operation, usize),
    /// Loses power; the bits select the sectors that survive, repeated.
    PowerLoss(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    use Operation::{Create, SetLength, Sync, SyncDirectory, Write};
    let operation = prop_oneof![Just(Create), Just(SetLength), Just(Sync), Just(SyncDirectory), Just(Write)];
    let step = prop_oneof![
        4 => (1usize..5).prop_map(Step::Commit),
        2 => (operation, 1usize..4).prop_map(|(operation, times)| Step::Fail(operation, times)),
        1 => any::<u64>().prop_map(Step::PowerLoss),
    ];
    vec(step, 1..30)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    /// Whatever survives of what was not synced, the log opens, holds every commit that returned, and
    /// beyond that at most whole frames of the commit that did not.
    #[test]
    fn power_loss_loses_nothing_that_was_confirmed(steps in steps(), segment_bytes in 1u64..4_000) {
        let mut disk = MemoryDisk::new();
        let mut log = open(&disk, segment_bytes).unwrap().0;
        let mut confirmed: Vec<Frame> = Vec::new();
        let mut attempted: Vec<Frame> = Vec::new();
        for step in steps {
            match step {
                Step::Commit(count) => {
                    let mut end = log.end().0;
                    let mut frames = Vec::new();
                    for i in 0..count {
                        let n = (end as usize * 31 + i * 17) % 90;
                        frames.push(if n == 0 { only_positions(end) } else { rich(end, n) });
                        end += n as u64;
                    }
                    if try_commit(&mut log, &frames).is_ok() {
                        confirmed.append(&mut frames);
                        attempted.clear();
                    } else if frames.len() > attempted.len() {
                        // Attempts from one position are prefixes of one another.
                        attempted = frames;
                    }
                    assert_same(&drain(&mut log.reader(EdgeId(0))).unwrap(), &confirmed);
                }
                Step::Fail(operation, times) => disk.fail(operation, times, ErrorKind::Other),
                Step::PowerLoss(bits) => {
                    let mut requested = 0;
                    disk = disk.after_power_loss(|| {
                        requested += 1;
                        bits >> (requested % 64) & 1 == 1
                    });
                    log = open(&disk, segment_bytes).unwrap().0;
                    let found = drain(&mut log.reader(EdgeId(0))).unwrap();
                    prop_assert!(found.len() >= confirmed.len());
                    let extra = found.len() - confirmed.len();
                    prop_assert!(extra <= attempted.len());
                    confirmed.extend(attempted.drain(..extra));
                    attempted.clear();
                    assert_same(&found, &confirmed);
                }
            }
        }
    }
}

#[test]
fn a_trial_write_checks_for_space_and_leaves_nothing() {
    let disk = MemoryDisk::new();
    let options = || LogOptions { dir: "log".into(), segment_bytes: 1 << 20 };
    let (mut log, _) = Log::open_with(options(), disk.storage()).unwrap();
    log.append(&Frame::default()).unwrap();
    log.commit().unwrap();
    let before: Vec<_> = disk.names().iter().map(|name| (name.clone(), disk.content(name))).collect();
    let used: usize = before.iter().map(|(_, content)| content.len()).sum();

    disk.set_capacity(Some(used + 100));
    assert!(log.try_room(101).unwrap_err().is_disk_full());
    log.try_room(100).unwrap();
    let after: Vec<_> = disk.names().iter().map(|name| (name.clone(), disk.content(name))).collect();
    assert_eq!(before, after);
}
