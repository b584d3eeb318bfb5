"""Trains PyG's TGN of `peer_pyg_tgn.py` on a GPU, on all events of a file, and writes its throughput.

    peer_training.py EVENTS.csv[.gz] FEATURES OUT.json [--device cpu]

The first epoch is a warm-up; the median of the others counts. The clock stops when the GPU is done.
"""

import json
import os
import statistics
import subprocess
import sys

from torch_gpu import pyg_command

BATCH_EVENTS, EPOCHS, LEARNING_RATE = 600, 3, 1e-3


def main(events, features, out_path, *more):
    command = pyg_command("peer_pyg_tgn.py", any_device=bool(more))
    command += ["--file", events, "--features", features]
    command += ["--batch", BATCH_EVENTS, "--threads", os.cpu_count(), "--learning-rate", LEARNING_RATE]
    command += more or ["--device", "cuda"]
    words = ["facts"] + ["train"] * (1 + EPOCHS)
    done = subprocess.run([str(word) for word in command], input="\n".join(words), stdout=subprocess.PIPE, text=True,
                          check=False)
    if done.returncode != 0:
        sys.exit(f"PyG's TGN exited with status {done.returncode}: see above")
    facts, _, *epochs = [json.loads(line) for line in done.stdout.splitlines()]
    rates = [epoch["events"] / epoch["seconds"] for epoch in epochs]
    figures = {"peer": f"PyG {facts['version']}", "device": facts["device"], "events": epochs[0]["events"],
            "batch_events": BATCH_EVENTS, "row_dimension": int(features), "parameters": facts["parameters"],
            "events_per_second": statistics.median(rates), "events_per_second_of_epochs": rates,
            "loss": epochs[-1]["loss"]}
    with open(out_path, "w", encoding="utf-8") as file:
        json.dump(figures, file, indent=1)


if __name__ == "__main__":
    main(*sys.argv[1:])
