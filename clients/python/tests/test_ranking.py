"""Ranks and their mean reciprocal, beside TGB's own Evaluator."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from evergraph import mrr, ranks


def evaluator() -> Any:
    """TGB's Evaluator. Its modules import more than it uses, which need not be there."""
    for name in ("sklearn", "sklearn.metrics", "pandas"):
        if name not in sys.modules:
            try:
                __import__(name)
            except ImportError:
                sys.modules[name] = ModuleType(name)
    from tgb.linkproppred.evaluate import Evaluator

    return Evaluator("tgbl-wiki")


def official(positive: float, candidates: np.ndarray) -> float:
    """The reciprocal rank by the Evaluator, whose 32-bit floats name a rank, a multiple of one half, exactly."""
    row = {"y_pred_pos": np.array([positive]), "y_pred_neg": candidates[None, :], "eval_metric": ["mrr"]}
    return 2.0 / round(2.0 / float(evaluator().eval(row)["mrr"]))


@pytest.mark.parametrize("levels", [3, 10, 1_000_000])
def test_the_mean_reciprocal_rank_is_that_of_the_temporal_graph_benchmark(levels: int) -> None:
    rng = np.random.default_rng(levels)
    positives = rng.integers(levels, size=200) / levels
    candidates = rng.integers(levels, size=(200, 50)) / levels
    expected = np.mean([official(one, others) for one, others in zip(positives, candidates, strict=True)])
    assert abs(mrr(positives, candidates) - expected) <= 1e-9
    whole = {"y_pred_pos": positives, "y_pred_neg": candidates, "eval_metric": ["mrr"]}
    assert abs(mrr(positives, candidates) - float(evaluator().eval(whole)["mrr"])) <= 1e-6, "in 32-bit floats"


def test_candidates_may_be_of_any_number() -> None:
    rng = np.random.default_rng(1)
    positives = (rng.integers(5, size=100) / 5).astype(np.float32)
    candidates = [(rng.integers(5, size=rng.integers(1, 40)) / 5).astype(np.float32) for _ in positives]
    expected = np.mean([official(one, others) for one, others in zip(positives, candidates, strict=True)])
    assert abs(mrr(positives, candidates) - expected) <= 1e-9


def test_a_tie_counts_half_and_nobody_else_is_first() -> None:
    found = ranks([1.0, 1.0, 1.0, 1.0, 1.0], [[2.0, 0.5], [1.0, 0.0], [1.0, 1.0], [], [2.0, 1.0]])
    np.testing.assert_array_equal(found, [2.0, 1.5, 2.0, 1.0, 2.5])
    assert mrr([1.0], [[]]) == 1.0


@pytest.mark.parametrize(
    ("positives", "candidates", "text"),
    [
        ([], [], "no mean"),
        ([1.0], [[1.0], [2.0]], "1 positives"),
        ([[1.0]], [[1.0]], "shape"),
        ([float("nan")], [[1.0]], "NaN"),
        ([1.0], [[float("nan")]], "NaN"),
        ([1.0], np.zeros(3), "shape"),
    ],
)
def test_what_cannot_be_ranked_is_refused(positives: Any, candidates: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        mrr(positives, candidates)
