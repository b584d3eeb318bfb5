"""Trains evergraph's models and their peers in turn, and writes docs/benchmarks/learn.json and what report.py makes of
it; a trial is written to .cache/learn/trial. It starts only on a machine that is idle.

In each round everybody trains on the same events, evergraph's models each followed by its peer, in the next round the
other way around, so that a slow minute of the machine meets all. A figure is the median of the rounds. A peer is a
process that learns on from round to round and is stopped between; after an epoch it scores validation and test. What
accuracy evergraph's models have after as many epochs is measured by `evergraph eval`. A peer is tried in several
settings, each in a process of its own, and the fastest counts: in f32, with products in bf16 allowed, and PyG's TGN in
f32 with one thread. Needs the standard library.
"""

import argparse
import datetime
import json
import sys
from contextlib import ExitStack
from pathlib import Path
from statistics import median

import report

sys.path.append(str(Path(__file__).parent.parent))
from idle import idle_load
from peer_process import PeerProcess, run

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
CACHE = ROOT / ".cache" / "learn"
EVERGRAPH = ROOT / "target" / "release" / "evergraph"
PYTHON = ROOT / ".cache" / "ops" / "peers" / "bin" / "python"
LEARNING_RATE, WIDTH, SEED = 1e-3, 100, 0
# Who is beside whom. `warm` are epochs before those that are timed. A round is an epoch of the peer, or one of so many
# `turns` of it: a GraphMixer's is long, and there is no state that it would fill.
PAIRS = {
    "tgn-200": {"model": "tgn", "batch": 200, "peer": "pyg_tgn", "warm": 1, "turns": 1},
    "tgn-600": {"model": "tgn", "batch": 600, "peer": "pyg_tgn", "warm": 1, "turns": 1},
    "graphmixer-200": {"model": "graphmixer", "batch": 200, "peer": "torch_graphmixer", "warm": 0, "turns": 3},
}
ROUNDS = 3


def main():
    arguments = parse()
    if arguments.rounds % 3:
        sys.exit("learn: --rounds is a multiple of 3: so many rounds are an epoch of GraphMixer")
    trial = bool(arguments.pair or arguments.events != "wikipedia")
    target = CACHE / "trial" if trial else ROOT / "docs" / "benchmarks"
    for folder in (target, CACHE):
        folder.mkdir(parents=True, exist_ok=True)
    load = idle_load("learn")
    run([PYTHON, "-B", HERE / "stream.py", arguments.data, arguments.events, CACHE / "train.csv"])
    with ExitStack() as stack:
        pairs = [Pair(name, arguments, stack) for name in arguments.pair or PAIRS]
        for number in range(arguments.rounds):
            for pair in pairs if number % 2 == 0 else reversed(pairs):
                pair.round(ours_first=number % 2 == 0)
        rows = [pair.row() for pair in pairs]
    document = {
        "measured": datetime.date.today().isoformat(),
        "trial": trial,
        "load_average_before": round(load, 2),
        "machine": {name: value for name, value in pairs[0].machine.items() if name != "threads"},
        "threads": arguments.threads,
        "rounds": arguments.rounds,
        "stream": {"name": arguments.events} | pairs[0].stream(),
        "learning_rate": LEARNING_RATE,
        "width": WIDTH,
        "rows": rows,
    }
    (target / "learn.json").write_text(json.dumps(document, indent=1) + "\n")
    report.write(target)
    log(f"wrote {target.relative_to(ROOT)}/learn.json and learn.md")


def parse():
    parser = argparse.ArgumentParser(description="Trains evergraph's models and their peers in turn.")
    parser.add_argument("--data", type=Path, required=True, help="folder of the event files")
    parser.add_argument("--events", default="wikipedia", help="name of the event file")
    parser.add_argument("--threads", type=int, default=2, help="threads of everybody")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="rounds of which the median counts")
    parser.add_argument("--pair", action="append", choices=list(PAIRS), help="only this one; may be given again")
    return parser.parse_args()


