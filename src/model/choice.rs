//! The list of models, and [`Model`]: one of them with its parameters.
//!
//! Each model is a folder or file that reads like its paper and knows nothing of the others. It has options (with the
//! fields `embedding_dim`, `node_feature_dim`, `edge_feature_dim`, `edge_types`, `walks`, `ticks_per_second` and
//! `dropout`, the method `needs`, and a [`Shape`]) and a network, which is built from them (`build`), makes rows of
//! nodes (`table`), embeds seeds by these (`embed`) and has the parameters of its link predictor (`link`). [`models!`]
//! makes two enums of the list and hands each call on; nothing is boxed.
//!
//! [`walk`](super::walk) is the one that reads no features, drops nothing and scores pairs by joint features of both
//! ends alone, not by their embeddings: it is separate from the list. Any other model can have its network beside the
//! link predictor. How pairs are scored is in [`pairs`](super::pairs).

use std::ops::Range;

use super::builder::{Builder, ModelError};
use super::dysat::{Dysat, DysatOptions};
use super::gat::{Gat, GatOptions};
use super::graphmixer::{GraphMixer, GraphMixerOptions};
use super::graphsage::{GraphSage, GraphSageOptions};
use super::link::LinkPredictor;
use super::needs::{Needs, OptionsError, Shape, check, fields};
use super::tgat::{Tgat, TgatOptions};
use super::tgn::{Tgn, TgnOptions};
use super::ticks;
use super::walk::{WalkNetwork, WalkOptions};
use super::{EdgeTypes, EmbeddingInput, Interactions, MessageRows, ModelState, StateAfter, Touched};
use crate::device::Device;
use crate::event::{EventTime, NodeId};
use crate::nn::{Parameters, Tape, Var};

macro_rules! models {
    ($($kind:ident($network:ty, $options:ty) = $name:literal),+ $(,)?) => {
        /// Which model, and its shape. Two models with equal options have interchangeable weights and state; with
        /// different options they have not, which is why a checkpoint carries its options and loading compares them.
        #[derive(Clone, Copy, Debug, PartialEq)]
        pub enum ModelOptions {
            $(#[doc = concat!("`", $name, "`")] $kind($options),)+
            /// `walk`
            Walk(WalkOptions),
        }

        #[derive(Clone, Debug)]
        pub(super) enum Network {
            $($kind($network),)+
            Walk(WalkNetwork),
        }

        $(impl From<$options> for ModelOptions {
            fn from(options: $options) -> Self {
                Self::$kind(options)
            }
        })+

        impl ModelOptions {
            /// The model's name.
            #[must_use]
            pub fn name(&self) -> &'static str {
                match self { $(Self::$kind(_) => $name,)+ Self::Walk(_) => "walk" }
            }

            /// Checks that the options describe a model.
            ///
            /// # Errors
            /// Names the first option that is out of range.
            pub fn validate(&self) -> Result<(), OptionsError> {
                match self {
                    $(Self::$kind(options) => {
                        check(&options.counts(), options.dropout, options.edge_types)?;
                        options.walks.as_ref().map_or(Ok(()), WalkOptions::check)?;
                        options.check_widths()
                    })+
                    Self::Walk(options) => Ok(options.check()?),
                }
            }

            /// What the model wants of a batch.
            #[must_use]
            pub fn needs(&self) -> Needs {
                let (needs, walks) = match self {
                    $(Self::$kind(options) => (options.needs(), options.walks),)+
                    Self::Walk(options) => (options.needs(), Some(*options)),
                };
                Needs { walks, ..needs }
            }

            /// The options as named numbers, in a fixed order: what a checkpoint stores and compares. New ones are
            /// added at the end, with 0 for what was so before them.
            #[must_use]
            pub fn as_fields(&self) -> Vec<(&'static str, f64)> {
                match self {
                    $(Self::$kind(options) => {
                        let features = [options.node_feature_dim, options.edge_feature_dim];
                        let (counts, choices) = (options.counts(), options.choices());
                        let mut fields =
                            fields(&counts, features, options.dropout, options.edge_types, &choices);
                        fields.extend(WalkOptions::as_fields(options.walks.as_ref()));
                        fields.push(ticks::as_field(options.ticks_per_second));
                        fields
                    })+
                    Self::Walk(options) => WalkOptions::as_fields(Some(options)),
                }
            }

            /// Share of values dropped while training.
            #[must_use]
            pub fn dropout(&self) -> f32 {
                match self { $(Self::$kind(options) => options.dropout,)+ Self::Walk(_) => 0.0 }
            }

            /// The same with another share of values dropped, if any are.
            #[must_use]
            pub fn with_dropout(mut self, dropout: f32) -> Self {
                match &mut self { $(Self::$kind(options) => options.dropout = dropout,)+ Self::Walk(_) => {} }
                self
            }

            /// The same with embeddings of another width, if that is free.
            #[must_use]
            pub fn with_embedding_dim(mut self, width: usize) -> Self {
                match &mut self { $(Self::$kind(options) => options.embedding_dim = width,)+ Self::Walk(_) => {} }
                self
            }

            /// Types of edges that are distinguished.
            #[must_use]
            pub fn edge_types(&self) -> EdgeTypes {
                match self {
                    $(Self::$kind(options) => options.edge_types,)+
                    Self::Walk(_) => EdgeTypes::default(),
                }
            }

            /// The same with these types of edges distinguished, if types are seen.
            #[must_use]
            pub fn with_edge_types(mut self, types: EdgeTypes) -> Self {
                match &mut self { $(Self::$kind(options) => options.edge_types = types,)+ Self::Walk(_) => {} }
                self
            }

            /// The same, which scores pairs by these walks too, if it scores them by embeddings.
            #[must_use]
            pub fn with_walks(mut self, walks: Option<WalkOptions>) -> Self {
                match &mut self { $(Self::$kind(options) => options.walks = walks,)+ Self::Walk(_) => {} }
                self
            }

            /// The same for rows of features of these widths, if features are read; 0 means there are none.
            #[must_use]
            pub fn with_features(mut self, edge: usize, node: usize) -> Self {
                match &mut self {
                    $(Self::$kind(options) => {
                        (options.edge_feature_dim, options.node_feature_dim) = (edge, node);
                    })+
                    Self::Walk(_) => {}
                }
                self
            }
        }

        impl Network {
            fn build(options: &ModelOptions, builder: &mut Builder<'_>) -> Result<Self, ModelError> {
                Ok(match options {
                    $(ModelOptions::$kind(options) => Self::$kind(<$network>::build(*options, builder)?),)+
                    ModelOptions::Walk(options) => Self::Walk(WalkNetwork::build(*options, builder)?),
                })
            }

            fn table(&self, tape: &mut Tape<'_>, memory: Var, input: &EmbeddingInput<'_>, nodes: Range<usize>) -> Var {
                match self {
                    $(Self::$kind(network) => network.table(tape, memory, input, nodes),)+
                    Self::Walk(_) => memory,
                }
            }

            fn embed(&self, tape: &mut Tape<'_>, table: Var, input: &EmbeddingInput<'_>) -> Var {
                match self {
                    $(Self::$kind(network) => network.embed(tape, table, input),)+
                    Self::Walk(network) => network.embed(tape, table, input),
                }
            }

            pub fn link(&self) -> Option<&LinkPredictor> {
                match self { $(Self::$kind(network) => Some(&network.link),)+ Self::Walk(_) => None }
            }
        }
    };
}

