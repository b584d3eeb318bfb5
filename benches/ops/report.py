"""Writes docs/benchmarks/ops.md and its plots from docs/benchmarks/ops.json; `--check` only checks that they are up
to date, and a folder as argument stands in for docs/benchmarks.

Every number comes from the JSON file, every reason from reasons.json. Needs the standard library only.
"""

import json
import sys
from math import exp, log
from pathlib import Path

import plots

HERE = Path(__file__).parent
sys.path.append(str(HERE.parent))
import pages
from pages import digits

DIRECTIONS = ("forward", "backward")
PEERS = {"torch": "torch", "pyg": "PyG", "burn": "burn"}
# Notes on operations.
NOTES = {
    "gather_rows": "The gradient is that of the whole table, rows that were not read included.",
    "gather_concat_time": "Edge rows are data and have no gradient. Torch has no such operation in one; its parts "
    "count together.",
    "scatter_add": "The rows that come out start at 0. For unique indices torch's copies by index are among the ways.",
    "slot_attention": "Attention of one query per row over its occupied slots; without slots the result is 0.",
    "unique": "Evergraph numbers ids in the order in which they first appear, as training does. Torch's ways may leave "
    "the order open too; what comes out is sorted before it is compared, outside of the time.",
    "scatter_last": "Both write into a table that is there, and what they write is defined where an index repeats: "
    "torch promises nothing of `out[index] = x` then, so it has to find the last ones first.",
    "adam": "The optimizer's step alone, gradients given.",
    "sample_recent": "Not in torch; [other temporal samplers](peers.md) are measured apart.",
}

PAGE = """# Operations compared with torch and the machine's ceilings

<!-- Made by benches/ops/report.py from ops.json and benches/ops/reasons.json: change those, not this. -->

The operations of a temporal GNN on {device}, forward and backward, as Evergraph's training runs them: compared with {peers},
and as a share of what this machine can do at most.{gpu}

Both sides compute on the same inputs with {threads} threads, in 32-bit floats. Torch is timed in every way it has for
an operation, and the fastest counts; types of indices, masks and row pointers are prepared for it outside of the time.
Torch and PyG are installed as PyPI has them, and run with glibc set by its environment to keep large blocks of memory
instead of giving them back after each use, which is to their advantage (`benches/ops/measure.py` has the settings):
Evergraph keeps its buffers from step to step too.

Before anything is timed, every output and every gradient of every way is compared with Evergraph's: no sampled
element may differ by more than 1e-5 of the largest magnitude of its output, and no sum over all elements by more than
1e-5 of the sum of magnitudes. {agreement}

A time is the median of {rounds} rounds, in each of which Evergraph and then its peers time all points of an
operation (every other round in the opposite order), each the median of ten runs or more, fewer where a run takes over
100 ms. Forward is timed alone, by torch in inference mode; backward alone, by `autograd.grad` with the output's
gradient given. For a cold cache 128 MiB are read and written between runs. A ratio is the peer's time by Evergraph's:
above 1, Evergraph is faster. {steady}

`make ops-peers` measures again; `python3 benches/ops/report.py` writes this page and its plots again from
[ops.json](ops.json), where smallest and largest times, p95 and bytes moved are too.

{cpu}, {cores} cores, {gibibytes:.0f} GiB memory, load average {load} before; {measured}. Evergraph {version};
{versions}.

## Summary

{summary}

{step}

![Ratio to torch](ops-ratio.svg)

![Share of the ceiling](ops-ceiling.svg)

### By operation

Of each operation's points: the geometric mean and the smallest of the ratios, and the middle one and the range of the
shares of the ceiling that bounds them.

| operation | direction | points | ratio to torch | smallest | ceiling | share of it | range |
|---|---|--:|--:|--:|---|--:|--:|
{operations}

## Slower than a peer

{slower}

## Ceilings

Measured in the same processes, medians. *Copy* reads and writes memory far beyond the caches, *copy_in_cache* stays
inside; bytes read and bytes written both count. A row's share is its useful bytes or operations per second by the
ceiling that bounds it, at as many threads as it uses; useful bytes are those that an operation cannot but read and
write. A share above 100 % is of an operation that reads more than it writes, or whose inputs stay in a cache.

| ceiling | |
|---|--:|
{ceilings}

## All points

{tables}

{skipped}
"""


