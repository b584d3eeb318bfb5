"""Puts the questions of a folder to one peer: `python ask.py PEER FOLDER THREADS`. A PEER whose name ends in
`-repaired` is asked after a repair that its file describes.

Checks evergraph's answers and the peer's, then prints one line of JSON with what was checked. After that, each line
on standard input makes the peer answer all questions once more, and prints the seconds that this took.
"""

import importlib
import json
import sys
import time

import torch
from questions import Questions, check_ours


def main():
    name, folder, threads = sys.argv[1], sys.argv[2], int(sys.argv[3])
    torch.set_num_threads(threads)
    # Only answers go to standard output, not what libraries print.
    out, sys.stdout = sys.stdout, sys.stderr
    questions = Questions(folder)
    check_ours(questions)
    module, _, repaired = name.partition("-")
    peer = importlib.import_module(f"peer_{module}").Peer(questions, repaired == "repaired")
    print(json.dumps(check(peer, questions)), file=out, flush=True)
    for _ in sys.stdin:
        print(one_pass(peer, questions), file=out, flush=True)


def check(peer, questions):
    """Asks everything once; the peer checks its own answers, with the means of questions.py."""
    peer.reset()
    facts = {"seeds": 0, "edges": 0}
    for number, batch in enumerate(questions.batches):
        for key, value in peer.check(number, batch, peer.answer(number, batch)).items():
            facts[key] = facts.get(key, 0) + value
        facts["seeds"] += len(batch.node)
    return facts


def one_pass(peer, questions):
    peer.reset()
    started = time.perf_counter()
    for number, batch in enumerate(questions.batches):
        peer.answer(number, batch)
    return time.perf_counter() - started


main()
