"""Retries, timeouts and responses that are not the daemon's."""

from __future__ import annotations

import json
import time

import httpx2
import numpy as np
import pytest

import evergraph
from evergraph import _operations
from evergraph._attempts import Pause, Retry, with_retries
from evergraph._events import parts
from evergraph._push import Known, push
from evergraph._requests import Reply
from evergraph._transport import failure_of
from evergraph._transport import options as transport

from .conftest import Connect
from .scripted import Scripted, refusal, serving

QUICK = Retry(attempts=3, backoff=0.01, wait_max=2.0)

FRESHNESS = {"model_version": 1, "watermark": None, "applied_position": 2, "indexed_position": 2, "durable_position": 2}
PUSHED = Scripted(
    body=json.dumps(
        {
            "first_position": 0,
            "end_position": 1,
            "accepted": 1,
            "duplicates": 0,
            "rejected": [],
            "freshness": FRESHNESS,
        }
    ).encode()
)
LEVEL = Scripted(body=b'{"level": "info", "configured": "info"}')


def info(**limits: int) -> Scripted:
    """A response to `get_info` with these limits."""
    bounds = {name: getattr(evergraph.Limits(), name) for name in evergraph.Limits.__slots__} | limits
    body = dict.fromkeys(("name", "version", "model", "device", "time_unit"), "x") | {"limits": bounds}
    numbers = ("embedding_dimension", "edge_feature_dimension", "node_feature_dimension", "started_unix_ms")
    return Scripted(body=json.dumps(body | dict.fromkeys(numbers, 1)).encode())


@pytest.mark.parametrize("failure", [refusal(503, "overloaded"), refusal(429, "rate_limited"), Scripted(cut=True)])
def test_a_read_is_sent_again_after_failures_that_pass(connect: Connect, failure: Scripted) -> None:
    with serving([failure, failure, LEVEL]) as server:
        assert connect(server.url, retry=QUICK).get_log_level().level == "info"
        assert len(server.seen) == 3


def test_a_read_is_given_up_after_the_last_attempt(connect: Connect) -> None:
    with serving([refusal(503, "overloaded", found=7)]) as server:
        with pytest.raises(evergraph.UnavailableError) as caught:
            connect(server.url, retry=QUICK).get_log_level()
        error = caught.value
        assert (error.status, error.error_type, error.message) == (503, "overloaded", "on purpose")
        assert (error.request_id, error.operation, error.details) == ("id-1", "get_log_level", {"found": 7})
        assert "get_log_level: 503 overloaded: on purpose" in str(error)
        assert "id-1" in str(error)
        assert len(server.seen) == 3


def test_retry_after_is_honored_up_to_a_bound(connect: Connect) -> None:
    with serving([refusal(503, "restoring", retry_after=0.3), LEVEL]) as server:
        began = time.monotonic()
        connect(server.url, retry=QUICK).get_log_level()
        assert 0.3 <= time.monotonic() - began < 5
    with serving([refusal(503, "disk_full", retry_after=30)]) as server:
        with pytest.raises(evergraph.UnavailableError) as caught:
            connect(server.url, retry=QUICK).get_log_level()
        assert caught.value.retry_after == 30
        assert len(server.seen) == 1


@pytest.mark.parametrize("status", [400, 401, 403, 404, 412, 422, 500])
def test_other_errors_are_not_sent_again(connect: Connect, status: int) -> None:
    with serving([refusal(status, "a_new_word")]) as server:
        with pytest.raises(evergraph.ApiError) as caught:
            connect(server.url, retry=QUICK).get_log_level()
        assert caught.value.error_type == "a_new_word"
        assert len(server.seen) == 1


def test_only_pushes_with_idempotency_keys_are_sent_again(connect: Connect) -> None:
    plain, keyed = {"src": 1, "dst": 2, "ts": 3}, {"src": 1, "dst": 2, "ts": 3, "idempotency_key": "a"}
    for events, options, attempts in [
        ([plain], {}, 1),
        ([plain, keyed], {}, 1),
        ([keyed, keyed], {}, 3),
        ([plain], {"idempotency_key": "one"}, 3),
    ]:
        with serving([info(), refusal(504, "outcome_unknown")]) as server:
            with pytest.raises(evergraph.OutcomeUnknownError):
                connect(server.url, retry=QUICK).push(events, **options)
            assert len(server.seen) == 1 + attempts, events
            bodies = {(seen.body, seen.headers.get("idempotency-key")) for seen in server.seen[1:]}
            assert len(bodies) == 1, "the same request"


