//! What the daemon wrote itself and a disk has changed: segments of the event log, checkpoints. Plain damage must never
//! give another value; damage whose checksums were made to fit is refused or holds together.

use std::io::Read;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};

use evergraph::device::Device;
use evergraph::device::disk::Pace;
use evergraph::event::{EdgeBatch, EdgeId, EventTime, NodeId, NodeKey, Op, SourceMark, SourceRange};
use evergraph::feature::FeatureStore;
use evergraph::graph::{GraphOptions, GraphStore};
use evergraph::learner::checkpoint::{self, CheckpointHead, PAGES_SUFFIX, SUFFIX, Sink};
use evergraph::learner::{Around, BeforePromotion, Gate, GateOptions, Learned, StreamState};
use evergraph::log::{Frame, Log, LogError, LogOptions};
use evergraph::model::TgnOptions;
use evergraph::serving::Stores;
use evergraph::train::{StepMode, Trainer, TrainerOptions};

use super::{Corpus, Dice, WORDS, folder};
use crate::faulty_log::MemoryDisk;
use crate::tgn_stream::{Sight, Stream};

const SEGMENT: &str = "00000000000000000000.log";
const HEADER_BYTES: usize = 48;

fn open(disk: &MemoryDisk) -> Result<Log, LogError> {
    let options = LogOptions { dir: PathBuf::from("data/log"), segment_bytes: 1 << 20 };
    Log::open_with(options, disk.storage()).map(|(log, _)| log)
}

/// The log, or none where it is refused in words.
fn opened(disk: &MemoryDisk) -> Option<Log> {
    open(disk).inspect_err(hold_error).ok()
}

fn disk(segment: &[u8]) -> MemoryDisk {
    let disk = MemoryDisk::new();
    disk.put(SEGMENT, segment);
    disk
}

/// Every frame that is given, and the error that ended it.
fn frames(log: &Log) -> (Vec<Frame>, Option<LogError>) {
    let (mut reader, mut frames) = (log.reader(EdgeId(0)), Vec::new());
    loop {
        match reader.next_frame() {
            Ok(Some(frame)) => frames.push(frame),
            Ok(None) => return (frames, None),
            Err(error) => return (frames, Some(error)),
        }
    }
}

fn hold_error(error: &LogError) {
    let said = error.to_string();
    assert!(said.contains(".log"), "no file in {said}");
}

/// Frames as bytes, by which they can be compared although a missing label is not a number.
fn written(frames: &[Frame]) -> Vec<u8> {
    let disk = MemoryDisk::new();
    let mut log = open(&disk).unwrap();
    for frame in frames {
        log.append(frame).expect("what was read can be written");
        log.commit().unwrap();
    }
    disk.content(SEGMENT)
}

/// A log with something in every column, and one whose times need all their bits.
fn story() -> Vec<Frame> {
    let mut first = EdgeBatch::default();
    for i in 0..9_u32 {
        first.push_edge(NodeId(i % 3), NodeId(3 + i % 2), EventTime(1_700_000_000 + i64::from(i)));
        first.features.push(i as usize, &[0.5, -1.0][..i as usize % 3 % 2 * 2]);
        first.idempotency.push(u128::from(i) << 70);
    }
    first.op[4] = Op::Node;
    first.op[7] = Op::DeleteNode;
    first.edge_type[2] = 1;
    first.label[3] = 0.25;
    let source = |from| SourceRange {
        source: Arc::from("kafka:payments"),
        partition: 3,
        from,
        to: from + 9,
        mark: Some(SourceMark { offset: from + 7, hash: u64::MAX - 5 }),
    };
    let new_keys = vec![NodeKey::Int(-7), "käse".into(), "".into(), NodeKey::Int(i64::MAX), "b".into()];
    let (types, sources) = (vec!["pays".into()], vec![source(0)]);
    let mut second = EdgeBatch { first: EdgeId(9), ..EdgeBatch::default() };
    second.push_edge(NodeId(0), NodeId(1), EventTime(i64::MIN));
    second.push_edge(NodeId(1), NodeId(1), EventTime(i64::MAX));
    second.op[1] = Op::DeleteEdge;
    let nothing = EdgeBatch { first: EdgeId(11), ..EdgeBatch::default() };
    vec![
        Frame { batch: first, new_keys, new_types: types, sources, origin_unix_ms: 1_700_000_000_000 },
        Frame { batch: second, origin_unix_ms: -1, ..Frame::default() },
        Frame { batch: nothing, sources: vec![source(9)], ..Frame::default() },
    ]
}

