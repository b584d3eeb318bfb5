"""Queries that `evergraph-research requests --write` wrote, and their correct results.

The files are described at the top of benches/research/requests.rs. A result is an array [seeds, fanout] of edge ids,
newest first where the policy is recent, then -1.
"""

import json
from pathlib import Path

import numpy as np

NO_EDGE = -1


class Queries:
    """The events of a stream and the batches that are sampled."""

    def __init__(self, folder):
        read = lambda name, kind: np.fromfile(Path(folder, name), dtype=kind)
        figures = json.loads(Path(folder, "figures.json").read_text())
        self.ask, self.in_stream_order = figures["ask"], figures["in_stream_order"]
        self.fanout, self.layers = figures["fanout"], figures["layers"]
        self.nodes, self.batch_events = figures["nodes"], figures["batch_events"]
        self.src = read("src.u32", "<u4").astype(np.int64)
        self.dst = read("dst.u32", "<u4").astype(np.int64)
        self.time = read("time.i64", "<i8")
        self.history = History(self.src, self.dst, self.time)
        first = read("first.i64", "<i8")
        begin = [read(f"seeds.{layer}.i64", "<i8") for layer in range(1, self.layers + 1)]
        node = [read(f"node.{layer}.u32", "<u4").astype(np.int64) for layer in range(1, self.layers + 1)]
        at = [read(f"at.{layer}.i64", "<i8") for layer in range(1, self.layers + 1)]
        result = [
            read(f"response.{layer}.i64", "<i8").reshape(-1, self.fanout) for layer in range(1, self.layers + 1)
        ]
        rows = lambda layer, i: slice(begin[layer][i], begin[layer][i + 1])
        self.batches = [
            Batch(self, first[i], node[0][rows(0, i)], at[0][rows(0, i)]) for i in range(len(first))
        ]
        # The results of evergraph: per batch and layer the nodes, the times and the edges.
        self.ours = [
            [(node[l][rows(l, i)], at[l][rows(l, i)], result[l][rows(l, i)]) for l in range(self.layers)]
            for i in range(len(first))
        ]


class Batch:
    """Seeds, and the events that are applied after the query in stream order."""

    def __init__(self, queries, first, node, at):
        self.events = slice(first, first + queries.batch_events)
        self.node, self.at = node, at
        # Only edges below this id have arrived.
        self.arrived = first if queries.in_stream_order else len(queries.time)


class History:
    """Every node's edges in order of arrival, to find correct results."""

    def __init__(self, src, dst, time):
        assert (np.diff(time) >= 0).all(), "events are in order of time"
        assert (src != dst).all(), "an edge from a node to itself would be listed twice by some"
        self.src, self.dst, self.time = src, dst, time
        edge = np.arange(len(src))
        self.key = np.sort(np.concatenate([src << 32 | edge, dst << 32 | edge]))
        self.edge = self.key & 0xFFFF_FFFF

    def past(self, node, at, arrived):
        """Where the edges of each node strictly before `at` begin and end in `self.edge`."""
        below = np.minimum(np.searchsorted(self.time, at, side="left"), arrived)
        return np.searchsorted(self.key, node << 32), np.searchsorted(self.key, node << 32 | below)

    def newest(self, node, at, arrived, fanout):
        """The correct result of the policy recent."""
        begin, end = self.past(node, at, arrived)
        slot = end[:, None] - 1 - np.arange(fanout)
        return np.where(slot >= begin[:, None], self.edge[slot.clip(0)], NO_EDGE)

    def check_newest(self, node, at, arrived, result, who):
        expected = self.newest(node, at, arrived, result.shape[1])
        wrong = (result != expected).any(axis=1)
        assert not wrong.any(), f"{who}: {wrong.sum()} of {len(wrong)} seeds have other edges than expected"

    def check_uniform(self, node, at, arrived, result, who):
        """As many edges as there are, at most the fanout; all from the node's past; none twice."""
        begin, end = self.past(node, at, arrived)
        count = (result != NO_EDGE).sum(axis=1)
        assert (count == np.minimum(end - begin, result.shape[1])).all(), f"{who}: wrong number of edges"
        seed, edge = np.repeat(np.arange(len(node)), count), result[result != NO_EDGE]
        place = np.searchsorted(self.key, node[seed] << 32 | edge)
        inside = (place >= begin[seed]) & (place < end[seed])
        assert inside.all() and (self.edge[place] == edge).all(), f"{who}: an edge from outside the past"
        assert len(np.unique(seed << 32 | edge)) == len(edge), f"{who}: an edge twice"

    def next_seeds(self, node, result):
        """The distinct (neighbor, time of the edge) pairs of a result, ascending."""
        seed, edge = np.repeat(node, (result != NO_EDGE).sum(axis=1)), result[result != NO_EDGE]
        neighbor = self.src[edge] + self.dst[edge] - seed
        return np.unique(np.stack([neighbor, self.time[edge]]), axis=1)


def check_ours(queries):
    """Checks the results of evergraph."""
    history = queries.history
    policy = history.check_newest if queries.ask in ("newest", "recent") else history.check_uniform
    for batch, layers in zip(queries.batches, queries.ours):
        for node, at, result in layers:
            policy(node, at, batch.arrived, result, "evergraph")
        for (node, _, result), (next_node, next_at, _) in zip(layers, layers[1:]):
            expected = history.next_seeds(node, result)
            order = np.lexsort([next_at, next_node])
            assert np.array_equal(expected, np.stack([next_node, next_at])[:, order]), "evergraph: next seeds"
