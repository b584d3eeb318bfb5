//! A GPU that fails.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use crate::device::cuda::{Cuda, CudaWork, Simulator};

/// A GPU that computes wrong results for so many calls and then fails.
struct Failing(AtomicUsize);

impl Failing {
    fn turn(&self) -> Result<(), String> {
        let before = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
        before.map(drop).map_err(|_| "fell off the bus".to_owned())
    }
}

impl Simulator for Failing {
    fn allocate(&self, _bytes: usize) -> Result<u64, String> {
        self.turn().map(|()| 1 << 20)
    }

    fn free(&self, _address: u64) -> Result<(), String> {
        self.turn()
    }

    fn fill(&self, _address: u64, _byte: u8, _bytes: usize) -> Result<(), String> {
        self.turn()
    }

    fn write(&self, _address: u64, _bytes: &[u8]) -> Result<(), String> {
        self.turn()
    }

    fn read(&self, _address: u64, bytes: &mut [u8]) -> Result<(), String> {
        bytes.fill(0);
        self.turn()
    }

    fn copy(&self, _from: u64, _to: u64, _bytes: usize) -> Result<(), String> {
        self.turn()
    }

    fn map(&self, _memory: BorrowedFd<'_>, _bytes: usize) -> Result<u64, String> {
        self.turn().map(|()| 1 << 40)
    }

    fn launch(&self, _kernel: &str, _blocks: u32, _threads: u32, _arguments: &[&[u8]]) -> Result<(), String> {
        self.turn()
    }
}

fn failing(calls: usize) -> Device {
    let cuda = Cuda::simulated(Arc::new(Failing(AtomicUsize::new(calls))), 1 << 30);
    Device::Cuda(CudaWork::new(cuda))
}

fn on_failing(calls: usize) -> Trainer {
    Trainer::new(trainer_options(), &failing(calls)).unwrap()
}

/// A trainer that has learned something, as it is saved.
fn learned() -> Vec<u8> {
    let mut rig = Rig::new();
    rig.append_edges(60, 10);
    let mut learner = rig.learner_at(trainer(), EdgeId(0), rig.options());
    learner.drain();
    let mut bytes = Vec::new();
    learner.trainer.save(&mut bytes).unwrap();
    bytes
}

/// What readers are shown after the learner has learned 60 events in batches of ten, and whether the GPU was left.
fn shown(trainer: Trainer) -> (Vec<f32>, Vec<Option<EventTime>>, u64, i64) {
    shown_of(trainer, 60, 10)
}

/// The same of so many events, in batches of so many.
fn shown_of(
    trainer: Trainer,
    events: u32,
    batch_events: usize,
) -> (Vec<f32>, Vec<Option<EventTime>>, u64, i64) {
    let mut rig = Rig::new();
    rig.append_edges(events, 100);
    let options = LearnerOptions { batch_events, ..rig.options() };
    let mut learner = rig.learner_at(trainer, EdgeId(0), options);
    learner.drain();
    let states = &rig.shared.engine.states;
    let nodes: Vec<NodeId> = (0..32).map(NodeId).collect();
    let mut rows = vec![0.0; nodes.len() * states.dimension()];
    states.gather(&nodes, 0..states.dimension(), &mut rows);
    let times = nodes.iter().map(|&node| states.updated(node)).collect();
    let positions = [rig.shared.progress.learned(), rig.shared.status.report().position];
    assert_eq!(positions, [rig.shared.progress.indexed(); 2], "readers have all of it");
    let applied = rig.shared.status.report().applied;
    (rows, times, applied, rig.shared.metrics.device.degraded.get())
}

#[test]
fn a_gpu_that_is_lost_from_the_start_changes_nothing_that_readers_see() {
    // Also where the CPU computes a batch in parts, which a sample for a GPU has not.
    for (events, batch) in [(60, 10), (900, 420)] {
        let shown = |trainer| shown_of(trainer, events, batch);
        let (rows, times, applied, degraded) = shown(trainer());
        assert_eq!((applied, degraded), (u64::from(events), 0));
        let there = shown(on_failing(0));
        assert_eq!((there.2, there.3), (applied, 1), "every event is applied once, and the loss is reported");
        assert_eq!(there.1, times);
        assert!(there.0 == rows, "the CPU went on from the same weights, in batches of {batch}");
    }
}

#[test]
fn a_gpu_that_is_lost_at_a_restart_leaves_what_was_restored() {
    let bytes = learned();
    let load = |device: &Device| Trainer::load(trainer_options(), device, &mut bytes.as_slice()).unwrap();
    let here = load(&Device::Cpu).weights().unwrap();
    let mut there = load(&failing(0));
    assert_eq!(there.leave_gpu().unwrap(), here.version);
    for ((name, one), (_, other)) in
        there.weights().unwrap().parameters().iter().zip(here.parameters().iter())
    {
        assert_eq!(one.data(), other.data(), "{name}");
    }
    let (rows, times, ..) = shown(load(&Device::Cpu));
    let there = shown(load(&failing(0)));
    assert_eq!((there.2, there.3, &there.1), (60, 1, &times));
    // The optimizer's history is what is lost.
    assert_eq!(there.0.len(), rows.len());
}

#[test]
fn a_gpu_that_fails_at_any_time_ends_nothing_and_loses_no_event() {
    let (_, times, ..) = shown(trainer());
    for calls in [1, 40, 150, 333, 700, 1_500, 4_000, 9_000] {
        let there = shown(on_failing(calls));
        assert_eq!((there.2, &there.1), (60, &times), "after {calls} calls");
    }
}
