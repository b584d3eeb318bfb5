"""tgm's RecencyNeighborHook, a ring of each node's last K edges, and its NeighborSamplerHook, uniform.

Both return neighbors, times and edge features, no edge ids: here an edge's only feature is its id.

As it is shipped, the recency hook sorts a batch by node * time in 32 bits, which overflows, and so mixes up the edges
of some nodes. Repaired, node ids have 64 bits and nothing else is different.
"""

import numpy as np
import torch
from queries import NO_EDGE
from tgm import DGBatch, DGraph
from tgm.data import DGData
from tgm.hooks import NeighborSamplerHook, RecencyNeighborHook

SEEDS = {"seed_nodes_keys": ["query_nodes"], "seed_times_keys": ["query_times"]}


class Peer:
    def __init__(self, queries, repaired):
        self.queries, fanout = queries, queries.fanout
        self.id_type = torch.int64 if repaired else torch.int32
        assert len(queries.time) < 1 << 24, "an edge id must fit a 32-bit float"
        self.edge = torch.arange(len(queries.time), dtype=torch.float32)[:, None]
        self.ends = torch.from_numpy(np.stack([queries.src, queries.dst], axis=1)).int()
        self.time = torch.from_numpy(queries.time)
        self.graph = DGraph(DGData.from_raw(self.time, self.ends, self.edge))
        if queries.ask == "recent":
            self.hook = RecencyNeighborHook(queries.nodes, [fanout], **SEEDS)
            self.hook._nbr_ids = self.hook._nbr_ids.to(self.id_type)
            self.hook._write_pos = self.hook._write_pos.to(self.id_type)
        else:
            assert queries.ask == "uniform-batch"
            self.hook = NeighborSamplerHook([fanout], **SEEDS)

    def reset(self):
        if self.queries.ask == "recent":
            self.hook.reset_state()
        self.batches = [self.batch(batch) for batch in self.queries.batches]

    def batch(self, batch):
        ends, time = self.ends[batch.events].to(self.id_type), self.time[batch.events]
        made = DGBatch(ends[:, 0], ends[:, 1], time, edge_x=self.edge[batch.events])
        made.query_nodes, made.query_times = torch.from_numpy(batch.node).to(self.id_type), torch.from_numpy(batch.at)
        return made

    def sample(self, number, batch):
        return self.hook(self.graph, self.batches[number])

    def check(self, number, batch, found):
        node, edge = found.nbr_nids[0].numpy(), found.nbr_edge_x[0][:, :, 0].numpy().astype(np.int64)
        edges_found = -np.sort(-np.where(node < 0, NO_EDGE, edge), axis=1)
        history, fanout = self.queries.history, self.queries.fanout
        facts = {"edges": int((edges_found != NO_EDGE).sum())}
        if self.queries.ask == "uniform-batch":
            history.check_uniform(batch.node, batch.at, batch.arrived, edges_found, "NeighborSamplerHook")
            return facts
        # The ring holds the last K that arrived, and of them those before the seed's time are returned.
        last = history.newest(batch.node, np.full_like(batch.at, np.iinfo(np.int64).max), batch.arrived, fanout)
        expected = np.where((last != NO_EDGE) & (self.queries.time[last] < batch.at[:, None]), last, NO_EDGE)
        expected = -np.sort(-expected, axis=1)
        facts["wrong_seeds"] = int((edges_found != expected).any(axis=1).sum())
        facts["short_seeds"] = int((expected != self.queries.ours[number][0][2]).any(axis=1).sum())
        return facts
