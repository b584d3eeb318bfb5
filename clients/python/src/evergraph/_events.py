"""Events as lines of JSON, cut into bodies that the daemon takes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from operator import length_hint
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ._requests import encode, key_of
from .results import Key
from .state import Limits

OPTIONAL = ("type", "label", "idempotency_key", "op", "node")

WHOLE = frozenset({"src", "dst", "node", "ts"})
"""Members that are integers where they are numbers. pandas makes floats of a column of integers with a gap."""

EXACT_MAX = 2**53
"""Floats of this size and above stand for several integers."""

SLICE_ROWS = 10_000
"""Rows of a frame that are held as Python's values at once, and events of an iterable."""


TURN_EVENTS = 500
"""Events that are made to lines without a break."""


@dataclass(frozen=True, slots=True)
class Line:
    """An event as a line, without its end; whether it brings an idempotency key; a node of it."""

    text: bytes
    keyed: bool
    node: Key | None

    def with_key(self, idempotency_key: str) -> Line:
        """The event with this key, of characters that JSON writes as they are."""
        members = self.text[1:-1] + b"," if len(self.text) > 2 else b""
        return Line(b'{%b"idempotency_key":"%b"}' % (members, idempotency_key.encode()), True, self.node)


@dataclass(frozen=True, slots=True)
class Part:
    """Events whose lines any thread may make: the place of the first among all events, and about how many they are."""

    lines: Iterator[Line]
    first: int
    count: int


@dataclass(frozen=True, slots=True)
class Body:
    """Lines of one request: the place of the first among all events, how many they are, whether all bring a key.

    `node` is a key of them that the daemon takes, if there is one.
    """

    text: bytes
    first: int
    count: int
    keyed: bool
    node: Key | None


def parts(
    events: Any = None,
    src: ArrayLike | None = None,
    dst: ArrayLike | None = None,
    t: ArrayLike | None = None,
    msg: ArrayLike | None = None,
) -> Iterator[Part]:
    """Events as lines: mappings, a data frame, an object with `src`, `dst`, `t`, or these as arrays.

    Most are one part. An iterable that is neither a list nor a tuple may depend on the thread that reads it, so it is
    read as parts are asked for.

    Raises:
        TypeError: `events` is none of these, or both were given.
        ValueError: Lengths do not fit, or an event cannot be written as JSON; the message has its place.
    """
    arrays = (src, dst, t, msg)
    if events is None:
        if src is None or dst is None or t is None:
            raise TypeError("give events, or src, dst and t")
        return _one(_of_arrays(src, dst, t, msg), t)
    if any(part is not None for part in arrays):
        raise TypeError("give events, or src, dst, t and msg, not both")
    if isinstance(events, Mapping):
        return _one([events], [events])
    names = column_names(events)
    if names is not None:
        return _one(_of_frame(events, names), events)
    if all(hasattr(events, name) for name in ("src", "dst", "t")):
        return _one(_of_arrays(events.src, events.dst, events.t, getattr(events, "msg", None)), events.t)
    if isinstance(events, list | tuple):
        return _one(events, events)
    if isinstance(events, Iterable) and not isinstance(events, str | bytes):
        return _in_slices(events)
    raise TypeError(f"{type(events).__name__} holds no events: give a list of mappings, a data frame or arrays")


def _one(events: Iterable[Mapping[str, Any]], counted: object) -> Iterator[Part]:
    yield Part(_of_mappings(events, 0), 0, length_hint(counted))


def _in_slices(events: Iterable[Mapping[str, Any]]) -> Iterator[Part]:
    reader, first = iter(events), 0
    while read := list(islice(reader, SLICE_ROWS)):
        yield Part(_of_mappings(read, first), first, len(read))
        first += len(read)


