"""Writes docs/benchmarks/learn.md and its plot from docs/benchmarks/learn.json; `--check` only checks that they are
up to date, and a folder as argument stands in for docs/benchmarks.

Every number comes from the JSON file. Needs the standard library only.
"""

import json
import sys
from html import escape
from pathlib import Path

sys.path.append(str(Path(__file__).parent.parent))
import pages
from pages import digits

MODELS = {"tgn": "TGN", "graphmixer": "GraphMixer"}
PEERS = {"pyg_tgn": "PyG", "torch_graphmixer": "torch"}
# What we set out for: events a second, times the peer's, and in any case no worse accuracy.
TARGETS = {"tgn": {"events": 50_000, "times": 5}, "graphmixer": {"times": 5}}
# What to know about the numbers in which Evergraph multiplied.
WHY = {"f32": "", "bf16": ", with sums in f32 (`learner.matmul_precision`)"}
PHASES = ("sample", "gather", "wait", "forward", "backward", "optimizer", "memory")

PAGE = """# Training compared with PyG and torch

<!-- Made by benches/learn/report.py from learn.json: change those, not this. -->

Throughput of training on the CPU and the accuracy it reaches: Evergraph's TGN compared with PyG's, and its GraphMixer
compared with one in plain torch, with the same dimensions, the same events, the same negatives, {threads} threads each, and
Adam with a step size of {learning_rate:g}. Nothing here was measured on a GPU.

`make learn-peers DATA=folder` measures again, with the event file and its protocol in `folder`;
`python3 benches/learn/report.py` writes this page and its plot again from [learn.json](learn.json).

{cpu}, {cores} cores, {gibibytes:.0f} GiB memory, load average {load} before; {measured}. Evergraph {version};
{versions}.

## Figures

| model | batch | | events/s | of the rounds | times the peer | AP, pooled | AP, mean of batches | parameters |
|---|--:|---|--:|--:|--:|--:|--:|--:|
{figures}

![Events a second](learn.svg)

## Against the targets

| model | batch | target | found | |
|---|--:|---|--:|---|
{targets}

{verdict}

## Microseconds per event

The median round. Evergraph samples and gathers in parallel with a step; the time that a step waited for it is a column.

| model | batch | | in all | {phases} |
|---|--:|---|--:|{rules}|
{seconds}

## What is measured

- **Events.** {name}, edges only: {nodes:,} nodes; split at the 0.70 and 0.85 quantiles of time, and without the
  training edges of the nodes that the protocol masks {train:,} events are trained on, {val:,} validate and {test:,}
  test.
- **Negatives.** One destination for each event. In training drawn from the destinations that are trained on, by the
  counters of `evergraph eval` for seed 0, the same for both; of validation and test those of the protocol's files.
- **Speed.** Events of the training part by the seconds that its batches take: sampling, gathering, forward, backward,
  optimizer and memory. The median of {rounds} rounds, in which everybody trains in turn, every other round in the
  opposite order; a peer is stopped while others are measured. A round is an epoch, {parts}. {warm}
- **Accuracy.** Average precision (AP) of the test part after the epoch with the best validation of as many as the
  peer trained ({epochs}), each batch scored from the state before it: over all scores, and as the mean of the batches.
- **Memory of the process.** torch and PyG run with glibc set to keep large blocks, which is to their advantage.

## What differs

- **Threads.** Evergraph samples and gathers the next batches on one thread more, beside those that compute a step; how long
  that takes is in the columns above.
- **Products of matrices.** Evergraph's are in {precision} here{why}. The peers are tried in f32 and with
  products in bf16 allowed (`torch.set_float32_matmul_precision("medium")`), and the fastest setting counts.{settings}
- **PyG's TGN** is made of its `TGNMemory`, `IdentityMessage`, `LastAggregator`, `LastNeighborLoader` and
  `TransformerConv` as its TGN example has them: memory, time encoding and embedding of {width}, 10 neighbors, two
  heads, dropout 0.1. Its attention adds the projected row of the node and ends there; Evergraph's goes on with an
  output projection, layer norm and a two-layer merge. PyG learns its time encoding, Evergraph's is fixed: over raw
  seconds a learned one is unsteady at this step size. PyG cannot do without features of events: each has one that is 0.
  Its events see nothing of their own batch, Evergraph's see strictly earlier edges of it. Its table of neighbors knows
  no times, so that an edge of an earlier batch counts as past at an equal time too, and of a node with more than 10
  events in a batch it keeps any 10.
- **torch's GraphMixer** is the model of `src/model/graphmixer.rs` in `nn.LayerNorm`, `nn.Linear`, `nn.GELU` and
  `nn.Dropout`: {width} channels, 20 edges, two blocks, dropout 0.4. Its neighbors are found by one binary search in
  numpy for all seeds of a batch, strictly before each one's time, which is what Evergraph finds too.
- **Evergraph** is timed by `bench train` on a file of just the events that are trained on, and scored by `eval`.
"""


