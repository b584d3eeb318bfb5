"""What a daemon is, what it accepts, and how it does: the results of `info`, `health` and `status`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ._html import freshness_line, page, table
from .results import Freshness


@dataclass(frozen=True, slots=True)
class Limits:
    """What a request may ask for.

    Attributes:
        batch_items_max: Most nodes, pairs, neighbors or events in one request.
        body_bytes_max: Largest request body, bytes.
        concurrent_requests_max: Most concurrent queries, and separately most concurrent pushes.
        request_timeout_ms: Longest time for a body to arrive and, once it has, for the work, milliseconds.
        text_bytes_max: Longest node key, edge type or idempotency key, bytes.
        wait_ms_max: Longest `wait_ms`, milliseconds.
    """

    batch_items_max: int = 10_000
    body_bytes_max: int = 8_388_608
    concurrent_requests_max: int = 256
    request_timeout_ms: int = 30_000
    text_bytes_max: int = 1_024
    wait_ms_max: int = 10_000


@dataclass(frozen=True, slots=True)
class Info:
    """What runs and what it accepts.

    Attributes:
        name: Name of the program.
        version: Its version.
        model: The kind of model.
        device: The device it computes on, with the reason for that choice.
        embedding_dimension: Length of an embedding.
        edge_feature_dimension: Length of the feature row of an edge; 0: edges carry none.
        node_feature_dimension: Length of the feature row of a node; 0: nodes carry none.
        time_unit: The unit of event times, such as `seconds`; `None` if the settings do not name it.
        started_unix_ms: When the process started, milliseconds since the Unix epoch.
        limits: What a request may ask for.
    """

    name: str
    version: str
    model: str
    device: str
    embedding_dimension: int
    edge_feature_dimension: int
    node_feature_dimension: int
    time_unit: str | None
    started_unix_ms: int
    limits: Limits


@dataclass(frozen=True, slots=True)
class Check:
    """One check of the daemon's health: `state` is `ok`, `degraded` or `failed`, and `detail` the reason."""

    state: str
    detail: str


@dataclass(frozen=True, slots=True)
class Health:
    """Checks and the worst of them. A failed check is a result, not an exception.

    Attributes:
        status: The worst state: `ok`, `degraded` (served, with a restriction) or `failed`.
        checks: Every check by name.
    """

    status: str
    checks: Mapping[str, Check]

    @property
    def ok(self) -> bool:
        """Whether no check failed; a degraded daemon serves requests."""
        return self.status != "failed"

    def __bool__(self) -> bool:
        return self.ok

    def _repr_html_(self) -> str:
        rows = [(name, check.state, check.detail) for name, check in self.checks.items()]
        return page(f"Health: {self.status}", table(("check", "state", "detail"), rows), "")


@dataclass(frozen=True, slots=True)
class Status:
    """The state of the daemon, part by part. The parts are as `/v1/status` writes them, documented at its `/docs`.

    Attributes:
        version: Version of the program.
        device: The device it computes on.
        uptime_seconds: Time since the start, seconds.
        resident_bytes: Resident memory of the process; 0 where unknown.
        freshness: How fresh responses are now.
        graph: The temporal graph in memory: `nodes`, `edges`, `latest_event_time` and others.
        ingest: Events on their way in: `accepted_events`, `rejected_events`, `sources` and others.
        learner: The learning loop: `average_precision`, `lag_events`, `score_source`, `gate` and others.
        log: The event log: `state`, `bytes` and positions.
        memory: Stores with a memory budget.
    """

    version: str
    device: str
    uptime_seconds: float
    resident_bytes: int
    freshness: Freshness
    graph: Mapping[str, Any]
    ingest: Mapping[str, Any]
    learner: Mapping[str, Any]
    log: Mapping[str, Any]
    memory: Mapping[str, Any]

    @property
    def average_precision(self) -> float | None:
        """Average precision over the last batches, each scored before it was trained on; `None` before the first."""
        value = self.learner.get("average_precision")
        return None if value is None else float(value)

    @property
    def edgebank_average_precision(self) -> float | None:
        """That of the baseline EdgeBank on the same batches."""
        value = self.learner.get("edgebank_average_precision")
        return None if value is None else float(value)

    @property
    def lag_events(self) -> int:
        """Events in the graph that are not learned yet."""
        return int(self.learner["lag_events"])

    def _repr_html_(self) -> str:
        rows = [
            ("nodes, edges", f"{self.graph.get('nodes')}, {self.graph.get('edges')}"),
            ("events learned, waiting", f"{self.learner.get('applied_position')}, {self.learner.get('lag_events')}"),
            ("average precision", self.average_precision),
            ("EdgeBank's", self.edgebank_average_precision),
            ("link scores by", self.learner.get("score_source")),
        ]
        title = f"Evergraph {self.version}, {self.learner.get('model')}, up {self.uptime_seconds:.0f} s"
        return page(title, table(("", ""), rows), freshness_line(self.freshness))
