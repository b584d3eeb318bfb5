"""Torch's times of what gpu-check.sh timed, the table of both, and one JSON file with facts about the machine.

Each figure of ours is a line of JSON: op, source (card or host), row_bytes, rows (of the table), count (of the list),
seconds (the median of one call). The same rows are gathered by torch: on the card by index_select; from the host by
index_select on the processor into pinned memory and a copy from there, which is what a training loop without zero-copy
does. Torch is left out, and said so, where it is not installed or has no CUDA.
"""

import argparse
import json
import platform
import statistics
import subprocess
import sys


def read_lines(path):
    with open(path, encoding="utf-8") as lines:
        return [json.loads(line) for line in lines if line.strip()]


def smi(field):
    command = ["nvidia-smi", f"--query-gpu={field}", "--format=csv,noheader", "--id=0"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def processor():
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            return next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()


def machine(torch):
    fields = ["name", "driver_version", "memory.total", "pcie.link.gen.current", "pcie.link.width.current",
              "pcie.link.gen.max", "pcie.link.width.max", "clocks.sm", "clocks.max.sm", "power.limit"]
    return {"card": {field: smi(field) for field in fields}, "cpu": processor(),
            "kernel": platform.release(), "torch": torch.__version__ if torch else None}


def load_torch():
    try:
        import torch  # pylint: disable=import-outside-toplevel
    except ImportError:
        return None, "torch is not installed"
    if not torch.cuda.is_available():
        return None, "torch sees no card"
    return torch, None


def timed(torch, call, repeats=7):
    """Median seconds of one call, as many in a row as take some milliseconds."""
    for _ in range(3):
        call()
    torch.cuda.synchronize()
    times = []
    for _ in range(repeats):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        calls = 20
        begin.record()
        for _ in range(calls):
            call()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) / 1000 / calls)
    return statistics.median(times)


def torch_seconds(torch, figure):
    """What torch takes for the same question, or None where its types do not fit."""
    width = figure["row_bytes"]
    if width % 4 != 0:
        return None
    rows, count = figure["rows"], figure["count"]
    generator = torch.Generator().manual_seed(1)
    index = torch.randint(rows, (count,), generator=generator)
    on_host = figure["source"] == "host"
    table = torch.zeros((rows, width // 4), dtype=torch.float32, device="cpu" if on_host else "cuda")
    if not on_host:
        index = index.cuda()
        to = torch.empty((count, width // 4), dtype=torch.float32, device="cuda")
        return timed(torch, lambda: torch.index_select(table, 0, index, out=to))
    table.uniform_(generator=generator)
    staging = torch.empty((count, width // 4), dtype=torch.float32, pin_memory=True)
    to = torch.empty((count, width // 4), dtype=torch.float32, device="cuda")

    def call():
        torch.index_select(table, 0, index, out=staging)
        to.copy_(staging, non_blocking=True)
        # The staging memory is used again by the next call.
        torch.cuda.current_stream().synchronize()

    return timed(torch, call)


def table(figures, note):
    rows = [f"{'op':<8} {'from':<5} {'row B':>6} {'table':>10} {'rows':>9} {'µs':>10} {'GB/s':>8} "
            f"{'torch µs':>10} {'ratio':>7}"]
    for figure in figures:
        ours, torch = figure["seconds"], figure.get("torch_seconds")
        rate = figure["row_bytes"] * figure["count"] / ours / 1e9
        peer = f"{torch * 1e6:>10.1f} {torch / ours:>6.2f}x" if torch else f"{'-':>10} {'-':>7}"
        rows.append(f"{figure['op']:<8} {figure['source']:<5} {figure['row_bytes']:>6} {figure['rows']:>10} "
                    f"{figure['count']:>9} {ours * 1e6:>10.1f} {rate:>8.1f} {peer}")
    if note:
        rows.append(f"no column of torch: {note}")
    return "\n".join(rows)


def main():
    arguments = argparse.ArgumentParser(description=__doc__)
    for name in ["figures", "steps", "check", "version", "json"]:
        arguments.add_argument(f"--{name}", required=True)
    arguments = arguments.parse_args()
    figures = read_lines(arguments.figures)
    torch, note = load_torch()
    if torch:
        for figure in figures:
            figure["torch_seconds"] = torch_seconds(torch, figure)
            torch.cuda.empty_cache()
    print(table(figures, note))
    with open(arguments.check, encoding="utf-8") as text:
        check = [line for line in text.read().splitlines() if line.startswith(("ok    device", "ok    cuda", "FAULT"))]
    result = {"version": arguments.version, "machine": machine(torch), "check": check,
              "steps": read_lines(arguments.steps), "torch_note": note, "rows": figures}
    with open(arguments.json, "w", encoding="utf-8") as file:
        json.dump(result, file, indent=1)
        file.write("\n")
    if not figures:
        print("no figures: the step `figures` failed", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