def test_a_request_that_cannot_be_sent_is_not_sent_again() -> None:
    steps = with_retries(_operations.status(), Retry())
    next(steps)
    error = httpx2.LocalProtocolError("Illegal header value b'secret'")
    with pytest.raises(evergraph.ConnectionFailedError, match="cannot be sent") as caught:
        steps.send(failure_of(error, "http://a"))
    assert "secret" not in str(caught.value)


def test_a_health_check_of_a_proxy_is_no_result(connect: Connect) -> None:
    report = {"status": "failed", "checks": {"log": {"state": "failed", "detail": "full"}}}
    with serving([Scripted(503, b"<h1>busy</h1>"), Scripted(503, json.dumps(report).encode())]) as server:
        health = connect(server.url, retry=QUICK).health()
        assert (health.ok, health.checks["log"].detail) == (False, "full")
        assert len(server.seen) == 2
    with serving([Scripted(503, b"<h1>busy</h1>")]) as server, pytest.raises(evergraph.UnavailableError, match="busy"):
        connect(server.url, retry=QUICK).ready()


def test_operators_requests_are_not_sent_again(connect: Connect) -> None:
    with serving([refusal(503, "not_done")]) as server:
        with pytest.raises(evergraph.UnavailableError):
            connect(server.url, retry=QUICK).set_log_level("info")
        with pytest.raises(evergraph.UnavailableError):
            connect(server.url, retry=QUICK).create_checkpoint()
        assert len(server.seen) == 2


def test_waits_grow_and_vary_within_bounds() -> None:
    retry = Retry(attempts=6, backoff=1.0, wait_max=3.0)
    for failures, most in [(1, 1.0), (2, 2.0), (3, 3.0), (4, 3.0)]:
        waits = [retry.wait(failures, None) for _ in range(200)]
        assert all(wait is not None and most / 2 <= wait <= most for wait in waits)
        assert len(set(waits)) > 100
    assert retry.wait(1, 2.5) == 2.5
    assert retry.wait(1, 3.5) is None
    assert retry.wait(6, None) is None
    with pytest.raises(ValueError, match="at least 1"):
        Retry(attempts=0)


def test_no_response_in_time_is_a_failed_connection(connect: Connect) -> None:
    with serving([Scripted(stall=1.0)]) as server:
        client = connect(server.url, timeout=0.1, retry=Retry(attempts=1))
        with pytest.raises(evergraph.ConnectionFailedError, match="no response in time") as caught:
            client.get_log_level()
        assert server.url in str(caught.value)
        assert caught.value.__cause__ is not None


def test_a_wait_in_the_daemon_is_no_lack_of_progress(connect: Connect) -> None:
    hidden = refusal(412, "not_yet_visible", min_position=1, freshness=FRESHNESS)
    hidden.stall = 0.4
    with serving([hidden]) as server:
        with pytest.raises(evergraph.NotYetVisibleError):
            connect(server.url, timeout=0.2).embeddings(["a"], min_position=1, wait_ms=400)
        with pytest.raises(evergraph.NotYetVisibleError):
            connect(server.url, timeout=0.2).node("a", min_position=1)
        assert len(server.seen) == 2
    with serving([info(), PUSHED, hidden]) as server:
        client = connect(server.url, timeout=0.2)
        with pytest.raises(evergraph.NotYetVisibleError) as caught:
            client.push({"src": "a", "dst": 2, "ts": 3}, wait="visible", wait_seconds=0.4)
        assert caught.value.partial is not None


def test_attempts_end_with_the_time_to_wait(connect: Connect) -> None:
    with serving([info(), PUSHED, Scripted(cut=True)]) as server:
        retry = Retry(attempts=100, backoff=0.1, wait_max=0.1)
        with pytest.raises(evergraph.ConnectionFailedError) as caught:
            connect(server.url, retry=retry).push({"src": "a", "dst": 2, "ts": 3}, wait="visible", wait_seconds=0.3)
        assert caught.value.partial is not None
        assert 3 < len(server.seen) < 10


