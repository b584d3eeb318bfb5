#!/usr/bin/env python3
"""Writes models.safetensors: what plain PyTorch versions of the models do with a small stream.

    pip install torch numpy safetensors && python3 tests/golden/make_models.py

As make_tgn.py does it: every seed on its own, with autograd in 64 bits, layers of torch.nn where there are any.
"""

import numpy as np
import torch
from torch.nn import functional as F

from make_tgn import NODES, Tgn, linear, merge, norm, run, write

CASES = {
    "graphmixer": dict(kind="graphmixer", d=6, dt=8, k=5, blocks=2, de=0, dn=0),
    "graphmixer_features": dict(kind="graphmixer", d=5, dt=6, k=4, blocks=1, de=3, dn=2),
    "tgat": dict(kind="tgat", d=6, dt=8, k=3, heads=2, layers=2, de=0, dn=0),
    "tgat_features": dict(kind="tgat", d=4, dt=6, k=2, heads=2, layers=3, de=3, dn=2),
    "jodie": dict(kind="jodie", dm=8, d=8, dt=6, k=1, heads=1, de=0, dn=0),
    "jodie_features": dict(kind="jodie", dm=6, d=6, dt=4, k=1, heads=1, de=3, dn=2),
    "graphsage": dict(kind="graphsage", d=6, dr=7, k=3, layers=1, de=0, dn=0),
    "graphsage_features": dict(kind="graphsage", d=5, dr=6, k=2, layers=2, de=3, dn=2),
    "gat": dict(kind="gat", d=6, dr=7, k=3, heads=2, layers=1, de=0, dn=0),
    "gat_features": dict(kind="gat", d=6, dr=6, k=3, heads=2, layers=2, de=3, dn=2),
    "dysat": dict(kind="dysat", d=6, dr=7, dt=5, k=3, heads=2, snapshots=3, width=50000, de=0, dn=0),
    "dysat_features": dict(kind="dysat", d=4, dr=6, dt=3, k=2, heads=1, snapshots=4, width=3000, de=3, dn=2),
    "tgn_types": dict(kind="tgn", dm=6, d=7, dt=4, k=3, heads=2, types=2, tw=3, de=2, dn=0),
    "jodie_types": dict(kind="jodie", dm=6, d=6, dt=4, k=1, heads=1, types=3, tw=2, de=0, dn=0),
    "graphmixer_types": dict(kind="graphmixer", d=5, dt=6, k=4, blocks=1, types=2, tw=3, de=2, dn=2),
    "tgat_types": dict(kind="tgat", d=4, dt=6, k=2, heads=2, layers=2, types=2, tw=3, de=0, dn=0),
    "graphsage_types": dict(kind="graphsage", d=5, dr=6, k=2, layers=2, types=3, tw=2, de=0, dn=2),
    "gat_types": dict(kind="gat", d=6, dr=6, k=3, heads=2, layers=2, types=2, tw=3, de=2, dn=0),
    "dysat_types": dict(kind="dysat", d=4, dr=6, dt=3, k=2, heads=1, snapshots=4, width=3000, types=2, tw=3, de=0, dn=0),
    "tgn_mean": dict(kind="tgn", mean=1, dm=6, d=7, dt=4, k=3, heads=2, de=0, dn=0),
    "tgn_mean_types": dict(kind="tgn", mean=1, dm=6, d=7, dt=4, k=3, heads=2, types=2, tw=3, de=2, dn=3),
    "jodie_mean": dict(kind="jodie", mean=1, dm=6, d=6, dt=4, k=1, heads=1, de=3, dn=0),
}


class Stateless:
    """What models without memory share."""

    def __init__(self, case, weights, edge_features, node_features, events):
        self.c, self.w = case, weights
        self.xe, self.xn = edge_features, node_features
        self.src, self.dst, self.time = events
        j = np.arange(case.get("dt", 0))
        self.omega = (10.0 ** (-9.0 * j / (len(j) - 1))).astype(np.float32)

    phi, link, neighbors, learned = Tgn.phi, Tgn.link, Tgn.neighbors, Tgn.learned

    def state(self):
        return {}

    def affine(self, name, x):
        return F.linear(x, self.w[f"{name}.w"], self.w[f"{name}.b"][0])

    def norm(self, name, x):
        return F.layer_norm(x, (x.shape[-1],), self.w[f"{name}.gamma"][0], self.w[f"{name}.beta"][0], 1e-5)

    def remember(self, batch):
        pass


