#!/usr/bin/env python3
"""Writes tgn.safetensors: what a plain, unfolded TGN in PyTorch does with a small scripted stream.

    pip install torch numpy safetensors && python3 tests/golden/make_tgn.py

Every projection is done per slot and every node is computed where it is used, with autograd in 64 bits,
so that nothing of the Rust code's folding, deduplication or in-place work is repeated here. Only the
argument w * dt of the time encoding is rounded to 32 bits, because there the rounding is part of the
definition. Three cases: no features; edge features; edge features and node features of another width.
"""

import pathlib

import numpy as np
import torch
from safetensors.numpy import save_file
from torch.nn import functional as F

torch.set_default_dtype(torch.float64)
NODES, BATCHES, EVENTS, ORIGIN = 12, 5, 6, 1_600_000_000
CASES = {
    "plain": dict(dm=8, dt=8, d=8, heads=2, k=3, de=0, dn=0),
    "edges": dict(dm=8, dt=16, d=10, heads=2, k=4, de=3, dn=0),
    "nodes": dict(dm=6, dt=4, d=16, heads=1, k=2, de=3, dn=5),
}


def stream(rng):
    """Events in arrival order, with ties, a self loop, and events that arrive late in and across batches."""
    src = rng.integers(0, 7, BATCHES * EVENTS)
    dst = rng.integers(5, NODES, BATCHES * EVENTS)
    src[9], dst[9] = 6, 6
    gap = rng.choice([0, 1, 40, 3000, 90000], BATCHES * EVENTS)
    gap[0], gap[16], gap[18] = 0, 40, 3000
    time = ORIGIN + np.cumsum(gap)
    time[[15, 16]], time[[17, 18]] = time[[16, 15]], time[[18, 17]]
    negative = rng.integers(5, NODES, BATCHES * EVENTS)
    return src, dst, time, negative


def linear(name, rows, cols):
    return {f"{name}.w": (rows, cols), f"{name}.b": (1, rows)}


def norm(name, cols):
    return {f"{name}.gamma": (1, cols), f"{name}.beta": (1, cols)}


def merge(name, cols, hidden, rows):
    return {f"{name}.w_a": (hidden, cols), f"{name}.b_a": (1, hidden), f"{name}.w_b": (rows, hidden), f"{name}.b_b": (1, rows)}


def initial(rng, shapes):
    """Weights by name; sizes as torch.nn would give them."""
    weights = {}
    for name, shape in shapes.items():
        value = rng.uniform(-1, 1, shape) / np.sqrt(shape[1]) + (1 if name.endswith("gamma") else 0)
        value = value * (0 if name.endswith("statistics") else 1)
        weights[name] = torch.tensor(value.astype(np.float32).astype(np.float64), requires_grad=True)
    return weights


