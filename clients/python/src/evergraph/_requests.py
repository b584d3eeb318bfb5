"""The shared layer below both clients: requests as values, responses as values, and how an operation asks for them.

An operation is a generator: it yields requests and is sent replies, and its return value is the result. It knows
nothing of sockets, threads or event loops, so that `Client` and `AsyncClient` differ only in how they send.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from functools import partial
from numbers import Integral
from operator import length_hint
from typing import Any, Generic, TypeAlias, TypeVar
from urllib.parse import quote

import numpy as np

from .errors import AllRejectedError, ApiError, MalformedResponseError, class_of
from .results import Key, Rejected

T = TypeVar("T")

Operation: TypeAlias = Generator["Request | Work[Any]", "Reply", T]
"""Yields requests, is sent replies, returns the result; a request that failed is thrown into it.

It also yields computations that may take long, for which nothing is sent.
"""

ROUTES: Mapping[str, tuple[str, str]] = {
    "check_health": ("GET", "/healthz"),
    "check_liveness": ("GET", "/livez"),
    "check_readiness": ("GET", "/readyz"),
    "compute_embeddings": ("POST", "/v1/embeddings"),
    "compute_map": ("GET", "/v1/map"),
    "create_checkpoint": ("POST", "/v1/admin/checkpoints"),
    "create_snapshot": ("POST", "/v1/admin/snapshots"),
    "cut_log": ("POST", "/v1/admin/log/cut"),
    "export_edges": ("GET", "/v1/export/edges"),
    "export_embeddings": ("GET", "/v1/export/embeddings"),
    "find_similar_nodes": ("POST", "/v1/nodes/similar"),
    "find_top_links": ("POST", "/v1/links/top"),
    "get_info": ("GET", "/v1/info"),
    "get_log_level": ("GET", "/v1/admin/log-level"),
    "get_metrics": ("GET", "/metrics"),
    "get_node": ("GET", "/v1/nodes/{key}"),
    "get_status": ("GET", "/v1/status"),
    "list_anomalies": ("GET", "/v1/anomalies"),
    "list_neighbors": ("GET", "/v1/nodes/{key}/neighbors"),
    "promote_model": ("POST", "/v1/admin/model/promote"),
    "push_events": ("POST", "/v1/events"),
    "reload_settings": ("POST", "/v1/admin/reload"),
    "roll_back_model": ("POST", "/v1/admin/model/rollback"),
    "score_links": ("POST", "/v1/links/score"),
    "seek_source": ("POST", "/v1/admin/sources/{source}/seek"),
    "set_log_level": ("PUT", "/v1/admin/log-level"),
    "update_source": ("PUT", "/v1/admin/sources/{source}"),
    "update_training": ("PUT", "/v1/admin/training"),
}
"""Method and path of every operation of the OpenAPI document."""

WAIT_SECONDS = 1.0
"""How long the daemon waits for `min_position` where the request does not say."""

LARGE_VALUES = 1_000
"""Values in a request above which it is made as `Work`."""

LARGE_BYTES = 100_000
"""Bytes of a response above which it is read as `Work`."""

SLICE_ITEMS = 32
"""Items of a list that are encoded at once."""

READS = frozenset(
    name for name in ROUTES if name.split("_")[0] in {"check", "compute", "export", "find", "get", "list", "score"}
)
"""Operations that change nothing, and so may be sent again."""


@dataclass(frozen=True, slots=True)
class Request:
    """A request, whose path and query are percent-encoded.

    Attributes:
        repeatable: Whether it may be sent again.
        reports: Whether 503 may come with a report of checks, which is a result.
        pause: Seconds to wait before it is sent.
        wait: For how long the daemon may wait before it responds, seconds.
        until: Time of `time.monotonic` from which on it is not sent again.
    """

    operation: str
    method: str
    path: str
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes | None = None
    repeatable: bool = False
    reports: bool = False
    pause: float = 0.0
    wait: float = 0.0
    until: float | None = None

    def is_answered(self, reply: Reply) -> bool:
        """Whether a response is the result, and no error."""
        return reply.status == 200 or (self.reports and reply.status == 503 and _is_report(reply))


@dataclass(frozen=True, slots=True)
class Reply:
    """A response as it came; names of headers are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Work(Generic[T]):
    """A computation that may take long: a client runs it, where and when others are not kept waiting."""

    def __init__(self, compute: Callable[[], T]) -> None:
        self._compute = compute
        self._results: list[T] = []
        self._error: Exception | None = None

    def run(self) -> None:
        """Computes the result, or keeps the exception for `result`."""
        try:
            self._results.append(self._compute())
        except Exception as error:
            self._error = error

    def result(self) -> T:
        """The result; it must have been computed."""
        if self._error is not None:
            raise self._error
        return self._results[0]


