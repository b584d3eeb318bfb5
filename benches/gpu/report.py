"""What `scripts/gpu-check.sh` measured as one JSON document with facts about the machine, and as one table. Standard
library only.

    report.py --parts DIR --events FILE --version V --json OUT.json [--table] [--quick]

DIR has what the steps left: rows.json of `evergraph bench ops --device cuda:0`, samples.json of `bench sample`,
train-*.json of `bench train`, eval*.json of `eval`, those of the peers, fingerprints.json of the kernels that ran, and
steps.jsonl, a line for each start and end of a step. What a step did not leave is not in the document, and is listed as
not measured, with the reason where one is known. `--table` prints the table. After `--quick` runs no target is judged.
"""

import argparse
import datetime
import itertools
import json
import os
import platform
import statistics
import subprocess
import sys

import targets

# Keys of the document, and the file of each.
PARTS = {"rows": "rows.json", "torch_rows": "torch-rows.json", "torch_layers": "torch-layers.json",
         "samples": "samples.json", "torch_samples": "torch-samples.json", "eval": "eval.json",
         "eval_cpu": "eval-cpu.json"}
TRAININGS = ("tgn-0", "tgn-0-ahead", "tgn-0-graph", "tgn-0-direct", "tgn-0-served", "tgn-172", "tgn-172-ahead",
             "tgn-172-graph", "tgn-172-direct", "tgn-172-served", "tgat-0", "graphmixer-0")
PEERS_TRAINING = ("pyg-0", "pyg-172")
DAEMONS, PEERS_CONTINUAL = ("learn-0", "learn-172"), ("pyg-continual-0", "pyg-continual-172")
GPU_FIELDS = ("name", "driver_version", "memory.total", "pcie.link.gen.current", "pcie.link.width.current",
               "pcie.link.gen.max", "pcie.link.width.max", "clocks.sm", "clocks.max.sm", "power.limit")
CHECKED = ("ok    device", "ok    cuda", "FAULT")
# Of a line about a test that was skipped.
LINE_CHARS_MAX = 200


def read(path):
    """A document, or nothing where its step left none or half of one."""
    try:
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def read_lines(path):
    try:
        with open(path, encoding="utf-8") as lines:
            return lines.read().splitlines()
    except OSError:
        return []


def steps_of(lines):
    """Each step that was run as it stood last; a line that was cut short by a kill is left out."""
    steps = {}
    for line in lines:
        try:
            step = json.loads(line)
            steps[step["step"]] = step
        except (ValueError, KeyError, TypeError):
            continue
    return list(steps.values())


def verified(steps, fingerprints, quick):
    """Fingerprints of the kernels that ran by file, if all parity tests passed with them; a quick run has only some."""
    passed = {step["step"] for step in steps if targets.passes(step)}
    return fingerprints.get("files", {}) if {"smoke", "tests"} <= passed and not quick else {}


def gather(folder, quick=False):
    """The document, but for the machine."""
    part = lambda name: read(os.path.join(folder, name))
    document = {key: found for key, name in PARTS.items() if (found := part(name))}
    runs = {name: part(f"train-{name}.json") for name in TRAININGS} | {name: part(f"{name}.json") for name in
                                                                         PEERS_TRAINING}
    document["training"] = {name: run for name, run in runs.items() if run}
    runs = {name: part(f"{name}.json") for name in DAEMONS + PEERS_CONTINUAL}
    document["continual"] = {name: run for name, run in runs.items() if run}
    document["steps"] = steps_of(read_lines(os.path.join(folder, "steps.jsonl")))
    fingerprints = part("fingerprints.json")
    document["verified"] = verified(document["steps"], fingerprints, quick)
    document["architecture"] = fingerprints.get("architecture")
    # Every step that runs tests adds its own.
    document["tests_skipped"] = list(dict.fromkeys(read_lines(os.path.join(folder, "skips.txt"))))
    document["check"] = [line for line in read_lines(os.path.join(folder, "check.log")) if line.startswith(CHECKED)]
    return document


