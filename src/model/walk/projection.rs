//! [`WalkProjection`]: random projections of decayed walk counts.
//!
//! Let `A_l(t)[u, w]` be the weight of all walks of `l` edges from `u` to `w`, a walk counting the product of
//! its edges' weights at `t`. Row `u` of `H_l(t) = A_l(t) P` with a random `P` of `d` columns is kept instead
//! of row `u` of `A_l`: inner products of such rows estimate those of the long ones (Johnson and
//! Lindenstrauss), so `H_a[u] . H_b[v]` estimates the weight of walks of `a + b` edges between `u` and `v`.
//!
//! ```text
//! H_0[u]   d signs, each +-1 / sqrt(d)                       fixed
//! event (u, v, t):  H_l[u] += H_(l-1)[v],  H_l[v] += H_(l-1)[u]   for l = k .. 1, with the rows of before
//! from reading r to reading r':  H_l *= exp(-l (r' - r))      when the row is touched next
//! ```
//! A row stands at the reading of the newest event that has touched it. Both rows of an event are first
//! brought to the newest of their readings and the event's, so no factor exceeds 1 and a late event counts
//! as little as it would had it come in time. An event far ahead of the stream counts as one of the present, or all
//! later ones of its nodes would count nothing. Vectors of signs serve as well as normal ones (Achlioptas)
//! and have the exact length 1.

use std::io::{Read, Write};

use super::WalkOptions;
use super::clock::{Clock, left};
use super::options::{LANES, STEPS_MAX};
use crate::device::rng;
use crate::device::simd::{Kernel, dispatch, fma};
use crate::event::{EdgeId, EventTime, NodeId, NodeTable, StreamClock};
use crate::model::rows::NodeRows;
use crate::model::{StateError, tables};

/// Keeps the signs apart from everything else that is drawn from one seed.
const SIGNS: u64 = 0x7761_6c6b_7369_676e;

/// Reading of a node without a row. Others are not below 0.
const NOWHERE: f64 = -1.0;

/// What each of the `k + 1` vectors of a row is multiplied by when the row is read at a later time.
pub(super) type Weights = [f32; STEPS_MAX + 1];

/// The rows `H_0 .. H_k` of every node seen.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct WalkProjection {
    steps: usize,
    dimension: usize,
    clock: Clock,
    /// Where in time the stream stands.
    stream: StreamClock,
    /// The first events, until it is sure when the stream began.
    early: Vec<(NodeId, NodeId, EventTime)>,
    seed: u64,
    /// `k + 1` vectors a node, one after another.
    rows: NodeRows,
    /// Reading at which the row of each node stands, [`NOWHERE`] where there is none.
    readings: NodeTable<f64>,
    zeros: Vec<f32>,
}

impl WalkProjection {
    pub(super) fn new(options: &WalkOptions) -> Self {
        let WalkOptions { steps, dimension, decay, seed, .. } = *options;
        let zeros = vec![0.0; (steps + 1) * dimension];
        Self {
            steps,
            dimension,
            clock: Clock::new(decay),
            stream: StreamClock::default(),
            early: Vec::new(),
            seed,
            rows: NodeRows::new(zeros.len()),
            readings: NodeTable::new(NOWHERE),
            zeros,
        }
    }

    pub(super) fn steps(&self) -> usize {
        self.steps
    }

    pub(super) fn dimension(&self) -> usize {
        self.dimension
    }

    /// The rows of `u` and `v`, zeros for a node without one, and what their vectors count at `time`.
    pub(super) fn rows_at(&self, u: NodeId, v: NodeId, time: EventTime) -> ([&[f32]; 2], [Weights; 2]) {
        let now = self.clock.reading(time);
        let of = |node: NodeId| match self.row(node) {
            Some((row, reading)) => (row, powers(left(now - reading))),
            None => (self.zeros.as_slice(), [1.0; STEPS_MAX + 1]),
        };
        let ((a, a_weights), (b, b_weights)) = (of(u), of(v));
        ([a, b], [a_weights, b_weights])
    }

    /// The row of a node, and the reading that it stands at.
    pub(super) fn row(&self, node: NodeId) -> Option<(&[f32], f64)> {
        let reading = Some(self.readings.get(node)).filter(|&reading| reading >= 0.0)?;
        Some((self.rows.get(node)?, reading))
    }

    /// When the stream began.
    pub(super) fn origin(&self) -> Option<EventTime> {
        self.clock.origin()
    }

