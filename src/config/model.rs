//! `[model]`: its enums, and its conversion into the model's options. The same keys shape every model; a model ignores
//! the keys it does not use.

use clap::ValueEnum;
use serde::Deserialize;

use super::{Config, StreamTimeUnit};
use crate::model::tgn::Aggregator;
use crate::model::walk::WalkOptions;
use crate::model::{
    DysatOptions, EdgeTypes, GatOptions, GraphMixerOptions, GraphSageOptions, ModelOptions, TgatOptions,
    TgnOptions,
};

/// Which model is learned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum ModelKind {
    /// Memory, and attention over recent neighbors.
    Tgn,
    /// Memory by a plain recurrent cell, embeddings that drift with time, no neighbors.
    Jodie,
    /// An MLP-Mixer over the recent edges of a node, without memory.
    Graphmixer,
    /// Attention over recent neighbors and theirs, without memory.
    Tgat,
    /// The mean over recent neighbors, without time or memory.
    Graphsage,
    /// Attention over recent neighbors, without time or memory.
    Gat,
    /// Attention over neighbors in each of the last windows of time, and over the windows, without memory.
    Dysat,
    /// Decayed walk counts of both ends of a pair, and a small network, without neighbors.
    Walk,
}

/// Which of a batch's messages for one node waits for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum AggregatorKind {
    /// The last one.
    Last,
    /// The mean of all.
    Mean,
}

impl From<AggregatorKind> for Aggregator {
    fn from(kind: AggregatorKind) -> Self {
        match kind {
            AggregatorKind::Last => Self::Last,
            AggregatorKind::Mean => Self::Mean,
        }
    }
}

impl ModelKind {
    /// The word for it in the settings.
    #[must_use]
    pub fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }
}

