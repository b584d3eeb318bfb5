//! TGN: node memory, and attention over the node and its recent neighbors.
//!
//! The model is that of Rossi et al., "Temporal Graph Networks for Deep Learning on Dynamic Graphs" (2020), with the
//! attention block in common use since: recurrent memory, identity messages, the last of them or their mean, one layer
//! of temporal attention with residual and layer norm, a two-layer merge with the node's own row, and a two-layer link
//! predictor. Other choices of updater and embedding make it JODIE ([`TgnOptions::jodie`]). The time encoding is
//! fixed: trained on raw seconds its gradient is as large as the time differences and wrecks the low frequencies in
//! one step.
//!
//! The computation is in `aggregator` (which message waits), `updater` (memory) and `embedding`; this file only builds
//! and finds parameters.

mod aggregator;
mod embedding;
mod options;
mod updater;

pub use aggregator::Aggregator;
pub use options::{Embedding, TgnOptions, Updater};
pub(crate) use updater::DeferredMemory;

use super::attention::{AttentionBlock, Output, Projections};
use super::builder::{Builder, Fill, ModelError};
use super::link::LinkPredictor;
use crate::nn::{GruParams, ParamId, RnnParams, TimeEncoder};
use embedding::Gaps;

/// The parameters of a TGN.
#[derive(Clone, Debug)]
pub(super) struct Tgn {
    options: TgnOptions,
    time: TimeEncoder,
    updater: Cell,
    features: Option<ParamId>,
    types: Option<ParamId>,
    embedding: Module,
    pub link: LinkPredictor,
}

/// What turns a message into memory.
#[derive(Clone, Copy, Debug)]
enum Cell {
    Gru(GruParams),
    Rnn(RnnParams),
}

/// What turns memory into an embedding.
#[derive(Clone, Copy, Debug)]
enum Module {
    Attention(AttentionBlock),
    Identity,
    Time(Gaps),
}

impl Tgn {
    pub(in crate::model) fn build(options: TgnOptions, b: &mut Builder<'_>) -> Result<Self, ModelError> {
        let TgnOptions { memory_dim, embedding_dim, heads, dropout, .. } = options;
        let (width, slot) = (options.attention_dim(), options.slot_dim());
        let attends = options.embedding == Embedding::Attention;
        let begun = if attends {
            let projections = Projections::build(b, "attention", width, slot)?;
            Some((projections, b.merge("merge", width + memory_dim, embedding_dim, embedding_dim)?))
        } else {
            None
        };
        let link = b.link(embedding_dim)?;
        let updater = Self::build_updater(&options, b)?;
        let features = if options.projects_node_features() {
            Some(b.weight("features.w", memory_dim, options.node_feature_dim)?)
        } else {
            None
        };
        let types = options.edge_types.build(b)?;
        let embedding = match (options.embedding, begun) {
            (Embedding::Time, _) => Module::Time(Gaps::build(b, memory_dim)?),
            (_, Some((projections, merge))) => {
                let output = Output::build(b, "attention", width)?;
                Module::Attention(AttentionBlock { projections, output, merge, types, heads, dropout })
            }
            _ => Module::Identity,
        };
        let time = TimeEncoder::of_ticks(options.time_dim, options.ticks_per_second);
        Ok(Self { options, time, updater, features, types, embedding, link })
    }

    fn build_updater(options: &TgnOptions, b: &mut Builder<'_>) -> Result<Cell, ModelError> {
        let (hidden, fill) = (options.memory_dim, Fill::Uniform { fan_in: options.memory_dim });
        let rows = match options.updater {
            Updater::Gru => 3 * hidden,
            Updater::Rnn => hidden,
        };
        let w_ih = b.add("memory.w_ih", rows, options.message_dim(), fill)?;
        let w_hh = b.add("memory.w_hh", rows, hidden, fill)?;
        let b_ih = b.add("memory.b_ih", 1, rows, fill)?;
        let b_hh = b.add("memory.b_hh", 1, rows, fill)?;
        Ok(match options.updater {
            Updater::Gru => Cell::Gru(GruParams { w_ih, w_hh, b_ih, b_hh }),
            Updater::Rnn => Cell::Rnn(RnnParams { w_ih, w_hh, b_ih, b_hh }),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Device;
    use crate::model::Model;
    use crate::nn::{Parameters, Tensor};

    #[test]
    fn the_default_model_has_the_known_number_of_parameters() {
        let count = |options: TgnOptions| Model::new(options, 0, &Device::Cpu).unwrap().parameters.count();
        let plain = TgnOptions::default();
        assert_eq!(count(plain), 341_601);
        // 3 gates of the updater, keys and values of the attention each see the edge's features.
        let edges = TgnOptions { edge_feature_dim: 7, ..plain };
        assert_eq!(count(edges), 341_601 + (3 * 100 + 200 + 200) * 7);
        assert_eq!(count(TgnOptions { node_feature_dim: 100, ..plain }), 341_601);
        assert_eq!(count(TgnOptions { node_feature_dim: 9, ..plain }), 341_601 + 100 * 9);
    }

    #[test]
    fn a_seed_makes_a_model_and_foreign_weights_are_named() {
        let options = TgnOptions { memory_dim: 4, time_dim: 4, embedding_dim: 3, ..TgnOptions::default() };
        let tgn = Model::new(options, 3, &Device::Cpu).unwrap();
        let values = |tgn: &Model| tgn.parameters.iter().flat_map(|(_, t)| t.to_vec()).collect::<Vec<_>>();
        assert_eq!(values(&tgn), values(&Model::new(options, 3, &Device::Cpu).unwrap()));
        assert_ne!(values(&tgn), values(&Model::new(options, 4, &Device::Cpu).unwrap()));

        let with = |options: TgnOptions, p: &Parameters| Model::with_parameters(options, p).map(|_| ());
        assert_eq!(with(options, &tgn.parameters), Ok(()));
        let wider = TgnOptions { embedding_dim: 5, ..options };
        assert!(
            matches!(with(wider, &tgn.parameters), Err(ModelError::Shape { name, .. }) if name == "merge.w_a")
        );
        let featured = TgnOptions { node_feature_dim: 2, ..options };
        let missing = ModelError::Missing { name: "features.w".to_string() };
        assert_eq!(with(featured, &tgn.parameters), Err(missing));
        let mut more = tgn.parameters.clone();
        more.add("extra", Tensor::zeros(&Device::Cpu, 1, 1));
        assert!(matches!(with(options, &more), Err(ModelError::Count { .. })));
        let mut broken = tgn.parameters.clone();
        let last = broken.find("link.b_b").unwrap();
        broken.get_mut(last).data_mut()[0] = f32::NAN;
        assert_eq!(with(options, &broken), Err(ModelError::NotFinite));
    }
}
