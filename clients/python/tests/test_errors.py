"""Exceptions go between processes, as those of a pool's workers do."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest

import evergraph
from evergraph.results import Freshness, PushResult, Rejected

CLASSES = [kind for name in evergraph.__all__ if isinstance(kind := getattr(evergraph, name), type)]
ERRORS = [kind for kind in CLASSES if issubclass(kind, evergraph.EvergraphError)]


@pytest.mark.parametrize("kind", ERRORS)
def test_an_exception_is_copied_and_pickled_with_all_it_has(kind: type[Any]) -> None:
    arguments = ("push_events", 503, "busy", "on purpose", {"limit": 7}, "id-1", 0.5)
    error: Any = kind(*arguments) if issubclass(kind, evergraph.ApiError) else kind("on purpose")
    error.partial = PushResult(0, 1, 1, 0, (Rejected(2, "bad_id", "x"),), 1, 1, Freshness(1, None, 1, 1, 1))
    error.rejected = error.partial.rejected
    error.add_note("a note")
    for other in (pickle.loads(pickle.dumps(error)), copy.copy(error)):  # noqa: S301 (our own)
        assert type(other) is kind
        assert (str(other), vars(other)) == (str(error), vars(error))
