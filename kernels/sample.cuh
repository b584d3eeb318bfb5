// Steps of temporal sampling, done by a team per seed. The twin is src/sampler, which defines a sample; both give
// the same bits.
#ifndef EVERGRAPH_SAMPLE_CUH
#define EVERGRAPH_SAMPLE_CUH

#include "graph.cuh"
#include "rng.cuh"
#include "team.cuh"

// The pairs asked about. How many there are stands in memory of the GPU: another kernel may have counted them.
struct Seeds {
    const u32* nodes;
    const i64* times;
    const u32* count;
};

// The first three words of the random numbers' key but the seed's index, and what is asked of each seed.
struct Request {
    u64 seed;
    u64 batch;
    // How far back, not negative; less than 0: any time.
    i64 window;
    u32 layer;
    // Slots per seed, K.
    u32 fanout;
};

// Slot k of seed s is element s * K + k: newest first, the filled ones in front, then empty ones.
struct Slots {
    u32* counts;
    u32* neighbors;
    u64* edges;
    i64* times;
    float* deltas;

    FN void fill(u64 slot, const Block& block, const Edge& entry, i64 seed_time) const {
        i64 time = (i64)((u64)block.start + entry.time);
        put(neighbors + slot, entry.neighbor & ~INCOMING);
        put(edges + slot, block.base_edge + entry.edge);
        put(times + slot, time);
        put(deltas + slot, since(seed_time, time));
    }

    FN void empty(u64 slot) const {
        put(neighbors + slot, NO_NODE);
        put(edges + slot, NO_EDGE);
        put(times + slot, (i64)0);
        put(deltas + slot, 0.0f);
    }
};

// The edges of one node in a range of times.
struct Past {
    const Block* blocks;
    i64 from;
    i64 before;
    // Blocks before this one begin inside the range, and how many entries of the last of them are in it.
    u32 end;
    u32 rank;
};

// The number of entries before `time` in a block.
template <u32 W>
FN u32 rank_of_time(const Team<W>& team, const Graph& graph, const Block& block, i64 time) {
    Entries entries = graph.entries(block);
    u64 limit = block.distance(time);
    return limit == 0 ? 0 : team.search(0, block.length(), [&](u32 i) { return entries.time(i) < limit; });
}

template <u32 W>
FN Past find_past(const Team<W>& team, const Graph& graph, const View& view, u32 node, i64 time, i64 window) {
    NodeBlocks list = {0, 0};
    if (node < graph.node_count) {
        list = graph.nodes[node];
    }
    Past past;
    past.blocks = graph.blocks + list.first;
    past.before = time;
    past.from = max64(view.since, window < 0 ? MIN_TIME : minus_saturating(time, window));
    if (view.age >= 0) {
        past.from = max64(past.from, minus_saturating(time, view.age));
    }
    past.end = team.search(0, list.count, [&](u32 i) { return past.blocks[i].start < time; });
    past.rank = past.end == 0 ? 0 : rank_of_time(team, graph, past.blocks[past.end - 1], time);
    return past;
}

// Fills slots from element `first` on with the newest edges of `past`, `most` at most, and returns how many.
template <u32 W>
FN u32 fill_newest(const Team<W>& team, const Graph& graph, u64 bound, const Past& past, u64 first, u32 most,
                   const Slots& slots) {
    u32 filled = 0;
    for (u32 b = past.end; b > 0 && filled < most; b--) {
        Block block = past.blocks[b - 1];
        if (block.base_edge < bound) {
            Entries entries = graph.entries(block);
            bool all = block.highest() < bound;
            u64 limit = block.distance_of_edge(bound);
            u64 oldest = block.distance(past.from);
            u32 high = b == past.end ? past.rank : block.length();
            while (high > 0 && filled < most) {
                bool is_seen = false;
                bool is_old = false;
                Edge entry = {0, 0, 0};
                // Where every entry may be seen, no more are read than there are slots.
                if (team.lane < high && (!all || team.lane < most - filled)) {
                    entry = entries.at(high - 1 - team.lane);
                    is_old = entry.time < oldest;
                    is_seen = !is_old && entry.edge < limit;
                }
                u32 votes = team.vote(is_seen);
                u32 slot = filled + __popc(team.earlier(votes));
                if (is_seen && slot < most) {
                    slots.fill(first + slot, block, entry, past.before);
                }
                filled += __popc(votes);
                high = team.vote(is_old) != 0 || high < W ? 0 : high - W;
            }
        }
        if (block.start < past.from) {
            break;
        }
    }
    return min32(filled, most);
}

