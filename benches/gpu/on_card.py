"""The GPU as torch has it, and its clock: what all peers of this folder share."""

import statistics
import sys

CANNOT = 3


def torch_on_gpu(any_device=False):
    """Torch and the device. Ends with a reason where there is none; a trial of the code takes the CPU."""
    try:
        import torch  # pylint: disable=import-outside-toplevel
    except ImportError:
        cannot("torch is not installed")
    if not any_device and not torch.cuda.is_available():
        cannot("torch sees no GPU")
    return torch, "cuda" if torch.cuda.is_available() else "cpu"


def cannot(reason):
    """Ends with the status that `gpu-check.sh` takes for a step that cannot run here."""
    print(reason, file=sys.stderr)
    sys.exit(CANNOT)


class Clock:
    """Seconds of a call by the GPU's clock: `calls` in a row, the median of `repeats` such rows, after a warm-up."""

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