class GraphMixer(Stateless):
    @staticmethod
    def shapes(c):
        shapes = linear("token", c["d"], c["de"] + c["dt"])
        for n in range(1, c["blocks"] + 1):
            tokens, channels, few = f"block{n}.tokens", f"block{n}.channels", c["k"] // 2
            shapes |= norm(f"{tokens}.norm", c["k"]) | linear(f"{tokens}.contract", few, c["k"])
            shapes |= linear(f"{tokens}.expand", c["k"], few) | norm(f"{channels}.norm", c["d"])
            shapes |= linear(f"{channels}.expand", 4 * c["d"], c["d"]) | linear(f"{channels}.contract", c["d"], 4 * c["d"])
        return shapes | linear("output", c["d"], c["d"] + c["dn"]) | merge("link", 2 * c["d"], c["d"], 1)

    def embed(self, node, time, bound):
        found = self.neighbors(node, time, bound)
        rows = [torch.cat([self.xe[e], self.phi(time - t)]) for t, e, _ in found]
        empty = torch.zeros(self.c["de"] + self.c["dt"])
        x = self.affine("token", torch.stack(rows + [empty] * (self.c["k"] - len(rows))))
        for n in range(1, self.c["blocks"] + 1):
            tokens, channels = f"block{n}.tokens", f"block{n}.channels"
            mixed = self.affine(f"{tokens}.contract", self.norm(f"{tokens}.norm", x.T))
            x = x + self.affine(f"{tokens}.expand", F.gelu(mixed)).T
            wide = self.affine(f"{channels}.expand", self.norm(f"{channels}.norm", x))
            x = x + self.affine(f"{channels}.contract", F.gelu(wide))
        around = torch.stack([self.xn[j] for _, _, j in found]).mean(0) if found else torch.zeros(self.c["dn"])
        return self.affine("output", torch.cat([x.mean(0), self.xn[node] + around]))