def worked(compute: Callable[[], T], is_large: bool) -> Operation[T]:
    """The result of a computation, which the client runs if it is large."""
    if not is_large:
        return compute()
    work = Work(compute)
    yield work
    return work.result()


def path_segment(text: str) -> str:
    """A text as one segment of a path. Dots alone would be taken for a step in the tree of paths."""
    return "%2E" * len(text) if text in {".", ".."} else quote(text, safe="")


def request(
    operation: str,
    *,
    path: Mapping[str, str] | None = None,
    query: Mapping[str, object] | None = None,
    document: Mapping[str, Any] | None = None,
) -> Request:
    """The request of an operation. Members of `query` and `document` that are `None` are left out."""
    method, template = ROUTES[operation]
    place = template.format_map({name: path_segment(value) for name, value in (path or {}).items()})
    pairs = [f"{name}={quote(_word(value), safe='')}" for name, value in (query or {}).items() if value is not None]
    if pairs:
        place += "?" + "&".join(pairs)
    headers: tuple[tuple[str, str], ...] = ()
    body = None
    if document is not None:
        body = encode_in_slices({name: value for name, value in document.items() if value is not None})
        headers = (("content-type", "application/json"),)
    elif method != "GET":
        body = b""
    wait = _wait({**(query or {}), **(document or {})})
    return Request(operation, method, place, headers, body, operation in READS, wait=wait)


def _wait(members: Mapping[str, object]) -> float:
    """For how long the daemon waits for `min_position`, seconds."""
    wait_ms = members.get("wait_ms")
    if members.get("min_position") is None:
        return 0.0
    return max(0, int(wait_ms)) / 1000 if isinstance(wait_ms, Integral) else WAIT_SECONDS


def is_visible(text: str) -> bool:
    """Whether a text is visible ASCII, as a key in a header has to be."""
    return bool(text) and all("!" <= character <= "~" for character in text)


