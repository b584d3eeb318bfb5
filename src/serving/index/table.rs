//! [`Table`]: the rows of one version of the weights.
//!
//! Rows are in chunks of [`CHUNK_ROWS`] ids, each behind its own lock: a scan holds one for a fraction of a
//! millisecond, and a row is written whole or not at all. A chunk without a live row takes no memory. Within a chunk,
//! rows are stored by [`LANES`], as the [scan](super::scan) reads them:
//!
//! ```text
//! head   [CHUNK_ROWS / LANES, hidden]  p_v = W_v z_v + b_a, where the link head splits; else hidden = 0
//! unit   [CHUNK_ROWS / LANES, width]   z_v / |z_v|
//! norm   [CHUNK_ROWS]                  |z_v|
//! degree [CHUNK_ROWS]                  edges of v in the graph
//! ```
//!
//! Head and unit are [in 32 bits or in 8](super::values). Each chunk has a [`Stamp`]: all its rows were computed then
//! or later.

use std::sync::Arc;
use std::time::Instant;

use parking_lot::RwLock;

use super::best::{Allowed, Best};
use super::scan::{GROUP, LANES, Lanes};
use super::values::{IndexPrecision, Values};
use crate::event::NodeId;

/// Ids of a chunk.
pub(super) const CHUNK_ROWS: usize = 8192;
const BLOCKS: usize = CHUNK_ROWS / LANES;

const LIVE: u8 = 1;
const DESTINATION: u8 = 2;

/// A moment, by the clock and by how far the loops were.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stamp {
    pub at: Instant,
    pub learned: u64,
    pub indexed: u64,
}

impl Stamp {
    /// Of a chunk that was not gone through yet.
    pub(super) fn never() -> Self {
        Self { at: Instant::now(), learned: u64::MAX, indexed: u64::MAX }
    }

    /// Whether nothing has happened between the two.
    pub(super) fn is_as_of(&self, other: &Self) -> bool {
        (self.learned, self.indexed) == (other.learned, other.indexed)
    }
}

/// What is stored of a node.
pub(super) struct Row<'a> {
    /// `hidden` values.
    pub head: &'a [f32],
    /// Its embedding, `width` values.
    pub vector: &'a [f32],
    pub degree: u32,
    pub is_destination: bool,
}

/// The rows.
pub(super) struct Table {
    precision: IndexPrecision,
    hidden: usize,
    width: usize,
    chunks: RwLock<Vec<Arc<RwLock<Chunk>>>>,
}

struct Chunk {
    stamp: Stamp,
    rows: Option<Rows>,
}

struct Rows {
    head: Values,
    unit: Values,
    norms: Vec<f32>,
    degrees: Vec<u32>,
    flags: Vec<u8>,
    live: usize,
}

/// What rows are ordered by.
pub(super) enum Measure {
    /// The link head, with the source's part of the hidden layer, and the weights of its output.
    Head { query: Vec<f32>, weights: Arc<Vec<f32>> },
    /// The cosine to a vector of length 1.
    Cosine(Vec<f32>),
    /// The inner product with a vector.
    Dot(Vec<f32>),
    /// The number of edges.
    Popularity,
}

/// A question to the table.
pub(super) struct Scan {
    pub measure: Measure,
    pub allowed: Allowed,
    pub best: Best,
}

impl Table {
    pub(super) fn new(precision: IndexPrecision, hidden: usize, width: usize) -> Self {
        Self { precision, hidden, width, chunks: RwLock::default() }
    }

    /// Whether rows are as they were computed, but for rounding of 32-bit floats.
    pub(super) fn is_precise(&self) -> bool {
        self.precision == IndexPrecision::F32
    }

    /// Bytes of a table with rows for ids below `nodes`.
    pub(super) fn bytes_for(&self, nodes: usize) -> u64 {
        let numbers = [self.hidden, self.width].map(|width| self.precision.bytes_of(width));
        let per_row = numbers[0] + numbers[1] + 2 * size_of::<f32>() + 1;
        (nodes.div_ceil(CHUNK_ROWS) * CHUNK_ROWS * per_row) as u64
    }

    /// Bytes held.
    pub(super) fn bytes(&self) -> u64 {
        let held = self.chunks().iter().filter(|chunk| chunk.read().rows.is_some()).count();
        self.bytes_for(held * CHUNK_ROWS)
    }

