"""Average precision of models that follow a stream, on several streams: writes docs/benchmarks/prequential.md.

    python3 benches/prequential/measure.py --data FOLDER [--binary target/release/evergraph] [--threads 2]
    python3 benches/prequential/measure.py --page

The first form runs `evergraph eval --protocol prequential` of a binary for each stream in the folder and each model, writes
what each run printed beside the page, and then the page. Of a long stream it takes the first EVENTS_MAX events. The second
writes the page alone. Streams that are not there are named and left out. About four minutes of CPU time in all.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.append(str(ROOT / "benches"))
from edges import edges_only

PAGE = ROOT / "docs" / "benchmarks" / "prequential.md"
STREAMS = ["uci", "wikipedia", "uslegis", "canparl", "bitcoin-otc", "email-eu", "oss-commits"]
TGN = ["--model", "tgn", "--epochs", "1"]
# What a batch sees of itself, and the flags.
MODELS = {
    "tgn": ("earlier events", TGN),
    "tgn, earlier batches": ("nothing", [*TGN, "--sight", "earlier-batches"]),
    # The negatives of the others: precision on those that a source met is another, lower figure.
    "walk": ("nothing", ["--model", "walk", "--met-negatives", "0"]),
}
EVENTS_MAX = 200_000
FIGURES = ("mean_average_precision", "last15_average_precision")

TEXT = """# Average precision when following a stream

<!-- Written by benches/prequential/measure.py from prequential.json: change those, not this. -->

Each batch is scored before the model is trained on it (`evergraph eval --protocol prequential`, seed 0, batches of 200, edges
without features, the first 200,000 events of a longer stream). Destinations that were never seen before are as frequent
among the negatives as among the positives, and half of the others come from recent events: that is the task whose quality a
daemon reports, but for `walk`, which has none of a daemon's negatives that the source met (`--met-negatives 0`).

What an event sees of its own batch decides much. A daemon indexes events before it learns them, so a model that samples
neighbors sees the strictly earlier events of a batch (`--sight within-batch`); trainers that insert a batch behind its step
see none of them (`--sight earlier-batches`, "tgn, earlier batches"), and neither does `walk`. EdgeBank is beside each with the same
sight, on the same negatives.

| stream | model | of its batch it sees | whole stream | EdgeBank | last 15 % | EdgeBank |
| --- | --- | --- | ---: | ---: | ---: | ---: |
"""


def measure(binary: str, data: Path, threads: int) -> dict:
    """What each run printed, by stream and model."""
    runs: dict = {}
    with tempfile.TemporaryDirectory() as folder:
        for stream in STREAMS:
            source = data / f"{stream}.csv.gz"
            if not source.exists():
                print(f"prequential: SKIPPED {stream}: there is no {source}", file=sys.stderr)
                continue
            events = edges_only(source, Path(folder), EVENTS_MAX)
            for model, (_, flags) in MODELS.items():
                command = [binary, "eval", "--events", str(events), *flags, "--protocol", "prequential"]
                command += ["--seed", "0", "--threads", str(threads), "--json", "-"]
                run = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
                printed = runs.setdefault(stream, {})[model] = json.loads(run.stdout)
                # Where the file was is no figure.
                printed["events"] = source.name
                print(stream, model, *(printed.get(key) for key in FIGURES), file=sys.stderr)
    if not runs:
        sys.exit(f"prequential: nothing was measured: {data} has none of {', '.join(STREAMS)}")
    return {"runs": runs}


def page(found: dict) -> str:
    lines, behind = [], []
    for stream, models in found["runs"].items():
        for model, figures in models.items():
            pairs = [(figures.get(key), figures.get(f"edgebank_{key}")) for key in FIGURES]
            shown = ["–" if value is None else f"{value:.3f}" for pair in pairs for value in pair]
            lines.append(f"| {stream} | {model} | {MODELS[model][0]} | " + " | ".join(shown) + " |")
            if any(ours is not None and ours < bank for ours, bank in pairs):
                behind.append(f"{model} on {stream}")
    machine = next(iter(next(iter(found["runs"].values())).values()))["machine"]
    said = f"Weak spots, behind EdgeBank in one of the two columns: {'; '.join(behind)}.\n" if behind else ""
    return (TEXT + "\n".join(lines) + "\n\n" + said +
            f"\nMeasured once by `make prequential DATA=FOLDER`, {machine['cpu']}, {machine['cores']} cores; `walk` is in f32, "
            f"TGN's products in {next(iter(found['runs'].values()))['tgn'].get('matmul_precision', 'f32')}.\n")


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--data", type=Path)
    flags.add_argument("--binary", default="target/release/evergraph")
    flags.add_argument("--threads", type=int, default=2)
    flags.add_argument("--page", action="store_true")
    given = flags.parse_args()
    figures = PAGE.with_suffix(".json")
    if given.data:
        known = json.loads(figures.read_text())["runs"] if figures.exists() else {}
        # A stream that was not there keeps its figures.
        runs = known | measure(given.binary, given.data, given.threads)["runs"]
        figures.write_text(json.dumps({"runs": runs}, indent=1, sort_keys=True) + "\n")
    elif not given.page:
        flags.error("give --data or --page")
    PAGE.write_text(page(json.loads(figures.read_text())))


if __name__ == "__main__":
    main()
