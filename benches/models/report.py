"""docs/benchmarks/models.md, made of models.json: every model on every stream. Standard library only."""

import json
import sys
from pathlib import Path
from statistics import mean, stdev

sys.path.append(str(Path(__file__).parent.parent))
from pages import BENCHMARKS, digits, main, write

__all__ = ["BENCHMARKS", "pages", "write"]

MEASURES = ["random", "historical", "mrr"]
HEAD = """# Models on streams

<!-- Made by benches/models/report.py from models.json: change those, not this. -->

Every model on the streams that have published negatives, edges without features: the mean over so many seeds and,
behind ±, the standard deviation. *AP random* and *AP historical* are average precision of the test part under the
`dyglib` protocol with the published negatives and masked nodes; *MRR* is `--protocol mrr --negatives historical`, 100
candidates of which half are destinations that the source met before. Each model trains for the epochs of its row, and
counts with the epoch that validates best. Of *tgn --walks* a quarter and of *walk* a tenth of the
negatives of training are destinations that the source met; *walk, random* is `walk` without any (`--met-negatives 0`), so
that nothing teaches it when a pair meets again.
EdgeBank draws nothing but the candidates of MRR.

Throughput and CPU time are of an epoch of `evergraph bench train --alone --row-dimension 0` on two threads, the best
of two rounds on an idle machine. *CPU s* is what all epochs cost; the last column divides AP on random negatives by it.
GraphMixer has no MRR here: each of its candidates costs as much as an event in training.

PyG's TGN and torch's GraphMixer beside ours, with throughput and precision, are in [learn.md](learn.md).
`make models DATA=folder` measures again.
"""


def pages(folder):
    """The page as a pair of its path and its text."""
    found = json.loads((folder / "models.json").read_text())
    lines = [HEAD]
    on = found.get("machine", {})
    lines.append(f"{on.get('cpu')}, {on.get('cores')} cores; {found['measured']}. Evergraph {on.get('version')}.\n")
    for stream, models in found["quality"].items():
        lines.append(f"## {stream}\n")
        lines.append("| model | seeds | epochs | AP random | AP historical | MRR | events/s | CPU s | AP per CPU s |")
        lines.append("|---|--:|--:|--:|--:|--:|--:|--:|--:|")
        best = {measure: highest(models, measure) for measure in MEASURES}
        for model, figures in models.items():
            if not figures.get("random"):
                continue
            cells = [quality(figures.get(measure), best[measure]) for measure in MEASURES]
            rate = found["rates"].get(stream, {}).get(model)
            cells += costs(rate, figures.get("random"), found["events"][stream]) if rate else ["–"] * 3
            seeds = max((len(by_seed) for by_seed in figures.values()), default=0)
            lines.append(f"| {model} | {seeds} | {rate['epochs'] if rate else '–'} | " + " | ".join(cells) + " |")
        lines.append("")
    return [(folder / "models.md", "\n".join(lines).rstrip() + "\n")]


def highest(models, measure):
    """The best mean of a stream."""
    return max((mean(figures[measure].values()) for figures in models.values() if figures.get(measure)), default=0)


def quality(by_seed, best):
    """Mean and deviation over seeds, the best of the stream in bold."""
    if not by_seed:
        return "–"
    values = list(by_seed.values())
    shown = f"{mean(values):.4f}"
    shown = f"**{shown}**" if mean(values) == best else shown
    return shown if len(values) < 2 else f"{shown} ±{stdev(values):.4f}"


def costs(rate, by_seed, events):
    """Throughput, CPU seconds of all epochs, and precision by them."""
    seconds = rate["cpu_seconds_per_million_events"] * events * rate["epochs"] / 1e6
    gain = f"{mean(by_seed.values()) / seconds:.3g}" if by_seed else "–"
    return [digits(rate["events_per_second"]), digits(seconds), gain]


if __name__ == "__main__":
    main("report.py", pages)