    /// When the rows of chunk `number` were computed at the latest; `None` if there is no such chunk.
    pub(super) fn stamp(&self, number: usize) -> Option<Stamp> {
        Some(self.chunks.read().get(number)?.read().stamp)
    }

    /// All rows of chunk `number` were computed at `stamp` or later.
    pub(super) fn set_stamp(&self, number: usize, stamp: Stamp) {
        self.chunk(number).write().stamp = stamp;
    }

    /// The oldest stamp of those that are not as of `now`; `None`: all are, or there are no rows.
    pub(super) fn oldest(&self, now: &Stamp) -> Option<Instant> {
        let stamps = self.chunks().into_iter().map(|chunk| chunk.read().stamp);
        stamps.filter(|stamp| !stamp.is_as_of(now)).map(|stamp| stamp.at).min()
    }

    /// Stores the row of `node`.
    pub(super) fn write(&self, node: NodeId, row: &Row<'_>) {
        let (number, place) = (node.index() / CHUNK_ROWS, node.index() % CHUNK_ROWS);
        let norm = row.vector.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>().sqrt();
        if !norm.is_finite() || !row.head.iter().all(|value| value.is_finite()) {
            return self.remove(node);
        }
        let chunk = self.chunk(number);
        let mut chunk = chunk.write();
        let rows = chunk.rows.get_or_insert_with(|| Rows::new(self.precision, [self.hidden, self.width]));
        rows.head.set(place, row.head.iter().copied());
        let scale = if norm > 0.0 { 1.0 / norm } else { 0.0 };
        rows.unit.set(place, row.vector.iter().map(|value| (f64::from(*value) * scale) as f32));
        rows.norms[place] = norm as f32;
        rows.degrees[place] = row.degree;
        rows.live += usize::from(rows.flags[place] & LIVE == 0);
        rows.flags[place] = if row.is_destination { LIVE | DESTINATION } else { LIVE };
    }

    /// Overwrites the row of `node`, which is found no more.
    pub(super) fn remove(&self, node: NodeId) {
        let (number, place) = (node.index() / CHUNK_ROWS, node.index() % CHUNK_ROWS);
        let Some(chunk) = self.chunks.read().get(number).cloned() else { return };
        let mut chunk = chunk.write();
        let Some(rows) = chunk.rows.as_mut().filter(|rows| rows.flags[place] & LIVE != 0) else { return };
        rows.head.set(place, std::iter::repeat_n(0.0, self.hidden));
        rows.unit.set(place, std::iter::repeat_n(0.0, self.width));
        (rows.norms[place], rows.degrees[place], rows.flags[place]) = (0.0, 0, 0);
        rows.live -= 1;
        if rows.live == 0 {
            chunk.rows = None;
        }
    }

    /// Rows that there are.
    pub(super) fn live(&self) -> usize {
        self.chunks().iter().map(|chunk| chunk.read().rows.as_ref().map_or(0, |rows| rows.live)).sum()
    }

    /// The embeddings `[nodes, width]` of `nodes`, zeros where there is none.
    pub(super) fn vectors(&self, nodes: &[NodeId]) -> Vec<f32> {
        let mut out = vec![0.0; nodes.len() * self.width];
        let chunks = self.chunks();
        for (node, out) in nodes.iter().zip(out.chunks_exact_mut(self.width.max(1))) {
            let Some(chunk) = chunks.get(node.index() / CHUNK_ROWS).map(|chunk| chunk.read()) else {
                continue;
            };
            let Some(rows) = &chunk.rows else { continue };
            let place = node.index() % CHUNK_ROWS;
            out.iter_mut()
                .zip(rows.unit.row(place))
                .for_each(|(out, value)| *out = value * rows.norms[place]);
        }
        out
    }

    /// Puts every row before each of the questions, in the order of ids. Returns how many rows there were.
    pub(super) fn scan(&self, scans: &mut [&mut Scan]) -> usize {
        let mut scanned = 0;
        for (number, chunk) in self.chunks().iter().enumerate() {
            let chunk = chunk.read();
            let Some(rows) = &chunk.rows else { continue };
            scanned += rows.live;
            rows.scan(number * CHUNK_ROWS, scans);
        }
        scanned
    }

