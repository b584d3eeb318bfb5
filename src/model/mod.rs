//! Floor 4: temporal graph networks in the papers' words.
//!
//! A [`Model`] is one of a list ([`ModelOptions`]): [`tgn`] with its memory, and models that keep nothing but the
//! graph: [`graphmixer`] and [`tgat`], which know a node by what it did when, and [`graphsage`], [`gat`] and [`dysat`],
//! which know it by whom it met. It states in plain numbers what it [`Needs`] of a batch: what is sampled, how wide its
//! memory is (0: it has none), which feature rows it reads. A batch's seeds and sample become a [`Neighborhood`] of
//! distinct nodes, whose [`FeatureRows`] are fetched and which then passes three steps, each a method
//! that records onto a tape: [`Model::fresh_memory`] applies pending messages, [`Model::embed`] makes a row of each
//! seed, [`Model::logits`] scores pairs.
//!
//! Where types of edges are known ([`EdgeTypes`]), a learned row of each stands beside an edge's features.
//!
//! [`ModelState`] is what a model keeps of the stream: [`NodeMemory`] and the [`Mailbox`] of raw messages.
//! [`ModelState::update`] writes memory back and stores the batch's messages, which the *next* batch applies: no
//! event ever sees itself. Of a model without memory it keeps the time of each node's last event.
//!
//! [`walk`] scores pairs, not embeddings: no sample, no messages, a few vectors per node and the times of pairs.
//!
//! Reads no storage: a pass computes on what was sampled and fetched before it, and cannot fail.
//! Knows nothing of losses, optimizers, protocols or requests.

pub(crate) mod attention;
mod builder;
mod choice;
mod deferred;
mod device_rows;
pub mod dysat;
mod edge_places;
mod edge_types;
mod feature_rows;
pub mod gat;
mod graph_attention;
pub mod graphmixer;
pub mod graphsage;
mod hop;
mod input;
mod limit;
mod link;
mod mailbox;
mod memory;
mod message_rows;
mod mirror;
mod needs;
mod neighborhood;
mod on_gpu;
mod options;
pub mod pair_budget;
mod pairs;
mod part;
mod rows;
mod senders;
mod signature;
mod state;
mod state_after;
mod state_update;
pub(crate) mod tables;
pub mod tgat;
pub mod tgn;
mod ticks;
pub mod walk;
mod weights;

pub use builder::ModelError;
pub use choice::{Model, ModelOptions};
pub use deferred::Deferred;
pub use device_rows::{DeviceRows, RowReads};
pub use dysat::DysatOptions;
pub use edge_places::EdgePlaces;
pub use edge_types::EdgeTypes;
pub use feature_rows::{FeatureRows, GatherError, KeptRows, RowsOfRank, SentRows};
pub use gat::GatOptions;
pub use graphmixer::GraphMixerOptions;
pub use graphsage::GraphSageOptions;
pub use hop::Hop;
pub use input::EmbeddingInput;
pub use link::{SplitLink, probability};
pub use mailbox::{Mailbox, PendingMessage};
pub use memory::NodeMemory;
pub use message_rows::MessageRows;
pub use needs::{Needs, OptionsError};
pub use neighborhood::{DistinctNodes, EMPTY_SLOT, Neighborhood, PARTS_MAX, Readers};
pub use part::Part;
pub use state::{ModelState, StateError};
pub use state_after::StateAfter;
pub use state_update::{Interactions, Touched};
pub use tgat::TgatOptions;
pub(crate) use tgn::DeferredMemory;
pub use tgn::TgnOptions;
pub use ticks::TICKS_PER_SECOND;
pub use weights::Weights;
