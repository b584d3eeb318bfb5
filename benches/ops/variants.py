"""What an operation is to a peer: several ways to compute it, of which the fastest counts.

A way gets the inputs as tensors by name and makes the result; types of indices, masks and row pointers are prepared
outside of the time, from `Prepared`.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Callable

import torch


@dataclass
class Way:
    """`make()` gives a function from inputs by name to the output, or to outputs by name. It is called again where
    buffers should not outlive their use. Without `backward` the way has no gradient, as it writes into buffers. What
    leaves something open, such as an order, has it settled by `settle` before it is compared, outside of the time.
    Of a loss that is trained on, `step()` gives a function that makes one training step; it is what is timed."""

    name: str
    make: Callable
    backward: bool = True
    settle: Callable = lambda out: out
    step: Callable | None = None


# Inputs that torch takes as vectors, and ours as matrices of one row.
VECTORS = {
    "gather_concat_time": {"w", "b"},
    "time_encoding": {"w", "b"},
    "layer_norm": {"gamma", "beta"},
    "linear": {"b"},
    "gru_cell": {"b_ih", "b_hh"},
    "reference_step": {"time_w", "time_b", "b_o", "b_a", "b_b", "b_c", "b_d"},
}


def way(name, function, backward=True, settle=lambda out: out):
    return Way(name, lambda: function, backward, settle)


def into_buffer(name, shape, like, function):
    """A way that writes to a buffer which is allocated once: `function(inputs, buffer)`. It starts at 0."""

    def make():
        buffer = torch.zeros(shape, dtype=like.dtype, device=like.device)
        return lambda x: function(x, buffer)

    return Way(name, make, backward=False)


class Prepared:
    """The inputs of a point as tensors, and what a user of torch would have ready beside them."""

    def __init__(self, point, device, dtype=torch.float32):
        self.op, self.params, self.device = point.op, point.params, device
        self.outputs = {name: tuple(facts["shape"]) for name, facts in point.outputs.items()}
        self.tensors = {}
        for name, array in point.inputs().items():
            array = array.reshape(-1) if name in VECTORS.get(point.op, ()) else array
            tensor = torch.from_numpy(array.astype("int64") if array.dtype.kind == "u" else array)
            self.tensors[name] = tensor.to(device, dtype if tensor.is_floating_point() else None)
        self.differentiable = point.differentiable()
        self.tensors.setdefault("grad_out", torch.ones((), device=device, dtype=dtype))

    def __getattr__(self, name):
        try:
            return self.__dict__["tensors"][name]
        except KeyError:
            raise AttributeError(name) from None

    @property
    def rows(self):
        return self.outputs["out"][0]

    def narrow(self, name):
        """Indices in 32 bits."""
        return self.tensors[name].to(torch.int32)

    @cached_property
    def index64(self):
        return self.index.long()

    @cached_property
    def lengths(self):
        """Elements per segment, or occupied slots per row."""
        return self.counts.long() if "counts" in self.tensors else self.pointers.diff()

    @cached_property
    def pointers(self):
        if "offsets" in self.tensors:
            return self.offsets.long()
        return torch.cat([self.lengths.new_zeros(1), self.lengths.cumsum(0)])

    @cached_property
    def segment(self):
        """Segment of each element."""
        return torch.repeat_interleave(torch.arange(len(self.lengths), device=self.device), self.lengths)

    @cached_property
    def empty(self):
        """Which segments have no element, as a column; none if all have one."""
        # First called inside of a way, perhaps in inference mode, whose tensors serve no gradient.
        with torch.inference_mode(False):
            empty = (self.lengths == 0)[:, None]
            return empty if bool(empty.any()) else None

    @property
    def slots(self):
        return self.x.shape[0] // self.rows if "x" in self.tensors else self.k.shape[0] // self.rows

    @cached_property
    def mask(self):
        """[n, K]: which slots are occupied; none if all are."""
        mask = torch.arange(self.slots, device=self.device) < self.lengths[:, None]
        return None if bool(mask.all()) else mask

    @cached_property
    def occupied(self):
        """Rows of the occupied slots, in order."""
        everything = torch.arange(self.rows * self.slots, device=self.device)
        return everything if self.mask is None else everything[self.mask.flatten()]

    def csr(self, columns, values):
        return torch.sparse_csr_tensor(
            self.pointers, columns, values, (len(self.lengths), len(self.x)), check_invariants=False
        )

    def fill_empty(self, out):
        return out if self.empty is None else out.masked_fill(self.empty, 0)
