"""Runs the same queries on evergraph and its peers in turn and writes docs/benchmarks/peers.json.

Every peer is a process of its own that first checks all results, evergraph's and its own (run_peer.py). Then come
rounds: evergraph runs every query, then each peer does. A figure is the median of the rounds. Needs the standard library.
"""

import argparse
import datetime
import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import median

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
CACHE = ROOT / ".cache" / "peers"
OUT = ROOT / "docs" / "benchmarks" / "peers.json"
STREAMS = ["wikipedia", "oss-commits"]
ENVIRONMENTS = {"pyg": "pyg-tgm", "tgm": "pyg-tgm", "graphbolt": "graphbolt"}
PACKAGES = {"pyg": ["torch-geometric", "torch"], "tgm": ["tgm-lib", "torch"], "graphbolt": ["dgl", "torch"]}
# The query, its layers, how many batches (none: all), and the peers that run it.
QUERIES = [
    ("newest", 1, None, ["pyg", "pyg-repaired"]),
    ("recent", 1, None, ["tgm", "tgm-repaired"]),
    ("uniform", 1, 60, ["graphbolt"]),
    ("uniform", 2, 20, ["graphbolt"]),
    ("uniform-batch", 1, 6, ["tgm"]),
]


def main():
    parser = argparse.ArgumentParser(description="Runs the same queries on evergraph and its peers.")
    parser.add_argument("--data", type=Path, required=True, help="folder of the event files")
    parser.add_argument("--threads", default="1", help="threads of everybody; several: 1,2")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of which the median counts")
    args = parser.parse_args()
    rows, streams, load = [], {}, os.getloadavg()[0]
    for threads in map(int, args.threads.split(",")):
        for stream in STREAMS:
            for query in QUERIES:
                ours, found = compare(args, stream, threads, *query)
                rows += found
                streams[stream] = {"events": ours["events"], "nodes": ours["nodes"]}
    machine = {key: value for key, value in ours["machine"].items() if key != "threads"}
    document = {
        "measured": datetime.date.today().isoformat(),
        "machine": machine,
        "load_average_before": round(load, 2),
        "rounds": args.rounds,
        "batch_events": ours["batch_events"],
        "fanout": ours["fanout"],
        "streams": streams,
        "peers": {peer: versions(peer) for peer in ENVIRONMENTS},
        "rows": rows,
    }
    OUT.parent.mkdir(parents=True, exist_ok=True)
    OUT.write_text(json.dumps(document, indent=1) + "\n")
    log(f"wrote {OUT.relative_to(ROOT)}")


def compare(args, stream, threads, ask, layers, batches, names):
    """Evergraph's figures, and a row for every peer of one query."""
    ours = lambda *more: evergraph(args.data / f"{stream}.csv.gz", threads, ask, layers, batches, *more)
    folder = CACHE / "queries"
    folder.mkdir(parents=True, exist_ok=True)
    figures = ours("--runs", "1", "--write", folder)
    (folder / "figures.json").write_text(json.dumps(figures))
    peers = [Peer(name, folder, threads) for name in names if "missing" not in versions(name)]
    seconds = []
    for _ in range(args.rounds if peers else 0):
        seconds.append(ours("--runs", "3")["pass_seconds"]["median"])
        for peer in peers:
            peer.run()
    rate = lambda passes: {
        key: figures["batches"] / of(passes) for key, of in [("median", median), ("min", max), ("max", min)]
    }
    rows = []
    for peer in peers:
        peer.end()
        row = {"stream": stream, "ask": ask, "layers": layers, "threads": threads, "peer": peer.name}
        row |= {"batches": figures["batches"], "seeds": figures["seeds"], "edges": figures["sampled_edges"]}
        row |= {"ours_batches_per_second": rate(seconds), "peer_batches_per_second": rate(peer.seconds)}
        row |= {"ratio": median(peer.seconds) / median(seconds), "peer_answers": peer.checked}
        rows.append(row)
        log(f"{stream}, {ask} (layers: {layers}, threads: {threads}): {row['ratio']:.1f} times {peer.name}")
    return figures, rows


def evergraph(events, threads, ask, layers, batches, *more):
    command = [ROOT / "target/release/evergraph-research", "requests", "--events", events, "--ask", ask, "--json", "-"]
    command += ["--layers", str(layers), "--threads", str(threads), *more]
    command += ["--batches", str(batches)] if batches else []
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout)


class Peer:
    """A process of run_peer.py."""

    def __init__(self, name, folder, threads):
        self.name, self.seconds = name, []
        command = [python_of(name), "-W", "ignore", HERE / "run_peer.py", name, folder, str(threads)]
        settings = os.environ | {"OMP_NUM_THREADS": str(threads), "DGLBACKEND": "pytorch"}
        self.process = subprocess.Popen(
            command, env=settings, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self.checked = json.loads(self.read_line())

    def read_line(self):
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"peers: {self.name} ended; its output stands above")
        return line

    def run(self):
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        self.seconds.append(float(self.read_line()))

    def end(self):
        self.process.stdin.close()
        self.process.wait()


def python_of(name):
    return CACHE / ENVIRONMENTS[name.split("-")[0]] / "bin" / "python"


def versions(name):
    """Versions of a peer's packages, or why they are missing."""
    peer = name.split("-")[0]
    environment = CACHE / ENVIRONMENTS[peer]
    if not (environment / "installed.txt").exists():
        output = environment.with_name(environment.name + ".log")
        lines = [line for line in output.read_text().splitlines() if line.strip()] if output.exists() else []
        errors = [line for line in lines if line.startswith("ERROR")] or lines
        return {"missing": errors[-1] if errors else "not installed"}
    code = "import sys, importlib.metadata as m; print(*[m.version(p) for p in sys.argv[1:]], sys.version.split()[0])"
    done = subprocess.run([python_of(name), "-c", code, *PACKAGES[peer]], check=True, stdout=subprocess.PIPE, text=True)
    return dict(zip([*PACKAGES[peer], "python"], done.stdout.split()))


def log(text):
    print(f"peers: {text}", file=sys.stderr, flush=True)


main()
