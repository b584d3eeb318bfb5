"""A push of events: in as many requests as the daemon's limits ask for, with one outcome."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

from ._events import Body, Line, bodies
from ._operations import freshness_of, info
from ._requests import Operation, Reply, Request, is_visible, parsed, rejected_of, request
from .errors import AllRejectedError, EvergraphError, ForbiddenError, NotYetVisibleError, UnknownNodeError
from .results import Freshness, Key, PushResult, Rejected
from .state import Limits

Wait = Literal["durable", "visible"]

IDEMPOTENCY_KEY_MAX = 255

PAUSE_SECONDS = 0.05
"""Between two requests that ask whether events are visible: `api.wait_ms_max` may be 0, and then none waits."""


@dataclass(slots=True)
class Known:
    """What a client has asked its daemon once: what a request may hold."""

    limits: Limits | None = None


def push(
    events: Iterable[Line], wait: Wait | None, wait_seconds: float, idempotency_key: str | None, known: Known
) -> Operation[PushResult]:
    """Stores events, in as many requests as the limits of the daemon ask for."""
    if wait not in ("durable", "visible", None):
        raise ValueError(f'wait is {wait!r}; it must be "durable", "visible" or None')
    if idempotency_key is not None:
        _check_key(idempotency_key)
    if known.limits is None:
        known.limits = yield from _limits()
    limits = known.limits
    total: PushResult | None = None
    nothing: AllRejectedError | None = None
    found: Key | None = None
    cut = bodies(events if idempotency_key is None else _told_apart(events, idempotency_key), limits)
    while (body := _next(cut, total)) is not None:
        found = body.node if found is None else found
        try:
            reply = yield _push_request(body, idempotency_key)
            outcome = parsed("push_events", reply, partial(_outcome_of, first=body.first))
        except AllRejectedError as error:
            rejected = tuple(Rejected(one.index + body.first, one.reason, one.detail) for one in error.rejected)
            empty = Freshness(0, None, 0, 0, 0)
            outcome = PushResult(0, 0, 0, 0, rejected, error.rejected_count, 1, empty)
            nothing = nothing or error
        except EvergraphError as error:
            known.limits = None  # they may be others by now
            error.partial = total
            raise
        total = outcome if total is None else _merged(total, outcome)
    if total is None:
        raise ValueError("there are no events to push")
    if nothing is not None and total.accepted + total.duplicates == 0:
        nothing.rejected, nothing.rejected_count = total.rejected, total.rejected_count
        raise nothing
    if wait == "visible":
        total = yield from _until_visible(total, "0" if found is None else str(found), limits, wait_seconds)
    return total


def _check_key(idempotency_key: str) -> None:
    if not 1 <= len(idempotency_key) <= IDEMPOTENCY_KEY_MAX:
        raise ValueError(f"the idempotency key has {len(idempotency_key)} characters, not 1 to {IDEMPOTENCY_KEY_MAX}")
    if not is_visible(idempotency_key):
        raise ValueError("the idempotency key must be visible ASCII characters; strip line ends and blanks")


def _limits() -> Operation[Limits]:
    """What a request may ask for. A key that may only write cannot ask, and the defaults stand in."""
    try:
        return (yield from info()).limits
    except ForbiddenError:
        return Limits()


def _next(cut: Iterator[Body], stored: PushResult | None) -> Body | None:
    """The next body. It reads the caller's events, which may fail after others were stored: then the error says so."""
    try:
        return next(cut, None)
    except Exception as error:
        if stored is not None:
            vars(error)["partial"] = stored
            error.add_note(f"{stored.accepted} events were stored before, in {stored.requests} requests")
        raise


def _told_apart(events: Iterable[Line], name: str) -> Iterator[Line]:
    """Events of which those that equal an earlier one have keys of their own.

    The daemon tells equal events apart by their order in a body. Here they are told apart by their order in the push,
    so that keys do not depend on where bodies are cut.
    """
    seen: set[bytes] = set()
    repeats: dict[bytes, int] = {}
    for line in events:
        if line.keyed:
            yield line
            continue
        digest = hashlib.blake2b(line.text, digest_size=16, key=hashlib.blake2b(name.encode()).digest()).digest()
        if digest not in seen:
            seen.add(digest)
            yield line
            continue
        repeats[digest] = repeats.get(digest, 0) + 1
        yield line.with_key(f"{digest.hex()}/{repeats[digest]}")


def _push_request(body: Body, idempotency_key: str | None) -> Request:
    headers: tuple[tuple[str, str], ...] = (("content-type", "application/x-ndjson"),)
    if idempotency_key is not None:
        headers += (("idempotency-key", idempotency_key),)
    repeatable = body.keyed or idempotency_key is not None
    return Request("push_events", "POST", "/v1/events", headers, body.text, repeatable)


def _outcome_of(document: Mapping[str, Any], first: int) -> PushResult:
    entries = [rejected_of(entry) for entry in document["rejected"]]
    rejected = tuple(Rejected(one.index + first, one.reason, one.detail) for one in entries)
    positions = [int(document[name]) for name in ("first_position", "end_position", "accepted", "duplicates")]
    freshness = freshness_of(document["freshness"])
    return PushResult(positions[0], positions[1], positions[2], positions[3], rejected, len(rejected), 1, freshness)


def _merged(one: PushResult, other: PushResult) -> PushResult:
    return PushResult(
        first_position=one.first_position if one.accepted else other.first_position,
        end_position=max(one.end_position, other.end_position),
        accepted=one.accepted + other.accepted,
        duplicates=one.duplicates + other.duplicates,
        rejected=one.rejected + other.rejected,
        rejected_count=one.rejected_count + other.rejected_count,
        requests=one.requests + other.requests,
        freshness=max(one.freshness, other.freshness, key=lambda freshness: freshness.durable_position),
    )


def _until_visible(total: PushResult, key: str, limits: Limits, seconds: float) -> Operation[PushResult]:
    """Waits until what was pushed is reflected, by requests that wait in the daemon."""
    deadline = time.monotonic() + seconds
    pause = 0.0
    while True:
        left_ms = max(0, round(1000 * (deadline - time.monotonic() - pause)))
        query = {
            "neighbors": 0,
            "min_position": total.end_position,
            "wait_ms": min(left_ms, limits.wait_ms_max),
        }
        wanted = request("get_node", path={"key": key}, query=query)
        try:
            reply: Reply = yield replace(wanted, pause=pause, until=deadline)
        except UnknownNodeError as error:  # the position was reached; the node may have been deleted
            freshness = freshness_of(error.details["freshness"])
        except NotYetVisibleError as error:
            left = deadline - time.monotonic()
            if left > 0:
                pause = min(PAUSE_SECONDS, left)
                continue
            error.partial = total
            raise
        except EvergraphError as error:
            error.partial = total
            raise
        else:
            freshness = parsed("get_node", reply, lambda body: freshness_of(body["freshness"]))
        return replace(total, freshness=freshness)