def page(document):
    rows, machine = document["rows"], document["machine"]
    return PAGE.format(
        device={"cpu": "the CPU", "cuda": "the GPU"}[document["device"]],
        gpu=" Nothing here was measured or verified on a GPU." if document["device"] == "cpu" else "",
        peers=" and ".join(", ".join(PEERS[peer] for peer in PEERS if peer in document["peers"]).rsplit(", ", 1)),
        threads=document["threads"],
        agreement=agreement(document),
        rounds=document["rounds"],
        steady=steadiness(rows),
        cpu=machine["cpu"],
        cores=machine["cores"],
        gibibytes=machine["memory_bytes"] / 2**30,
        load=document["load_average_before"],
        measured=document["measured"],
        version=machine["version"],
        versions="; ".join(f"{PEERS[peer]} {version}" for peer, version in document["peers"].items()),
        summary=summary(rows),
        step=reference_step(rows),
        operations="\n".join(by_operation(rows)),
        slower=slower(rows),
        ceilings="\n".join(f"| {name} | {rate(name, value)} |" for name, value in document["ceilings"].items()),
        tables="\n\n".join(table(op, of_op(rows, op)) for op in operations(rows)),
        skipped=skipped(document),
    )


def agreement(document):
    found = document["disagreements"]
    errors = [p["largest_relative_error"] for r in document["rows"] for p in r["peers"].values() if has_error(p)]
    if found:
        listed = "\n".join(f"- {each['reason']}" for each in found)
        return f"**{len(found)} points differ and were not timed:**\n\n{listed}"
    notes = len({r["id"] for r in document["rows"] for p in r["peers"].values() if p.get("notes")})
    text = f"The largest difference found is {max(errors):.1g}." if errors else "Nothing was compared."
    if notes:
        text += (
            f" For {notes} points it was torch whose 32-bit sums are further than this from its own 64-bit results;"
            " there Evergraph was compared with these."
        )
    return text


def has_error(figures):
    return figures.get("largest_relative_error") is not None


def steadiness(rows):
    """How many medians of rounds stay within the p95 that the row states."""
    kept = [max(row["ours"]["seconds_of_rounds"]) <= row["ours"]["p95_seconds"] for row in rows]
    if len(rows[0]["ours"]["seconds_of_rounds"]) < 2:
        return ""
    share = 100 * sum(kept) / len(kept)
    return f"Of {share:.0f} % of Evergraph's points the medians of all rounds are within the p95 that is stated."


def ratio(row, peer="torch"):
    return row["peers"][peer]["seconds"] / row["ours"]["seconds"] if peer in row["peers"] else None


def compared(rows, peer, direction):
    found = [row for row in single(rows) if row["direction"] == direction and peer in row["peers"]]
    return [(ratio(row, peer), row) for row in found]


def single(rows):
    """Rows of one operation each; the reference step is many and has a table of its own."""
    return [row for row in rows if row["op"] != "reference_step"]


def summary(rows):
    lines = ["| peer | direction | points | at least as fast | geometric mean | smallest | largest |"]
    lines.append("|---|---|--:|--:|--:|--:|--:|")
    for peer in PEERS:
        for direction in DIRECTIONS:
            numbers = [number for number, _ in compared(rows, peer, direction)]
            if numbers:
                share = f"{100 * sum(number >= 1 for number in numbers) / len(numbers):.0f} %"
                cells = [PEERS[peer], direction, len(numbers), f"**{share}**", f"**{digits(mean(numbers))}**"]
                lines.append(line(cells + [digits(min(numbers)), digits(max(numbers))]))
    return "\n".join(lines)


def reference_step(rows):
    found = [row for row in rows if row["op"] == "reference_step"]
    if not found:
        return ""
    lines = ["The whole training step, forward, backward and AdamW over everything: 600 events as 1,800 targets with"]
    lines += ["10 neighbors each, a memory table of 10,000 rows with gradient, two heads, link predictor.", ""]
    lines += ["| threads | | a step | Evergraph's share of it | its way |", "|--:|---|--:|--:|---|"]
    for row in found:
        lines.append(line([row["threads"], "Evergraph", duration(row["ours"]["seconds"]), "", ""]))
        for peer, figures in row["peers"].items():
            share = f"**{digits(row['ours']['seconds'] / figures['seconds'])}**"
            lines.append(line([row["threads"], PEERS[peer], duration(figures["seconds"]), share, figures["way"]]))
    return "\n".join(lines)


def operations(rows):
    return list(dict.fromkeys(row["op"] for row in rows))


def of_op(rows, op):
    return [row for row in rows if row["op"] == op]


