"""What requests return: dataclasses with NumPy arrays, each with the freshness that the daemon reports.

Times are event times, integers in the unit of the stream (`Info.time_unit`). Positions are places in the event log.
Node keys are strings or integers, as the request wrote them; a key that the daemon names is an integer up to 2^53 - 1
in size, else a string.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ._html import freshness_line, page, table
from ._polars import polars_frame

Key = str | int
"""A node key: a string of at most 1024 bytes, or an integer of 64 bits with sign. `7` and `"7"` are one node."""

Source = Literal["model", "candidate", "baseline"] | str
"""What computed a response: a promoted version, weights in training, or EdgeBank. Later versions may add words."""

NO_TIME = int(np.iinfo(np.int64).min)
"""Stands in arrays of event times where there is none."""


class _Framed:
    """Results that data frames are made of."""

    __slots__ = ()

    def to_pandas(self) -> Any:
        """A data frame with the columns that the class names.

        Raises:
            ImportError: pandas is not installed.
        """
        import pandas

        return pandas.DataFrame(self._columns())

    def to_polars(self) -> Any:
        """A data frame with the columns of `to_pandas`. Keys are integers if all of a column are, else text.

        Raises:
            ImportError: polars is not installed.
        """
        return polars_frame(self._columns())

    def _columns(self) -> dict[str, Any]:
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Freshness:
    """How fresh a response is.

    Attributes:
        model_version: Version of the weights that computed it; 0 before the first, and where the baseline did.
        watermark: Event time below which no further event is expected; `None` where the stream has no such bound.
        applied_position: Every log position below is reflected. Compare with `PushResult.end_position`.
        indexed_position: Every log position below is in the graph.
        durable_position: Every log position below survives a crash.
    """

    model_version: int
    watermark: int | None
    applied_position: int
    indexed_position: int
    durable_position: int

    def reflects(self, position: int) -> bool:
        """Whether every event below this log position is reflected."""
        return self.applied_position >= position

    def _repr_html_(self) -> str:
        return page("Freshness", "", freshness_line(self))


@dataclass(frozen=True, slots=True, eq=False)
class Embeddings:
    """Embeddings of nodes, in the order of the request.

    Attributes:
        nodes: The requested keys.
        array: float32 of shape (n, d); rows of nodes without an embedding are NaN.
        found: bool of shape (n,): whether a node has an embedding.
        cold: bool of shape (n,): whether the model has learned nothing about the node yet.
        last_event: int64 of shape (n,): event time of the node's latest event, `NO_TIME` where there is none.
        errors: Why a node has no embedding, by its place: `unknown_node`, `not_finite`.
        at: Event time that they are computed for: only earlier events count.
        source: What computed them. Vectors of a `candidate` change with every step: do not store them.
        freshness: How fresh they are.
    """

    nodes: tuple[Key, ...]
    array: NDArray[np.float32]
    found: NDArray[np.bool_]
    cold: NDArray[np.bool_]
    last_event: NDArray[np.int64]
    errors: Mapping[int, str]
    at: int
    source: Source
    freshness: Freshness

    def __len__(self) -> int:
        return len(self.nodes)

    def to_pandas(self) -> Any:
        """A data frame with a row for each node, its key as index; dimensions are the columns 0 to d - 1.

        Raises:
            ImportError: pandas is not installed.
        """
        import pandas

        return pandas.DataFrame(self.array, index=pandas.Index(self.nodes, name="node", dtype=object))

    def to_polars(self) -> Any:
        """A data frame with the columns `node` and, of type `Array(Float32, d)`, `embedding`.

        Keys are integers if all are, else text.

        Raises:
            ImportError: polars is not installed.
        """
        return polars_frame({"node": self.nodes, "embedding": self.array})

    def _repr_html_(self) -> str:
        rows = [
            (node, "cold" if cold else "" if found else self.errors.get(place, "missing"), *vector[:4].tolist())
            for place, (node, found, cold, vector) in enumerate(
                zip(self.nodes, self.found, self.cold, self.array, strict=True)
            )
        ]
        width = self.array.shape[1]
        names = ("node", "", *map(str, range(min(4, width))))
        title = f"{len(self)} embeddings of {width} numbers, at {self.at}, by the {self.source}"
        return page(title, table(names, rows), freshness_line(self.freshness))


@dataclass(frozen=True, slots=True, eq=False)
class Scores(_Framed):
    """Link scores of pairs, in the order of the request.

    Data frames have the columns `src`, `dst`, `score`, `percentile` and `cold`.

    Attributes:
        src: The sources.
        dst: The destinations.
        array: float32 of shape (n,), 0 to 1; NaN where a pair has no score. Of the baseline they order pairs and are no
            probabilities.
        percentile: float32 of shape (n,): how unusual an event of this score would be, the share of the latest events
            that the model thought likelier; NaN where it is not known.
        found: bool of shape (n,): whether a pair has a score.
        cold: bool of shape (n,): whether the model has learned nothing yet about one of the two.
        errors: Why a pair has no score, by its place.
        unknown: Which of the two the graph does not know, by the place of the pair.
        at: Event time that they are computed for.
        source: What computed them.
        freshness: How fresh they are.
    """

    src: tuple[Key, ...]
    dst: tuple[Key, ...]
    array: NDArray[np.float32]
    percentile: NDArray[np.float32]
    found: NDArray[np.bool_]
    cold: NDArray[np.bool_]
    errors: Mapping[int, str]
    unknown: Mapping[int, tuple[Key, ...]]
    at: int
    source: Source
    freshness: Freshness

    def __len__(self) -> int:
        return len(self.src)

    def _columns(self) -> dict[str, Any]:
        columns = {"score": self.array, "percentile": self.percentile, "cold": self.cold}
        return {"src": self.src, "dst": self.dst, **columns}

    def _repr_html_(self) -> str:
        rows = [
            (src, dst, float(score) if found else self.errors.get(place, "missing"), "cold" if cold else "")
            for place, (src, dst, score, found, cold) in enumerate(
                zip(self.src, self.dst, self.array, self.found, self.cold, strict=True)
            )
        ]
        title = f"{len(self)} scores, at {self.at}, by the {self.source}"
        return page(title, table(("src", "dst", "score", ""), rows), freshness_line(self.freshness))


@dataclass(frozen=True, slots=True)
class IndexFacts:
    """How far the rows of the live index are.

    Attributes:
        model_version: Version of the weights that the rows are of.
        complete_to_position: Every event below is in the rows of its own two nodes.
        pending_nodes: Nodes whose rows are older than their last event.
        oldest_row_seconds: How long the oldest row has been missing what happened elsewhere.
        scanned: Candidates that were looked at for one source or node, at most.
        exact: Whether computing every candidate would have found the same.
    """

    model_version: int
    complete_to_position: int
    pending_nodes: int
    oldest_row_seconds: float
    scanned: int
    exact: bool


@dataclass(frozen=True, slots=True, eq=False)
class Ranking:
    """The best nodes for one source, node or vector, the best first.

    Attributes:
        of: The source or node as the request wrote it; `None` of a vector.
        nodes: The keys that were found.
        scores: float32 of shape (k,).
        cold: bool of shape (k,): whether the model has learned nothing yet about a found node (or of a link, about
            one of its two).
        ranked_by: `model`, `baseline` or `popularity` for links; empty for similar nodes.
        source_cold: Whether the model has learned nothing about the source of links yet.
        error: Why there is nothing; `None` if there is no error.
    """

    of: Key | None
    nodes: tuple[Key, ...]
    scores: NDArray[np.float32]
    cold: NDArray[np.bool_]
    ranked_by: str = ""
    source_cold: bool = False
    error: str | None = None

    def __len__(self) -> int:
        return len(self.nodes)

    def __iter__(self) -> Iterator[tuple[Key, float]]:
        return iter(zip(self.nodes, self.scores.tolist(), strict=True))


@dataclass(frozen=True, slots=True, eq=False)
class Rankings:
    """Rankings, one for each source, node or vector, in the order of the request.

    Attributes:
        results: The rankings.
        unknown_candidates: Requested candidates that the graph does not know.
        at: Event time that they are computed for.
        source: What computed them.
        freshness: How fresh the scores are.
        index: How far the rows are that show which nodes are scored.
    """

    results: tuple[Ranking, ...]
    unknown_candidates: tuple[Key, ...]
    at: int
    source: Source
    freshness: Freshness
    index: IndexFacts

    def __len__(self) -> int:
        return len(self.results)

    def __getitem__(self, place: int) -> Ranking:
        return self.results[place]

    def __iter__(self) -> Iterator[Ranking]:
        return iter(self.results)

    def to_pandas(self) -> Any:
        """A data frame with the columns `of`, `rank` (from 1), `node`, `score` and `cold`.

        Raises:
            ImportError: pandas is not installed.
        """
        import pandas

        names = ("of", "rank", "node", "score", "cold")
        return pandas.DataFrame([dict(zip(names, row, strict=True)) for row in self._rows()], columns=list(names))

    def to_polars(self) -> Any:
        """A data frame with the columns of `to_pandas`. Keys are integers if all of a column are, else text.

        Raises:
            ImportError: polars is not installed.
        """
        results = self.results
        return polars_frame(
            {
                "of": tuple(ranking.of for ranking in results for _ in ranking.nodes),
                "rank": np.array([rank for ranking in results for rank in range(1, len(ranking) + 1)], np.int64),
                "node": tuple(node for ranking in results for node in ranking.nodes),
                "score": np.concatenate([np.empty(0, np.float32), *(ranking.scores for ranking in results)]),
                "cold": np.concatenate([np.empty(0, np.bool_), *(ranking.cold for ranking in results)]),
            }
        )

    def _rows(self) -> Iterator[tuple[Any, ...]]:
        for ranking in self.results:
            found = zip(ranking.nodes, ranking.scores.tolist(), ranking.cold.tolist(), strict=True)
            for rank, (node, score, cold) in enumerate(found, 1):
                yield ranking.of, rank, node, score, cold

    def _repr_html_(self) -> str:
        rows = [(*row[:4], "cold" if row[4] else "") for row in self._rows()]
        title = f"Rankings of {len(self)}, at {self.at}, by the {self.source}"
        below = f"{freshness_line(self.freshness)}; index complete to position {self.index.complete_to_position}"
        return page(title, table(("of", "rank", "node", "score", ""), rows), below)


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """A node's record in the graph.

    Attributes:
        node: Its key.
        degree: Number of its live edges in both directions.
        last_event: Event time of its latest edge; `None` if it has none.
        learned_event: Event time of the latest edge that the model has learned; `None` if there is none.
        neighbors: Keys at the other ends of its newest edges, newest first.
        time: int64 of shape (k,): their event times.
        position: int64 of shape (k,): their log positions.
        freshness: How fresh the record is.
    """

    node: Key
    degree: int
    last_event: int | None
    learned_event: int | None
    neighbors: tuple[Key, ...]
    time: NDArray[np.int64]
    position: NDArray[np.int64]
    freshness: Freshness

    def _repr_html_(self) -> str:
        rows = list(zip(self.neighbors, self.time.tolist(), self.position.tolist(), strict=True))
        title = f"Node {self.node!r}, {self.degree} edges"
        return page(title, table(("neighbor", "time", "position"), rows), freshness_line(self.freshness))


@dataclass(frozen=True, slots=True, eq=False)
class NodeMap:
    """Embeddings of many nodes on their two principal axes.

    Attributes:
        nodes: Their keys.
        places: float32 of shape (n, 2); two nodes are about as far apart as their embeddings.
        degree: int64 of shape (n,): edges of each in the graph.
        destination: bool of shape (n,): whether it is the destination of an event that was learned of.
        explained: Share of the embeddings' variance that each axis holds.
        nodes_total: Number of nodes that were ever named.
        at: Event time that embeddings are for.
        source: What computed them.
        freshness: How fresh they are.
    """

    nodes: tuple[Key, ...]
    places: NDArray[np.float32]
    degree: NDArray[np.int64]
    destination: NDArray[np.bool_]
    explained: tuple[float, float]
    nodes_total: int
    at: int
    source: Source
    freshness: Freshness

    def _repr_html_(self) -> str:
        rows = list(zip(self.nodes, *self.places.T.tolist(), self.degree.tolist(), strict=True))
        title = f"Map of {len(self.nodes)} of {self.nodes_total} nodes"
        return page(title, table(("node", "x", "y", "edges"), rows), freshness_line(self.freshness))


@dataclass(frozen=True, slots=True, eq=False)
class Anomalies:
    """The latest events that the model thought unlikely before it had learned them, the newest first.

    Attributes:
        src: Their sources.
        dst: Their destinations.
        time: int64 of shape (n,): event times.
        position: int64 of shape (n,): log positions.
        array: float32 of shape (n,): scores of the pairs before the events were learned.
        percentile: float32 of shape (n,): share of earlier events of the type that the model thought likelier.
        percentile_min: Events of a lower percentile are not kept.
        freshness: How fresh they are.
    """

    src: tuple[Key, ...]
    dst: tuple[Key, ...]
    time: NDArray[np.int64]
    position: NDArray[np.int64]
    array: NDArray[np.float32]
    percentile: NDArray[np.float32]
    percentile_min: float
    freshness: Freshness

    def __len__(self) -> int:
        return len(self.src)

    def _repr_html_(self) -> str:
        columns = (self.time.tolist(), self.position.tolist(), self.array.tolist(), self.percentile.tolist())
        rows = list(zip(self.src, self.dst, *columns, strict=True))
        title = f"{len(self)} unusual events"
        heads = ("src", "dst", "time", "position", "score", "percentile")
        return page(title, table(heads, rows), freshness_line(self.freshness))


@dataclass(frozen=True, slots=True, eq=False)
class NeighborPage(_Framed):
    """A page of a node's edges, newest first: by time, and at equal times by arrival.

    Data frames have the columns `neighbor`, `outgoing`, `time`, `position` and `type`, and `f0` … of features.

    Attributes:
        node: The node.
        neighbors: Keys at the other ends.
        outgoing: bool of shape (k,): whether the node is the source of the edge.
        time: int64 of shape (k,): event times.
        position: int64 of shape (k,): log positions.
        types: Types of the edges, where the daemon keeps any; `None` of an edge without one, or whose row is released.
        features: float32 of shape (k, f) if they were asked for, else `None`; NaN where they are released.
        next: The cursor of the next page; `None` behind the last edge.
        freshness: How fresh the page is.
    """

    node: Key
    neighbors: tuple[Key, ...]
    outgoing: NDArray[np.bool_]
    time: NDArray[np.int64]
    position: NDArray[np.int64]
    types: tuple[str | None, ...]
    features: NDArray[np.float32] | None
    next: str | None
    freshness: Freshness

    def __len__(self) -> int:
        return len(self.neighbors)

    def _columns(self) -> dict[str, Any]:
        columns: dict[str, Any] = {
            "neighbor": self.neighbors,
            "outgoing": self.outgoing,
            "time": self.time,
            "position": self.position,
            "type": self.types,
        }
        if self.features is not None:
            columns |= {f"f{place}": column for place, column in enumerate(self.features.T)}
        return columns

    def _repr_html_(self) -> str:
        ways = np.where(self.outgoing, "out", "in").tolist()
        rows = list(zip(self.neighbors, ways, self.time.tolist(), self.position.tolist(), strict=True))
        names = ("neighbor", "direction", "time", "position")
        return page(f"{len(self)} edges of {self.node!r}", table(names, rows), freshness_line(self.freshness))


@dataclass(frozen=True, slots=True)
class Rejected:
    """An event that was not stored; it is kept as a dead letter.

    Attributes:
        index: Its place in the push, from 0.
        reason: Why, for programs.
        detail: What is wrong and what to do.
    """

    index: int
    reason: str
    detail: str


@dataclass(frozen=True, slots=True)
class PushResult:
    """The outcome of a push. What is counted in `accepted` is durable and in the graph.

    Attributes:
        first_position: Log position of the first event stored.
        end_position: One past the log position of the last event stored: the `min_position` that reads this write.
        accepted: Number of events stored.
        duplicates: Number of events that had been stored before, by their idempotency keys.
        rejected: Events that were not stored; of a request that was rejected as a whole, the first 100.
        rejected_count: How many were not stored.
        requests: In how many requests they were sent.
        freshness: How fresh responses were then; after `wait="visible"`, it reflects `end_position`.
    """

    first_position: int
    end_position: int
    accepted: int
    duplicates: int
    rejected: tuple[Rejected, ...]
    rejected_count: int
    requests: int
    freshness: Freshness

    def _repr_html_(self) -> str:
        title = (
            f"{self.accepted} events stored at {self.first_position} to {self.end_position - 1}, "
            f"{self.duplicates} duplicates, {self.rejected_count} rejected"
        )
        if not self.accepted:
            title = f"No event stored, {self.duplicates} duplicates, {self.rejected_count} rejected"
        rows = [(event.index, event.reason, event.detail) for event in self.rejected]
        return page(title, table(("event", "reason", "detail"), rows) if rows else "", freshness_line(self.freshness))
