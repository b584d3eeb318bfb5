"""Average precision of models that follow a stream, on several streams: the figures of docs/benchmarks/prequential.md.

    python3 benches/prequential/measure.py --data FOLDER [--binary target/release/evergraph] [--threads 2] --json OUT
    python3 benches/prequential/measure.py --compare BEFORE AFTER

The first form runs `evergraph eval --protocol prequential` of a binary for each stream in the folder and each model, and
writes what each run printed. Of a long stream it takes the first EVENTS_MAX events. The second prints a table of two such
files. Streams that are not there are named and left out. About two minutes of CPU time in all.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.append(str(Path(__file__).parent.parent))
from edges import edges_only

STREAMS = ["uci", "wikipedia", "uslegis", "canparl", "bitcoin-otc", "email-eu", "oss-commits"]
MODELS = {
    "tgn": ["--model", "tgn", "--epochs", "1"],
    # The negatives of the others: precision on those that a source met is another, lower figure.
    "walk": ["--model", "walk", "--met-negatives", "0"],
    "edgebank": ["--model", "edgebank"],
}
EVENTS_MAX = 200_000
COLUMNS = {"mean_average_precision": "whole stream", "last15_average_precision": "last 15 %"}


def measure(binary: str, data: Path, threads: int) -> dict:
    """What each run printed, by stream and model."""
    found: dict = {"binary": subprocess.run([binary, "--version"], capture_output=True, text=True).stdout.strip()}
    runs: dict = {}
    with tempfile.TemporaryDirectory() as folder:
        for stream in STREAMS:
            source = data / f"{stream}.csv.gz"
            if not source.exists():
                print(f"prequential: SKIPPED {stream}: there is no {source}", file=sys.stderr)
                continue
            events = edges_only(source, Path(folder), EVENTS_MAX)
            for model, flags in MODELS.items():
                command = [binary, "eval", "--events", str(events), *flags, "--protocol", "prequential"]
                command += ["--seed", "0", "--threads", str(threads), "--json", "-"]
                run = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
                printed = runs.setdefault(stream, {})[model] = json.loads(run.stdout)
                print(stream, model, *(printed.get(key) for key in COLUMNS), file=sys.stderr)
    if not runs:
        sys.exit(f"prequential: nothing was measured: {data} has none of {', '.join(STREAMS)}")
    return found | {"runs": runs}


def compare(before: dict, after: dict) -> str:
    """A table of both, in Markdown."""
    heads = [f"{name}, {when}" for name in COLUMNS.values() for when in ("before", "after")]
    lines = ["| stream | model | " + " | ".join(heads) + " |", "| --- | --- |" + " ---: |" * len(heads)]
    for stream, models in after["runs"].items():
        for model, figures in models.items():
            earlier = before["runs"].get(stream, {}).get(model, {})
            cells = [side.get(key) for key in COLUMNS for side in (earlier, figures)]
            shown = ["–" if value is None else f"{value:.3f}" for value in cells]
            lines.append(f"| {stream} | {model} | " + " | ".join(shown) + " |")
    return "\n".join(lines)


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--data", type=Path)
    flags.add_argument("--binary", default="target/release/evergraph")
    flags.add_argument("--threads", type=int, default=2)
    flags.add_argument("--json", type=Path)
    flags.add_argument("--compare", nargs=2, type=Path, metavar=("BEFORE", "AFTER"))
    given = flags.parse_args()
    if given.compare:
        print(compare(*(json.loads(path.read_text()) for path in given.compare)))
    elif given.data and given.json:
        given.json.write_text(json.dumps(measure(given.binary, given.data, given.threads), indent=1) + "\n")
    else:
        flags.error("give --data and --json, or --compare")


if __name__ == "__main__":
    main()
