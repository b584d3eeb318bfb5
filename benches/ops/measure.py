"""Times evergraph's operations and its peers' in turn, and writes docs/benchmarks/ops.json and what report.py makes
of it; a trial is written to .cache/ops/trial.

For every operation come rounds: evergraph times all points of the operation, then each peer does, and in the next
round the other way around, so that a slow minute of the machine meets both. A figure is the median of the rounds.
Peers check their results against evergraph's before they time anything; a point on which they differ is reported and left
out. Needs the standard library.
"""

import argparse
import datetime
import json
import os
import shutil
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median

import report

sys.path.append(str(Path(__file__).parent.parent))
from peer_process import PeerProcess, run

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
CACHE = ROOT / ".cache" / "ops"
EVERGRAPH = ROOT / "target" / "release" / "evergraph"
PYG_OPERATIONS = {"segment_sum", "segment_mean"}
# Steps of burn that are timed in a round.
BURN_RUNS = 30
# What of a row of ours depends on the round.
MEASURED = ["seconds", "p95_seconds", "useful_bytes_per_second", "useful_flops_per_second", "ratio_to_ceiling"]


def main():
    arguments = parse()
    trial = bool(arguments.op or arguments.quick or arguments.runs)
    target = CACHE / "trial" if trial else ROOT / "docs" / "benchmarks"
    target.mkdir(parents=True, exist_ok=True)
    load = os.getloadavg()[0]
    names = write_cases(arguments)
    with ExitStack() as stack:
        reports = measure(names, Programs(arguments, stack), arguments.rounds)
    document = merge(reports) | {
        "measured": datetime.date.today().isoformat(),
        "trial": trial,
        "load_average_before": round(load, 2),
        "rounds": arguments.rounds,
        "device": arguments.device,
    }
    (target / "ops.json").write_text(json.dumps(document, indent=1) + "\n")
    report.write(target)
    log(f"wrote {target.relative_to(ROOT)}/ops.json and ops.md")
    if document["disagreements"]:
        sys.exit("ops: results differ: " + "; ".join(each["reason"] for each in document["disagreements"]))


def measure(names, programs, rounds):
    reports, begun = [], time.monotonic()
    for number, name in enumerate(names):
        spent = (time.monotonic() - begun) / 60
        left = f", about {spent / number * (len(names) - number):.0f} min left" if number else ""
        log(f"{name} ({number + 1} of {len(names)}{left})")
        for turn in range(rounds):
            order = programs.of(name)
            for program in order if turn % 2 == 0 else reversed(order):
                reports += program(name)
    return reports


def parse():
    parser = argparse.ArgumentParser(description="Times evergraph's operations and its peers' in turn.")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="threads of everybody")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of which the median counts")
    parser.add_argument("--op", action="append", help="only this operation; may be given again")
    parser.add_argument("--quick", action="store_true", help="only a chosen dozen of points")
    parser.add_argument("--runs", type=int, help="runs of each point, for a trial")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--compile", action="store_true", help="torch also through torch.compile")
    return parser.parse_args()


def write_cases(arguments):
    """Writes the points for the peers, and gives the names of their operations in order."""
    folder = CACHE / "cases"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    evergraph(arguments, arguments.op or [], "--cases", folder)
    return list(dict.fromkeys(point["op"] for point in points()))


def points():
    return json.loads((CACHE / "cases" / "cases.json").read_text())["points"]


def evergraph(arguments, names, *more):
    command = [EVERGRAPH, "bench", "ops", "--threads", str(arguments.threads), "--device", arguments.device]
    command += [word for name in names for word in ("--op", name)]
    command += ["--quick"] if arguments.quick else []
    command += ["--runs", str(arguments.runs)] if arguments.runs else []
    out = CACHE / "ours.json"
    out.unlink(missing_ok=True)
    run([*command, *more, "--json", out])
    return json.loads(out.read_text()) if out.exists() else None


