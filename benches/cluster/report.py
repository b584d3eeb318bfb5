"""docs/benchmarks/cluster.md, made of cluster.json: several ranks that train together. Standard library only."""

import json
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent.parent))
from pages import BENCHMARKS, digits, main, write

__all__ = ["BENCHMARKS", "pages", "write"]

HEAD = """# Ranks that train together

<!-- Made by benches/cluster/report.py from cluster.json: change those, not this. -->

One epoch of the Wikipedia edits in batches of 600 by one, two and four processes, each with one thread, that share the
virtual shards of every batch and exchange through Open MPI ([how](../scale.md#train-on-several-machines)). All of them learn
the same bits. The machine has {cores} cores of {cpu}. `make cluster-bench` measures again; of {rounds} rounds, the one
with the median speedup of two ranks.

- **led by rank 0**: as in a daemon, where rank 0 prepares each batch whole and passes the others their shares. In the other
  cases each rank has the whole stream, and prepares its own share.
- **computes**: CPU time of the slowest rank for an epoch, without the exchange.
- **sends**: bytes that a rank sends in a batch, on average, in four exchanges, and what rank 0 passes on if it leads; one more
  exchange compares ranks every hundred batches. Where the CPU trains in bf16 (`learner.matmul_precision`) gradients are
  sent in it, in half the bytes.
- **overlap**: of the rows that the ranks read for their own events, the share that are of a row which a rank before reads,
  too: what would be computed or fetched again if each rank had a table of its own.
- **here**: events per second by the clock, through shared memory if nothing else is said, and beside it that rate over what
  the model says for this exchange, whose latency and bandwidth were measured before. With more ranks than cores, ranks
  take turns, and the clock says nothing about the model.
- **alone**: CPU time of a process that trains the epoch alone, while as many others do beside it: processes on the cores of
  one machine slow each other down, which those on machines of their own do not.
- **{gbps} Gb/s**: what the model says for ranks on machines of their own: the time of the slowest rank, {latency} µs for each
  exchange, and the bytes at that bandwidth. It leaves out that ranks wait for one another where one is slow for a moment. The
  speedup is beside the process that trains alone.

| | ranks | computes | alone | sends | overlap | here | of the model | {gbps} Gb/s | speedup |
| --- | --: | --: | --: | --: | --: | --: | --: | --: | --: |
"""


def pages(folder):
    """The page as a pair of its path and its text."""
    found = json.loads((folder / "cluster.json").read_text())
    cases = found["cases"]
    first = next(iter(cases.values()))
    network, on = first["network"], first["machine"]
    text = HEAD.format(
        cores=on["cores"],
        cpu=on["cpu"],
        rounds=found["rounds"],
        gbps=digits(network["gbps"]),
        latency=digits(network["latency_us"]),
    )
    for name, figures in cases.items():
        assert figures["bits_equal"], name
        text += "".join(row(name if ranks["ranks"] == 1 else "", ranks) for ranks in figures["ranks"])
    return [(folder / "cluster.md", text)]


def row(name, ranks):
    cells = [
        name,
        ranks["ranks"],
        f"{digits(ranks['cpu_seconds'])} s",
        f"{digits(ranks['alone_cpu_seconds'])} s",
        f"{digits(ranks['bytes_per_batch'] / 1e6)} MB",
        f"{100 * ranks['unique_row_overlap_ratio']:.0f} %",
        f"{digits(ranks['events_per_second'])}/s",
        f"{ranks['clock_to_model_ratio']:.2f}",
        f"{digits(ranks['modeled_events_per_second'])}/s",
        f"{ranks['modeled_speedup']:.2f}",
    ]
    return f"| {' | '.join(map(str, cells))} |\n"


if __name__ == "__main__":
    main("make cluster-bench", pages)