impl Config {
    /// The model that the settings describe.
    #[must_use]
    pub fn model_options(&self) -> ModelOptions {
        let model = &self.model;
        let (embedding_dim, time_dim) = (model.embedding_dimension, model.time_dimension);
        let (heads, fanout, memory_dim) = (model.heads, model.fanout, model.memory_dimension);
        let aggregator = model.aggregator.into();
        let tgn =
            |kind| TgnOptions { memory_dim, time_dim, embedding_dim, heads, fanout, aggregator, ..kind };
        let (steps, dimension, decay) = (model.walk_steps, model.walk_dimension, model.walk_decay);
        let walks =
            WalkOptions { steps, dimension, decay, seed: self.learner.seed, ..WalkOptions::default() };
        let options: ModelOptions = match model.kind {
            ModelKind::Tgn => tgn(TgnOptions::default()).into(),
            ModelKind::Jodie => tgn(TgnOptions::jodie()).into(),
            ModelKind::Graphmixer => {
                GraphMixerOptions { embedding_dim, time_dim, fanout, ..GraphMixerOptions::default() }.into()
            }
            ModelKind::Tgat => {
                TgatOptions { embedding_dim, time_dim, heads, fanout, ..TgatOptions::default() }.into()
            }
            ModelKind::Graphsage => {
                GraphSageOptions { embedding_dim, fanout, ..GraphSageOptions::default() }.into()
            }
            ModelKind::Gat => GatOptions { embedding_dim, heads, fanout, ..GatOptions::default() }.into(),
            ModelKind::Dysat => {
                let (snapshots, snapshot_width) = (model.snapshots, model.snapshot_width);
                let shape =
                    DysatOptions { embedding_dim, time_dim, heads, fanout, ..DysatOptions::default() };
                DysatOptions { snapshots, snapshot_width, ..shape }.into()
            }
            ModelKind::Walk => walks.into(),
        };
        let (edge, node) = (self.stream.edge_feature_dimension, self.stream.node_feature_dimension);
        let types = EdgeTypes::new(model.edge_types, model.edge_type_dimension);
        let options = options.with_walks(model.walks.then_some(walks));
        let options = options.with_dropout(model.dropout).with_features(edge, node).with_edge_types(types);
        let unit = match model.time_unit {
            StreamTimeUnit::Unspecified => self.stream.time_unit,
            named => named,
        };
        options.with_ticks_per_second(unit.ticks_per_second())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::walk::Decay;

    fn with(settings: &[(&str, &str)]) -> Result<Config, crate::config::ConfigError> {
        let flags: Vec<_> = settings.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect();
        Config::from_layers(None, config::Environment::default().source(Some(config::Map::new())), &flags)
    }

    #[test]
    fn every_kind_is_a_model_and_takes_the_keys() {
        for kind in ModelKind::value_variants() {
            let name = kind.to_possible_value().unwrap().get_name().to_owned();
            let config = with(&[("model.kind", &name), ("model.dropout", "0.25")]).unwrap();
            let options = config.model_options();
            assert_eq!(options.validate(), Ok(()), "{name}");
            if *kind != ModelKind::Walk {
                assert_eq!(options.dropout(), 0.25, "{name}");
                assert_eq!(options.needs().embedding_dim, config.model.embedding_dimension, "{name}");
            }
        }
        let ticks = |settings: &[(&str, &str)]| with(settings).unwrap().model_options().ticks_per_second();
        let stream = ("stream.time_unit", "milliseconds");
        assert_eq!((ticks(&[]), ticks(&[stream])), (Some(1), Some(1_000)));
        assert_eq!(ticks(&[stream, ("model.time_unit", "seconds")]), Some(1), "as it was trained");
        let walk = [("model.kind", "walk"), ("model.walk_steps", "2"), ("model.walk_decay", "1e-6")];
        let ModelOptions::Walk(walk) = with(&walk).unwrap().model_options() else { panic!("another model") };
        assert_eq!((walk.steps, walk.decay, walk.dimension), (2, Decay::Rate(1e-6), 128));
        let both = with(&[("model.walks", "true"), ("model.walk_steps", "2")]).unwrap();
        let needs = both.model_options().needs();
        assert_eq!((needs.memory_dim, needs.walks.map(|walks| walks.steps)), (100, Some(2)));
        assert!(needs.embeds() && needs.row_dim() == 100 + 3 * 128 + 3);
        let met = [&[("model.walks", "true")][..], &[("model.kind", "walk")], &[]];
        assert_eq!(met.map(|settings| with(settings).unwrap().met_share()), [0.25, 0.1, 0.0]);
        let replayed = with(&[("model.walks", "true"), ("learner.replay.ratio", "0.5")]);
        assert!(replayed.unwrap_err().to_string().contains("must be 0 with walks"));
        let needs = with(&[("model.aggregator", "mean")]).unwrap().model_options().needs();
        assert!(needs.averages() && needs.mailbox_dim == 200);
        let types = [("model.edge_types", "4"), ("stream.edge_feature_dimension", "2")];
        let options = with(&types).unwrap().model_options();
        assert_eq!((options.edge_types(), options.needs().edge_row_dim), (EdgeTypes::new(4, 16), 3));
        assert_eq!(with(&[("model.kind", "graphmixer")]).unwrap().model_options().needs().memory_dim, 0);
        let dysat = [("model.kind", "dysat"), ("model.snapshots", "3"), ("model.snapshot_width", "3600")];
        let needs = with(&dysat).unwrap().model_options().needs();
        assert_eq!((needs.snapshots, needs.window), (3, Some(3600)));
        for (key, value, expected) in [
            ("model.walk_steps", "5", "model.walk_steps = 5: must be 1 to 4"),
            ("model.walk_dimension", "100", "model.walk_dimension = 100: must be a multiple of 16"),
            ("model.walk_decay", "fast", "`fast` is no decay"),
            ("model.walks", "true", "model.walks = true: must be false for model.kind"),
            ("learner.replay.ratio", "0.5", "learner.replay.ratio = 0.5: must be 0 with walks"),
        ] {
            let error = with(&[("model.kind", "walk"), (key, value)]).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
        let error = with(&[("model.kind", "my model")]).unwrap_err().to_string();
        assert!(error.contains("`my model` is none of tgn, "), "{error}");
        let error = with(&[("model.kind", "gcn")]).unwrap_err().to_string();
        assert!(
            error.contains("`gcn` is none of tgn, jodie, graphmixer") && error.contains("model.kind"),
            "{error}"
        );
        let error =
            with(&[("model.kind", "jodie"), ("model.memory_dimension", "64")]).unwrap_err().to_string();
        assert!(error.starts_with("model.embedding_dimension = 100"), "{error}");
    }
}
