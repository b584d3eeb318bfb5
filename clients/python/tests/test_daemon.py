"""Daemons that a program starts for itself."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

import evergraph
import evergraph.daemon
from evergraph._binary import find_binary

from .conftest import SETTINGS


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def gone(pid: int) -> bool:
    """Whether the process ends soon."""
    deadline = time.monotonic() + 20
    while alive(pid) and time.monotonic() < deadline:
        time.sleep(0.01)
    return not alive(pid)


def test_it_goes_and_takes_its_temporary_folder_along() -> None:
    with evergraph.run(**SETTINGS) as daemon, daemon.client() as client:
        assert daemon.running
        assert daemon.data.is_dir()
        assert client.ready()
        assert f"pid {daemon.pid}" in repr(daemon)
        assert '"ready"' in daemon.log
    assert not daemon.running
    assert not daemon.data.exists()
    assert "ended with 0" in repr(daemon)
    daemon.stop()


def test_what_was_pushed_is_there_at_the_next_start(tmp_path: Path) -> None:
    with evergraph.run(tmp_path, **SETTINGS) as daemon, daemon.client() as client:
        client.push({"src": "a", "dst": "b", "ts": 1})
    with evergraph.run(str(tmp_path), **SETTINGS, output__level="warn") as daemon, daemon.client() as client:
        assert client.node("a").degree == 1
        assert client.get_log_level().level.startswith("warn")
    assert tmp_path.is_dir()


def test_a_daemon_that_does_not_start_shows_why() -> None:
    with pytest.raises(evergraph.DaemonStartError, match=r"ended with 78[\s\S]*no_such_key"):
        evergraph.run(learner__no_such_key=1)
    with pytest.raises(evergraph.DaemonStartError, match="was not ready after 0 s"):
        evergraph.run(ready_seconds=0)


def test_settings_come_from_a_file_too(tmp_path: Path) -> None:
    config = tmp_path / "evergraph.toml"
    config.write_text('[model]\nembedding_dimension = 24\n[stream]\ntime_unit = "nanoseconds"\n')
    with evergraph.run(config=config) as daemon, daemon.client() as client:
        assert (client.info().embedding_dimension, client.info().time_unit) == (24, "nanoseconds")


@pytest.mark.parametrize("ending", ["", "raise SystemExit(3)", "1 / 0"])
def test_it_ends_with_the_interpreter(ending: str) -> None:
    program = f"import evergraph\ndaemon = evergraph.run()\nprint(daemon.pid, daemon.data, flush=True)\n{ending}\n"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    pid, data = done.stdout.split()
    assert not alive(int(pid)), done.stderr
    assert not Path(data).exists()


def test_it_ends_with_an_interpreter_that_is_killed() -> None:
    program = "import evergraph, os\nprint(evergraph.run().pid, flush=True)\ndaemon = evergraph.run()\n"
    program += "print(daemon.pid, daemon.data, flush=True)\nos.kill(os.getpid(), 9)\n"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    first, second, data = done.stdout.split()
    assert gone(int(second))
    assert not alive(int(first)), "nobody held it"
    shutil.rmtree(data)


def test_it_ends_with_an_interpreter_that_is_killed_before_it_is_ready(tmp_path: Path) -> None:
    slow, written = tmp_path / "slow", tmp_path / "pid"
    slow.write_text(f"#!/bin/sh\necho $$ >{written}.part\nmv {written}.part {written}\nexec sleep 100\n")
    slow.chmod(0o755)
    program = f"import evergraph\nevergraph.run({str(tmp_path)!r}, binary={str(slow)!r})\n"
    with subprocess.Popen([sys.executable, "-c", program]) as interpreter:
        deadline = time.monotonic() + 20
        while not written.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.2)  # what ends it is started right after it
        interpreter.kill()
    assert gone(int(written.read_text()))


@pytest.mark.parametrize("step", ["_guard", "_Log", "_has_tls"])
def test_a_start_that_fails_half_way_leaves_nothing_behind(
    step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[int] = []
    popen = subprocess.Popen

    def noted(*words: Any, **named: Any) -> Any:
        process = popen(*words, **named)
        started.append(process.pid)
        return process

    def fails(*_words: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(subprocess, "Popen", noted)
    monkeypatch.setattr(evergraph.daemon, step, fails)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(KeyboardInterrupt):
        evergraph.run(**SETTINGS)
    assert started
    assert not any(alive(pid) for pid in started)
    assert list(tmp_path.iterdir()) == []


def test_a_forked_child_leaves_it_alone() -> None:
    program = "import evergraph, os, sys\ndaemon = evergraph.run()\nchild = os.fork()\n"
    program += "if child == 0: sys.exit(0)\n"
    program += "os.waitpid(child, 0)\nprint(daemon.running, daemon.data.is_dir(), daemon.data)\n"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    running, kept, data = done.stdout.split()
    assert (running, kept) == ("True", "True"), done.stderr
    assert not Path(data).exists()


def test_it_ends_when_nobody_holds_it() -> None:
    daemon = evergraph.run(**SETTINGS)
    pid = daemon.pid
    del daemon
    assert not alive(pid)


@pytest.mark.parametrize("make", [evergraph.Daemon.client, evergraph.Daemon.async_client])
def test_it_does_not_end_while_a_client_of_it_is_held(make: Any) -> None:
    daemon = evergraph.run(**SETTINGS)
    pid, client = daemon.pid, make(daemon)
    del daemon
    assert alive(pid)
    with evergraph.Client(client.url) as other:
        assert other.live()
    del client
    assert not alive(pid)


def test_a_killed_daemon_is_seen_and_stopped() -> None:
    daemon = evergraph.run(**SETTINGS)
    os.kill(daemon.pid, 9)
    deadline = time.monotonic() + 10
    while daemon.running and time.monotonic() < deadline:
        time.sleep(0.01)
    assert "ended with -9" in repr(daemon)
    daemon.stop()


def test_the_program_is_found_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def program(folder: Path) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "evergraph"
        path.write_text("#!/bin/sh\n")
        path.chmod(0o755)
        return path

    named, variable, beside, on_path = (program(tmp_path / name) for name in ("a", "b", "c", "d"))
    monkeypatch.setenv("EVERGRAPH_BIN", str(variable))
    monkeypatch.setenv("PATH", str(on_path.parent))
    monkeypatch.setattr(sysconfig, "get_path", lambda _name: str(beside.parent))
    assert find_binary(named) == str(named)
    assert find_binary() == str(variable)
    monkeypatch.delenv("EVERGRAPH_BIN")
    assert find_binary() == str(beside)
    beside.unlink()
    assert find_binary() == str(on_path)
    on_path.unlink()
    with pytest.raises(FileNotFoundError, match="EVERGRAPH_BIN"):
        find_binary()
    monkeypatch.setenv("EVERGRAPH_BIN", "/nowhere/evergraph")
    with pytest.raises(FileNotFoundError, match=r"EVERGRAPH_BIN names '/nowhere/evergraph'"):
        find_binary()
