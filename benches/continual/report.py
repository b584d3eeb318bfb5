"""docs/benchmarks/continual.md, made of continual.json: how soon new events are learned. Standard library only."""

import json
import sys
from pathlib import Path
from statistics import median

sys.path.append(str(Path(__file__).parent.parent))
from pages import BENCHMARKS, digits, main, write

__all__ = ["BENCHMARKS", "pages", "write"]

HEAD = """# How soon new events are learned

<!-- Made by benches/continual/report.py from continual.json: change those, not this. -->

The Wikipedia edits, of which the last arrive {events} at a time, as soon as those before are learned, in a TGN that learns
in batches of {batch} in f32. {cores} cores of {cpu}, {threads} threads each, {peer}.
`make continual DATA=FOLDER` measures again.

- **history**: what the daemon tests, trains on and publishes in a second while it replays the events before, from a file into its
  log, with a gradient step for each event.
- **stored**: the new events are acknowledged, so durable. The clock starts when a producer opens its file of them, which it
  pushes over HTTP.
- **learned**: a response reflects all of them, and each had a gradient step. Which weights are served is the decision of
  the promotion gate, as always.
- **retrained**: PyG's TGN starts over and trains one epoch on all events, old and new, as a job does that runs every night.
- **continued**: PyG's TGN keeps memory, graph and network, and trains on the new events alone: the same work as the daemon's,
  without a log, tests of what is predicted, a gate, and somebody who can ask.

Of the peer, reading events, drawing negatives, starting and handing over what was learned are not timed.

| | history | stored | learned | PyG retrained | times as long | PyG continued | times as long |
| --- | --: | --: | --: | --: | --: | --: | --: |
"""


def pages(folder):
    """The page as a pair of its path and its text."""
    found = json.loads((folder / "continual.json").read_text())
    case = next(iter(found["cases"].values()))
    machine = case["ours"]["machine"]
    text = HEAD.format(
        events=f"{case['ours']['round_events']:,}",
        batch=case["ours"]["batch_events"],
        cores=machine["cores"],
        cpu=machine["cpu"],
        threads=found["threads"],
        peer=case["peer"]["peer"],
    )
    text += "".join(row(name, each["ours"], each["peer"]) for name, each in found["cases"].items())
    return [(folder / "continual.md", text)]


def row(name, ours, peer):
    assert ours["skipped_events"] == 0 and ours["device"].startswith("cpu") and peer["device"] == "cpu", name
    assert all(ours[key] == peer[key] for key in ("round_events", "batch_events", "row_dimension")), name
    learned, stored = ours["learned_seconds"]["median"], ours["acknowledged_seconds"]["median"]
    retrained, continued = median(peer["retrained_seconds"]), median(peer["continued_seconds"])
    cells = [
        name,
        f"{digits(ours['events_per_second'])}/s",
        f"{digits(stored)} s",
        f"{digits(learned)} s",
        f"{digits(retrained)} s",
        digits(retrained / learned),
        f"{digits(continued)} s",
        digits(continued / learned),
    ]
    return f"| {' | '.join(cells)} |\n"


if __name__ == "__main__":
    main("benches/continual/report.py", pages)