// The edges of a past as things to choose from, numbered from the oldest, 0. Up to block `settled` every entry is
// below the bound, and ranks are found by arithmetic; behind it each block counts how many of its entries are.
struct Candidates {
    // Ranks among all entries of the node of the first in the range of times and of the first behind it.
    u32 low;
    u32 high;
    u32 settled;
    // Candidates in settled blocks, and in all.
    u32 settled_count;
    u32 count;
};

// Entries start..end of a block, of which `visible` are below the bound; if `contiguous`, those at the front.
struct Part {
    u32 start;
    u32 end;
    u32 visible;
    bool contiguous;
};

template <u32 W>
FN Part part_of(const Team<W>& team, const Graph& graph, const Candidates& candidates, const Block& block, u64 bound) {
    Part part = {0, 0, 0, true};
    part.start = candidates.low > block.before ? candidates.low - block.before : 0;
    part.end = min32(block.length(), candidates.high - block.before);
    u64 limit = block.distance_of_edge(bound);
    if (limit == 0) {
        return part;
    }
    Entries entries = graph.entries(block);
    if (block.ordered()) {
        u32 cut = team.search(0, block.length(), [&](u32 i) { return entries.edge(i) < limit; });
        cut = min32(cut, part.end);
        part.visible = cut > part.start ? cut - part.start : 0;
        return part;
    }
    part.contiguous = false;
    for (u32 first = part.start; first < part.end; first += W) {
        u32 i = first + team.lane;
        part.visible += __popc(team.vote(i < part.end && entries.edge(i) < limit));
    }
    return part;
}

// The number of blocks of `past` up to the last that is settled.
template <u32 W>
FN u32 settled_blocks(const Team<W>& team, const Past& past, u32 low, u64 bound) {
    for (u32 end = past.end; end > 0; end = end < W ? 0 : end - W) {
        bool is_hidden = false;
        if (team.lane < end) {
            Block block = past.blocks[end - 1 - team.lane];
            is_hidden = block.highest() >= bound && block.before + block.length() > low;
        }
        u32 hidden = __ffs((int)~team.vote(is_hidden)) - 1;
        if (hidden < min32(W, end)) {
            return end - hidden;
        }
    }
    return 0;
}

template <u32 W>
FN Candidates count_candidates(const Team<W>& team, const Graph& graph, u64 bound, const Past& past) {
    Candidates found = {0, 0, 0, 0, 0};
    if (past.end == 0) {
        return found;
    }
    found.high = past.blocks[past.end - 1].before + past.rank;
    u32 begin = 0;
    if (past.from > MIN_TIME) {
        begin = team.search(0, past.end, [&](u32 i) { return past.blocks[i].start < past.from; });
    }
    if (begin > 0) {
        Block block = past.blocks[begin - 1];
        found.low = min32(found.high, block.before + rank_of_time(team, graph, block, past.from));
    }
    found.settled = settled_blocks(team, past, found.low, bound);
    u32 behind = found.settled < past.end ? min32(past.blocks[found.settled].before, found.high) : found.high;
    found.settled_count = behind > found.low ? behind - found.low : 0;
    found.count = found.settled_count;
    for (u32 b = found.settled; b < past.end; b++) {
        found.count += part_of(team, graph, found, past.blocks[b], bound).visible;
    }
    return found;
}

// What a lane drew: a rank among the candidates, and how many ranks of the team's lanes are above it.
struct Draw {
    u32 rank;
    u32 above;
};