def _of_mappings(events: Iterable[Mapping[str, Any]], first: int) -> Iterator[Line]:
    for place, event in enumerate(events, first):
        if not isinstance(event, Mapping):
            raise TypeError(f"event {place} is of type {type(event).__name__}, not a mapping such as a dict")
        try:
            members = event if type(event) is dict else dict(event)
            if "idempotency_key" in members and members["idempotency_key"] is None:  # the push may give one
                members = {name: value for name, value in members.items() if name != "idempotency_key"}
            text = encode(members)
        except (TypeError, ValueError) as error:
            raise ValueError(f"event {place} cannot be written as JSON: {error}") from error
        node = event.get("src", event.get("node"))
        try:
            key = None if node is None else key_of(node)
        except (TypeError, ValueError):  # the daemon rejects such an event, and says why
            key = None
        yield Line(text, event.get("idempotency_key") is not None, key)


def event_times(t: ArrayLike) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Event times as int64.

    Raises:
        ValueError: They are no integers.
    """
    times = np.asarray(t)
    if times.ndim != 1:
        raise ValueError(f"t has the shape {times.shape}; give one time for each event, shape (n,)")
    if times.dtype.kind in "iu":
        return times.astype(np.int64)
    whole = times.dtype.kind == "f" and bool(np.isfinite(times).all()) and bool((times == np.floor(times)).all())
    if not whole:
        raise ValueError(f"t ({times.dtype}) must be integers in the unit of the stream; convert them, as to seconds")
    return times.astype(np.int64)


def feature_rows(msg: ArrayLike, count: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Feature rows as float32 of shape (count, f).

    Raises:
        ValueError: The shape is another one, or a feature is not finite.
    """
    rows = np.asarray(msg, dtype=np.float32)
    rows = rows[:, None] if rows.ndim == 1 else rows
    if rows.ndim != 2 or len(rows) != count:
        raise ValueError(f"msg has the shape {rows.shape}; give ({count}, number of features)")
    if not np.isfinite(rows).all():
        place = int(np.argmin(np.isfinite(rows).all(axis=1)))
        raise ValueError(f"the features of event {place} are not finite")
    return rows


def node_keys(name: str, keys: ArrayLike, count: int | None = None) -> list[Any]:
    """Node keys of an array or a sequence as a list, and no deeper than that; one key goes with all `count` events.

    Raises:
        TypeError: They are bytes, or one key where a sequence is needed.
        ValueError: They have more than one dimension.
    """
    if isinstance(keys, bytes | bytearray):
        raise TypeError(f"{name} is of type {type(keys).__name__}; decode it, as a node key is a string or an integer")
    if isinstance(keys, str | int) or getattr(keys, "ndim", 1) == 0:
        if count is None:
            raise TypeError(f"{name} is one node key; give a sequence of them")
        return [key_of(keys)] * count
    values: list[Any] = keys.tolist() if hasattr(keys, "tolist") else list(keys)  # type: ignore[arg-type]
    if values and isinstance(values[0], list | tuple):
        raise ValueError(f"{name} has more than one dimension; give one node key for each event, shape (n,)")
    return values


def _of_arrays(src: ArrayLike, dst: ArrayLike, t: ArrayLike, msg: ArrayLike | None) -> Iterator[Mapping[str, Any]]:
    times = event_times(t)
    sources, destinations = node_keys("src", src, len(times)), node_keys("dst", dst, len(times))
    if not len(sources) == len(destinations) == len(times):
        raise ValueError(f"src, dst and t are of lengths {len(sources)}, {len(destinations)} and {len(times)}")
    features = None if msg is None else feature_rows(msg, len(times))
    for place, (one, other, time) in enumerate(zip(sources, destinations, times.tolist(), strict=True)):
        event = {"src": one, "dst": other, "ts": time}
        if features is not None and features.shape[1]:
            event["features"] = features[place].tolist()
        yield event


def column_names(frame: Any) -> list[str] | None:
    """Names of the columns of a frame of pandas, polars or pyarrow; `None` if it is none."""
    names = getattr(frame, "column_names", None)
    if names is None and hasattr(frame, "__getitem__"):
        names = getattr(frame, "columns", None)
    return None if names is None else [str(name) for name in names]


def _column(frame: Any, name: str) -> list[Any]:
    values = frame.column(name).to_pylist() if hasattr(frame, "column_names") else frame[name].to_list()
    return list(values)


