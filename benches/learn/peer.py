"""A peer as a process: it learns on request, and responds with its figures, a line of JSON each.

    python peer_NAME.py --data DIR --events NAME --batch 200 --threads 2 --learning-rate 1e-3 [--turns 3]
    python peer_NAME.py --file EVENTS.csv --features 172 --device cuda …

A line on standard input is a word. `train` is one of the turns of an epoch over the training part, by default all of
it, timed as ours is: sampling, forward, backward, optimizer and memory count; the draw of negatives and the choice of
a batch's rows do not. `test`, after an epoch, scores the validation part and then the test part, batch by batch, each
from the state before it. With `--file` all events of it are trained on, and there is nothing to test.

On a GPU everything lies in its memory before the clock starts, which starts and stops when the GPU has done all its
work. Phases are not separated there, since that would take a wait after each.
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
from stream import Stream, Whole, average_precision

PHASES = ("sample", "forward", "backward", "optimizer", "memory")


class Peer:
    """A model in training. A kind of peer makes `self.network` in `build`, and has

    - `begin(training)`: makes ready for an epoch, or for evaluation after one;
    - `forward(src, dst, times, against)`: logits of the events and of the pairs `(src, against)`;
    - `remember(src, dst, times)`: takes the events in;
    - `end_step()`: after the optimizer's step.

    `self.at` has the numbers of the events that all but the first of these are about.
    """

    def __init__(self, stream, size, learning_rate, turns, device="cpu", features=0):
        self.stream, self.size, self.epoch, self.left = stream, size, 0, iter(())
        self.device, self.features = torch.device(device), features
        self.steps = -(-len(stream.train) // (size * turns))
        columns = (stream.src, stream.dst, stream.times)
        self.src, self.dst, self.times = (torch.from_numpy(column).to(self.device) for column in columns)
        self.phases, self.at = {}, None
        self.learning_rate = learning_rate
        self.build()
        self.place_network()

    def place_network(self):
        """The network where it computes, with an optimizer that knows nothing of it."""
        self.network.to(self.device)
        self.optimizer = torch.optim.Adam(self.network.parameters(), lr=self.learning_rate)

    def wait(self):
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    @contextmanager
    def phase(self, name):
        if self.device.type == "cuda":
            yield
            return
        started = time.perf_counter()
        yield
        self.phases[name] += time.perf_counter() - started

    def load(self, part):
        """The batches of a part as tensors: rows, sources, destinations, times, destinations of negatives."""
        for each in self.stream.batches(part, self.size, self.epoch):
            rows, against = (torch.from_numpy(numbers).to(self.device) for numbers in each)
            yield rows, self.src[rows], self.dst[rows], self.times[rows], against

    def train(self):
        batches = list(islice(self.left, self.steps)) or self.next_epoch()
        self.phases = dict.fromkeys(PHASES, 0.0)
        seconds, losses = 0.0, []
        for batch in batches:
            self.wait()
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

    def step(self, rows, src, dst, times, against):
        self.at = rows
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
        # This waits for the GPU.
        return loss.item()

    @torch.no_grad()
    def test(self):
        self.begin(training=False)
        return {"epoch": self.epoch, "val": self.score("val"), "test": self.score("test")}

    def score(self, part):
        scores = []
        for rows, src, dst, times, against in self.load(part):
            self.at = rows
            scores.append([logits.cpu().numpy() for logits in self.forward(src, dst, times, against)])
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
        where = {"device": self.device.type, "threads": torch.get_num_threads()}
        return {"version": self.version(), "parameters": parameters} | where | counts


def main(kind):
    parser = argparse.ArgumentParser(description="Learns on request on standard input.")
    parser.add_argument("--data", type=Path, help="folder of the event files")
    parser.add_argument("--events", help="name of the event file")
    parser.add_argument("--file", type=Path, help="instead of these an event file that is trained on whole")
    parser.add_argument("--features", type=int, default=0, help="random numbers that each event has")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--batch", type=int, required=True, help="events a batch")
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--matmul-precision", choices=["f32", "bf16"], default="f32", help="of products of f32 numbers")
    parser.add_argument("--learning-rate", type=float, required=True)
    parser.add_argument("--turns", type=int, default=1, help="turns in which an epoch is trained")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    if not arguments.file and not (arguments.data and arguments.events):
        parser.error("--data and --events, or --file, are needed")
    if arguments.device == "cuda" and not torch.cuda.is_available():
        parser.exit(1, "--device cuda, but torch sees no GPU\n")
    torch.set_num_threads(arguments.threads)
    torch.set_float32_matmul_precision("medium" if arguments.matmul_precision == "bf16" else "highest")
    torch.manual_seed(arguments.seed)
    if arguments.file:
        stream = Whole(arguments.file, arguments.seed)
    else:
        stream = Stream(arguments.data, arguments.events, arguments.seed)
    settings = (arguments.batch, arguments.learning_rate, arguments.turns, arguments.device, arguments.features)
    peer = kind(stream, *settings)
    words = {"facts": peer.facts, "train": peer.train, "test": peer.test}
    for line in sys.stdin:
        print(json.dumps(words[line.strip()]()), flush=True)