// Floyd's draws of `fanout` <= W ranks below `count`, lane s doing step s; all ranks where there are no more. Only the
// first min(fanout, count) lanes hold one.
template <u32 W>
FN Draw draw_ranks(const Team<W>& team, const Request& request, u64 index, u32 count) {
    if (count <= request.fanout) {
        return {count - 1 - team.lane, team.lane};
    }
    u64 prefix = rng_prefix(request.seed, request.batch, index);
    u32 last = count - request.fanout + team.lane;
    Draw draw = {rng_scale(rng_absorb(prefix, (u64)request.layer << 32 | team.lane), last + 1), 0};
    for (u32 step = 0; step < request.fanout; step++) {
        bool is_earlier = team.lane < step;
        u32 rank = team.from(draw.rank, step);
        if (team.vote(is_earlier && draw.rank == rank) != 0) {
            rank = count - request.fanout + step;
        }
        u32 above = __popc(team.vote(is_earlier && draw.rank > rank));
        if (is_earlier) {
            draw.above += rank > draw.rank;
        } else if (team.lane == step) {
            draw.rank = rank;
            draw.above = above;
        }
    }
    return draw;
}

// A lane's entry: block of its past, and place in the block.
struct Pick {
    u32 block;
    u32 place;
};

// Finds the entries of the team's ranks, one per lane that is `active`.
template <u32 W>
FN Pick find_rank(const Team<W>& team, const Graph& graph, u64 bound, const Past& past, const Candidates& candidates,
                  u32 rank, bool active) {
    Pick pick = {0, 0};
    if (active && rank < candidates.settled_count) {
        u32 wanted = candidates.low + rank;
        // The last block that has no more entries before it; each lane searches for its own.
        u32 size = candidates.settled;
        while (size > 1) {
            u32 half = size / 2;
            if (past.blocks[pick.block + half].before <= wanted) {
                pick.block += half;
            }
            size -= half;
        }
        pick.place = wanted - past.blocks[pick.block].before;
    }
    u32 above = candidates.count;
    for (u32 b = past.end; b > candidates.settled; b--) {
        Block block = past.blocks[b - 1];
        Part part = part_of(team, graph, candidates, block, bound);
        u32 first = above - part.visible;
        bool is_here = active && rank >= first && rank < above;
        above = first;
        if (part.contiguous) {
            if (is_here) {
                pick = {b - 1, part.start + rank - first};
            }
        } else if (team.vote(is_here) != 0) {
            Entries entries = graph.entries(block);
            u64 limit = block.distance_of_edge(bound);
            for (u32 begin = part.start, passed = first; begin < part.end; begin += W) {
                u32 i = begin + team.lane;
                u32 votes = team.vote(i < part.end && entries.edge(i) < limit);
                u32 visible = __popc(votes);
                if (is_here && rank >= passed && rank < passed + visible) {
                    pick = {b - 1, begin + set_bit(votes, rank - passed)};
                }
                passed += visible;
            }
        }
    }
    return pick;
}

// Fills slots from element `first` on with edges drawn from `past`, and returns how many.
template <u32 W>
FN u32 fill_drawn(const Team<W>& team, const Graph& graph, u64 bound, const Past& past, u64 index, u64 first,
                  const Request& request, const Slots& slots) {
    Candidates candidates = count_candidates(team, graph, bound, past);
    if (candidates.count == 0) {
        return 0;
    }
    u32 taken = min32(candidates.count, request.fanout);
    Draw draw = draw_ranks(team, request, index, candidates.count);
    bool active = team.lane < taken;
    Pick pick = find_rank(team, graph, bound, past, candidates, draw.rank, active);
    if (active) {
        Block block = past.blocks[pick.block];
        // Inside of the block also if blocks count too few entries before them.
        u32 place = min32(pick.place, block.length() - 1);
        slots.fill(first + draw.above, block, graph.entries(block).at(place), past.before);
    }
    return taken;
}

// Samples every seed, W lanes to each.
template <u32 W, bool UNIFORM>
FN void sample_seeds(const Graph& graph, const View& view, const Request& request, const Seeds& seeds,
                     const Slots& slots) {
    Team<W> team;
    u32 count = *seeds.count;
    for (u64 s = THREAD_OF_GRID / W; s < count; s += THREADS_OF_GRID / W) {
        Past past = find_past(team, graph, view, seeds.nodes[s], seeds.times[s], request.window);
        u64 first = s * request.fanout;
        u32 taken = UNIFORM ? fill_drawn(team, graph, view.bound, past, s, first, request, slots)
                            : fill_newest(team, graph, view.bound, past, first, request.fanout, slots);
        for (u32 k = taken + team.lane; k < request.fanout; k += W) {
            slots.empty(first + k);
        }
        if (team.lane == 0) {
            put(slots.counts + s, taken);
        }
    }
}

#endif
