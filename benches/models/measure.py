"""Every model on every stream: average precision on random and historical negatives, MRR, throughput and CPU time.

    python3 benches/models/measure.py quality --data FOLDER [--stream NAME]... [--model NAME]...
    python3 benches/models/measure.py rates --data FOLDER

FOLDER holds the event files, and in protocol/ the published negatives and masked nodes. Both write to
docs/benchmarks/models.json, of which report.py makes the page; a figure that is there already is not measured again.
`quality` takes an hour of two cores and may run beside other work. `rates` takes minutes and waits for an idle machine:
each training run is one of a round, and a second round goes the other way around. Needs the standard library.
"""

import argparse
import datetime
import json
import subprocess
import sys
import tempfile
from itertools import product
from pathlib import Path

import report

sys.path.append(str(Path(__file__).parent.parent))
from edges import edges_only
from idle import idle_load

ROOT = Path(__file__).parent.parent.parent
EVERGRAPH = ROOT / "target" / "release" / "evergraph"
TARGET = report.BENCHMARKS / "models.json"
STREAMS = ["uci", "wikipedia", "uslegis"]
# Flags of each model, and its passes over the training part: as many as its validation precision rises for.
MODELS = {
    "tgn": (["--model", "tgn"], 3),
    "tgn --walks": (["--model", "tgn", "--walks"], 3),
    "walk": (["--model", "walk"], 5),
    "walk, random": (["--model", "walk", "--met-negatives", "0"], 5),
    "graphmixer": (["--model", "graphmixer"], 1),
    "jodie": (["--model", "jodie"], 3),
    "edgebank": (["--model", "edgebank"], 0),
}
# Costs as another does, of which it is a variant.
COSTS_AS = {"walk, random": "walk"}
# Its 100 candidates an event would each take the time of a training event.
NO_RANKS = {"graphmixer"}
SEEDS = [0, 1, 2]
ROUNDS = 2


def main():
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("part", choices=["quality", "rates"])
    flags.add_argument("--data", type=Path, required=True)
    flags.add_argument("--stream", action="append", choices=STREAMS)
    flags.add_argument("--model", action="append", choices=MODELS)
    given = flags.parse_args()
    found = json.loads(TARGET.read_text()) if TARGET.exists() else {"quality": {}, "rates": {}}
    streams, models = given.stream or STREAMS, given.model or list(MODELS)
    missing = [name for name in streams if not (given.data / f"{name}.csv.gz").exists()]
    if missing:
        sys.exit(f"models: nothing was measured: {given.data} lacks {', '.join(missing)}")
    if given.part == "quality":
        quality(found, given.data, streams, models)
    else:
        rates(found, given.data, streams, [name for name in models if MODELS[name][1] and name not in COSTS_AS])
    report.write(report.pages(report.BENCHMARKS))


def quality(found, data, streams, models):
    """All of one seed, then all of the next: a table is there early."""
    for stream in streams:
        figures = found["quality"].get(stream, {})
        found["quality"][stream] = {model: figures.get(model, {}) for model in MODELS}
    with tempfile.TemporaryDirectory() as folder:
        events = {stream: edges_only(data / f"{stream}.csv.gz", Path(folder)) for stream in streams}
        for seed, stream, model in product(SEEDS, streams, models):
            place = found["quality"][stream][model]
            for measure, protocol in protocols(data, stream).items():
                figures = place.setdefault(measure, {})
                if str(seed) in figures or (measure == "mrr" and model in NO_RANKS):
                    continue
                flags, epochs = MODELS[model]
                repeat = ["--epochs", max(epochs, 1), "--seed", seed]
                printed = run(["eval", "--events", events[stream], *flags, *repeat, *protocol])
                figures[str(seed)] = printed["test_mrr" if measure == "mrr" else "test_average_precision"]
                found["machine"] = printed["machine"]
                if measure == "random":
                    found.setdefault("events", {})[stream] = printed["train_events_count"]
                keep(found)
                print(stream, model, measure, seed, figures[str(seed)], file=sys.stderr)


def protocols(data, stream):
    """The flags of `evergraph eval` for each measure."""
    files = data / "protocol"
    common = ["--protocol", "dyglib", "--val-negatives", files / f"{stream}-val-rnd.csv.gz"]
    common += ["--masked", files / f"{stream}-masked-nodes.csv.gz"]
    return {
        "random": [*common, "--negatives", files / f"{stream}-test-rnd.csv.gz"],
        "historical": [*common, "--negatives", files / f"{stream}-test-hist.csv.gz"],
        "mrr": ["--protocol", "mrr", "--negatives", "historical"],
    }


def rates(found, data, streams, models):
    """One epoch of each, alone, by turns."""
    load = idle_load("models")
    turns = [(stream, model) for stream in streams for model in models]
    measured = {}
    for number in range(ROUNDS):
        for stream, model in turns if number % 2 == 0 else reversed(turns):
            flags = ["--alone", "--row-dimension", "0", "--events", data / f"{stream}.csv.gz"]
            printed = run(["bench", "train", *MODELS[model][0], *flags])
            rate = printed["events_per_second"], printed["cpu_seconds_per_million_events"]
            measured.setdefault(stream, {}).setdefault(model, []).append(rate)
            print(stream, model, *rate, file=sys.stderr)
    best = {
        stream: {
            model: {
                "events_per_second": max(rate for rate, _ in runs),
                "cpu_seconds_per_million_events": min(cost for _, cost in runs),
                "epochs": MODELS[model][1],
            }
            for model, runs in figures.items()
        }
        for stream, figures in measured.items()
    }
    for figures in best.values():
        figures.update({name: figures[other] for name, other in COSTS_AS.items() if other in figures})
    for stream, figures in best.items():
        found["rates"].setdefault(stream, {}).update(figures)
    found["load_average_before"] = round(load, 2)
    keep(found)


def run(words):
    """The JSON object that a command of evergraph prints."""
    command = [EVERGRAPH, *map(str, words), "--threads", "2", "--json", "-"]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(f"models: {' '.join(map(str, command))} failed:\n{done.stderr}")
    return json.loads(done.stdout[done.stdout.index("{") :])


def keep(found):
    """Written after each run: a run that is cut off goes on from there."""
    found["measured"] = datetime.date.today().isoformat()
    beside = TARGET.with_suffix(".part")
    beside.write_text(json.dumps(found, indent=1) + "\n")
    beside.replace(TARGET)


if __name__ == "__main__":
    main()
