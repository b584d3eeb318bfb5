"""What both clients pass to httpx2, and what comes back from it."""

from __future__ import annotations

import ipaddress
import os
import re
import ssl
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import httpx2

from ._attempts import Failure
from ._requests import Reply, is_visible

try:
    __version__ = version("evergraph")
except PackageNotFoundError:  # from a folder of sources
    __version__ = "0"

HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
HEADER_VALUE = re.compile(r"([!-~]([ -~\t]*[!-~])?)?")


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
        ValueError: The address has no scheme or host, the timeout is not above 0, or the key or a header cannot be
            sent. The message has neither the key nor a header's value.
        OSError: The file of certificates cannot be read.
    """
    address = _address(url)
    if not timeout > 0:
        raise ValueError(f"timeout is {timeout} seconds; it must be above 0")
    if isinstance(verify, str | os.PathLike):
        verify = ssl.create_default_context(cafile=os.fspath(verify))
    is_local = _is_loopback(address.host)
    # A proxy of the environment is no way to this machine.
    proxied = not is_local if trust_env is None else trust_env
    if address.scheme == "http" and not proxied:
        verify = False  # there is no certificate, and reading all that are trusted takes a while
    return {
        "base_url": address.copy_with(userinfo=b""),
        "auth": (address.username, address.password) if address.userinfo else None,
        "headers": _headers(api_key, headers, is_local, bool(address.userinfo)),
        "timeout": httpx2.Timeout(timeout, connect=min(timeout, 10.0)),
        "verify": verify,
        "trust_env": proxied,
    }


def _address(url: str) -> httpx2.URL:
    try:
        address = httpx2.URL(url)
    except httpx2.InvalidURL as error:
        why = "" if "@" in url else f": {error}"
        raise ValueError(f"{_named(url)} is no address of a daemon{why}") from None
    if address.scheme not in {"http", "https"} or not address.host:
        raise ValueError(f"{_named(url)} is no address of a daemon; write it as http://127.0.0.1:8080")
    return address


def _named(url: str) -> str:
    """An address that may be none, for people: without what may be a password."""
    return "the url" if "@" in url else repr(url)


def shown(url: str) -> str:
    """An address without the name and the password in it."""
    return re.sub(r"//[^/?#]*@", "//", url.rstrip("/"), count=1)


def _headers(
    api_key: str | None, headers: Mapping[str, str] | None, is_local: bool, has_password: bool
) -> dict[str, str]:
    sent = {"accept": "application/json", "user-agent": f"evergraph-python/{__version__}"}
    if is_local:
        sent["accept-encoding"] = "identity"  # the network of this machine is faster than compression
    for name, value in (headers or {}).items():
        if not HEADER_NAME.fullmatch(name) or not HEADER_VALUE.fullmatch(value):
            raise ValueError(
                f"the header {name!r} cannot be sent: it is visible ASCII, without a line end or outer blanks"
            )
        sent[name.lower()] = value
    if api_key is not None:
        if not is_visible(api_key):
            raise ValueError("api_key must be visible ASCII characters, at least one; strip line ends and blanks")
        if has_password:
            raise ValueError("give api_key, or a name and a password in the url, not both")
        sent["authorization"] = f"Bearer {api_key}"
    return sent


def timeout_of(usual: httpx2.Timeout, wait: float) -> httpx2.Timeout:
    """The times of a request for which the daemon may wait: nothing comes until it has."""
    read = None if usual.read is None else usual.read + wait
    return httpx2.Timeout(connect=usual.connect, read=read, write=usual.write, pool=usual.pool)


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
    if isinstance(error, httpx2.LocalProtocolError | httpx2.UnsupportedProtocol):
        return Failure(f"the request cannot be sent to {url} ({type(error).__name__})", error, passes=False)
    kind = "no response in time" if isinstance(error, httpx2.TimeoutException) else "no response"
    what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return Failure(f"{kind} from {url} ({what}); check the address, and that the daemon runs", error)
