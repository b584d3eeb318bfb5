//! The columns of each response that has any.

use std::sync::Arc;

use arrow_array::{ArrayRef, BooleanArray, Float32Array, Int64Array, StringArray, UInt32Array};
use arrow_schema::ArrowError;
use serde::Serialize;

use super::{Column, Columns, Kind, vectors};
use crate::api::index_wire::{
    FoundSimilar, IndexFacts, RankedBy, SimilarNode, SimilarNodes, SimilarNodesResponse, TopLink, TopLinks,
    TopLinksResponse,
};
use crate::api::key::Key;
use crate::api::wire::{
    EmbeddingsResponse, FoundEmbedding, Freshness, ItemError, NodeEmbedding, PairScore, ScoresResponse,
    Source,
};

const KEY: &str = "key as text: 7 and \"7\" are one node";
const ERROR: &str = "Why there is no result, in the words of ItemError; null where there is one";

/// All of a response about requested items but the items.
#[derive(Debug, Serialize)]
pub(in crate::api) struct AboutItems {
    at: i64,
    source: Source,
    freshness: Freshness,
}

/// All of a response of the live index but what was found.
#[derive(Debug, Serialize)]
pub(in crate::api) struct AboutFound {
    at: i64,
    unknown_candidates: Vec<Key>,
    source: Source,
    freshness: Freshness,
    index: IndexFacts,
}

impl Columns for EmbeddingsResponse {
    const COLUMNS: &'static [Column] = &[
        Column::text("node", KEY),
        Column::of("embedding", Kind::Vector, "The embedding; null where there is an error").or_null(),
        Column::of(
            "last_event",
            Kind::Time,
            "Event time of the node's latest event; null if it never had one",
        )
        .or_null(),
        Column::of("cold", Kind::Flag, "As in JSON; null where there is an error").or_null(),
        Column::text("error", ERROR).or_null(),
    ];
    type About = AboutItems;

    fn columns(self, width: usize) -> Result<(Vec<ArrayRef>, AboutItems), ArrowError> {
        let about = AboutItems { at: self.at, source: self.source, freshness: self.freshness };
        let (mut nodes, mut found, mut times, mut cold, mut errors) =
            (Vec::new(), Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for one in self.embeddings {
            let (node, vector, last_event, is_cold, error) = match one {
                NodeEmbedding::Found(FoundEmbedding { node, embedding, last_event, cold }) => {
                    (node, Some(embedding.numbers), last_event, Some(cold), None)
                }
                NodeEmbedding::Missing(missing) => (missing.node, None, None, None, Some(missing.error)),
            };
            nodes.push(node);
            found.push(vector);
            times.push(last_event);
            cold.push(is_cold);
            errors.push(error);
        }
        let vectors = vectors(found.iter().map(Option::as_deref), width)?;
        let times = Arc::new(Int64Array::from(times));
        Ok((vec![keys(nodes), vectors, times, flags(cold), words(errors)], about))
    }
}

impl Columns for ScoresResponse {
    const COLUMNS: &'static [Column] = &[
        Column::text("src", KEY),
        Column::text("dst", KEY),
        Column::of("score", Kind::Number, "The score; null where there is an error").or_null(),
        Column::of("percentile", Kind::Number, "As in JSON; null where there is an error, too").or_null(),
        Column::of("cold", Kind::Flag, "As in JSON; null where there is an error").or_null(),
        Column::text("error", ERROR).or_null(),
        Column::of("src_unknown", Kind::Flag, "Whether the error is that the graph does not know `src`"),
        Column::of("dst_unknown", Kind::Flag, "Whether the error is that the graph does not know `dst`"),
    ];
    type About = AboutItems;

    fn columns(self, _: usize) -> Result<(Vec<ArrayRef>, AboutItems), ArrowError> {
        let about = AboutItems { at: self.at, source: self.source, freshness: self.freshness };
        let (mut ends, mut unknown) = ([Vec::new(), Vec::new()], [Vec::new(), Vec::new()]);
        let (mut scores, mut percentiles) = (Vec::new(), Vec::new());
        let (mut cold, mut errors) = (Vec::new(), Vec::new());
        for one in self.scores {
            let (src, dst, found, error, missing) = match one {
                PairScore::Found(found) => {
                    let values = (found.score, found.percentile, found.cold);
                    (found.src, found.dst, Some(values), None, Vec::new())
                }
                PairScore::Missing(missing) => {
                    (missing.src, missing.dst, None, Some(missing.error), missing.unknown)
                }
            };
            let [no_src, no_dst] = [&src, &dst].map(|end| missing.iter().any(|key| key.node == end.node));
            unknown[0].push(Some(no_src));
            unknown[1].push(Some(no_dst));
            ends[0].push(src);
            ends[1].push(dst);
            scores.push(found.map(|(score, ..)| score));
            percentiles.push(found.and_then(|(_, percentile, _)| percentile));
            cold.push(found.map(|(.., is_cold)| is_cold));
            errors.push(error);
        }
        let ([src, dst], [no_src, no_dst]) = (ends.map(keys), unknown.map(flags));
        let [scores, percentiles] = [scores, percentiles].map(Float32Array::from).map(Arc::new);
        Ok((vec![src, dst, scores, percentiles, flags(cold), words(errors), no_src, no_dst], about))
    }
}

