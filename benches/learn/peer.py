"""A peer as a process: it learns when it is told to, and answers with its figures, a line of JSON each.

    python peer_NAME.py --data DIR --events NAME --batch 200 --threads 2 --learning-rate 1e-3 [--turns 3]

A line on standard input is a word. `train` is one of the turns of an epoch over the training part, by default all of
it, timed as ours is: sampling, forward, backward, optimizer and memory count; the draw of negatives and the choice of
a batch's rows do not. `test`, after an epoch, scores the validation part and then the test part, batch by batch, each
from the state before it.
"""

import argparse
import json
import sys
import time
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from stream import Stream, average_precision

PHASES = ("sample", "forward", "backward", "optimizer", "memory")


class Peer:
    """A model in training. A kind of peer makes `self.network` in `build`, and has

    - `begin(training)`: makes ready for an epoch, or for evaluation after one;
    - `forward(src, dst, times, against)`: logits of the events and of the pairs `(src, against)`;
    - `remember(src, dst, times)`: takes the events in;
    - `end_step()`: after the optimizer's step.
    """

    def __init__(self, stream, size, learning_rate, turns):
        self.stream, self.size, self.epoch, self.left = stream, size, 0, iter(())
        self.steps = -(-len(stream.train) // (size * turns))
        self.src, self.dst, self.times = (torch.from_numpy(c) for c in (stream.src, stream.dst, stream.times))
        self.phases = {}
        self.build()
        self.optimizer = torch.optim.Adam(self.network.parameters(), lr=learning_rate)

    @contextmanager
    def phase(self, name):
        started = time.perf_counter()
        yield
        self.phases[name] += time.perf_counter() - started

    def load(self, part):
        """The batches of a part as tensors: sources, destinations, times, destinations of negatives."""
        for rows, against in self.stream.batches(part, self.size, self.epoch):
            rows = torch.from_numpy(rows)
            yield self.src[rows], self.dst[rows], self.times[rows], torch.from_numpy(against)

    def train(self):
        batches = list(islice(self.left, self.steps)) or self.next_epoch()
        self.phases = dict.fromkeys(PHASES, 0.0)
        seconds, losses = 0.0, []
        for batch in batches:
            started = time.perf_counter()
            losses.append(self.step(*batch))
            seconds += time.perf_counter() - started
        figures = {"events": sum(len(batch[0]) for batch in batches), "seconds": seconds, "phase_seconds": self.phases}
        return figures | {"loss": float(np.mean(losses))}

    def next_epoch(self):
        self.epoch += 1
        self.begin(training=True)
        self.left = self.load("train")
        return list(islice(self.left, self.steps))

    def step(self, src, dst, times, against):
        self.optimizer.zero_grad()
        happened, made_up = self.forward(src, dst, times, against)
        with self.phase("forward"):
            bce = torch.nn.functional.binary_cross_entropy_with_logits
            loss = bce(happened, torch.ones_like(happened)) + bce(made_up, torch.zeros_like(made_up))
        with self.phase("memory"):
            self.remember(src, dst, times)
        with self.phase("backward"):
            loss.backward()
        with self.phase("optimizer"):
            self.optimizer.step()
        with self.phase("memory"):
            self.end_step()
        return loss.item()

    @torch.no_grad()
    def test(self):
        self.begin(training=False)
        return {"epoch": self.epoch, "val": self.score("val"), "test": self.score("test")}

    def score(self, part):
        scores = []
        for src, dst, times, against in self.load(part):
            scores.append([logits.numpy() for logits in self.forward(src, dst, times, against)])
            self.remember(src, dst, times)
        positive, negative = (np.concatenate(each) for each in zip(*scores))
        return {
            "average_precision": float(np.mean([average_precision(*each) for each in scores])),
            "pooled_average_precision": average_precision(positive, negative),
        }

    def facts(self):
        """What is known before anything is learned."""
        counts = {"nodes": self.stream.nodes, "train_events": len(self.stream.train)}
        counts |= {f"{part}_events": len(against) for part, against in self.stream.given.items()}
        parameters = sum(each.numel() for each in self.network.parameters())
        return {"version": self.version(), "parameters": parameters, "threads": torch.get_num_threads()} | counts


def main(kind):
    parser = argparse.ArgumentParser(description="Learns when it is told to on standard input.")
    parser.add_argument("--data", type=Path, required=True, help="folder of the event files")
    parser.add_argument("--events", required=True, help="name of the event file")
    parser.add_argument("--batch", type=int, required=True, help="events a batch")
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--learning-rate", type=float, required=True)
    parser.add_argument("--turns", type=int, default=1, help="turns in which an epoch is trained")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(arguments.seed)
    stream = Stream(arguments.data, arguments.events, arguments.seed)
    peer = kind(stream, arguments.batch, arguments.learning_rate, arguments.turns)
    words = {"facts": peer.facts, "train": peer.train, "test": peer.test}
    for line in sys.stdin:
        print(json.dumps(words[line.strip()]()), flush=True)