class Pair:
    """A model of ours and its peer: what both measured so far."""

    def __init__(self, name, arguments, stack):
        self.name, self.arguments, self.settings = name, arguments, PAIRS[name]
        tried = [(arguments.threads, "f32"), (arguments.threads, "bf16")]
        if self.settings["peer"] == "pyg_tgn" and arguments.threads > 1:
            tried.append((1, "f32"))
        self.peer, *self.others = (
            stack.enter_context(start(self.settings, arguments, threads, precision)) for threads, precision in tried
        )
        self.facts = self.peer.request("facts")
        self.tried = [setting(*each) for each in tried]
        self.ours, self.theirs, self.scored, self.trained = [], [[] for _ in tried], [], 0
        for _ in range(self.settings["warm"]):
            self.learn()
            for other in self.others:
                other.request("train")

    def learn(self):
        """A turn of the peer in its first setting, whose accuracy counts, even where its time does not."""
        figures = self.peer.request("train")
        self.trained += figures["events"]
        if self.trained % self.facts["train_events"] == 0:
            self.scored.append(self.peer.request("test"))
        return figures

    def round(self, ours_first):
        sides = [(self.ours, self.train), (self.theirs[0], self.learn)]
        sides += [(side, lambda other=other: other.request("train")) for side, other in zip(self.theirs[1:], self.others)]
        for side, turn in sides if ours_first else sides[::-1]:
            side.append(turn())
        ours, *theirs = (speed(side[-1]) for side, _ in sides)
        log(f"{self.name}: {ours:,.0f} events/s beside " + " and ".join(f"{rate:,.0f}" for rate in theirs))

    def train(self):
        """The epochs of ours, of which the last counts."""
        figures = self.evergraph("bench", "train", "--alone", "--events", CACHE / "train.csv", "--row-dimension", "0",
                                 "--batch-events", self.settings["batch"], "--epochs", self.settings["warm"] + 1)
        self.machine, epoch = figures["machine"], figures["each_epoch"][-1]
        if figures["events"] != self.facts["train_events"]:
            sys.exit(f"learn: {self.name}: {figures['events']} events, the peer has {self.facts['train_events']}")
        self.precision = figures["matmul_precision"]
        # Four numbers of 4 bytes for each parameter.
        self.parameters = figures["parts_bytes"]["weights_and_optimizer"] // 16
        return {"events": figures["events"]} | epoch

    def evergraph(self, *words):
        out = CACHE / "ours.json"
        command = [EVERGRAPH, *words, "--model", self.settings["model"], "--embedding-dimension", WIDTH]
        run([*command, "--threads", self.arguments.threads, "--seed", SEED, "--json", out])
        return json.loads(out.read_text())

    def row(self):
        """All that is known of the pair. Accuracy of both is that of the epoch with the best validation."""
        best = max(self.scored, key=lambda epoch: epoch["val"]["average_precision"])
        ours = self.evaluate()
        theirs = {
            "version": self.facts["version"],
            "parameters": self.facts["parameters"],
            "average_precision": best["test"]["average_precision"],
            "pooled_average_precision": best["test"]["pooled_average_precision"],
            "val_average_precision_by_epoch": [epoch["val"]["average_precision"] for epoch in self.scored],
            "best_epoch": best["epoch"],
        }
        return {
            "name": self.name,
            "model": self.settings["model"],
            "batch": self.settings["batch"],
            "peer": self.settings["peer"],
            "epochs": len(self.scored),
            "warm": self.settings["warm"],
            "turns": self.settings["turns"],
            "ours": rates(self.ours) | {"parameters": self.parameters, "matmul_precision": self.precision} | ours,
            "theirs": self.fastest() | theirs,
        }

    def fastest(self):
        """Rates of the peer in the setting in which it is fastest, and the other rates beside."""
        sides = [rates(rounds) | {"setting": tried} for tried, rounds in zip(self.tried, self.theirs)]
        sides.sort(key=lambda side: -side["events_per_second"])
        others = {side["setting"]: side["events_per_second"] for side in sides[1:]}
        return sides[0] | {"events_per_second_in_other_settings": others}

    def evaluate(self):
        """The accuracy of ours, with the peer's split, negatives and number of epochs."""
        data, name = self.arguments.data, self.arguments.events
        given = lambda what: data / "protocol" / f"{name}-{what}.csv.gz"
        log(f"{self.name}: accuracy")
        figures = self.evergraph(
            "eval", "--events", data / f"{name}.csv.gz", "--masked", given("masked-nodes"), "--protocol", "dyglib",
            "--negatives", given("test-rnd"), "--val-negatives", given("val-rnd"), "--epochs", len(self.scored),
            "--batch-events", self.settings["batch"], "--learning-rate", LEARNING_RATE,
        )
        for part in ("train", "val", "test"):
            if figures[f"{part}_events_count"] != self.facts[f"{part}_events"]:
                sys.exit(f"learn: {self.name}: evergraph and the peer do not split {name} in the same way")
        return {
            "average_precision": figures["test_average_precision"],
            "pooled_average_precision": figures["test_pooled_average_precision"],
            "val_average_precision_by_epoch": figures["val_average_precision_by_epoch"],
            "best_epoch": figures["best_epoch"],
        }

    def stream(self):
        return {name: value for name, value in self.facts.items() if name == "nodes" or name.endswith("_events")}


def setting(threads, precision):
    allowed = {"f32": "f32", "bf16": "bf16 allowed"}[precision]
    return f"{threads} thread{'s' * (threads != 1)}, {allowed}"


def start(settings, arguments, threads, precision):
    """The process of a peer."""
    command = [PYTHON, "-B", "-W", "ignore", HERE / f"peer_{settings['peer']}.py", "--data", arguments.data]
    command += ["--events", arguments.events, "--batch", settings["batch"], "--threads", threads]
    command += ["--matmul-precision", precision]
    command += ["--learning-rate", LEARNING_RATE, "--seed", SEED, "--turns", settings["turns"]]
    log = CACHE / f"{settings['peer']}-{settings['batch']}-{threads}-{precision}.log"
    return PeerProcess(settings["peer"], command, threads, log)


def rates(rounds):
    """Events per second of the rounds, and where the time of the middle one went, in seconds per event."""
    middle = sorted(rounds, key=speed)[len(rounds) // 2]
    return {
        "events_per_second": median(map(speed, rounds)),
        "events_per_second_of_rounds": [speed(figures) for figures in rounds],
        "seconds_per_event": middle["seconds"] / middle["events"],
        "phase_seconds_per_event": {
            phase: seconds / middle["events"] for phase, seconds in middle["phase_seconds"].items()
        },
    }


def speed(figures):
    return figures["events"] / figures["seconds"]


def log(text):
    print(f"learn: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