#[test]
fn the_samples_of_the_log_and_of_checkpoints_are_what_is_written() {
    let samples = [
        ("log", "good-story.log", written(&story())),
        ("log", "good-empty.log", Vec::new()),
        ("checkpoint", "good-tgn.checkpoint", sealed(&learned())),
    ];
    for (decoder, name, bytes) in samples {
        let path = folder(decoder).join(name);
        if std::env::var_os("UPDATE").is_some() {
            std::fs::create_dir_all(folder(decoder)).unwrap();
            std::fs::write(&path, &bytes).unwrap();
        }
        let found = std::fs::read(&path).unwrap();
        assert!(
            found == bytes,
            "{decoder} is written in another form; if that is meant, run this with UPDATE=1"
        );
    }
}

#[test]
fn a_segment_gives_its_own_frames_or_an_error_and_never_others() {
    let whole = written(&story());
    let story_bytes: Vec<Vec<u8>> = (0..=story().len()).map(|count| written(&story()[..count])).collect();
    Corpus::read("log", &["EVGF"]).check(1, |bytes| {
        let disk = disk(bytes);
        let Some(mut log) = opened(&disk) else { return false };
        let (given, error) = frames(&log);
        error.iter().for_each(hold_error);
        let given = written(&given);
        // Frames may come from two samples that were joined: then they are whole frames of the story, too.
        assert!(story_bytes.contains(&given), "{} bytes of frames that were never written", given.len());
        if error.is_none() {
            let mut batch = EdgeBatch { first: log.end(), ..EdgeBatch::default() };
            batch.push_edge(NodeId(0), NodeId(1), EventTime(5));
            log.append(&Frame { batch, ..Frame::default() }).unwrap();
            log.commit().expect("a log that opens can be written");
        }
        error.is_none() && (given == whole || bytes.is_empty())
    });
}

/// A segment whose frame number `frame` was damaged, with checksums that fit.
fn forged(whole: &[u8], frame: usize, corpus: &Corpus, dice: &mut Dice) -> Vec<u8> {
    let mut at = 0;
    let length = |at: usize| u32::from_le_bytes(whole[at + 20..at + 24].try_into().unwrap()) as usize;
    (0..frame).for_each(|_| at += HEADER_BYTES + length(at));
    let end = at + HEADER_BYTES + length(at);
    let (mut header, mut payload) =
        (whole[at..at + HEADER_BYTES].to_vec(), whole[at + HEADER_BYTES..end].to_vec());
    if dice.below(3) > 0 {
        corpus.damage(dice, &mut payload);
        header[20..24].copy_from_slice(&(payload.len() as u32).to_le_bytes());
    } else {
        // Which columns there are, the first position, the number of records, where the commit began.
        let (from, bytes) = [(6, 2), (8, 8), (16, 4), (24, 8)][dice.below(4)];
        let word = if dice.below(2) == 0 { dice.word() % 600 } else { WORDS[dice.below(WORDS.len())] };
        header[from..from + bytes].copy_from_slice(&word.to_le_bytes()[..bytes]);
    }
    header[40..44].copy_from_slice(&crc32c::crc32c(&payload).to_le_bytes());
    let sum = crc32c::crc32c(&header[..44]);
    header[44..48].copy_from_slice(&sum.to_le_bytes());
    [&whole[..at], &header, &payload, &whole[end..]].concat()
}