    /// Prefetches the rows of an event or request that comes soon.
    pub(super) fn expect(&self, u: NodeId, v: NodeId) {
        self.rows.expect(u);
        self.rows.expect(v);
    }

    /// Takes in one event.
    pub(super) fn observe(&mut self, u: NodeId, v: NodeId, time: EventTime) {
        let is_early = !self.stream.is_confirmed();
        self.stream.observe(EdgeId(0), time);
        self.clock.start(time);
        if is_early {
            self.early.push((u, v, time));
            if self.begins_elsewhere() {
                return self.start_over();
            }
        }
        self.count(u, v, time);
        if is_early && self.stream.is_confirmed() {
            self.early = Vec::new();
        }
    }

    /// Whether `t0` is far from what the first events agree on.
    fn begins_elsewhere(&self) -> bool {
        let origin = self.clock.origin().zip(self.stream.covered());
        origin.is_some_and(|(origin, (first, latest))| !(first..=latest).contains(&origin))
    }

    /// Counts the first events again, from when the stream began.
    fn start_over(&mut self) {
        let first = self.stream.covered().map(|(first, _)| first);
        self.clock = Clock::since(self.clock.decay(), first);
        self.rows.reset();
        self.readings = NodeTable::new(NOWHERE);
        let early = std::mem::take(&mut self.early);
        early.iter().for_each(|&(u, v, time)| self.count(u, v, time));
        if !self.stream.is_confirmed() {
            self.early = early;
        }
    }

    fn count(&mut self, u: NodeId, v: NodeId, time: EventTime) {
        let event = self.clock.reading(self.stream.latest().map_or(time, |latest| time.min(latest)));
        let readings = [self.enter(u), self.enter(v)];
        let newest = readings[0].max(readings[1]).max(event);
        let (keep, count) = (readings.map(|reading| powers(left(newest - reading))), left(newest - event));
        let d = self.dimension;
        match self.rows.get_two_mut(u, v) {
            Some(rows) => dispatch(Meet { rows, d, keep, count }),
            None => dispatch(Loop { row: self.rows.get_mut(u), d, keep: keep[0], count }),
        }
        for node in [u, v] {
            self.readings.set(node, newest);
        }
    }

    /// The reading of a node's row, which is made if there is none.
    fn enter(&mut self, node: NodeId) -> f64 {
        let reading = self.readings.get(node);
        if reading >= 0.0 {
            return reading;
        }
        self.readings.set(node, 0.0);
        let size = 1.0 / (self.dimension as f32).sqrt();
        let prefix = rng::prefix([SIGNS, self.seed, u64::from(node.0)]);
        let row = self.rows.get_mut(node);
        for (word, signs) in row[..self.dimension].chunks_mut(64).enumerate() {
            let bits = rng::draw(prefix, word as u64);
            for (i, sign) in signs.iter_mut().enumerate() {
                *sign = if bits >> i & 1 == 0 { size } else { -size };
            }
        }
        0.0
    }

    pub(super) fn forget(&mut self, nodes: &[NodeId]) {
        for &node in nodes {
            self.readings.set(node, NOWHERE);
            self.rows.clear(node);
        }
        self.early.retain(|(u, v, _)| !nodes.contains(u) && !nodes.contains(v));
    }

    pub(super) fn reset(&mut self) {
        self.rows.reset();
        self.readings = NodeTable::new(NOWHERE);
        self.clock.reset();
        self.stream = StreamClock::default();
        self.early.clear();
    }

    /// Writes all of it but for the shape.
    pub(super) fn write(&self, out: &mut impl Write) -> std::io::Result<()> {
        tables::write_u64(out, self.seed)?;
        tables::write_table(out, self.clock.origin().as_slice())?;
        tables::write_table(out, &self.stream.to_numbers())?;
        let early =
            |end: fn(&(NodeId, NodeId, EventTime)) -> NodeId| self.early.iter().map(end).collect::<Vec<_>>();
        tables::write_table(out, &early(|event| event.0))?;
        tables::write_table(out, &early(|event| event.1))?;
        tables::write_table(out, &self.early.iter().map(|event| event.2).collect::<Vec<EventTime>>())?;
        self.rows.write(out)?;
        tables::write_nodes(out, &self.readings, |reading| reading)
    }

