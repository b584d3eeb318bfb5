"""Torch's times of the layers that `evergraph bench ops --device cuda:0` timed, at the same sizes.

    peer_layers.py ROWS.json OUT.json

By the GPU's clock, calls in a row, as ours: of a short one it is the time of launching it. Where a product is part of
a layer it is timed in full 32 bits, as ours computes it, and in TF32, which is less exact. Forward is without a graph;
backward is that of autograd, the graph kept. A step of Adam is the fused one. Attention over slots is what ours does
between its matrix products, in torch's operations: rows gathered and joined with encoded times, scores of what is
asked, their softmax, and the mean of the rows by it.
"""

import json
import sys

from torch_gpu import Clock, torch_on_gpu, write

NODE_ROWS = 10_000


class Layers:
    """A layer as a function, and what has gradients."""

    def __init__(self, torch, device):
        self.torch, self.device = torch, device

    def draw(self, *shape, learned=True):
        return self.torch.randn(*shape, device=self.device).mul_(0.1).requires_grad_(learned)

    def linear(self, shape):
        x, w, b = self.draw(shape["m"], shape["k"]), self.draw(shape["n"], shape["k"]), self.draw(shape["n"])
        return lambda: self.torch.nn.functional.linear(x, w, b), [x, w, b]

    def gru_cell(self, shape):
        x, h = self.draw(shape["rows"], shape["input"]), self.draw(shape["rows"], shape["hidden"])
        cell = self.torch.nn.GRUCell(shape["input"], shape["hidden"]).to(self.device)
        return lambda: cell(x, h), [x, h, *cell.parameters()]

    def layer_norm(self, shape):
        rows, cols = shape["rows"], shape["cols"]
        x, gamma, beta = self.draw(rows, cols), self.draw(cols), self.draw(cols)
        return lambda: self.torch.nn.functional.layer_norm(x, (cols,), gamma, beta), [x, gamma, beta]

    def slot_attention(self, shape):
        torch = self.torch
        seeds, slots, heads = shape["seeds"], shape["slots"], shape["heads"]
        node, edge, time = shape["node"], shape["edge"], shape["time"]
        u, nodes = self.draw(seeds, heads, node + edge + time), self.draw(NODE_ROWS, node)
        w, b = self.draw(time), self.draw(time)
        edges = self.draw(seeds, slots, edge, learned=False)
        deltas = self.draw(seeds, slots, 1, learned=False)
        at = torch.randint(NODE_ROWS, (seeds, slots), device=self.device)
        empty = torch.randint(8, (seeds, 1, slots), device=self.device) == 0

        def attend():
            parts = [nodes[at], edges, (deltas * w + b).cos()] if edge else [nodes[at], (deltas * w + b).cos()]
            rows = torch.cat(parts, 2)
            scores = (u @ rows.transpose(1, 2)).masked_fill(empty, float("-inf"))
            return scores.softmax(2).nan_to_num() @ rows

        return attend, [u, nodes, w, b]

    def adam(self, shape):
        weights = self.draw(shape["n"])
        weights.grad = self.draw(shape["n"], learned=False)
        return self.torch.optim.Adam([weights], fused=True).step


def seconds(torch, clock, layers, row):
    """Seconds by way."""
    made = getattr(layers, row["op"])(row["shape"])
    if row["op"] == "adam":
        return {"fused": clock.timed(made)}
    forward, learned = made
    ways = {"fp32": False, "tf32": True} if row["op"] in ("linear", "gru_cell", "slot_attention") else {"fp32": False}
    figures = {}
    for way, allowed in ways.items():
        torch.backends.cuda.matmul.allow_tf32 = allowed
        if row["direction"] == "forward":
            with torch.inference_mode():
                figures[way] = clock.timed(forward)
            continue
        out = forward()
        gradient = torch.randn_like(out)
        figures[way] = clock.timed(lambda: torch.autograd.grad(out, learned, gradient, retain_graph=True))
    return figures


def main(rows_path, out_path, *more):
    torch, device = torch_on_gpu(any_device=bool(more))
    clock, layers = Clock(torch, device), Layers(torch, device)
    with open(rows_path, encoding="utf-8") as file:
        points = json.load(file).get("layers", [])
    figures = []
    for row in points:
        ways = seconds(torch, clock, layers, row)
        figures.append({"id": row["id"], "direction": row["direction"], "ways_seconds": ways})
        write(out_path, {"peer": f"torch {torch.__version__}", "rows": figures})


if __name__ == "__main__":
    main(*sys.argv[1:])
