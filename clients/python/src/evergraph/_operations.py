"""What each method of the clients asks for, and what becomes of the responses."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import admin
from ._requests import Operation, Request, call, key_of, post, request
from ._vectors import decode_vectors
from .errors import MalformedResponseError
from .results import (
    NO_TIME,
    Anomalies,
    Embeddings,
    Freshness,
    IndexFacts,
    Key,
    NeighborPage,
    Node,
    NodeMap,
    Ranking,
    Rankings,
    Scores,
)
from .state import Check, Health, Info, Limits, Status

T = TypeVar("T")

Unknown = Literal["error", "prior"]


def keys_of(keys: Iterable[Any] | Key, name: str) -> list[Key]:
    """Node keys of a request, one or many.

    Raises:
        ValueError: There are none.
        TypeError: One is no node key.
    """
    is_one = isinstance(keys, str | int | bytes | bytearray) or getattr(keys, "ndim", 1) == 0 or hasattr(keys, "as_py")
    many: Iterable[Any] = [keys] if is_one else keys  # type: ignore[assignment]
    found = [key_of(key) for key in many]
    if not found:
        raise ValueError(f"{name} is empty; list at least one")
    return found


def freshness_of(document: Mapping[str, Any]) -> Freshness:
    """The freshness of a response."""
    watermark = document["watermark"]
    return Freshness(
        int(document["model_version"]),
        None if watermark is None else int(watermark),
        int(document["applied_position"]),
        int(document["indexed_position"]),
        int(document["durable_position"]),
    )


def embeddings(
    nodes: list[Key], at: int | None, unknown: Unknown, min_position: int | None, wait_ms: int | None
) -> Operation[Embeddings]:
    """Embeddings of nodes."""
    document = {
        "nodes": nodes,
        "at": at,
        "unknown": unknown,
        "encoding_format": "base64",
        "min_position": min_position,
        "wait_ms": wait_ms,
    }
    result = yield from post("compute_embeddings", document, lambda body: embeddings_of(nodes, body))
    if result.array.shape[1]:
        return result
    width = (yield from info()).embedding_dimension  # no vector shows it
    return replace(result, array=np.full((len(nodes), width), np.nan, np.float32))


def embeddings_of(nodes: Sequence[Key], document: Mapping[str, Any]) -> Embeddings:
    """The embeddings of a response."""
    entries = document["embeddings"]
    count = _fits(len(entries), len(nodes))
    found = np.fromiter(("embedding" in entry for entry in entries), np.bool_, count)
    vectors = decode_vectors([entry["embedding"] for entry in entries if "embedding" in entry])
    array = vectors
    if len(vectors) < count:
        array = np.full((count, vectors.shape[1]), np.nan, np.float32)
        array[found] = vectors
    last_event = (entry.get("last_event") for entry in entries)
    return Embeddings(
        nodes=tuple(nodes),
        array=array,
        found=found,
        cold=np.fromiter((entry.get("cold", False) for entry in entries), np.bool_, count),
        last_event=np.fromiter((NO_TIME if at is None else at for at in last_event), np.int64, count),
        errors={place: str(entry["error"]) for place, entry in enumerate(entries) if "error" in entry},
        at=int(document["at"]),
        source=str(document["source"]),
        freshness=freshness_of(document["freshness"]),
    )


def _fits(found: int, expected: int) -> int:
    if found != expected:
        raise ValueError(f"{found} entries for {expected}")
    return found


def score(
    src: Iterable[Any] | Key,
    dst: Iterable[Any] | Key,
    at: int | None,
    unknown: Unknown,
    min_position: int | None,
    wait_ms: int | None,
) -> Operation[Scores]:
    """Scores of pairs; one source or destination goes with all of the others."""
    sources, destinations = keys_of(src, "src"), keys_of(dst, "dst")
    if len(sources) == 1:
        sources = sources * len(destinations)
    if len(destinations) == 1:
        destinations = destinations * len(sources)
    if len(sources) != len(destinations):
        raise ValueError(f"{len(sources)} sources and {len(destinations)} destinations; give as many of both, or one")
    pairs = [{"src": one, "dst": other} for one, other in zip(sources, destinations, strict=True)]
    document = {"pairs": pairs, "at": at, "unknown": unknown, "min_position": min_position, "wait_ms": wait_ms}
    return post("score_links", document, lambda body: _scores_of(sources, destinations, body))


def _scores_of(src: Sequence[Key], dst: Sequence[Key], document: Mapping[str, Any]) -> Scores:
    entries = document["scores"]
    count = _fits(len(entries), len(src))
    missing = {place: entry for place, entry in enumerate(entries) if "error" in entry}
    return Scores(
        src=tuple(src),
        dst=tuple(dst),
        array=np.fromiter((entry.get("score", np.nan) for entry in entries), np.float32, count),
        percentile=np.fromiter((_or_nan(entry.get("percentile")) for entry in entries), np.float32, count),
        found=np.fromiter(("score" in entry for entry in entries), np.bool_, count),
        cold=np.fromiter((entry.get("cold", False) for entry in entries), np.bool_, count),
        errors={place: str(entry["error"]) for place, entry in missing.items()},
        unknown={place: tuple(entry["unknown"]) for place, entry in missing.items() if entry["unknown"]},
        at=int(document["at"]),
        source=str(document["source"]),
        freshness=freshness_of(document["freshness"]),
    )


def _or_nan(value: float | None) -> float:
    return float("nan") if value is None else value


def candidates(
    role: str | None, key_prefix: str | None, edge_type: str | None, keys: Iterable[Any] | None
) -> dict[str, Any] | None:
    """What may be found, as a member of a request; `None` without any bound."""
    listed = None if keys is None else keys_of(keys, "candidates")
    wanted = {"role": role, "key_prefix": key_prefix, "type": edge_type, "keys": listed}
    given = {name: value for name, value in wanted.items() if value is not None}
    return given or None


def top(
    src: Iterable[Any] | Key,
    limit: int,
    within: dict[str, Any] | None,
    exclude_met: bool,
    exact: bool,
    min_position: int | None,
    wait_ms: int | None,
) -> Operation[Rankings]:
    """The likeliest destinations of sources."""
    document = {
        "src": keys_of(src, "src"),
        "limit": int(limit),
        "candidates": within,
        "exclude_met": bool(exclude_met),
        "exact": bool(exact),
        "min_position": min_position,
        "wait_ms": wait_ms,
    }
    return post("find_top_links", document, lambda body: _rankings_of(body, _top_of))


def similar(
    nodes: Iterable[Any] | Key | None,
    vectors: ArrayLike | None,
    limit: int,
    metric: Literal["cosine", "dot"],
    within: dict[str, Any] | None,
    min_position: int | None,
    wait_ms: int | None,
) -> Operation[Rankings]:
    """The nodes most like others, or like vectors."""
    if (nodes is None) == (vectors is None):
        raise TypeError("give nodes or vectors, one of them")
    document = {
        "nodes": None if nodes is None else keys_of(nodes, "nodes"),
        "vectors": None if vectors is None else np.atleast_2d(np.asarray(vectors, np.float32)),
        "limit": int(limit),
        "metric": metric,
        "candidates": within,
        "min_position": min_position,
        "wait_ms": wait_ms,
    }
    return post("find_similar_nodes", document, lambda body: _rankings_of(body, _similar_of))


def _top_of(entry: Mapping[str, Any]) -> Ranking:
    found = entry["top"]
    nodes = tuple(one["dst"] for one in found)
    return Ranking(entry["src"], nodes, *_figures_of(found), str(entry["ranked_by"]), bool(entry["cold"]))


def _similar_of(entry: Mapping[str, Any]) -> Ranking:
    found = [] if "error" in entry else entry["similar"]
    nodes = tuple(one["node"] for one in found)
    return Ranking(entry.get("node"), nodes, *_figures_of(found), error=entry.get("error"))


def _figures_of(found: Sequence[Mapping[str, Any]]) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    scores = np.fromiter((one["score"] for one in found), np.float32, len(found))
    return scores, np.fromiter((one["cold"] for one in found), np.bool_, len(found))


def _rankings_of(document: Mapping[str, Any], of: Any) -> Rankings:
    index = document["index"]
    return Rankings(
        results=tuple(of(entry) for entry in document["results"]),
        unknown_candidates=tuple(document["unknown_candidates"]),
        at=int(document["at"]),
        source=str(document["source"]),
        freshness=freshness_of(document["freshness"]),
        index=IndexFacts(
            int(index["model_version"]),
            int(index["complete_to_position"]),
            int(index["pending_nodes"]),
            float(index["oldest_row_seconds"]),
            int(index["scanned"]),
            bool(index["exact"]),
        ),
    )


def table(operation: str) -> Operation[Any]:
    """The table of an export."""
    try:
        import pyarrow as pa
    except ImportError as error:
        raise ImportError("tables need pyarrow; install evergraph[arrow]") from error
    sent = replace(request(operation), headers=(("accept", "application/vnd.apache.arrow.stream"),))
    reply = yield sent
    try:
        return pa.ipc.open_stream(reply.body).read_all()
    except pa.ArrowInvalid as error:
        raise MalformedResponseError(f"{operation}: the response is no Arrow stream: {error}") from error


def anomalies(limit: int | None, percentile: float | None) -> Operation[Anomalies]:
    """The latest unusual events."""
    query = {"limit": limit, "percentile": percentile}
    return call(request("list_anomalies", query=query), _anomalies_of)


def _anomalies_of(document: Mapping[str, Any]) -> Anomalies:
    entries = document["anomalies"]
    return Anomalies(
        src=tuple(entry["src"] for entry in entries),
        dst=tuple(entry["dst"] for entry in entries),
        time=_numbers(entries, "time"),
        position=_numbers(entries, "position"),
        array=np.fromiter((entry["score"] for entry in entries), np.float32, len(entries)),
        percentile=np.fromiter((entry["percentile"] for entry in entries), np.float32, len(entries)),
        percentile_min=float(document["percentile_min"]),
        freshness=freshness_of(document["freshness"]),
    )


def node_map(limit: int | None) -> Operation[NodeMap]:
    """Nodes in the plane."""
    return call(request("compute_map", query={"limit": limit}), _map_of)


def _map_of(document: Mapping[str, Any]) -> NodeMap:
    entries = document["nodes"]
    one, other = document["explained"]
    return NodeMap(
        nodes=tuple(entry["node"] for entry in entries),
        places=np.array([[entry["x"], entry["y"]] for entry in entries], np.float32).reshape(len(entries), 2),
        degree=_numbers(entries, "degree"),
        destination=np.fromiter((entry["destination"] for entry in entries), np.bool_, len(entries)),
        explained=(float(one), float(other)),
        nodes_total=int(document["nodes_total"]),
        at=int(document["at"]),
        source=str(document["source"]),
        freshness=freshness_of(document["freshness"]),
    )


def node(key: Any, neighbors: int | None, min_position: int | None, wait_ms: int | None) -> Operation[Node]:
    """A node's record."""
    query = {"neighbors": neighbors, "min_position": min_position, "wait_ms": wait_ms}
    return call(request("get_node", path={"key": str(key_of(key))}, query=query), _node_of)


