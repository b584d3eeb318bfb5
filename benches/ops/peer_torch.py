"""Checks and times operations of torch, or of PyG's utilities on torch, on points that evergraph wrote.

    evergraph bench ops --cases DIR
    python peer_torch.py DIR --threads N [--peer torch|pyg] [--device cpu|cuda] [--compile]

Names of operations are read from standard input, one a line; the response to each is one line of JSON: a round of times
of all its points. What the first round of an operation prepares, checks and finds out is kept until another name
comes: later rounds time the fastest way only.

Every way to compute an operation is first compared with what came out of ours, output and gradients: no sampled
element may differ by more than 1e-5 of the largest magnitude of its output, and no sum over all elements by more than
1e-5 of the sum of magnitudes. Where 32-bit sums of torch and of ours are further apart, the same way in 64 bits
decides: ours must be that near to it. A point that differs is not timed; its id is reported with the reason.

A time is the median of at least ten runs after a warm-up (four where a run takes over 100 ms), in every round: forward
alone in inference mode; backward alone by autograd.grad with a given output gradient, the graph retained. Of all ways
the fastest counts, forward and backward each. For a cold cache 128 MiB are read and written between runs. A point with
`threads` among its parameters has its own number of them.
"""

import argparse
import gc
import json
import sys
import time
import warnings
from functools import cache
from statistics import median

import numpy as np
import torch
from cases import TOLERANCE, Cases, Disagreement
from variants import Prepared, Way

# What torch's own 32-bit results may differ from its 64-bit ones where ours does not.
TORCH_TOLERANCE = 1e-3
COLD_BYTES = 128 << 20
COMPILED = "compiled, "
# Ways that take this much longer than the fastest when they are compared, their first run, are not timed.
HOPELESS = 4
# Ways that take this much longer in the next runs have no further ones.
SLOW = 2
# Ways this near to the fastest of a few runs are all measured, and the fastest counts.
NEAR = 1.15
# Seconds for the runs of a way in a round, and bounds on their number.
ROUND_SECONDS = 0.1
FEWEST_RUNS, MOST_RUNS = 10, 100
LONG_SECONDS, LONG_RUNS = 0.1, 4


def main():
    arguments = parse()
    warnings.simplefilter("ignore")
    if arguments.device == "cuda" and not torch.cuda.is_available():
        sys.exit("peer_torch: --device cuda, but torch finds no CUDA device here")
    peer = Peer(arguments)
    for name in sys.stdin:
        print(json.dumps(peer.round(name.strip())), flush=True)


def parse():
    parser = argparse.ArgumentParser(description="Checks and times operations of torch beside evergraph's.")
    parser.add_argument("cases", help="folder that `evergraph bench ops --cases` wrote")
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--peer", choices=["torch", "pyg"], default="torch")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--compile", action="store_true", help="also each way through torch.compile")
    parser.add_argument("--runs", type=int, help="at most so many runs: for a trial, not for a result")
    return parser.parse_args()


class Peer:
    """Rounds of operations; keeps one operation at a time."""

    def __init__(self, arguments):
        self.arguments, self.cases = arguments, Cases(arguments.cases)
        self.module = __import__(f"ways_{arguments.peer}")
        self.name, self.measurements = None, []
        self.skipped, self.failed = [], []

    def round(self, name):
        if name != self.name:
            self.begin(name)
        rows = []
        for measurement in self.measurements:
            torch.set_num_threads(measurement.threads)
            rows += measurement.rows()
        return {
            "peer": self.arguments.peer,
            "version": version(self.arguments.peer),
            "threads": self.arguments.threads,
            "device": self.arguments.device,
            "rows": rows,
            "skipped": self.skipped,
            "disagreements": self.failed,
        }

    def begin(self, name):
        self.name, self.measurements, self.skipped, self.failed = name, [], [], []
        for point in [point for point in self.cases.points if point.op == name]:
            if name not in self.module.OPERATIONS:
                reason = self.module.WITHOUT_PEER.get(name, f"{self.arguments.peer} has no such operation")
                self.skipped.append({"id": point.id, "reason": reason})
                continue
            try:
                measurement = Measurement(point, self.module.OPERATIONS[name], self.arguments)
                torch.set_num_threads(measurement.threads)
                measurement.check()
                self.measurements.append(measurement)
            except Disagreement as disagreement:
                log(f"DIFFERS: {disagreement}")
                self.failed.append({"id": point.id, "reason": str(disagreement)})


