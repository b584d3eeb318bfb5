"""Several ranks that train together: `evergraph bench cluster`, in rounds, of which the one in the middle counts.

    python3 -B benches/cluster/measure.py --data FOLDER [--rounds 3]

FOLDER has wikipedia.csv.gz. Writes docs/benchmarks/cluster.json and docs/benchmarks/cluster.md. Measures only on a machine
that does nothing else. Standard library only.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

import report

sys.path.append(str(Path(__file__).parent.parent))
from idle import idle_load

ROOT = Path(__file__).parent.parent.parent
EVERGRAPH = ROOT / "target" / "release" / "evergraph"
MPIEXEC = ROOT / ".cache" / "tools" / "mpi" / "bin" / "mpiexec"
# What is trained, by the name that the page has for it.
CASES = {
    "TGN, edges only": ["--row-dimension", "0"],
    "TGN, 172 values an edge": [],
    "TGN, edges only, led by rank 0": ["--row-dimension", "0", "--lead"],
    "TGN, 172 values an edge, led by rank 0": ["--lead"],
    "TGN, edges only, over the loopback": ["--row-dimension", "0", "--loopback", "--ranks", "1,2"],
    "GraphMixer, 172 values an edge": ["--model", "graphmixer", "--ranks", "1,2", "--events-max", "20000"],
}


def main():
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--data", type=Path, required=True)
    flags.add_argument("--rounds", type=int, default=3)
    given = flags.parse_args()
    events = given.data / "wikipedia.csv.gz"
    if not events.exists():
        sys.exit(f"cluster: SKIPPED, nothing was measured: there is no {events}")
    load = idle_load("cluster")
    measured = {name: [] for name in CASES}
    for _ in range(given.rounds):
        for name, words in CASES.items():
            measured[name].append(run(events, words))
    found = {name: sorted(rounds, key=lambda one: one["ranks"][1]["modeled_speedup"]) for name, rounds in measured.items()}
    middle = {name: rounds[len(rounds) // 2] for name, rounds in found.items()}
    document = {"load_average_before": round(load, 2), "rounds": given.rounds, "cases": middle}
    (report.BENCHMARKS / "cluster.json").write_text(json.dumps(document, indent=1) + "\n")
    report.write(report.pages(report.BENCHMARKS))


def run(events, words):
    command = [EVERGRAPH, "bench", "cluster", "--events", events, "--mpiexec", MPIEXEC, *words, "--json", "-"]
    done = subprocess.run(list(map(str, command)), stdout=subprocess.PIPE, check=True, text=True, env=os.environ)
    return json.loads(done.stdout)


if __name__ == "__main__":
    main()
