"""Daemons and clients of the tests. Every test with `client` runs with both kinds of client."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import evergraph

SETTINGS: dict[str, Any] = {
    "learner__batch_wait_ms": 5,
    "learner__lag_target_ms": 0,
    "learner__threads": 1,
    "learner__gate__every_batches": 1_000_000,  # nothing is promoted but by an operator
    "index__bytes_max": 1 << 24,
    "index__coalesce_ms": 10,
    "stream__edge_feature_dimension": 2,
    "model__edge_types": 2,
    "stream__time_unit": "seconds",
    "model__memory_dimension": 8,
    "model__time_dimension": 8,
    "model__embedding_dimension": 8,
}


class Blocking:
    """An `AsyncClient` whose methods wait, so that one test serves both clients."""

    def __init__(self, loop: asyncio.AbstractEventLoop, client: evergraph.AsyncClient) -> None:
        self._loop = loop
        self._client = client

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._client, name)

        def wait(*words: Any, **named: Any) -> Any:
            found = method(*words, **named)
            if hasattr(found, "__aiter__"):
                return self._pages(found)
            return self._loop.run_until_complete(found)

        return wait if callable(method) else method

    def _pages(self, pages: Any) -> Iterator[Any]:
        while True:
            try:
                yield self._loop.run_until_complete(anext(pages))
            except StopAsyncIteration:
                return


Connect = Callable[..., Any]


@pytest.fixture(params=["sync", "async"])
def connect(request: pytest.FixtureRequest) -> Iterator[Connect]:
    """Makes clients of an address, of one kind, and closes them."""
    loop = asyncio.new_event_loop()
    made: list[Any] = []

    def one(url: str, **options: Any) -> Any:
        sync = request.param == "sync"
        client = evergraph.Client(url, **options) if sync else Blocking(loop, evergraph.AsyncClient(url, **options))
        made.append(client)
        return client

    yield one
    for client in made:
        client.close()
    loop.close()


@pytest.fixture(scope="session")
def daemon() -> Iterator[evergraph.Daemon]:
    """A daemon that all tests share: each uses nodes of its own."""
    with evergraph.run(**SETTINGS) as running:
        yield running


@pytest.fixture
def client(connect: Connect, daemon: evergraph.Daemon) -> Any:
    """A client of the shared daemon."""
    return connect(daemon.url)
