//! How much of what scoring every node finds the index finds.

use anyhow::Context;

use super::{IndexArgs, embeddings, for_each_slice, key, like, likeliest};
use crate::event::NodeKey;
use crate::model::SplitLink;
use crate::serving::QueryEngine;

/// Queries that are compared.
const QUERIES: u32 = 30;

/// Shares of the best nodes that are found.
pub(super) struct Recall {
    pub top_links: f64,
    pub similar_nodes: f64,
}

/// A query and the best nodes so far of those that were scored one by one, by head and by cosine.
struct Query {
    node: NodeKey,
    /// Its embedding.
    vector: Vec<f32>,
    /// Its part of the hidden layer.
    hidden: Vec<f32>,
    best: [Vec<(f32, NodeKey)>; 2],
}

/// Compares what queries find with the best of all nodes.
pub(super) fn recall(engine: &QueryEngine, args: &IndexArgs) -> anyhow::Result<Recall> {
    let link = engine.model().and_then(|weights| weights.model().split_link());
    let link = link.context("the head splits")?;
    let width = args.dimension as usize;
    let nodes: Vec<NodeKey> = (0..args.queries.min(QUERIES)).map(|i| key(args, i)).collect();
    let vectors = embeddings(engine, &nodes)?;
    let query = |(node, vector): (NodeKey, &[f32])| Query {
        node,
        vector: vector.to_vec(),
        hidden: link.sources(vector),
        best: [Vec::new(), Vec::new()],
    };
    let mut queries: Vec<Query> = nodes.into_iter().zip(vectors.chunks_exact(width)).map(query).collect();
    for_each_slice(engine, args, |names, vectors| {
        queries.iter_mut().for_each(|query| query.see(names, vectors, &link, args.limit as usize));
        Ok(())
    })?;
    let (mut found, mut all) = ([0; 2], 0);
    for (query, i) in queries.iter().zip(0..) {
        let by_index = [likeliest(engine, args, i, 1)?, like(engine, args, i, 1)?];
        for ((found, best), by_index) in found.iter_mut().zip(&query.best).zip(by_index) {
            *found += best.iter().filter(|(_, node)| by_index.contains(node)).count();
        }
        all += query.best[0].len();
    }
    let [top_links, similar_nodes] = found.map(|found| found as f64 / all.max(1) as f64);
    Ok(Recall { top_links, similar_nodes })
}

impl Query {
    /// Scores nodes and keeps the `limit` best.
    fn see(&mut self, names: &[NodeKey], vectors: &[f32], link: &SplitLink, limit: usize) {
        let dot = |a: &[f32], b: &[f32]| -> f32 { a.iter().zip(b).map(|(a, b)| a * b).sum() };
        let (weights, heads) = (link.output(), link.destinations(vectors));
        let length = dot(&self.vector, &self.vector).sqrt();
        let rows = vectors.chunks_exact(self.vector.len()).zip(heads.chunks_exact(link.hidden()));
        for (name, (vector, head)) in names.iter().zip(rows) {
            if *name == self.node {
                continue;
            }
            let relu = self.hidden.iter().zip(head).map(|(q, p)| (q + p).max(0.0));
            let score = relu.zip(weights.iter()).map(|(value, weight)| value * weight).sum();
            let cosine = dot(&self.vector, vector) / (length * dot(vector, vector).sqrt());
            self.best[0].push((score, name.clone()));
            self.best[1].push((cosine, name.clone()));
        }
        for best in &mut self.best {
            best.sort_by(|a, b| b.0.total_cmp(&a.0));
            best.truncate(limit);
        }
    }
}
