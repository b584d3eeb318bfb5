#!/usr/bin/env python3
"""Writes models.safetensors: what plain PyTorch versions of GraphMixer, TGAT and JODIE do with a small stream.

    pip install torch numpy safetensors && python3 tests/golden/make_models.py

As make_tgn.py does it: every seed on its own, with autograd in 64 bits, layers of torch.nn where there are any.
"""

import pathlib

import numpy as np
import torch
from safetensors.numpy import save_file
from torch.nn import functional as F

from make_tgn import BATCHES, EVENTS, NODES, Tgn, stream

CASES = {
    "graphmixer": dict(kind="graphmixer", d=6, dt=8, k=5, blocks=2, de=0, dn=0),
    "graphmixer_features": dict(kind="graphmixer", d=5, dt=6, k=4, blocks=1, de=3, dn=2),
    "tgat": dict(kind="tgat", d=6, dt=8, k=3, heads=2, layers=2, de=0, dn=0),
    "tgat_features": dict(kind="tgat", d=4, dt=6, k=2, heads=2, layers=3, de=3, dn=2),
    "jodie": dict(kind="jodie", dm=8, d=8, dt=6, k=1, heads=1, de=0, dn=0),
    "jodie_features": dict(kind="jodie", dm=6, d=6, dt=4, k=1, heads=1, de=3, dn=2),
}


def linear(name, rows, cols):
    return {f"{name}.w": (rows, cols), f"{name}.b": (1, rows)}


def norm(name, cols):
    return {f"{name}.gamma": (1, cols), f"{name}.beta": (1, cols)}


def merge(name, cols, hidden, rows):
    return {f"{name}.w_a": (hidden, cols), f"{name}.b_a": (1, hidden), f"{name}.w_b": (rows, hidden), f"{name}.b_b": (1, rows)}


class Stateless:
    """What models without memory share."""

    def __init__(self, case, weights, edge_features, node_features, events):
        self.c, self.w = case, weights
        self.xe, self.xn = edge_features, node_features
        self.src, self.dst, self.time = events
        j = np.arange(case["dt"])
        self.omega = (10.0 ** (-9.0 * j / (case["dt"] - 1))).astype(np.float32)

    phi, link, neighbors = Tgn.phi, Tgn.link, Tgn.neighbors

    def affine(self, name, x):
        return F.linear(x, self.w[f"{name}.w"], self.w[f"{name}.b"][0])

    def norm(self, name, x):
        return F.layer_norm(x, (x.shape[-1],), self.w[f"{name}.gamma"][0], self.w[f"{name}.beta"][0], 1e-5)

    def remember(self, batch):
        pass

    def learned(self, batch):
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
        other, edge, time = self.mail[node]
        message = torch.cat([state, other, self.xe[edge], self.phi(time - self.updated[node])])
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
            times += [self.mail[n][2]] if n in self.mail else []
            if times:
                self.last[n] = max(times)


KINDS = {"graphmixer": GraphMixer, "tgat": Tgat, "jodie": Jodie}


def initial(rng, shapes):
    weights = {}
    for name, shape in shapes.items():
        value = rng.uniform(-1, 1, shape) / np.sqrt(shape[1]) + (1 if name.endswith("gamma") else 0)
        value = value * (0 if name.endswith("statistics") else 1)
        weights[name] = torch.tensor(value.astype(np.float32).astype(np.float64), requires_grad=True)
    return weights


def run(name, case, rng):
    src, dst, time, negative = stream(rng)
    count, kind = BATCHES * EVENTS, KINDS[case["kind"]]
    edge_features = torch.tensor(rng.normal(size=(count, case["de"])).astype(np.float32).astype(np.float64))
    node_features = torch.tensor(rng.normal(size=(NODES, case["dn"])).astype(np.float32).astype(np.float64))
    weights = initial(rng, kind.shapes(case))
    out = {f"initial.{n}": w.detach().numpy().copy() for n, w in weights.items()}
    model = kind(case, weights, edge_features, node_features, (src, dst, time))
    optimizer = torch.optim.Adam(weights.values(), lr=1e-3)
    positive_scores, negative_scores, losses = [], [], []
    for b in range(BATCHES):
        batch, bound = range(b * EVENTS, (b + 1) * EVENTS), (b + 1) * EVENTS
        z = lambda node, e: model.embed(int(node), time[e], bound)
        positive = torch.stack([model.link(z(src[e], e), z(dst[e], e)) for e in batch])
        against = torch.stack([model.link(z(src[e], e), z(negative[e], e)) for e in batch])
        bce = F.binary_cross_entropy_with_logits
        loss = bce(positive, torch.ones(EVENTS)) + bce(against, torch.zeros(EVENTS))
        for w in weights.values():
            w.grad = torch.zeros_like(w)
        loss.backward()
        gradients = {f"gradient.{n}": w.grad.numpy().copy() for n, w in weights.items()}
        model.learned(batch)
        model.remember(batch)
        optimizer.step()
        positive_scores.append(torch.sigmoid(positive).detach().numpy())
        negative_scores.append(torch.sigmoid(against).detach().numpy())
        losses.append(loss.item())
    out |= gradients | {f"final.{n}": w.detach().numpy().copy() for n, w in weights.items()}
    with torch.no_grad():
        if isinstance(model, Tgn):
            out["memory"] = model.memory.numpy().copy()
            out["published"] = torch.stack([model.fresh(n) for n in range(NODES)]).numpy()
        out["embeddings"] = torch.stack([model.embed(n, time.max() + 100, count) for n in range(NODES)]).numpy()
    out |= {"positive": np.stack(positive_scores), "negative": np.stack(negative_scores), "loss": np.array(losses)}
    out |= {"edge_features": edge_features.numpy(), "node_features": node_features.numpy(), "omega": model.omega}
    out = {n: np.asarray(v).astype(np.float32) for n, v in out.items()}
    integers = {"src": src, "dst": dst, "time": time, "against": negative}
    integers |= {f"case.{n}": np.array([v]) for n, v in case.items() if n != "kind"}
    out |= {n: v.astype(np.int64) for n, v in integers.items()}
    return {f"{name}.{n}": np.ascontiguousarray(v) for n, v in out.items()}


if __name__ == "__main__":
    torch.set_default_dtype(torch.float64)
    tensors = {}
    for seed, (name, case) in enumerate(CASES.items()):
        tensors |= run(name, case, np.random.default_rng(100 + seed))
    path = pathlib.Path(__file__).with_name("models.safetensors")
    save_file(tensors, path)
    print(path, path.stat().st_size, "bytes")
