"""The GPU as torch sees it, and its clock: what all peers of this folder share."""

import importlib.util
import json
import os
import statistics
import sys

CANNOT = 3


def torch_on_gpu(any_device=False):
    """Torch and the device. Exits with a reason where there is none; `any_device` accepts the CPU, to try the code."""
    try:
        import torch  # pylint: disable=import-outside-toplevel
    except ImportError:
        cannot("torch is not installed")
    if not any_device and not torch.cuda.is_available():
        cannot("torch sees no GPU")
    return torch, "cuda" if torch.cuda.is_available() else "cpu"


def pyg_command(script, any_device=False):
    """How to run a script that trains a model of PyG. Exits with a reason where that cannot be done."""
    torch_on_gpu(any_device)
    for package in ("numpy", "torch_geometric"):
        if importlib.util.find_spec(package) is None:
            cannot(f"{package} is not installed, and was not carried along for this Python")
    folder = os.path.dirname(os.path.abspath(__file__))
    beside = os.path.join(os.path.dirname(folder), "learn")
    at = next((each for each in (folder, beside) if os.path.exists(os.path.join(each, script))), folder)
    return [sys.executable, "-B", "-W", "ignore", os.path.join(at, script)]


def cannot(reason):
    """Exits with the status by which `gpu-check.sh` knows a step that cannot run here."""
    print(reason, file=sys.stderr)
    sys.exit(CANNOT)


def write(path, figures):
    """Takes the place of what was written before, as a whole: a kill leaves one or the other."""
    with open(f"{path}.tmp", "w", encoding="utf-8") as file:
        json.dump(figures, file, indent=1)
    os.replace(f"{path}.tmp", path)


class Clock:
    """Seconds of a call by the GPU's clock: `calls` back to back, the median of `repeats`, after a warm-up."""

    def __init__(self, torch, device):
        self.torch, self.device = torch, device

    def timed(self, call, calls=20, repeats=7):
        for _ in range(3):
            call()
        return statistics.median(self.once(call, calls) for _ in range(repeats))

    def once(self, call, calls):
        if self.device == "cpu":
            for _ in range(calls):
                call()
            return float("nan")
        self.torch.cuda.synchronize()
        begin, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(calls):
            call()
        end.record()
        self.torch.cuda.synchronize()
        return begin.elapsed_time(end) / 1000 / calls
