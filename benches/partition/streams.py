"""Batches of a real stream: the seeds of each, and the newest neighbors of each seed."""

import csv
import gzip
import math
import random
from collections import Counter, defaultdict, deque

FANOUT = 10


class Real:
    """The events of a file, cut into batches, of which some are counted."""

    def __init__(self, path, batch_events, counted):
        with gzip.open(path, "rt", newline="") as lines:
            rows = csv.reader(lines)
            columns = next(rows)
            src, dst, time = (columns.index(name) for name in ("src", "dst", "ts"))
            events = [(row[src], row[dst], float(row[time])) for row in rows]
        events.sort(key=lambda event: event[2])
        numbers = {}
        number = lambda name: numbers.setdefault(name, len(numbers))
        self.events = [(number(src), number(dst)) for src, dst, _ in events]
        self.batch_events = batch_events
        whole = len(self.events) // batch_events
        later = range(whole // 2, whole)
        self.counted = set(later[:: max(1, len(later) // counted)])
        self.shares = Counter(node for event in self.events for node in event)

    def exponent(self):
        """Of the power law that the nodes' shares of the events follow by rank: least squares over the first hundred."""
        return exponent([count for _, count in self.shares.most_common(100)])

    def hubs(self, machines):
        """Nodes with a quarter and more of what a machine would have of the ends of events if all had alike."""
        least = len(self.events) * 2 / machines / 4
        return frozenset(node for node, count in self.shares.items() if count >= least)

    def batches(self):
        """Of each counted batch the events, as (source, destination, negative), and the neighbors of every node in
        them, as of its begin."""
        newest, met, draw = defaultdict(lambda: deque(maxlen=FANOUT)), [], random.Random(3)
        for number in range(len(self.events) // self.batch_events):
            events = self.events[number * self.batch_events :][: self.batch_events]
            if number in self.counted:
                batch = [(src, dst, draw.choice(met)) for src, dst in events]
                yield batch, {node: tuple(newest[node]) for event in batch for node in event}
            for src, dst in events:
                newest[src].append(dst)
                newest[dst].append(src)
                met.append(dst)


def exponent(counts):
    """The slope of the logarithms of `counts`, largest first, over those of their ranks, without its sign."""
    points = [(math.log(rank + 1), math.log(count)) for rank, count in enumerate(counts)]
    x, y = (sum(values) / len(points) for values in zip(*points))
    return -sum((a - x) * (b - y) for a, b in points) / sum((a - x) ** 2 for a, _ in points)
