"""The operations for which PyG has a utility of its own, in the same form as ways_torch.py."""

from torch_geometric.utils import scatter, segment, softmax
from variants import way


def segment_reduce(reduce):
    def operation(p):
        pointers, index, rows = p.pointers, p.segment, p.rows
        return [
            way("segment", lambda x: segment(x["x"], pointers, reduce)),
            way("scatter", lambda x: scatter(x["x"], index, 0, rows, reduce)),
        ]

    return operation


def scatter_add(p):
    index, rows = p.index64, p.rows
    return [way("scatter", lambda x: scatter(x["x"], index, 0, rows, "sum"))]


def edge_softmax(p):
    index, pointers, rows = p.segment, p.pointers, len(p.lengths)
    return [
        way("softmax, pointers", lambda x: softmax(x["score"], ptr=pointers)),
        way("softmax, index", lambda x: softmax(x["score"], index, num_nodes=rows)),
    ]


OPERATIONS = {
    "segment_sum": segment_reduce("sum"),
    "segment_mean": segment_reduce("mean"),
    "segment_max": segment_reduce("max"),
    "scatter_add": scatter_add,
    "edge_softmax": edge_softmax,
}
WITHOUT_PEER = {}