def version(peer):
    if peer == "torch":
        return torch.__version__
    return f"{__import__('torch_geometric').__version__} on torch {torch.__version__}"


class Measurement:
    """One point of one peer."""

    def __init__(self, point, operation, arguments):
        self.point, self.operation, self.arguments = point, operation, arguments
        self.threads = point.params.get("threads", arguments.threads)
        self.prepared = Prepared(point, arguments.device)
        self.clock = Clock(arguments.device, point.cold, arguments.runs)
        self.errors = {"forward": 0.0, "backward": 0.0}
        self.first = {"forward": {}, "backward": {}}
        self.dropped, self.notes, self.contenders = [], [], {}

    def check(self):
        """Compares every way with ours, and keeps those that work."""
        ways = [way for way in self.ways() if self.right(way)]
        for each in self.dropped:
            log(f"{self.point.id}: {each['way']} does not work here: {each['reason']}")
        if not ways:
            raise Disagreement(f"{self.point.id}: no way works: {self.dropped}")
        self.contenders["forward"] = self.promising(ways, "forward")
        with_backward = [way for way in ways if way.backward and not way.step]
        if self.prepared.differentiable and with_backward:
            self.contenders["backward"] = self.promising(with_backward, "backward")

    def promising(self, ways, direction):
        """The ways worth timing, those first that were fast when they were compared."""
        first = lambda way: self.first[direction][way.name]
        limit = HOPELESS * min(map(first, ways))
        return [way for way in sorted(ways, key=first) if way.step or first(way) <= limit]

    def rows(self):
        """Times of a round; the first one finds the ways that later ones time."""
        return [self.row(direction) for direction in self.contenders]

    def ways(self):
        ways = self.operation(self.prepared)
        if self.arguments.compile:
            torch._dynamo.reset()
            ways += [compiled(way) for way in ways]
        return ways

    def row(self, direction):
        ways, call_of = self.contenders[direction], getattr(self, direction)
        pilots = self.clock.pilots(ways, call_of) if len(ways) > 1 else {}
        near = [way for way in ways if pilots.get(way.name, 0) <= NEAR * min(pilots.values(), default=0)]
        times = {way.name: self.clock.times(call_of(way)) for way in near}
        name = min(times, key=lambda name: median(times[name]))
        self.contenders[direction] = [way for way in near if way.name == name]
        taken = times[name]
        row = {"id": self.point.id, "op": self.point.op, "direction": direction, "way": name}
        row |= {"seconds": median(taken), "p95_seconds": float(np.quantile(taken, 0.95)), "runs": len(taken)}
        row |= {"largest_relative_error": self.errors.get(direction), "ways": pilots, "dropped": self.dropped}
        return row | ({"notes": self.notes} if self.notes else {})

    def forward(self, way):
        if way.step:
            return way.step()
        function, inputs = way.make(), self.prepared.tensors

        def call():
            with torch.inference_mode():
                function(inputs)

        return call

    def backward(self, way):
        out, leaves = self.graph(way, self.prepared)
        return lambda: torch.autograd.grad(out, leaves, self.prepared.grad_out, retain_graph=True)

    @staticmethod
    def graph(way, prepared):
        inputs = {name: tensor.detach() for name, tensor in prepared.tensors.items()}
        leaves = [inputs[name].requires_grad_() for name in prepared.differentiable]
        return way.make()(inputs), leaves

    def right(self, way):
        """Whether the way works here; one that gives something else than ours raises."""
        try:
            found = self.results(way, self.prepared)
        except (RuntimeError, NotImplementedError, TypeError) as error:
            self.dropped.append({"way": way.name, "reason": str(error).strip().splitlines()[0]})
            return False
        differing = [text for name, array in found.items() if (text := self.compare(way, name, array))]
        if differing:
            raise Disagreement(f"{self.point.id}: by {way.name}: " + "; ".join(differing))
        return True

    def results(self, way, prepared):
        """Outputs and gradients as arrays, by name, that ours wrote."""
        function = way.make()
        started = time.perf_counter()
        with torch.inference_mode():
            for _ in range(self.point.params.get("steps", 1)):
                out = function(prepared.tensors)
        self.first["forward"].setdefault(way.name, time.perf_counter() - started)
        out = way.settle(out)
        found = out if isinstance(out, dict) else {"out": out}
        if way.backward and prepared.differentiable:
            out, leaves = self.graph(way, prepared)
            started = time.perf_counter()
            gradients = torch.autograd.grad(out, leaves, prepared.grad_out)
            self.first["backward"].setdefault(way.name, time.perf_counter() - started)
            found |= {f"grad_{name}": gradient for name, gradient in zip(prepared.differentiable, gradients)}
        missing = [name for name in self.point.outputs if name not in found and not name.startswith("grad_")]
        if missing:
            raise Disagreement(f"{self.point.id}: this script knows no output {missing}")
        return {name: found[name].detach().cpu().numpy() for name in self.point.outputs if name in found}

    def compare(self, way, name, array):
        """What is wrong with a result, if anything is."""
        direction = "backward" if name.startswith("grad_") else "forward"
        error = self.point.error(name, array)
        if error > TOLERANCE:
            exact_prepared = Prepared(self.point, self.arguments.device, torch.float64)
            twin = next(each for each in self.operation(exact_prepared) if each.name == way.name.removeprefix(COMPILED))
            exact = self.results(twin, exact_prepared)[name]
            ours, theirs = self.point.error(name, exact), relative(array, exact)
            if ours > TOLERANCE or theirs > TORCH_TOLERANCE:
                return (
                    f"{name} differs by {error:.2g}, and from a 64-bit result "
                    f"ours by {ours:.2g}, torch's by {theirs:.2g}"
                )
            self.notes.append(f"{name} by {way.name} is {theirs:.2g} from its 64-bit result, ours {ours:.2g}")
            error = ours
        self.errors[direction] = max(self.errors[direction], error)
        return None