def smi(fields):
    """What the driver reports of the GPU, by field."""
    command = ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader", "--id=0"]
    try:
        line = subprocess.run(command, capture_output=True, text=True, check=True, timeout=20).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        line = ""
    return dict(itertools.zip_longest(fields, line.split(", ")[:len(fields)] if line else []))


def processor():
    names = (line.split(":")[1].strip() for line in read_lines("/proc/cpuinfo") if line.startswith("model name"))
    return next(names, platform.processor())


def machine(folder):
    """Facts about the machine, collected once for all steps."""
    path = os.path.join(folder, "machine.json")
    facts = read(path)
    if not facts:
        facts = {"gpu": smi(GPU_FIELDS), "cpu": processor(), "cores": os.cpu_count(),
                 "kernel": platform.release()}
        with open(path, "w", encoding="utf-8") as file:
            json.dump(facts, file)
    return facts


def beside(ours, seconds, width=9):
    """A peer's microseconds, and how much longer they are."""
    if not seconds:
        return f"{'-':>{width}} {'-':>6}"
    return f"{seconds * 1e6:>{width}.1f} {seconds / ours:>5.2f}x"


def row_table(document):
    rows = document.get("rows", {}).get("rows", [])
    if not rows:
        return ["rows gathered: not measured"]
    lines = ["rows gathered from GPU memory, and in place from host memory over the bus",
             f"{'row B':>6} {'rows':>8} | {'GPU µs':>9} {'GB/s':>7} {'of copy':>8} {'torch µs':>9} {'ratio':>6} | "
             f"{'bus µs':>9} {'GB/s':>7} {'of copy':>8} {'cpu µs':>9} {'ratio':>6} {'torch µs':>9} {'ratio':>6}"]
    for row in rows:
        device, bus = row["device_gather_seconds"]["median"], row["zero_copy_seconds"]["median"]
        torch = targets.torch_row(document, row) or {}
        lines.append(
            f"{row['row_bytes']:>6} {row['rows']:>8} | {device * 1e6:>9.1f} {row['bytes'] / device / 1e9:>7.1f} "
            f"{row['device_gather_of_copy']:>8.0%} {beside(device, torch.get('device_seconds'))} | "
            f"{bus * 1e6:>9.1f} {row['bytes'] / bus / 1e9:>7.1f} {row['zero_copy_of_pinned_copy']:>8.0%} "
            f"{beside(bus, row['cpu_gather_and_copy_seconds']['median'])} {beside(bus, torch.get('host_seconds'))}")
    return lines


def sample_table(document):
    ours = document.get("samples", {})
    if not ours:
        return ["samples: not measured"]
    lines = [f"batches of {ours.get('seeds_per_batch', '?')} seeds per second",
             f"{'sample':<14} {'pages: GPU':>12} {'host':>6} {'batches/s':>10} {'waited for':>11}"]
    for one in ours.get("measurements", []):
        name = f"{one['policy']} {one['layers']}x{one['fanout']}"
        lines.append(f"{name:<14} {one['pages'][0]:>12} {one['pages'][1]:>6} "
                     f"{one['batches_per_second']['median']:>10.0f} {one['waited_batches_per_second']['median']:>11.0f}")
    torch = document.get("torch_samples")
    if not torch:
        return lines + ["torch's recent 1x10: not measured"]
    ways = ", ".join(f"{way} {rate:,.0f}" for way, rate in torch["ways_batches_per_second"].items())
    rate, best = ours.get("recent_1x10_batches_per_second"), torch["recent_1x10_batches_per_second"]
    ratio = f"; ours is {rate / best:.2f} times as fast" if rate else ""
    return lines + [f"recent 1x10 by {torch['peer']} over a table of all edges: batches/s {ways}{ratio}"]


def gpu_use(use):
    """How steps were launched, how many edge rows were in the cache, and where batches were sampled."""
    rows = use["edge_rows_hit"] + use["edge_rows_missed"]
    kept = f"{use['edge_rows_hit'] / rows:.1%} of {rows:,} edge rows hit the cache" if rows else "no edge rows"
    ahead = f", {use['steps_ahead']:,} recorded ahead" if "steps_ahead" in use else ""
    return (f"{use['graph_steps']:,} steps as graphs ({use['graphs_updated']:,} updated, {use['graphs_built']:,} "
            f"built{ahead}), {use['direct_steps']:,} kernel by kernel, {use['failed_steps']:,} failed; {kept}; "
            f"{use['samples_on_gpu']:,} batches sampled on the GPU, {use['samples_on_cpu']:,} on the CPU")


