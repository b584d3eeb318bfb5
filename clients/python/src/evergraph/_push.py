"""A push of events: in as many requests as the daemon's limits ask for, with one outcome."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

from ._events import Body, Line, Part, bodies
from ._operations import freshness_of, info
from ._requests import Operation, Reply, Request, is_visible, parsed, rejected_of, request, worked
from .errors import AllRejectedError, EvergraphError, ForbiddenError, NotYetVisibleError, UnknownNodeError
from .results import Freshness, Key, PushResult, Rejected
from .state import Limits

Wait = Literal["durable", "visible"]

IDEMPOTENCY_KEY_MAX = 255

LARGE_EVENTS = 50
"""Events above which bodies are made as `Work`: 0.3 ms without features, where a thread costs 0.1 ms."""

END = Body(b"", 0, 0, False, None)
"""Comes after the bodies of a part."""

PAUSE_SECONDS = 0.05
"""Between two requests that ask whether events are visible: `api.wait_ms_max` may be 0, and then none waits."""


@dataclass(slots=True)
class Known:
    """What a client has asked its daemon once: what a request may hold."""

    limits: Limits | None = None


def push(
    events: Iterable[Part], wait: Wait | None, wait_seconds: float, idempotency_key: str | None, known: Known
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
    cut = _Cut(iter(events), limits, idempotency_key)
    while (body := (yield from _next(cut, total))) is not None:
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


class _Cut:
    """The bodies of a push."""

    def __init__(self, events: Iterable[Part], limits: Limits, idempotency_key: str | None) -> None:
        self._parts = iter(events)
        self._limits = limits
        self._idempotency_key = idempotency_key
        self._repeats: dict[bytes, int] = {}
        self._bodies: Iterator[Body | None] = iter(())
        self._is_large = False

    def following(self) -> Operation[Body | None]:
        """The next body, if there is one. Parts are read here, and bodies made where the client runs it."""
        while True:
            compute: Callable[[], Body | None] = partial(next, self._bodies, END)
            body = yield from worked(compute, self._is_large)
            if body is END:
                if not self._read():
                    return None
            elif body is not None:
                return body

    def _read(self) -> bool:
        """Goes on with the next part, if there is one."""
        part = next(self._parts, None)
        if part is None:
            return False
        name, lines = self._idempotency_key, part.lines
        told_apart = lines if name is None else _told_apart(lines, name, self._repeats)
        self._bodies = bodies(told_apart, self._limits, part.first)
        self._is_large = part.count > LARGE_EVENTS
        return True


def _next(cut: _Cut, stored: PushResult | None) -> Operation[Body | None]:
    """The next body. It reads the caller's events, which may fail after others were stored: then the error says so."""
    try:
        return (yield from cut.following())
    except Exception as error:
        if stored is not None:
            vars(error)["partial"] = stored
            error.add_note(f"{stored.accepted} events were stored before, in {stored.requests} requests")
        raise


def _told_apart(events: Iterable[Line], name: str, repeats: dict[bytes, int]) -> Iterator[Line]:
    """Events of which those that equal an earlier one have keys of their own.

    The daemon tells equal events apart by their order in a body. Here they are told apart by their order in the push,
    so that keys do not depend on where bodies are cut. `repeats` counts those of each earlier event.
    """
    for line in events:
        if line.keyed:
            yield line
            continue
        digest = hashlib.blake2b(line.text, digest_size=16, key=hashlib.blake2b(name.encode()).digest()).digest()
        if digest not in repeats:
            repeats[digest] = 0
            yield line
            continue
        repeats[digest] += 1
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
