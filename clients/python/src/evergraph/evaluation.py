"""Evaluation of a model on a stream of events, by `evergraph eval`."""

from __future__ import annotations

import csv
import json
import math
import os
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ._binary import find_binary
from ._events import column_names, event_times, feature_rows, node_keys
from ._html import page, table
from .errors import EvaluationError

Protocol = Literal["dyglib", "mrr", "node-label", "prequential", "topk"]

Negatives = str | tuple[ArrayLike, ArrayLike | Sequence[ArrayLike]]

HEADLINES = (
    "test_average_precision",
    "test_auc",
    "inductive_average_precision",
    "test_mrr",
    "test_hits_at_10",
    "test_label_auc",
    "mean_average_precision",
    "last15_average_precision",
    "val_average_precision",
    "val_mrr",
    "best_epoch",
    "train_events_per_second",
)


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The figures of one evaluation. Those of different protocols, negatives or batch sizes are not comparable.

    Attributes:
        model: The model.
        protocol: The protocol.
        negatives: Where the negatives of the test part come from: `drawn`, `historical`, `inductive`, or a file.
        batch_size: Events per batch.
        seed: The seed.
        events_count: Number of events.
        nodes_count: Number of nodes.
        figures: All that `evergraph eval` writes, by its names, with units in them; what was not measured is absent.
    """

    model: str
    protocol: str
    negatives: str
    batch_size: int
    seed: int
    events_count: int
    nodes_count: int
    figures: Mapping[str, Any]

    def _figure(self, *names: str) -> float | None:
        found = next((self.figures[name] for name in names if self.figures.get(name) is not None), None)
        return None if found is None else float(found)

    @property
    def average_precision(self) -> float | None:
        """Average precision: of the test part, or under `prequential` over the stream; `None` if not measured."""
        return self._figure("test_average_precision", "mean_average_precision")

    @property
    def auc(self) -> float | None:
        """Area under the ROC curve, of the same; under `node-label` that of the labels."""
        return self._figure("test_auc", "mean_auc", "test_label_auc")

    @property
    def mrr(self) -> float | None:
        """Mean reciprocal rank of the test part; `None` if not measured."""
        return self._figure("test_mrr")

    @property
    def train_events_per_second(self) -> float | None:
        """Training speed, events per second; `None` for baselines."""
        return self._figure("train_events_per_second")

    def _repr_html_(self) -> str:
        rows = [(name, self.figures[name]) for name in HEADLINES if name in self.figures]
        title = f"{self.model} under {self.protocol}, {self.events_count} events of {self.nodes_count} nodes"
        below = f"negatives {self.negatives}, batches of {self.batch_size}, seed {self.seed}"
        return page(title, table(("figure", "value"), rows), below)


def evaluate(
    src: Any,
    dst: ArrayLike | None = None,
    t: ArrayLike | None = None,
    msg: ArrayLike | None = None,
    *,
    label: ArrayLike | None = None,
    model: str = "tgn",
    protocol: Protocol = "dyglib",
    negatives: Negatives = "random",
    val_negatives: Negatives = "random",
    masked: ArrayLike | None = None,
    candidates: int | None = None,
    epochs: int = 3,
    seed: int = 0,
    batch_events: int = 200,
    binary: str | os.PathLike[str] | None = None,
    timeout: float | None = None,
    **flags: object,
) -> Evaluation:
    """Trains and measures a model on a stream, in a process of its own.

    Args:
        src: Sources, shape (n,); or an object with `src`, `dst`, `t` and `msg`, as PyG's `TemporalData`.
        dst: Destinations, shape (n,).
        t: Event times, integers, shape (n,), in seconds unless the flag `time_unit` says otherwise.
        msg: Features of the events, float32 of shape (n, f).
        label: Labels of the events, shape (n,), for the protocol `node-label`; NaN where an event has none.
        model: `tgn`, `jodie`, `graphmixer`, `tgat`, `graphsage`, `gat`, `dysat`, `walk`, `edgebank` or `poptrack`.
        protocol: `dyglib`, `mrr`, `topk`, `node-label` or `prequential`; docs/models.md explains them.
        negatives: Of the test part: `random`, `historical`, `inductive`, or a pair of arrays of sources and
            destinations: one for each test event (dyglib), or equally many for each, event after event (mrr). Or, for
            mrr, the sources of the test events, shape (n,), and the destinations that each is ranked among: n sequences
            of any lengths, or an array of shape (n, k).
        val_negatives: Those of the validation part.
        masked: Nodes whose training edges are left out (dyglib); drawn by default.
        candidates: Drawn candidates per event (mrr, and topk in validation).
        epochs: Passes over the training part.
        seed: Seed of everything random.
        batch_events: Events per batch.
        binary: The program, as for `run`.
        timeout: Longest time, seconds; unbounded by default.
        flags: Further flags of `evergraph eval`, with `_` for `-`: `learning_rate=1e-4`, `threads=2`. `True` gives a
            flag without a value, as `walks=True`; `False` and `None` leave it out.

    Returns:
        The figures.

    Raises:
        EvaluationError: The command failed, for example because a flag does not fit; the message has its words.
        ValueError: Arrays do not fit each other, or times are no integers.
        FileNotFoundError: The program was not found.
        subprocess.TimeoutExpired: It took longer than `timeout`.
    """
    if dst is None and t is None:
        src, dst, t, found, labels = _of_object(src)
        msg, label = (found if msg is None else msg), (labels if label is None else label)
    if dst is None or t is None:
        raise TypeError("give src, dst and t, or an object that has them")
    with tempfile.TemporaryDirectory(prefix="evergraph-eval-") as name:
        folder = Path(name)
        _write_events(folder / "events.csv", src, dst, t, msg, label)
        command = [find_binary(binary), "eval", "--events", str(folder / "events.csv"), "--json", "-"]
        command += ["--model", model, "--protocol", protocol, "--epochs", str(epochs), "--seed", str(seed)]
        command += ["--batch-events", str(batch_events)]
        for flag, drawn in (("negatives", negatives), ("val-negatives", val_negatives)):
            command += [f"--{flag}", _negatives(folder / f"{flag}.csv", drawn)]
        if masked is not None:
            rows = ((key,) for key in node_keys("masked", masked, 1))
            command += ["--masked", _write(folder / "masked.csv", ["node"], rows)]
        if candidates is not None:
            command += ["--candidates", str(candidates)]
        command += _further(flags)
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
    if done.returncode != 0:
        raise EvaluationError(f"evergraph eval ended with {done.returncode}:\n{done.stderr.strip()[-2000:]}")
    return _evaluation(done.stdout)


def _of_object(events: Any) -> tuple[Any, Any, Any, Any, Any]:
    names = column_names(events)
    if names is not None:
        raise TypeError("give the columns of a frame one by one: src, dst, t, msg")
    if not all(hasattr(events, name) for name in ("src", "dst", "t")):
        raise TypeError(f"{type(events).__name__} has no src, dst and t; give them as arrays")
    label = getattr(events, "label", None)
    return events.src, events.dst, events.t, getattr(events, "msg", None), label


def _write(path: Path, names: Sequence[str], rows: Any) -> str:
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(names)
        writer.writerows(rows)
    return str(path)


def _further(flags: Mapping[str, object]) -> list[str]:
    given = {f"--{flag.replace('_', '-')}": value for flag, value in flags.items()}
    kept = {flag: value for flag, value in given.items() if value is not None and value is not False}
    return [flag if value is True else f"{flag}={value}" for flag, value in kept.items()]


def _negatives(path: Path, negatives: Negatives) -> str:
    if isinstance(negatives, str):
        return negatives
    sources = node_keys("negatives", negatives[0])
    dst: Any = negatives[1]
    if _is_nested(dst):
        return _write(path, ["event", "neg_src", "neg_dst"], _sets(sources, list(dst)))
    destinations = node_keys("negatives", dst)
    if len(sources) != len(destinations):
        raise ValueError(
            f"negatives are {len(sources)} sources and {len(destinations)} destinations; give as many of both"
        )
    return _write(path, ["neg_src", "neg_dst"], zip(sources, destinations, strict=True))


def _is_nested(keys: Any) -> bool:
    """Whether these are sequences of node keys, in place of node keys."""
    first = next(iter(keys), None) if hasattr(keys, "__iter__") else None
    return not isinstance(first, str | bytes) and getattr(first, "ndim", 1) > 0 and hasattr(first, "__len__")


def _sets(sources: Sequence[Any], sets: Sequence[ArrayLike]) -> Iterator[tuple[Any, ...]]:
    """A row for each destination of each set, with the number of the event from 1 and its source."""
    if len(sources) != len(sets):
        raise ValueError(
            f"negatives are {len(sources)} sources and {len(sets)} sets of destinations; give one for each"
        )
    for number, (source, keys) in enumerate(zip(sources, sets, strict=True), 1):
        destinations = node_keys("negatives", keys)
        if not destinations:
            raise ValueError(f"set {number - 1} of the negatives is empty; give each event at least one destination")
        yield from ((number, source, destination) for destination in destinations)


def _write_events(
    path: Path, src: ArrayLike, dst: ArrayLike, t: ArrayLike, msg: ArrayLike | None, label: ArrayLike | None
) -> None:
    times = event_times(t)
    sources, destinations = node_keys("src", src, len(times)), node_keys("dst", dst, len(times))
    lengths = [len(sources), len(destinations), len(times)]
    if len(set(lengths)) != 1:
        raise ValueError(f"src, dst and t are of lengths {lengths[0]}, {lengths[1]} and {lengths[2]}")
    count = lengths[0]
    names, columns = ["src", "dst", "ts"], [sources, destinations, times.tolist()]
    if label is not None:
        labels: NDArray[np.float64] = np.asarray(label, np.float64).reshape(-1)
        if len(labels) != count:
            raise ValueError(f"label is of length {len(labels)}, and there are {count} events")
        values = ("" if math.isnan(value) else value for value in labels.tolist())
        names, columns = [*names, "label"], [*columns, list(values)]
    # NumPy writes a float of 32 bits as the shortest text that reads as the same float.
    rows = np.empty((count, 0), np.float32) if msg is None else feature_rows(msg, count)
    names += [f"f{place}" for place in range(rows.shape[1])]
    _write(path, names, ((*event, *row) for event, row in zip(zip(*columns, strict=True), rows, strict=True)))


def _evaluation(text: str) -> Evaluation:
    try:
        figures = json.loads(text)
        words = [str(figures[name]) for name in ("model", "protocol", "negatives")]
        counts = [int(figures[name]) for name in ("batch_size", "seed", "events_count", "nodes_count")]
    except (ValueError, LookupError, TypeError) as error:
        raise EvaluationError(f"evergraph eval wrote no figures ({error}): {text[:200]!r}") from error
    return Evaluation(words[0], words[1], words[2], counts[0], counts[1], counts[2], counts[3], figures)
