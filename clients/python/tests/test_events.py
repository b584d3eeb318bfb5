"""Events from mappings, arrays and frames, as the lines that are pushed."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas
import polars
import pyarrow
import pytest

from evergraph import _events
from evergraph._events import bodies, parts
from evergraph._operations import keys_of
from evergraph.state import Limits


def pushed(events: Any = None, **arrays: Any) -> list[dict[str, Any]]:
    return [json.loads(line.text) for part in parts(events, **arrays) for line in part.lines]


PLAIN = [{"src": "a", "dst": 7, "ts": 1}, {"src": "b", "dst": 8, "ts": 2}]
FEATURES = [{**event, "features": [place, 0.5]} for place, event in enumerate(PLAIN)]
COLUMNS: dict[str, list[Any]] = {"src": ["a", "b"], "dst": [7, 8], "ts": [1, 2]}


def test_mappings_go_as_they_are() -> None:
    assert pushed(PLAIN) == PLAIN
    assert pushed(iter(PLAIN)) == PLAIN
    assert pushed(PLAIN[0]) == PLAIN[:1]
    numpy = {"src": np.str_("a"), "dst": np.int64(7), "ts": np.int32(1), "features": np.array([1, 0.5], np.float32)}
    assert pushed([numpy]) == [{"src": "a", "dst": 7, "ts": 1, "features": [1, 0.5]}]
    deletion = {"op": "delete", "node": "é"}
    assert pushed([deletion]) == [deletion]


def test_arrays_are_events() -> None:
    src, dst, t = ["a", "b"], np.array([7, 8]), np.array([1.0, 2.0])
    assert pushed(src=src, dst=dst, t=t) == PLAIN
    assert pushed(src=np.array(src), dst=dst, t=t, msg=np.array([[0, 0.5], [1, 0.5]])) == FEATURES
    assert pushed(src=src, dst=dst, t=t, msg=np.empty((2, 0))) == PLAIN
    data = SimpleNamespace(src=src, dst=dst, t=t, msg=np.array([[0, 0.5], [1, 0.5]]))
    assert pushed(data) == FEATURES
    del data.msg
    assert pushed(data) == PLAIN


def test_one_key_goes_with_all_events() -> None:
    expected = [{"src": "user-1", "dst": place, "ts": place} for place in range(3)]
    for one in ("user-1", np.array("user-1"), np.str_("user-1")):
        assert pushed(src=one, dst=np.arange(3), t=np.arange(3)) == expected
    with pytest.raises(TypeError, match="src is of type bytes"):
        pushed(src=b"user-1", dst=np.arange(6), t=np.arange(6))


def test_keys_of_arrow_are_keys() -> None:
    nodes = pyarrow.table({"node": ["a", "b"]})["node"]
    assert keys_of(nodes, "nodes") == ["a", "b"]
    assert keys_of(nodes[0], "nodes") == ["a"]
    assert pushed(src=nodes, dst=[7, 8], t=[1, 2]) == PLAIN
    with pytest.raises(TypeError, match="no node key"):
        keys_of(b"ab", "nodes")


@pytest.mark.parametrize("frame", [pandas.DataFrame, polars.DataFrame, pyarrow.table])
def test_frames_are_events(frame: Any) -> None:
    assert pushed(frame(COLUMNS)) == PLAIN
    assert pushed(frame({"dst": [7, 8], "t": [1, 2], "other": [0, 0], "src": ["a", "b"]})) == PLAIN
    assert pushed(frame({**COLUMNS, "f0": [0, 1], "f1": [0.5, 0.5]})) == FEATURES
    assert pushed(frame({**COLUMNS, "msg": [[0.0, 0.5], [1.0, 0.5]]})) == FEATURES
    assert pushed(frame({**COLUMNS, "type": ["x", None], "label": [None, 1.0]})) == [
        {**PLAIN[0], "type": "x"},
        {**PLAIN[1], "label": 1.0},
    ]
    assert pushed(frame({**COLUMNS, "f0": [None, 0.5]})) == [PLAIN[0], {**PLAIN[1], "features": [0.5]}]
    with pytest.raises(ValueError, match="no column dst; it has src, ts"):
        pushed(frame({"src": ["a"], "ts": [1]}))
    with pytest.raises(ValueError, match="without a gap"):
        pushed(frame({**COLUMNS, "f0": [1, 1], "f2": [1, 1]}))
    assert pushed(frame({"src": [], "dst": [], "ts": []})) == []


@pytest.mark.parametrize("frame", [pandas.DataFrame, polars.DataFrame, pyarrow.table])
def test_a_feature_that_is_missing_is_no_row_that_is(frame: Any) -> None:
    with pytest.raises(ValueError, match="feature f1 of event 1 is missing"):
        pushed(frame({**COLUMNS, "f0": [1, 2], "f1": [0.5, None]}))


def test_whole_floats_of_a_frame_are_integers() -> None:
    columns = {"src": [1, None, 3], "dst": [None, 8, 9], "ts": [1, 2, None], "label": [1.0, 2.0, 3.0]}
    found = pushed(pandas.DataFrame(columns))
    assert found == [
        {"src": 1, "ts": 1, "label": 1.0},
        {"dst": 8, "ts": 2, "label": 2.0},
        {"src": 3, "dst": 9, "label": 3},
    ]
    assert all(type(event[name]) is int for event in found for name in {"src", "dst", "ts"} & event.keys())
    with pytest.raises(ValueError, match="src of event 1 is the float 9007199254740992"):
        pushed(pandas.DataFrame({"src": [None, 2**53 + 1], "dst": [1, 2], "ts": [1, 2]}))


def test_a_long_frame_is_read_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_events, "SLICE_ROWS", 2)
    columns: dict[str, Any] = {"src": list("abcde"), "dst": [1] * 5, "ts": [1, 2, 3, 4, 5.5]}
    for frame in (pandas.DataFrame(columns, index=[4.0, 3.0, 2.0, 1.0, 0.0]), polars.DataFrame(columns, strict=False)):
        assert [(event["src"], event["ts"]) for event in pushed(frame)] == list(
            zip("abcde", columns["ts"], strict=True)
        )
    with pytest.raises(ValueError, match="feature f1 of event 3"):
        pushed(pandas.DataFrame({**columns, "f0": [1.0] * 5, "f1": [1, 1, 1, None, 1]}))


def test_missing_values_of_pandas_are_none() -> None:
    kinds = pandas.Series(["x", pandas.NA], dtype="string")
    assert pushed(pandas.DataFrame({**COLUMNS, "type": kinds})) == [{**PLAIN[0], "type": "x"}, PLAIN[1]]


@pytest.mark.parametrize(
    ("arrays", "text"),
    [
        ({"src": [1], "dst": [1, 2], "t": [1]}, "lengths 1, 2 and 1"),
        ({"src": [1], "dst": [1], "t": [1.5]}, "must be integers"),
        ({"src": [1], "dst": [1], "t": np.array(["2026-01-01"], "datetime64[s]")}, "must be integers"),
        ({"src": [1], "dst": [1], "t": [[1]]}, "shape"),
        ({"src": [[1]], "dst": [1], "t": [1]}, "more than one dimension"),
        ({"src": [1], "dst": [1], "t": [1], "msg": np.ones((2, 3))}, "give \\(1, number"),
        ({"src": [1, 2], "dst": [1, 2], "t": [1, 2], "msg": [[1.0], [np.nan]]}, "event 1 are not finite"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(arrays: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        pushed(**arrays)


def test_what_holds_no_events_is_refused() -> None:
    with pytest.raises(TypeError, match="give events, or"):
        pushed()
    with pytest.raises(TypeError, match="not both"):
        pushed(PLAIN, src=[1])
    for nothing in ("events.csv", 7):
        with pytest.raises(TypeError, match="holds no events"):
            pushed(nothing)
    with pytest.raises(TypeError, match="event 1 is of type int"):
        pushed([PLAIN[0], 7])
    with pytest.raises(ValueError, match="event 1 cannot be written as JSON"):
        pushed([PLAIN[0], {"src": "a", "dst": 7, "ts": 1, "features": [float("inf")]}])
    with pytest.raises(ValueError, match="event 0 cannot be written"):
        pushed([{"src": object(), "dst": 7, "ts": 1}])


def test_bodies_hold_what_the_limits_allow_and_all_of_it() -> None:
    rng = np.random.default_rng(3)
    for _ in range(50):
        events = [{"src": "x" * int(rng.integers(1, 60)), "dst": 1, "ts": 2} for _ in range(int(rng.integers(1, 40)))]
        limits = Limits(batch_items_max=int(rng.integers(1, 10)), body_bytes_max=int(rng.integers(30, 300)))
        found = [body for part in parts(events) for body in bodies(part.lines, limits, part.first) if body is not None]
        assert [json.loads(line) for body in found for line in body.text.split(b"\n")] == events
        assert [body.first for body in found] == np.cumsum([0, *(body.count for body in found)])[:-1].tolist()
        assert all(body.count <= limits.batch_items_max for body in found)
        assert all(len(body.text) < limits.body_bytes_max or body.count == 1 for body in found)