def _node_of(document: Mapping[str, Any]) -> Node:
    edges = document["neighbors"]
    return Node(
        node=document["node"],
        degree=int(document["degree"]),
        last_event=document["last_event"],
        learned_event=document["learned_event"],
        neighbors=tuple(edge["node"] for edge in edges),
        time=_numbers(edges, "time"),
        position=_numbers(edges, "position"),
        freshness=freshness_of(document["freshness"]),
    )


def _numbers(edges: Sequence[Mapping[str, Any]], name: str) -> NDArray[np.int64]:
    return np.fromiter((edge[name] for edge in edges), np.int64, len(edges))


def neighbors(key: Any, features: bool, query: Mapping[str, object]) -> Operation[NeighborPage]:
    """A page of a node's edges."""
    wanted = request("list_neighbors", path={"key": str(key_of(key))}, query={**query, "features": features or None})
    return call(wanted, lambda body: _page_of(body, features))


def _page_of(document: Mapping[str, Any], features: bool) -> NeighborPage:
    edges = document["neighbors"]
    following = document["next"]
    return NeighborPage(
        node=document["node"],
        neighbors=tuple(edge["node"] for edge in edges),
        outgoing=np.fromiter((edge["direction"] == "out" for edge in edges), np.bool_, len(edges)),
        time=_numbers(edges, "time"),
        position=_numbers(edges, "position"),
        types=tuple(edge.get("type") for edge in edges),
        features=_features_of(edges) if features else None,
        next=None if following is None else str(following),
        freshness=freshness_of(document["freshness"]),
    )