def test_nobody_at_the_address_is_a_failed_connection(connect: Connect) -> None:
    with serving([LEVEL]) as server:
        url = server.url
    with pytest.raises(evergraph.ConnectionFailedError, match="check the address"):
        connect(url, retry=Retry(attempts=2, backoff=0.01)).status()


@pytest.mark.parametrize(
    "body",
    [b"", b"<html>", b"[]", b"null", b'{"at": 1}', b'{"embeddings": 5}', b'{"embeddings": [{"embedding": 7}]}'],
)
def test_what_is_no_response_of_the_daemon_is_reported_as_such(connect: Connect, body: bytes) -> None:
    with serving([Scripted(body=body)]) as server:
        client = connect(server.url)
        for ask in (
            lambda: client.embeddings(["a"]),
            lambda: client.score("a", "b"),
            client.info,
            client.status,
            client.health,
            client.create_checkpoint,
            client.reload_settings,
            lambda: next(client.neighbors("a")),
            lambda: client.top("a"),
        ):
            with pytest.raises(evergraph.MalformedResponseError, match="not one of Evergraph"):
                ask()


@pytest.mark.parametrize("vector", ["AAAA", "AAAAA===", "AAAAAA=A", "AAA$AA==", "AAAAAA"])
def test_a_vector_that_is_none_is_reported(connect: Connect, vector: str) -> None:
    entry = {"node": "a", "embedding": vector, "last_event": None, "cold": False}
    body = {"at": 1, "embeddings": [entry], "source": "model", "freshness": FRESHNESS}
    response = Scripted(body=json.dumps(body).encode())
    with serving([response]) as server, pytest.raises(evergraph.MalformedResponseError):
        connect(server.url).embeddings(["a"])


def test_an_error_of_a_proxy_has_its_status_and_text(connect: Connect) -> None:
    with serving([Scripted(418, b"<h1>teapot</h1>", {"x-request-id": "proxy-9"})]) as server:
        with pytest.raises(evergraph.InvalidRequestError, match="418: <h1>teapot</h1>") as caught:
            connect(server.url).status()
        assert (caught.value.error_type, caught.value.request_id) == ("", "proxy-9")


def test_a_push_is_cut_at_the_limits_and_says_what_was_stored(connect: Connect) -> None:
    events = [{"src": place, "dst": 2, "ts": 3} for place in range(5)]
    with serving([info(batch_items_max=2), PUSHED]) as server:
        pushed = connect(server.url).push(events, idempotency_key="mine")
        assert (pushed.accepted, pushed.requests) == (3, 3)
        assert [seen.body.count(b"\n") + 1 for seen in server.seen[1:]] == [2, 2, 1]
        assert [seen.headers["idempotency-key"] for seen in server.seen[1:]] == ["mine"] * 3
        lines = b"\n".join(seen.body for seen in server.seen[1:]).split(b"\n")
        assert [json.loads(line) for line in lines] == events
    length = len(b'{"src":0,"dst":2,"ts":3}\n')
    with serving([info(body_bytes_max=2 * length), PUSHED, PUSHED, refusal(429, "queue_full")]) as server:
        with pytest.raises(evergraph.RateLimitedError) as caught:
            connect(server.url, retry=Retry(attempts=1)).push(events)
        assert caught.value.partial is not None
        assert caught.value.partial.accepted == 2
        assert "2 events were stored before" in str(caught.value)
        assert all(len(seen.body) <= 2 * length for seen in server.seen[1:])


def test_an_event_that_cannot_be_sent_says_what_was_stored(connect: Connect) -> None:
    events = [{"src": 1, "dst": 2, "ts": 3}] * 4 + [{"src": 1, "dst": 2, "ts": 3, "features": [float("nan")]}]
    with serving([info(batch_items_max=2), PUSHED]) as server:
        client = connect(server.url)
        with pytest.raises(ValueError, match="event 4 cannot be written as JSON") as caught:
            client.push(events)
        assert vars(caught.value)["partial"].accepted == 1, "the second body is not yet sent"
        assert caught.value.__notes__ == ["1 events were stored before, in 1 requests"]
        with pytest.raises(ValueError, match="event 0") as caught:
            client.push(events[4:])
        assert not hasattr(caught.value, "partial")


