"""Measures only where nothing else runs. Standard library only."""

import os
import sys
import time

LOAD_MAX, PATIENCE_SECONDS = 1, 600


def idle_load(name):
    """The load average, once it is low enough; installing and building before has raised it. `name` is who asks."""
    for _ in range(PATIENCE_SECONDS // 10):
        load = os.getloadavg()[0]
        if load <= LOAD_MAX:
            return load
        time.sleep(10)
    sys.exit(f"{name}: the load average stays above {LOAD_MAX}: {load:.2f}. Measure on a machine that does nothing else.")