def _of_frame(frame: Any, names: Sequence[str]) -> Iterator[Mapping[str, Any]]:
    time = "ts" if "ts" in names else "t"
    missing = [name for name in ("src", "dst", time) if name not in names]
    if missing and not ("op" in names and "node" in names):
        raise ValueError(f"the frame has no column {', '.join(missing)}; it has {', '.join(names)}")
    count = sum(1 for place in range(len(names)) if f"f{place}" in names)
    numbered = [f"f{place}" for place in range(count)]
    if any(name not in names for name in numbered):
        raise ValueError("columns of features are f0, f1, … without a gap")
    kept = {name: name for name in ("src", "dst", *OPTIONAL) if name in names}
    kept |= {"ts": time} if time in names else {}
    lists = next((name for name in ("features", "msg") if name in names), None)
    kept |= {} if lists is None else {"features": lists}
    for start in range(0, len(frame), SLICE_ROWS):
        yield from _of_slice(_rows(frame, start), start, kept, numbered)


def _rows(frame: Any, start: int) -> Any:
    """`SLICE_ROWS` rows of a frame."""
    return frame.iloc[start : start + SLICE_ROWS] if hasattr(frame, "iloc") else frame.slice(start, SLICE_ROWS)


def _of_slice(frame: Any, start: int, kept: Mapping[str, str], numbered: Sequence[str]) -> Iterator[Mapping[str, Any]]:
    columns = {member: _column(frame, name) for member, name in kept.items()}
    for name in columns.keys() & WHOLE:
        columns[name] = [_whole(value, name, start + place) for place, value in enumerate(columns[name])]
    features = list(zip(*(_column(frame, name) for name in numbered), strict=True)) if numbered else None
    for place in range(len(frame)):
        event = {name: values[place] for name, values in columns.items() if not is_missing(values[place])}
        row = None if features is None else _row_of(features[place], start + place)
        if row is not None:
            event["features"] = row
        yield event


def _whole(value: Any, name: str, place: int) -> Any:
    """A whole number as an integer; the daemon refuses other floats, and says why."""
    if not isinstance(value, float) or not value.is_integer():
        return value
    if abs(value) >= EXACT_MAX:
        raise ValueError(f"{name} of event {place} is the float {value:.0f}, which may have been rounded; use integers")
    return int(value)


def _row_of(features: Sequence[Any], place: int) -> Sequence[Any] | None:
    """Features of an event; `None` if all are missing."""
    missing = [number for number, value in enumerate(features) if is_missing(value)]
    if missing and len(missing) < len(features):
        raise ValueError(f"the feature f{missing[0]} of event {place} is missing; give all of an event's, or none")
    return None if missing else features


def is_missing(value: object) -> bool:
    """Whether a value of a frame stands for none: `None`, NaN, or pandas' NA and NaT."""
    if value is None or type(value).__name__ in {"NAType", "NaTType"}:
        return True
    return isinstance(value, float) and value != value


def bodies(events: Iterable[Line], limits: Limits, first: int) -> Iterator[Body | None]:
    """Lines joined to bodies within the limits. An event that exceeds them alone gets a body of its own.

    `first` is the place of the first event. In between comes `None`, so that others can have a turn before it goes on.
    """
    held: list[Line] = []
    size = 0
    for line in events:
        length = len(line.text) + 1
        if held and (len(held) >= limits.batch_items_max or size + length > limits.body_bytes_max):
            yield _body(held, first, limits)
            first, held, size = first + len(held), [], 0
        held.append(line)
        size += length
        if len(held) % TURN_EVENTS == 0:
            yield None
    if held:
        yield _body(held, first, limits)


def _body(held: Sequence[Line], first: int, limits: Limits) -> Body:
    node = next((line.node for line in held if _is_allowed(line.node, limits)), None)
    text = b"\n".join([line.text for line in held])
    return Body(text, first, len(held), all(line.keyed for line in held), node)


def _is_allowed(key: Key | None, limits: Limits) -> bool:
    """Whether the daemon takes a node key."""
    if key is None or isinstance(key, int):
        return key is not None and -(2**63) <= key < 2**63
    try:
        return 0 < len(key.encode()) <= limits.text_bytes_max
    except UnicodeEncodeError:  # half of a pair of UTF-16
        return False