def test_keys_of_events_do_not_depend_on_where_a_push_is_cut(connect: Connect) -> None:
    one, other = {"src": 1, "dst": 2, "ts": 3}, {"src": 1, "dst": 2, "ts": 4, "idempotency_key": None}
    events = [one, other, one, one, {**one, "idempotency_key": "own"}, other]
    sent = []
    for most, name in [(2, "mine"), (3, "mine"), (100, "mine"), (100, "other")]:
        with serving([info(batch_items_max=most), PUSHED]) as server:
            connect(server.url).push(events, idempotency_key=name)
            assert {seen.headers["idempotency-key"] for seen in server.seen[1:]} == {name}
            sent.append([json.loads(line) for seen in server.seen[1:] for line in seen.body.split(b"\n")])
    keys = [event.pop("idempotency_key", None) for event in sent[0]]
    assert [event["ts"] for event in sent[0]] == [3, 4, 3, 3, 3, 4]
    assert (keys[:2], keys[4]) == ([None, None], "own")
    assert len({*keys[2:]}) == 4, "equal events are told apart"
    assert keys == [event.pop("idempotency_key", None) for event in sent[1]]
    assert keys == [event.pop("idempotency_key", None) for event in sent[2]]
    assert sent[0] == sent[1] == sent[2]
    assert not {*keys[2:4], keys[5]} & {event.get("idempotency_key") for event in sent[3]}


def test_rejected_events_keep_their_places_across_requests(connect: Connect) -> None:
    rejected = [{"index": 1, "reason": "bad_id", "detail": "x"}]
    nothing = refusal(422, "all_rejected", rejected=rejected, rejected_count=2)
    events = [{"src": 1, "dst": 2, "ts": 3}] * 4
    with serving([info(batch_items_max=2), PUSHED, nothing]) as server:
        pushed = connect(server.url).push(events)
        assert [one.index for one in pushed.rejected] == [3]
        assert (pushed.accepted, pushed.rejected_count) == (1, 2)
        assert pushed.freshness.durable_position == 2
    with serving([info(batch_items_max=2), nothing]) as server:
        with pytest.raises(evergraph.AllRejectedError) as caught:
            connect(server.url).push(events)
        assert [one.index for one in caught.value.rejected] == [1, 3]
        assert caught.value.rejected_count == 4


def test_limits_are_asked_for_once_and_again_after_a_failure(connect: Connect) -> None:
    event = {"src": 1, "dst": 2, "ts": 3}
    with serving([info(), PUSHED, PUSHED, refusal(413, "batch_too_large"), info(), PUSHED]) as server:
        client = connect(server.url)
        client.push(event)
        client.push(event)
        with pytest.raises(evergraph.InvalidRequestError):
            client.push(event)
        client.push(event)
        paths = [seen.path for seen in server.seen]
        assert paths == ["/v1/info", *["/v1/events"] * 3, "/v1/info", "/v1/events"]


def test_a_push_that_does_not_become_visible_says_that_it_is_stored(connect: Connect) -> None:
    hidden = refusal(412, "not_yet_visible", min_position=1, freshness=FRESHNESS)
    with serving([info(), PUSHED, hidden]) as server:
        with pytest.raises(evergraph.NotYetVisibleError) as caught:
            connect(server.url).push({"src": "a", "dst": 2, "ts": 3}, wait="visible", wait_seconds=0.1)
        assert caught.value.partial is not None
        assert caught.value.partial.end_position == 1
        assert server.seen[2].path.startswith("/v1/nodes/a?neighbors=0&min_position=1&wait_ms=")


def test_a_daemon_that_does_not_wait_is_asked_again_after_a_pause() -> None:
    event, known = {"src": "a", "dst": 2, "ts": 3}, Known(evergraph.Limits(wait_ms_max=0))
    steps = with_retries(push(parts(event), "visible", 9.0, None, known), Retry())
    next(steps)
    steps.send(Reply(200, {}, PUSHED.body))
    pause = steps.send(Reply(412, {}, refusal(412, "not_yet_visible").body))
    assert isinstance(pause, Pause)
    assert 0 < pause.seconds < 1


def test_what_is_looked_up_is_a_key_that_the_daemon_takes(connect: Connect) -> None:
    node = Scripted(body=json.dumps({"freshness": FRESHNESS}).encode())
    bad = [{"src": key, "dst": 2, "ts": 3} for key in ("", "x" * 1025, 2**63, None, True, "\ud800")]
    for events, key in [([*bad, {"src": "good", "dst": 2, "ts": 3}], "good"), (bad, "0")]:
        with serving([info(), PUSHED, node]) as server:
            connect(server.url).push(events, wait="visible")
            assert server.seen[2].path.startswith(f"/v1/nodes/{key}?")