impl Columns for TopLinksResponse {
    const COLUMNS: &'static [Column] = &[
        Column::of(
            "item",
            Kind::Place,
            "Place of the source in the request; one without destinations has no row",
        ),
        Column::text("src", KEY),
        Column::text("dst", KEY),
        Column::of("score", Kind::Number, "As in JSON; of a source the likeliest first"),
        Column::of(
            "cold",
            Kind::Flag,
            "Whether the model has learned nothing yet about at least one of the two nodes",
        ),
        Column::of("src_cold", Kind::Flag, "Whether the model has learned nothing about the source yet"),
        Column::text("ranked_by", "What the source's destinations are ordered by, in the words of RankedBy"),
    ];
    type About = AboutFound;

    fn columns(self, _: usize) -> Result<(Vec<ArrayRef>, AboutFound), ArrowError> {
        let (mut items, mut ends) = (Vec::new(), [Vec::new(), Vec::new()]);
        let (mut scores, mut cold, mut src_cold, mut orders) =
            (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for (item, links) in (0..).zip(self.results) {
            let TopLinks { src, ranked_by, cold: is_src_cold, top } = links;
            for TopLink { dst, score, cold: is_cold } in top {
                items.push(item);
                ends[0].push(src.clone());
                ends[1].push(dst);
                scores.push(score);
                cold.push(Some(is_cold));
                src_cold.push(Some(is_src_cold));
                orders.push(Some(order(ranked_by)));
            }
        }
        let Self { at, unknown_candidates, source, freshness, index, .. } = self;
        let about = AboutFound { at, unknown_candidates, source, freshness, index };
        let [src, dst] = ends.map(keys);
        let (items, scores) = (Arc::new(UInt32Array::from(items)), Arc::new(Float32Array::from(scores)));
        let orders = Arc::new(StringArray::from(orders));
        Ok((vec![items, src, dst, scores, flags(cold), flags(src_cold), orders], about))
    }
}

impl Columns for SimilarNodesResponse {
    const COLUMNS: &'static [Column] = &[
        Column::of(
            "item",
            Kind::Place,
            "Place of the node or vector in the request; one without similar nodes has no row",
        ),
        Column::text("node", "Its key as text, where the request has nodes; null where it has vectors")
            .or_null(),
        Column::text("similar", "The similar node's key as text; null where there is an error").or_null(),
        Column::of("score", Kind::Number, "As in JSON, the most similar first; null where there is an error")
            .or_null(),
        Column::of("cold", Kind::Flag, "As in JSON; null where there is an error").or_null(),
        Column::text("error", ERROR).or_null(),
    ];
    type About = AboutFound;

    fn columns(self, _: usize) -> Result<(Vec<ArrayRef>, AboutFound), ArrowError> {
        let (mut items, mut nodes, mut others) = (Vec::new(), Vec::new(), Vec::new());
        let (mut scores, mut cold, mut errors) = (Vec::new(), Vec::new(), Vec::new());
        for (item, result) in (0..).zip(self.results) {
            let (node, rows) = match result {
                SimilarNodes::Found(FoundSimilar { node, similar }) => {
                    let row = |SimilarNode { node, score, cold }| (Some(node), Some(score), Some(cold), None);
                    (node, similar.into_iter().map(row).collect())
                }
                SimilarNodes::Missing(missing) => {
                    (missing.node, vec![(None, None, None, Some(missing.error))])
                }
            };
            for (other, score, is_cold, error) in rows {
                items.push(item);
                nodes.push(node.as_ref().map(|node| node.node.to_string()));
                others.push(other.map(|other| other.node.to_string()));
                scores.push(score);
                cold.push(is_cold);
                errors.push(error);
            }
        }
        let Self { at, unknown_candidates, source, freshness, index, .. } = self;
        let about = AboutFound { at, unknown_candidates, source, freshness, index };
        let (items, scores) = (Arc::new(UInt32Array::from(items)), Arc::new(Float32Array::from(scores)));
        let [nodes, others] = [nodes, others].map(|texts| Arc::new(StringArray::from(texts)));
        Ok((vec![items, nodes, others, scores, flags(cold), words(errors)], about))
    }
}

fn keys(keys: Vec<Key>) -> ArrayRef {
    Arc::new(StringArray::from_iter_values(keys.into_iter().map(|key| key.node.to_string())))
}

fn flags(flags: Vec<Option<bool>>) -> ArrayRef {
    Arc::new(BooleanArray::from(flags))
}

fn words(errors: Vec<Option<ItemError>>) -> ArrayRef {
    let word = |error| match error {
        ItemError::UnknownNode => "unknown_node",
        ItemError::NotFinite => "not_finite",
    };
    Arc::new(errors.into_iter().map(|error| error.map(word)).collect::<StringArray>())
}

fn order(order: RankedBy) -> &'static str {
    match order {
        RankedBy::Model => "model",
        RankedBy::Baseline => "baseline",
        RankedBy::Popularity => "popularity",
    }
}
