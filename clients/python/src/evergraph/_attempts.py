"""When a request is sent again: a plan in values, which the clients carry out with their kind of waiting."""

from __future__ import annotations

import random
import time
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from ._requests import Operation, Reply, Request, Work, error_of
from .errors import ApiError, ConnectionFailedError

T = TypeVar("T")

STATUSES = frozenset({429, 502, 503, 504})
"""Responses after which a repeatable request is sent again."""


@dataclass(frozen=True, slots=True)
class Retry:
    """How often and how soon requests are sent again that may be: reads, and pushes with idempotency keys.

    Before attempt n + 1 it waits for a random time up to `backoff * 2**(n - 1)` seconds and `wait_max`, at least for
    half of that, and at least for as long as `Retry-After` says. A request is given up at once if that is longer than
    `wait_max`.

    Attributes:
        attempts: Most attempts, the first included; 1: nothing is sent again.
        backoff: First wait, seconds.
        wait_max: Longest wait before an attempt, seconds.
    """

    attempts: int = 4
    backoff: float = 0.2
    wait_max: float = 10.0

    def __post_init__(self) -> None:
        if self.attempts < 1 or self.backoff < 0 or self.wait_max < 0:
            raise ValueError(f"{self}: attempts must be at least 1, and times at least 0")

    def wait(self, failures: int, retry_after: float | None) -> float | None:
        """Seconds to wait after so many failures; `None`: give up."""
        if failures >= self.attempts or (retry_after or 0) > self.wait_max:
            return None
        most = min(self.backoff * 2.0 ** (failures - 1), self.wait_max)
        return max(most * random.uniform(0.5, 1.0), retry_after or 0.0)  # noqa: S311 (spreads load, keeps no secret)


@dataclass(frozen=True, slots=True)
class Pause:
    """A wait before the next attempt."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Failure:
    """A request without a response; `passes`: it may get one if it is sent again."""

    reason: str
    cause: Exception
    passes: bool = True


Step: TypeAlias = Request | Pause | Work[Any]
Outcome: TypeAlias = Reply | Failure | None


def with_retries(operation: Operation[T], retry: Retry) -> Generator[Step, Outcome, T]:
    """An operation with its retries: yields what to do, is sent what came of it, and returns the result.

    Raises:
        ApiError: A request failed for good, and the operation did not handle that.
        ConnectionFailedError: No response came.
    """
    try:
        wanted = next(operation)
        while True:
            if isinstance(wanted, Work):
                yield wanted
                wanted = next(operation)
                continue
            try:
                reply = yield from _attempt(wanted, retry)
            except (ApiError, ConnectionFailedError) as error:
                wanted = operation.throw(error)
            else:
                wanted = operation.send(reply)
    except StopIteration as end:
        result: T = end.value
        return result
    finally:
        operation.close()


def _attempt(wanted: Request, retry: Retry) -> Generator[Step, Outcome, Reply]:
    failures = 0
    if wanted.pause > 0:
        yield Pause(wanted.pause)
    while True:
        outcome = yield wanted
        if isinstance(outcome, Reply) and wanted.is_answered(outcome):
            return outcome
        error: ApiError | ConnectionFailedError
        if isinstance(outcome, Reply):
            error = api = error_of(wanted.operation, outcome)
            again, after = api.status in STATUSES, api.retry_after
        else:
            failure = outcome if isinstance(outcome, Failure) else Failure("no outcome", RuntimeError())
            error = ConnectionFailedError(f"{wanted.operation}: {failure.reason}")
            error.__cause__ = failure.cause
            again, after = failure.passes, None
        failures += 1
        seconds = retry.wait(failures, after) if again and wanted.repeatable else None
        if seconds is None or (wanted.until is not None and time.monotonic() + seconds >= wanted.until):
            raise error
        yield Pause(seconds)
