"""PyG's TGN has to learn events that arrive in rounds, and this writes how long it takes, in both ways that there are:

- retrained: it starts over with all events, in one epoch, as a trainer does that runs every night. Graph, memory,
  network and optimizer are built anew;
- continued: it keeps all of that, and has one step for each batch of the new events.

    peer_continual.py EVENTS.csv[.gz] OUT.json [--features N] [--rounds N] [--round-events N] [--device cpu|cuda] ...

The last events of the file arrive in rounds; the ones before are learned first, which is not timed. All columns are in
memory at any time, and on a GPU in its memory; draws of negatives are not timed. So what a trainer spends on reading
events, on starting, and on handing over what it has learned comes on top.
"""

import argparse
import json
import sys
import time
from pathlib import Path

import numpy as np
import torch
from peer import PHASES
from peer_pyg_tgn import Tgn
from stream import Whole


class Rounds:
    """A stream whose last events are new."""

    def __init__(self, arguments):
        self.arguments = arguments
        self.stream = Whole(arguments.events, arguments.seed)
        self.events = len(self.stream.train)
        self.base = self.events - arguments.rounds * arguments.round_events
        if self.base < arguments.batch:
            sys.exit(f"{self.events} events are too few for {arguments.rounds} rounds of {arguments.round_events}")
        self.stream.train = np.arange(self.base)
        settings = (arguments.batch, arguments.learning_rate, 1, arguments.device, arguments.features)
        self.retrained, self.continued = (Tgn(self.stream, *settings) for _ in range(2))
        self.continued.train()
        # Numbers of events in the loader are those of the stream, since it takes them in order.
        self.continued.rows = torch.arange(self.events, device=self.continued.device)

    def retrain(self, known):
        """Seconds to learn the first `known` events from nothing."""
        self.stream.train = np.arange(known)
        peer = self.retrained
        peer.steps = -(-known // peer.size)
        peer.wait()
        started = time.perf_counter()
        peer.start_over()
        peer.place_network()
        peer.wait()
        seconds = time.perf_counter() - started
        figures = peer.train()
        assert figures["events"] == known
        return seconds + figures["seconds"]

    def go_on(self, known):
        """Seconds to learn the round before event `known` with all that was learned before it."""
        new = known - self.arguments.round_events
        peer, seconds = self.continued, 0.0
        assert peer.loader.cur_e_id == new, "the loader has just the events before"
        self.stream.train = np.arange(new, known)
        peer.epoch += 1
        batches = list(peer.load("train"))
        peer.phases = dict.fromkeys(PHASES, 0.0)
        for batch in batches:
            peer.wait()
            started = time.perf_counter()
            peer.step(*batch)
            seconds += time.perf_counter() - started
        return seconds

    def measure(self, write):
        """Calls `write` with what is known after each round: a run that is ended too soon leaves that."""
        retrained, continued = [], []
        for number in range(self.arguments.rounds):
            known = self.base + (number + 1) * self.arguments.round_events
            continued.append(self.go_on(known))
            retrained.append(self.retrain(known))
            write(retrained, continued)
            print(f"round {number + 1}: retrained {retrained[-1]:.2f} s, continued {continued[-1]:.3f} s", flush=True)


def main():
    parser = argparse.ArgumentParser(description="Times PyG's TGN on events that arrive in rounds.")
    parser.add_argument("events", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--features", type=int, default=0, help="random numbers that each event has")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--round-events", type=int, default=5000)
    parser.add_argument("--batch", type=int, default=600, help="events a batch")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    parser.add_argument("--threads", type=int, default=0, help="0: all cores")
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    torch.manual_seed(arguments.seed)
    rounds = Rounds(arguments)
    facts = {"peer": f"PyG {rounds.continued.version()}", "device": rounds.continued.device.type,
             "threads": torch.get_num_threads(), "batch_events": arguments.batch,
             "row_dimension": arguments.features, "events": rounds.base, "round_events": arguments.round_events}

    def write(retrained, continued):
        figures = facts | {"retrained_seconds": retrained, "continued_seconds": continued}
        arguments.out.write_text(json.dumps(figures, indent=1) + "\n")

    rounds.measure(write)


if __name__ == "__main__":
    main()
