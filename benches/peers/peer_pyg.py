"""PyG's LastNeighborLoader: the table of each node's last K edges that its TGN example uses.

As it is shipped, `insert` sorts a batch's end points with a sort that is not stable. Of a node with more than K events
in a batch it so keeps any K of them, not the last. Repaired, the sort is stable and nothing else is different.
"""

import functools

import numpy as np
import torch
from questions import NO_EDGE
from torch_geometric.nn.models.tgn import LastNeighborLoader


class Peer:
    def __init__(self, questions, repaired):
        assert questions.ask == "newest"
        if repaired:
            torch.Tensor.sort = functools.partialmethod(torch.Tensor.sort, stable=True)
        self.questions = questions
        self.loader = LastNeighborLoader(questions.nodes, questions.fanout)
        src, dst = torch.from_numpy(questions.src), torch.from_numpy(questions.dst)
        self.batches = [
            (torch.from_numpy(batch.node), src[batch.events], dst[batch.events]) for batch in questions.batches
        ]

    def reset(self):
        self.loader.reset_state()

    def answer(self, number, batch):
        node, src, dst = self.batches[number]
        found = self.loader(node)
        self.loader.insert(src, dst)
        return found

    def check(self, number, batch, found):
        """The edges of each node, as a set: the table promises no order."""
        node, pairs, edge = found
        answer = np.full((len(batch.node), self.questions.fanout), NO_EDGE)
        seed = np.searchsorted(batch.node, node[pairs[1]].numpy())
        slot = np.arange(len(seed)) - np.searchsorted(seed, seed)
        answer[seed, slot] = edge.numpy()
        answer = -np.sort(-answer, axis=1)
        ours = self.questions.ours[number][0][2]
        assert ((answer == NO_EDGE) == (ours == NO_EDGE)).all(), "LastNeighborLoader: wrong number of edges"
        return {"edges": len(edge), "wrong_seeds": int((answer != ours).any(axis=1).sum())}
