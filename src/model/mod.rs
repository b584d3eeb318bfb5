//! Floor 4: temporal graph networks in the papers' words.
//!
//! [`Tgn`] holds the parameters, [`TgnState`] what the model remembers of the stream: [`NodeMemory`] and
//! the [`Mailbox`] of raw messages. A batch's seeds and sample become a [`Neighborhood`] of distinct nodes,
//! whose feature rows are gathered ([`GatheredRows`]) and which then passes three steps, each a method that records
//! onto a tape:
//! [`Tgn::fresh_memory`] applies pending messages, [`Tgn::embed`] attends over recent neighbors,
//! [`LinkPredictor`] scores pairs. [`TgnState::remember`] then writes memory back and stores the batch's
//! messages, which the *next* batch applies: no event ever sees itself.
//!
//! [`walk`] is a model of its own: no sample, no messages, a few vectors per node.
//!
//! Reads no storage: a pass computes on what was sampled and gathered before it, and cannot fail.
//! Knows nothing of losses, optimizers, protocols or requests.

mod embedding;
mod gathered;
mod limit;
mod link;
mod mailbox;
mod memory;
mod neighborhood;
mod options;
mod remember;
mod rows;
mod state;
pub(crate) mod tables;
mod tgn;
mod updater;
pub mod walk;
mod weights;

pub use embedding::EmbeddingInput;
pub use gathered::{GatherError, GatheredRows, MailRows};
pub use link::{LinkPredictor, probability};
pub use mailbox::{Mailbox, PendingMessage};
pub use memory::NodeMemory;
pub use neighborhood::{DistinctNodes, EMPTY_SLOT, Neighborhood};
pub use options::{OptionsError, TgnOptions};
pub use remember::{Interactions, Touched};
pub use state::{StateError, TgnState};
pub use tgn::{ModelError, Tgn};
pub use weights::Weights;
