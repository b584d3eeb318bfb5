"""The live index beside USearch: the same vectors, the same questions, what is like a node.

    python3 benches/index/measure.py [--rows 200000] [--dimension 100] [--updates 5000]

`evergraph bench index` goes first, with rows of 32 and of 8 bits, and writes the vectors. Then USearch builds its graph of
them, and is asked at several depths of search; recall is the share of the ten nearest by cosine that it finds. In the last
part vectors change while it is asked: one is removed and another added under its key, in batches, by a thread of its own.
Needs NumPy and USearch.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy
import report
from usearch.index import Index

sys.path.append(str(Path(__file__).parent.parent))
from idle import idle_load

ROOT = Path(__file__).parent.parent.parent
EVERGRAPH = ROOT / "target" / "release" / "evergraph"
LIMIT, QUERIES, BATCH, CHANGED_AT_ONCE = 10, 300, 8, 50
# Depths of search; USearch's own default is 64.
DEPTHS = [64, 256, 1024]
THREADS = 2


def main():
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--rows", type=int, default=200_000)
    flags.add_argument("--dimension", type=int, default=100)
    flags.add_argument("--updates", type=int, default=5000)
    given = flags.parse_args()
    load = idle_load("index")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "vectors"
        shape = ["--rows", given.rows, "--dimension", given.dimension, "--updates", given.updates]
        threads = ["--threads", THREADS, "--queries", QUERIES, "--batch", BATCH, "--limit", LIMIT]
        command = [EVERGRAPH, "bench", "index", *shape, *threads, "--json", "-"]
        ours = {}
        for precision, more in [("f32", ["--vectors", path]), ("int8", [])]:
            words = list(map(str, [*command, "--precision", precision, *more]))
            done = subprocess.run(words, stdout=subprocess.PIPE, check=True, text=True)
            ours[precision] = json.loads(done.stdout)
        vectors = numpy.fromfile(path, numpy.float32).reshape(given.rows, given.dimension)
    vectors /= numpy.linalg.norm(vectors, axis=1, keepdims=True)
    found = {"evergraph": ours["f32"], "evergraph_int8": ours["int8"], "usearch": usearch(vectors, given.updates)}
    found |= {"updates_per_second": given.updates, "load_average_before": round(load, 2)}
    (report.BENCHMARKS / "index.json").write_text(json.dumps(found, indent=1) + "\n")
    report.write(report.pages(report.BENCHMARKS))


def usearch(vectors, updates):
    """Its figures: the build, questions at each depth, and questions while vectors change."""
    rows, dimension = vectors.shape
    draw = numpy.random.default_rng(0)
    questions = vectors[draw.integers(rows, size=QUERIES)]
    index = Index(ndim=dimension, metric="cos", dtype="f32")
    begun = time.perf_counter()
    index.add(numpy.arange(rows), vectors, threads=THREADS)
    figures = {"build_rows_per_second": rows / (time.perf_counter() - begun), "depths": {}}
    note("usearch: built at", figures["build_rows_per_second"], "rows/s")
    nearest = exact(vectors, questions)
    for depth in DEPTHS:
        index.expansion_search = depth
        figures["depths"][depth] = {"recall": recall(index, questions, nearest), **speed(index, questions)}
        note("usearch at depth", depth, figures["depths"][depth])
    changes = Changes(index, vectors, updates)
    changes.start()
    beside = {}
    for depth in DEPTHS:
        index.expansion_search = depth
        took = singles(index, questions)
        beside[depth] = {"p50_seconds": took[len(took) // 2], "p99_seconds": took[len(took) * 99 // 100]}
    changes.end()
    nearest = exact(vectors, questions)
    for depth in DEPTHS:
        index.expansion_search = depth
        beside[depth]["recall_after"] = recall(index, questions, nearest)
    note("usearch beside changes:", changes.rate, "rows/s", beside)
    figures["beside_updates"] = {"updated_rows_per_second": changes.rate, "depths": beside}
    return figures


class Changes(threading.Thread):
    """Gives nodes other vectors, so many per second or as many as can be."""

    def __init__(self, index, vectors, rate):
        super().__init__()
        self.index, self.vectors, self.wanted = index, vectors, rate
        self.ended, self.count, self.rate = False, 0, 0.0

    def run(self):
        draw, begun = numpy.random.default_rng(1), time.perf_counter()
        rows, dimension = self.vectors.shape
        while not self.ended:
            if self.count >= self.wanted * (time.perf_counter() - begun):
                time.sleep(0.001)
                continue
            keys = draw.choice(rows, CHANGED_AT_ONCE, replace=False)
            # Near others, as vectors of one model are.
            fresh = self.vectors[draw.integers(rows, size=CHANGED_AT_ONCE)]
            fresh = fresh + 0.1 * draw.standard_normal((CHANGED_AT_ONCE, dimension), numpy.float32) / dimension**0.5
            fresh /= numpy.linalg.norm(fresh, axis=1, keepdims=True)
            self.index.remove(keys, threads=1)
            self.index.add(keys, fresh, threads=1)
            self.vectors[keys] = fresh
            self.count += CHANGED_AT_ONCE
        self.rate = self.count / (time.perf_counter() - begun)

    def end(self):
        self.ended = True
        self.join()


def exact(vectors, questions):
    """The nearest of every question, by all vectors."""
    parts = (questions[first : first + BATCH] @ vectors.T for first in range(0, len(questions), BATCH))
    return numpy.concatenate([numpy.argpartition(-scores, LIMIT, axis=1)[:, :LIMIT] for scores in parts])


def recall(index, questions, nearest):
    found = index.search(questions, LIMIT, threads=THREADS).keys
    return sum(len(set(row) & set(best)) for row, best in zip(found, nearest)) / nearest.size


def singles(index, questions):
    took = []
    for question in questions:
        begun = time.perf_counter()
        index.search(question, LIMIT, threads=1)
        took.append(time.perf_counter() - begun)
    return sorted(took)


def speed(index, questions):
    took, begun = singles(index, questions), time.perf_counter()
    for first in range(0, QUERIES, BATCH):
        index.search(questions[first : first + BATCH], LIMIT, threads=THREADS)
    return {
        "single_p50_seconds": took[len(took) // 2],
        "single_p99_seconds": took[len(took) * 99 // 100],
        "batched_per_second": QUERIES / (time.perf_counter() - begun),
    }


def note(*words):
    print(*words, file=sys.stderr)


if __name__ == "__main__":
    main()
