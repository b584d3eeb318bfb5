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
    /// Only nodes that were the destination of an event of this type.
    pub edge_type: Option<String>,
}

impl Candidates {
    /// What a scan may find.
    fn allowed(&self, engine: &QueryEngine) -> Allowed {
        let with_prefix = self.key_prefix.as_ref().map(|prefix| with_prefix(engine, prefix));
        let of_type = self.edge_type.as_ref().map(|name| of_type(engine, name));
        let among = match (with_prefix, of_type) {
            (Some(one), Some(other)) => {
                Some(one.iter().zip(&other).map(|(one, other)| one & other).collect())
            }
            (one, other) => one.or(other),
        };
        Allowed { destinations: self.needs_destinations(), among: among.map(Arc::new), ..Allowed::default() }
    }

    /// Whether that a node was a destination remains to be seen: one of a type was.
    fn needs_destinations(&self) -> bool {
        self.destinations && self.edge_type.is_none()
    }

    /// The candidates one by one: those of the list that are known, in its order, else all there are.
    pub(super) fn listed(&self, engine: &QueryEngine) -> Vec<NodeId> {
        let is_one =
            |node: &NodeId| !self.needs_destinations() || engine.states.touched.is_destination(*node);
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

/// A bit for each id: whether the node was the destination of an event of this type. Of an unknown type, no node was.
fn of_type(engine: &QueryEngine, name: &str) -> Vec<u64> {
    let number = engine.stores.types.lookup(name);
    engine.states.received.bits(number.unwrap_or_default(), engine.stores.keys.len())
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::feature::FeatureStore;
    use crate::graph::{GraphOptions, GraphStore};
    use crate::serving::{NodeStates, Progress, Stores};

    const NODES: u32 = 500;

    fn key(node: u32) -> NodeKey {
        match node % 2 {
            0 => NodeKey::Int(i64::from(node)),
            _ => NodeKey::from(format!("{node}x").as_str()),
        }
    }

    /// Every third node has received `buys`, every fifth is a destination, and node 120 is gone.
    fn engine() -> QueryEngine {
        let rows = || FeatureStore::new(0);
        let stores = Stores::new(GraphStore::new(GraphOptions::default()), rows(), rows());
        let engine = QueryEngine::new(stores, Arc::new(NodeStates::new(0)), Arc::new(Progress::new()));
        for node in 0..NODES {
            assert_eq!(engine.stores.keys.intern(&key(node)), NodeId(node));
        }
        ["views", "buys"].iter().for_each(|name| engine.stores.types.define(name));
        let bought: Vec<NodeId> = (0..NODES).step_by(3).map(NodeId).collect();
        engine.states.received.observe(&bought, &vec![2; bought.len()]);
        (0..NODES).step_by(5).for_each(|node| engine.states.touched.set_destination(NodeId(node)));
        engine.stores.keys.forget(NodeId(120));
        engine
    }

    #[test]
    fn candidates_have_all_that_is_asked_and_a_type_stands_for_the_role() {
        let engine = engine();
        let types = [None, Some("buys"), Some("views"), Some("unheard of")];
        for (edge_type, prefix) in types.into_iter().flat_map(|of| [(of, None), (of, Some("12"))]) {
            for destinations in [false, true] {
                let is_one = |node: &u32| {
                    let is_of_role = !destinations || node.is_multiple_of(5);
                    let is_of_type = match edge_type {
                        Some(name) => name == "buys" && node.is_multiple_of(3),
                        None => is_of_role,
                    };
                    *node != 120
                        && is_of_type
                        && prefix.is_none_or(|prefix| node.to_string().starts_with(prefix))
                };
                let expected: Vec<NodeId> = (0..NODES).filter(is_one).map(NodeId).collect();
                let [key_prefix, edge_type] = [prefix, edge_type].map(|text| text.map(str::to_owned));
                let candidates = Candidates { destinations, keys: None, key_prefix, edge_type };
                assert_eq!(candidates.listed(&engine), expected, "{candidates:?}");
            }
        }
    }
}
