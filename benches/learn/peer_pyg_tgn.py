"""PyG's TGN: its memory, messages, aggregator and neighbor table combined as its TGN example does, with the
dimensions of ours.

What its modules do not allow is left as it is: they have no way to leave out features of events, so where none are
asked for every event has one that is 0; the time encoding is learned; an event sees no earlier event of its own batch;
and of a node with more than K events in one batch `LastNeighborLoader` keeps any K of them.
"""

import torch
import torch_geometric
from peer import Peer, main
from torch_geometric.nn import TransformerConv
from torch_geometric.nn.models.tgn import IdentityMessage, LastAggregator, LastNeighborLoader, TGNMemory

WIDTH, FANOUT, HEADS, DROPOUT = 100, 10, 2, 0.1


class Network(torch.nn.Module):
    def __init__(self, nodes, features):
        super().__init__()
        message = IdentityMessage(features, WIDTH, WIDTH)
        self.memory = TGNMemory(nodes, features, WIDTH, WIDTH, message, LastAggregator())
        edge = features + WIDTH
        self.attention = TransformerConv(WIDTH, WIDTH // HEADS, heads=HEADS, dropout=DROPOUT, edge_dim=edge)
        self.source, self.destination = torch.nn.Linear(WIDTH, WIDTH), torch.nn.Linear(WIDTH, WIDTH)
        self.score = torch.nn.Linear(WIDTH, 1)

    def embed(self, nodes, edges, times, features):
        memory, updated = self.memory(nodes)
        since = (updated[edges[0]] - times).to(memory.dtype)
        edge = torch.cat([self.memory.time_enc(since), features], 1)
        return self.attention(memory, edges, edge)

    def logits(self, embeddings, source, destination):
        hidden = self.source(embeddings[source]) + self.destination(embeddings[destination])
        return self.score(hidden.relu())[:, 0]


class Tgn(Peer):
    def build(self):
        self.table = torch.randn(len(self.src), self.features, device=self.device) if self.features else None
        self.place = torch.empty(self.stream.nodes, dtype=torch.long, device=self.device)
        self.start_over()

    def start_over(self):
        """Network, memory and graph as at the beginning."""
        nodes = self.stream.nodes
        self.network = Network(nodes, max(self.features, 1))
        self.loader = LastNeighborLoader(nodes, FANOUT, device=self.device)

    def features_of(self, rows):
        return torch.zeros(len(rows), 1, device=self.device) if self.table is None else self.table[rows]

    def begin(self, training):
        """An epoch starts from nothing; evaluation goes on with the memory, and with all edges as neighbors."""
        self.loader.reset_state()
        self.network.train(training)
        if training:
            self.rows = torch.from_numpy(self.stream.train).to(self.device)
            self.network.memory.reset_state()
            return
        self.rows = torch.arange(len(self.src), device=self.device)
        for rows in self.rows[: self.stream.validation].split(self.size):
            self.loader.insert(self.src[rows], self.dst[rows])

    def forward(self, src, dst, times, against):
        with self.phase("sample"):
            nodes, edges, found = self.loader(torch.cat([src, dst, against]).unique())
            rows = self.rows[found]
            self.place[nodes] = torch.arange(len(nodes), device=self.device)
        with self.phase("forward"):
            embeddings = self.network.embed(nodes, edges, self.times[rows], self.features_of(rows))
            pairs = [(self.place[src], self.place[node]) for node in (dst, against)]
            return [self.network.logits(embeddings, *pair) for pair in pairs]

    def remember(self, src, dst, times):
        self.network.memory.update_state(src, dst, times, self.features_of(self.at))
        self.loader.insert(src, dst)

    def end_step(self):
        self.network.memory.detach()

    def version(self):
        return f"{torch_geometric.__version__} on torch {torch.__version__}"


if __name__ == "__main__":
    main(Tgn)
