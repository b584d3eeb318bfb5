"""How results look in a notebook: a table and, below it, how fresh they are."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .results import Freshness

ROWS_MAX = 20


def _cell(value: object) -> str:
    return escape(f"{value:.4g}" if isinstance(value, float) else "" if value is None else str(value))


def table(names: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A table of at most `ROWS_MAX` rows."""
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    body = "".join("<tr>" + "".join(f"<td>{_cell(value)}</td>" for value in row) + "</tr>" for row in rows[:ROWS_MAX])
    more = len(rows) - ROWS_MAX
    rest = f'<tr><td colspan="{len(names)}">… {more} more</td></tr>' if more > 0 else ""
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}{rest}</tbody></table>"


def freshness_line(freshness: Freshness) -> str:
    """How fresh a result is, in a line."""
    behind = freshness.indexed_position - freshness.applied_position
    lag = "nothing waits" if behind <= 0 else f"{behind} events wait to be learned"
    watermark = "" if freshness.watermark is None else f", watermark {freshness.watermark}"
    reflected = f"reflects positions below {freshness.applied_position} ({lag})"
    return f"model version {freshness.model_version}, {reflected}{watermark}"


def page(title: str, content: str, below: str) -> str:
    """A titled block; `content` is HTML, the others are text."""
    foot = f"<div><small>{escape(below)}</small></div>" if below else ""
    return f"<div><div><b>{escape(title)}</b></div>{content}{foot}</div>"
