"""Targets on a GPU, and whether a document of results meets them: met, missed, or not measured, with the figure. A
figure that is not in the document is never invented; where a target is about many points, the worst counts. Standard
library only.
"""

import re
import statistics
import traceback

MET, MISSED, UNKNOWN = "met", "missed", "not measured"

PARITY_STEP = "tests"
RECENT_RATE, UNIFORM_RATE = 20_000, 5_000
# Rows of at least so many bytes.
WIDE_HOST_ROW, WIDE_DEVICE_ROW = 512, 256
ZERO_COPY_SHARE, DEVICE_SHARE = 0.80, 0.70
CALL_ROWS, CALL_SECONDS = 1_000, 40e-6
LESS_TIME = 0.47
TRAIN_RATE, TRAIN_RATIO = 500_000, 10
# A daemon, and a trainer that starts over when events arrive.
DAEMON_RATE, SOONER, BATCH_EVENTS = 200_000, 21.1, 600
# Rounding differs between devices, and with it which way training goes.
PRECISION_GAP = 0.01
# Runs of TGN that are judged: features of an event, and their name.
TRAININGS = ((0, "no features"), (172, "172 features"))
# What comes of figures that are missing or of another form where they are read.
ODD = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)


def verdicts(document):
    """All targets, in the order in which they are asked for."""
    parts = (parity, samples, rows, training, continual, accuracy)
    return [each for part in parts for each in guarded(part, document)]


def guarded(part, document):
    """Verdicts of a part. From an odd figure on they are not measured, and the document says why."""
    found = []
    try:
        for each in part(document):
            found.append(each)
    except ODD:
        note_fault(document)
        found += list(part({}))[len(found):]
    return found


def note_fault(document):
    document["fault"] = document.get("fault", "") + traceback.format_exc()


def verdict(what, target, holds, measured):
    """`holds` is none where nothing was measured."""
    said = {None: UNKNOWN, True: MET, False: MISSED}[holds]
    return {"what": what, "target": target, "measured": measured if holds is not None else None, "verdict": said}


def missing(what, target):
    return verdict(what, target, None, None)


def parity(document):
    what, target = "kernels agree with the CPU", "every parity test passes"
    ran = [step for step in document.get("steps", []) if step["step"] == PARITY_STEP and "ok" in step]
    if not ran:
        yield missing(what, target)
        return
    count = tests_passed(ran[-1])
    measured = "all passed" if count is None else f"{count} passed"
    yield verdict(what, target, passes(ran[-1]), measured if ran[-1]["ok"] else "some failed")


def tests_passed(step):
    """How many tests passed in a step, where it has reported that."""
    found = re.search(r" (\d+) passed", step.get("result", ""))
    return int(found[1]) if found else None


def passes(step):
    """Whether a step has ended well. Where no test was run none failed, which shows nothing."""
    return bool(step.get("ok")) and tests_passed(step) != 0


def samples(document):
    for name, key, least in (("recent 1x10", "recent_1x10_batches_per_second", RECENT_RATE),
                             ("uniform 2x10", "uniform_2x10_batches_per_second", UNIFORM_RATE)):
        what, target = f"{name} samples of 600 events, the graph in GPU memory", f"{least:,} batches/s"
        rate = document.get("samples", {}).get(key)
        yield missing(what, target) if rate is None else verdict(what, target, rate >= least, f"{rate:,.0f}")


def points(document, width):
    return [row for row in document.get("rows", {}).get("rows", []) if row["row_bytes"] >= width]


def at(row):
    return f"{row['rows']:,} rows of {row['row_bytes']} B"


def worst(what, target, least, figures):
    """The lowest of figures by point, and that of lists for which the cost of a call counts little."""
    if not figures:
        return missing(what, target)
    low, row = lowest(figures)
    said = f"{low:.0%} at worst, {at(row)}"
    longer = [each for each in figures if each[1]["rows"] >= CALL_ROWS]
    if row["rows"] < CALL_ROWS and longer:
        low_of_longer, row = lowest(longer)
        said += f"; from {CALL_ROWS:,} rows on {low_of_longer:.0%}, {at(row)}"
    return verdict(what, target, low >= least, said)


def lowest(figures):
    return min(figures, key=lambda each: each[0])


def rows(document):
    wide = points(document, WIDE_HOST_ROW)
    yield worst(f"rows of {WIDE_HOST_ROW} B or more read in place over the bus, beside a copy of as many bytes",
                f"{ZERO_COPY_SHARE:.0%} of its speed", ZERO_COPY_SHARE,
                [(row["zero_copy_of_pinned_copy"], row) for row in wide])
    yield call(points(document, 0))
    yield worst(f"the same rows beside a gather by the CPU and a copy, {peers(document)}",
                f"{LESS_TIME:.0%} less time", LESS_TIME, [less_time(document, row) for row in wide])
    yield worst(f"rows of {WIDE_DEVICE_ROW} B or more from GPU memory, beside a copy of as many bytes",
                f"{DEVICE_SHARE:.0%} of its speed", DEVICE_SHARE,
                [(row["device_gather_of_copy"], row) for row in points(document, WIDE_DEVICE_ROW)])