def _word(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def encode(document: Any) -> bytes:
    """JSON without blanks.

    Raises:
        ValueError: A number is not finite, which JSON cannot express.
        TypeError: A value has no form in JSON.
    """
    return _ENCODER.encode(document).encode()


def encode_in_slices(value: Any) -> bytes:
    """As `encode`. Long lists and arrays are encoded slice by slice, as other threads wait while one is."""
    if isinstance(value, dict):
        return b"{%b}" % b",".join([encode(name) + b":" + encode_in_slices(member) for name, member in value.items()])
    if not isinstance(value, list | np.ndarray) or len(value) <= SLICE_ITEMS:
        return encode(value)
    slices = (value[start : start + SLICE_ITEMS] for start in range(0, len(value), SLICE_ITEMS))
    return b"[%b]" % b",".join([encode(one)[1:-1] for one in slices])


def _values_count(document: Mapping[str, Any]) -> int:
    """About how many values a document has."""
    return sum(np.size(value) if isinstance(value, np.ndarray) else length_hint(value) for value in document.values())


def _plain(value: Any) -> Any:
    """NumPy's and Arrow's values as those of Python."""
    plain = getattr(value, "tolist", None) or getattr(value, "as_py", None)
    if plain is None:
        raise TypeError(f"{value!r} ({type(value).__name__}) cannot be written as JSON")
    return plain()


_ENCODER = json.JSONEncoder(separators=(",", ":"), allow_nan=False, default=_plain)


def key_of(value: object) -> Key:
    """A node key as JSON has it: integers and strings of NumPy and Arrow become Python's.

    Raises:
        TypeError: It is neither a string nor an integer.
    """
    plain: object = value
    if not isinstance(value, str | int):
        convert = getattr(value, "item", None) or getattr(value, "as_py", None)
        plain = value if convert is None else convert()
    if isinstance(plain, str | int) and not isinstance(plain, bool):
        return str(plain) if isinstance(plain, str) else plain
    raise TypeError(f"{value!r} ({type(value).__name__}) is no node key; use a string or an integer")


def post(operation: str, document: Mapping[str, Any], parse: Callable[[Any], T]) -> Operation[T]:
    """The operation of one request with a body and a response in JSON."""
    compute = partial(request, operation, document=document)
    wanted = yield from worked(compute, _values_count(document) > LARGE_VALUES)
    return (yield from call(wanted, parse))


def call(wanted: Request, parse: Callable[[Any], T]) -> Operation[T]:
    """The operation of one request with a response in JSON."""
    reply = yield wanted
    compute = partial(parsed, wanted.operation, reply, parse)
    return (yield from worked(compute, len(reply.body) > LARGE_BYTES))


def parsed(operation: str, reply: Reply, parse: Callable[[Any], T]) -> T:
    """What `parse` makes of a response in JSON.

    Raises:
        MalformedResponseError: It is not the response of the operation.
    """
    try:
        return parse(json.loads(reply.body))
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        beginning = reply.body[:120].decode(errors="replace")
        raise MalformedResponseError(
            f"{operation}: the response ({reply.status}, {len(reply.body)} bytes) is not one of Evergraph "
            f"({type(error).__name__}: {error}); check the address, and that the versions fit; it begins: {beginning!r}"
        ) from error


def error_of(operation: str, reply: Reply) -> ApiError:
    """The exception of an error response, from the daemon or from what stands in between."""
    try:
        document = json.loads(reply.body)
        error_type, message = str(document["error_type"]), str(document["error"])
        details, request_id = dict(document["details"]), str(document["request_id"])
    except (ValueError, LookupError, TypeError):
        error_type, details, request_id = "", {}, reply.headers.get("x-request-id", "")
        message = reply.body[:300].decode(errors="replace").strip() or "the response has no body"
    found = class_of(reply.status, error_type)
    error = found(operation, reply.status, error_type, message, details, request_id or None, retry_after(reply))
    if isinstance(error, AllRejectedError):
        error.rejected, error.rejected_count = _rejected(details)
    return error


def _rejected(details: Mapping[str, Any]) -> tuple[tuple[Rejected, ...], int]:
    try:
        rejected = tuple(rejected_of(entry) for entry in details["rejected"])
        return rejected, int(details["rejected_count"])
    except (ValueError, LookupError, TypeError):
        return (), 0


def rejected_of(entry: Mapping[str, Any]) -> Rejected:
    """A rejected event of a response."""
    return Rejected(int(entry["index"]), str(entry["reason"]), str(entry["detail"]))


def _is_report(reply: Reply) -> bool:
    """Whether it is the daemon's report of its checks, and not of what stands in between."""
    try:
        return isinstance(json.loads(reply.body)["checks"], dict)
    except (ValueError, LookupError, TypeError):
        return False


def retry_after(reply: Reply) -> float | None:
    """Seconds of the header `Retry-After`; `None` without one, and for dates, which the daemon does not send."""
    try:
        seconds = float(reply.headers["retry-after"])
    except (KeyError, ValueError):
        return None
    return seconds if 0 <= seconds < float("inf") else None
