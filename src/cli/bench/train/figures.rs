//! The figures of the training benchmark: by phase of a step, by part of memory, by epoch.

use serde::Serialize;

use super::super::Spread;
use crate::cli::device::{GpuFacts, GpuUse};
use crate::cli::output;
use crate::daemon::TierStatus;
use crate::train::PhaseSeconds;

#[derive(Serialize)]
pub struct Figures {
    pub model: String,
    /// The device that the model computed on.
    pub device: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu: Option<GpuFacts>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu_use: Option<GpuUse>,
    /// Of the CPU, if it trains.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub matmul_precision: Option<&'static str>,
    pub embedding_dimension: usize,
    pub events: usize,
    pub nodes: usize,
    pub epochs: u32,
    pub batch_events: u32,
    pub row_dimension: usize,
    pub events_per_second: f64,
    pub events_per_second_spread: Spread,
    /// Of the epoch with the median rate. Work concurrent with a step overlaps with it.
    pub phase_seconds: Phases,
    pub epoch_seconds: f64,
    /// Share of the epoch that the gate took; absent without one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gate_ratio: Option<f64>,
    /// Mean over the batches of the last epoch.
    pub loss: f64,
    /// In order; the first one also fills caches and buffers.
    pub each_epoch: Vec<Epoch>,
    /// Of all threads, over all epochs.
    pub cpu_seconds_per_million_events: Option<f64>,
    /// Energy of the GPU that trained, all of its board, likewise; absent where nothing counts it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu_joules_per_million_events: Option<f64>,
    pub peak_resident_bytes: u64,
    pub parts_bytes: Parts,
    pub rows_gathered: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub topology_spill: Option<TierStatus>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rows_spill: Option<TierStatus>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verified: Option<Verified>,
}

#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Phases {
    pub sample: f64,
    pub gather: f64,
    pub wait: f64,
    pub forward: f64,
    pub backward: f64,
    pub optimizer: f64,
    pub settle: f64,
    pub memory: f64,
    pub gate: f64,
    pub publish: f64,
}

impl Phases {
    pub fn add(&mut self, step: &PhaseSeconds, waited: f64) {
        self.sample += step.sample;
        self.gather += step.gather;
        self.wait += waited;
        self.forward += step.forward;
        self.backward += step.backward;
        self.optimizer += step.optimizer;
        self.settle += step.settle;
        self.memory += step.memory;
    }
}

/// Memory by purpose at the end, in bytes.
#[derive(Serialize)]
pub struct Parts {
    pub stream_columns: u64,
    pub graph: u64,
    pub edge_rows: u64,
    pub node_memory: u64,
    pub mailbox: u64,
    /// What is published to readers.
    pub published: u64,
    pub weights_and_optimizer: u64,
    pub tape: u64,
    pub prepared_batches: u64,
}

#[derive(Serialize)]
pub struct Verified {
    pub samples_digest: String,
    pub rows_digest: String,
    pub rows_wrong: u64,
}

/// The figures of one epoch.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Epoch {
    pub seconds: f64,
    #[serde(rename = "phase_seconds")]
    pub phases: Phases,
    pub loss: f64,
    #[serde(rename = "rows_gathered")]
    pub rows: u64,
}

impl Epoch {
    /// The one with the median time.
    pub fn middle(epochs: &[Self]) -> Self {
        let mut by_time = epochs.to_vec();
        by_time.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
        by_time.get(by_time.len() / 2).copied().unwrap_or_default()
    }
}

/// The headline figures.
pub fn print_summary(figures: &Figures) {
    let phases = figures.phase_seconds;
    output::print_status(&format!(
        "{:.0} events/s; peak {:.0} MiB; sample {:.1} s, gather {:.1} s, waited {:.1} s, forward {:.1} s, backward \
         {:.1} s, optimizer {:.1} s, settle {:.1} s, memory {:.1} s, gate {:.1} s, publish {:.1} s",
        figures.events_per_second,
        mebibytes(figures.peak_resident_bytes),
        phases.sample,
        phases.gather,
        phases.wait,
        phases.forward,
        phases.backward,
        phases.optimizer,
        phases.settle,
        phases.memory,
        phases.gate,
        phases.publish,
    ));
    if let Some(share) = figures.gate_ratio {
        output::print_status(&format!("the gate took {:.1} % of the time", 100.0 * share));
    }
    if let Some(verified) = &figures.verified {
        let Verified { samples_digest, rows_digest, rows_wrong } = verified;
        output::print_status(&format!(
            "samples {samples_digest}, rows {rows_digest}, {rows_wrong} rows wrong"
        ));
    }
}

#[allow(clippy::cast_precision_loss)] // for people
fn mebibytes(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}
