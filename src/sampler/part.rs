//! Sampling on one thread: the slots of some seeds in a row, filled in groups of [`GROUP_SEEDS`].
//!
//! A single seed would wait for memory five times: for its list, its directory, each step of the search for its time,
//! and each edge. So a group goes through these stage by stage, and each stage prefetches what the next one reads; the
//! memory accesses of a group's seeds overlap.

use std::ops::Range;

use super::draw::{Draws, GROUP_SEEDS, STEPS_MAX, draw_ranks};
use super::{MessageFlowGraph, SampleRequest, SamplingPolicy, Seeds};
use crate::event::{EdgeId, EventTime, NodeId};
use crate::graph::{Candidates, GraphReader, GraphView, Horizon, Neighbor, Past, Pick, SpillError};

/// The slots of consecutive seeds.
pub(super) struct Part<'a> {
    pub counts: &'a mut [u32],
    pub neighbors: &'a mut [NodeId],
    pub edges: &'a mut [EdgeId],
    pub times: &'a mut [EventTime],
    pub deltas: &'a mut [f32],
}

/// What one group holds between the stages.
#[derive(Default)]
struct Stages<'a> {
    pasts: Vec<Past<'a>>,
    horizons: Vec<Horizon<'a>>,
    candidates: Vec<Candidates<'a>>,
    draws: Draws,
    picks: Vec<Pick<'a>>,
    ranks: Vec<u32>,
}

impl Part<'_> {
    /// Samples `seeds`, the first of which has number `first` in its batch. On an error the slots are void.
    pub fn sample(
        mut self,
        view: GraphView<'_>,
        seeds: Seeds<'_>,
        first: usize,
        request: &SampleRequest,
    ) -> Result<(), SpillError> {
        let reader = view.reader(seeds.nodes);
        let times = seeds.times.iter().map(|&time| inside(request.window, time));
        match request.policy {
            SamplingPolicy::Recent => reader.expect_newest(seeds.nodes, times, request.fanout),
            SamplingPolicy::Uniform => reader.expect_counts(seeds.nodes, times),
        }
        let mut stages = Stages {
            pasts: Vec::with_capacity(GROUP_SEEDS),
            horizons: Vec::with_capacity(GROUP_SEEDS),
            ..Stages::default()
        };
        for begin in (0..seeds.nodes.len()).step_by(GROUP_SEEDS) {
            let rows = begin..(begin + GROUP_SEEDS).min(seeds.nodes.len());
            for &node in &seeds.nodes[rows.clone()] {
                reader.announce(node);
            }
            stages.locate(&reader, seeds, rows.clone(), request.window);
            match request.policy {
                SamplingPolicy::Recent => self.recent(&stages, seeds, rows, request.fanout),
                SamplingPolicy::Uniform if request.fanout <= STEPS_MAX => {
                    self.uniform(&mut stages, seeds, rows, first, request);
                }
                SamplingPolicy::Uniform => self.uniform_many(&mut stages, seeds, rows, first, request),
            }
        }
        drop(stages);
        reader.finish()
    }

    /// Fills the slots of the seeds `rows` with their newest edges.
    fn recent(&mut self, stages: &Stages<'_>, seeds: Seeds<'_>, rows: Range<usize>, fanout: usize) {
        for (index, horizon) in rows.zip(&stages.horizons) {
            let (begin, time) = (index * fanout, seeds.times[index]);
            let mut slot = begin;
            horizon.newest(fanout, |run| {
                slot = match run.newest_narrow() {
                    Some(edges) => self.fill(slot, time, edges),
                    None => self.fill(slot, time, run.newest_first()),
                };
            });
            self.close(index, slot, fanout);
        }
    }

    /// Fills the slots of the seeds `rows` with edges drawn from all.
    fn uniform(
        &mut self,
        stages: &mut Stages<'_>,
        seeds: Seeds<'_>,
        rows: Range<usize>,
        first: usize,
        request: &SampleRequest,
    ) {
        let fanout = request.fanout;
        stages.draw(first + rows.start, request);
        stages.find(fanout);
        let mut picks = stages.picks.as_slice();
        for (i, index) in rows.enumerate() {
            let (candidates, time) = (&stages.candidates[i], seeds.times[index]);
            let (begin, taken) = (index * fanout, fanout.min(candidates.count() as usize));
            if candidates.is_settled() {
                let (found, rest) = picks.split_at(taken);
                picks = rest;
                self.place(begin..begin + fanout, time, found, stages.draws.of(i).map(|(_, place)| place));
            } else {
                stages.ranks.clear();
                stages.ranks.resize(taken, 0);
                for (rank, place) in stages.draws.of(i).take(taken) {
                    stages.ranks[place] = rank;
                }
                self.pick(candidates, &stages.ranks, begin, time);
            }
            self.close(index, begin + taken, fanout);
        }
    }

    /// The same for more edges than [`STEPS_MAX`].
    fn uniform_many(
        &mut self,
        stages: &mut Stages<'_>,
        seeds: Seeds<'_>,
        rows: Range<usize>,
        first: usize,
        request: &SampleRequest,
    ) {
        for (index, horizon) in rows.zip(&stages.horizons) {
            let (begin, time) = (index * request.fanout, seeds.times[index]);
            let candidates = horizon.candidates();
            draw_ranks(candidates.count(), request, first + index, &mut stages.ranks);
            let slot = self.pick(&candidates, &stages.ranks, begin, time);
            self.close(index, slot, request.fanout);
        }
    }

    /// Fills the slots from `slot` on with the candidates of `ranks`, descending, and returns the next slot.
    fn pick(
        &mut self,
        candidates: &Candidates<'_>,
        ranks: &[u32],
        mut slot: usize,
        time: EventTime,
    ) -> usize {
        candidates.pick(ranks, |edge| slot = self.fill(slot, time, std::iter::once(edge)));
        slot
    }

    /// Fills the slots from `slot` on with `found`, edges before `seed_time`, and returns the next slot.
    #[inline]
    fn fill(
        &mut self,
        slot: usize,
        seed_time: EventTime,
        found: impl ExactSizeIterator<Item = Neighbor>,
    ) -> usize {
        let end = slot + found.len();
        let (neighbors, edges) = (&mut self.neighbors[slot..end], &mut self.edges[slot..end]);
        let (times, deltas) = (&mut self.times[slot..end], &mut self.deltas[slot..end]);
        for (i, neighbor) in found.enumerate().take(end - slot) {
            neighbors[i] = neighbor.node;
            edges[i] = neighbor.edge;
            times[i] = neighbor.time;
            deltas[i] = seed_time.since(neighbor.time);
        }
        end
    }

    /// Fills the `slots` at `places` with `found`, edges before `seed_time`.
    #[inline]
    fn place(
        &mut self,
        slots: Range<usize>,
        seed_time: EventTime,
        found: &[Pick<'_>],
        places: impl Iterator<Item = usize>,
    ) {
        let (neighbors, edges) = (&mut self.neighbors[slots.clone()], &mut self.edges[slots.clone()]);
        let (times, deltas) = (&mut self.times[slots.clone()], &mut self.deltas[slots]);
        for (pick, place) in found.iter().zip(places) {
            let neighbor = pick.neighbor();
            neighbors[place] = neighbor.node;
            edges[place] = neighbor.edge;
            times[place] = neighbor.time;
            deltas[place] = seed_time.since(neighbor.time);
        }
    }

    /// Records that the slots of seed `index` are filled up to `end`, and empties the others.
    #[inline]
    fn close(&mut self, index: usize, end: usize, fanout: usize) {
        let slots = end..(index + 1) * fanout;
        #[allow(clippy::cast_possible_truncation, reason = "the policies fill at most u32::MAX slots")]
        let count = (fanout - slots.len()) as u32;
        self.counts[index] = count;
        if slots.is_empty() {
            return;
        }
        self.neighbors[slots.clone()].fill(NodeId::NONE);
        self.edges[slots.clone()].fill(MessageFlowGraph::NO_EDGE);
        self.times[slots.clone()].fill(EventTime(0));
        self.deltas[slots].fill(0.0);
    }
}

