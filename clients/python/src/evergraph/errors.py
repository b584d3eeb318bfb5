"""What can go wrong, as exceptions. All derive from `EvergraphError`; those that the daemon reports from `ApiError`.

Programs read `error_type`, one of the words that the daemon documents; people read the message.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .results import PushResult, Rejected


class EvergraphError(Exception):
    """The base of all exceptions of this package.

    Attributes:
        partial: After a push in several requests: the outcome of those before the one that failed. `None` elsewhere.
            Other exceptions that end such a push, as a `ValueError` for an event, have it as well, and a note of it.
    """

    partial: PushResult | None = None


class ConnectionFailedError(EvergraphError):
    """No response came whole: the daemon cannot be reached, or the connection broke or timed out.

    What was sent may have been stored or done. `__cause__` has more.
    """


class MalformedResponseError(EvergraphError):
    """A response came that is not one of Evergraph's API: another program, or a version that does not fit."""


class ApiError(EvergraphError):
    """The daemon refused a request or failed on it.

    Attributes:
        operation: The operation as the OpenAPI document names it, such as `push_events`.
        status: The status code.
        error_type: The daemon's word for the failure; empty if the response is not the daemon's, as from a proxy.
        message: What went wrong and what to do, for people.
        details: Facts about the failure; their names depend on `error_type`.
        request_id: The id under which the daemon's log has the request; `None` if the response has none.
        retry_after: Seconds after which to try again; `None` if the response does not say so.
    """

    def __init__(
        self,
        operation: str,
        status: int,
        error_type: str,
        message: str,
        details: Mapping[str, Any] | None = None,
        request_id: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        self.operation = operation
        self.status = status
        self.error_type = error_type
        self.message = message
        self.details: Mapping[str, Any] = details or {}
        self.request_id = request_id
        self.retry_after = retry_after
        super().__init__(message)

    def __reduce__(self) -> tuple[Any, ...]:
        arguments = (self.operation, self.status, self.error_type, self.message, self.details)
        return type(self), (*arguments, self.request_id, self.retry_after), vars(self)

    def __str__(self) -> str:
        place = f", request {self.request_id}" if self.request_id else ""
        word = f" {self.error_type}" if self.error_type else ""
        stored = ""
        if self.partial is not None and self.partial.accepted + self.partial.duplicates > 0:
            stored = f"; {self.partial.accepted} events were stored before"
        return f"{self.operation}: {self.status}{word}: {self.message}{stored}{place}"


class InvalidRequestError(ApiError):
    """A value is not allowed, or the body cannot be read (400, 413, 415, 422 and other 4xx)."""


class AllRejectedError(InvalidRequestError):
    """Every event of a push was rejected (`all_rejected`); each is a dead letter.

    Attributes:
        rejected: The first of them, 100 of a request at most, with their places in the push.
        rejected_count: How many they are.
    """

    rejected: tuple[Rejected, ...] = ()
    rejected_count: int = 0


class AuthenticationError(ApiError):
    """The request has no key, or one that the daemon does not know (401)."""


class ForbiddenError(ApiError):
    """The key has another role, or the daemon has no keys and the request is not local (403)."""


class NotFoundError(ApiError):
    """There is no such node, source or route, or what it needs is switched off (404)."""


class UnknownNodeError(NotFoundError):
    """The graph does not know the node (`unknown_node`)."""


class IndexDisabledError(NotFoundError):
    """The daemon has no live index (`index_disabled`): set `index.bytes_max`."""


class NotYetVisibleError(ApiError):
    """`min_position` was not reflected within the time to wait (412, `not_yet_visible`)."""


class RateLimitedError(ApiError):
    """The key's rate limit or a queue is exhausted (429). Nothing of this request was stored; see `partial`."""


class UnavailableError(ApiError):
    """The daemon cannot serve this now: busy, starting, stopping, no model, disk full (503).

    Nothing of this request was stored; see `partial`.
    """


class RequestTimeoutError(ApiError):
    """The body or the work on the request took too long (408, 504); the work may still complete."""


class OutcomeUnknownError(RequestTimeoutError):
    """What was sent may have been stored or done, or not (`outcome_unknown`). With idempotency keys, send it again."""


class DaemonStartError(EvergraphError):
    """A daemon did not start or get ready. The message has the last lines of its log."""


class EvaluationError(EvergraphError):
    """`evergraph eval` failed. The message has what it wrote."""


_BY_TYPE: dict[str, type[ApiError]] = {
    "all_rejected": AllRejectedError,
    "index_disabled": IndexDisabledError,
    "not_yet_visible": NotYetVisibleError,
    "outcome_unknown": OutcomeUnknownError,
    "unknown_node": UnknownNodeError,
}

_BY_STATUS: dict[int, type[ApiError]] = {
    401: AuthenticationError,
    403: ForbiddenError,
    404: NotFoundError,
    408: RequestTimeoutError,
    412: NotYetVisibleError,
    429: RateLimitedError,
    503: UnavailableError,
    504: RequestTimeoutError,
}


def class_of(status: int, error_type: str) -> type[ApiError]:
    """The class of an error response: by its word where that says more, else by its status."""
    by_status = _BY_STATUS.get(status, InvalidRequestError if 400 <= status < 500 else ApiError)
    return _BY_TYPE.get(error_type, by_status)
