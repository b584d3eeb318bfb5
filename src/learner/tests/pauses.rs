//! Checkpoints that are written while the learner goes on.

use std::io::Read;
use std::time::{Duration, Instant};

use super::*;
use crate::device::disk::{Pace, WriteRate};
use crate::event::EventTime;
use crate::learner::checkpoint;
use crate::model::{ModelState, TgnOptions};

#[test]
fn a_checkpoint_holds_what_was_learned_when_it_was_captured_and_learning_goes_on_beside_it() {
    let mut rig = Rig::new();
    rig.append_edges(40, 100);
    let mut learner = rig.learner(rig.options());
    learner.drain();
    let (mark, position, before) = (learner.feed.mark(), learner.learned, learner.to_bytes());
    let captured = learner.capture(&mark).unwrap();
    let requested = rig.shared.status.requests.submit(WantedCheckpoint::Any).unwrap();
    learner.checkpoint_if_due(&LearnBatch::default());
    // Everything changes: rows, messages, pairs, destinations; a node goes.
    rig.append_edges(40, 300);
    let mut batch = EdgeBatch::default();
    record(&mut batch, Op::DeleteNode, 3);
    rig.append(batch, STARTED);
    learner.drain();
    assert_ne!(learner.to_bytes(), before);
    let mut bytes = Vec::new();
    captured.write(&mut bytes).unwrap();
    assert!(bytes == before, "the capture stays as it was");
    let begun = Instant::now();
    let durable = loop {
        learner.checkpoint_if_due(&LearnBatch::default());
        if let Ok(durable) = requested.try_recv() {
            break durable.unwrap();
        }
        assert!(begun.elapsed() < Duration::from_secs(60));
    };
    assert_eq!((durable.position, learner.checkpointed), (position, Some(position)));
    let mut found = checkpoint::open(&rig.folder.path().join(&durable.name)).unwrap();
    let mut bytes = Vec::new();
    found.payload.read_to_end(&mut bytes).unwrap();
    assert!(bytes == before, "the file is the capture");

    // One that comes while another is written gets the next, which has all.
    learner.checkpoint_due = Instant::now();
    learner.checkpoint_if_due(&LearnBatch::default());
    let later = rig.shared.status.requests.submit(WantedCheckpoint::Any).unwrap();
    learner.checkpoint_at_end(&LearnBatch::default(), &|| ());
    assert_eq!(later.try_recv().unwrap().unwrap().position, learner.learned);
    assert!(rig.folder.path().join(checkpoint::name(learner.learned)).is_file());
}

#[test]
fn a_checkpoint_keeps_to_its_rate_until_the_loop_waits_for_it() {
    let mut rig = Rig::new();
    rig.append_edges(40, 100);
    let options = LearnerOptions { write_rate: Arc::new(WriteRate::new(1)), ..rig.options() };
    let (mut learner, begun) = (rig.learner(options), Instant::now());
    learner.drain();
    learner.checkpoint_due = Instant::now();
    learner.checkpoint_if_due(&LearnBatch::default());
    std::thread::sleep(Duration::from_millis(300));
    learner.checkpoint_if_due(&LearnBatch::default());
    assert_eq!(learner.checkpointed, None, "a byte a second");
    learner.checkpoint_at_end(&LearnBatch::default(), &|| ());
    assert_eq!(learner.checkpointed, Some(learner.learned));
    assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", begun.elapsed());
}

