"""The reference training step in torch: 600 events as 1,800 targets with 10 neighbors each, a memory table with
gradient, attention of two heads, link predictor, AdamW over everything. Shapes and work are those of ours and of
`burn/src/main.rs`; the values are random, for what a step takes does not depend on them."""


import torch
import torch.nn.functional as F
from torch import nn
from variants import Way

EVENTS, FANOUT, NODES, HEADS, HEAD = 600, 10, 10_000, 2, 100
MEMORY, TIME, EDGE = 100, 100, 172
TARGETS, MODEL, SLOT = 3 * EVENTS, HEADS * HEAD, MEMORY + TIME + EDGE


class Net(nn.Module):
    def __init__(self, attention):
        super().__init__()
        self.attention = attention
        self.memory = nn.Parameter(torch.rand(NODES, MEMORY) * 2 - 1)
        self.time_weight = nn.Parameter(10 ** torch.linspace(0, -9, TIME))
        self.time_bias = nn.Parameter(torch.zeros(TIME))
        self.query, self.key, self.value = (nn.Linear(size, MODEL) for size in (MEMORY + TIME, SLOT, SLOT))
        self.output = nn.Linear(MODEL, MODEL)
        self.merge = nn.Sequential(nn.Linear(MODEL + MEMORY, 100), nn.ReLU(), nn.Linear(100, 100))
        self.link = nn.Sequential(nn.Linear(200, 100), nn.ReLU(), nn.Linear(100, 1))

    def encode(self, ages):
        return torch.addcmul(self.time_bias, ages, self.time_weight).cos()

    def forward(self, targets, neighbors, ages, edges, wanted):
        own = self.memory.index_select(0, targets)
        now = self.encode(torch.zeros_like(ages[:TARGETS]))
        slots = torch.cat([self.memory.index_select(0, neighbors), edges, self.encode(ages)], 1)
        found = self.attention(self.query(torch.cat([own, now], 1)), self.key(slots), self.value(slots))
        source, destination, negative = self.merge(torch.cat([self.output(found), own], 1)).chunk(3)
        pairs = torch.cat([torch.cat([source, destination], 1), torch.cat([source, negative], 1)])
        return F.binary_cross_entropy_with_logits(self.link(pairs), wanted)


def fused(query, key, value):
    split = lambda x: x.view(TARGETS, -1, HEADS, HEAD).transpose(1, 2)
    return F.scaled_dot_product_attention(split(query), split(key), split(value)).reshape(TARGETS, MODEL)


def products(query, key, value):
    query, key, value = (x.view(TARGETS, -1, HEADS, HEAD).transpose(1, 2) for x in (query, key, value))
    weights = (query @ key.transpose(2, 3) * HEAD**-0.5).softmax(3)
    return (weights @ value).reshape(TARGETS, MODEL)


def sums(query, key, value):
    query, key, value = (x.view(TARGETS, -1, HEADS, HEAD) for x in (query, key, value))
    weights = ((query * key).sum(3, keepdim=True) * HEAD**-0.5).softmax(1)
    return (weights * value).sum(1).reshape(TARGETS, MODEL)


def batch(device):
    ids = lambda count: torch.randint(NODES, (count,), device=device)
    slots = TARGETS * FANOUT
    ages, edges = torch.rand(slots, 1, device=device) * 1e5, torch.rand(slots, EDGE, device=device) * 2 - 1
    wanted = (torch.arange(2 * EVENTS, device=device) < EVENTS).float()[:, None]
    return ids(TARGETS), ids(slots), ages, edges, wanted


def reference_step(p):
    def make_with(attention):
        def make():
            torch.manual_seed(1)
            net, inputs = Net(attention).to(p.device), batch(p.device)
            optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, weight_decay=0.01, fused=True)

            def step(_):
                optimizer.zero_grad(set_to_none=True)
                loss = net(*inputs)
                loss.backward()
                optimizer.step()
                return loss

            return step

        return make

    return [
        Way("scaled_dot_product_attention", make_with(fused), backward=False),
        Way("attention as a product of matrices", make_with(products), backward=False),
        Way("attention as a product with a sum", make_with(sums), backward=False),
    ]
