//! What a TGN shows of a node, by one of three modules:
//!
//! ```text
//! h_i         = s_i + x_i                          memory row plus (projected) node features
//! attention   z_i = attention block over the K most recent neighbors      (see `attention`)
//! identity    z_i = dropout(h_i)
//! time        z_i = dropout(h_i * (1 + w g + b))   g = (gap_i - mean) / deviation     (JODIE's projection)
//!                                                  gap_i = ln(1 + t - tau_i)
//! ```
//! tau_i is the time of the node's last event, mean and deviation are those of such gaps in what was trained on so far,
//! never of what is to come. Gaps are counted in logarithms: most last seconds and some last months, and beside the
//! months the seconds would all be one (UCI messages, 3 epochs: average precision 0.896, without logarithms 0.823).
//! Features are the rows of the pass, bounded (see `limit`).
//! Where memory rows come from (the updater in training, published rows in serving) is the caller's
//! choice; this is the one place that turns them into embeddings.

use std::ops::Range;

use super::{Module, Tgn};
use crate::event::{EventTime, NodeId};
use crate::model::builder::{Builder, Fill, ModelError};
use crate::model::{EmbeddingInput, Interactions};
use crate::nn::{ParamId, Parameters, Tape, Var};

/// Gaps that the statistics are made of at most: older ones fade, so that the statistics follow the stream.
const GAPS_MAX: f64 = 1e6;

/// JODIE's projection, and what it knows of the gaps between events of a node.
#[derive(Clone, Copy, Debug)]
pub(super) struct Gaps {
    w: ParamId,
    b: ParamId,
    /// `[1, 3]`: mean, variance, number. Travels with the weights and changes when they do, but not by gradients.
    statistics: ParamId,
}

impl Gaps {
    pub(super) fn build(b: &mut Builder<'_>, memory_dim: usize) -> Result<Self, ModelError> {
        let w = b.add("drift.w", memory_dim, 1, Fill::Uniform { fan_in: 1 })?;
        let bias = b.add("drift.b", 1, memory_dim, Fill::Uniform { fan_in: 1 })?;
        Ok(Self { w, b: bias, statistics: b.add("drift.statistics", 1, 3, Fill::Constant(0.0))? })
    }

    /// `h * (1 + w g + b)`.
    fn drift(&self, tape: &mut Tape<'_>, h: Var, gaps: impl Iterator<Item = f32>) -> Var {
        let (mean, deviation) = match *tape.parameters().get(self.statistics).data() {
            [mean, variance, _] if variance > 0.0 => (mean, variance.sqrt()),
            _ => (0.0, f32::INFINITY),
        };
        let rows = tape.value(h).rows();
        let mut column = tape.take(rows, 1);
        column.data_mut().iter_mut().zip(gaps).for_each(|(g, gap)| *g = (gap - mean) / deviation);
        let column = tape.constant(column);
        let factor = tape.linear(column, self.w, Some(self.b));
        let moved = tape.mul(h, factor);
        tape.add(h, moved)
    }

    /// Takes `gaps` into the statistics: the pooled moments, as if all had been seen at once.
    pub(super) fn follow(&self, parameters: &mut Parameters, gaps: &[f32]) {
        let [mean, variance, seen] = parameters.get_mut(self.statistics).data_mut() else { return };
        let number = gaps.len() as f64;
        if gaps.is_empty() {
            return;
        }
        let new_mean = gaps.iter().map(|&gap| f64::from(gap)).sum::<f64>() / number;
        let spread = |&gap: &f32| (f64::from(gap) - new_mean).powi(2);
        let new_variance = gaps.iter().map(spread).sum::<f64>() / number;
        let all = f64::from(*seen) + number;
        let (share, apart) = (number / all, new_mean - f64::from(*mean));
        let pooled = f64::from(*variance) * (1.0 - share) + new_variance * share;
        *variance = (pooled + share * (1.0 - share) * apart * apart) as f32;
        *mean = (f64::from(*mean) + share * apart) as f32;
        *seen = all.min(GAPS_MAX) as f32;
    }
}

impl Tgn {
    /// Embeddings `[seeds, embedding_dim]`, given the rows h `[nodes, memory_dim]` of the neighborhood's distinct
    /// nodes.
    pub(crate) fn embed(&self, tape: &mut Tape<'_>, rows: Var, input: &EmbeddingInput<'_>) -> Var {
        let [seed, step] = input.dropout;
        let shown = match &self.embedding {
            Module::Attention(block) => {
                let hop = input.hop(1);
                return block.apply(tape, rows, hop, &self.time, [seed, step, 0]);
            }
            Module::Identity => tape.gather(rows, input.own()),
            Module::Time(gaps) => {
                let own = tape.gather(rows, input.own());
                // Without an event there is no memory that could drift.
                let gap = |(node, time)| (input.last_event)(node).map_or(0.0, |last| self.gap(last, time));
                gaps.drift(tape, own, input.seeds().into_iter().map(gap))
            }
        };
        tape.dropout(shown, self.options.dropout, [seed, step, 1])
    }

    /// Takes what a batch shows of the gaps between events of a node into the statistics, given when each node had
    /// its last event before the batch.
    pub(crate) fn follow(
        &self,
        parameters: &mut Parameters,
        batch: &Interactions<'_>,
        last_event: &dyn Fn(NodeId) -> Option<EventTime>,
    ) {
        let Module::Time(gaps) = &self.embedding else { return };
        let ends = [batch.src, batch.dst].into_iter().flat_map(|nodes| nodes.iter().zip(batch.times));
        let seen = |(&node, &time): (&NodeId, &EventTime)| last_event(node).map(|last| self.gap(last, time));
        gaps.follow(parameters, &ends.filter_map(seen).collect::<Vec<f32>>());
    }

    /// The logarithm of the seconds from a node's last event to the scored time, 0 if that is earlier.
    fn gap(&self, last: EventTime, time: EventTime) -> f32 {
        (time.since(last).max(0.0) / self.options.ticks_per_second as f32).ln_1p()
    }

    /// `h = s + x`, with x projected if its width is not that of memory.
    pub(in crate::model) fn table(
        &self,
        tape: &mut Tape<'_>,
        memory: Var,
        input: &EmbeddingInput<'_>,
        nodes: Range<usize>,
    ) -> Var {
        if self.options.node_feature_dim == 0 {
            return memory;
        }
        let features = input.node_features(tape, nodes, self.options.node_feature_dim, self.features);
        tape.add(memory, features)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Device;

    #[test]
    fn statistics_of_parts_are_those_of_the_whole() {
        let mut builder = Builder::fresh(&Device::Cpu, 1);
        let gaps = Gaps::build(&mut builder, 2).unwrap();
        let mut parameters = builder.finish().unwrap();
        let values: Vec<f32> = (0..100).map(|i| (i * i % 37) as f32 * 0.5).collect();
        for part in [&values[..1], &values[1..1], &values[1..40], &values[40..]] {
            gaps.follow(&mut parameters, part);
        }
        let mean = values.iter().map(|&v| f64::from(v)).sum::<f64>() / 100.0;
        let variance = values.iter().map(|&v| (f64::from(v) - mean).powi(2)).sum::<f64>() / 100.0;
        let [found_mean, found_variance, number] = *parameters.get(gaps.statistics).data() else { panic!() };
        assert!((f64::from(found_mean) / mean - 1.0).abs() < 1e-5, "{found_mean} {mean}");
        assert!((f64::from(found_variance) / variance - 1.0).abs() < 1e-5, "{found_variance} {variance}");
        assert_eq!(number, 100.0);
    }
}
