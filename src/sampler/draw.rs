//! The draws of uniform sampling: Floyd's algorithm as the module above documents it, for a group of seeds at once, one
//! seed per lane. A step depends on the steps before, but seeds do not depend on each other: each comparison of two
//! steps is one operation on a row of seeds, without branches on what was drawn.

use super::SampleRequest;
use crate::device::{rng, simd};

/// Seeds of a group, whose draws are made in one pass.
pub(super) const GROUP_SEEDS: usize = 32;
/// Most edges per seed that are drawn this way: the work grows with the square.
pub(super) const STEPS_MAX: usize = 32;

/// What a group of seeds drew.
#[derive(Default)]
pub(super) struct Draws {
    /// Seeds of the group.
    width: usize,
    /// Rows of a value for each seed: per step, the rank that the seed took.
    ranks: Vec<u32>,
    /// Per step, how many of the seed's ranks are above the one of this step.
    above: Vec<u32>,
}

impl Draws {
    /// Draws `request.fanout` ranks below each of `counts`, or takes all where there are no more. The first seed has
    /// number `first` in its batch.
    pub fn draw(&mut self, request: &SampleRequest, first: usize, counts: &[u32]) {
        self.width = counts.len();
        let steps = request.fanout.min(STEPS_MAX);
        self.ranks.resize(steps * self.width, 0);
        self.above.resize(steps * self.width, 0);
        let state = rng::absorb(rng::absorb(rng::START, request.seed), request.batch);
        let floyd = Floyd {
            counts,
            first: first as u64,
            state,
            word: u64::from(request.layer) << 32,
            ranks: &mut self.ranks,
            above: &mut self.above,
        };
        simd::dispatch(floyd);
    }

    /// The ranks that seed `index` of the group took, in order of steps, and how many of its ranks are above each. Only
    /// the first are valid if it has fewer edges than there are steps.
    #[inline]
    pub fn of(&self, index: usize) -> impl Iterator<Item = (u32, usize)> + Clone {
        let rows = self.ranks.chunks_exact(self.width).zip(self.above.chunks_exact(self.width));
        rows.map(move |(ranks, above)| (ranks[index], above[index] as usize))
    }
}

struct Floyd<'a> {
    counts: &'a [u32],
    /// Number of the first seed, and state after the words before it.
    first: u64,
    state: u64,
    /// Last word of the random numbers' key at step 0.
    word: u64,
    ranks: &'a mut [u32],
    above: &'a mut [u32],
}

impl simd::Kernel for Floyd<'_> {
    type Output = ();

    // Loops over seeds have a length that the compiler does not know, or it would unroll them and lose the rows.
    #[inline(always)]
    #[allow(clippy::cast_possible_truncation, reason = "steps are few")]
    fn run<const FMA: bool>(self) {
        let Self { counts, first, state, word, ranks, above } = self;
        let width = counts.len();
        let steps = (ranks.len() / width) as u32;
        let mut states = [0; GROUP_SEEDS];
        for (state_of_seed, index) in states[..width].iter_mut().zip(first..) {
            *state_of_seed = rng::absorb(state, index);
        }
        let mut flags = [0; GROUP_SEEDS];
        let flags = &mut flags[..width];
        for step in 0..steps {
            let (taken, rest) = ranks.split_at_mut(step as usize * width);
            let drawn = &mut rest[..width];
            for ((rank, &state), &count) in drawn.iter_mut().zip(&states[..width]).zip(counts) {
                let bound = count.wrapping_sub(steps).wrapping_add(step + 1);
                *rank = rng::scale(rng::draw(state, word | u64::from(step)), bound);
            }
            flags.fill(0);
            for earlier in taken.chunks_exact(width) {
                for ((is_taken, &rank), &earlier) in flags.iter_mut().zip(&*drawn).zip(earlier) {
                    *is_taken |= u32::from(rank == earlier);
                }
            }
            for ((rank, &count), &is_taken) in drawn.iter_mut().zip(counts).zip(&*flags) {
                let last = count.wrapping_sub(steps).wrapping_add(step);
                let taken = if is_taken == 0 { *rank } else { last };
                *rank = if count <= steps { count.wrapping_sub(step + 1) } else { taken };
            }
        }
        for (step, above) in above.chunks_exact_mut(width).enumerate() {
            let own = &ranks[step * width..][..width];
            above.fill(0);
            for other in ranks.chunks_exact(width) {
                for ((above, &rank), &other) in above.iter_mut().zip(own).zip(other) {
                    *above += u32::from(other > rank);
                }
            }
            for (above, &count) in above.iter_mut().zip(counts) {
                *above = if count <= steps { step as u32 } else { *above };
            }
        }
    }
}