models! {
    Tgn(Tgn, TgnOptions) = "tgn",
    GraphMixer(GraphMixer, GraphMixerOptions) = "graphmixer",
    Tgat(Tgat, TgatOptions) = "tgat",
    GraphSage(GraphSage, GraphSageOptions) = "graphsage",
    Gat(Gat, GatOptions) = "gat",
    Dysat(Dysat, DysatOptions) = "dysat",
}

impl From<WalkOptions> for ModelOptions {
    fn from(options: WalkOptions) -> Self {
        Self::Walk(options)
    }
}

/// A model: its shape, its parameters, and where each of them is.
#[derive(Clone, Debug)]
pub struct Model {
    options: ModelOptions,
    /// The weights.
    pub parameters: Parameters,
    pub(super) network: Network,
    /// What scores pairs by walks beside the link predictor.
    pub(super) beside: Option<WalkNetwork>,
}

impl Model {
    /// A model with fresh weights that depend on nothing but `seed`.
    ///
    /// # Errors
    /// The options describe no model.
    pub fn new(options: impl Into<ModelOptions>, seed: u64, device: &Device) -> Result<Self, ModelError> {
        Self::build(options.into(), Builder::fresh(device, seed))
    }

    /// A model with the given weights, whatever their order.
    ///
    /// # Errors
    /// The options describe no model, a parameter is missing, superfluous or of another shape, or a
    /// value is not finite.
    pub fn with_parameters(options: impl Into<ModelOptions>, given: &Parameters) -> Result<Self, ModelError> {
        Self::build(options.into(), Builder::given(given))
    }

    fn build(options: ModelOptions, mut builder: Builder<'_>) -> Result<Self, ModelError> {
        options.validate()?;
        let network = Network::build(&options, &mut builder)?;
        let beside = match network {
            Network::Walk(_) => None,
            _ => options.needs().walks.map(|walks| WalkNetwork::build(walks, &mut builder)).transpose()?,
        };
        Ok(Self { options, parameters: builder.finish()?, network, beside })
    }

    /// The same model on `device`. Waits for a GPU that it is on.
    #[must_use]
    pub fn to(&self, device: &Device) -> Self {
        let (parameters, network) = (self.parameters.to(device), self.network.clone());
        Self { options: self.options, parameters, network, beside: self.beside.clone() }
    }

