"""Reads the columns src, dst and ts of an event file, CSV or CSV.gz, as lists of integers in order of time."""

import csv
import gzip


def columns(path):
    opened = gzip.open if str(path).endswith(".gz") else open
    with opened(path, "rt", encoding="utf-8", newline="") as file:
        rows = csv.reader(file)
        header = next(rows)
        at = [header.index(name) for name in ("src", "dst", "ts")]
        events = [tuple(int(row[i]) for i in at) for row in rows]
    events.sort(key=lambda event: event[2])
    return [list(column) for column in zip(*events)]
