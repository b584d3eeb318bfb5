"""A graph that is cut by node among machines: who would compute and send how much, on real streams and on a made one of
a billion nodes.

    python3 -B benches/partition/simulate.py --data FOLDER

No machine is measured here but through docs/benchmarks/cluster.json, which the speed model is made of. Counts do not
depend on the machine that this runs on. Writes docs/benchmarks/partition.json and docs/benchmarks/partition.md. Standard
library only; takes about ten minutes.
"""

import argparse
import json
import random
import sys
from pathlib import Path

import report
from made import Made
from placement import BATCH, Costs, Placement, count
from streams import Real

STREAMS = ["wikipedia", "uci", "email-eu", "oss-commits"]
MACHINES = [2, 4, 16, 64]
MADE = [(16, 10**7), (64, 10**8), (256, 10**9), (1000, 10**9)]
# Batches of a real stream that are counted, evenly over its later half.
COUNTED = 40


def main():
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--data", type=Path, required=True, help="folder of the event files")
    flags.add_argument("--batch-events", type=int, default=BATCH, help="events of a batch of a real stream")
    given = flags.parse_args()
    costs = Costs.measured(report.BENCHMARKS / "cluster.json")
    real, exponents = [], {}
    for name in STREAMS:
        path = given.data / f"{name}.csv.gz"
        if not path.exists():
            sys.exit(f"partition: SKIPPED, nothing was counted: there is no {path}")
        stream = Real(path, given.batch_events, COUNTED)
        exponents[name] = stream.exponent()
        batches = list(stream.batches())
        for machines in MACHINES:
            real += [{"stream": name} | one for one in both(batches, machines, stream.hubs(machines), costs)]
        print(f"partition: {name}", file=sys.stderr)
    made = []
    # As skewed as the most skewed of the real ones, and Zipf's law.
    for exponent in (round(max(exponents.values()), 3), 1):
        for machines, nodes in MADE:
            stream = Made(nodes, exponent, BATCH * machines, random.Random(7))
            batches = list(stream.batches(1 if machines > 100 else 3))
            named = {"exponent": exponent, "nodes": nodes}
            made += [named | one for one in both(batches, machines, stream.hubs(machines), costs)]
            print(f"partition: exponent {exponent}, {machines} machines", file=sys.stderr)
    document = {
        "batch_events": given.batch_events,
        "exponents": {name: round(value, 3) for name, value in exponents.items()},
        "costs": costs.document(),
        "real": real,
        "made": made,
    }
    (report.BENCHMARKS / "partition.json").write_text(json.dumps(document, indent=1) + "\n")
    report.write(report.pages(report.BENCHMARKS))


def both(batches, machines, hubs, costs):
    """The counts without copies of hubs, and with them where there are any."""
    return [count(batches, Placement(machines, copied), costs) for copied in dict.fromkeys([frozenset(), hubs])]


if __name__ == "__main__":
    main()
