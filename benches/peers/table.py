"""Writes docs/benchmarks/peers.md from docs/benchmarks/peers.json; `--check` only checks that it is up to date.

Every number comes from the JSON file. Needs the standard library only.
"""

import json
import sys
from pathlib import Path

BENCHMARKS = Path(__file__).parent.parent.parent / "docs" / "benchmarks"

QUERIES = {
    ("newest", 1): (
        "newest",
        "In stream order, for every batch: the {fanout} newest edges that have arrived, of each distinct node among "
        "the batch's seeds, whatever their time; then the batch is inserted. Both are timed.",
    ),
    ("recent", 1): (
        "recent",
        "In stream order, for every batch: of each seed the {fanout} newest edges that have arrived and are strictly "
        "before the seed's time; then the batch is inserted. Both are timed.",
    ),
    ("uniform", 1): (
        "uniform 1x{fanout}",
        "Of the whole stream, built beforehand, for {batches} batches spread evenly over it: of each seed {fanout} "
        "edges strictly before its time, all equally likely, without replacement.",
    ),
    ("uniform", 2): (
        "uniform 2x{fanout}",
        "The same for {batches} batches, and then of each distinct (neighbor, time of the edge) pair that was found, "
        "{fanout} edges strictly before that time.",
    ),
    ("uniform-batch", 1): (
        "uniform, one time",
        "As uniform 1x{fanout}, for {batches} batches, but every seed of a batch is sampled at the time of the "
        "batch's first event.",
    ),
}

PEERS = {
    "pyg": (
        "PyG LastNeighborLoader",
        "A table of each node's last K edges, as in its TGN example. No time filter, no past beyond the last K, no "
        "uniform sampling, one layer a call: so it runs in stream order, on distinct nodes as in that example. "
        "It returns edge ids and relabeled neighbors; ours also with times and time differences. Its `insert` "
        "relies on a sort that is not stable: of a node with more than K events in one batch it keeps any K, not the "
        "last. *Repaired* makes this sort stable and changes nothing else.",
    ),
    "tgm": (
        "tgm hooks",
        "`RecencyNeighborHook` is a ring of each node's last K edges, filtered by time at the query: where some "
        "of those K are not before the seed's time the result is short, although the node has more edges. "
        "As shipped it sorts a batch by node id times time in 32 bits, which overflows, and so mixes up the edges of "
        "some nodes; *repaired* gives it 64-bit node ids and changes nothing else. `NeighborSamplerHook` samples "
        "uniformly without replacement, strictly before the batch's first event, by a pass over all earlier events "
        "in Python; equal seeds share one draw. Both return neighbors, times and edge features; an edge's only "
        "feature here is its id, so that results can be compared.",
    ),
    "graphbolt": (
        "DGL GraphBolt",
        "`temporal_sample_neighbors`, uniform without replacement, strictly before each seed's time, on a graph that "
        "never changes: no insertion, no recent policy. It returns neighbors and edge ids. Its own sampler of "
        "several layers samples neighbors at the first seed's time; for the same query as ours it is called "
        "once a layer, with `unique` over (neighbor, time) pairs between.",
    ),
}

PAGE = """# Comparison with other temporal samplers

<!-- Made by benches/peers/table.py from peers.json: change those, not this. -->

Evergraph and samplers of Python packages that install from PyPI and run on a CPU, on the same streams and with the same
queries. A batch is {batch_events} events; its seeds are their sources, their destinations and one random
destination each, at the events' times. A peer runs the queries that its interface supports, and Evergraph exactly those,
applying a batch of events after each query where the peer does. Files are read and batches are made before the
clock starts; no peer copies to a device, trains or gathers features.

Before anything is timed, every result of both sides is compared with a third program's (`benches/peers/queries.py`):
*same edges* means identical edge ids for every seed, equal times included; *same candidates* means for every seed
as many edges as there are, at most {fanout}, all of them from the seed's past and none twice. The figures are medians
of {rounds} rounds, in each of which Evergraph and then each peer run every query; smallest and largest are in
[peers.json](peers.json).

`make peers DATA=folder` measures again, with the event files in `folder`.

## Figures

{cpu}, {cores} cores, {gibibytes:.0f} GiB memory, load average {load} before; {measured}. Evergraph {version};
{versions}.

| stream | query | threads | peer | its batches/s | Evergraph's batches/s | ratio | its results |
|---|---|--:|---|--:|--:|--:|---|
{rows}

{streams}

## Queries

{queries}

## Peers

{peers}
"""


def page(document):
    fanout, rows = document["fanout"], document["rows"]
    name = lambda row: QUERIES[row["ask"], row["layers"]][0].format(fanout=fanout)
    lines = []
    for row in rows:
        peer, _, repaired = row["peer"].partition("-")
        cells = [row["stream"], name(row), row["threads"], PEERS[peer][0] + (", repaired" if repaired else "")]
        rates = [row[side]["median"] for side in ("peer_batches_per_second", "ours_batches_per_second")]
        cells += [digits(rate) for rate in rates] + [f"**{digits(row['ratio'])}**", results(row)]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    for peer, facts in document["peers"].items():
        if "missing" in facts:
            lines.append(f"| | | | {PEERS[peer][0]} | not measured: {facts['missing']} | | | |")
    batches = {}
    for row in rows:
        batches[row["ask"], row["layers"]] = row["batches"]
    machine = document["machine"]
    return PAGE.format(
        batch_events=document["batch_events"],
        fanout=fanout,
        rounds=document["rounds"],
        cpu=machine["cpu"],
        cores=machine["cores"],
        gibibytes=machine["memory_bytes"] / 2**30,
        measured=document["measured"],
        load=document["load_average_before"],
        version=machine["version"],
        versions="; ".join(versions(facts) for facts in document["peers"].values() if "missing" not in facts),
        rows="\n".join(lines),
        streams="; ".join(
            f"{stream}: {facts['events']:,} events, {facts['nodes']:,} nodes"
            for stream, facts in document["streams"].items()
        )
        + ".",
        queries="\n".join(
            f"- **{title.format(fanout=fanout)}** {text.format(fanout=fanout, batches=batches[key])}"
            for key, (title, text) in QUERIES.items()
            if key in batches
        ),
        peers="\n".join(f"- **{title}.** {text}" for title, text in PEERS.values()),
    )


def versions(facts):
    return ", ".join(f"{package} {version}" for package, version in facts.items())


def results(row):
    found, notes = row["peer_answers"], []
    if row["ask"].startswith("uniform"):
        return "same candidates"
    for key, word in [("wrong_seeds", "wrong edges"), ("short_seeds", "short")]:
        if found.get(key):
            notes.append(f"{word} for {100 * found[key] / found['seeds']:.2g} % of seeds")
    return ", ".join(notes) or "same edges"


def digits(number):
    """Three digits that count, and no exponent."""
    return f"{float(f'{number:.3g}'):,.10g}"


def main():
    made = page(json.loads((BENCHMARKS / "peers.json").read_text()))
    target = BENCHMARKS / "peers.md"
    if "--check" not in sys.argv:
        target.write_text(made)
    elif target.read_text() != made:
        sys.exit("docs/benchmarks/peers.md is not what benches/peers/table.py makes of peers.json: run it")


main()