def training_table(document):
    lines = ["training: events per second, the median of epochs after the first",
             f"{'run':<16} {'device':<7} {'events':>8} {'row':>4} {'events/s':>10} {'loss':>8}  seconds by phase"]
    runs = document.get("training", {})
    for name in TRAININGS:
        run = runs.get(name)
        if not run:
            lines.append(f"{name:<16} not measured")
            continue
        phases = seconds_of(run["phase_seconds"])
        rate = targets.training_rate(document, name)
        lines.append(f"{name:<16} {run.get('device', 'cpu'):<7} {run['events']:>8} {run['row_dimension']:>4} "
                     f"{rate:>10,.0f} {run['loss']:>8.4f}  {phases}")
        if "gpu_use" in run:
            lines.append("                 " + gpu_use(run["gpu_use"]))
            lines.append("                 " + costs(run))
    for name in PEERS_TRAINING:
        run = runs.get(name)
        if not run:
            lines.append(f"{name:<16} not measured: no throughput of PyG's TGN on this GPU, and no ratio to it")
            continue
        lines.append(f"{name:<16} {run['device']:<7} {run['events']:>8} {run['row_dimension']:>4} "
                     f"{run['events_per_second']:>10,.0f} {run['loss']:>8.4f}  {run['peer']}")
    return lines


def costs(run):
    """What a million events took."""
    use, missing = run["gpu_use"], float("nan")
    bus = {kind: use.get(f"bus_bytes_{kind}_per_event", missing) for kind in ("to_gpu", "to_host", "read_in_place")}
    cpu, joules = (run.get(f"{what}_per_million_events") for what in ("cpu_seconds", "gpu_joules"))
    return (f"for a million events: {f'{cpu:.1f} s of the CPU' if cpu else 'CPU time unknown'}, "
            f"{f'{joules:,.0f} J of the GPU' if joules else 'energy of the GPU unknown'}, over the bus {bus['to_gpu']:,.0f} MB "
            f"to the GPU, {bus['to_host']:,.0f} MB to the host and {bus['read_in_place']:,.0f} MB read in place")


def seconds_of(phases):
    return ", ".join(f"{phase} {seconds:.3f}" for phase, seconds in phases.items() if seconds)


def spread_of(seconds):
    return f"{statistics.median(seconds):.3f} s ({min(seconds):.3f} to {max(seconds):.3f})"


def continual_table(document):
    runs = document.get("continual", {})
    lines = ["a daemon that learns a stream, and events that arrive in rounds"]
    for name in DAEMONS:
        run = runs.get(name)
        if not run:
            lines.append(f"{name:<18} not measured")
            continue
        rounds = run["each_round"]
        learned, stored = ([each[f"{what}_seconds"] for each in rounds] for what in ("learned", "acknowledged"))
        lines += [f"{name:<18} {run['events_per_second']:,.0f} events/s of {run['events']:,} in history, on {run['device']}; "
                  f"{run['skipped_events']:,} events without a gradient step, a lag of {run['lag_events_median']:,} events",
                  f"{'':<18} seconds by phase: {seconds_of(run['phase_seconds'])}",
                  f"{'':<18} rounds of {run['round_events']:,}: acknowledged after {spread_of(stored)}, learned after "
                  f"{spread_of(learned)}" if rounds else f"{'':<18} rounds: not measured"]
    for name in PEERS_CONTINUAL:
        run = runs.get(name)
        if not run:
            lines.append(f"{name:<18} not measured")
            continue
        lines.append(f"{name:<18} rounds of {run['round_events']:,} behind {run['events']:,} events, on {run['device']}, "
                     f"{run['peer']}: retrained in {spread_of(run['retrained_seconds'])}, continued in "
                     f"{spread_of(run['continued_seconds'])}")
    return lines


