//! Operators' decisions about the learned state of a stopped daemon: promote a version of the weights, roll back to the
//! previous one, or restore a checkpoint. The gate promotes and rolls back by itself (see `learner::gate`); decisions
//! made here involve no metrics, and the gate continues from them when the daemon starts.
//!
//! ```text
//! promote V    V is published, the published version becomes the previous one; the candidate is unchanged
//! roll back    the previous version is published again, and the candidate continues from it
//! restore C    the checkpoint C becomes the newest, later ones are renamed
//! ```
//! The newest checkpoint is replaced atomically, and the catalog records the decision. The available versions are those
//! in the checkpoints: each holds its candidate, the published and the previous version, and the anchor. The decision
//! does not bind the gate: a candidate that is not behind is promoted with the next verdict. No decision changes node
//! memory.

use anyhow::{Context, Result, bail, ensure};

use super::checkpoints::Restored;
use super::learning::{hold_stream, restore};
use super::stopped::open_stopped;
use super::{Store, unix_ms};
use crate::catalog::DecisionRow;
use crate::config::Config;
use crate::device::Device;
use crate::learner::checkpoint::{self, Checkpoint, CheckpointHead};
use crate::learner::{Decision, Gate, Learned, NO_GATE, Verdict};
use crate::log::LogReaders;
use crate::model::Weights;

/// Publishes a version of the weights. Returns the recorded decision.
///
/// # Errors
/// When a daemon runs on the data directory, nothing was learned there yet, the gate is disabled, the
/// version is served already or is in no checkpoint, or files cannot be read or written.
pub fn promote(config: &Config, version: u64) -> Result<DecisionRow> {
    decide(config, Verdict::Promoted, |Learned { trainer, gate, .. }, older| {
        let gate = gate.as_mut().context(NO_GATE)?;
        let served = gate.published().map(|weights| weights.version);
        ensure!(served != Some(version), "version {version} is served already");
        let mut known = vec![trainer.weights()?];
        known.extend([gate.published(), gate.kept(), gate.anchor()].into_iter().flatten().cloned());
        let found = known.iter().find(|weights| weights.version == version).cloned();
        let found = match found {
            Some(found) => found,
            None => {
                let there = older()?;
                known.extend(there);
                let found = known.iter().find(|weights| weights.version == version).cloned();
                found.with_context(|| {
                    let mut versions: Vec<u64> = known.iter().map(|weights| weights.version).collect();
                    versions.sort_unstable_by(|a, b| b.cmp(a));
                    versions.dedup();
                    format!("version {version} is in no checkpoint; there are {versions:?}")
                })?
            }
        };
        gate.promote(found, now());
        Ok(())
    })
}

/// Publishes the previous version again, and has the candidate continue from it. Returns the recorded decision.
///
/// # Errors
/// As [`promote`], or when there is no previous version.
pub fn roll_back(config: &Config) -> Result<DecisionRow> {
    decide(config, Verdict::RolledBack, |Learned { trainer, gate, .. }, _| {
        let gate = gate.as_mut().context(NO_GATE)?;
        ensure!(gate.kept().is_some(), "there is no previous version to roll back to");
        gate.roll_back(trainer, now()).context("the candidate cannot continue from the previous version")
    })
}

/// Makes the next start continue from a checkpoint and learn the log after it again. Returns the checkpoint and how
/// many records of the log follow it.
///
/// # Errors
/// When a daemon runs on the data directory, there is no such checkpoint, it is damaged, was learned from another log
/// or does not fit the settings.
pub fn restore_checkpoint(config: &Config, name: &str) -> Result<(Restored, u64)> {
    let store = open_stopped(config)?;
    let (checkpoints, log) = (&store.checkpoints, store.log.readers());
    let restored = checkpoints.restore(&log, name, |found| open(config, &store, found).map(drop))?;
    // What follows the restored checkpoint counts as history, so that lag skips none of its steps.
    let mut found = checkpoint::open(&checkpoints.dir().join(&restored.name))?;
    let head = CheckpointHead { began_unix_ms: unix_ms(), ..found.file.head };
    checkpoints.replace(head, |sink| std::io::copy(&mut found.payload, sink).map(drop))?;
    let behind = log.durable_end().0.saturating_sub(restored.head.position.0);
    Ok((restored, behind))
}

/// Applies `change` to the newest checkpoint, writes it back and records the decision. `change` can load the versions
/// in the other checkpoints.
fn decide(
    config: &Config,
    verdict: Verdict,
    change: impl FnOnce(&mut Learned, &dyn Fn() -> Result<Vec<Weights>>) -> Result<()>,
) -> Result<DecisionRow> {
    let store = open_stopped(config)?;
    let (checkpoints, log) = (&store.checkpoints, store.log.readers());
    let Some(newest) = checkpoints.newest(&log)? else {
        bail!("no checkpoint in {}: nothing was learned yet", checkpoints.dir().display())
    };
    let mut head = newest.file.head;
    let mut learned = open(config, &store, newest)?;
    let versions = |learned: &Learned| learned.gate.as_ref().map(Gate::versions).unwrap_or_default();
    let before = versions(&learned);
    change(&mut learned, &|| older_versions(config, &store, &log))?;
    let served = versions(&learned).published.unwrap_or_default();
    head.model_version = served;
    checkpoints.replace(head, |sink| learned.save(sink))?;
    let candidate = if verdict == Verdict::Promoted { served } else { learned.trainer.steps() };
    let position = head.position.0;
    checkpoints.record_decision(&Decision { verdict, figures: None, candidate, versions: before, position })
}

/// Seconds since the Unix epoch.
fn now() -> u64 {
    u64::try_from(unix_ms() / 1000).unwrap_or_default()
}

fn open(config: &Config, store: &Store, found: Checkpoint) -> Result<Learned> {
    let path = store.checkpoints.dir().join(&found.file.name);
    let restored = restore(config, store, &Device::Cpu, found).map_err(anyhow::Error::from);
    let held =
        restored.and_then(|learned| hold_stream(&learned, store.log.readers().first()).map(|()| learned));
    held.with_context(|| {
        format!("{} cannot be used; pass the settings that the daemon runs with", path.display())
    })
}

/// The weights in all checkpoints that were learned from this log and fit the settings.
fn older_versions(config: &Config, store: &Store, log: &LogReaders) -> Result<Vec<Weights>> {
    let mut versions = Vec::new();
    for found in store.checkpoints.all(log)? {
        let learned = open(config, store, found)?;
        versions.push(learned.trainer.weights()?);
        if let Some(gate) = learned.gate {
            versions.extend([gate.published(), gate.kept(), gate.anchor()].into_iter().flatten().cloned());
        }
    }
    Ok(versions)
}