class Tgat(Stateless):
    @staticmethod
    def shapes(c):
        shapes = {"features.w": (c["d"], c["dn"])} if c["dn"] else {}
        for level in range(1, c["layers"] + 1):
            below = 0 if level == 1 and not c["dn"] else c["d"]
            width, name = below + c["dt"], f"level{level}"
            shapes |= {f"{name}.w_q": (width, width), f"{name}.w_k": (width, width + c["de"])}
            shapes |= {f"{name}.w_v": (width, width + c["de"]), f"{name}.w_o": (width, width)}
            shapes |= {f"{name}.b_o": (1, width)} | norm(name, width)
            shapes |= merge(f"{name}.merge", width + below, c["d"], c["d"])
        return shapes | merge("link", 2 * c["d"], c["d"], 1)

    def embed(self, node, time, bound, level=None):
        level = self.c["layers"] if level is None else level
        if level == 0:
            return F.linear(self.xn[node], self.w["features.w"]) if self.c["dn"] else torch.zeros(0)
        name, own = f"level{level}", self.embed(node, time, bound, level - 1)
        residual = torch.cat([own, self.phi(0)])
        found, width = self.neighbors(node, time, bound), residual.shape[0]
        attended = torch.zeros(width)
        if found:
            below = [self.embed(j, t, bound, level - 1) for t, _, j in found]
            slots = torch.stack([torch.cat([h, self.xe[e], self.phi(time - t)]) for h, (t, e, _) in zip(below, found)])
            heads = lambda x: x.reshape(-1, self.c["heads"], width // self.c["heads"]).transpose(0, 1)
            q, k, v = F.linear(residual, self.w[f"{name}.w_q"]), slots @ self.w[f"{name}.w_k"].T, slots @ self.w[f"{name}.w_v"].T
            attended = F.scaled_dot_product_attention(heads(q), heads(k), heads(v)).reshape(-1)
        out = self.norm(name, F.linear(attended, self.w[f"{name}.w_o"], self.w[f"{name}.b_o"][0]) + residual)
        hidden = torch.relu(F.linear(torch.cat([out, own]), self.w[f"{name}.merge.w_a"], self.w[f"{name}.merge.b_a"][0]))
        return F.linear(hidden, self.w[f"{name}.merge.w_b"], self.w[f"{name}.merge.b_b"][0])


class Jodie(Tgn):
    """The statistics are those of all (logarithms of) gaps that were trained on so far, taken from the list of them."""

    def __init__(self, *args):
        super().__init__(*args)
        self.gaps, self.last = [], {}

    @staticmethod
    def shapes(c):
        message = 2 * c["dm"] + c["de"] + c["dt"]
        shapes = merge("link", 2 * c["d"], c["d"], 1)
        shapes |= {"memory.w_ih": (c["dm"], message), "memory.w_hh": (c["dm"], c["dm"])}
        shapes |= {"memory.b_ih": (1, c["dm"]), "memory.b_hh": (1, c["dm"])}
        if c["dn"] not in (0, c["dm"]):
            shapes["features.w"] = (c["dm"], c["dn"])
        return shapes | {"drift.w": (c["dm"], 1), "drift.b": (1, c["dm"]), "drift.statistics": (1, 3)}

    def fresh(self, node):
        state = self.memory[node]
        if node not in self.mail:
            return state
        message = self.message(node, state)
        cell = lambda x, which: F.linear(x, self.w[f"memory.w_{which}"], self.w[f"memory.b_{which}"][0])
        return torch.tanh(cell(message, "ih") + cell(state, "hh"))

    def embed(self, node, time, bound):
        gap = np.log1p(max(float(time - self.last[node]), 0.0)) if node in self.last else 0.0
        scaled = (gap - np.mean(self.gaps)) / np.std(self.gaps) if self.gaps else 0.0
        return self.h(node) * (1 + self.w["drift.w"][:, 0] * scaled + self.w["drift.b"][0])

    def learned(self, batch):
        ends = [(int(n), self.time[e]) for nodes in (self.src, self.dst) for e, n in ((e, nodes[e]) for e in batch)]
        self.gaps += [np.log1p(max(float(t - self.last[n]), 0.0)) for n, t in ends if n in self.last]
        moments = [np.mean(self.gaps), np.var(self.gaps), len(self.gaps)] if self.gaps else [0.0, 0.0, 0]
        with torch.no_grad():
            self.w["drift.statistics"][:] = torch.tensor([moments])

    def remember(self, batch):
        super().remember(batch)
        for n in range(NODES):
            times = [self.updated[n]] if self.memory[n].abs().sum() > 0 else []
            times += [self.mail[n][-1][2]] if n in self.mail else []
            if times:
                self.last[n] = max(times)


def mix(x):
    """The output function of SplitMix64."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x = (x ^ x >> shift) * factor % 2**64
    return x ^ x >> 31


def signature(node, width):
    """Signs of a node: the bits of a number drawn with the key (stream, node, 0, 0), lowest first, 1 for minus."""
    state = 0x243F6A8885A308D3
    for word in (0x7369676E61747572, node, 0, 0):
        state = mix((state + (word + 1) * 0x9E3779B97F4A7C15) % 2**64)
    size = float(np.float32(1) / np.sqrt(np.float32(width)))
    return torch.tensor([-size if state >> bit & 1 else size for bit in range(width)])


class Signed(Stateless):
    """What models that know nodes by signatures share."""

    def row(self, node):
        return torch.cat([self.xn[node], signature(int(node), self.c["dr"])])

    def link(self, zu, zv):
        hidden = torch.relu(F.linear(torch.cat([zu, zv, zu * zv]), self.w["link.w_a"], self.w["link.b_a"][0]))
        return F.linear(hidden, self.w["link.w_b"], self.w["link.b_b"][0])[0]

    def embed(self, node, time, bound, level=None):
        level = self.c["layers"] if level is None else level
        if level == 0:
            return self.row(node)
        found = self.neighbors(node, time, bound)
        slots = [torch.cat([self.embed(j, t, bound, level - 1), self.xe[e]]) for t, e, j in found]
        z = self.layer(f"level{level}", self.embed(node, time, bound, level - 1), slots)
        return torch.relu(z) if level < self.c["layers"] else z


class GraphSage(Signed):
    @staticmethod
    def shapes(c):
        shapes, below = {}, c["dn"] + c["dr"]
        for level in range(1, c["layers"] + 1):
            shapes |= linear(f"level{level}", c["d"], 2 * below + c["de"])
            below = c["d"]
        return shapes | merge("link", 3 * c["d"], c["d"], 1)

    def layer(self, name, own, slots):
        met = torch.stack(slots).mean(0) if slots else torch.zeros(len(own) + self.c["de"])
        return self.affine(name, torch.cat([own, met]))


class Gat(Signed):
    @staticmethod
    def layer_shapes(c, name, below):
        shapes = {f"{name}.w_v": (c["d"], below + c["de"]), f"{name}.w_q": (c["d"], below), f"{name}.a": (c["d"], 1)}
        return shapes | linear(f"{name}.own", c["d"], below)

    @classmethod
    def shapes(cls, c):
        shapes, below = {}, c["dn"] + c["dr"]
        for level in range(1, c["layers"] + 1):
            shapes |= cls.layer_shapes(c, f"level{level}", below)
            below = c["d"]
        return shapes | merge("link", 3 * c["d"], c["d"], 1)

    def layer(self, name, own, slots):
        z = self.affine(f"{name}.own", own)
        if not slots:
            return z
        heads = lambda x: x.reshape(-1, self.c["heads"], self.c["d"] // self.c["heads"])
        v = torch.stack(slots) @ self.w[f"{name}.w_v"].T
        inside = F.leaky_relu(v + F.linear(own, self.w[f"{name}.w_q"]), 0.2)
        # The scale is that of dot products; it might as well be part of a.
        score = (heads(inside) * heads(self.w[f"{name}.a"][:, 0])).sum(-1) / np.sqrt(self.c["d"] // self.c["heads"])
        return z + (torch.softmax(score, 0)[..., None] * heads(v)).sum(0).reshape(-1)


class Dysat(Gat):
    @classmethod
    def shapes(cls, c):
        shapes = cls.layer_shapes(c, "structure", c["dn"] + c["dr"]) | {"snapshots.w_q": (c["d"], c["d"])}
        shapes |= {f"snapshots.w_{x}": (c["d"], c["d"] + c["dt"]) for x in "kv"}
        return shapes | merge("link", 3 * c["d"], c["d"], 1)

    def embed(self, node, time, bound):
        rows, found_in = [], []
        for s in range(self.c["snapshots"]):
            end = time - s * self.c["width"]
            # The newest before the end of the snapshot, of those the ones after its start.
            found = [(t, e, j) for t, e, j in self.neighbors(node, end, bound) if t >= end - self.c["width"]]
            slots = [torch.cat([self.row(j), self.xe[e]]) for _, e, j in found]
            rows.append(self.layer("structure", self.row(node), slots))
            found_in += [s] if found else []
        if not found_in:
            return rows[0]
        heads = lambda x: x.reshape(-1, self.c["heads"], self.c["d"] // self.c["heads"]).transpose(0, 1)
        slots = torch.stack([torch.cat([rows[s], self.phi(s)]) for s in found_in])
        q, k, v = F.linear(rows[0], self.w["snapshots.w_q"]), slots @ self.w["snapshots.w_k"].T, slots @ self.w["snapshots.w_v"].T
        return rows[0] + F.scaled_dot_product_attention(heads(q), heads(k), heads(v)).reshape(-1)


KINDS = {"tgn": Tgn, "graphmixer": GraphMixer, "tgat": Tgat, "jodie": Jodie, "graphsage": GraphSage, "gat": Gat, "dysat": Dysat}


if __name__ == "__main__":
    tensors = {}
    for seed, (name, case) in enumerate(CASES.items()):
        told = lambda model: {f"case.{n}": np.array([v]) for n, v in case.items() if n != "kind"}
        tensors |= run(name, KINDS[case["kind"]], case, np.random.default_rng(100 + seed), told)
    write("models.safetensors", tensors)
