"""API keys and TLS, by a daemon that asks for them."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import evergraph

from .conftest import SETTINGS, Connect

READ, WRITE, ADMIN = ("read-key-0123456789", "write-key-0123456789", "admin-key-0123456789")
CERTIFICATES = Path(__file__).parent.parent.parent.parent / "tests" / "it" / "tls"
EVENT = {"src": "a", "dst": "b", "ts": 1}


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[evergraph.Daemon]:
    keys = tmp_path_factory.mktemp("keys") / "keys"
    keys.write_text(f"read reader {READ}\nwrite writer {WRITE}\nadmin root {ADMIN} 50/s\n")
    settings: dict[str, Any] = {**SETTINGS, "api__keys_file": keys}
    settings |= {"api__tls_certificate": CERTIFICATES / "one.crt", "api__tls_key": CERTIFICATES / "one.key"}
    with evergraph.run(**settings) as daemon:
        yield daemon


def test_keys_go_as_far_as_their_roles(connect: Connect, guarded: evergraph.Daemon) -> None:
    url = guarded.url.replace("127.0.0.1", "localhost")

    def with_key(key: str | None) -> Any:
        return connect(url, api_key=key, verify=CERTIFICATES / "one.crt")

    pushed = with_key(WRITE).push(EVENT)
    assert pushed.accepted == 1
    assert with_key(READ).node("a").degree >= 1
    assert with_key(ADMIN).push(EVENT, wait="visible").accepted == 1
    assert with_key(ADMIN).get_log_level().level
    with pytest.raises(evergraph.ForbiddenError) as caught:
        with_key(READ).push(EVENT)
    assert caught.value.details == {"role": "read", "needed": "write"}
    with pytest.raises(evergraph.ForbiddenError):
        with_key(WRITE).status()
    with pytest.raises(evergraph.ForbiddenError) as hidden:
        with_key(WRITE).push(EVENT, wait="visible")
    assert hidden.value.partial is not None, "it is stored, and cannot be looked for"
    for key in (None, "another-key-0123456789"):
        with pytest.raises(evergraph.AuthenticationError):
            with_key(key).status()
    assert with_key(None).live().ok


def test_a_certificate_is_checked(connect: Connect, guarded: evergraph.Daemon) -> None:
    url = guarded.url.replace("127.0.0.1", "localhost")
    once = evergraph.Retry(attempts=1)
    with pytest.raises(evergraph.ConnectionFailedError, match="certificate"):
        connect(url, retry=once).live()
    assert connect(url, verify=False).live().ok
    assert connect(url, verify=ssl.create_default_context(cafile=CERTIFICATES / "one.crt")).live().ok
    with pytest.raises(evergraph.ConnectionFailedError):
        connect(url.replace("https", "http"), retry=once).live()
