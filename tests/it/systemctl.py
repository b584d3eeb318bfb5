"""A small part of systemctl and journalctl, for machines without systemd as process 1: runs the one service of a unit.

    systemctl.py ROOT systemctl (daemon-reload | [enable --now|start|stop|reload|restart|status] evergraph)
    systemctl.py ROOT journalctl -u evergraph [-n LINES]

Reads ROOT/etc/systemd/system/evergraph.service; runs ExecStartPre= and ExecStart= in WorkingDirectory= and waits for
READY=1 on NOTIFY_SOCKET, as Type=notify asks; stops with SIGTERM. Users, limits and filters of the unit are not applied.
"""

import os
import pathlib
import shlex
import signal
import socket
import subprocess
import sys
import time

PATIENCE = 120
root = pathlib.Path(sys.argv[1])
journal, pidfile = root / "journal", root / "pid"


def unit(key):
    lines = (root / "etc/systemd/system/evergraph.service").read_text(encoding="utf-8").splitlines()
    return [line.partition("=")[2] for line in lines if line.startswith(key + "=")]


def pid():
    try:
        number = int(pidfile.read_text())
        state = pathlib.Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0]
        return number if state != "Z" else None
    except FileNotFoundError:
        return None


def run(command, **more):
    # One process to begin with, so that ending this script ends nothing.
    return subprocess.Popen(shlex.split(command), stdin=subprocess.DEVNULL, start_new_session=True, **more)


def start():
    if pid():
        return
    folder = unit("WorkingDirectory")[0]
    os.makedirs(folder, exist_ok=True)
    path = str(root / "notify")
    if os.path.exists(path):
        os.unlink(path)
    ready = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    ready.bind(path)
    ready.settimeout(1)
    with open(journal, "ab") as log:
        for command in unit("ExecStartPre"):
            code = run(command.lstrip("-"), cwd=folder, stdout=log, stderr=log).wait()
            if code != 0 and not command.startswith("-"):
                sys.exit(f"ExecStartPre= ended with {code}")
        environment = {**os.environ, "NOTIFY_SOCKET": path}
        child = run(unit("ExecStart")[0], cwd=folder, stdout=log, stderr=log, env=environment)
    pidfile.write_text(str(child.pid))
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until and child.poll() is None:
        try:
            if b"READY=1" in ready.recv(4096):
                return
        except TimeoutError:
            pass
    sys.exit(f"the service did not get ready:\n{journal.read_text(errors='replace')}")


def stop():
    number = pid()
    if number is None:
        return
    os.kill(number, signal.SIGTERM)
    until = time.monotonic() + PATIENCE
    while pid():
        if time.monotonic() > until:
            sys.exit("the service did not end")
        time.sleep(0.05)
    pidfile.unlink()


def main(words):
    match words:
        case ["systemctl", "daemon-reload"]:
            pass
        case ["systemctl", "enable", "--now", "evergraph"] | ["systemctl", "start", "evergraph"]:
            start()
        case ["systemctl", "stop", "evergraph"]:
            stop()
        case ["systemctl", "restart", "evergraph"]:
            stop()
            start()
        case ["systemctl", "reload", "evergraph"]:
            number = pid()
            if unit("ExecReload") != ["/bin/kill -HUP $MAINPID"] or number is None:
                sys.exit("the service cannot be reloaded")
            os.kill(number, signal.SIGHUP)
        case ["systemctl", "status", "evergraph"]:
            print("active (running)" if pid() else "inactive (dead)")
            sys.exit(0 if pid() else 3)
        case ["journalctl", "-u", "evergraph", "-n", lines]:
            print("\n".join(journal.read_text(errors="replace").splitlines()[-int(lines):]))
        case _:
            sys.exit(f"systemctl.py does not know: {words}")


main(sys.argv[2:])