def page(document):
    rows, machine, stream = document["rows"], document["machine"], document["stream"]
    return PAGE.format(
        threads=document["threads"],
        learning_rate=document["learning_rate"],
        cpu=machine["cpu"],
        cores=machine["cores"],
        gibibytes=machine["memory_bytes"] / 2**30,
        load=document["load_average_before"],
        measured=document["measured"],
        version=machine["version"],
        versions="; ".join(dict.fromkeys(f"{PEERS[row['peer']]} {row['theirs']['version']}" for row in rows)),
        figures="\n".join(cells for row in rows for cells in figures(row)),
        targets="\n".join(line(target[:-1] + ["met" if target[-1] else "**missed**"]) for target in targets(rows)),
        verdict=verdict(rows),
        phases=" | ".join(PHASES),
        rules="|".join("--:" for _ in PHASES),
        seconds="\n".join(cells for row in rows for cells in seconds(row)),
        name=stream["name"],
        nodes=stream["nodes"],
        train=stream["train_events"],
        val=stream["val_events"],
        test=stream["test_events"],
        precision=rows[0]["ours"]["matmul_precision"],
        why=WHY[rows[0]["ours"]["matmul_precision"]],
        settings=peer_settings(rows),
        rounds=document["rounds"],
        parts=parts(rows),
        warm=warm(rows),
        epochs="; ".join(f"{title(row)} in batches of {row['batch']}: {row['epochs']}" for row in rows),
        width=document["width"],
    )


def peer_settings(rows):
    """The setting in which a peer was fastest, and its rates in the others."""
    sentences = []
    for row in rows:
        theirs = row["theirs"]
        others = theirs["events_per_second_in_other_settings"].items()
        if others:
            rates = ", ".join(f"{other}: {digits(rate)}" for other, rate in others)
            which = f"{PEERS[row['peer']]} in batches of {row['batch']}"
            sentences.append(f"{which} is fastest with {theirs['setting']}; events/s with {rates}.")
    return "".join(f"\n  {sentence}" for sentence in sentences)


def title(row):
    return MODELS[row["model"]]


def sides(row):
    return (("Evergraph", row["ours"]), (PEERS[row["peer"]], row["theirs"]))


def times(row):
    return row["ours"]["events_per_second"] / row["theirs"]["events_per_second"]


def figures(row):
    for name, side in sides(row):
        speeds = side["events_per_second_of_rounds"]
        cells = [title(row), row["batch"], name, f"**{digits(side['events_per_second'])}**"]
        cells += [f"{digits(min(speeds))} to {digits(max(speeds))}"]
        cells += [f"**{digits(times(row))}**" if side is row["ours"] else ""]
        cells += [f"{side[key]:.4f}" for key in ("pooled_average_precision", "average_precision")]
        yield line(cells + [f"{side['parameters']:,}"])


def targets(rows):
    """Model, batch, what was set out for, what was found, and whether that is enough."""
    for row in rows:
        target, found = TARGETS[row["model"]], row["ours"]["events_per_second"]
        start, peer = [title(row), row["batch"]], PEERS[row["peer"]]
        if "events" in target:
            yield start + [f"{target['events']:,} events/s", digits(found), found >= target["events"]]
        yield start + [f"{target['times']} times {peer}", digits(times(row)), times(row) >= target["times"]]
        ours, theirs = (side["pooled_average_precision"] for _, side in sides(row))
        yield start + [f"AP at least {peer}'s {theirs:.4f}", f"{ours:.4f}", ours >= theirs]


