"""The points that `evergraph bench ops --cases DIR` wrote: their inputs as arrays, and what came out of ours.

Large inputs are not in the folder: both sides generate them, bit for bit alike. Needs numpy.
"""

import json
from functools import lru_cache
from pathlib import Path

import numpy as np

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
TYPES = {"u8": "<u1", "u32": "<u4", "u64": "<u8", "i32": "<i4", "i64": "<i8", "f32": "<f4", "f64": "<f8"}
# Elements that are generated at a time, so that the intermediate steps stay in a core's cache.
CHUNK = 1 << 15
# Between results of ours and of a peer, of an output's largest magnitude.
TOLERANCE = 1e-5


class Disagreement(Exception):
    """A peer's result is not ours."""


def splitmix64(x):
    """The finalizer of SplitMix64 after one step of its counter, on an array of u64, in place."""
    x += GOLDEN
    x ^= x >> np.uint64(30)
    x *= np.uint64(0xBF58476D1CE4E5B9)
    x ^= x >> np.uint64(27)
    x *= np.uint64(0x94D049BB133111EB)
    x ^= x >> np.uint64(31)
    return x


@lru_cache(maxsize=8)
def values(seed, stream, count, low, high):
    """`count` f32 of a stream: element i from splitmix64(seed + stream * GOLDEN + i), uniform in [low, high). Points of
    one operation share what is alike: not to be written to."""
    first = np.uint64((seed + stream * int(GOLDEN)) % (1 << 64))
    low, width = np.float32(low), np.float32(high) - np.float32(low)
    out = np.empty(count, np.float32)
    for at in range(0, count, CHUNK):
        part = np.arange(at, min(at + CHUNK, count), dtype=np.uint64)
        part += first
        part = (splitmix64(part) >> np.uint64(40)).astype(np.float32)
        part *= np.float32(2**-24)
        part *= width
        part += low
        out[at : at + CHUNK] = part
    return out


class Cases:
    def __init__(self, folder):
        self.folder = Path(folder)
        document = json.loads((self.folder / "cases.json").read_text())
        self.seed = document["seed"]
        self.points = [Point(self, point) for point in document["points"]]


class Point:
    def __init__(self, cases, point):
        self.cases = cases
        self.id, self.op, self.params = point["id"], point["op"], point["params"]
        self.cold = point["cache"] == "cold"
        self.input_facts, self.outputs = point["inputs"], point["outputs"]

    def inputs(self):
        """All inputs as arrays by name, the given gradient of the output, `grad_out`, among them."""
        return {name: self.array(facts) for name, facts in self.input_facts.items()}

    def array(self, facts):
        shape = tuple(facts["shape"])
        if facts["kind"] == "values":
            count = int(np.prod(shape, dtype=np.int64))
            return values(self.cases.seed, facts["stream"], count, facts["low"], facts["high"]).reshape(shape)
        return np.fromfile(self.cases.folder / facts["file"], TYPES[facts["kind"]]).reshape(shape)

    def differentiable(self):
        """Names of inputs whose gradient ours wrote."""
        return [name.removeprefix("grad_") for name in self.outputs if name.startswith("grad_")]

    def error(self, name, found, except_for=None):
        """How far `found`, an array, is from ours: the largest difference of a sampled element, and the difference
        of the sums over the sum of magnitudes, whichever is larger; the former relative to the largest magnitude of
        the whole output. Elements where the mask `except_for` is true are left out of the former."""
        facts = self.outputs[name]
        # Ours has vectors as matrices of one row.
        if [size for size in found.shape if size != 1] != [size for size in facts["shape"] if size != 1]:
            raise Disagreement(f"{self.id}: {name} has shape {list(found.shape)} there, {facts['shape']} here")
        ours = np.fromfile(self.cases.folder / facts["file"], "<f4").astype(np.float64)
        if len(ours) != facts["count"]:
            raise Disagreement(f"{self.id}: {facts['file']} holds {len(ours)} values, not {facts['count']}")
        flat = found.reshape(-1)
        sample = flat[:: facts["stride"]][: len(ours)].astype(np.float64)
        if len(sample) != len(ours):
            raise Disagreement(f"{self.id}: {name} has {len(sample)} sampled values there, {len(ours)} here")
        if not len(flat):
            return 0.0
        if not (np.isfinite(sample).all() and np.isfinite(ours).all()):
            return float("inf")
        apart = np.abs(sample - ours)
        if except_for is not None:
            apart = apart[~except_for.reshape(-1)[:: facts["stride"]][: len(ours)]]
        largest, total, sum_found = 1e-30, 1e-30, 0.0
        for at in range(0, len(flat), CHUNK):
            part = flat[at : at + CHUNK]
            magnitudes = np.abs(part)
            largest = max(largest, float(magnitudes.max()))
            total += float(magnitudes.sum(dtype=np.float64))
            sum_found += float(part.sum(dtype=np.float64))
        return max(float(apart.max(initial=0.0)) / largest, abs(sum_found - facts["sum"]) / total)
