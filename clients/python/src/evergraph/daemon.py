"""A daemon of one's own: started on a free port, stopped with the interpreter."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import threading
import time
import tomllib
import weakref
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from ._binary import find_binary
from .async_client import AsyncClient
from .client import Client
from .errors import DaemonStartError

LINES_KEPT = 50
STOP_SECONDS = 30.0


class Daemon:
    """A running daemon. Use it in a `with` statement, or call `stop`.

    It ends as well once nobody holds it or a client of it that it made, and with the interpreter in any case.
    An interpreter that is killed leaves a temporary data directory behind, but no daemon. It belongs to the process
    that started it: a forked child cannot stop it, and does not when it ends.

    Attributes:
        url: Its address.
        data: Its data directory.
    """

    def __init__(self, url: str, data: Path, process: subprocess.Popen[bytes], log: _Log, held: _Held) -> None:
        self.url = url
        self.data = data
        self._process = process
        self._log = log
        self._stop = weakref.finalize(self, held.end)

    def __enter__(self) -> Daemon:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def __repr__(self) -> str:
        state = f"pid {self.pid}" if self.running else f"ended with {self._process.returncode}"
        return f"Daemon({self.url!r}, {state})"

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the process runs."""
        return self._process.poll() is None

    @property
    def log(self) -> str:
        """The last lines of its log, JSON."""
        return self._log.text()

    def client(self, **options: Any) -> Client:
        """A client of it, which holds it; arguments as of `Client`."""
        client = Client(self.url, **options)
        client._daemon = self
        return client

    def async_client(self, **options: Any) -> AsyncClient:
        """A client of it for asyncio, which holds it; arguments as of `AsyncClient`."""
        client = AsyncClient(self.url, **options)
        client._daemon = self
        return client

    def stop(self) -> None:
        """Stops it: it drains its queue and writes a checkpoint; after 30 s it is killed.

        A temporary data directory is removed. Calling it again does nothing.
        """
        self._stop()


