"""docs/benchmarks/partition.md, made of partition.json: a graph that is cut among machines. Standard library only."""

import json
import sys
from pathlib import Path

from placement import END, ROUNDS, WEIGHTS

sys.path.append(str(Path(__file__).parent.parent))
from pages import BENCHMARKS, digits, main, write

__all__ = ["BENCHMARKS", "pages", "write"]

HEAD = """# A graph that is cut among machines: a simulation

<!-- Made by benches/partition/report.py from partition.json: change those, not this. -->

What machines would compute and send if each had a part of the nodes, as [a decision on
paper](../adr/0015-a-graph-beyond-one-machine.md) describes it. **Nothing of this is built, and no machine but those of [the page
of ranks](cluster.md) was measured**: a program counts what would be sent for batches of real streams, and a model that is made of
measured costs turns it into time. `make partition` counts again.

- **load**: the machine with the most seeds to embed or the most rows of memory to compute, beside the mean. 1 is even.
- **rows**: rows of memory that are fetched from another machine, for each event.
- **sends**: megabytes that a machine sends for a batch, on average and at most: rows, embeddings, gradients of both, and {weights} MB of
  gradients of the weights, in f32.
- **hubs copied**: nodes with a quarter and more of a machine's even share of the ends of events have a copy on every machine. They
  are known from the whole stream here, which a daemon would have to find out.
- **by RPC**: megabytes that a machine would send for the same batch the way that GNNFlow's code does it: a request for each seed of a
  layer, memory and message of each distinct node fetched, and those of touched nodes written back.
- **events/s**: by the model, one thread a machine that takes {microseconds} µs an event, of which {fixed} % are not shared, at {gbps} Gb/s and
  {latency} µs for each of {rounds} exchanges; behind it with machines that compute ten times as fast. All work is taken to be as uneven as
  the more uneven of seeds and rows. The machine that cuts batches sends each event in {event} bytes, and allows no more than that.

## Real streams, batches of {batch}

| | machines | hubs copied | load | rows | sends, mean | at most | by RPC | events/s | ten times as fast |
| --- | --: | --: | --: | --: | --: | --: | --: | --: | --: |
"""

MADE = """
## A made stream

Ends of events, and neighbors, follow a power law of rank: with the largest exponent of the hundred most frequent nodes of the
real streams ({exponents}), and with 1, Zipf's law, for
streams with larger hubs. Batches grow with the machines, 600 events for each; how well a model learns in batches of so many
events was not looked at.

| exponent | nodes | machines | hubs copied | load | rows | sends, mean | at most | by RPC | events/s | ten times as fast |
| --: | --: | --: | --: | --: | --: | --: | --: | --: | --: | --: |
"""


def pages(folder):
    """The page as a pair of its path and its text."""
    found = json.loads((folder / "partition.json").read_text())
    costs = found["costs"]
    text = HEAD.format(
        weights=digits(2 * WEIGHTS / 1e6),
        microseconds=digits(costs["event_seconds"] * 1e6),
        fixed=digits(100 * costs["fixed_share"]),
        gbps=digits(costs["bytes_per_second"] * 8 / 1e9),
        latency=digits(costs["round_seconds"] * 1e6),
        rounds=ROUNDS,
        event=3 * END,
        batch=found["batch_events"],
    )
    before = None
    for one in found["real"]:
        text += row("" if one["stream"] == before else one["stream"], one)
        before = one["stream"]
    exponents = ", ".join(f"{name} {value}" for name, value in found["exponents"].items())
    text += MADE.format(exponents=exponents)
    text += "".join(row(f"{one['exponent']} | {digits(one['nodes'])}", one) for one in found["made"])
    return [(folder / "partition.md", text)]


def row(name, one):
    cells = [
        name,
        str(one["machines"]),
        str(one["hubs"]) if one["hubs"] else "none",
        digits(max(one["seed_skew"], one["row_skew"])),
        digits(one["remote_rows_per_event"]),
        digits(one["bytes_mean"] / 1e6),
        digits(one["bytes_most"] / 1e6),
        digits(one["rpc_bytes_mean"] / 1e6),
        digits(one["events_per_second_1"]),
        digits(one["events_per_second_10"]),
    ]
    return f"| {' | '.join(cells)} |\n"


if __name__ == "__main__":
    main("benches/partition/report.py", pages)
