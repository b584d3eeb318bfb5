"""The operations for which PyG has a utility of its own, in the same form as ways_torch.py."""

from torch_geometric.utils import scatter, segment
from variants import way


def segment_reduce(reduce):
    def operation(p):
        pointers, index, rows = p.pointers, p.segment, p.rows
        return [
            way("segment", lambda x: segment(x["x"], pointers, reduce)),
            way("scatter", lambda x: scatter(x["x"], index, 0, rows, reduce)),
        ]

    return operation


OPERATIONS = {
    "segment_sum": segment_reduce("sum"),
    "segment_mean": segment_reduce("mean"),
}
WITHOUT_PEER = {}
