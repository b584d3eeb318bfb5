"""GraphMixer in plain torch: the model of `src/model/graphmixer.rs` at the paper's width, with a sampler of the last K
edges that is a binary search in numpy, all seeds of a batch at once.
"""

import numpy as np
import torch
from peer import Peer, main
from torch import nn

WIDTH, TIME, FANOUT, BLOCKS, EXPANSION, DROPOUT = 100, 100, 20, 2, 4, 0.4


class RecentEdges:
    """Edges under both of their ends, in order of node and time."""

    def __init__(self, src, dst, times):
        both = src != dst
        nodes, when = np.concatenate([src, dst[both]]), np.concatenate([times, times[both]])
        self.ticks = np.unique(times)
        keys = self.keys(nodes, when)
        order = np.argsort(keys, kind="stable")
        self.sorted, self.times = keys[order], when[order]

    def keys(self, nodes, times):
        return nodes * (len(self.ticks) + 1) + np.searchsorted(self.ticks, times)

    def since(self, nodes, times, count):
        """Time since each of the last `count` edges strictly before `times`, newest first, and which there are."""
        end = np.searchsorted(self.sorted, self.keys(nodes, times))
        begin = np.searchsorted(self.sorted, nodes * (len(self.ticks) + 1))
        at = end[:, None] - np.arange(1, count + 1)
        there = at >= begin[:, None]
        return np.where(there, times[:, None] - self.times[np.maximum(at, 0)], 0), there


def mixing(width, hidden):
    layers = [nn.LayerNorm(width), nn.Linear(width, hidden), nn.GELU(), nn.Dropout(DROPOUT)]
    return nn.Sequential(*layers, nn.Linear(hidden, width), nn.Dropout(DROPOUT))


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("frequencies", 10 ** (-9 * torch.arange(TIME) / (TIME - 1)))
        self.token = nn.Linear(TIME, WIDTH)
        self.tokens = nn.ModuleList(mixing(FANOUT, FANOUT // 2) for _ in range(BLOCKS))
        self.channels = nn.ModuleList(mixing(WIDTH, EXPANSION * WIDTH) for _ in range(BLOCKS))
        self.output = nn.Linear(WIDTH, WIDTH)
        self.score = nn.Sequential(nn.Linear(2 * WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 1))

    def embed(self, since, there):
        x = self.token((since[:, :, None] * self.frequencies).cos() * there[:, :, None])
        for tokens, channels in zip(self.tokens, self.channels):
            x = x + tokens(x.transpose(1, 2)).transpose(1, 2)
            x = x + channels(x)
        return self.output(x.mean(1))


class GraphMixer(Peer):
    def build(self):
        if self.device.type != "cpu" or self.features:
            raise SystemExit("neighbors are looked up by numpy, on the CPU, and events have no features")
        self.network = Network()

    def begin(self, training):
        """While training, neighbors come from the edges that are trained on, while evaluating from all."""
        stream = self.stream
        rows = stream.train if training else slice(None)
        self.edges = RecentEdges(stream.src[rows], stream.dst[rows], stream.times[rows])
        self.network.train(training)

    def forward(self, src, dst, times, against):
        with self.phase("sample"):
            nodes, when = torch.cat([src, dst, against]).numpy(), times.repeat(3).numpy()
            since, there = map(torch.from_numpy, self.edges.since(nodes, when, FANOUT))
        with self.phase("forward"):
            source, *others = self.network.embed(since.float(), there).chunk(3)
            return [self.network.score(torch.cat([source, other], 1))[:, 0] for other in others]

    def remember(self, src, dst, times):
        """There is nothing but edges, and these are known."""

    def end_step(self):
        """Nothing is kept from step to step."""

    def version(self):
        return torch.__version__


if __name__ == "__main__":
    main(GraphMixer)