    fn chunk(&self, number: usize) -> Arc<RwLock<Chunk>> {
        if let Some(chunk) = self.chunks.read().get(number) {
            return chunk.clone();
        }
        let mut chunks = self.chunks.write();
        while chunks.len() <= number {
            chunks.push(Arc::new(RwLock::new(Chunk { stamp: Stamp::never(), rows: None })));
        }
        chunks[number].clone()
    }

    fn chunks(&self) -> Vec<Arc<RwLock<Chunk>>> {
        self.chunks.read().clone()
    }
}

impl Rows {
    fn new(precision: IndexPrecision, [hidden, width]: [usize; 2]) -> Self {
        Self {
            head: Values::new(precision, BLOCKS, hidden),
            unit: Values::new(precision, BLOCKS, width),
            norms: vec![0.0; CHUNK_ROWS],
            degrees: vec![0; CHUNK_ROWS],
            flags: vec![0; CHUNK_ROWS],
            live: 0,
        }
    }

    /// Puts the rows, the first of which has the id `first`, before the questions: block by block, so that what is read
    /// once serves all of them.
    fn scan(&self, first: usize, scans: &mut [&mut Scan]) {
        let (mut heads, mut inners, mut others) = (Vec::new(), Vec::new(), Vec::new());
        for scan in scans.iter_mut().map(|scan| &mut **scan) {
            match scan.measure {
                Measure::Head { .. } => heads.push(scan),
                Measure::Cosine(_) | Measure::Dot(_) => inners.push(scan),
                Measure::Popularity => others.push(scan),
            }
        }
        for block in 0..BLOCKS {
            if self.flags[block * LANES..][..LANES].iter().all(|flags| flags & LIVE == 0) {
                continue;
            }
            for group in heads.chunks_mut(GROUP) {
                self.score_heads(group, (first, block));
            }
            for group in inners.chunks_mut(GROUP) {
                self.score_inners(group, (first, block));
            }
            for scan in &mut others {
                let degrees = &self.degrees[block * LANES..][..LANES];
                #[allow(clippy::cast_precision_loss)] // ties of hubs
                self.offer(&Lanes(std::array::from_fn(|lane| degrees[lane] as f32)), scan, (first, block));
            }
        }
    }

    /// Scores by the link head; all questions of a scan are about the weights of the table.
    fn score_heads(&self, scans: &mut [&mut Scan], at: (usize, usize)) {
        let query = |i: usize| match &scans[i.min(scans.len() - 1)].measure {
            Measure::Head { query, .. } => &query[..],
            _ => &[],
        };
        let Measure::Head { weights, .. } = &scans[0].measure else { return };
        let scores = match scans.len() {
            1 => [self.head.heads(at.1, [query(0)], weights)[0]; GROUP],
            _ => self.head.heads(at.1, std::array::from_fn(query), weights),
        };
        for (scores, scan) in scores.iter().zip(scans) {
            self.offer(scores, scan, at);
        }
    }

    fn score_inners(&self, scans: &mut [&mut Scan], at: (usize, usize)) {
        let query = |i: usize| match &scans[i.min(scans.len() - 1)].measure {
            Measure::Cosine(query) | Measure::Dot(query) => &query[..],
            _ => &[],
        };
        let mut scores = match scans.len() {
            1 => [self.unit.inners(at.1, [query(0)])[0]; GROUP],
            _ => self.unit.inners(at.1, std::array::from_fn(query)),
        };
        for (scores, scan) in scores.iter_mut().zip(scans) {
            if matches!(scan.measure, Measure::Dot(_)) {
                let norms = &self.norms[at.1 * LANES..];
                scores.0.iter_mut().zip(norms).for_each(|(score, norm)| *score *= norm);
            }
            self.offer(scores, scan, at);
        }
    }