    /// What was written of a projection of this shape, with the seed that it had.
    pub(super) fn read(options: &WalkOptions, input: &mut impl Read) -> Result<Self, StateError> {
        let mut new = Self::new(&WalkOptions { seed: tables::read_u64(input)?, ..*options });
        let origin: Vec<EventTime> = tables::read_table(input)?;
        new.clock = Clock::since(options.decay, origin.first().copied());
        let stream = StreamClock::from_numbers(&tables::read_table::<i64>(input)?);
        new.stream = stream.ok_or(StateError::Lengths { table: "clock" })?;
        let ends: [Vec<NodeId>; 2] = [tables::read_table(input)?, tables::read_table(input)?];
        let times: Vec<EventTime> = tables::read_table(input)?;
        if ends.iter().any(|ends| ends.len() != times.len()) {
            return Err(StateError::Lengths { table: "first events" });
        }
        let [u, v] = ends;
        new.early = u.into_iter().zip(v).zip(times).map(|((u, v), time)| (u, v, time)).collect();
        new.rows = NodeRows::read(new.zeros.len(), input)?;
        new.readings = tables::read_nodes(input, NOWHERE)?;
        Ok(new)
    }

    pub(super) fn bytes(&self) -> usize {
        self.rows.bytes() + self.readings.bytes()
    }
}

/// `1, x, x^2, …`
pub(super) fn powers(x: f32) -> Weights {
    let mut powers = [1.0; STEPS_MAX + 1];
    for l in 1..powers.len() {
        powers[l] = powers[l - 1] * x;
    }
    powers
}

/// An event of two nodes: each vector is decayed and gets the other node's vector of one step less. From the
/// longest walks down, so that the rows of before are read where they stand.
struct Meet<'a> {
    rows: [&'a mut [f32]; 2],
    d: usize,
    keep: [Weights; 2],
    count: f32,
}

impl Kernel for Meet<'_> {
    type Output = ();

    #[inline(always)]
    fn run<const FMA: bool>(self) {
        let Self { rows: [a, b], d, keep: [keep_a, keep_b], count } = self;
        for step in (1..a.len() / d).rev() {
            let ((shorter_a, a), (shorter_b, b)) = (vectors(a, step, d), vectors(b, step, d));
            let (from_a, from_b) = (count * keep_a[step - 1], count * keep_b[step - 1]);
            for (((a, b), shorter_a), shorter_b) in a.iter_mut().zip(b).zip(shorter_a).zip(shorter_b) {
                for l in 0..LANES {
                    a[l] = fma::<FMA>(from_b, shorter_b[l], keep_a[step] * a[l]);
                    b[l] = fma::<FMA>(from_a, shorter_a[l], keep_b[step] * b[l]);
                }
            }
        }
    }
}

/// An event of a node with itself: it is both ends.
struct Loop<'a> {
    row: &'a mut [f32],
    d: usize,
    keep: Weights,
    count: f32,
}

impl Kernel for Loop<'_> {
    type Output = ();

    #[inline(always)]
    fn run<const FMA: bool>(self) {
        for step in (1..self.row.len() / self.d).rev() {
            let (shorter, row) = vectors(self.row, step, self.d);
            let from = 2.0 * self.count * self.keep[step - 1];
            for (row, shorter) in row.iter_mut().zip(shorter) {
                for l in 0..LANES {
                    row[l] = fma::<FMA>(from, shorter[l], self.keep[step] * row[l]);
                }
            }
        }
    }
}

