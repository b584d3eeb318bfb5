//! Floor 2.

mod dictionary;
pub use dictionary::{NODES_MAX, NodeDictionary};
