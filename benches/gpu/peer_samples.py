"""Temporal sampling by torch alone on a GPU: the 10 most recent neighbors, by a vectorized search among all edges.

    peer_samples.py EVENTS.csv[.gz] OUT.json

Torch has no temporal sampler, so this is one written for it, as fast as we could: edges lie in order of node and time
under one 64-bit key, a batch is one searchsorted, and ten edges before the place found are gathered. The table is made
once, of the whole stream, and takes no further events, which is more than a store that grows can allow itself. Batches
are those of `evergraph bench sample`: 600 events, 1,800 seeds, copied to the GPU in every batch, one call after the
other. It is timed eagerly and as a captured graph, and the faster counts. Before that, some batches are compared with
a list of edges.
"""

import random
import statistics
import sys
import time

import read_events
from torch_gpu import torch_on_gpu, write

BATCH_EVENTS, FANOUT, RUNS = 600, 10, 5
# Batches compared, and seeds of each.
COMPARED_EVERY, COMPARED_SEEDS = 40, 60


class Table:
    """Edges in both directions, in order of node and time. Times count from 1: nothing lies before the first."""

    def __init__(self, torch, device, stream):
        self.torch, self.device = torch, device
        src, dst, times = (torch.tensor(column) for column in stream)
        self.first_time = int(times.min()) - 1
        times = times - self.first_time
        self.span = int(times.max()) + 2
        # Both directions of an edge side by side, so that a stable sort keeps edges of one time in their order.
        node, other = torch.stack([src, dst], 1).flatten(), torch.stack([dst, src], 1).flatten()
        times, edge = times.repeat_interleave(2), torch.arange(len(src)).repeat_interleave(2)
        key, order = torch.sort(node * self.span + times, stable=True)
        self.key, self.other = key.to(device), other[order].to(device)
        self.time, self.edge = times[order].to(device), edge[order].to(device)
        self.back = torch.arange(1, FANOUT + 1, device=device)

    def sample(self, seeds):
        """Neighbors, times and edges of each of the seeds `[node, time]`, newest first, and which slots have one."""
        torch = self.torch
        first = seeds[0] * self.span
        end = torch.searchsorted(self.key, torch.stack([first, first + seeds[1]]))
        place = end[1][:, None] - self.back
        there = place >= end[0][:, None]
        place = place.clamp(min=0)
        return self.other[place], self.time[place], self.edge[place], there


def batches(stream):
    """Nodes and times of the seeds of every whole batch."""
    src, dst, times = stream
    draw = random.Random(0)
    for first in range(0, len(src) // BATCH_EVENTS * BATCH_EVENTS, BATCH_EVENTS):
        rows = slice(first, first + BATCH_EVENTS)
        against = [dst[draw.randrange(len(dst))] for _ in range(BATCH_EVENTS)]
        yield src[rows] + dst[rows] + against, times[rows] * 3


def compare(table, stream, seeds):
    """Whether the samples are those that a list of edges has."""
    edges = {}
    for edge, (src, dst, at) in enumerate(zip(*stream)):
        edges.setdefault(src, []).append((at, edge, dst))
        edges.setdefault(dst, []).append((at, edge, src))
    for number, batch in enumerate(seeds):
        if number % COMPARED_EVERY == 0:
            found = [each.tolist() for each in table.sample(batch[:, -COMPARED_SEEDS:].to(table.device))]
            for i, (node, at) in enumerate(batch[:, -COMPARED_SEEDS:].T.tolist()):
                at += table.first_time
                expected = [each for each in edges[node] if each[0] < at][-FANOUT:][::-1]
                got = [(when + table.first_time, edge, other) for other, when, edge, there in
                       zip(*(each[i] for each in found)) if there]
                if got != expected:
                    sys.exit(f"batch {number}, node {node} before {at}: {got} and not {expected}")


def rate(run, count, wait):
    """Batches per second, the median of some runs after one that is not timed."""
    rates = []
    for number in range(RUNS + 1):
        wait()
        started = time.perf_counter()
        run()
        wait()
        if number > 0:
            rates.append(count / (time.perf_counter() - started))
    return statistics.median(rates)


def measure(torch, device, table, seeds):
    """Batches per second eagerly and as a captured graph."""
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None

    def eager():
        for batch in seeds:
            table.sample(batch.to(device, non_blocking=True))

    rates = {"eager": rate(eager, len(seeds), wait)}
    if device == "cuda":
        given = seeds[0].to(device)
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            table.sample(given)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            table.sample(given)

        def replayed():
            for batch in seeds:
                given.copy_(batch, non_blocking=True)
                graph.replay()

        rates["captured graph"] = rate(replayed, len(seeds), wait)
    return rates


def main(events, out_path, *more):
    torch, device = torch_on_gpu(any_device=bool(more))
    stream = read_events.columns(events)
    table = Table(torch, device, stream)
    seeds = [torch.tensor(batch) for batch in batches(stream)]
    for batch in seeds:
        batch[1] -= table.first_time
    compare(table, stream, seeds)
    if device == "cuda":
        seeds = [batch.pin_memory() for batch in seeds]
    rates = measure(torch, device, table, seeds)
    figures = {"peer": f"torch {torch.__version__}, a search written for it", "batches": len(seeds),
            "recent_1x10_batches_per_second": max(rates.values()), "ways_batches_per_second": rates}
    write(out_path, figures)


if __name__ == "__main__":
    main(*sys.argv[1:])
