"""The client of a daemon's REST API. `async_client.py` is made from this file by `make_async.py`."""

from __future__ import annotations

import os
import ssl
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import nullcontext
from types import TracebackType
from typing import Any, Literal, TypeVar

import httpx2
from numpy.typing import ArrayLike

from . import _operations as operations
from . import admin
from ._attempts import Failure, Outcome, Pause, Retry, Step, with_retries
from ._events import parts
from ._operations import Unknown
from ._push import Known, Wait
from ._push import push as push_events
from ._requests import Operation, Work, request
from ._transport import failure_of, options, reply_of, shown, timeout_of
from .results import Anomalies, Embeddings, Key, NeighborPage, Node, NodeMap, PushResult, Rankings, Scores
from .state import Health, Info, Status

T = TypeVar("T")


class Client:
    """A connection to a daemon. Safe to use from several threads; close it, or use it in a `with` statement.

    Reads, and pushes with idempotency keys, are sent again after failures that may pass; nothing else is.

    All methods raise `ApiError` (by its subclasses) for what the daemon refuses, `ConnectionFailedError` if no response
    comes, and `MalformedResponseError` if the response is not one of Evergraph.

    Args:
        url: Address of the daemon, such as `https://graph.example.org`; a path before the routes is kept. A name and a
            password in it are for what stands before the daemon (HTTP Basic), and are shown nowhere.
        api_key: A key of the daemon's `api.keys_file`, if it has one.
        timeout: Longest time without progress of a request, seconds; a wait for `min_position` is not counted.
        retry: How often and how soon requests are sent again.
        verify: For HTTPS: whether to check the certificate, or a file of certificates to trust, or an SSL context.
        headers: Further headers of every request.
        trust_env: Whether the environment's proxies are used; by default they are, but not for this machine.

    Raises:
        ValueError: The address or the timeout is impossible, or the key or a header cannot be sent.
    """

    def __init__(
        self,
        url: str = "http://127.0.0.1:8080",
        *,
        api_key: str | None = None,
        timeout: float = 60.0,
        retry: Retry = Retry(),  # noqa: B008 (it cannot be changed)
        verify: bool | str | os.PathLike[str] | ssl.SSLContext = True,
        headers: Mapping[str, str] | None = None,
        trust_env: bool | None = None,
    ) -> None:
        self.url = shown(url)
        self._daemon: object = None  # a daemon that ends when nobody holds it
        self._retry = retry
        self._known = Known()
        self._turn = nullcontext()  # one large computation at a time
        self._http = httpx2.Client(**options(url, api_key, timeout, verify, headers, trust_env))

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Client({self.url!r})"

    def close(self) -> None:
        """Closes the connections."""
        self._http.close()

    def embeddings(
        self,
        nodes: Iterable[Any] | Key,
        *,
        at: int | None = None,
        unknown: Unknown = "error",
        min_position: int | None = None,
        wait_ms: int | None = None,
    ) -> Embeddings:
        """Embeddings of nodes, as of now or of a time in the past.

        Args:
            nodes: Node keys, `Limits.batch_items_max` at most.
            at: Event time to compute for: only earlier events count. Default: just after the latest event.
            unknown: `error`: nodes that the graph does not know have no vector; `prior`: they get the model's prior.
            min_position: Respond only once this log position is reflected: `PushResult.end_position`.
            wait_ms: How long to wait for that, milliseconds; 1000 by default.

        Returns:
            An array of shape (n, d), with `found`, `cold` and the freshness.

        Raises:
            NotYetVisibleError: `min_position` was not reflected in time.
            UnavailableError: No version of the model is published yet (`no_model`), or the daemon is busy.
        """
        keys = operations.keys_of(nodes, "nodes")
        return self._run(operations.embeddings(keys, at, unknown, min_position, wait_ms))

    def score(
        self,
        src: Iterable[Any] | Key,
        dst: Iterable[Any] | Key,
        *,
        at: int | None = None,
        unknown: Unknown = "error",
        min_position: int | None = None,
        wait_ms: int | None = None,
    ) -> Scores:
        """How likely links are, from each of `src` to the one of `dst` at the same place.

        Args:
            src: Sources; a single one goes with all destinations.
            dst: Destinations; a single one goes with all sources.
            at: Event time to compute for. Default: just after the latest event.
            unknown: What pairs with an unknown node get: no score (`error`), or that of the model's `prior`.
            min_position: Respond only once this log position is reflected.
            wait_ms: How long to wait for that, milliseconds.

        Returns:
            Scores of shape (n,), with `found`, `cold` and the freshness.

        Raises:
            ValueError: The numbers of sources and destinations differ.
            NotYetVisibleError: `min_position` was not reflected in time.
        """
        return self._run(operations.score(src, dst, at, unknown, min_position, wait_ms))

    def top(
        self,
        src: Iterable[Any] | Key,
        *,
        limit: int = 10,
        role: Literal["destination", "any"] | None = None,
        key_prefix: str | None = None,
        edge_type: str | None = None,
        candidates: Iterable[Any] | None = None,
        exclude_met: bool = False,
        exact: bool = False,
        min_position: int | None = None,
        wait_ms: int | None = None,
    ) -> Rankings:
        """The likeliest destinations of sources, among all nodes. Needs the live index (`index.bytes_max`).

        Args:
            src: Sources.
            limit: Most destinations for each.
            role: Which nodes may be found: those that were a `destination` (default), or `any`.
            key_prefix: Only nodes whose key, as text, begins so.
            edge_type: Only nodes that have received an event of this type.
            candidates: Only these nodes; all of them are computed anew, without the index.
            exclude_met: Whether to leave out destinations that the source had an event to.
            exact: Whether to compute all candidates anew: slow, a yardstick.
            min_position: Respond only once this log position is reflected, in the index too.
            wait_ms: How long to wait for that, milliseconds.

        Raises:
            IndexDisabledError: The daemon has no live index.
            UnavailableError: Its rows are not there yet (`index_not_ready`).
        """
        within = operations.candidates(role, key_prefix, edge_type, candidates)
        return self._run(operations.top(src, limit, within, exclude_met, exact, min_position, wait_ms))

    def similar(
        self,
        nodes: Iterable[Any] | Key | None = None,
        *,
        vectors: ArrayLike | None = None,
        limit: int = 10,
        metric: Literal["cosine", "dot"] = "cosine",
        role: Literal["destination", "any"] | None = None,
        key_prefix: str | None = None,
        edge_type: str | None = None,
        candidates: Iterable[Any] | None = None,
        min_position: int | None = None,
        wait_ms: int | None = None,
    ) -> Rankings:
        """The nodes most like others, or like vectors, among all nodes. Needs the live index (`index.bytes_max`).

        Args:
            nodes: What results are like.
            vectors: The same as vectors, shape (n, d), of the model version of the index.
            limit: Most results for each.
            metric: How alike two vectors are: `cosine`, or `dot`, their inner product.
            role: Which nodes may be found: `any` (default), or those that were a `destination`.
            key_prefix: Only nodes whose key, as text, begins so.
            edge_type: Only nodes that have received an event of this type.
            candidates: Only these nodes.
            min_position: Respond only once this log position is reflected, in the index too.
            wait_ms: How long to wait for that, milliseconds.

        Raises:
            IndexDisabledError: The daemon has no live index.
            UnavailableError: Its rows are not there yet (`index_not_ready`).
        """
        within = operations.candidates(role, key_prefix, edge_type, candidates)
        return self._run(operations.similar(nodes, vectors, limit, metric, within, min_position, wait_ms))

    def anomalies(self, *, limit: int | None = None, percentile: float | None = None) -> Anomalies:
        """The latest events that the model thought unlikely before it had learned them, the newest first.

        Args:
            limit: At most so many; 100 by default.
            percentile: Only events of this percentile or a higher one, 0 to 1; the daemon keeps none below
                `anomalies.percentile_min`.
        """
        return self._run(operations.anomalies(limit, percentile))

    def map(self, *, limit: int | None = None) -> NodeMap:
        """Embeddings of many nodes as of now, projected on their two principal axes.

        Args:
            limit: At most so many nodes, spread evenly over all; 1000 by default, 5000 at most.

        Raises:
            UnavailableError: There are no weights yet (`no_model`).
        """
        return self._run(operations.node_map(limit))

    def export_embeddings(self) -> Any:
        """The embeddings of all nodes that the model has learned of, as of one log position. Needs the extra `arrow`.

        Returns:
            A `pyarrow.Table` with the columns `node` (keys as text), `embedding` and `learned_event`. Its
            `schema.metadata[b"evergraph"]` holds `position`, `at`, `source` and `freshness` as JSON.

        Raises:
            ImportError: pyarrow is not installed.
            UnavailableError: Another export is running, or there are no weights yet (`no_model`).
        """
        return self._run(operations.table("export_embeddings"))

    def export_edges(self) -> Any:
        """All edges of the graph, as of one log position. Needs the extra `arrow`.

        Returns:
            A `pyarrow.Table` with the columns `src`, `dst`, `ts`, `position` and, where the daemon keeps any, `type`
            and `features`; its `schema.metadata[b"evergraph"]` holds `position` as JSON.

        Raises:
            ImportError: pyarrow is not installed.
            UnavailableError: Another export is running.
        """
        return self._run(operations.table("export_edges"))

    def node(
        self,
        key: Key,
        *,
        neighbors: int | None = None,
        min_position: int | None = None,
        wait_ms: int | None = None,
    ) -> Node:
        """A node's degree, latest event and newest neighbors.

        Args:
            key: The node.
            neighbors: How many of its newest edges to list; 10 by default.
            min_position: Respond only once this log position is reflected.
            wait_ms: How long to wait for that, milliseconds.

        Raises:
            UnknownNodeError: The graph does not know the node.
        """
        return self._run(operations.node(key, neighbors, min_position, wait_ms))

    def neighbors(
        self,
        key: Key,
        *,
        limit: int | None = None,
        direction: Literal["out", "in"] | None = None,
        edge_type: str | None = None,
        start: int | None = None,
        before: int | None = None,
        features: bool = False,
        cursor: str | None = None,
        min_position: int | None = None,
        wait_ms: int | None = None,
    ) -> Iterator[NeighborPage]:
        """A node's edges, newest first, page by page; each page is requested when it is iterated to.

        Args:
            key: The node.
            limit: Most edges of a page; 100 by default. With a `direction` or `edge_type`, a page may be shorter.
            direction: Only edges of which the node is the source (`out`) or the destination (`in`).
            edge_type: Only edges of this type; the daemon has to keep types (`model.edge_types`).
            start: Only edges at or after this event time.
            before: Only edges before this event time.
            features: Whether to list the edges' features.
            cursor: `NeighborPage.next` of the page before, to go on from there.
            min_position: Respond only once this log position is reflected.
            wait_ms: How long to wait for that, milliseconds.

        Raises:
            UnknownNodeError: The graph does not know the node.
        """
        query = {"limit": limit, "direction": direction, "type": edge_type, "from": start, "before": before}
        query |= {"min_position": min_position, "wait_ms": wait_ms}
        while True:
            found = self._run(operations.neighbors(key, features, {**query, "cursor": cursor}))
            yield found
            cursor = found.next
            if cursor is None:
                return

    def push(
        self,
        events: Any = None,
        *,
        src: ArrayLike | None = None,
        dst: ArrayLike | None = None,
        t: ArrayLike | None = None,
        msg: ArrayLike | None = None,
        wait: Wait | None = None,
        wait_seconds: float = 30.0,
        idempotency_key: str | None = None,
    ) -> PushResult:
        """Stores events. They are durable and in the graph when it returns.

        Many events are sent in several requests, by the daemon's limits. If a later one fails, or the events cannot be
        read on, the exception's `partial` has the outcome of those before. Exceptions that are no `EvergraphError`
        have it only if there were any.

        Args:
            events: Mappings with the members of the API (`src`, `dst`, `ts`, `features`, `type`, `op`, …); or a frame
                of pandas, polars or pyarrow with such columns (`t` is as good as `ts`; features are the columns `f0`,
                `f1`, … or lists in `features` or `msg`; an event whose features are all missing has none); or an object
                with `src`, `dst`, `t` and `msg`, as PyG's `TemporalData`. They must not change until it returns.
            src: Sources, shape (n,), in place of `events`; a single one goes with all events.
            dst: Destinations, shape (n,); a single one goes with all events.
            t: Event times, integers in the unit of the stream, shape (n,).
            msg: Features, shape (n, f); as many as `Info.edge_feature_dimension`.
            wait: `visible`: return only once embeddings and scores reflect the events; the key must be allowed to read.
                `durable` or `None`: return when the events are stored, which is what the daemon's response says.
            wait_seconds: How long to wait for `visible`, seconds.
            idempotency_key: A name for this push, at most 255 visible ASCII characters. A push of the same events under
                the same name stores each once, however they are cut into requests, as long as the daemon remembers
                their keys (`ingest.idempotency_keys_max`); equal events of one push are all stored. Events are the
                same if their JSON is, byte by byte: with members in the same order, and numbers of the same types.
                Failed requests are sent again. An event's own key goes first.

        Returns:
            Positions, counts, and which events were rejected.

        Raises:
            AllRejectedError: Every event was rejected.
            NotYetVisibleError: The events are stored, but were not reflected in time.
            OutcomeUnknownError: They may be stored or not.
            ValueError: There are no events, or one cannot be written as JSON. Of a list, those before it may be stored:
                see `partial`.
        """
        found = parts(events, src, dst, t, msg)
        return self._run(push_events(found, wait, wait_seconds, idempotency_key, self._known))

    def status(self) -> Status:
        """The state of the daemon, part by part: graph, ingest, learner, log, memory."""
        return self._run(operations.status())

    def info(self) -> Info:
        """What runs and what it accepts: version, model, lengths of rows, unit of time, limits."""
        return self._run(operations.info())

    def health(self) -> Health:
        """All checks of the daemon. A failed check is a result, not an exception."""
        return self._run(operations.health("check_health"))

    def ready(self) -> Health:
        """Whether requests should be sent: false during a start and a stop."""
        return self._run(operations.health("check_readiness"))

    def live(self) -> Health:
        """Whether the process works; if not, restart it."""
        return self._run(operations.health("check_liveness"))

    def metrics(self) -> str:
        """The metrics, in the text format of Prometheus."""
        return self._run(operations.metrics())

    def create_checkpoint(self) -> admin.Checkpoint:
        """Writes a checkpoint of everything learned so far, and waits until it is durable. Needs the role admin."""
        return self._run(operations.plain(request("create_checkpoint"), admin.Checkpoint))

    def create_snapshot(self) -> admin.Snapshot:
        """Writes a snapshot of graph, names and rows, and waits until it is durable. Needs the role admin.

        Raises:
            InvalidRequestError: The log has no events yet.
        """
        return self._run(operations.plain(request("create_snapshot"), admin.Snapshot))

    def cut_log(self) -> admin.LogCut:
        """Removes segments of the log that no kept snapshot or checkpoint needs. Needs the role admin.

        Raises:
            InvalidRequestError: There are not two snapshots yet.
        """
        return self._run(operations.plain(request("cut_log"), admin.LogCut))

    def promote_model(self, version: int | None = None) -> admin.ModelVersions:
        """Serves a version of the weights: the candidate, or the previous one or the anchor by its number. Needs admin.

        Raises:
            InvalidRequestError: It is served already or is not at hand, or there is no gate.
            OutcomeUnknownError: It may have been done.
        """
        wanted = request("promote_model", document={"version": version})
        return self._run(operations.plain(wanted, admin.ModelVersions))

    def roll_back_model(self) -> admin.ModelVersions:
        """Serves the previous version again; node memory stays. Needs the role admin.

        Raises:
            InvalidRequestError: There is no previous version, or no gate.
        """
        return self._run(operations.plain(request("roll_back_model"), admin.ModelVersions))

    def reload_settings(self) -> admin.Reload:
        """Reads the settings again, and lists what is in effect now and what waits for a start. Needs the role admin.

        Raises:
            InvalidRequestError: The settings have faults; those in effect stay.
        """
        return self._run(operations.reload_settings())

    def get_log_level(self) -> admin.LogLevel:
        """The log level. Needs the role admin."""
        return self._run(operations.plain(request("get_log_level"), admin.LogLevel))

    def set_log_level(self, level: str) -> admin.LogLevel:
        """Sets the log level until the next start. Needs the role admin.

        Args:
            level: `error`, `warn`, `info`, `debug` or `trace`, or a filter such as `info,evergraph::ingest=debug`.

        Raises:
            InvalidRequestError: It is neither.
        """
        return self._run(operations.plain(request("set_log_level", document={"level": level}), admin.LogLevel))

    def update_source(self, source: str, *, paused: bool) -> admin.SourcePause:
        """Pauses a source of events or resumes it, also across restarts. Needs the role admin.

        Args:
            source: Its name, as in `status().ingest["sources"]`; that of pushes is `http`.
            paused: Whether it is to be paused.

        Raises:
            NotFoundError: No source has this name.
        """
        wanted = request("update_source", path={"source": source}, document={"paused": bool(paused)})
        return self._run(operations.plain(wanted, admin.SourcePause))

    def seek_source(self, source: str, to: str, *, partition: int | None = None, dry_run: bool = False) -> admin.Seek:
        """Moves a paused Kafka source to another place. Needs the role admin.

        Args:
            source: Its name.
            to: `earliest`, `latest`, `offset:N`, or `time:MS`, milliseconds since the Unix epoch.
            partition: Only this partition; all by default.
            dry_run: Whether to report what would be done, and change nothing.

        Raises:
            NotFoundError: No source has this name.
            InvalidRequestError: It is running, is no Kafka source, or has no such position.
        """
        return self._run(operations.seek_source(source, to, partition, dry_run))

    def update_training(self, *, paused: bool) -> admin.Training:
        """Pauses the training of weights or resumes it; events are remembered and served. Needs the role admin.

        Raises:
            InvalidRequestError: The settings do not train.
        """
        return self._run(
            operations.plain(request("update_training", document={"paused": bool(paused)}), admin.Training)
        )

    def _run(self, operation: Operation[T]) -> T:
        """Carries out an operation."""
        steps = with_retries(operation, self._retry)
        outcome: Outcome = None
        while True:
            try:
                step = steps.send(outcome)
            except StopIteration as end:
                result: T = end.value
                return result
            outcome = self._perform(step)

    def _perform(self, step: Step) -> Outcome:
        if isinstance(step, Pause):
            time.sleep(step.seconds)
            return None
        if isinstance(step, Work):
            with self._turn:
                step.run()
            return None
        try:
            response = self._http.request(
                step.method,
                step.path,
                headers=dict(step.headers),
                content=step.body,
                timeout=timeout_of(self._http.timeout, step.wait),
            )
        except httpx2.RequestError as error:
            failure: Failure = failure_of(error, self.url)
            return failure
        return reply_of(response)
