"""The reference training step in torch: 600 events as 1,800 targets with 10 neighbors each, a memory table with
gradient, attention of two heads, link predictor, AdamW over everything. It is the step of
`src/cli/bench/ops/step.rs`, and that of `burn/src/main.rs` in shapes and work."""

import torch
import torch.nn.functional as F
from torch import nn
from variants import Way

HEADS = 2


def reference_step(p):
    target, neighbor = p.target.long(), p.neighbor.long()
    targets, ages = len(target), p.dt.reshape(-1, 1)
    wanted = (torch.arange(2 * targets // 3, device=p.device) < targets // 3).to(p.memory.dtype)[:, None]
    still = torch.zeros(targets, 1, dtype=p.memory.dtype, device=p.device)
    split = lambda x: x.view(targets, -1, HEADS, x.shape[1] // HEADS)

    def fused(*parts):
        parts = [split(x).transpose(1, 2) for x in parts]
        return F.scaled_dot_product_attention(*parts).reshape(targets, -1)

    def products(*parts):
        query, key, value = (split(x).transpose(1, 2) for x in parts)
        weights = (query @ key.transpose(2, 3) * query.shape[3] ** -0.5).softmax(3)
        return (weights @ value).reshape(targets, -1)

    def sums(*parts):
        query, key, value = map(split, parts)
        weights = ((query * key).sum(3, keepdim=True) * query.shape[3] ** -0.5).softmax(1)
        return (weights * value).sum(1).reshape(targets, -1)

    def loss_with(attention):
        def loss(x):
            encode = lambda dt: torch.addcmul(x["time_b"], dt, x["time_w"]).cos()
            layers = lambda of, a, b: linear(linear(of, a).relu(), b)
            linear = lambda of, name: F.linear(of, x[f"w_{name}"], x[f"b_{name}"])
            own = x["memory"].index_select(0, target)
            query = F.linear(torch.cat([own, encode(still)], 1), x["w_q"])
            slots = torch.cat([x["memory"].index_select(0, neighbor), p.edge_features, encode(ages)], 1)
            found = attention(query, F.linear(slots, x["w_k"]), F.linear(slots, x["w_v"]))
            z = layers(torch.cat([linear(found, "o"), own], 1), "a", "b")
            source, destination, negative = z.chunk(3)
            pairs = torch.cat([torch.cat([source, source]), torch.cat([destination, negative])], 1)
            return F.binary_cross_entropy_with_logits(layers(pairs, "c", "d"), wanted)

        return loss

    def step_with(loss):
        def make():
            learned = {name: nn.Parameter(p.tensors[name].clone()) for name in p.differentiable}
            optimizer = torch.optim.AdamW(learned.values(), lr=1e-3, weight_decay=0.01, fused=True)

            def step():
                optimizer.zero_grad(set_to_none=True)
                loss(learned).backward()
                optimizer.step()

            return step

        return make

    ways = [
        ("scaled_dot_product_attention", fused),
        ("attention as a product of matrices", products),
        ("attention as a product with a sum", sums),
    ]
    losses = [(name, loss_with(attention)) for name, attention in ways]
    return [Way(name, lambda loss=loss: loss, step=step_with(loss)) for name, loss in losses]