class Tgn:
    @staticmethod
    def shapes(c):
        width, slot = c["dm"] + c["dt"], c["dm"] + c["de"] + c["dt"]
        message = 2 * c["dm"] + c["de"] + c["dt"]
        shapes = {"memory.w_ih": (3 * c["dm"], message), "memory.w_hh": (3 * c["dm"], c["dm"])}
        shapes |= {"memory.b_ih": (1, 3 * c["dm"]), "memory.b_hh": (1, 3 * c["dm"])}
        shapes |= {"attention.w_q": (width, width), "attention.w_k": (width, slot), "attention.w_v": (width, slot)}
        shapes |= {"attention.w_o": (width, width), "attention.b_o": (1, width)} | norm("attention", width)
        shapes |= merge("merge", width + c["dm"], c["d"], c["d"]) | merge("link", 2 * c["d"], c["d"], 1)
        return shapes | ({"features.w": (c["dm"], c["dn"])} if c["dn"] not in (0, c["dm"]) else {})

    def __init__(self, case, weights, edge_features, node_features, events):
        self.c, self.w = case, weights
        self.xe, self.xn = edge_features, node_features
        self.src, self.dst, self.time = events
        j = np.arange(case["dt"])
        self.omega = (10.0 ** (-9.0 * j / (case["dt"] - 1))).astype(np.float32)
        self.memory = torch.zeros(NODES, case["dm"])
        self.updated = [ORIGIN] * NODES
        self.mail = {}

    def phi(self, delta):
        return torch.cos(torch.tensor((self.omega * np.float32(delta)).astype(np.float64)))

    def message(self, node, state):
        """The mean of the raw messages that wait for a node, with the learned parts as they are today."""
        raw = [torch.cat([state, other, self.xe[e], self.phi(t - self.updated[node])]) for other, e, t in self.mail[node]]
        return torch.stack(raw).mean(0)

    def fresh(self, node):
        """Memory row of a node after its pending message, inside the graph."""
        state = self.memory[node]
        if node not in self.mail:
            return state
        message = self.message(node, state)
        gi = self.w["memory.w_ih"] @ message + self.w["memory.b_ih"][0]
        gh = self.w["memory.w_hh"] @ state + self.w["memory.b_hh"][0]
        ir, iz, inn = gi.chunk(3)
        hr, hz, hn = gh.chunk(3)
        r, z = torch.sigmoid(ir + hr), torch.sigmoid(iz + hz)
        n = torch.tanh(inn + r * hn)
        return (1 - z) * n + z * state

    def feature_row(self, node):
        if self.c["dn"] == 0:
            return torch.zeros(self.c["dm"])
        if self.c["dn"] == self.c["dm"]:
            return self.xn[node]
        return self.w["features.w"] @ self.xn[node]

    def h(self, node):
        return self.fresh(node) + self.feature_row(node)

    def neighbors(self, node, time, bound):
        found = []
        for e in range(bound):
            if self.time[e] < time:
                if self.src[e] == node:
                    found.append((self.time[e], e, self.dst[e]))
                elif self.dst[e] == node:
                    found.append((self.time[e], e, self.src[e]))
        return sorted(found, reverse=True)[: self.c["k"]]

    def embed(self, node, time, bound):
        own = self.h(node)
        residual = torch.cat([own, self.phi(0)])
        width = residual.shape[0]
        attended = torch.zeros(width)
        found = self.neighbors(node, time, bound)
        if found:
            slots = torch.stack(
                [torch.cat([self.h(j), self.xe[e], self.phi(time - t)]) for t, e, j in found]
            )
            size = width // self.c["heads"]
            q = (self.w["attention.w_q"] @ residual).reshape(self.c["heads"], size)
            keys = (slots @ self.w["attention.w_k"].T).reshape(-1, self.c["heads"], size)
            values = (slots @ self.w["attention.w_v"].T).reshape(-1, self.c["heads"], size)
            scores = torch.einsum("hd,khd->hk", q, keys) / np.sqrt(size)
            attended = torch.einsum("hk,khd->hd", torch.softmax(scores, 1), values).reshape(-1)
        out = self.w["attention.w_o"] @ attended + self.w["attention.b_o"][0] + residual
        out = F.layer_norm(
            out, (width,), self.w["attention.gamma"][0], self.w["attention.beta"][0], 1e-5
        )
        hidden = torch.relu(self.w["merge.w_a"] @ torch.cat([out, own]) + self.w["merge.b_a"][0])
        return self.w["merge.w_b"] @ hidden + self.w["merge.b_b"][0]

    def link(self, zu, zv):
        hidden = torch.relu(self.w["link.w_a"] @ torch.cat([zu, zv]) + self.w["link.b_a"][0])
        return (self.w["link.w_b"] @ hidden + self.w["link.b_b"][0])[0]

    def learned(self, batch):
        """What follows the stream without a gradient: nothing."""

    def state(self):
        return {"memory": self.memory, "published": torch.stack([self.fresh(n) for n in range(NODES)])}

    def remember(self, batch):
        """Writes memory of the batch's nodes, then stores the last raw message of each, or all for their mean."""
        nodes = sorted({int(n) for e in batch for n in (self.src[e], self.dst[e])})
        with torch.no_grad():
            rows = {n: self.fresh(n).detach().clone() for n in nodes}
        for n in nodes:
            self.memory[n] = rows[n]
            if n in self.mail:
                self.updated[n] = max(self.updated[n], self.mail[n][-1][2])
            self.mail[n] = []
        for e in sorted(batch, key=lambda e: (self.time[e], e)):
            u, v = int(self.src[e]), int(self.dst[e])
            for n, other in {(u, v), (v, u)}:
                before = self.mail[n] if self.c.get("mean") else []
                self.mail[n] = before + [(self.memory[other].clone(), e, self.time[e])]


