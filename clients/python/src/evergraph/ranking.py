"""Ranks of true destinations among candidates, as the Temporal Graph Benchmark counts them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray


def ranks(positives: ArrayLike, candidates: ArrayLike | Sequence[ArrayLike]) -> NDArray[np.float64]:
    """The rank of each true destination among its candidates, from 1.

    A tie counts half: the rank is the mean of the optimistic rank, with the true destination ahead of all candidates of
    its score, and the pessimistic one, with it behind them.

    Args:
        positives: Scores of the true destinations, shape (n,).
        candidates: Scores of the other candidates: an array of shape (n, k), or n sequences of any lengths. An empty
            one gives rank 1.

    Returns:
        The ranks, float64 of shape (n,).

    Raises:
        ValueError: Lengths do not fit, or a score is not a number.
    """
    true = np.asarray(positives)
    if true.ndim != 1:
        raise ValueError(f"positives have the shape {true.shape}; give one score for each, shape (n,)")
    flat: NDArray[Any]
    if isinstance(candidates, np.ndarray) and candidates.dtype != object:
        if candidates.ndim != 2:
            raise ValueError(f"candidates have the shape {candidates.shape}; give (n, k), or n sequences")
        lengths = np.full(len(candidates), candidates.shape[1])
        flat = candidates.reshape(-1)
    else:
        rows: list[NDArray[Any]] = [np.asarray(row).reshape(-1) for row in candidates]  # type: ignore[union-attr]
        lengths = np.fromiter((len(row) for row in rows), np.int64, len(rows))
        flat = np.concatenate(rows) if rows else np.empty(0)
    if len(lengths) != len(true):
        raise ValueError(f"{len(true)} positives and candidates of {len(lengths)}; give candidates for each positive")
    if np.isnan(true).any() or np.isnan(flat).any():
        raise ValueError("a score is not a number (NaN), so it has no rank")
    row_of = np.repeat(np.arange(len(true)), lengths)
    own = true[row_of]
    ahead = np.bincount(row_of[flat > own], minlength=len(true))
    ahead_or_equal = np.bincount(row_of[flat >= own], minlength=len(true))
    return np.asarray(0.5 * (ahead + ahead_or_equal) + 1.0, np.float64)


def mrr(positives: ArrayLike, candidates: ArrayLike | Sequence[ArrayLike]) -> float:
    """Mean reciprocal rank of true destinations among candidates: 1 is best. Arguments as of `ranks`.

    Equal to that of TGB's `Evaluator`, but computed in 64-bit floats.

    Raises:
        ValueError: As `ranks`; or there is nothing to rank.
    """
    found = ranks(positives, candidates)
    if len(found) == 0:
        raise ValueError("there are no positives, so there is no mean")
    return float(np.mean(1.0 / found))
