"""Tests of what reads points, generates values and compares; run in this folder by `python -m unittest`.

Expected results are computed here by loops in 64 bits, by neither torch nor evergraph.
"""

import argparse
import json
import tempfile
import unittest
from pathlib import Path

import numpy as np
import torch
import ways_pyg
import ways_torch
from cases import Cases, Disagreement, splitmix64, values
from peer_torch import Measurement, Peer

SEED = 7


class Writer:
    """Writes a folder of points as `evergraph bench ops --cases` does."""

    def __init__(self, folder):
        self.folder, self.points, self.streams = Path(folder), [], 0

    def generated(self, *shape, low=-1.0, high=1.0):
        self.streams += 1
        facts = {"kind": "values", "shape": list(shape), "stream": self.streams, "low": low, "high": high}
        return facts, values(SEED, self.streams, int(np.prod(shape)), low, high).reshape(shape)

    def written(self, array):
        self.streams += 1
        name = f"{self.streams}.bin"
        array.tofile(self.folder / name)
        kind = {"uint32": "u32", "float32": "f32"}[array.dtype.name]
        return {"kind": kind, "shape": list(array.shape), "file": name}, array

    def point(self, op, params, inputs, outputs, stride=3):
        outputs = {}
        for name, array in outputs.items():
            flat = np.asarray(array, np.float64).reshape(-1)
            sample = flat[::stride].astype("<f4")
            sample.tofile(self.folder / f"{len(self.points)}.{name}.f32.bin")
            outputs[name] = {"shape": list(np.shape(array)), "stride": stride, "count": len(sample)}
            outputs[name] |= {"file": f"{len(self.points)}.{name}.f32.bin", "sum": float(flat.sum())}
        facts = {name: each[0] for name, each in inputs.items()}
        self.points.append({"id": f"{op}/{len(self.points)}", "op": op, "params": params, "cache": "warm"})
        self.points[-1] |= {"inputs": facts, "outputs": outputs}

    def end(self):
        (self.folder / "cases.json").write_text(json.dumps({"seed": SEED, "points": self.points}))
        return Cases(self.folder)


def u32(*numbers):
    return np.array(numbers, np.uint32)


def wide(pair):
    return pair[1].astype(np.float64)


def gather(w):
    table, grad, index = w.generated(9, 4), w.generated(6, 4), w.written(u32(3, 0, 3, 8, 3, 1))
    gradient = np.zeros((9, 4))
    for row, i in enumerate(index[1]):
        gradient[i] += wide(grad)[row]
    inputs = {"table": table, "index": index, "grad_out": grad}
    w.point("gather_rows", {}, inputs, {"out": wide(table)[index[1]], "grad_table": gradient})


def gather_concat(w):
    nodes, edges, node, edge = w.generated(5, 3), w.generated(6, 2), w.written(u32(4, 0, 4)), w.written(u32(1, 5, 0))
    dt, weight, bias = w.written(np.array([0.0, 1.5, 3.0], np.float32)), w.generated(1, 4), w.generated(1, 4)
    phase = wide(dt)[:, None] * wide(weight) + wide(bias)
    grad = w.generated(3, 9)
    gradient, slope = np.zeros((5, 3)), -np.sin(phase) * wide(grad)[:, 5:]
    for row, i in enumerate(node[1]):
        gradient[i] += wide(grad)[row, :3]
    out = np.concatenate([wide(nodes)[node[1]], wide(edges)[edge[1]], np.cos(phase)], 1)
    inputs = {"node_table": nodes, "edge_table": edges, "node": node, "edge": edge, "dt": dt, "w": weight, "b": bias}
    outputs = {"out": out, "grad_node_table": gradient}
    outputs |= {"grad_w": (slope * wide(dt)[:, None]).sum(0, keepdims=True)}
    outputs["grad_b"] = slope.sum(0, keepdims=True)
    w.point("gather_concat_time", {}, inputs | {"grad_out": grad}, outputs)


def reduced(x, groups, reduce, grad):
    """Rows of `x` by lists of row numbers, and the gradient of `x`."""
    out, gradient = np.zeros((len(groups), x.shape[1])), np.zeros(x.shape)
    for row, group in enumerate(groups):
        for column in range(x.shape[1] if group else 0):
            found = x[group, column]
            share = 1 if reduce == "sum" else 1 / len(group)
            out[row, column] = found.sum() * share
            gradient[group, column] += grad[row, column] * share
    return {"out": out, "grad_x": gradient}


def slots(w, reduce, counts, k=3):
    x, grad, n = w.generated(len(counts) * k, 5), w.generated(len(counts), 5), len(counts)
    groups = [[row * k + slot for slot in range(counts[row])] for row in range(n)]
    inputs = {"x": x, "counts": w.written(u32(*counts)), "grad_out": grad}
    w.point(f"slot_{reduce}", {"slots": k}, inputs, reduced(wide(x), groups, reduce, wide(grad)))