    fn offer(&self, scores: &Lanes, scan: &mut Scan, (first, block): (usize, usize)) {
        let above = scan.best.above();
        if !scores.0.iter().any(|score| *score > above) {
            return;
        }
        let needed = if scan.allowed.destinations { LIVE | DESTINATION } else { LIVE };
        for (lane, score) in scores.0.iter().enumerate() {
            let place = block * LANES + lane;
            if *score > above && self.flags[place] & needed == needed {
                let Ok(id) = u32::try_from(first + place) else { return };
                if scan.allowed.takes(NodeId(id)) {
                    scan.best.offer(*score, NodeId(id));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::rng::below;

    const HIDDEN: usize = 5;
    const WIDTH: usize = 3;

    fn values(key: u64, count: usize) -> Vec<f32> {
        (0..count as u64).map(|j| below([key, j, 3, 0], 2001) as f32 / 1000.0 - 1.0).collect()
    }

    /// Every third node up to 20,000, the even ones of which are destinations.
    fn table() -> (Table, Vec<NodeId>) {
        table_in(IndexPrecision::F32)
    }

    fn table_in(precision: IndexPrecision) -> (Table, Vec<NodeId>) {
        let table = Table::new(precision, HIDDEN, WIDTH);
        let nodes: Vec<NodeId> = (0..20_000).step_by(3).map(NodeId).collect();
        for node in &nodes {
            let (head, vector) =
                (values(u64::from(node.0), HIDDEN), values(1 << 40 | u64::from(node.0), WIDTH));
            let (degree, is_destination) = (below([9, u64::from(node.0), 0, 0], 1 << 20), node.0 % 2 == 0);
            table.write(*node, &Row { head: &head, vector: &vector, degree, is_destination });
        }
        (table, nodes)
    }

    fn scan(measure: Measure, allowed: Allowed) -> Scan {
        Scan { measure, allowed, best: Best::new(10) }
    }

    /// The ten best of `nodes` by `score`, computed one by one.
    fn expected(nodes: &[NodeId], score: impl Fn(NodeId) -> f64) -> Vec<NodeId> {
        let mut all: Vec<_> = nodes.iter().map(|&node| (score(node), node)).collect();
        all.sort_by(|a, b| b.0.total_cmp(&a.0));
        all.iter().take(10).map(|&(_, node)| node).collect()
    }

    fn found(mut scan: Scan) -> Vec<NodeId> {
        scan.best.take().into_iter().map(|(_, node)| node).collect()
    }

    #[test]
    fn a_scan_finds_what_scoring_row_by_row_finds_for_any_number_of_queries() {
        let (table, nodes) = table();
        let weights = Arc::new(values(77, HIDDEN));
        let dot = |a: &[f32], b: &[f32]| -> f64 {
            a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
        };
        let vector = |node: NodeId| values(1 << 40 | u64::from(node.0), WIDTH);
        for count in [1, 3, 6] {
            let query = |i: u64, width| values(1 << 50 | i, width);
            let mut scans = Vec::new();
            for i in 0..count {
                let head = Measure::Head { query: query(i, HIDDEN), weights: weights.clone() };
                let measures = [head, Measure::Cosine(query(i, WIDTH)), Measure::Dot(query(i, WIDTH))];
                scans.extend(measures.map(|measure| scan(measure, Allowed::default())));
                scans.push(scan(Measure::Popularity, Allowed { destinations: true, ..Allowed::default() }));
            }
            assert_eq!(table.scan(&mut scans.iter_mut().collect::<Vec<_>>()), nodes.len());
            let mut scans = scans.into_iter();
            for i in 0..count {
                let (long, short) = (query(i, HIDDEN), query(i, WIDTH));
                let head = |node: NodeId| {
                    let row = values(u64::from(node.0), HIDDEN);
                    let hidden: Vec<f32> = row.iter().zip(&long).map(|(p, q)| (p + q).max(0.0)).collect();
                    dot(&hidden, &weights)
                };
                let length = |node| dot(&vector(node), &vector(node)).sqrt();
                let mut next = || found(scans.next().unwrap());
                assert_eq!(next(), expected(&nodes, head), "{i} of {count}");
                assert_eq!(next(), expected(&nodes, |node| dot(&vector(node), &short) / length(node)));
                assert_eq!(next(), expected(&nodes, |node| dot(&vector(node), &short)));
                let destinations: Vec<NodeId> =
                    nodes.iter().copied().filter(|node| node.0 % 2 == 0).collect();
                let degree = |node: NodeId| f64::from(below([9, u64::from(node.0), 0, 0], 1 << 20));
                assert_eq!(next(), expected(&destinations, degree));
            }
        }
    }

    #[test]
    fn rows_of_eight_bits_find_nearly_the_same_in_less_memory() {
        let [(precise, nodes), (coarse, _)] = [IndexPrecision::F32, IndexPrecision::Int8].map(table_in);
        assert!(precise.is_precise() && !coarse.is_precise());
        // 4 bytes of a scale in place of 3 for each number, so little here.
        assert!(coarse.bytes() < precise.bytes(), "{} {}", coarse.bytes(), precise.bytes());
        let weights = Arc::new(values(77, HIDDEN));
        let query = |i: u64, width| values(1 << 50 | i, width);
        for i in 0..5 {
            let measures = || {
                let head = Measure::Head { query: query(i, HIDDEN), weights: weights.clone() };
                [head, Measure::Cosine(query(i, WIDTH)), Measure::Dot(query(i, WIDTH))]
            };
            for (of, (exact, near)) in measures().into_iter().zip(measures()).enumerate() {
                let mut exact = scan(exact, Allowed::default());
                let mut near = Scan { best: Best::new(60), ..scan(near, Allowed::default()) };
                precise.scan(&mut [&mut exact]);
                coarse.scan(&mut [&mut near]);
                let (exact, near) = (exact.best.take(), near.best.take());
                for (score, node) in exact {
                    let found = near.iter().find(|(_, found)| *found == node);
                    assert!(
                        found.is_some_and(|found| (found.0 - score).abs() < 0.02),
                        "{of} {node:?} {found:?}"
                    );
                }
            }
        }
        let first = nodes[700];
        let (exact, near) = (precise.vectors(&[first]), coarse.vectors(&[first]));
        assert!(exact.iter().zip(&near).all(|(a, b)| (a - b).abs() < 0.01) && exact != near);
        coarse.remove(first);
        assert_eq!(coarse.vectors(&[first]), [0.0; WIDTH]);
    }

    #[test]
    fn a_removed_row_is_not_found_leaves_no_value_and_gives_its_memory_back_with_the_last_one() {
        let (table, nodes) = table();
        let best = || {
            let mut scan = scan(Measure::Dot(vec![1.0; WIDTH]), Allowed::default());
            table.scan(&mut [&mut scan]);
            found(scan)
        };
        let (first, bytes) = (best()[0], table.bytes());
        table.remove(first);
        assert!(!best().contains(&first) && table.live() == nodes.len() - 1);
        assert_eq!(table.vectors(&[first]), [0.0; WIDTH]);
        nodes.iter().filter(|node| node.index() < CHUNK_ROWS).for_each(|node| table.remove(*node));
        assert_eq!(table.bytes(), bytes / 3 * 2);
        let row = Row { head: &[f32::NAN; HIDDEN], vector: &[1.0; WIDTH], degree: 1, is_destination: true };
        let live = table.live();
        table.write(nodes[6000], &row);
        assert_eq!(table.live(), live - 1, "a row that is not finite is none");
    }

    #[test]
    fn rows_outside_the_candidates_are_not_found() {
        let (table, nodes) = table();
        let mut bits = vec![0; 20_000 / 64 + 1];
        let among: Vec<NodeId> = nodes.iter().copied().filter(|node| node.0 % 5 == 0).collect();
        among.iter().for_each(|node| bits[node.index() / 64] |= 1 << (node.index() % 64));
        let but = among[..among.len() / 2].iter().copied().collect();
        let allowed = Allowed { destinations: false, among: Some(Arc::new(bits)), but };
        let mut scan = scan(Measure::Popularity, allowed);
        table.scan(&mut [&mut scan]);
        let degree = |node: NodeId| f64::from(below([9, u64::from(node.0), 0, 0], 1 << 20));
        assert_eq!(found(scan), expected(&among[among.len() / 2..], degree));
    }

    #[test]
    fn a_row_is_as_old_as_the_stamp_of_its_chunk_until_nothing_happened_since() {
        let (table, _) = table();
        let later = |learned| Stamp { at: Instant::now(), learned, indexed: 2 };
        assert!(table.oldest(&later(1)).is_some(), "no chunk was gone through");
        let before = Instant::now();
        (0..3).for_each(|chunk| table.set_stamp(chunk, later(5)));
        assert!(table.oldest(&later(5)).is_none());
        assert!(table.oldest(&later(6)).is_some_and(|at| at >= before));
        assert!(table.stamp(2).is_some() && table.stamp(3).is_none());
    }
}
