"""Every operation in the ways that torch has for it. `OPERATIONS[op](p)` lists them, `p` a `Prepared` point."""

import torch
import torch.nn.functional as F
from reference import reference_step
from torch.nn.attention import SDPBackend, sdpa_kernel
from variants import Way, into_buffer, way


def gather_rows(p):
    index, narrow, shape = p.index64, p.narrow("index"), p.outputs["out"]
    return [
        way("index_select", lambda x: x["table"].index_select(0, index)),
        way("index_select, 32-bit", lambda x: x["table"].index_select(0, narrow)),
        into_buffer("index_select(out)", shape, p.table, lambda x, b: torch.index_select(x["table"], 0, index, out=b)),
        way("F.embedding", lambda x: F.embedding(index, x["table"])),
        way("F.embedding, 32-bit", lambda x: F.embedding(narrow, x["table"])),
        way("table[index]", lambda x: x["table"][index]),
    ]


def gather_concat_time(p):
    node, edge, dt = p.node.long(), p.edge.long(), p.dt.reshape(-1, 1)
    shape, left = p.outputs["out"], p.node_table.shape[1]
    right = left + p.edge_table.shape[1]
    select = lambda x: [x["node_table"].index_select(0, node), p.edge_table.index_select(0, edge)]

    def into(x, out):
        out[:, :left] = x["node_table"].index_select(0, node)
        out[:, left:right] = p.edge_table.index_select(0, edge)
        torch.addcmul(x["b"], dt, x["w"], out=out[:, right:]).cos_()
        return out

    return [
        way("index_select, cos(dt * w + b), cat", lambda x: torch.cat([*select(x), (dt * x["w"] + x["b"]).cos()], 1)),
        way(
            "index_select, cos(addcmul), cat",
            lambda x: torch.cat([*select(x), torch.addcmul(x["b"], dt, x["w"]).cos()], 1),
        ),
        way(
            "F.embedding, cos(addcmul), cat",
            lambda x: torch.cat(
                [
                    F.embedding(node, x["node_table"]),
                    F.embedding(edge, p.edge_table),
                    torch.addcmul(x["b"], dt, x["w"]).cos(),
                ],
                1,
            ),
        ),
        into_buffer("index_select, cos(addcmul) into parts of a buffer", shape, p.dt, into),
    ]


def reduce_csr(p, reduce):
    """Ways that reduce rows of `x` named by `pointers`: for segments all of them, for slots the occupied ones."""
    columns = p.occupied if "counts" in p.tensors else torch.arange(len(p.x), device=p.device)
    narrow, pointers = columns.int(), p.pointers.int()
    bag = lambda c, o: lambda x: F.embedding_bag(c, x["x"], o, mode=reduce, include_last_offset=True)
    ways = [way("embedding_bag", bag(columns, p.pointers)), way("embedding_bag, 32-bit", bag(narrow, pointers))]
    ones = torch.ones(len(columns), dtype=p.x.dtype, device=p.device)
    weights = ones if reduce == "sum" else ones / p.lengths.repeat_interleave(p.lengths)
    matrix = p.csr(columns, weights)
    return [*ways, way("sparse CSR @ x", lambda x: matrix @ x["x"])]


def slot_reduce(reduce):
    def operation(p):
        n, slots, mask = p.rows, p.slots, p.mask
        cube = lambda x: x["x"].view(n, slots, -1)
        ways = reduce_csr(p, reduce)
        masked = (lambda x: cube(x).masked_fill(~mask[..., None], 0)) if mask is not None else cube
        divisor = p.lengths.clamp(min=1)[:, None].to(p.x.dtype)
        divide = (lambda out: out / divisor) if reduce == "mean" else (lambda out: out)
        weights = torch.ones(n, slots, dtype=p.x.dtype, device=p.device) if mask is None else mask.to(p.x.dtype)
        weights = weights / divisor if reduce == "mean" else weights
        ways += [
            way("masked_fill, sum", lambda x: divide(masked(x).sum(1))),
            way("multiplied by the mask, sum", lambda x: (cube(x) * weights[..., None]).sum(1)),
            way("mask bmm x", lambda x: torch.bmm(weights[:, None], cube(x)).squeeze(1)),
            way("einsum", lambda x: torch.einsum("nk,nkc->nc", weights, cube(x))),
        ]
        return ways

    return operation