def by_operation(rows):
    for op in operations(single(rows)):
        for direction in dict.fromkeys(row["direction"] for row in of_op(rows, op)):
            found = [row for row in of_op(rows, op) if row["direction"] == direction]
            ratios = [number for number in map(ratio, found) if number]
            cells = [f"`{op}`", direction, len(found)]
            cells += [digits(mean(ratios)), digits(min(ratios))] if ratios else ["", ""]
            shares = sorted(row["ours"]["ratio_to_ceiling"] for row in found if "ratio_to_ceiling" in row["ours"])
            named = sorted({row["ceiling"] for row in found if row.get("ceiling")})
            cells.append(", ".join(named))
            cells += [percent(shares[len(shares) // 2])] if shares else [""]
            cells += [f"{percent(shares[0])} to {percent(shares[-1])}"] if shares else [""]
            yield line(cells)


def reason(row, peer, reasons):
    """Why a peer is faster: the operation's reason in reasons.json, or that the rounds show no difference."""
    known = reasons.get(f"{row['op']} {row['direction']}") or reasons.get(row["op"])
    if known:
        return known
    ours, its = row["ours"]["seconds_of_rounds"], row["peers"][peer]["seconds_of_rounds"]
    if len(ours) > 1 and min(ours) < max(its):
        return f"no difference seen: rounds from {spread(ours)}, the peer's from {spread(its)}"
    return "not known"


def spread(seconds):
    return f"{duration(min(seconds))} to {duration(max(seconds))}"


def slower(rows):
    reasons = json.loads((HERE / "reasons.json").read_text())
    found = [
        (number, peer, direction, row)
        for peer in PEERS
        for direction in DIRECTIONS
        for number, row in compared(rows, peer, direction)
        if number < 1
    ]
    if not found:
        return "None."
    lines = ["| point | direction | peer | ratio | the peer's way | reason |", "|---|---|---|--:|---|---|"]
    for number, peer, direction, row in sorted(found, key=lambda each: (each[0], each[1], each[3]["id"])):
        its_way = row["peers"][peer]["way"]
        cells = [f"`{row['id']}`", direction, PEERS[peer], digits(number), its_way, reason(row, peer, reasons)]
        lines.append(line(cells))
    return "\n".join(lines)


def table(op, rows):
    peers = [peer for peer in PEERS if any(peer in row["peers"] for row in rows)]
    head, rule = ["point", "direction", "Evergraph"], ["---", "---", "--:"]
    for peer in peers:
        head += [PEERS[peer], "ratio"]
        rule += ["--:", "--:"]
    head += ["fastest way of torch", "ceiling", "share"] if "torch" in peers else ["ceiling", "share"]
    rule += ["---", "---", "--:"] if "torch" in peers else ["---", "--:"]
    note = [NOTES[op], ""] if op in NOTES else []
    lines = [f"### {op}", "", *note, line(head), "|" + "|".join(rule) + "|"]
    for row in rows:
        cells = [point(row), row["direction"], duration(row["ours"]["seconds"])]
        for peer in peers:
            figures = row["peers"].get(peer)
            cells += [duration(figures["seconds"]), f"**{digits(ratio(row, peer))}**"] if figures else ["", ""]
        cells += [row["peers"].get("torch", {}).get("way", "")] if "torch" in peers else []
        share = row["ours"].get("ratio_to_ceiling")
        lines.append(line(cells + [row.get("ceiling") or "", percent(share) if share is not None else ""]))
    return "\n".join(lines)


def point(row):
    """What distinguishes a point from the others of its operation."""
    _, _, parameters = row["id"].partition("/")
    return parameters.replace(",", ", ") or row["op"]


def skipped(document):
    reasons = {}
    for each in document["skipped"]:
        reasons.setdefault((each["id"].partition("/")[0], each["reason"]), []).append(each["id"])
    lines = [f"- `{op}`: {reason}." for (op, reason) in reasons]
    return "Without a peer:\n\n" + "\n".join(lines) if lines else ""


def mean(numbers):
    return exp(sum(map(log, numbers)) / len(numbers))


def line(cells):
    return "| " + " | ".join(map(str, cells)) + " |"


def duration(seconds):
    for unit, scale in (("s", 1), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= scale:
            return f"{digits(seconds / scale)} {unit}"
    return f"{digits(seconds / 1e-9)} ns"


def rate(name, value):
    return f"{value / 1e9:,.1f} G{'flop' if 'flop' in name else 'B'}/s"


def percent(share):
    return f"{100 * share:.0f} %"


def plot_ratio(rows):
    found = [(row["op"], row["direction"], ratio(row)) for row in single(rows) if ratio(row)]
    caption = "torch's time by Evergraph's, one mark per point: right of the line Evergraph is faster"
    return plots.strips("Ratio to torch", caption, found, plots.Powers([number for _, _, number in found]))


def plot_ceiling(rows):
    with_share = [row for row in single(rows) if "ratio_to_ceiling" in row["ours"]]
    found = [(row["op"], row["direction"], row["ours"]["ratio_to_ceiling"]) for row in with_share]
    caption = "useful bytes or operations per second by the measured ceiling that bounds the point"
    return plots.strips("Share of the ceiling", caption, found, plots.Linear([number for _, _, number in found]))


def files(folder):
    document = json.loads((folder / "ops.json").read_text())
    rows = document["rows"]
    yield folder / "ops.md", page(document)
    yield folder / "ops-ratio.svg", plot_ratio(rows)
    yield folder / "ops-ceiling.svg", plot_ceiling(rows)


def write(folder):
    pages.write(files(folder))


if __name__ == "__main__":
    pages.main("benches/ops/report.py", files)
