"""Columns of results as frames of polars, in which all values of a column have one type."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np


def polars_frame(columns: Mapping[str, Any]) -> Any:
    """A frame of arrays, and of tuples of node keys or types: integers if all are, else text.

    Raises:
        ImportError: polars is not installed.
    """
    try:
        import polars
    except ImportError as error:
        raise ImportError("to_polars needs polars; install evergraph[polars]") from error

    def column(name: str, values: Any) -> Any:
        if not isinstance(values, tuple):
            return polars.Series(name, np.ascontiguousarray(values))
        if values and all(isinstance(value, int) for value in values):
            return polars.Series(name, values, polars.Int64)
        return polars.Series(name, [None if value is None else str(value) for value in values], polars.String)

    return polars.DataFrame([column(name, values) for name, values in columns.items()])
