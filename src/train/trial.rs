//! How fast a device trains a model with batches of a size: some steps on a made-up stream, timed as a daemon takes
//! them, with the next batches prepared beside. What they learn is thrown away.
//!
//! Some nodes of the stream are frequent and most are not, so that samples, messages and rows are about as many as in a
//! real one. After each step the rows of its nodes are computed, as for readers. The later half of the steps counts:
//! buffers grow at first. A GPU should have one way to launch steps, since trials of others would count, too.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::lookahead::{Helper, Lookahead};
use super::trainer::{Negatives, Positives, StepMode, TrainError, Trainer, World};
use super::{PreparedBatch, Preparer};
use crate::device::rng;
use crate::event::{EdgeBatch, EdgeId, EventTime, NodeId};
use crate::feature::FeatureStore;
use crate::graph::{GraphOptions, GraphStore};

/// Most steps, of which a fast device takes all.
const STEPS_MAX: usize = 160;
/// Most events, and bytes of their feature rows, where the fewest steps need no more.
const EVENTS_MAX: usize = 400_000;
const ROW_BYTES_MAX: usize = 128 << 20;
/// Fewest steps, however slow.
const STEPS_MIN: usize = 4;
/// No step begins after so long.
const LIMIT: Duration = Duration::from_secs(2);

/// Nodes that events come from, and that they go to.
const NODES: [u32; 2] = [6_000, 1_000];
/// Separates these random numbers from others.
const STREAM: u64 = 0x7472_6961_6c00_0000;

/// Seconds that a step of the trainer takes with so many events a batch. The trainer is of no use afterwards.
///
/// # Errors
/// Those of its steps.
pub fn step_seconds(trainer: &mut Trainer, batch_events: usize) -> Result<f64, TrainError> {
    let needs = trainer.model().needs();
    let batch_events = batch_events.max(1);
    let events_max = EVENTS_MAX.min(ROW_BYTES_MAX / (needs.edge_row_dim * size_of::<f32>()).max(1));
    let steps = (events_max / batch_events).clamp(STEPS_MIN, STEPS_MAX);
    let stream = made_up(steps * batch_events);
    let (graph, rows) = (GraphStore::new(GraphOptions::default()), FeatureStore::new(needs.edge_row_dim));
    let row = vec![0.5; needs.edge_row_dim];
    for edge in 0..stream.len() as u64 {
        // A store in memory takes rows of its own width.
        let _ = rows.set(edge, &row);
    }
    // An empty graph takes edges of that few nodes.
    let _ = graph.apply(&stream);
    let sampler = trainer.device_sampler();
    sampler.iter().for_each(|sampler| sampler.open(&graph));
    let no_rows = FeatureStore::new(needs.node_feature_dim);
    let world = World {
        view: graph.view(),
        edge_features: &rows,
        node_features: &no_rows,
        sampler: sampler.as_ref(),
    };
    let (begun, over) = (Instant::now(), AtomicBool::new(false));
    let mut first = 0;
    let source = |preparer: &Preparer, batch: &mut PreparedBatch| {
        let range = first..stream.len().min(first + batch_events);
        if range.is_empty() || over.load(Ordering::Relaxed) {
            return Ok(false);
        }
        first = range.end;
        let edges: Vec<EdgeId> = range.clone().map(|event| EdgeId(event as u64)).collect();
        let against: Vec<NodeId> = range.clone().map(|event| node(1, event as u64 ^ STREAM)).collect();
        let (src, dst) = (&stream.src[range.clone()], &stream.dst[range.clone()]);
        let positives = Positives { src, dst, times: &stream.time[range], edges: &edges };
        preparer.sample(&world, &positives, &Negatives { src, dst: &against }, StepMode::Train, batch)?;
        Ok(true)
    };
    let step = |trainer: &mut Trainer, batch: &PreparedBatch, _: Option<&PreparedBatch>| {
        let report = trainer.step_prepared(batch)?;
        trainer.publish_prepared(trainer.model(), batch, |_, _, _| ())?;
        Ok(report)
    };
    let mut seconds = Vec::new();
    let mut lookahead = Lookahead::new(Helper::new()).publishing();
    lookahead.run_by::<TrainError>(trainer, &world, source, step, |turn| {
        seconds.push(turn.seconds);
        over.store(seconds.len() + 2 >= STEPS_MIN && begun.elapsed() > LIMIT, Ordering::Relaxed);
        Ok(())
    })?;
    let mut later = seconds.split_off(seconds.len() / 2);
    later.sort_by(f64::total_cmp);
    Ok(later.get(later.len() / 2).copied().unwrap_or(f64::INFINITY))
}

/// Events one after another in time.
fn made_up(events: usize) -> EdgeBatch {
    let mut batch = EdgeBatch::default();
    for event in 0..events as u64 {
        batch.push_edge(node(0, event), node(1, event), EventTime(event.cast_signed()));
    }
    batch
}

/// A source (`side` 0) or a destination of a random event: the place is the square of a random share, so that some are
/// frequent.
fn node(side: usize, event: u64) -> NodeId {
    let nodes = NODES[side];
    let place = u64::from(rng::below([STREAM, side as u64, event, 0], nodes));
    #[allow(clippy::cast_possible_truncation)] // less than the nodes
    let place = (place * place / u64::from(nodes)) as u32;
    NodeId(place + if side == 0 { 0 } else { NODES[0] })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Device;
    use crate::model::TgnOptions;
    use crate::train::TrainerOptions;

    #[test]
    fn steps_are_timed_on_a_stream_with_hubs() {
        let seconds = |width| {
            let tgn = TgnOptions {
                memory_dim: width,
                time_dim: width,
                embedding_dim: width,
                ..TgnOptions::default()
            };
            let options = TrainerOptions { model: tgn.into(), ..TrainerOptions::default() };
            step_seconds(&mut Trainer::new(options, &Device::Cpu).unwrap(), 100).unwrap()
        };
        let narrow = seconds(8);
        assert!(narrow > 0.0 && narrow.is_finite(), "{narrow}");
        let stream = made_up(20_000);
        let mut met = vec![0; (NODES[0] + NODES[1]) as usize];
        stream.src.iter().chain(&stream.dst).for_each(|node| met[node.0 as usize] += 1);
        assert!(
            met[..10].iter().sum::<i32>() > 9 * met[3_000..3_010].iter().sum::<i32>(),
            "some are frequent"
        );
    }
}
