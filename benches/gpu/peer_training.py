"""Trains PyG's TGN of `peer_pyg_tgn.py` on a GPU, on all events of a file, and writes its throughput.

    peer_training.py EVENTS.csv[.gz] FEATURES OUT.json [--device cpu]

The first epoch is a warm-up; the median of the others counts, and is written after each. The clock stops when the GPU
is done.
"""

import json
import os
import statistics
import subprocess
import sys

from torch_gpu import pyg_command, write

BATCH_EVENTS, LEARNING_RATE = 600, 1e-3
# Timed epochs. One shows what several would: each took 14 s on an H200.
EPOCHS = 1


def main(events, features, out_path, *more):
    command = pyg_command("peer_pyg_tgn.py", any_device=bool(more))
    command += ["--file", events, "--features", features]
    command += ["--batch", BATCH_EVENTS, "--threads", os.cpu_count(), "--learning-rate", LEARNING_RATE]
    command += more or ["--device", "cuda"]
    words = ["facts"] + ["train"] * (1 + EPOCHS)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([str(word) for word in command], **pipes) as peer:
        peer.stdin.write("\n".join(words))
        peer.stdin.close()
        lines = map(json.loads, peer.stdout)
        facts, _, rates = next(lines, None), next(lines, None), []
        for epoch in lines:
            rates.append(epoch["events"] / epoch["seconds"])
            write(out_path, {"peer": f"PyG {facts['version']}", "device": facts["device"], "events": epoch["events"],
                             "batch_events": BATCH_EVENTS, "row_dimension": int(features),
                             "parameters": facts["parameters"], "events_per_second": statistics.median(rates),
                             "events_per_second_of_epochs": rates, "loss": epoch["loss"]})
    if peer.returncode != 0:
        sys.exit(f"PyG's TGN exited with status {peer.returncode}: see above")


if __name__ == "__main__":
    main(*sys.argv[1:])
