"""The stream as every peer reads it: the published split, masked nodes, and the negatives that `evergraph eval` draws.

Rows of the event file are in order of time; nodes are numbered as their names first appear. What is drawn is a
function of its key alone, by the same counters as in `src/device/rng.rs`, so that everybody trains against the same
negatives. Needs numpy.
"""

import csv
import gzip
import io
import sys
from pathlib import Path

import numpy as np

VALIDATION_FROM, TEST_FROM = 0.70, 0.85
# Keys of `src/train/negative.rs` and `src/train/protocol.rs`.
NEGATIVES, TRAIN_DRAW = 0x6E65_6761_7469_7665, 2
START, GOLDEN = np.uint64(0x243F_6A88_85A3_08D3), np.uint64(0x9E37_79B9_7F4A_7C15)


class Stream:
    """An event file, cut in parts: `train` are the rows that are trained on, `validation` and `test` where these parts
    begin. `given` has the destinations of the negatives of both."""

    def __init__(self, data, name, seed):
        events = columns(data / f"{name}.csv.gz", ("src", "dst", "ts"))
        order = np.argsort(events["ts"], kind="stable")
        names = np.stack([events["src"][order], events["dst"][order]], 1)
        self.times, self.seed = events["ts"][order], seed
        self.names, nodes = numbered(names.ravel())
        self.src, self.dst = nodes.reshape(-1, 2).T.copy()
        self.nodes = len(self.names)
        after = lambda share: int(np.searchsorted(self.times, np.quantile(self.times, share), side="right"))
        self.validation, self.test = after(VALIDATION_FROM), after(TEST_FROM)
        hidden = np.zeros(self.nodes, bool)
        hidden[self.ids(columns(data / "protocol" / f"{name}-masked-nodes.csv.gz", ("node",))["node"])] = True
        seen = ~(hidden[self.src] | hidden[self.dst])
        self.train = np.flatnonzero(seen[: self.validation])
        pool = self.dst[self.train]
        self.pool = pool[np.sort(np.unique(pool, return_index=True)[1])]
        self.given = {part: self.negatives_of(data, name, part) for part in ("val", "test")}

    def ids(self, names):
        """The numbers of nodes by their names."""
        order = np.argsort(self.names)
        return order[np.searchsorted(self.names, names, sorter=order)]

    def negatives_of(self, data, name, part):
        read = columns(data / "protocol" / f"{name}-{part}-rnd.csv.gz", ("neg_src", "neg_dst"))
        rows = slice(self.validation, self.test) if part == "val" else slice(self.test, None)
        if not np.array_equal(read["neg_src"], self.names[self.src[rows]]):
            raise SystemExit(f"{name}-{part}-rnd.csv.gz has not one row for each {part} event with the event's source")
        return self.ids(read["neg_dst"])

    def batches(self, part, size, epoch=0):
        """Rows and destinations of the negatives of each batch of `train`, `val` or `test`."""
        rows = {
            "train": self.train,
            "val": np.arange(self.validation, self.test),
            "test": np.arange(self.test, len(self.src)),
        }[part]
        key = random(TRAIN_DRAW, self.seed, epoch, np.zeros(1))[0]
        for number, first in enumerate(range(0, len(rows), size)):
            chosen = rows[first : first + size]
            if part == "train":
                drawn = below(random(NEGATIVES, key, number, np.arange(len(chosen))), len(self.pool))
                yield chosen, self.pool[drawn]
            else:
                yield chosen, self.given[part][first : first + size]

    def write_train(self, path):
        """The events that are trained on, as an event file."""
        rows = [self.names[self.src], self.names[self.dst], self.times]
        np.savetxt(path, np.stack(rows, 1)[self.train], "%d", ",", header="src,dst,ts", comments="")


class Whole(Stream):
    """An event file that is trained on whole: there is no other part."""

    def __init__(self, path, seed):
        events = columns(path, ("src", "dst", "ts"))
        order = np.argsort(events["ts"], kind="stable")
        self.times, self.seed = events["ts"][order], seed
        self.names, nodes = numbered(np.stack([events["src"][order], events["dst"][order]], 1).ravel())
        self.src, self.dst = nodes.reshape(-1, 2).T.copy()
        self.nodes, self.given = len(self.names), {}
        self.validation = self.test = len(self.src)
        self.train, self.pool = np.arange(len(self.src)), np.unique(self.dst)


def columns(path, names):
    """Columns of integers of a CSV file, packed with gzip or not, by name."""
    with (gzip.open if path.suffix == ".gz" else open)(path, "rt") as file:
        header = next(csv.reader(file))
        missing = [name for name in names if name not in header]
        if missing:
            raise SystemExit(f"{path} has no column {missing[0]}")
        at = [header.index(name) for name in names]
        values = np.loadtxt(io.StringIO(file.read()), np.int64, delimiter=",", usecols=at, ndmin=2)
    return dict(zip(names, values.T))


def numbered(names):
    """Distinct names in order of first appearance, and the number of each."""
    distinct, first, which = np.unique(names, return_index=True, return_inverse=True)
    order = np.argsort(first)
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    return distinct[order], place[which]


def random(*key):
    """64-bit numbers of a key of four words, of which the last is an array."""
    state = START
    with np.errstate(over="ignore"):
        for word in key:
            state = state + (np.asarray(word).astype(np.uint64) + np.uint64(1)) * GOLDEN
            state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58_476D_1CE4_E5B9)
            state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D0_49BB_1331_11EB)
            state = state ^ (state >> np.uint64(31))
    return state


def below(numbers, n):
    """64-bit numbers scaled to 0..n."""
    high, low, n = numbers >> np.uint64(32), numbers & np.uint64(0xFFFF_FFFF), np.uint64(n)
    return ((high * n + ((low * n) >> np.uint64(32))) >> np.uint64(32)).astype(np.int64)


def average_precision(positive, negative):
    """Precision at each distinct score, weighted by the share of positives that have it."""
    scores = np.concatenate([positive, negative])
    order = np.argsort(-scores, kind="stable")
    hits = np.cumsum(order < len(positive))
    last = np.append(np.diff(scores[order]) != 0, True)
    hits, found = hits[last], np.arange(1, len(scores) + 1)[last]
    return float((np.diff(hits, prepend=0) * hits / found).sum() / len(positive))


if __name__ == "__main__":
    Stream(Path(sys.argv[1]), sys.argv[2], 0).write_train(sys.argv[3])