def accuracy_lines(document):
    """Average precision on both devices."""
    lines = ["average precision of TGN, prequential, one seed"]
    for key, said in (("eval", "on the GPU"), ("eval_cpu", "on the CPU")):
        run = document.get(key)
        precision = run and run.get("mean_average_precision")
        lines.append(f"{said:<11}" + (f"{precision:.4f}" if precision is not None else "not measured"))
    return lines


def layer_table(document):
    layers = document.get("rows", {}).get("layers", [])
    if not layers:
        return ["layers: not measured"]
    figures = {(row["id"], row["direction"]): row["ways_seconds"] for row in
            document.get("torch_layers", {}).get("rows", [])}
    lines = ["layers on the GPU, by its clock, calls back to back; torch in each way that it has",
             f"{'layer':<44} {'direction':<9} {'µs':>9} | torch µs, and how much longer"]
    for row in layers:
        ours = row["seconds"]["median"]
        ways = figures.get((row["id"], row["direction"]), {})
        others = ", ".join(f"{way} {seconds * 1e6:.1f} {seconds / ours:.2f}x" for way, seconds in ways.items())
        lines.append(f"{row['id']:<44} {row['direction']:<9} {ours * 1e6:>9.1f} | {others or '-'}")
    return lines


def target_table(document):
    judged = document["targets"]
    if not judged:
        return ["a quick run: no target is judged"]
    wide = max(len(each["what"]) for each in judged)
    aim = max(len(each["target"]) for each in judged)
    lines = ["targets", f"{'':<{wide}}  {'target':<{aim}}  {'':<12}  measured"]
    for each in judged:
        asked = f"{each['what']:<{wide}}  {each['target']:<{aim}}"
        lines.append(f"{asked}  {each['verdict']:<12}  {each['measured'] or '-'}")
    met = sum(each["verdict"] == targets.MET for each in judged)
    unknown = sum(each["verdict"] == targets.UNKNOWN for each in judged)
    return lines + [f"{met} of {len(judged)} met, {len(judged) - met - unknown} missed, {unknown} not measured"]


def step_lines(document):
    """What failed or was left out: the reasons for what is not measured."""
    lines = []
    for step in document["steps"]:
        if "skipped" in step:
            lines.append(f"skipped {step['step']}: {step['skipped']}")
        elif "ok" not in step:
            lines.append(f"interrupted {step['step']}: started {step['started']}, and the run was killed; run it again "
                         "with --resume")
        elif not step["ok"]:
            lines.append(f"FAILED  {step['step']}: {step.get('why') or 'its output is in gpu-check.log'}")
    return lines + [f"skipped {line}"[:LINE_CHARS_MAX] for line in document.get("tests_skipped", [])]


def table(document):
    parts = (row_table, sample_table, layer_table, training_table, continual_table, accuracy_lines, target_table,
             step_lines)
    lines = [guarded(part, document) for part in parts]
    return "\n\n".join("\n".join(part) for part in lines if part)


def guarded(part, document):
    """Lines of a part, or one in place of them where a figure is odd; the document says then where."""
    try:
        return part(document)
    except targets.ODD as error:
        targets.note_fault(document)
        return [f"{part.__name__}: a figure is missing or of another form: {error!r}"]


def main():
    parser = argparse.ArgumentParser(description="One table and one document of what was measured on a GPU.")
    for name in ("parts", "events", "version", "json"):
        parser.add_argument(f"--{name}", required=True)
    for flag in ("table", "quick"):
        parser.add_argument(f"--{flag}", action="store_true")
    arguments = parser.parse_args()
    document = gather(arguments.parts, arguments.quick)
    document["targets"] = [] if arguments.quick else targets.verdicts(document)
    facts = {"version": arguments.version, "measured": datetime.date.today().isoformat(), "quick": arguments.quick,
             "machine": machine(arguments.parts), "events": arguments.events}
    document = facts | document
    if arguments.table:
        print(table(document))
    if "fault" in document:
        print(document["fault"], file=sys.stderr)
    # A kill leaves the document of before, or this one.
    with open(arguments.json + ".tmp", "w", encoding="utf-8") as file:
        json.dump(document, file, indent=1)
        file.write("\n")
    os.replace(arguments.json + ".tmp", arguments.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
