//! The values of the flags of `evergraph eval` that are names, and what they select.

use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use clap::ValueEnum;

use crate::model::tgn::Embedding;
use crate::model::walk::WalkOptions;
use crate::model::{
    DysatOptions, GatOptions, GraphMixerOptions, GraphSageOptions, ModelOptions, TgatOptions, TgnOptions,
};
use crate::train::edgebank::BankRule;
use crate::train::evaluate::learned::Sight;

/// What can be measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ModelName {
    /// Temporal graph network: memory, and attention over the 10 most recent neighbors
    Tgn,
    /// As tgn, with a plain recurrent cell and embeddings that drift with time; uses no neighbors
    Jodie,
    /// An MLP-Mixer over the 20 most recent edges of a node, without memory
    Graphmixer,
    /// Attention over 20 recent neighbors and 20 of each of theirs, without memory
    Tgat,
    /// The mean over the 10 most recent neighbors, without time or memory
    Graphsage,
    /// Attention over the 10 most recent neighbors, without time or memory
    Gat,
    /// Attention over 10 neighbors in each of the last few windows of time, and over the windows; without memory
    Dysat,
    /// Projected walk counts and a small network; samples no neighbors
    Walk,
    /// The baseline that memorizes pairs
    Edgebank,
    /// The baseline of decayed popularity of destinations
    Poptrack,
}

impl ModelName {
    /// The shape of a model that learns; `None` for baselines.
    #[must_use]
    pub fn options(self) -> Option<ModelOptions> {
        Some(match self {
            Self::Tgn => TgnOptions::default().into(),
            Self::Jodie => TgnOptions::jodie().into(),
            Self::Graphmixer => GraphMixerOptions::default().into(),
            Self::Tgat => TgatOptions::default().into(),
            Self::Graphsage => GraphSageOptions::default().into(),
            Self::Gat => GatOptions::default().into(),
            Self::Dysat => DysatOptions::default().into(),
            Self::Walk => WalkOptions::default().into(),
            Self::Edgebank | Self::Poptrack => return None,
        })
    }

    /// The same with embeddings of `width` values, if one is given. Where the embedding is the memory row, that is as
    /// wide.
    #[must_use]
    pub fn shaped(self, width: Option<u32>) -> Option<ModelOptions> {
        let options = self.options()?;
        let Some(width) = width.map(|width| width as usize) else { return Some(options) };
        Some(match options.with_embedding_dim(width) {
            ModelOptions::Tgn(tgn) if tgn.embedding != Embedding::Attention => {
                TgnOptions { memory_dim: width, ..tgn }.into()
            }
            options => options,
        })
    }
}

/// Which pairs the baseline holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum BankName {
    /// Every pair seen so far
    Unlimited,
    /// Pairs of the newest 15 % of the events
    Window,
    /// Pairs within the mean repeat interval
    RepeatInterval,
    /// Pairs seen at least as often as the mean pair
    RepeatThreshold,
}

impl BankName {
    /// The rule of the name.
    #[must_use]
    pub fn rule(self) -> BankRule {
        match self {
            Self::Unlimited => BankRule::Unlimited,
            Self::Window => BankRule::Window,
            Self::RepeatInterval => BankRule::RepeatInterval,
            Self::RepeatThreshold => BankRule::RepeatThreshold,
        }
    }
}

/// Which edges an event may have as neighbors under the prequential protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SightName {
    /// Edges of earlier batches
    EarlierBatches,
    /// Also earlier edges of the batch itself
    WithinBatch,
}

impl From<SightName> for Sight {
    fn from(name: SightName) -> Self {
        match name {
            SightName::EarlierBatches => Self::EarlierBatches,
            SightName::WithinBatch => Self::WithinBatch,
        }
    }
}

/// How to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ProtocolName {
    /// The published split of DyGLib and TGN
    Dyglib,
    /// One positive against many, as the Temporal Graph Benchmark ranks
    Mrr,
    /// One positive against every destination so far, as a top-k over all of them finds it
    Topk,
    /// Labels of nodes, read out of a model trained on links
    NodeLabel,
    /// Test-then-train in one pass
    Prequential,
}

/// The name of a value, as the flag takes it.
pub fn name_of<T: ValueEnum>(value: T) -> String {
    value.to_possible_value().map_or_else(String::new, |name| name.get_name().to_owned())
}

/// Where negatives come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NegativesFlag {
    /// Random destinations, drawn.
    Random,
    /// Pairs of the past, drawn.
    Historical,
    /// Pairs of the past that first happened in the part itself, drawn.
    Inductive,
    /// Given.
    File(PathBuf),
}

impl FromStr for NegativesFlag {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(match text {
            "random" => Self::Random,
            "historical" => Self::Historical,
            "inductive" => Self::Inductive,
            path => Self::File(path.into()),
        })
    }
}

impl NegativesFlag {
    /// Their name beside the figures.
    #[must_use]
    pub fn name(&self) -> String {
        match self {
            Self::Random => "drawn".to_owned(),
            Self::Historical => "historical".to_owned(),
            Self::Inductive => "inductive".to_owned(),
            Self::File(path) => file_name(path),
        }
    }
}

/// The last part of a path.
pub fn file_name(path: &Path) -> String {
    path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}
