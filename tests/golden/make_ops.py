"""Writes ops.safetensors: inputs, weights, results and gradients of PyTorch for tests/it/golden_ops.rs.

    python -m venv env && env/bin/pip install torch numpy safetensors
    env/bin/python tests/golden/make_ops.py

Tensors are named CASE.ROLE.NAME with the roles in (inputs), p (parameters), out, d (gradients of the loss by
parameters and inputs). Attention is the plain, unfolded formulation.
"""

from pathlib import Path

import torch
from safetensors.torch import save_file

torch.manual_seed(20)
torch.set_num_threads(2)
tensors = {}


def keep(name, tensor):
    tensors[name] = tensor.detach().clone().to(torch.float32 if tensor.is_floating_point() else torch.int32).contiguous()


def leaf(case, role, name, tensor):
    tensor = tensor.detach().clone().requires_grad_()
    keep(f"{case}.{role}.{name}", tensor)
    return name, tensor


def finish(case, out, leaves):
    """The loss is the binary cross entropy of the result against random targets."""
    keep(f"{case}.out.value", out)
    targets = torch.rand_like(out)
    keep(f"{case}.in.targets", targets)
    loss = torch.nn.functional.binary_cross_entropy_with_logits(out, targets)
    keep(f"{case}.out.loss", loss.reshape(1))
    loss.backward()
    for name, tensor in leaves.items():
        keep(f"{case}.d.{name}", tensor.grad)


def linear():
    layer = torch.nn.Linear(13, 7)
    leaves = dict([leaf("linear", "in", "x", torch.randn(9, 13))])
    leaves |= dict([leaf("linear", "p", "weight", layer.weight), leaf("linear", "p", "bias", layer.bias)])
    finish("linear", torch.nn.functional.linear(leaves["x"], leaves["weight"], leaves["bias"]), leaves)


def layer_norm():
    leaves = dict([leaf("norm", "in", "x", torch.randn(9, 33) * 3 + 1)])
    leaves |= dict([leaf("norm", "p", "weight", torch.randn(33)), leaf("norm", "p", "bias", torch.randn(33))])
    finish("norm", torch.nn.functional.layer_norm(leaves["x"], (33,), leaves["weight"], leaves["bias"], 1e-5), leaves)


def gru():
    cell = torch.nn.GRUCell(23, 19)
    x, h = torch.randn(11, 23).requires_grad_(), torch.randn(11, 19).requires_grad_()
    out = cell(x, h)
    leaves = {"x": x, "h": h}
    for name, tensor in leaves.items():
        keep(f"gru.in.{name}", tensor)
    for name, tensor in cell.named_parameters():
        keep(f"gru.p.{name}", tensor)
        leaves[name] = tensor
    finish("gru", out, leaves)


def time_encoding():
    deltas = torch.cat([torch.zeros(1), torch.rand(8) * 100, 10 ** (torch.rand(15) * 9.3), torch.tensor([2e9])])
    w = torch.tensor([10 ** (-9 * i / 31) for i in range(32)], dtype=torch.float32)
    b = torch.rand(32) * 6 - 3
    for name, tensor in {"deltas": deltas, "w": w, "b": b}.items():
        keep(f"time.in.{name}", tensor)
    keep("time.out.zero_phase", torch.cos(deltas[:, None] * w))
    keep("time.out.value", torch.cos(deltas[:, None] * w + b))


def attention():
    seeds, k, unique, node, edge, time, model, heads = 12, 10, 40, 20, 9, 18, 30, 2
    width = node + edge + time
    leaves = dict([
        leaf("attention", "in", "query", torch.randn(seeds, node + time)),
        leaf("attention", "in", "nodes", torch.randn(unique, node)),
        leaf("attention", "p", "w_q", torch.randn(model, node + time) / 6),
        leaf("attention", "p", "w_k", torch.randn(model, width) / 6),
        leaf("attention", "p", "w_v", torch.randn(model, width) / 6),
    ])
    slots = torch.randint(0, unique, (seeds, k))
    occupied = torch.arange(k)[None, :] < torch.tensor([k, 3, 0, 1, k, 7, 0, k, 9, 2, 5, k])[:, None]
    deltas = 10 ** (torch.rand(seeds, k) * 7)
    edges = torch.randn(seeds * k, edge)
    w = torch.tensor([10 ** (-9 * i / (time - 1)) for i in range(time)], dtype=torch.float32)
    keep("attention.in.slots", torch.where(occupied, slots, torch.full_like(slots, -1)))
    for name, tensor in {"deltas": deltas, "edges": edges, "w": w}.items():
        keep(f"attention.in.{name}", tensor)

    rows = torch.cat([leaves["nodes"][slots], edges.reshape(seeds, k, edge), torch.cos(deltas[..., None] * w)], -1)
    split = lambda t: t.reshape(*t.shape[:-1], heads, model // heads)
    q = split(leaves["query"] @ leaves["w_q"].T)
    keys, values = split(rows @ leaves["w_k"].T), split(rows @ leaves["w_v"].T)
    scores = torch.einsum("shd,skhd->shk", q, keys) / (model // heads) ** 0.5
    scores = scores.masked_fill(~occupied[:, None, :], -1e10)
    weights = torch.softmax(scores, -1) * occupied[:, None, :]
    out = torch.einsum("shk,skhd->shd", weights, values).reshape(seeds, model)
    finish("attention", out, leaves)


def extreme_loss():
    logits = torch.tensor([-120.0, -30.0, -1.0, 0.0, 1.0, 30.0, 120.0] * 2).requires_grad_()
    targets = torch.tensor([1.0] * 7 + [0.0] * 7)
    loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, targets)
    loss.backward()
    keep("bce.in.x", logits)
    keep("bce.in.targets", targets)
    keep("bce.out.loss", loss.reshape(1))
    keep("bce.d.x", logits.grad)


def adam():
    w = torch.randn(5, 8).requires_grad_()
    keep("adam.in.w", w)
    optimizer = torch.optim.Adam([w], lr=1e-3)
    for step in range(3):
        w.grad = torch.randn(5, 8) * 10.0 ** (1 - step)
        keep(f"adam.in.gradient{step}", w.grad)
        optimizer.step()
        keep(f"adam.out.w{step}", w)


for make in [linear, layer_norm, gru, time_encoding, attention, extreme_loss, adam]:
    make()
save_file(tensors, Path(__file__).with_name("ops.safetensors"))
