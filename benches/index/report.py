"""docs/benchmarks/index.md, made of index.json: the live index beside USearch. Standard library only."""

import json
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent.parent))
from pages import BENCHMARKS, digits, main, write

__all__ = ["BENCHMARKS", "pages", "write"]

HEAD = """# The live index beside USearch

<!-- Made by benches/index/report.py from index.json: change those, not this. -->

What is like a node, ten results, over the same {rows} vectors of {dimension} numbers: the live index looks at every row,
[USearch](https://github.com/unum-cloud/usearch) searches a graph of neighbors (HNSW, 32-bit floats, its defaults but for
the depth of search). Both on {threads} threads of {cpu}; one question at a time runs on one. *Recall* is the share of the
ten nearest that are found. `make index-peers` measures again.

Evergraph's questions include that the node is embedded and that results are computed anew; USearch is given the vector.
The vectors are those of a model with random weights and node states, which is what `evergraph bench index` has.
"""
OURS = {"evergraph": "Evergraph", "evergraph_int8": "Evergraph, rows of 8 bits"}
BESIDE = """
## While rows change

{wanted} rows are to change every second. In the live index the learner's new state of a node is embedded anew, within
100 ms; of USearch a vector is removed and the new one added under its key, by a thread of its own.
"""


def pages(folder):
    """The page as a pair of its path and its text."""
    found = json.loads((folder / "index.json").read_text())
    ours, peer = found["evergraph"], found["usearch"]
    all_ours = {name: found[key] for key, name in OURS.items()}
    on = ours["machine"]
    shape = {"rows": f"{ours['rows']:,}", "dimension": ours["dimension"]}
    lines = [HEAD.format(**shape, threads=on["threads"], cpu=on["cpu"])]
    lines.append("| | recall | p50 | p99 | in batches |\n|---|--:|--:|--:|--:|")
    for name, figures in all_ours.items():
        similar = figures["similar_nodes"]
        lines.append(row(name, similar["recall"], similar, per_second(similar["batched_per_second"])))
    for depth, figures in peer["depths"].items():
        lines.append(row(f"USearch, depth {depth}", figures["recall"], figures, per_second(figures["batched_per_second"])))
    built = digits(peer["build_rows_per_second"])
    held = [f"{digits(figures['index_bytes'] / 1e6)} MB ({name})" for name, figures in all_ours.items()]
    lines.append(f"\nRows of both kinds take {' and '.join(held)}.")
    lines.append(f"\nFilled at {digits(ours['fill_rows_per_second'])} rows/s on one thread, embedding included; ")
    lines[-1] += f"USearch builds its graph at {built} rows/s on {on['threads']}."
    lines.append(BESIDE.format(wanted=digits(found["updates_per_second"])))
    lines.append("| | rows changed per second | p50 | p99 | recall afterwards |\n|---|--:|--:|--:|--:|")
    for name, figures in all_ours.items():
        beside = figures["beside_updates"]
        at = {f"single_p{p}_seconds": beside[f"similar_nodes_p{p}_seconds"] for p in (50, 99)}
        lines.append(row(name, digits(beside["updated_rows_per_second"]), at, f"{beside['recall_after']:.3f}"))
    for depth, figures in peer["beside_updates"]["depths"].items():
        at = {f"single_{name}": value for name, value in figures.items()}
        rate = digits(peer["beside_updates"]["updated_rows_per_second"])
        lines.append(row(f"USearch, depth {depth}", rate, at, f"{figures['recall_after']:.3f}"))
    lines.append("")
    return [(folder / "index.md", "\n".join(lines))]


def row(name, first, figures, last):
    first = first if isinstance(first, str) else f"{first:.3f}"
    cells = [first, ms(figures["single_p50_seconds"]), ms(figures["single_p99_seconds"]), last]
    return f"| {name} | " + " | ".join(cells) + " |"


def ms(seconds):
    return f"{digits(seconds * 1000)} ms"


def per_second(rate):
    return f"{digits(rate)}/s"


if __name__ == "__main__":
    main("report.py", pages)