def test_a_missing_vector_has_the_width_of_the_others(connect: Connect) -> None:
    entries = [{"node": "a", "error": "unknown_node"}]
    body = {"at": 1, "embeddings": entries, "source": "model", "freshness": FRESHNESS}
    with serving([Scripted(body=json.dumps(body).encode()), info()]) as server:
        found = connect(server.url).embeddings(["a"])
        assert found.array.shape == (1, 1)
        assert np.isnan(found.array).all()


def test_headers_and_a_path_before_the_routes_are_kept(connect: Connect) -> None:
    with serving([LEVEL]) as server:
        client = connect(f"{server.url}/graph/", api_key="secret-0123456789", headers={"x-tenant": "a"})
        client.get_log_level()
        seen = server.seen[0]
        assert seen.path == "/graph/v1/admin/log-level"
        assert seen.headers["authorization"] == "Bearer secret-0123456789"
        assert seen.headers["x-tenant"] == "a"
        assert seen.headers["user-agent"].startswith("evergraph-python/")
        assert "secret" not in repr(client)


@pytest.mark.parametrize("secret", ["", "s3cret\n", "s3\tcret", "s3cret\u00e9", " s3cret"])
def test_a_key_that_cannot_be_sent_is_refused_and_not_shown(connect: Connect, secret: str) -> None:
    with pytest.raises(ValueError, match="api_key must be visible ASCII") as key:
        connect("http://127.0.0.1:1", api_key=secret)
    with serving([info(), PUSHED]) as server, pytest.raises(ValueError, match="idempotency key") as name:
        connect(server.url).push({"src": 1, "dst": 2, "ts": 3}, idempotency_key=secret)
    assert not any("s3" in str(caught.value) for caught in (key, name))


@pytest.mark.parametrize(("name", "value"), [("x-tenant", "s3cret\n"), ("x-tenant", "\u00e9"), ("x tenant", "a")])
def test_a_header_that_cannot_be_sent_is_refused_and_not_shown(connect: Connect, name: str, value: str) -> None:
    with pytest.raises(ValueError, match=f"the header '{name}' cannot be sent") as caught:
        connect("http://127.0.0.1:1", headers={name: value})
    assert "s3cret" not in str(caught.value)


def test_a_password_in_the_address_is_sent_and_not_shown(connect: Connect) -> None:
    with serving([LEVEL]) as server:
        client = connect(server.url.replace("//", "//me:s3cr%40t@") + "/graph/")
        client.get_log_level()
        assert server.seen[0].headers["authorization"] == "Basic bWU6czNjckB0"
        assert server.seen[0].path == "/graph/v1/admin/log-level"
        assert client.url == f"{server.url}/graph"
    with pytest.raises(evergraph.ConnectionFailedError) as caught:
        connect("http://me:s3cret@127.0.0.1:1", retry=Retry(attempts=1)).status()
    assert "s3cret" not in str(caught.value)
    with pytest.raises(ValueError, match="not both"):
        connect("http://me:s3cret@127.0.0.1:1", api_key="key")
    for url in ("ftp://me:s3cret@a", "http://me:s3/cret@a"):
        with pytest.raises(ValueError, match="the url is no address") as refused:
            connect(url)
        assert "s3" not in str(refused.value)


def test_responses_of_this_machine_are_not_compressed(connect: Connect) -> None:
    with serving([LEVEL]) as server:
        connect(server.url).get_log_level()
        assert server.seen[0].headers["accept-encoding"] == "identity"
        connect(server.url, headers={"Accept-Encoding": "gzip"}).get_log_level()
        assert server.seen[1].headers["accept-encoding"] == "gzip"
    assert "accept-encoding" not in transport("http://10.0.0.1", None, 1.0, True, None, None)["headers"]


@pytest.mark.parametrize("url", ["", "127.0.0.1:8080", "ftp://a", "http://", "http://a:b"])
def test_an_address_that_is_none_is_refused(connect: Connect, url: str) -> None:
    with pytest.raises(ValueError, match="no address of a daemon"):
        connect(url)