def verdict(rows):
    missed = [target for target in targets(rows) if not target[-1]]
    if not missed:
        return "All targets are met."
    names = "; ".join(f"{model} in batches of {batch}, {wanted}: {found}" for model, batch, wanted, found, _ in missed)
    are = "is" if len(missed) == 1 else "are"
    return f"{len(missed)} of {len(list(targets(rows)))} targets {are} missed: {names}."


def seconds(row):
    for name, side in sides(row):
        phases = [side["phase_seconds_per_event"].get(phase) for phase in PHASES]
        cells = [title(row), row["batch"], name, digits(side["seconds_per_event"] * 1e6)]
        yield line(cells + ["" if taken is None else digits(taken * 1e6) for taken in phases])


def parts(rows):
    """Where a round is less than an epoch."""
    cut = [row for row in rows if row["turns"] > 1]
    rounds = [f"of {PEERS[row['peer']]}'s {title(row)} one of {row['turns']} parts of it" for row in cut]
    return ", ".join(rounds) or "of everybody"


def warm(rows):
    """Which epochs are timed."""
    after = [row for row in rows if row["warm"]]
    cold = [row for row in rows if not row["warm"]]
    notes = [f"{names(after)}: the epoch before those that are timed is not counted."] if after else []
    notes += [f"{names(cold)}: timed from the first batch on."] if cold else []
    return " ".join(notes)


def names(rows):
    return ", ".join(dict.fromkeys(map(title, rows)))


def line(cells):
    return "| " + " | ".join(map(str, cells)) + " |"


LABELS, WIDTH, BAR, TOP, RIGHT = 230, 480, 22, 44, 90
STYLE = (
    "text{font:12px sans-serif;fill:#24292f}.title{font-size:14px;font-weight:bold}.axis{fill:#57606a}"
    ".ours{fill:#0969da}.theirs{fill:#8c959f}.range{stroke:#24292f;stroke-width:1.5}"
)


def plot(rows):
    """A bar for everybody, with the range of the rounds as a line."""
    bars = [(row, name, side) for row in rows for name, side in sides(row)]
    most = max(max(side["events_per_second_of_rounds"]) for _, _, side in bars)
    across = lambda number: LABELS + WIDTH * number / most
    height = TOP + BAR * len(bars) + 10 * len(rows)
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LABELS + WIDTH + RIGHT} {height}" role="img">']
    out += [f"<style>{STYLE}</style>", "<title>Events a second</title>"]
    out += ['<rect width="100%" height="100%" fill="#fff"/>']
    out += [text(12, 20, "Events trained on a second; lines: slowest and fastest round", "title")]
    for number, (row, name, side) in enumerate(bars):
        y = TOP + BAR * number + 10 * (number // 2)
        low, high = (across(pick(side["events_per_second_of_rounds"])) for pick in (min, max))
        kind = "ours" if side is row["ours"] else "theirs"
        width = across(side["events_per_second"]) - LABELS
        out += [text(LABELS - 8, y + 13, f"{title(row)}, batches of {row['batch']}: {name}", "", "end")]
        out += [f'<rect class="{kind}" x="{LABELS}" y="{y}" width="{width:.1f}" height="{BAR - 4}"/>']
        out += [f'<line class="range" x1="{low:.1f}" x2="{high:.1f}" y1="{y + 9}" y2="{y + 9}"/>']
        out += [text(high + 8, y + 13, digits(side["events_per_second"]), "axis")]
    return "\n".join([*out, "</svg>"]) + "\n"


def text(x, y, words, kind, anchor="start"):
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'


def files(folder):
    document = json.loads((folder / "learn.json").read_text())
    yield folder / "learn.md", page(document)
    yield folder / "learn.svg", plot(document["rows"])


def write(folder):
    pages.write(files(folder))


if __name__ == "__main__":
    pages.main("benches/learn/report.py", files)
