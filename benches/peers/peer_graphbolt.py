"""DGL GraphBolt's temporal_sample_neighbors, on a graph that is built once from the whole stream."""

import dgl.graphbolt as gb
import numpy as np
import torch
from queries import NO_EDGE


class Peer:
    def __init__(self, queries, repaired=False):
        assert queries.ask == "uniform"
        self.queries, history = queries, queries.history
        node, edge = history.key >> 32, torch.from_numpy(history.edge)
        begin = np.searchsorted(node, np.arange(queries.nodes + 1))
        neighbor = queries.src[history.edge] + queries.dst[history.edge] - node
        self.time = torch.from_numpy(queries.time)
        self.graph = gb.fused_csc_sampling_graph(
            torch.from_numpy(begin),
            torch.from_numpy(neighbor),
            edge_attributes={"time": self.time[edge], gb.ORIGINAL_EDGE_ID: edge},
        )
        self.fanout = torch.tensor([queries.fanout])
        self.seeds = [(torch.from_numpy(batch.node), torch.from_numpy(batch.at)) for batch in queries.batches]

    def reset(self):
        pass

    def sample(self, number, batch):
        """Per layer the seeds, their times and the edges found. GraphBolt's own two-layer sampler samples
        neighbors at the time of the first seed; the same query as ours is two calls and `unique` between."""
        node, at = self.seeds[number]
        found = []
        for layer in range(self.queries.layers):
            if layer > 0:
                node, at = self.next_seeds(found[-1][2])
            edges = self.graph.temporal_sample_neighbors(node, at, self.fanout, edge_timestamp_attr_name="time")
            found.append((node, at, edges))
        return found

    def next_seeds(self, edges):
        base = self.time[0]
        time = self.time[edges.original_edge_ids] - base
        pair = (edges.sampled_csc.indices << 32 | time).unique()
        return pair >> 32, (pair & 0xFFFF_FFFF) + base

    def check(self, number, batch, found):
        edges = 0
        for layer, (node, at, sampled) in enumerate(found):
            node, at = node.numpy(), at.numpy()
            count = np.diff(sampled.sampled_csc.indptr.numpy())
            edges_found = np.full((len(node), self.queries.fanout), NO_EDGE)
            edges_found[np.arange(self.queries.fanout) < count[:, None]] = sampled.original_edge_ids.numpy()
            self.queries.history.check_uniform(node, at, batch.arrived, edges_found, "GraphBolt")
            if layer > 0:
                assert np.array_equal(expected, np.stack([node, at])), "GraphBolt: next seeds"
            expected = self.queries.history.next_seeds(node, edges_found)
            edges += len(sampled.original_edge_ids)
        return {"edges": edges}