#[test]
fn a_forged_frame_is_refused_by_its_place_or_holds_together() {
    let (whole, corpus) = (written(&story()), Corpus::read("log", &["EVGF", "\0\0\0\0", "\u{1}"]));
    let cases = super::setting("EVERGRAPH_FUZZ_CASES", super::CASES);
    let (mut taken, mut refused) = (0, 0);
    for case in 0..cases {
        let mut dice = Dice::of("forged frame", case);
        let bytes = forged(&whole, dice.below(3), &corpus, &mut dice);
        let run = || -> bool {
            let Some(log) = opened(&disk(&bytes)) else { return false };
            let (given, error) = frames(&log);
            error.iter().for_each(hold_error);
            for frame in &given {
                let n = frame.batch.len();
                let columns = [frame.batch.src.len(), frame.batch.dst.len(), frame.batch.time.len()];
                assert!(columns.iter().all(|&length| length == n), "{columns:?} of {n}");
                (0..n).for_each(|i| drop(frame.batch.features.row(i).to_vec()));
            }
            let again = written(&given);
            assert_eq!(written(&frames(&open(&disk(&again)).unwrap()).0), again, "what was taken comes back");
            error.is_none()
        };
        let outcome = catch_unwind(AssertUnwindSafe(run));
        let outcome = outcome.unwrap_or_else(|_| panic!("a forged frame: case {case}, {bytes:?}"));
        if outcome { taken += 1 } else { refused += 1 }
    }
    eprintln!("forged frames: {taken} taken, {refused} refused");
    assert!(taken > 0 && refused > 0);
}

const GATE: GateOptions = GateOptions {
    before_promotion: BeforePromotion::Baseline,
    every_batches: 1,
    window_batches: 1,
    promote_seconds: 0,
    confidence: 0.95,
    edgebank_tolerance: 0.02,
    rollback_windows: 3,
};

fn options() -> TrainerOptions {
    let model = TgnOptions {
        memory_dim: 3,
        time_dim: 2,
        embedding_dim: 2,
        heads: 1,
        fanout: 2,
        node_feature_dim: 3,
        edge_feature_dim: 2,
        dropout: 0.0,
        ..TgnOptions::default()
    };
    TrainerOptions { model: model.into(), learning_rate: 1e-3, seed: 5, ..TrainerOptions::default() }
}

static STREAM: LazyLock<Stream> = LazyLock::new(|| Stream::new(3));

/// Empty stores of the stream's shape.
fn stores() -> Stores {
    Stores::new(GraphStore::new(GraphOptions::default()), FeatureStore::new(2), FeatureStore::new(3))
}

/// What a learner has that has learned a little, whose gate has promoted it.
fn learned() -> Vec<u8> {
    let mut trainer = Trainer::new(options(), &Device::Cpu).unwrap();
    (0..2).for_each(|batch| drop(STREAM.step(&mut trainer, batch, Sight::BeforeBatch, StepMode::Train)));
    let mut gate = Gate::new(GATE);
    gate.promote(trainer.weights().unwrap(), 7);
    let stream = StreamState::new(&stores(), 0);
    stream.received.observe(&[3, 70_000, 3].map(NodeId), &[1, 1, 2]);
    saved(&Learned { trainer, gate: Some(gate), stream: Some(stream), position: EdgeId(40) })
}

fn saved(learned: &Learned) -> Vec<u8> {
    let mut bytes = Vec::new();
    learned.save(&mut bytes).unwrap();
    bytes
}

/// The files of a checkpoint with this payload, one behind the other: the length of the first, the list, its pages.
fn sealed(payload: &[u8]) -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    let head = CheckpointHead { position: EdgeId(40), history: 7, model_version: 2, began_unix_ms: 5 };
    let save = |sink: &mut Sink<'_>| std::io::Write::write_all(sink, payload);
    let file = checkpoint::write(folder.path(), head, Pace::unlimited(), save).unwrap();
    let read = |name: &str| std::fs::read(folder.path().join(name)).unwrap();
    let list = read(&file.name);
    let pages = file.pages.first().map(|name| read(name)).unwrap_or_default();
    [&(list.len() as u32).to_le_bytes()[..], &list, &pages].concat()
}

