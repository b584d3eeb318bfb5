"""The last step of gpu-check.sh: torch's times of the rows that were timed, one table of all figures, and one JSON file
with facts about the machine. Also makes up a stream of events where none was carried.

    gpu_figures.py stream --to FILE
    gpu_figures.py report --rows FILE --samples FILE --samples-cpu FILE … --json FILE

Rows are those of `evergraph bench ops --device cuda`, samples those of `evergraph bench sample`, on the card and on the
processor. Torch gathers as many rows of as many bytes: on the card by index_select; from the host by index_select on the
processor into pinned memory and a copy from there, which is what a training loop without zero-copy does. Torch is left
out, and said so, where it is not installed or has no CUDA.
"""

import argparse
import json
import os
import platform
import random
import statistics
import subprocess
import sys


def read(path):
    """A document, or nothing where its step failed."""
    if not os.path.exists(path):
        return {}
    with open(path, encoding="utf-8") as file:
        return json.load(file)


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
    return {"card": {field: smi(field) for field in fields}, "cpu": processor(), "cores": os.cpu_count(),
            "kernel": platform.release(), "torch": torch.__version__ if torch else None}


def load_torch():
    try:
        import torch  # pylint: disable=import-outside-toplevel
    except ImportError:
        return None, "torch is not installed"
    if not torch.cuda.is_available():
        return None, "torch sees no card"
    return torch, None


def timed(torch, call, repeats=7, calls=20):
    """Median seconds of one call, by the card's clock."""
    for _ in range(3):
        call()
    torch.cuda.synchronize()
    times = []
    for _ in range(repeats):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        for _ in range(calls):
            call()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) / 1000 / calls)
    return statistics.median(times)


class TorchRows:
    """Torch's times of gathering rows; tables are kept from width to width."""

    def __init__(self, torch):
        self.torch, self.key, self.tables = torch, None, None

    def seconds(self, row):
        """On the card, and from the host by the processor and a copy."""
        torch, width, rows, count = self.torch, row["row_bytes"], row["table_rows"], row["rows"]
        if self.key != (width, rows):
            self.tables = None
            torch.cuda.empty_cache()
            host = torch.zeros((rows, width // 4), dtype=torch.float32).uniform_()
            self.key, self.tables = (width, rows), (host, host.cuda())
        host, card = self.tables
        index = torch.randint(rows, (count,), generator=torch.Generator().manual_seed(1))
        on_card = index.cuda()
        to = torch.empty((count, width // 4), dtype=torch.float32, device="cuda")
        staging = torch.empty((count, width // 4), dtype=torch.float32, pin_memory=True)

        def from_host():
            torch.index_select(host, 0, index, out=staging)
            to.copy_(staging, non_blocking=True)
            # The staging memory is used again by the next call.
            torch.cuda.current_stream().synchronize()

        calls = 20 if count * width < 1 << 26 else 3
        return (timed(torch, lambda: torch.index_select(card, 0, on_card, out=to)),
                timed(torch, from_host, calls=calls))


def row_table(rows, note):
    head = (f"{'row B':>6} {'rows':>8} | {'card µs':>9} {'GB/s':>7} {'of copy':>8} {'torch µs':>9} {'ratio':>6} | "
            f"{'bus µs':>9} {'GB/s':>7} {'of copy':>8} {'cpu µs':>9} {'ratio':>6} {'torch µs':>9} {'ratio':>6}")
    lines = ["rows gathered from the card's memory, and from the host's over the bus", head]

    def peer(ours, seconds):
        return f"{seconds * 1e6:>9.1f} {seconds / ours:>5.2f}x" if seconds else f"{'-':>9} {'-':>6}"

    for row in rows:
        card, bus = row["device_gather_seconds"]["median"], row["zero_copy_seconds"]["median"]
        lines.append(
            f"{row['row_bytes']:>6} {row['rows']:>8} | {card * 1e6:>9.1f} {row['bytes'] / card / 1e9:>7.1f} "
            f"{row['device_gather_of_copy']:>8.0%} {peer(card, row.get('torch_device_seconds'))} | "
            f"{bus * 1e6:>9.1f} {row['bytes'] / bus / 1e9:>7.1f} {row['zero_copy_of_pinned_copy']:>8.0%} "
            f"{peer(bus, row['cpu_gather_and_copy_seconds']['median'])} {peer(bus, row.get('torch_host_seconds'))}")
    if note:
        lines.append(f"no column of torch: {note}")
    return lines


def sample_table(card, processor_figures, events):
    lines = [f"batches of {card.get('seeds_per_batch', '?')} seeds per second over {events}; cpu: by all threads",
             f"{'sample':<14} {'pages: card':>12} {'host':>6} {'batches/s':>10} {'waited for':>11} {'cpu':>9} {'ratio':>7}"]
    by_threads = processor_figures.get("by_threads", {})
    for one in card.get("measurements", []):
        name = f"{one['policy']} {one['layers']}x{one['fanout']}"
        rates = by_threads.get(f"{one['policy']}_{one['layers']}x{one['fanout']}_batches_per_second", {})
        cpu = rates[max(rates, key=int)] if rates else None
        rate = one["batches_per_second"]["median"]
        ratio = f"{cpu:>9.0f} {rate / cpu:>6.2f}x" if cpu else f"{'-':>9} {'-':>7}"
        lines.append(f"{name:<14} {one['pages'][0]:>12} {one['pages'][1]:>6} {rate:>10.0f} "
                     f"{one['waited_batches_per_second']['median']:>11.0f} {ratio}")
    return lines


def report(arguments):
    rows, card = read(arguments.rows), read(arguments.samples)
    processor_figures = read(arguments.samples_cpu)
    torch, note = load_torch()
    if torch:
        peer = TorchRows(torch)
        for row in rows.get("rows", []):
            row["torch_device_seconds"], row["torch_host_seconds"] = peer.seconds(row)
    print("\n".join(row_table(rows.get("rows", []), note) + [""] +
                    sample_table(card, processor_figures, arguments.events)))
    with open(arguments.check, encoding="utf-8") as text:
        check = [line for line in text.read().splitlines() if line.startswith(("ok    device", "ok    cuda", "FAULT"))]
    result = {"version": arguments.version, "machine": machine(torch), "check": check,
              "steps": read_lines(arguments.steps), "torch_note": note, "rows": rows, "events": arguments.events,
              "samples": card, "samples_cpu": processor_figures}
    with open(arguments.json, "w", encoding="utf-8") as file:
        json.dump(result, file, indent=1)
        file.write("\n")
    if not rows or not card:
        print("no figures of rows or of samples: see the steps of these names", file=sys.stderr)
        return 1
    return 0


def stream(arguments):
    """Events of two kinds of nodes, a few of which take part in most of them, as in streams of edits."""
    draw = random.Random(1)
    with open(arguments.to, "w", encoding="utf-8") as file:
        file.write("src,dst,ts\n")
        now = 0
        for _ in range(150_000):
            now += draw.randrange(40)
            file.write(f"u{int(8_000 * draw.random() ** 3)},i{int(1_000 * draw.random() ** 3)},{now}\n")
    return 0


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = arguments.add_subparsers(required=True)
    verb = verbs.add_parser("stream")
    verb.add_argument("--to", required=True)
    verb.set_defaults(run=stream)
    verb = verbs.add_parser("report")
    for name in ["rows", "samples", "samples-cpu", "events", "steps", "check", "version", "json"]:
        verb.add_argument(f"--{name}", required=True)
    verb.set_defaults(run=report)
    arguments = arguments.parse_args()
    return arguments.run(arguments)


if __name__ == "__main__":
    sys.exit(main())