class TypedRows:
    """Of each edge the learned row of its type, row 0 if that is not known, and its features."""

    def __init__(self, table, types, features):
        self.table, self.types, self.features = table, types, features

    def __getitem__(self, edge):
        known = self.types[edge] < len(self.table)
        return torch.cat([self.table[self.types[edge] if known else 0], self.features[edge]])


def run(name, kind, case, rng, told):
    """Five batches with Adam. `told` makes whole numbers of the finished model that are told besides the events."""
    src, dst, time, negative = stream(rng)
    count = BATCHES * EVENTS
    edge_features = torch.tensor(rng.normal(size=(count, case["de"])).astype(np.float32).astype(np.float64))
    node_features = torch.tensor(rng.normal(size=(NODES, case["dn"])).astype(np.float32).astype(np.float64))
    stored, shapes = edge_features, kind.shapes(case)
    if "types" in case:
        types = rng.integers(0, case["types"] + 2, count)
        stored = torch.cat([torch.tensor(types)[:, None].double(), edge_features], 1)
        case = case | {"de": case["de"] + case["tw"]}
        shapes = kind.shapes(case) | {"edge_types": (case["types"] + 1, case["tw"])}
    weights = initial(rng, shapes)
    out = {f"initial.{n}": w.detach().numpy().copy() for n, w in weights.items()}
    rows = TypedRows(weights["edge_types"], types, edge_features) if "types" in case else edge_features
    model = kind(case, weights, rows, node_features, (src, dst, time))
    optimizer = torch.optim.Adam(weights.values(), lr=1e-3)
    positive_scores, negative_scores, losses = [], [], []
    for b in range(BATCHES):
        batch, bound = range(b * EVENTS, (b + 1) * EVENTS), (b + 1) * EVENTS
        z = lambda node, e: model.embed(int(node), time[e], bound)
        positive = torch.stack([model.link(z(src[e], e), z(dst[e], e)) for e in batch])
        against = torch.stack([model.link(z(src[e], e), z(negative[e], e)) for e in batch])
        bce = F.binary_cross_entropy_with_logits
        loss = bce(positive, torch.ones(EVENTS)) + bce(against, torch.zeros(EVENTS))
        # Zeros, not None: every parameter's Adam counts the first batch, in which no memory is pending.
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
        out |= {n: v.numpy().copy() for n, v in model.state().items()}
        out["embeddings"] = torch.stack([model.embed(n, time.max() + 100, count) for n in range(NODES)]).numpy()
    out |= {"positive": np.stack(positive_scores), "negative": np.stack(negative_scores), "loss": np.array(losses)}
    out |= {"edge_features": stored.numpy(), "node_features": node_features.numpy(), "omega": model.omega}
    out = {n: np.asarray(v).astype(np.float32) for n, v in out.items()}
    integers = {"src": src, "dst": dst, "time": time, "against": negative} | told(model)
    out |= {n: v.astype(np.int64) for n, v in integers.items()}
    return {f"{name}.{n}": np.ascontiguousarray(v) for n, v in out.items()}


def write(name, tensors):
    path = pathlib.Path(__file__).with_name(name)
    save_file(tensors, path)
    print(path, path.stat().st_size, "bytes")


if __name__ == "__main__":
    tensors = {}
    for seed, (name, case) in enumerate(CASES.items()):
        shape = np.array([case[k] for k in ("dm", "dt", "d", "heads", "k", "de", "dn")])
        told = lambda model: {"updated": np.array(model.updated), "shape": shape}
        tensors |= run(name, Tgn, case, np.random.default_rng(seed), told)
    write("tgn.safetensors", tensors)