/// The times of edges that count for a seed at `time`.
#[inline]
fn inside(window: Option<i64>, time: EventTime) -> Range<EventTime> {
    let from = window.map_or(EventTime::MIN, |window| EventTime(time.0.saturating_sub(window)));
    from..time
}

impl<'a> Stages<'a> {
    /// Finds the horizon of each of the seeds `rows`.
    fn locate(
        &mut self,
        reader: &'a GraphReader<'_>,
        seeds: Seeds<'_>,
        rows: Range<usize>,
        window: Option<i64>,
    ) {
        self.pasts.clear();
        self.horizons.clear();
        for (&node, &time) in seeds.nodes[rows.clone()].iter().zip(&seeds.times[rows]) {
            let past = reader.past(node, inside(window, time));
            past.announce();
            self.pasts.push(past);
        }
        self.horizons.extend(self.pasts.iter().map(|past| past.horizon()));
        while self.horizons.iter_mut().fold(false, |more, horizon| horizon.halve() | more) {}
    }

    /// Counts the candidates of each seed and draws from them; the group's first seed has number `first`.
    fn draw(&mut self, first: usize, request: &SampleRequest) {
        self.candidates.clear();
        self.candidates.extend(self.horizons.iter().map(Horizon::candidates));
        let mut counts = [0; GROUP_SEEDS];
        for (count, candidates) in counts.iter_mut().zip(&self.candidates) {
            *count = candidates.count();
        }
        self.draws.draw(request, first, &counts[..self.candidates.len()]);
    }

    /// Finds the edges drawn from settled candidates.
    fn find(&mut self, fanout: usize) {
        self.picks.clear();
        for (i, candidates) in self.candidates.iter().enumerate() {
            if candidates.is_settled() {
                let taken = fanout.min(candidates.count() as usize);
                let ranks = self.draws.of(i).take(taken).map(|(rank, _)| rank);
                candidates.find(ranks, &mut self.picks);
            }
        }
    }
}