def segments(w, reduce, offsets):
    x, grad = w.generated(offsets[-1], 5), w.generated(len(offsets) - 1, 5)
    groups = [list(range(a, b)) for a, b in zip(offsets, offsets[1:])]
    inputs = {"x": x, "offsets": w.written(u32(*offsets)), "grad_out": grad}
    w.point(f"segment_{reduce}", {}, inputs, reduced(wide(x), groups, reduce, wide(grad)))


def last(w):
    index, x, grad = [2, 0, 2, 5, 0], w.generated(5, 3), w.generated(6, 3)
    groups = [[i for i, row in enumerate(index) if row == number][-1:] for number in range(6)]
    inputs = {"x": x, "index": w.written(u32(*index)), "grad_out": grad}
    w.point("scatter_last", {}, inputs, reduced(wide(x), groups, "sum", wide(grad)))


def attention(w, counts, k=3, heads=2, size=4):
    n = len(counts)
    q, keys, v = w.generated(n, heads * size), w.generated(n * k, heads * size), w.generated(n * k, heads * size)
    out = np.zeros((n, heads * size))
    for row in range(n):
        for head in range(heads if counts[row] else 0):
            part, rows = slice(head * size, (head + 1) * size), slice(row * k, row * k + counts[row])
            weight = np.exp(wide(keys)[rows, part] @ wide(q)[row, part] / size**0.5)
            out[row, part] = weight / weight.sum() @ wide(v)[rows, part]
    inputs = {"q": q, "k": keys, "v": v, "counts": w.written(u32(*counts))}
    w.point("slot_attention", {"heads": heads}, inputs, {"out": out})


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def gru(w, rows=4, inputs=3, size=2):
    shapes = [(rows, inputs), (rows, size), (3 * size, inputs), (3 * size, size)]
    x, h, w_ih, w_hh = (w.generated(*shape) for shape in shapes)
    b_ih, b_hh = w.generated(1, 3 * size), w.generated(1, 3 * size)
    i, s = (np.split(wide(a) @ wide(m).T + wide(b), 3, 1) for a, m, b in [(x, w_ih, b_ih), (h, w_hh, b_hh)])
    reset, update = sigmoid(i[0] + s[0]), sigmoid(i[1] + s[1])
    out = (1 - update) * np.tanh(i[2] + reset * s[2]) + update * wide(h)
    given = {"x": x, "h": h, "w_ih": w_ih, "w_hh": w_hh, "b_ih": b_ih, "b_hh": b_hh}
    w.point("gru_cell", {}, given, {"out": out})


def dense(w):
    dt, weight, bias, grad = w.generated(7, low=0, high=9), w.generated(1, 3), w.generated(1, 3), w.generated(7, 3)
    phase = wide(dt)[:, None] * wide(weight) + wide(bias)
    slope = -np.sin(phase) * wide(grad)
    outputs = {"out": np.cos(phase), "grad_w": (slope * wide(dt)[:, None]).sum(0), "grad_b": slope.sum(0)}
    w.point("time_encoding", {}, {"dt": dt, "w": weight, "b": bias, "grad_out": grad}, outputs)
    x, weight, bias, grad = w.generated(7, 5), w.generated(3, 5), w.generated(1, 3), w.generated(7, 3)
    outputs = {"out": wide(x) @ wide(weight).T + wide(bias), "grad_x": wide(grad) @ wide(weight)}
    outputs |= {"grad_w": wide(grad).T @ wide(x), "grad_b": wide(grad).sum(0)[None]}
    w.point("linear", {}, {"x": x, "w": weight, "b": bias, "grad_out": grad}, outputs)
    x, gamma, beta = w.generated(7, 5), w.generated(1, 5), w.generated(1, 5)
    middle = wide(x) - wide(x).mean(1, keepdims=True)
    normal = middle / np.sqrt((middle**2).mean(1, keepdims=True) + 1e-5)
    inputs = {"x": x, "gamma": gamma, "beta": beta}
    w.point("layer_norm", {"eps": 1e-5}, inputs, {"out": normal * wide(gamma) + wide(beta)})


def ids(w):
    given = u32(5, 2, 9, 5, 5, 0)
    found, inverse = np.unique(given, return_inverse=True)
    w.point("unique", {}, {"ids": w.written(given)}, {"out": found, "inverse": inverse})


