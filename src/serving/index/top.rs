//! The likeliest destinations of sources.

use std::sync::Arc;

use super::super::engine::{distinct, embedding_of};
use super::super::{Moment, QueryEngine, QueryError, Source};
use super::best::{Allowed, Best, better_first};
use super::candidates::AllowedBy;
use super::generation::Generation;
use super::table::{Measure, Scan};
use super::top_response::{FoundNode, Order, TopResponse, TopResult, TopSource};
use super::{Condition, Coverage, IndexState, LiveIndex};
use crate::event::{EventTime, NodeId};
use crate::model::GatherError;

/// Candidates that the second stage looks at, where the head does not split.
pub(super) const WIDE_ROWS: usize = 16_384;

/// The same where it splits, and walks have a say beside it.
const WALKED_ROWS: usize = 2_048;

/// Most events of a source that are searched for destinations it has met; bounds the time of a request about a hub.
const MET_EDGES_MAX: usize = 65_536;

/// Pairs that are scored at a time.
const SCORED_PAIRS: usize = 256;

/// How often a scan is repeated because what it found was deleted meanwhile.
const TRIES: usize = 8;

/// Scores that differ by less, relative to their size, may be in another order once they are computed anew.
const ROUNDING: f32 = 1e-4;

/// A source on its way through the stages.
struct Asked<'a> {
    item: &'a TopSource,
    id: Option<NodeId>,
    /// Its embedding by the weights of the rows, where those order candidates.
    vector: Option<&'a [f32]>,
    /// The destinations it had an event to, the newest first, where they matter.
    met: Vec<NodeId>,
}

/// The candidates that are scored, the best first where they have an order.
struct Listed {
    nodes: Vec<NodeId>,
    scanned: usize,
    order: Order,
    /// Whether none is missing that scoring would put before one of them, if rows are as of now.
    complete: bool,
}

impl QueryEngine {
    /// The likeliest destinations of sources, for several queries in one pass: one response each, in order.
    ///
    /// # Errors
    /// No weights were published yet, there is no index or it is not ready, more pairs would be scored than are
    /// allowed, or storage failed.
    pub fn top_links_of(
        &self,
        queries: &[&[TopSource]],
        moment: &Moment,
    ) -> Result<Vec<TopResponse>, QueryError> {
        let items: Vec<&TopSource> = queries.iter().copied().flatten().collect();
        let rows = if items.iter().all(|item| item.is_listed()) { None } else { Some(self.rows(moment)?) };
        let state = || rows.as_ref().map(|rows| self.index_state(rows));
        let before = state();
        let mut ranked = self.ranked(&items, rows.as_deref(), moment)?.into_iter();
        let after = state();
        // The age of rows matters only where they tell who is scored.
        let by_rows = moment.scores != Source::Baseline && moment.weights.model().needs().embeds();
        let learned = moment.freshness.applied_position;
        let as_of_now =
            |state: &IndexState| if by_rows { state.is_settled(learned) } else { state.has_all(learned) };
        let same = rows.as_ref().is_none_or(|rows| !by_rows || rows.weights.is(&moment.weights));
        let rows_are_exact = same && [before, after].iter().flatten().all(as_of_now);
        let mut freshness = moment.freshness;
        if moment.scores == Source::Baseline {
            freshness.model_version = 0;
        }
        let response = |query: &&[TopSource]| {
            let is_listed = query.iter().all(TopSource::is_listed);
            let part: Vec<_> = ranked.by_ref().take(query.len()).collect();
            let complete = part.iter().all(|(_, _, complete)| *complete);
            TopResponse {
                at: moment.at,
                source: moment.scores,
                freshness,
                coverage: Coverage {
                    index: after.filter(|_| !is_listed),
                    scanned: part.iter().map(|(_, scanned, _)| *scanned).max().unwrap_or_default(),
                    exact: complete && (is_listed || rows_are_exact),
                },
                results: part.into_iter().map(|(result, ..)| result).collect(),
            }
        };
        Ok(queries.iter().map(response).collect())
    }

