"""What kernels cost, from the launches that `ncu --csv --print-units base --metrics gpu__time_duration.sum` lists.
Standard library only.

    profile_kernels.py LAUNCHES.csv

Prints a line for each kernel, the most expensive first: its share, launches, microseconds in all and of one (median).
Status 3 where the file lists none; the last line is then what the profiler reports.
"""

import collections
import csv
import math
import statistics
import sys


def microseconds_of(lines):
    """Microseconds of each launch, by kernel. What stands between the rows, or is no time, is left out."""
    times = collections.defaultdict(list)
    for row in csv.DictReader(line for line in lines if line.startswith('"')):
        if row.get("Metric Name") != "gpu__time_duration.sum" or row.get("Metric Unit") not in ("ns", "nsecond"):
            continue
        try:
            nanoseconds = float(row["Metric Value"].replace(",", ""))
        except ValueError:
            continue
        if math.isfinite(nanoseconds):
            times[row["Kernel Name"]].append(nanoseconds / 1000)
    return times


def table(times):
    total = sum(sum(each) for each in times.values())
    lines = [f"{sum(len(each) for each in times.values())} launches, {total:.0f} µs on the GPU",
             f"{'kernel':<32} {'share':>6} {'launches':>8} {'µs':>9} {'µs each':>8}"]
    for name, each in sorted(times.items(), key=lambda pair: -sum(pair[1])):
        lines.append(f"{name:<32} {sum(each) / total:>6.1%} {len(each):>8} {sum(each):>9.1f} "
                     f"{statistics.median(each):>8.1f}")
    return "\n".join(lines)


def main(path):
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            lines = file.read().splitlines()
    except OSError:
        lines = []
    times = microseconds_of(lines)
    if not times:
        reports = [line for line in lines if line.startswith(("==ERROR==", "==WARNING=="))]
        print("\n".join(reports) or "the profiler lists no launch, and reports nothing")
        return 3
    print(table(times))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
