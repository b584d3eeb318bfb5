//! What a start makes of the learner: what it goes on from, and the loop itself.

use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::checkpoint_keeping::Keeping;
use super::training::TrainingPause;
use super::{Interrupted, Parts, Starting, Store, beginning, device_selection, unix_ms};
use crate::config::{Config, StartPolicy};
use crate::device::Device;
use crate::event::EdgeId;
use crate::learner::checkpoint::Checkpoint;
use crate::learner::{Around, Learned, Learner, LearnerOptions, Recorders, Shared};
use crate::train::{LoadError, Trainer};

/// What the learner goes on from: the checkpoint that was found, or nothing.
pub(super) fn open_learned(
    config: &Config,
    store: &Store,
    found: Option<Checkpoint>,
    device: &Device,
) -> Result<Learned> {
    let first = store.log.readers().first();
    let Some(found) = found else { return beginning::learned(config, store, device) };
    let path = store.checkpoints.dir().join(&found.file.name);
    let learned = restore(config, store, device, found).with_context(|| {
        let path = path.display();
        format!("{path} cannot be used; set [model] and [stream] back, or use another data.dir")
    })?;
    hold_stream(&learned, first)?;
    let (position, steps) = (learned.position.0, learned.trainer.steps());
    tracing::info!(position, steps, "restored the learned state");
    Ok(learned)
}

/// An error if a learner would have to read what was cut off the log, which begins at `first`.
pub(super) fn hold_stream(learned: &Learned, first: EdgeId) -> Result<()> {
    ensure!(
        learned.stream.is_some() || first == EdgeId(0),
        "what the learner knows of the stream would have to be read from the log again, because graph.retention, \
         learner.pairs_max or stream.node_feature_dimension was changed, but the log was cut: set them back, or use \
         another data.dir"
    );
    Ok(())
}

/// Gives a trainer what it may use of a GPU's memory, and of main memory for it.
pub(super) fn use_device_memory(config: &Config, trainer: &mut Trainer) {
    trainer.cache_rows(config.device.row_cache_bytes);
    trainer.read_rows_in_place(config.device.row_host_bytes);
    trainer.sample_on_device(config.sampler_options());
}

pub(super) fn open_learner(
    config: &Config,
    store: &Store,
    (mut learned, began_unix_ms): (Learned, i64),
    parts: &Parts,
    starting: &Starting<'_>,
) -> Result<Learner> {
    let learner = &config.learner;
    use_device_memory(config, &mut learned.trainer);
    let paused = TrainingPause::of(&parts.catalog.lock())?;
    if let Some(TrainingPause { by, .. }) = &paused {
        tracing::warn!(by, "training stays paused by an operator");
    }
    let options = LearnerOptions {
        clock: || u64::try_from(unix_ms() / 1000).unwrap_or_default(),
        train: learner.train && paused.is_none(),
        train_history: learner.start != StartPolicy::Remember,
        batch_events: learner.batch_events,
        batch_wait: Duration::from_millis(learner.batch_wait_ms),
        lag_events_max: learner.lag_events_max,
        lag_target: Duration::from_millis(learner.lag_target_ms),
        share_min: learner.share_min,
        score_all: config.anomalies.score_all,
        began_unix_ms,
        quality_window_batches: learner.quality_window_batches,
        rank_queries: learner.rank_queries_per_batch,
        rank_candidates: learner.rank_candidates,
        pairs_max: learner.pairs_max,
        replay: config.replay_options(),
        met_share: config.met_share(),
        seed: learner.seed,
        threads: learner.threads,
        nice: u8::try_from(learner.nice).unwrap_or(19),
        checkpoint_dir: store.checkpoints.dir().to_path_buf(),
        checkpoint_interval: Duration::from_secs(config.checkpoint.interval_seconds),
        checkpoint_full_every: config.checkpoint.full_every,
        write_rate: parts.snapshot_settings.rate.clone(),
    };
    let shared = Shared {
        engine: parts.engine.clone(),
        progress: parts.progress.clone(),
        status: parts.learner.clone(),
        metrics: parts.metrics.clone(),
    };
    parts.progress.set_durable(store.log.durable_end());
    parts.progress.set_indexed(store.index.end());
    let (health, metrics) = (parts.health.clone(), parts.metrics.clone());
    let device_lost = Box::new(move |why: &str| device_selection::report_loss(&health, &metrics, why));
    let recorders = Recorders { device_lost, ..store.checkpoints.recorders(Keeping::of(config)) };
    let proceed = starting.proceed("reading the log up to the checkpoint", learned.position);
    let log = store.log.readers();
    let learner = Learner::new(learned, log, shared, options, recorders, proceed)?;
    learner.ok_or_else(|| Interrupted.into())
}

/// What a checkpoint holds, for a learner with these settings.
pub(super) fn restore(
    config: &Config,
    store: &Store,
    device: &Device,
    mut found: Checkpoint,
) -> Result<Learned, LoadError> {
    let options = (config.trainer_options(), config.gate_options());
    let log_is_whole = store.log.readers().first() == EdgeId(0);
    let around = Around { stores: &store.index.stores, pairs_max: config.learner.pairs_max, log_is_whole };
    Learned::load(found.file.head.position, options, device, around, &mut found.payload)
}