#[test]
fn one_that_an_operator_wants_in_full_is_not_held_up_by_the_rate() {
    let mut rig = Rig::new();
    rig.append_edges(40, 100);
    let options = LearnerOptions { write_rate: Arc::new(WriteRate::new(1)), ..rig.options() };
    let (mut learner, begun) = (rig.learner(options), Instant::now());
    learner.drain();
    let requested = rig.shared.status.requests.submit(WantedCheckpoint::Full).unwrap();
    while requested.is_empty() {
        learner.checkpoint_if_due(&LearnBatch::default());
        assert!(begun.elapsed() < Duration::from_secs(60), "a byte a second");
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(requested.try_recv().unwrap().unwrap().position, learner.learned);
}

#[test]
fn after_a_thread_that_ended_without_an_outcome_checkpoints_are_written_again() {
    let mut rig = Rig::new();
    rig.append_edges(40, 100);
    let mut learner = rig.learner(rig.options());
    learner.drain();
    let requested = rig.shared.status.requests.submit(WantedCheckpoint::Any).unwrap();
    learner.checkpoint_if_due(&LearnBatch::default());
    let writing = learner.writing.as_mut().unwrap();
    writing.outcome.recv().unwrap().0.unwrap();
    writing.outcome = crossbeam_channel::bounded(0).1;
    learner.checkpoint_due = Instant::now() + Duration::from_secs(3_600);
    learner.checkpoint_if_due(&LearnBatch::default());
    assert!(requested.try_recv().unwrap().is_err() && learner.writing.is_none());
    learner.checkpoint_at_end(&LearnBatch::default(), &|| ());
    assert_eq!(learner.checkpointed, Some(learner.learned));
}

#[test]
fn a_learner_goes_on_bit_for_bit_from_a_checkpoint_that_refers_to_earlier_ones() {
    let mut rig = Rig::new();
    let mut learner = rig.learner(rig.options());
    for round in 0..3 {
        rig.append_edges(40, 100 * (round + 1));
        learner.drain();
        learner.checkpoint_at_end(&LearnBatch::default(), &|| ());
        let path = rig.folder.path().join(checkpoint::name(learner.learned));
        let mut found = checkpoint::open(&path).unwrap();
        let mut bytes = Vec::new();
        found.payload.read_to_end(&mut bytes).unwrap();
        assert!(bytes == learner.to_bytes(), "{round}");
    }
    // One in full was asked for, and is written although nothing was learned since.
    let requested = rig.shared.status.requests.submit(WantedCheckpoint::Full).unwrap();
    learner.checkpoint_at_end(&LearnBatch::default(), &|| ());
    requested.try_recv().unwrap().unwrap();
    let found = checkpoint::open(&rig.folder.path().join(checkpoint::name(learner.learned))).unwrap();
    assert_eq!(found.file.pages.len(), 1);
}

/// A state of `nodes` nodes with memory and messages as wide as the defaults, no two rows alike.
fn filled(nodes: u32) -> ModelState {
    let needs = TgnOptions::default().needs();
    let (mut state, mut row) = (ModelState::new(&needs), vec![0.5; needs.memory_dim]);
    for node in 0..nodes {
        let (id, time) = (NodeId(node), EventTime(i64::from(node)));
        row[0] = node as f32;
        state.memory.write(id, &row, time);
        let message = state.mailbox.post(id, NodeId(node / 2), EdgeId(u64::from(node)), time);
        message.fill(0.25);
        message[0] = node as f32;
    }
    state
}

/// Of `NODES` nodes, 200,000 by default, one of 20,000 has an event.
#[test]
fn a_checkpoint_after_few_events_writes_a_twentieth_of_a_full_one_at_most() {
    let nodes: u32 = std::env::var("NODES").ok().and_then(|nodes| nodes.parse().ok()).unwrap_or(200_000);
    let (folder, mut state) = (tempfile::tempdir().unwrap(), filled(nodes));
    let mut writer = checkpoint::CheckpointWriter::new(folder.path(), 30);
    let mut write = |state: &ModelState, position| {
        let begun = Instant::now();
        let head = CheckpointHead { position: EdgeId(position), ..CheckpointHead::default() };
        let file = writer.write(head, false, Pace::unlimited(), |sink| state.write(sink)).unwrap();
        println!(
            "{nodes} nodes: {} of {} bytes written in {:?}",
            writer.written(),
            file.bytes,
            begun.elapsed()
        );
        (file, writer.written())
    };
    let (_, all) = write(&state, 1);
    for node in (0..nodes).step_by(20_000) {
        let row = vec![0.75; state.memory.dimension()];
        state.memory.write(NodeId(node), &row, EventTime(1));
        state.mailbox.post(NodeId(node), NodeId(0), EdgeId(0), EventTime(1)).fill(0.5);
    }
    let (file, changed) = write(&state, 2);
    assert!(changed * 20 <= all, "{changed} of {all}");
    let (mut expected, mut found) = (Vec::new(), Vec::new());
    state.write(&mut expected).unwrap();
    let mut read = checkpoint::open(&folder.path().join(file.name)).unwrap();
    read.payload.read_to_end(&mut found).unwrap();
    assert!(found == expected);
}

/// Of `NODES` nodes, 500,000 by default, with memory and messages as wide as the defaults.
#[test]
fn capturing_pauses_learning_for_a_fraction_of_what_writing_takes() {
    let nodes: u32 = std::env::var("NODES").ok().and_then(|nodes| nodes.parse().ok()).unwrap_or(500_000);
    let mut state = filled(nodes);
    let row = vec![0.5; state.memory.dimension()];
    let begun = Instant::now();
    let copy = state.clone();
    let captured = begun.elapsed();
    // What a step of 600 seeds changes while the copy is there.
    let begun = Instant::now();
    for i in 0..600 {
        let id = NodeId((i * 7919) % nodes);
        state.memory.write(id, &row, EventTime(1));
        state.mailbox.post(id, NodeId(0), EdgeId(0), EventTime(1)).fill(0.5);
    }
    let step = begun.elapsed();
    let begun = Instant::now();
    copy.write(&mut std::io::sink()).unwrap();
    let written = begun.elapsed();
    println!(
        "{nodes} nodes, {} MB: captured in {captured:?}, written in {written:?}; a step copies for {step:?}",
        state.bytes() >> 20
    );
    assert!(captured < Duration::from_millis(250), "{captured:?}");
}
