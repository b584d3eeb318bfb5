"""Runs the queries of a folder on one peer: `python run_peer.py PEER FOLDER THREADS`. A PEER whose name ends in
`-repaired` runs them after a repair that its file describes.

Checks evergraph's results and the peer's, then prints one line of JSON with what was checked. After that, each line
on standard input makes the peer run all queries once more, and prints the seconds that this took.
"""

import importlib
import json
import sys
import time

import torch
from queries import Queries, check_ours


def main():
    name, folder, threads = sys.argv[1], sys.argv[2], int(sys.argv[3])
    torch.set_num_threads(threads)
    # Only results go to standard output, not what libraries print.
    out, sys.stdout = sys.stdout, sys.stderr
    queries = Queries(folder)
    check_ours(queries)
    module, _, repaired = name.partition("-")
    peer = importlib.import_module(f"peer_{module}").Peer(queries, repaired == "repaired")
    print(json.dumps(check(peer, queries)), file=out, flush=True)
    for _ in sys.stdin:
        print(one_pass(peer, queries), file=out, flush=True)


def check(peer, queries):
    """Runs every query once; the peer checks its own results, with the means of queries.py."""
    peer.reset()
    facts = {"seeds": 0, "edges": 0}
    for number, batch in enumerate(queries.batches):
        for key, value in peer.check(number, batch, peer.sample(number, batch)).items():
            facts[key] = facts.get(key, 0) + value
        facts["seeds"] += len(batch.node)
    return facts


def one_pass(peer, queries):
    peer.reset()
    started = time.perf_counter()
    for number, batch in enumerate(queries.batches):
        peer.sample(number, batch)
    return time.perf_counter() - started


main()