def segment_reduce(reduce):
    def operation(p):
        index, shape, pointers = p.segment, p.outputs["out"], p.pointers
        wide = index[:, None].expand(-1, shape[1])
        zeros = lambda: torch.zeros(shape, dtype=p.x.dtype, device=p.device)
        reduced = lambda x: torch.segment_reduce(x["x"], reduce, offsets=pointers, axis=0, unsafe=True, initial=0)
        scatter = lambda x: zeros().scatter_reduce(0, wide, x["x"], reduce, include_self=False)
        ways = reduce_csr(p, reduce) + [way("scatter_reduce", scatter)]
        divisor = p.lengths.clamp(min=1)[:, None].to(p.x.dtype)
        divide = (lambda out: out / divisor) if reduce == "mean" else (lambda out: out)
        ways += [
            # Of an empty segment its mean is not a number, wherever it starts.
            way("segment_reduce", lambda x: p.fill_empty(reduced(x)) if reduce == "mean" else reduced(x)),
            way("index_add", lambda x: divide(zeros().index_add_(0, index, x["x"]))),
            way("scatter_add", lambda x: divide(zeros().scatter_add_(0, wide, x["x"]))),
        ]
        return ways

    return operation


def slot_attention(p):
    n, slots, mask = p.rows, p.slots, p.mask
    heads = p.params["heads"]
    per_head = p.q.shape[1] // heads
    scale = per_head**-0.5
    least = float("-inf")
    split = lambda x, name: x[name].view(n, -1, heads, per_head)
    parts = lambda x: [split(x, name).transpose(1, 2) for name in ("q", "k", "v")]
    per_query = None if mask is None else mask[:, None, None]
    per_slot = None if mask is None else mask[..., None]
    fill = lambda weights, hidden: weights if hidden is None else weights.masked_fill(~hidden, least)

    def without_slots(out):
        """0 for a row without slots; torch's softmax of nothing is not a number."""
        return out if p.empty is None else out.masked_fill(p.empty, 0)

    def softmax(weights, dim, hidden):
        weights = fill(weights, hidden)
        if p.empty is not None:
            weights = weights.masked_fill(p.empty.view(-1, 1, 1, 1) if weights.dim() == 4 else p.empty[..., None], 0)
        return weights.softmax(dim)

    def attention(x):
        out = F.scaled_dot_product_attention(*parts(x), attn_mask=per_query, scale=scale)
        return without_slots(out.transpose(1, 2).reshape(n, -1))

    def with_backend(backend):
        def run(x):
            with sdpa_kernel(backend):
                return attention(x)

        return run

    def products(x):
        q, k, v = parts(x)
        weights = softmax((q * scale) @ k.transpose(2, 3), 3, per_query)
        return without_slots((weights @ v).reshape(n, -1))

    def sums(x):
        q, k, v = (split(x, name) for name in ("q", "k", "v"))
        weights = softmax((q * scale * k).sum(3), 1, per_slot)
        return without_slots((weights[..., None] * v).sum(1).reshape(n, -1))

    def einsums(x):
        q, k, v = (split(x, name) for name in ("q", "k", "v"))
        weights = softmax(torch.einsum("nhd,nkhd->nkh", q[:, 0] * scale, k), 1, per_slot)
        return without_slots(torch.einsum("nkh,nkhd->nhd", weights, v).reshape(n, -1))

    return [
        way("scaled_dot_product_attention", attention),
        way("scaled_dot_product_attention, math", with_backend(SDPBackend.MATH)),
        way("scaled_dot_product_attention, flash", with_backend(SDPBackend.FLASH_ATTENTION)),
        way("products of matrices, softmax", products),
        way("products and sums, softmax", sums),
        way("einsum, softmax", einsums),
    ]


def gru_cell(p):
    names = ("w_ih", "w_hh", "b_ih", "b_hh")
    size = p.h.shape[1]

    def by_hand(x):
        i = F.linear(x["x"], x["w_ih"], x["b_ih"])
        h = F.linear(x["h"], x["w_hh"], x["b_hh"])
        gates = (i[:, : 2 * size] + h[:, : 2 * size]).sigmoid()
        reset, update = gates.chunk(2, 1)
        new = torch.addcmul(i[:, 2 * size :], reset, h[:, 2 * size :]).tanh()
        return torch.lerp(new, x["h"], update)

    return [
        way("GRUCell", lambda x: torch.gru_cell(x["x"], x["h"], *(x[name] for name in names))),
        way("linear, sigmoid, tanh, lerp", by_hand),
    ]


def time_encoding(p):
    dt = p.dt.reshape(-1, 1)
    into = lambda x, b: torch.addcmul(x["b"], dt, x["w"], out=b).cos_()
    return [
        way("cos(dt * w + b)", lambda x: (dt * x["w"] + x["b"]).cos()),
        way("cos(addcmul)", lambda x: torch.addcmul(x["b"], dt, x["w"]).cos()),
        way("cos(F.linear)", lambda x: F.linear(dt, x["w"].view(-1, 1), x["b"]).cos()),
        into_buffer("addcmul(out), cos_", p.outputs["out"], p.dt, into),
    ]


def layer_norm(p):
    eps = p.params.get("eps", 1e-5)
    return [way("F.layer_norm", lambda x: F.layer_norm(x["x"], x["x"].shape[1:], x["gamma"], x["beta"], eps))]