    /// Candidates of a source that a second stage looks at, which scores them by the embeddings of the rows; 0: there
    /// is none.
    #[must_use]
    pub fn second_stage(&self) -> usize {
        let rows = self.index.as_ref().and_then(|index| index.generation());
        rows.map_or(0, |rows| match &rows.link {
            None => WIDE_ROWS,
            // As many again may have met the source.
            Some(_) if rows.weights.model().has_walks_beside() => 2 * WALKED_ROWS,
            Some(_) => 0,
        })
    }

    /// The rows at a moment.
    ///
    /// # Errors
    /// There is no index, or it had none.
    pub(super) fn rows(&self, moment: &Moment) -> Result<Arc<Generation>, QueryError> {
        let index = self.index.as_ref().ok_or(QueryError::NoIndex)?;
        moment.rows.clone().ok_or_else(|| match index.condition() {
            Condition::Full { needed } => {
                QueryError::IndexFull { needed, bytes_max: index.options().bytes_max }
            }
            Condition::Filling { done, of } => QueryError::IndexFilling { done, of },
            Condition::Waiting | Condition::Ready => {
                QueryError::IndexFilling { done: 0, of: self.stores.keys.len() }
            }
        })
    }

    pub(super) fn index_state(&self, rows: &Generation) -> IndexState {
        let state = |index: &Arc<LiveIndex>| index.state(rows, &self.progress, &self.states.touched);
        self.index.as_ref().map(state).unwrap_or_default()
    }

    /// What is found for each item, how many candidates were looked at, and whether none is missing.
    fn ranked(
        &self,
        items: &[&TopSource],
        rows: Option<&Generation>,
        moment: &Moment,
    ) -> Result<Vec<(TopResult, usize, bool)>, QueryError> {
        let ids: Vec<_> = items.iter().map(|item| self.stores.keys.lookup(&item.key)).collect();
        let unique = distinct(ids.iter().flatten().copied());
        let by_rows = rows.filter(|_| moment.scores != Source::Baseline);
        let (vectors, width) = match by_rows {
            Some(rows) => (
                self.embed(&rows.weights, unique.nodes(), moment.at)?,
                rows.weights.model().needs().embedding_dim,
            ),
            None => (Vec::new(), 0),
        };
        let mut asked = Vec::with_capacity(items.len());
        for (item, id) in items.iter().copied().zip(ids) {
            let vector = id.filter(|_| by_rows.is_some() && !item.is_listed());
            let vector = vector.map(|id| embedding_of(id, &unique, &vectors, width));
            asked.push(Asked { item, id, vector, met: self.met(item, id, moment)? });
        }
        let (mut allowed, mut scans) = (AllowedBy::default(), Vec::with_capacity(items.len()));
        for asked in &asked {
            let rows = rows.filter(|_| !asked.item.is_listed());
            scans.push(
                rows.map(|rows| self.scan_for(asked, rows, allowed.of(&asked.item.request.candidates, self))),
            );
        }
        let mut wanted: Vec<&mut Scan> = scans.iter_mut().flatten().collect();
        let scanned = rows.map_or(0, |rows| rows.table.scan(&mut wanted));
        let mut ranked = Vec::with_capacity(items.len());
        for (asked, scan) in asked.iter().zip(scans) {
            let listed = match rows.zip(scan) {
                Some((rows, scan)) => self.shortlist(asked, scan, (rows, scanned), moment),
                None => self.all_listed(asked)?,
            };
            let (scanned, complete) = (listed.scanned, listed.complete);
            ranked.push((self.rank(asked, listed, moment)?, scanned, complete));
        }
        Ok(ranked)
    }

    /// The destinations that matter besides the rows.
    fn met(&self, item: &TopSource, id: Option<NodeId>, moment: &Moment) -> Result<Vec<NodeId>, GatherError> {
        let is_wanted = moment.scores == Source::Baseline || moment.weights.model().needs().walks.is_some();
        match id.filter(|_| is_wanted || item.request.exclude_met) {
            Some(id) => Ok(self.stores.graph.view().destinations(id, moment.at, MET_EDGES_MAX)?),
            None => Ok(Vec::new()),
        }
    }

