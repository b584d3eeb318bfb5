"""How soon new events are learned: by a daemon, `evergraph bench learn`, and by PyG's TGN, retrained and continued.

    python3 -B benches/continual/measure.py --data FOLDER [--threads 2]

FOLDER has wikipedia.csv.gz. Both learn the same stream in batches of the same size, one after the other, on a machine that
does nothing else. Writes docs/benchmarks/continual.json and docs/benchmarks/continual.md. The peer runs in the environment of
benches/ops. Standard library only.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path

import report

sys.path.append(str(Path(__file__).parent.parent))
from idle import idle_load
from peer_process import run

ROOT = Path(__file__).parent.parent.parent
EVERGRAPH = ROOT / "target" / "release" / "evergraph"
PYTHON = ROOT / ".cache" / "ops" / "peers" / "bin" / "python"
PEER = ROOT / "benches" / "learn" / "peer_continual.py"
# Values of an event, by the name that the page has for them.
CASES = {"edges only": 0, "172 values an edge": 172}
BATCH, ROUND_EVENTS, ROUNDS, PEER_ROUNDS = 200, 5000, 5, 3


def main():
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--data", type=Path, required=True)
    flags.add_argument("--threads", type=int, default=2)
    given = flags.parse_args()
    events = given.data / "wikipedia.csv.gz"
    if not events.exists():
        sys.exit(f"continual: SKIPPED, nothing was measured: there is no {events}")
    load = idle_load("continual")
    cases = {}
    # On a disk, where the log has to wait for it.
    with tempfile.TemporaryDirectory(dir=ROOT / "target") as folder:
        for name, features in CASES.items():
            cases[name] = {"ours": ours(events, features, given.threads, folder),
                           "peer": peer(events, features, given.threads, Path(folder) / "peer.json")}
    document = {"load_average_before": round(load, 2), "threads": given.threads, "cases": cases}
    (report.BENCHMARKS / "continual.json").write_text(json.dumps(document, indent=1) + "\n")
    report.write(report.pages(report.BENCHMARKS))


def ours(events, features, threads, folder):
    out = Path(folder) / "ours.json"
    command = [EVERGRAPH, "bench", "learn", "--events", events, "--row-dimension", features, "--rounds", ROUNDS]
    command += ["--round-events", ROUND_EVENTS, "--set", f"learner.batch_events={BATCH}", "--set", "device.use=cpu"]
    # The peer computes in f32.
    command += ["--set", "learner.matmul_precision=f32"]
    run([*command, "--set", f"learner.threads={threads}", "--data", folder, "--json", out])
    return json.loads(out.read_text())


def peer(events, features, threads, out):
    command = [PYTHON, "-B", "-W", "ignore", PEER, events, out, "--features", features, "--rounds", PEER_ROUNDS]
    run([*command, "--round-events", ROUND_EVENTS, "--batch", BATCH, "--device", "cpu", "--threads", threads])
    return json.loads(out.read_text())


if __name__ == "__main__":
    main()
