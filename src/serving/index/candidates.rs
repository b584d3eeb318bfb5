//! Which nodes may be found: what a request says of candidates, as what a scan asks of each id.

use std::sync::Arc;

use super::super::QueryEngine;
use super::best::Allowed;
use crate::event::{NodeId, NodeKey};

/// What a request says of candidates.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Candidates {
    /// Only nodes that were the destination of an event.
    pub destinations: bool,
    /// Only these nodes.
    pub keys: Option<Vec<NodeKey>>,
    /// Only nodes whose key, as text, begins so.
    pub key_prefix: Option<String>,
}

impl Candidates {
    /// What a scan may find.
    fn allowed(&self, engine: &QueryEngine) -> Allowed {
        let among = self.key_prefix.as_ref().map(|prefix| Arc::new(with_prefix(engine, prefix)));
        Allowed { destinations: self.destinations, among, ..Allowed::default() }
    }

    /// The candidates one by one: those of the list that are known, in its order, else all there are.
    pub(super) fn listed(&self, engine: &QueryEngine) -> Vec<NodeId> {
        let is_one = |node: &NodeId| !self.destinations || engine.states.touched.is_destination(*node);
        let keys = &engine.stores.keys;
        if let Some(listed) = &self.keys {
            let mut known = crate::model::DistinctNodes::default();
            for id in listed.iter().filter_map(|key| keys.lookup(key)) {
                known.insert(id);
            }
            return known.nodes().to_vec();
        }
        let (allowed, mut all) = (self.allowed(engine), Vec::new());
        let end = u32::try_from(keys.len()).unwrap_or(u32::MAX);
        keys.for_each_named(NodeId(0)..NodeId(end), 1, |node| all.push(node));
        all.retain(|node| allowed.takes(*node) && is_one(node));
        all
    }
}

/// What the scans of one pass may find: the keys are looked through once for all items of a request.
#[derive(Default)]
pub(super) struct AllowedBy<'a>(Vec<(&'a Candidates, Allowed)>);

impl<'a> AllowedBy<'a> {
    /// What `candidates` allow.
    pub(super) fn of(&mut self, candidates: &'a Candidates, engine: &QueryEngine) -> Allowed {
        if let Some((_, allowed)) = self.0.iter().find(|(of, _)| std::ptr::eq(*of, candidates)) {
            return allowed.clone();
        }
        let allowed = candidates.allowed(engine);
        self.0.push((candidates, allowed.clone()));
        allowed
    }
}

/// A bit for each id: whether its key, as text, begins with `prefix`.
fn with_prefix(engine: &QueryEngine, prefix: &str) -> Vec<u64> {
    let mut bits = vec![0; engine.stores.keys.len().div_ceil(64)];
    engine.stores.keys.for_each_bytes(|node, tag, bytes| {
        let number = || Some(i64::from_le_bytes(bytes.try_into().ok()?).to_string());
        let begins = match tag {
            0 => number().is_some_and(|text| text.starts_with(prefix)),
            _ => bytes.starts_with(prefix.as_bytes()),
        };
        if let Some(word) = bits.get_mut(node.index() / 64).filter(|_| begins) {
            *word |= 1 << (node.index() % 64);
        }
    });
    bits
}