    /// What the rows are asked.
    fn scan_for(&self, asked: &Asked<'_>, rows: &Generation, mut allowed: Allowed) -> Scan {
        let request = &asked.item.request;
        allowed.but.extend(asked.met.iter().filter(|_| request.exclude_met));
        allowed.but.extend(asked.id);
        let measure = match (asked.vector, &rows.link) {
            (None, _) => Measure::Popularity,
            (Some(vector), Some(link)) => {
                Measure::Head { query: link.sources(vector), weights: link.output() }
            }
            (Some(vector), None) => Measure::Dot(vector.to_vec()),
        };
        let most = shortlist_length(request.limit).max(looked_at(&measure, rows));
        Scan { measure, allowed, best: Best::new(most) }
    }

    /// What a scan has found, without what was deleted.
    pub(super) fn found_by(&self, mut scan: Scan, rows: &Generation) -> Vec<(f32, NodeId)> {
        for _ in 0..TRIES {
            let found = scan.best.take();
            let is_gone = |&(_, node): &(f32, NodeId)| !self.stores.keys.is_named(node);
            if !found.iter().any(is_gone) {
                return found;
            }
            found.iter().filter(|found| is_gone(found)).for_each(|&(_, node)| rows.table.remove(node));
            rows.table.scan(&mut [&mut scan]);
        }
        scan.best.take()
    }

    /// The candidates of a source that are worth scoring.
    fn shortlist(
        &self,
        asked: &Asked<'_>,
        scan: Scan,
        (rows, scanned): (&Generation, usize),
        moment: &Moment,
    ) -> Listed {
        let (request, looked_at) = (&asked.item.request, looked_at(&scan.measure, rows));
        let is_head = matches!(scan.measure, Measure::Head { .. }) && looked_at == 0;
        let may_be = |node: &NodeId| {
            scan.allowed.takes(*node)
                && (!scan.allowed.destinations || self.states.touched.is_destination(*node))
        };
        let met: Vec<NodeId> = asked.met.iter().copied().filter(may_be).collect();
        let (mut found, short) = (self.found_by(scan, rows), shortlist_length(request.limit));
        let all = found.len() < short.max(looked_at);
        let (is_walk, mut is_cut) = (!rows.weights.model().needs().embeds(), false);
        if let (1.., false, Some(source)) = (looked_at, is_walk, asked.id.zip(asked.vector)) {
            // Walks may put what was met before anything that embeddings find.
            let met = met.iter().take(if rows.weights.model().has_walks_beside() { looked_at } else { 0 });
            let nodes = distinct(found.iter().map(|&(_, node)| node).chain(met.copied()));
            found = self.by_head(rows, source, nodes.nodes(), moment.at);
            is_cut = found.len() > short;
            found.truncate(short);
        }
        let is_clear = rows.table.is_precise() && is_clear(&found, request.limit);
        let complete = if is_head { all || is_clear } else { all && (!is_cut || is_clear) };
        let nodes = found.iter().map(|&(_, node)| node);
        let (order, nodes, complete) = match asked.id {
            None => (Order::Popularity, nodes.collect(), true),
            Some(_) if moment.scores == Source::Baseline => {
                let known = met.into_iter().take(request.limit);
                (Order::Baseline, distinct(known.chain(nodes)).nodes().to_vec(), true)
            }
            Some(_) if is_walk => (Order::Model, distinct(nodes.chain(met)).nodes().to_vec(), complete),
            Some(_) => (Order::Model, nodes.collect(), complete),
        };
        Listed { nodes, scanned, order, complete }
    }

