//! The loop on a disk in memory: what it answers, and what is in the log and the index after it.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, bounded, unbounded};

use super::*;
use crate::event::{EdgeEvent, Event, EventBatch, Incoming, NodeKey};
use crate::graph::{GraphOptions, GraphStore};
use crate::log::LogOptions;
use crate::log::faulty::MemoryDisk;

type Answer = Result<Receipt, SubmitError>;

fn appender(disk: &MemoryDisk) -> Appender {
    let options = LogOptions { dir: "log".into(), segment_bytes: 1 << 20 };
    let (log, _) = Log::open_with(options, disk.storage()).unwrap();
    let graph = GraphOptions { shards: 2, page_entries_max: 8 };
    let mut index = Index::new(GraphStore::new(graph), 0, 0, 100);
    replay(&log, &mut index, |_| {}).unwrap();
    let options = AppenderOptions { commit_events_max: 1_000, allowed_lateness: 0 };
    Appender::new(log, index, Arc::new(Progress::new()), Arc::default(), Metrics::new(), options)
}

fn edge(src: &str, dst: &str, time: i64) -> Incoming {
    Incoming::new(Event::Edge(EdgeEvent {
        src: NodeKey::from_text(src),
        dst: NodeKey::from_text(dst),
        time: EventTime(time),
        edge_type: None,
        features: Vec::new(),
        label: None,
    }))
}

fn batch(events: Vec<Incoming>) -> EventBatch {
    EventBatch { events, ..EventBatch::default() }
}

fn submission(batch: EventBatch, answers: &Sender<Answer>) -> Submission {
    let answers = answers.clone();
    Submission { batch, reply: Some(Box::new(move |answer| drop(answers.send(answer)))) }
}

#[test]
fn a_stop_ends_the_loop_while_batches_keep_coming_and_every_batch_is_answered() {
    let (queue, waiting): (_, Receiver<Submission>) = bounded(8);
    let (sender, answers) = unbounded();
    let (stop, ended) = (AtomicBool::new(false), AtomicBool::new(false));
    let disk = MemoryDisk::new();
    let mut sent = 0;
    std::thread::scope(|scope| {
        let appender = appender(&disk);
        let running = scope.spawn(|| {
            appender.run(&waiting, &stop, || {});
            ended.store(true, Ordering::Release);
        });
        let started = Instant::now();
        while !ended.load(Ordering::Acquire) {
            assert!(started.elapsed() < Duration::from_secs(20), "the loop did not end");
            stop.store(started.elapsed() > Duration::from_millis(50), Ordering::Release);
            let next = submission(batch(vec![edge("a", "b", sent)]), &sender);
            if queue.send_timeout(next, Duration::from_millis(20)).is_ok() {
                sent += 1;
            }
        }
        running.join().unwrap();
    });
    // What was queued between the last answer and this line is answered when the queue goes.
    drop(RefuseTheRest(&waiting));
    drop(sender);
    let answers: Vec<Answer> = answers.iter().collect();
    assert_eq!(answers.len() as i64, sent);
    let stored = answers.iter().filter(|answer| answer.is_ok()).count() as u64;
    assert!(stored > 0);
    let refused = answers.iter().filter(|answer| **answer == Err(SubmitError::ShuttingDown)).count() as u64;
    assert_eq!(stored + refused, sent.cast_unsigned());
    assert_eq!(appender(&disk).log.end(), EdgeId(stored), "what was acknowledged is in the log");
}