def call(measured):
    """Rows that no copy brings over in the time are left out."""
    what = f"a call of {CALL_ROWS:,} rows in place over the bus, where a copy takes no longer than that"
    target = f"at most {CALL_SECONDS * 1e6:.0f} µs"
    calls = [(row["zero_copy_seconds"]["median"], row) for row in measured
             if row["rows"] == CALL_ROWS and row["pinned_copy_seconds"]["median"] <= CALL_SECONDS]
    if not calls:
        return missing(what, target)
    high, row = max(calls, key=lambda each: each[0])
    return verdict(what, target, high <= CALL_SECONDS, f"{high * 1e6:.1f} µs at worst, {at(row)}")


def torch_row(document, row):
    figures = document.get("torch_rows", {}).get("rows", [])
    return next((each for each in figures if (each["row_bytes"], each["rows"]) == (row["row_bytes"], row["rows"])), None)


def peers(document):
    return "ours or torch's, the faster" if document.get("torch_rows") else "ours: torch was not measured"


def less_time(document, row):
    torch = torch_row(document, row)
    processor = min([row["cpu_gather_and_copy_seconds"]["median"]] + ([torch["host_seconds"]] if torch else []))
    return 1 - row["zero_copy_seconds"]["median"] / processor, row


def training_rate(document, name):
    """Events per second of a run of ours: the median of its epochs but the first, which fills caches and buffers."""
    run = document.get("training", {}).get(name)
    if not run:
        return None
    rates = sorted(run["events"] / epoch["seconds"] for epoch in run["each_epoch"][1:] or run["each_epoch"])
    return (rates[(len(rates) - 1) // 2] + rates[len(rates) // 2]) / 2


def training(document):
    for width, said in TRAININGS:
        ours = training_rate(document, f"tgn-{width}")
        peer = document.get("training", {}).get(f"pyg-{width}")
        # A run whose peer had other events, or that was not on the GPU, shows nothing.
        on_gpu = document.get("training", {}).get(f"tgn-{width}", {}).get("device", "cpu") != "cpu"
        ours = ours if on_gpu else None
        what, target = f"TGN trained, batches of 600, {said}", f"{TRAIN_RATE:,} events/s"
        yield missing(what, target) if ours is None else verdict(what, target, ours >= TRAIN_RATE, f"{ours:,.0f}")
        what, target = f"the same beside PyG's TGN on this GPU, {said}", f"{TRAIN_RATIO} times as fast"
        same = ours is not None and peer and peer["device"] == "cuda"
        if not same or peer["events"] != document["training"][f"tgn-{width}"]["events"]:
            yield missing(what, target)
            continue
        ratio = ours / peer["events_per_second"]
        yield verdict(what, target, ratio >= TRAIN_RATIO, f"{ratio:.1f}, PyG {peer['events_per_second']:,.0f} events/s")


def continual(document):
    runs = document.get("continual", {})
    for width, said in TRAININGS:
        ours, peer = runs.get(f"learn-{width}"), runs.get(f"pyg-continual-{width}")
        # A run on the CPU, in other batches, or in which the daemon did less than is asked for shows nothing.
        asked = {"batch_events": BATCH_EVENTS, "row_dimension": width}
        whole = ours and ours["device"].startswith("cuda") and ours["skipped_events"] == 0
        ours = ours if whole and all(ours[key] == value for key, value in asked.items()) else None
        what = f"events that the daemon ingests, tests and trains TGN on, batches of 600, {said}"
        target = f"{DAEMON_RATE:,} events/s"
        rate = ours and ours["events_per_second"]
        yield verdict(what, target, rate >= DAEMON_RATE, f"{rate:,.0f}") if ours else missing(what, target)
        what = f"new events until the daemon has learned them, beside PyG's TGN retrained on this GPU, {said}"
        target = f"{SOONER} times sooner"
        same = ours and peer and all(peer[key] == ours[key] for key in (*asked, "round_events"))
        # Where a round failed there are figures of history alone.
        if not same or peer["device"] != "cuda" or not ours["each_round"]:
            yield missing(what, target)
            continue
        soon, late = ours["learned_seconds"]["median"], statistics.median(peer["retrained_seconds"])
        yield verdict(what, target, late / soon >= SOONER,
                      f"{late / soon:.0f}: {ours['round_events']:,} events in {soon:.3f} s, PyG {late:.1f} s")


def accuracy(document):
    what, target = "average precision of TGN on the GPU beside the CPU's, one seed", f"within {PRECISION_GAP}"
    gpu, cpu = (document.get(key, {}).get("mean_average_precision") for key in ("eval", "eval_cpu"))
    on_gpu = document.get("eval", {}).get("device", "").startswith("cuda")
    if gpu is None or cpu is None or not on_gpu:
        yield missing(what, target)
        return
    yield verdict(what, target, abs(gpu - cpu) <= PRECISION_GAP, f"{gpu:.4f}, CPU {cpu:.4f}")