class _Log:
    """Reads the log of a process for as long as it writes, so that it never waits, and keeps the last lines."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._lines: deque[str] = deque(maxlen=LINES_KEPT)
        self._changed = threading.Condition()
        self._address: str | None = None
        self._ended = False
        self._thread = threading.Thread(target=self._read, args=(process,), name="evergraph-log", daemon=True)
        self._thread.start()

    def _read(self, process: subprocess.Popen[bytes]) -> None:
        for raw in process.stderr or ():
            line = raw.decode(errors="replace").rstrip()
            with self._changed:
                self._lines.append(line)
                if self._address is None:
                    self._address = _address_of(line)
                    self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def address(self, seconds: float) -> str | None:
        """Where the daemon listens, once it is ready; `None` if it ends before, or not in time."""
        with self._changed:
            self._changed.wait_for(lambda: self._address is not None or self._ended, seconds)
            return self._address

    def text(self) -> str:
        """The last lines."""
        with self._changed:
            return "\n".join(self._lines)

    def join(self) -> None:
        """Waits until the last line is read."""
        self._thread.join(1.0)


def _address_of(line: str) -> str | None:
    """The address of the line by which a daemon says that it is ready."""
    if '"ready"' not in line:
        return None
    try:
        document = json.loads(line)
    except ValueError:
        return None
    found = document.get("address") if isinstance(document, dict) and document.get("message") == "ready" else None
    return found if isinstance(found, str) else None


def _guard(pid: int) -> subprocess.Popen[bytes]:
    """A process that ends the daemon when this one is gone, however it went: then its standard input ends."""
    command = ["/bin/sh", "-c", f"read -r _; kill -TERM {pid}"]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True)


class _Held:
    """All that a daemon takes, from its first moment on, and how to give it back."""

    def __init__(self, temporary: Path | None) -> None:
        self._owner = os.getpid()
        self._temporary = temporary
        self._guard: subprocess.Popen[bytes] | None = None
        self.process: subprocess.Popen[bytes] | None = None
        self.log: _Log | None = None

    def start(self, command: list[str]) -> tuple[subprocess.Popen[bytes], _Log]:
        """Starts the process, and at once what ends it with the interpreter."""
        self.process = process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C in a notebook interrupts the cell, not the daemon
        )
        self._guard = _guard(process.pid)
        self.log = log = _Log(process)
        return process, log

    def end(self) -> None:
        """Ends the process and removes the temporary folder. Repeated, it does nothing; nor in a forked child."""
        if os.getpid() != self._owner:
            return
        if self._guard is not None:
            self._guard.kill()
            self._guard.communicate()
            self._guard = None
        if self.process is not None:
            _terminate(self.process)
            if self.log is not None:
                self.log.join()
            if self.process.stderr is not None:
                self.process.stderr.close()
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)


def _terminate(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _settings(settings: Mapping[str, object]) -> list[str]:
    """Settings as `section.key=value`."""
    written = []
    for name, value in settings.items():
        text = str(value).lower() if isinstance(value, bool) else str(value)
        written.append(f"{name.replace('__', '.')}={text}")
    return written


def run(
    data: str | os.PathLike[str] | None = None,
    *,
    binary: str | os.PathLike[str] | None = None,
    config: str | os.PathLike[str] | None = None,
    ready_seconds: float = 60.0,
    **settings: object,
) -> Daemon:
    """Starts a daemon on a free port of this machine and waits until it is ready.

    Args:
        data: Its data directory, which may have been used before; by default a temporary one.
        binary: The program; by default `EVERGRAPH_BIN`, the one beside the interpreter's scripts, or that on `PATH`.
        config: A file of settings.
        ready_seconds: How long it may take to get ready, seconds.
        settings: Settings with `__` in place of the dot: `learner__train=False`; `deploy/evergraph.toml` lists all.

    Returns:
        The daemon. Leaving its `with` statement stops it, and so does letting go of it and of its clients.

    Raises:
        DaemonStartError: It ended or did not get ready in time; the message has the end of its log.
        FileNotFoundError: The program was not found.
    """
    program = find_binary(binary)
    folder = Path(tempfile.mkdtemp(prefix="evergraph-") if data is None else os.fspath(data)).absolute()
    held = _Held(folder if data is None else None)
    command = [program, "serve", "--listen", "127.0.0.1:0", "--data", str(folder)]
    if config is not None:
        command += ["--config", os.fspath(config)]
    # The log in JSON has the address of the line that says that it is ready, at whatever level the rest is.
    level = str(settings.pop("output__level", settings.pop("output.level", "info")))
    given = {**settings, "output.format": "json", "output.level": f"{level},evergraph::daemon=info"}
    for setting in _settings(given):
        command += ["--set", setting]
    try:
        process, log = held.start(command)
        began = time.monotonic()
        address = log.address(ready_seconds)
        if address is None:
            took = time.monotonic() - began
            ended = process.poll() is not None or took < ready_seconds
            held.end()
            what = f"ended with {process.returncode}" if ended else f"was not ready after {ready_seconds:g} s"
            raise DaemonStartError(f"{program} {what}; the end of its log:\n{log.text()}")
        scheme = "https" if _has_tls(given, config) else "http"
        return Daemon(f"{scheme}://{address}", folder, process, log, held)
    except BaseException:
        held.end()
        raise


def _has_tls(settings: Mapping[str, object], config: str | os.PathLike[str] | None) -> bool:
    """Whether these settings name a certificate, in the daemon's order of precedence."""
    name = "api.tls_certificate"
    for given in settings:
        if given.replace("__", ".") == name:
            return bool(str(settings[given]))
    from_environment = os.environ.get("EVERGRAPH__API__TLS_CERTIFICATE")
    if from_environment is not None or config is None:
        return bool(from_environment)
    return bool(tomllib.loads(Path(config).read_text()).get("api", {}).get("tls_certificate"))