def linear(p):
    turned = p.w.t().contiguous()
    into = lambda x, b: torch.addmm(x["b"], x["x"], x["w"].t(), out=b)
    return [
        way("F.linear", lambda x: F.linear(x["x"], x["w"], x["b"])),
        way("addmm", lambda x: torch.addmm(x["b"], x["x"], x["w"].t())),
        into_buffer("addmm(out)", p.outputs["out"], p.x, into),
        way("addmm, weight laid out the other way", lambda x: torch.addmm(x["b"], x["x"], turned), backward=False),
    ]


def unique(p):
    ids, narrow = p.ids.long(), p.narrow("ids")
    bound = int(ids.max()) + 1 if len(ids) else 0
    both = lambda found: {"out": found[0], "inverse": found[1]}

    def by_sort(x):
        ordered, place = ids.sort()
        found, rank = torch.unique_consecutive(ordered, return_inverse=True)
        return {"out": found, "inverse": torch.empty_like(rank).scatter_(0, place, rank)}

    def by_marks(x):
        marks = torch.zeros(bound, dtype=torch.bool, device=p.device).index_fill_(0, ids, True)
        return {"out": marks.nonzero().view(-1), "inverse": (marks.cumsum(0) - 1).index_select(0, ids)}

    def sort(found):
        ordered, place = found["out"].sort()
        return {"out": ordered, "inverse": place.argsort()[found["inverse"]]}

    unordered = lambda which: lambda x: both(which.unique(sorted=False, return_inverse=True))
    return [
        way("unique", lambda x: both(ids.unique(return_inverse=True)), backward=False),
        way("unique, 32-bit", lambda x: both(narrow.unique(return_inverse=True)), backward=False),
        way("unique(sorted=False)", unordered(ids), backward=False, settle=sort),
        way("unique(sorted=False), 32-bit", unordered(narrow), backward=False, settle=sort),
        way("sort, unique_consecutive", by_sort, backward=False),
        way("marks, nonzero, cumsum", by_marks, backward=False),
    ]


def scatter_last(p):
    """Writes into a table that is there, as ours does. Only ways that are defined where an index repeats: which row
    remains of `out[index] = x` is not."""
    index, narrow, shape = p.index64, p.narrow("index"), p.outputs["out"]
    order = torch.arange(len(index), device=p.device)

    def by_table(x, out):
        last = torch.full(shape[:1], -1, device=p.device).scatter_reduce_(0, index, order, "amax")
        rows = (last >= 0).nonzero().view(-1)
        return out.index_copy_(0, rows, x["x"].index_select(0, last.index_select(0, rows)))

    def by_unique(x, out):
        rows, inverse = index.unique(return_inverse=True)
        last = torch.zeros_like(rows).scatter_reduce_(0, inverse, order, "amax")
        return out.index_copy_(0, rows, x["x"].index_select(0, last))

    def by_sort(which):
        def run(x, out):
            rows, place = which.sort(stable=True)
            last = torch.ones_like(rows, dtype=torch.bool)
            torch.ne(rows[1:], rows[:-1], out=last[:-1])
            return out.index_copy_(0, rows[last].long(), x["x"].index_select(0, place[last]))

        return run

    return [
        into_buffer("scatter_reduce of places, index_copy_", shape, p.x, by_table),
        into_buffer("unique, scatter_reduce of places, index_copy_", shape, p.x, by_unique),
        into_buffer("stable sort, index_copy_", shape, p.x, by_sort(index)),
        into_buffer("stable sort, 32-bit, index_copy_", shape, p.x, by_sort(narrow)),
    ]


def adam(p):
    def optimizer(**settings):
        def make():
            parameter = torch.nn.Parameter(p.param.clone())
            parameter.grad = p.grad.clone()
            names = ("lr", "eps", "weight_decay")
            given = {name: p.params[name] for name in names if name in p.params}
            betas = (p.params.get("beta1", 0.9), p.params.get("beta2", 0.999))
            adam = torch.optim.Adam([parameter], betas=betas, **given, **settings)

            def run(x):
                adam.step()
                return parameter.detach()

            return run

        return make

    return [
        Way("Adam(fused)", optimizer(fused=True), backward=False),
        Way("Adam(foreach)", optimizer(foreach=True), backward=False),
        Way("Adam", optimizer(foreach=False), backward=False),
    ]


OPERATIONS = {
    "gather_rows": gather_rows,
    "gather_concat_time": gather_concat_time,
    "slot_sum": slot_reduce("sum"),
    "slot_mean": slot_reduce("mean"),
    "segment_sum": segment_reduce("sum"),
    "segment_mean": segment_reduce("mean"),
    "slot_attention": slot_attention,
    "gru_cell": gru_cell,
    "time_encoding": time_encoding,
    "layer_norm": layer_norm,
    "linear": linear,
    "unique": unique,
    "scatter_last": scatter_last,
    "adam": adam,
    "reference_step": reference_step,
}
# Why a point has no peer.
WITHOUT_PEER = {"sample_recent": "torch has no temporal sampler; those that exist are measured apart"}