def relative(found, exact):
    return float(np.abs(found - exact).max(initial=0.0)) / max(float(np.abs(exact).max(initial=0.0)), 1e-30)


def compiled(way):
    """The way through torch.compile; it is compiled when it is first called."""
    # Buffers of a compiled graph may only be given away if the graph is used once.
    torch._functorch.config.donated_buffer = False
    return Way(COMPILED + way.name, lambda: torch.compile(way.make(), dynamic=False), way.backward, way.settle)


@cache
def spoiler(device):
    """What fills the caches when it is changed."""
    return torch.zeros(COLD_BYTES // 4, device=device)


class Clock:
    """Times calls on a device, with a warm or a cold cache."""

    def __init__(self, device, cold, runs_at_most):
        self.cuda, self.runs_at_most = device == "cuda", runs_at_most
        self.spoiler = spoiler(device) if cold else None

    def pilots(self, ways, call_of):
        """What each way takes in a few runs."""
        pilots = {}
        for way in ways:
            call = call_of(way)
            first = min(self.seconds(call, 2))
            slow = first > SLOW * min(pilots.values(), default=first)
            pilots[way.name] = first if slow else median(self.seconds(call, 3))
        return pilots

    def times(self, call):
        warm = min(self.seconds(call, 3))
        runs = min(max(int(ROUND_SECONDS / warm), FEWEST_RUNS), MOST_RUNS) if warm <= LONG_SECONDS else LONG_RUNS
        return self.seconds(call, min(runs, self.runs_at_most or runs))

    def seconds(self, call, runs):
        gc.collect()
        gc.disable()
        try:
            return [self.once(call) for _ in range(runs)]
        finally:
            gc.enable()

    def once(self, call):
        if self.spoiler is not None:
            self.spoiler.add_(1)
        if self.cuda:
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda.synchronize()
            start.record()
            call()
            end.record()
            torch.cuda.synchronize()
            return start.elapsed_time(end) / 1e3
        started = time.perf_counter()
        call()
        return time.perf_counter() - started


def log(text):
    print(f"peer_torch: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