def _features_of(edges: Sequence[Mapping[str, Any]]) -> NDArray[np.float32]:
    rows = [edge.get("features") for edge in edges]
    width = next((len(row) for row in rows if row is not None), 0)
    return np.array([[np.nan] * width if row is None else row for row in rows], np.float32).reshape(len(rows), width)


def status() -> Operation[Status]:
    """The state of the daemon."""
    return call(request("get_status"), _status_of)


def _status_of(document: Mapping[str, Any]) -> Status:
    parts = {name: dict(document[name]) for name in ("graph", "ingest", "learner", "log", "memory")}
    return Status(
        str(document["version"]),
        str(document["device"]),
        float(document["uptime_seconds"]),
        int(document["resident_bytes"]),
        freshness_of(document["freshness"]),
        **parts,
    )


def info() -> Operation[Info]:
    """What runs and what it accepts."""
    return call(request("get_info"), _info_of)


def _info_of(document: Mapping[str, Any]) -> Info:
    names = ("name", "version", "model", "device", "embedding_dimension", "edge_feature_dimension")
    values = {name: document[name] for name in (*names, "node_feature_dimension", "started_unix_ms")}
    limits = document["limits"]
    bounds = Limits(**{name: int(limits[name]) for name in Limits.__slots__})
    return Info(**values, time_unit=document["time_unit"], limits=bounds)