/// The ranks that one seed takes of `count`, descending; any number of them.
pub(super) fn draw_ranks(count: u32, request: &SampleRequest, index: usize, ranks: &mut Vec<u32>) {
    ranks.clear();
    let wanted = u32::try_from(request.fanout).unwrap_or(u32::MAX);
    if count <= wanted {
        ranks.extend((0..count).rev());
        return;
    }
    let prefix = rng::prefix([request.seed, request.batch, index as u64]);
    for step in 0..wanted {
        let last = count - wanted + step;
        let random = rng::draw(prefix, u64::from(request.layer) << 32 | u64::from(step));
        let drawn = rng::scale(random, last + 1);
        match ranks.binary_search_by(|rank| drawn.cmp(rank)) {
            // `last` is larger than all that could be drawn before.
            Ok(_) => ranks.insert(0, last),
            Err(place) => ranks.insert(place, drawn),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sampler::SamplingPolicy;

    /// The algorithm of the sampler's module, literally; descending.
    fn documented(count: u32, fanout: usize, index: u64) -> Vec<u32> {
        let mut taken = std::collections::BTreeSet::new();
        if count as usize <= fanout {
            taken.extend(0..count);
        } else {
            for step in 0..fanout as u32 {
                let last = count - fanout as u32 + step;
                let drawn = rng::below([1, 2, index, 3 << 32 | u64::from(step)], last + 1);
                assert!(taken.insert(drawn) || taken.insert(last));
            }
        }
        taken.into_iter().rev().collect()
    }

    fn request(fanout: usize) -> SampleRequest {
        SampleRequest { policy: SamplingPolicy::Uniform, fanout, window: None, seed: 1, batch: 2, layer: 3 }
    }

    #[test]
    fn a_group_draws_as_documented() {
        let mut draws = Draws::default();
        for fanout in [1, 3, 10, 16, STEPS_MAX] {
            for width in [1, 5, GROUP_SEEDS] {
                // From none over barely more than the fanout, where most draws collide, to very many.
                let edge = fanout as u32;
                let some = [0, 1, edge - 1, edge, edge + 1, edge + 2, 2 * edge, 100, u32::MAX];
                let counts: Vec<u32> = some.into_iter().cycle().take(width).collect();
                draws.draw(&request(fanout), 7, &counts);
                for (index, &count) in counts.iter().enumerate() {
                    let taken = fanout.min(count as usize);
                    let mut ranks = vec![0; taken];
                    for (rank, place) in draws.of(index).take(taken) {
                        ranks[place] = rank;
                    }
                    assert_eq!(ranks, documented(count, fanout, 7 + index as u64), "{fanout} of {count}");
                }
            }
        }
    }

    #[test]
    fn one_seed_draws_as_documented() {
        let mut ranks = Vec::new();
        for (count, fanout, index) in
            [(100, 10, 0), (11, 10, 5), (10, 10, 1), (3, 10, 2), (5_000, 40, 3), (7, 0, 4)]
        {
            draw_ranks(count, &request(fanout), index, &mut ranks);
            assert_eq!(ranks, documented(count, fanout, index as u64), "{fanout} of {count}");
        }
    }
}