class Programs:
    """The programs that time operations: `of(name)` lists functions from its name to the reports of a round."""

    def __init__(self, arguments, stack):
        self.arguments = arguments
        self.torch, self.pyg = (self.peer(name, stack) for name in ("torch", "pyg"))

    def of(self, name):
        programs = [self.ours, self.torch]
        programs += [self.pyg] if name in PYG_OPERATIONS else []
        programs += [self.burn] if name == "reference_step" else []
        return programs

    def peer(self, peer, stack):
        """A process of `peer_torch.py`, which times rounds of an operation on request."""
        arguments = self.arguments
        command = [CACHE / "peers" / "bin" / "python", "-B", HERE / "peer_torch.py", CACHE / "cases", "--peer", peer]
        command += ["--threads", arguments.threads, "--device", arguments.device]
        command += ["--compile"] if arguments.compile else []
        command += ["--runs", arguments.runs] if arguments.runs else []
        process = stack.enter_context(PeerProcess(peer, command, arguments.threads, CACHE / f"{peer}.log"))
        return lambda name: [process.request(name) | {"peer": peer}]

    def ours(self, name):
        return [evergraph(self.arguments, [name]) | {"peer": None}]

    def burn(self, name):
        """A step of burn for each point: with other threads only, it has one size."""
        reports = []
        for point in points():
            if point["op"] == name:
                threads = point["params"].get("threads", self.arguments.threads)
                command = [CACHE / "burn" / "release" / "ops-burn", threads, self.arguments.runs or BURN_RUNS]
                document = json.loads(run(command))
                document["rows"][0]["id"] = point["id"]
                reports.append(document)
        return reports


def merge(reports):
    """One document from the reports of all programs and rounds."""
    own = [each for each in reports if each["peer"] is None]
    ours = collect(each["rows"] for each in own)
    peers = {}
    for each in reports:
        if each["peer"]:
            peers.setdefault(each["peer"], []).append(each)
    rows = []
    for key, found in ours.items():
        row = {name: value for name, value in found[0].items() if name not in MEASURED + ["runs"]}
        row["ours"] = summary(found) | {
            name: median(each[name] for each in found) for name in MEASURED[2:] if found[0].get(name) is not None
        }
        rows.append(row | {"peers": {}})
    by_key = {key: row for key, row in zip(ours, rows)}
    for peer, documents in peers.items():
        for key, found in collect(document["rows"] for document in documents).items():
            if key not in by_key:
                sys.exit(f"ops: {peer} timed {key}, which evergraph did not")
            errors = [each.get("largest_relative_error") for each in found]
            checked = {"largest_relative_error": max(errors)} if None not in errors else {}
            notes = sorted({note for each in found for note in each.get("notes", [])})
            fastest = min(found, key=lambda each: each["seconds"])
            figures = summary(found) | checked | {"way": fastest["way"]}
            by_key[key]["peers"][peer] = figures | ({"notes": notes} if notes else {})
    every = lambda name: {each["id"]: each for d in reports for each in d.get(name, [])}.values()
    ceilings = {name: median(d["ceilings"][name] for d in own) for name in own[0]["ceilings"]}
    return {
        "machine": own[0]["machine"],
        "threads": own[0]["threads"],
        "ceilings": ceilings,
        "peers": {peer: documents[0]["version"] for peer, documents in peers.items()},
        "rows": rows,
        "skipped": list(every("skipped")),
        "disagreements": list(every("disagreements")),
    }


def collect(rounds):
    """Rows by what they measure, with one entry per round each."""
    found = {}
    for rows in rounds:
        for row in rows:
            found.setdefault((row["id"], row["direction"]), []).append(row)
    return found


def summary(found):
    seconds = [each["seconds"] for each in found]
    figures = {"seconds": median(seconds), "p95_seconds": median(each["p95_seconds"] for each in found)}
    return figures | {"seconds_of_rounds": seconds, "runs": sum(each["runs"] for each in found)}


def log(text):
    print(f"ops: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