/// A folder with the files that [`sealed`] put together.
fn unsealed(bytes: &[u8]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let (length, rest) = bytes.split_at(bytes.len().min(4));
    let length = length.iter().rev().fold(0, |length, &byte| length << 8 | usize::from(byte));
    let (list, pages) = rest.split_at(length.min(rest.len()));
    let name = checkpoint::name(EdgeId(40));
    std::fs::write(folder.path().join(&name), list).unwrap();
    if !pages.is_empty() {
        let pages_name = name.replace(SUFFIX, &format!(".0{PAGES_SUFFIX}"));
        std::fs::write(folder.path().join(pages_name), pages).unwrap();
    }
    folder
}

/// Opens a checkpoint with this content, as the daemon does; whether it could be gone on from.
fn restored(bytes: &[u8]) -> Result<Vec<u8>, String> {
    let folder = unsealed(bytes);
    let mut found = open_checkpoint(folder.path())?;
    let (settings, stores) = ((options(), Some(GATE)), stores());
    let around = Around { stores: &stores, pairs_max: 0, log_is_whole: true };
    let learned = Learned::load(found.file.head.position, settings, &Device::Cpu, around, &mut found.payload);
    let mut learned = learned.map_err(|error| error.to_string())?;
    let again = saved(&learned);
    // What was taken can be worked with; its numbers may be no numbers, which a step refuses.
    let _ = STREAM.try_step(&mut learned.trainer, 2, Sight::BeforeBatch, StepMode::Train);
    Ok(again)
}

fn open_checkpoint(folder: &Path) -> Result<checkpoint::Checkpoint, String> {
    let path = folder.join(checkpoint::name(EdgeId(40)));
    checkpoint::open(&path).map_err(|error| {
        let said = error.to_string();
        assert!(said.contains(path.to_str().unwrap()), "{said}");
        said
    })
}

#[test]
fn a_checkpoint_is_what_was_written_or_is_refused() {
    let whole = sealed(&learned());
    Corpus::read("checkpoint", &["EVGCKPT5", "EVGTRNR2", "EVGTGNS7"]).check(2, |bytes| {
        match restored(bytes) {
            Ok(again) => {
                assert!(bytes == whole && again == learned(), "another checkpoint was taken");
                true
            }
            Err(said) => {
                assert!(!said.is_empty());
                false
            }
        }
    });
}

#[test]
fn a_forged_checkpoint_is_refused_or_can_be_worked_with() {
    let (payload, corpus) =
        (learned(), Corpus::read("checkpoint", &["F32", "\"shape\":[0]", "data_offsets", "}"]));
    let cases = (super::setting("EVERGRAPH_FUZZ_CASES", super::CASES) / 2).max(20);
    let (mut taken, mut refused) = (0, 0);
    for case in 0..cases {
        let mut dice = Dice::of("forged checkpoint", case);
        let mut forged = payload.clone();
        (0..1 + dice.below(2)).for_each(|_| corpus.damage(&mut dice, &mut forged));
        let outcome = catch_unwind(AssertUnwindSafe(|| restored(&sealed(&forged))));
        match outcome.unwrap_or_else(|_| panic!("a forged checkpoint: case {case}")) {
            Ok(_) => taken += 1,
            Err(said) => {
                refused += 1;
                assert!(said.len() < 500, "the payload is repeated: {} bytes", said.len());
            }
        }
    }
    eprintln!("forged checkpoints: {taken} taken, {refused} refused");
    assert!(taken > 0 && refused > 0);
}

#[test]
fn a_payload_says_itself_where_it_ends() {
    let folder = unsealed(&sealed(&learned()));
    let mut found = open_checkpoint(folder.path()).unwrap();
    let mut bytes = Vec::new();
    found.payload.read_to_end(&mut bytes).unwrap();
    assert!(bytes == learned());
    for cut in (0..bytes.len()).step_by(97) {
        let said = restored(&sealed(&bytes[..cut]));
        // A gate that was not saved is one before its first promotion.
        assert!(said.is_err() || cut + 1 >= bytes.len() || is_without_gate(&bytes, cut), "cut at {cut}");
    }
}

fn is_without_gate(bytes: &[u8], cut: usize) -> bool {
    let mut rest = bytes;
    Trainer::load(options(), &Device::Cpu, &mut rest).unwrap();
    cut == bytes.len() - rest.len()
}
