"""A peer process that measures on request, a line each: between its turns it is stopped, so that it takes nothing from the
others. Standard library only."""

import json
import os
import signal
import subprocess
import sys

# By default glibc gives large blocks back to the system and asks for new ones, which have to be zeroed and mapped page
# by page; of a large result this can be most of what torch takes. With these settings it keeps what it has: the peers
# at their best.
KEPT = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 33), "MALLOC_TOP_PAD_": str(1 << 28)}


class PeerProcess:
    """A program that responds to each line with one of JSON."""

    def __init__(self, name, command, threads, log):
        self.name, self.log = name, log
        environment = os.environ | KEPT | {"OMP_NUM_THREADS": str(threads)}
        with open(log, "w") as errors:
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": errors, "text": True}
            self.process = subprocess.Popen(list(map(str, command)), env=environment, **pipes)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()

    def request(self, line):
        self.process.send_signal(signal.SIGCONT)
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        response = self.process.stdout.readline()
        if not response:
            sys.exit(f"{self.name} did not respond to `{line}`:\n{self.log.read_text()}")
        self.process.send_signal(signal.SIGSTOP)
        return json.loads(response)


def run(command):
    """The output of a program is shown only if it fails."""
    done = subprocess.run(list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))} ended with {done.returncode}:\n{done.stdout.decode()}")
    return done.stdout.decode()