def health(operation: str) -> Operation[Health]:
    """Checks of the daemon. It responds with 503 if one failed, and then has the same report."""
    return call(replace(request(operation), reports=True), _health_of)


def _health_of(document: Mapping[str, Any]) -> Health:
    checks = document["checks"]
    found = {name: Check(str(check["state"]), str(check["detail"])) for name, check in checks.items()}
    return Health(str(document["status"]), found)


def metrics() -> Operation[str]:
    """The metrics as text."""
    reply = yield request("get_metrics")
    return reply.body.decode()


def plain(wanted: Request, form: type[T]) -> Operation[T]:
    """The operation of an operator, whose response has the members of `form`."""
    names: Sequence[str] = form.__slots__  # type: ignore[attr-defined]
    return call(wanted, lambda body: form(**{name: body[name] for name in names}))


def reload_settings() -> Operation[admin.Reload]:
    """Reads the settings again."""

    def changes(entries: Sequence[Mapping[str, Any]]) -> tuple[admin.ChangedSetting, ...]:
        return tuple(admin.ChangedSetting(str(one["key"]), one["before"], one["now"]) for one in entries)

    wanted = request("reload_settings")
    return call(wanted, lambda body: admin.Reload(changes(body["applied"]), changes(body["waiting"])))


def seek_source(source: str, to: str, partition: int | None, dry_run: bool) -> Operation[admin.Seek]:
    """Moves a Kafka source."""

    def seek(body: Mapping[str, Any]) -> admin.Seek:
        names = [name for name in admin.PartitionSeek.__slots__ if name != "from_offset"]
        moved = [{name: int(one[name]) for name in names} | {"from_offset": one["from"]} for one in body["partitions"]]
        return admin.Seek(str(body["source"]), bool(body["done"]), tuple(admin.PartitionSeek(**one) for one in moved))

    document = {"to": to, "partition": partition, "dry_run": bool(dry_run)}
    return call(request("seek_source", path={"source": source}, document=document), seek)
