"""PyG's LastNeighborLoader: the table of each node's last K edges that its TGN example uses.

As it is shipped, `insert` sorts a batch's end points with a sort that is not stable. Of a node with more than K events
in a batch it so keeps any K of them, not the last. Repaired, the sort is stable and nothing else is different.
"""

import functools

import numpy as np
import torch
from queries import NO_EDGE
from torch_geometric.nn.models.tgn import LastNeighborLoader


class Peer:
    def __init__(self, queries, repaired):
        assert queries.ask == "newest"
        if repaired:
            torch.Tensor.sort = functools.partialmethod(torch.Tensor.sort, stable=True)
        self.queries = queries
        self.loader = LastNeighborLoader(queries.nodes, queries.fanout)
        src, dst = torch.from_numpy(queries.src), torch.from_numpy(queries.dst)
        self.batches = [
            (torch.from_numpy(batch.node), src[batch.events], dst[batch.events]) for batch in queries.batches
        ]

    def reset(self):
        self.loader.reset_state()

    def sample(self, number, batch):
        node, src, dst = self.batches[number]
        found = self.loader(node)
        self.loader.insert(src, dst)
        return found

    def check(self, number, batch, found):
        """The edges of each node, as a set: the table promises no order."""
        node, pairs, edge = found
        edges_found = np.full((len(batch.node), self.queries.fanout), NO_EDGE)
        seed = np.searchsorted(batch.node, node[pairs[1]].numpy())
        slot = np.arange(len(seed)) - np.searchsorted(seed, seed)
        edges_found[seed, slot] = edge.numpy()
        edges_found = -np.sort(-edges_found, axis=1)
        ours = self.queries.ours[number][0][2]
        assert ((edges_found == NO_EDGE) == (ours == NO_EDGE)).all(), "LastNeighborLoader: wrong number of edges"
        return {"edges": len(edge), "wrong_seeds": int((edges_found != ours).any(axis=1).sum())}
