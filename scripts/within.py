"""Runs a command of tests for so many seconds at most, and names the tests that hang.

    scripts/within.py SECONDS COMMAND…

What the command prints is passed on, and its exit status is returned. After the time, what runs is listed, tests that
began and did not end are reported as failed, and the command is ended with all that it started; then the status is 124.
An interrupt ends them too. Needs the standard library only.
"""

import os
import re
import signal
import subprocess
import sys
import threading

# What libtest prints. With one thread it prints the name before it runs a test; with several it prints the name of one
# that takes long, and every name with its outcome.
LONG = re.compile(r"^test (\S+) has been running for over ")
BEGUN = re.compile(r"^test (\S+) (?:- should panic )?\.\.\. ?(.*)$")
ENDED = ("ok", "FAILED", "ignored")
GRACE_SECONDS = 10


class Names:
    """The tests that began and did not end, as far as the output shows."""

    def __init__(self):
        self.open, self.last = {}, None

    def read(self, line):
        if found := LONG.match(line):
            self.open[found[1]] = True
        elif found := BEGUN.match(line):
            self.open.pop(self.last, None)
            self.last = None
            if found[2].startswith(ENDED):
                self.open.pop(found[1], None)
            else:
                self.last = found[1]
                self.open[self.last] = True
        elif line.startswith("test result: "):
            self.open.clear()


def processes():
    """Those that run, of any user: number, parent, state and command; from /proc."""
    for number in sorted(int(name) for name in os.listdir("/proc") if name.isdigit()):
        try:
            with open(f"/proc/{number}/cmdline", "rb") as words, open(f"/proc/{number}/stat") as stat:
                command = words.read().replace(b"\0", b" ").decode(errors="replace").strip()
                state, parent = stat.read().rpartition(")")[2].split()[:2]
        except OSError:
            continue
        if command:
            yield f"{number:>8} {parent:>8} {state} {command[:160]}"


def end(group):
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(group.pid, number)
            group.wait(GRACE_SECONDS if number == signal.SIGTERM else None)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            pass


def main():
    seconds, command = float(sys.argv[1]), sys.argv[2:]
    # A signal must find the command or come before it: until `running` is known, it is only noted.
    signals = []
    handle(lambda number, _: signals.append(number))
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    running = subprocess.Popen(command, start_new_session=True, **pipes)
    try:
        handle(stop)
        if signals:
            stop(signals[0], None)
        return follow(running, seconds)
    except SystemExit:
        end(running)
        raise


def handle(action):
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, action)


def stop(number, _):
    handle(signal.SIG_IGN)
    raise SystemExit(128 + number)


def follow(running, seconds):
    names, late, read = Names(), threading.Event(), threading.Event()

    def give_up():
        late.set()
        lines = [f"\nwithin: not done after {seconds:.0f} s, and ended. What ran (process, parent, state, command):"]
        lines += [*processes(), *(f"test {name} ... FAILED: it hangs" for name in names.open)]
        print("\n".join(lines), flush=True)
        end(running)

    timer = threading.Timer(seconds, give_up)
    timer.daemon = True
    timer.start()
    # What is left of a group that was ended may hold the pipe for long, so the command's end is the end.
    threading.Thread(target=pass_on, args=(running.stdout, names, read), daemon=True).start()
    status = running.wait()
    timer.cancel()
    if late.is_set():
        timer.join()
        return 124
    read.wait(GRACE_SECONDS)
    return status if status >= 0 else 128 - status


def pass_on(output, names, done):
    for line in output:
        names.read(line.decode(errors="replace"))
        sys.stdout.buffer.write(line)
        sys.stdout.buffer.flush()
    done.set()


if __name__ == "__main__":
    sys.exit(main())
