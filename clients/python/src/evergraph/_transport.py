"""What both clients pass to httpx2, and what comes back from it."""

from __future__ import annotations

import ipaddress
import os
import ssl
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import httpx2

from ._attempts import Failure
from ._requests import Reply

try:
    __version__ = version("evergraph")
except PackageNotFoundError:  # from a folder of sources
    __version__ = "0"


def options(
    url: str,
    api_key: str | None,
    timeout: float,
    verify: bool | str | os.PathLike[str] | ssl.SSLContext,
    headers: Mapping[str, str] | None,
    trust_env: bool | None,
) -> dict[str, Any]:
    """The arguments of a client of httpx2.

    Raises:
        ValueError: The address has no scheme or host, or the timeout is not above 0.
        OSError: The file of certificates cannot be read.
    """
    address = httpx2.URL(url)
    if address.scheme not in {"http", "https"} or not address.host:
        raise ValueError(f"{url!r} is no address of a daemon; write it as http://127.0.0.1:8080")
    if not timeout > 0:
        raise ValueError(f"timeout is {timeout} seconds; it must be above 0")
    if isinstance(verify, str | os.PathLike):
        verify = ssl.create_default_context(cafile=os.fspath(verify))
    sent = {"accept": "application/json", "user-agent": f"evergraph-python/{__version__}", **(headers or {})}
    if api_key is not None:
        sent["authorization"] = f"Bearer {api_key}"
    # A proxy of the environment is no way to this machine.
    proxied = not _is_loopback(address.host) if trust_env is None else trust_env
    if address.scheme == "http" and not proxied:
        verify = False  # there is no certificate, and reading all that are trusted takes a while
    return {
        "base_url": address,
        "headers": sent,
        "timeout": httpx2.Timeout(timeout, connect=min(timeout, 10.0)),
        "verify": verify,
        "trust_env": proxied,
    }


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def reply_of(response: httpx2.Response) -> Reply:
    """A response that was read whole."""
    return Reply(
        response.status_code, {name.lower(): value for name, value in response.headers.items()}, response.content
    )


def failure_of(error: httpx2.RequestError, url: str) -> Failure:
    """A request without a response, as people read it."""
    kind = "no response in time" if isinstance(error, httpx2.TimeoutException) else "no response"
    what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return Failure(f"{kind} from {url} ({what}); check the address, and that the daemon runs", error)