/// The vectors of a row for walks of `step - 1` edges and, for writing, of `step`; `d` is a multiple of [`LANES`].
#[inline(always)]
fn vectors(row: &mut [f32], step: usize, d: usize) -> (&[[f32; LANES]], &mut [[f32; LANES]]) {
    let (shorter, longer) = row.split_at_mut(step * d);
    (shorter[(step - 1) * d..].as_chunks().0, longer[..d].as_chunks_mut().0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::walk::Decay;

    const NODES: usize = 12;

    fn events() -> Vec<(u32, u32, i64)> {
        let place = |i: u64, word| rng::below([3, i, word, 0], NODES as u32);
        // Every seventh event is late, one in twelve is a loop.
        (0..60_u64).map(|i| (place(i, 0), place(i, 1), i as i64 * 10 - i64::from(i % 7 == 0) * 25)).collect()
    }

    /// `H_l` by its definition, in 64 bits, every edge weighted as it counts at `now`.
    fn by_definition(options: &WalkOptions, events: &[(u32, u32, i64)], now: i64) -> Vec<Vec<f64>> {
        let Decay::Rate(rate) = options.decay else { unreachable!("the test sets a rate") };
        let mut signs = WalkProjection::new(options);
        let mut h: Vec<Vec<f64>> = (0..NODES as u32)
            .map(|node| {
                signs.enter(NodeId(node));
                signs.rows.get(NodeId(node)).unwrap().iter().map(|&v| f64::from(v)).collect()
            })
            .collect();
        for &(u, v, time) in events {
            let weight = (-rate * (now - time) as f64).exp();
            let before = [v, u].map(|other| h[other as usize].clone());
            for (node, other) in [u, v].into_iter().zip(&before) {
                let longer = h[node as usize][options.dimension..].iter_mut();
                longer.zip(other).for_each(|(value, other)| *value += weight * other);
            }
        }
        h
    }

    #[test]
    fn one_wild_time_neither_moves_the_begin_nor_stops_the_counting() {
        let options =
            WalkOptions { dimension: 32, decay: Decay::Span(8.0), seed: 5, ..WalkOptions::default() };
        let real =
            |i: i64| (NodeId((i * i % 7) as u32), NodeId((i % 5) as u32), EventTime(1_700_000_000 + i * 90));
        let mut plain = WalkProjection::new(&options);
        (0..200).map(real).for_each(|(u, v, time)| plain.observe(u, v, time));
        for (place, wild) in [(0, 0), (4, 0), (0, 4 << 60), (6, 4 << 60), (100, 4 << 60), (100, 0)] {
            let mut projection = WalkProjection::new(&options);
            for i in 0..200 {
                if i == place {
                    projection.observe(NodeId(100), NodeId(101), EventTime(wild));
                }
                let (u, v, time) = real(i);
                projection.observe(u, v, time);
                let (mut bytes, early) = (Vec::new(), projection.early.len());
                assert!(early <= 10 && (i < 10 || early == 0), "{early} events are kept");
                projection.write(&mut bytes).unwrap();
                assert!(WalkProjection::read(&options, &mut &bytes[..]).unwrap() == projection);
            }
            assert_eq!(projection.origin(), plain.origin(), "{wild} at {place}");
            for node in (0..7).map(NodeId) {
                assert_eq!(projection.row(node), plain.row(node), "{wild} at {place}");
            }
            // A node that had one wild event still counts its later ones.
            let known = projection.row(NodeId(100)).unwrap().1;
            assert!(
                known <= projection.clock.reading(EventTime(1_700_000_000 + 200 * 90)),
                "{wild} at {place}"
            );
        }
    }

    #[test]
    fn rows_decayed_when_touched_are_those_of_the_definition() {
        let options =
            WalkOptions { dimension: 32, decay: Decay::Rate(0.004), seed: 5, ..WalkOptions::default() };
        let (events, now) = (events(), 700);
        let mut projection = WalkProjection::new(&options);
        for &(u, v, time) in &events {
            projection.observe(NodeId(u), NodeId(v), EventTime(time));
        }
        for (node, expected) in by_definition(&options, &events, now).iter().enumerate() {
            let node = NodeId(node as u32);
            let ([row, _], [weights, _]) = projection.rows_at(node, node, EventTime(now));
            for (i, (value, expected)) in row.iter().zip(expected).enumerate() {
                let value = f64::from(value * weights[i / 32]);
                assert!(
                    (value - expected).abs() < 1e-4 * expected.abs().max(1.0),
                    "{node:?} {i}: {value} {expected}"
                );
            }
        }
    }

    #[test]
    fn inner_products_estimate_common_neighbors() {
        let options = WalkOptions { dimension: 1024, decay: Decay::Rate(0.0), ..WalkOptions::default() };
        let mut projection = WalkProjection::new(&options);
        // 1 and 2 share 20 of their 30 neighbors.
        for i in 0..30 {
            projection.observe(NodeId(1), NodeId(100 + i), EventTime(0));
            projection.observe(NodeId(2), NodeId(110 + i), EventTime(0));
        }
        let ([a, b], _) = projection.rows_at(NodeId(1), NodeId(2), EventTime(0));
        let one = 1024..2048;
        let product: f32 = a[one.clone()].iter().zip(&b[one]).map(|(a, b)| a * b).sum();
        assert!((product - 20.0).abs() < 3.0, "{product}");
    }

    #[test]
    fn a_long_stream_overflows_nowhere() {
        let mut projection =
            WalkProjection::new(&WalkOptions { decay: Decay::Rate(1.0), ..WalkOptions::default() });
        for i in 0..2_000_i64 {
            projection.observe(NodeId((i % 3) as u32), NodeId((i % 5) as u32), EventTime(i * 1_000_000_000));
        }
        let ([row, _], _) = projection.rows_at(NodeId(0), NodeId(0), EventTime(0));
        assert!(row.iter().all(|value| value.is_finite() && value.abs() < 10.0));
    }
}