    /// Moves the model to `device`; one that is there stays as it is.
    #[must_use]
    pub fn moved_to(self, device: &Device) -> Self {
        if self.device() == device { self } else { self.to(device) }
    }

    /// Where its weights are.
    #[must_use]
    pub fn device(&self) -> &Device {
        self.parameters.device()
    }

    /// Which model this is, and its shape.
    #[must_use]
    pub fn options(&self) -> &ModelOptions {
        &self.options
    }

    /// What it wants of a batch.
    #[must_use]
    pub fn needs(&self) -> Needs {
        self.options.needs()
    }

    /// Memory rows `[nodes, memory_dim]` of distinct `nodes` after each one's pending message, whose edge features are
    /// in `messages`; in a model of walks alone, the rows that are made of these. Another model without memory has rows
    /// without values.
    ///
    /// # Panics
    /// If `messages` are rows of other messages.
    pub fn fresh_memory(
        &self,
        tape: &mut Tape<'_>,
        state: StateAfter<'_>,
        nodes: &[NodeId],
        messages: MessageRows<'_>,
    ) -> Var {
        match &self.network {
            Network::Tgn(tgn) => tgn.fresh_memory(tape, state, nodes, messages),
            network => {
                let mut rows = tape.take_zeroed(nodes.len(), self.needs().embedded().len());
                if let (Network::Walk(_), Some(walks)) = (network, &state.now().walks) {
                    nodes.iter().enumerate().for_each(|(i, &node)| walks.write_row(node, rows.row_mut(i)));
                }
                tape.constant(rows)
            }
        }
    }

    /// The same while a trainer on the CPU defers gradients (see [`Deferred`](super::Deferred)): kept rows are read,
    /// and only messages that are due are applied. `None` of a model that applies no messages.
    ///
    /// # Panics
    /// If `messages` are rows of other messages.
    pub(crate) fn deferred_memory(
        &self,
        tape: &mut Tape<'_>,
        state: &ModelState,
        nodes: (&[NodeId], MessageRows<'_>),
        is_due: impl Fn(NodeId) -> bool,
    ) -> Option<super::DeferredMemory> {
        let Network::Tgn(tgn) = &self.network else { return None };
        Some(tgn.deferred_memory(tape, state, nodes, is_due))
    }

    /// Updates `state` with a batch: writes fresh memory rows back, then stores the batch's messages. `fresh(i)` is
    /// the row of `touched.nodes()[i]` after its pending message; `rows` are those of the edges of the batch's events,
    /// where messages are averaged. Returns how many rows of memory were refused because they were not finite.
    ///
    /// # Panics
    /// If messages are averaged and the rows are of other events.
    pub fn update_state<'r>(
        &self,
        tape: &mut Tape<'_>,
        state: &mut ModelState,
        batch: &Interactions<'_>,
        touched: &Touched,
        fresh: impl Fn(usize) -> &'r [f32],
        rows: MessageRows<'_>,
    ) -> usize {
        match &self.network {
            Network::Tgn(tgn) if self.needs().averages() => {
                let refused = state.write_back(batch, touched, fresh);
                tgn.leave_means(tape, state, batch, touched, rows);
                refused
            }
            _ => state.update(batch, touched, fresh),
        }
    }

    /// Lets what a model keeps beside its weights, as statistics of the stream, follow a batch that it was trained on,
    /// given when each node had its last event before it.
    pub fn follow(&mut self, batch: &Interactions<'_>, last_event: &dyn Fn(NodeId) -> Option<EventTime>) {
        if let Network::Tgn(tgn) = &self.network {
            tgn.follow(&mut self.parameters, batch, last_event);
        }
    }

    /// Embeddings `[seeds, embedding_dim]`, given the memory rows `[nodes, memory_dim]` of the
    /// neighborhood's distinct nodes.
    ///
    /// # Panics
    /// If the rows are of another neighborhood.
    pub fn embed(&self, tape: &mut Tape<'_>, memory: Var, input: &EmbeddingInput<'_>) -> Var {
        let nodes = 0..input.neighborhood.nodes().nodes().len();
        let table = self.table(tape, memory, input, nodes);
        self.embed_from(tape, table, input)
    }

    /// What embeddings of all seeds read of these distinct nodes, a row for each, given their memory rows: those, or
    /// what else the model knows nodes by.
    pub(crate) fn table(
        &self,
        tape: &mut Tape<'_>,
        memory: Var,
        input: &EmbeddingInput<'_>,
        nodes: Range<usize>,
    ) -> Var {
        self.network.table(tape, memory, input, nodes)
    }

    /// Embeddings `[seeds, embedding_dim]`, given the [`table`](Self::table).
    ///
    /// # Panics
    /// If the table is of another neighborhood.
    pub(crate) fn embed_from(&self, tape: &mut Tape<'_>, table: Var, input: &EmbeddingInput<'_>) -> Var {
        self.network.embed(tape, table, input)
    }
}