    /// `nodes` with their scores, the best first, by the embeddings of the rows, and by walks if these have a say.
    fn by_head(
        &self,
        rows: &Generation,
        (id, vector): (NodeId, &[f32]),
        nodes: &[NodeId],
        at: EventTime,
    ) -> Vec<(f32, NodeId)> {
        let unique = distinct(std::iter::once(id).chain(nodes.iter().copied()));
        let vectors = [vector, &rows.table.vectors(nodes)].concat();
        let pairs: Vec<_> = nodes.iter().map(|&node| (id, node)).collect();
        let scores = self.score(&rows.weights, (&unique, &vectors), &pairs, at);
        let mut found: Vec<_> = scores.into_iter().zip(nodes.iter().copied()).collect();
        found.sort_by(better_first);
        found
    }

    /// All candidates.
    fn all_listed(&self, asked: &Asked<'_>) -> Result<Listed, QueryError> {
        let request = &asked.item.request;
        let mut nodes = request.candidates.listed(self);
        let is_named = request.candidates.keys.is_some();
        nodes.retain(|node| is_named || Some(*node) != asked.id);
        if request.exclude_met {
            let met = distinct(asked.met.iter().copied());
            nodes.retain(|node| met.slot(*node).is_none());
        }
        let (found, limit) = (nodes.len() * request.sources, request.pairs_max);
        if found > limit {
            return Err(QueryError::TooManyPairs { found, limit });
        }
        let order = if asked.id.is_some() { Order::Model } else { Order::Popularity };
        if order == Order::Popularity {
            nodes.sort_by_key(|node| std::cmp::Reverse(self.stores.graph.degree(*node)));
        }
        Ok(Listed { scanned: nodes.len(), nodes, order, complete: true })
    }

    /// Scores the candidates anew and puts them in order.
    fn rank(&self, asked: &Asked<'_>, listed: Listed, moment: &Moment) -> Result<TopResult, QueryError> {
        let src = asked.id.unwrap_or(NodeId::NONE);
        let limit = asked.item.request.limit;
        let Listed { mut nodes, mut order, .. } = listed;
        if order == Order::Popularity {
            nodes.truncate(limit);
        } else if moment.scores == Source::Baseline {
            order = Order::Baseline;
        }
        let pairs: Vec<_> = nodes.into_iter().map(|node| (src, node)).collect();
        let mut scored = Vec::with_capacity(pairs.len());
        for pairs in pairs.chunks(SCORED_PAIRS) {
            let scores = self.pair_scores(pairs, moment)?;
            scored.extend(scores.into_iter().zip(pairs.iter().map(|&(_, node)| node)));
        }
        scored.retain(|(score, _)| score.is_finite());
        if order != Order::Popularity {
            // Stable: of equal scores, those first that the stage before put first.
            scored.sort_by(|a, b| b.0.total_cmp(&a.0));
        }
        let is_cold = |node: NodeId| !self.states.has(node);
        let cold = is_cold(src);
        let node = |(score, node): (f32, NodeId)| {
            let key = self.stores.keys.key(node)?;
            Some(FoundNode { key, score, cold: cold || is_cold(node) })
        };
        Ok(TopResult { order, cold, found: scored.into_iter().filter_map(node).take(limit).collect() })
    }
}

/// Candidates that a second stage looks at, which scores them by the embeddings of the rows; 0: there is none.
fn looked_at(measure: &Measure, rows: &Generation) -> usize {
    match measure {
        Measure::Dot(_) => WIDE_ROWS,
        Measure::Head { .. } if rows.weights.model().has_walks_beside() => WALKED_ROWS,
        _ => 0,
    }
}

/// Candidates that are scored anew for `limit` results: rows are a little old, so somewhat more.
pub(super) fn shortlist_length(limit: usize) -> usize {
    limit.saturating_add((limit / 2).max(32))
}

/// Whether the last that was found is so far behind the last result that no rounding puts it before.
fn is_clear(found: &[(f32, NodeId)], limit: usize) -> bool {
    let last = found.last().zip(found.get(limit.saturating_sub(1)));
    last.is_none_or(|(last, result)| {
        last.0.to_bits() == result.0.to_bits() || result.0 - last.0 > ROUNDING * (1.0 + result.0.abs())
    })
}