def optimizer(w, steps=3):
    param, grad = w.generated(11), w.generated(11)
    value, first, second = wide(param), 0, 0
    for step in range(1, steps + 1):
        first, second = 0.9 * first + 0.1 * wide(grad), 0.999 * second + 0.001 * wide(grad) ** 2
        value = value - 0.01 * first / (1 - 0.9**step) / (np.sqrt(second / (1 - 0.999**step)) + 1e-8)
    w.point("adam", {"steps": steps, "lr": 0.01}, {"param": param, "grad": grad}, {"out": value})


def write_all(folder):
    w = Writer(folder)
    gather(w)
    gather_concat(w)
    for reduce in ("sum", "mean"):
        slots(w, reduce, [3, 0, 1, 2])
        slots(w, reduce, [3, 3])
        segments(w, reduce, [0, 2, 2, 7, 8])
        segments(w, reduce, [0, 1, 4])
    last(w)
    attention(w, [3, 0, 1, 2])
    attention(w, [3, 3])
    gru(w)
    dense(w)
    ids(w)
    optimizer(w)
    return w


ARGUMENTS = argparse.Namespace(device="cpu", threads=1, peer="torch", runs=7, compile=False)


class Values(unittest.TestCase):
    def test_they_are_those_of_splitmix64_computed_by_whole_numbers(self):
        def by_hand(seed, stream, i):
            x = (seed + stream * 0x9E3779B97F4A7C15 + i + 0x9E3779B97F4A7C15) % 2**64
            x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 % 2**64
            x = (x ^ x >> 27) * 0x94D049BB133111EB % 2**64
            return (x ^ x >> 31) >> 40

        # From the published SplitMix64, started at 0.
        self.assertEqual(int(splitmix64(np.zeros(1, np.uint64))[0]), 0xE220A8397B1DCDAF)
        for seed, stream in [(0, 0), (7, 3), (2**64 - 5, 2**63 + 11)]:
            found = values(seed, stream, 40_000, 0.0, 1.0)
            for i in (0, 1, 4, 32_767, 32_768, 39_999):
                self.assertEqual(float(found[i]), by_hand(seed, stream, i) / 2**24)
            scaled = values(seed, stream, 10, -0.3, 0.1)
            for i in range(10):
                share = np.float32(by_hand(seed, stream, i) / 2**24)
                width = np.float32(0.1) - np.float32(-0.3)
                self.assertEqual(scaled[i], np.float32(-0.3) + width * share)


class Points(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def test_every_way_of_every_operation_gives_the_expected_results(self):
        cases = write_all(self.folder.name).end()
        self.assertEqual({point.op for point in cases.points} | {"reference_step"}, set(ways_torch.OPERATIONS))
        for module in (ways_torch, ways_pyg):
            for point in cases.points:
                if point.op in module.OPERATIONS:
                    with self.subTest(id=point.id, peer=module.__name__):
                        measurement = Measurement(point, module.OPERATIONS[point.op], ARGUMENTS)
                        for way in measurement.ways():
                            self.assertTrue(measurement.right(way), measurement.dropped)

    def test_a_wrong_element_sum_or_shape_is_found_and_named(self):
        for breach in ("element", "sum", "shape"):
            w = Writer(self.folder.name)
            x, grad = w.generated(4, 8), w.generated(2, 8)
            expected = reduced(wide(x), [[0, 1, 2], [3]], "sum", wide(grad))
            if breach == "element":
                expected["grad_x"][2, 1] += 1e-4
            inputs = {"x": x, "offsets": w.written(u32(0, 3, 4)), "grad_out": grad}
            w.point("segment_sum", {}, inputs, expected, stride=1)
            if breach == "sum":
                w.points[0]["outputs"]["out"]["sum"] += 1e-3
            if breach == "shape":
                w.points[0]["outputs"]["out"]["shape"] = [8, 2]
            point = w.end().points[0]
            with self.assertRaisesRegex(Disagreement, "segment_sum/0.*(grad_x|out)"):
                Measurement(point, ways_torch.OPERATIONS["segment_sum"], ARGUMENTS).check()

    def test_a_timed_row_says_which_way_was_fastest(self):
        w = Writer(self.folder.name)
        segments(w, "sum", [0, 2, 2, 7, 8])
        w.end()
        peer = Peer(argparse.Namespace(cases=self.folder.name, **vars(ARGUMENTS)))
        rows = peer.round("segment_sum")["rows"]
        self.assertEqual([row["direction"] for row in rows], ["forward", "backward"])
        again = peer.round("segment_sum")["rows"]
        self.assertEqual([row["way"] for row in again], [row["way"] for row in rows])
        self.assertEqual(peer.round("linear")["rows"], [])
        for row in rows:
            self.assertIn(row["way"], row["ways"])
            self.assertTrue(0 < row["seconds"] <= row["p95_seconds"] and row["runs"] == 7)


torch.manual_seed(SEED)
if __name__ == "__main__":
    unittest.main()
