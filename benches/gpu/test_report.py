"""Tests of verdicts and table on made-up figures: `python -m unittest` in this folder. Standard library only."""

import copy
import gzip
import json
import os
import shutil
import subprocess
import tempfile
import unittest

import make_stream
import report
import targets


def spread(median):
    return {"median": median, "min": median, "max": median}


def row(width, count, **more):
    """A point of rows that meets everything; `more` are medians that differ."""
    seconds = {"device_gather": 6e-6, "device_copy": 5e-6, "zero_copy": 30e-6, "pinned_copy": 27e-6,
               "cpu_gather_and_copy": 90e-6} | more
    made = {"op": "gather_rows", "row_bytes": width, "table_rows": 9_999, "rows": count, "bytes": width * count}
    made |= {f"{name}_seconds": spread(value) for name, value in seconds.items()}
    made["device_gather_of_copy"] = seconds["device_copy"] / seconds["device_gather"]
    made["zero_copy_of_pinned_copy"] = seconds["pinned_copy"] / seconds["zero_copy"]
    return made


# What a run on a GPU says of its steps and rows.
GPU_USE = {"graph_steps": 1_600, "graphs_updated": 1_590, "graphs_built": 10, "direct_steps": 0, "failed_steps": 0,
            "kept_bytes": 1, "edge_rows_hit": 900, "edge_rows_missed": 100, "edge_rows_bypassed": 0}


def trained(rate, device="cuda", width=0):
    """A run whose first epoch was slow."""
    epochs = [{"seconds": 100.0}] + [{"seconds": 1000 / rate}] * 3
    phases = {"forward": 0.01, "gate": 0.0}
    return {"device": device, "events": 1000, "row_dimension": width, "each_epoch": epochs, "loss": 1.25,
            "phase_seconds": phases} | ({"gpu_use": GPU_USE} if device == "cuda" else {})


def peer(rate, width=0):
    return {"peer": "PyG 9", "device": "cuda", "events": 1000, "row_dimension": width, "events_per_second": rate,
            "loss": 1.3}


def hits(**more):
    return {"ours": 0.5, "lru": 0.4, "lfu": 0.4, "fifo": 0.3, "static": 0.2, "optimum": 0.6} | more


def parts():
    """What all steps leave where everything is well."""
    sample = {"policy": "recent", "layers": 1, "fanout": 10, "pages": [4, 0], "batches_per_second": spread(25e3),
              "waited_batches_per_second": spread(9e3)}
    layer = {"id": "linear m=600 k=200 n=100", "op": "linear", "direction": "forward", "seconds": spread(5e-6)}
    told = {"id": layer["id"], "direction": "forward", "ways_seconds": {"tf32": 4e-6, "fp32": 1e-5}}
    cached = {"stream": "w.csv.gz", "accesses": [{"sampling": "recent_1x10", "rows": "edges", "sizes": [
        {"share_of_rows": 0.001, "hit_ratio": hits()}, {"share_of_rows": 0.2, "hit_ratio": hits()}]}]}
    slow = {"pinned_copy": 75e-6, "zero_copy": 80e-6, "cpu_gather_and_copy": 200e-6}
    rows = [row(16, 100, zero_copy=99e-6), row(344, 1_000), row(688, 1_000), row(4096, 1_000, **slow)]
    return {
        "rows.json": {"rows": rows, "layers": [layer]},
        "torch-rows.json": {"rows": [{"row_bytes": 688, "rows": 1_000, "device_seconds": 7e-6, "host_seconds": 70e-6}]},
        "torch-layers.json": {"rows": [told]},
        "samples.json": {"seeds_per_batch": 1800, "measurements": [sample], "recent_1x10_batches_per_second": 25e3,
                         "uniform_2x10_batches_per_second": 6e3},
        "samples-cpu.json": {"by_threads": {"recent_1x10_batches_per_second": {"1": 1e3, "16": 5e3}}},
        "torch-samples.json": {"peer": "torch 9, a search", "recent_1x10_batches_per_second": 2e3,
                               "ways_batches_per_second": {"eager": 2e3}},
        "train-tgn-0.json": trained(600e3), "train-tgn-172.json": trained(550e3, width=172),
        "train-tgat-0.json": trained(9e3), "train-graphmixer-0.json": trained(8e3),
        "train-tgn-0-cpu.json": trained(50e3, "cpu"), "pyg-0.json": peer(30e3), "pyg-172.json": peer(20e3, 172),
        "eval.json": {"mean_average_precision": 0.9512}, "cache.json": {"streams": [cached]},
    }


def document(made, steps=({"step": "tests", "ok": True},)):
    with tempfile.TemporaryDirectory() as folder:
        for name, content in made.items():
            with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
                json.dump(content, file)
        with open(os.path.join(folder, "steps.jsonl"), "w", encoding="utf-8") as file:
            file.writelines(json.dumps(step) + "\n" for step in steps)
        found = report.gather(folder)
    found["targets"] = targets.verdicts(found)
    return found


def said(found):
    return {each["what"]: (each["verdict"], each["measured"]) for each in found["targets"]}


def about(found, *words):
    """The one verdict whose name has all the words."""
    hit = [each for what, each in said(found).items() if all(word in what for word in words)]
    assert len(hit) == 1, (words, said(found))
    return hit[0]


class Verdicts(unittest.TestCase):
    def test_all_is_met_where_everything_is_well(self):
        found = document(parts())
        self.assertEqual({verdict for verdict, _ in said(found).values()}, {targets.MET}, said(found))
        self.assertEqual(about(found, "TGN trained", "no rows"), ("met", "600,000"))
        self.assertEqual(about(found, "PyG", "172"), ("met", "27.5, PyG 20,000 events/s"))
        self.assertEqual(about(found, "call of 1,000")[1], "30.0 µs at worst, 1,000 rows of 344 B")
        self.assertEqual(about(found, "processor's gather")[1], "57% at worst, 1,000 rows of 688 B")
        self.assertIn("12 of 12 met, 0 missed, 0 not measured", report.table(found))
        use = "1,600 steps as graphs (1,590 updated, 10 built), 0 kernel by kernel, 0 failed; 90.0% of 1,000 edge rows were"
        self.assertIn(use, report.table(found))

    def test_nothing_is_said_of_what_was_not_measured(self):
        found = document({}, steps=[])
        self.assertEqual({each for each in said(found).values()}, {(targets.UNKNOWN, None)})
        table = report.table(found)
        self.assertIn("0 of 12 met, 0 missed, 12 not measured", table)
        for line in ("rows gathered: not measured", "samples: not measured", "layers: not measured"):
            self.assertIn(line, table)
        self.assertIn("pyg-0            not measured", table)

    def test_each_part_may_be_missing(self):
        for name in parts():
            made = parts()
            del made[name]
            self.assertTrue(report.table(document(made)), name)

    def test_the_worst_point_counts_and_only_where_it_is_asked_for(self):
        made = parts()
        made["rows.json"]["rows"] += [row(512, 100, zero_copy=60e-6), row(256, 1_000_000, device_gather=8e-6)]
        found = document(made)
        self.assertEqual(about(found, "512 B or more", "a copy of"), ("missed", "45% at worst, 100 rows of 512 B"))
        self.assertEqual(about(found, "256 B or more")[0], "missed")
        self.assertEqual(about(found, "call of 1,000")[0], "met")
        made["rows.json"]["rows"].append(row(1376, 1_000, zero_copy=41e-6))
        self.assertEqual(about(document(made), "call of 1,000")[0], "missed")

    def test_the_faster_of_both_processors_is_the_one_to_beat(self):
        made = parts()
        made["torch-rows.json"]["rows"][0]["host_seconds"] = 40e-6
        self.assertEqual(about(document(made), "processor's gather")[0], "missed")
        del made["torch-rows.json"]
        self.assertEqual(about(document(made), "torch was not measured")[0], "met")

    def test_slow_runs_and_slow_samples_are_missed(self):
        made = parts()
        made["train-tgn-0.json"] = trained(499e3)
        made["pyg-172.json"] = peer(60e3, 172)
        made["samples.json"]["uniform_2x10_batches_per_second"] = 4_999
        found = document(made, steps=[{"step": "tests", "ok": True}, {"step": "tests", "ok": False}])
        self.assertEqual(about(found, "TGN trained", "no rows"), ("missed", "499,000"))
        self.assertEqual(about(found, "PyG", "172")[0], "missed")
        self.assertEqual(about(found, "PyG", "no rows")[0], "met")
        self.assertEqual(about(found, "uniform"), ("missed", "4,999"))
        self.assertEqual(about(found, "kernels agree")[0], "missed", "the last run of a step counts")

    def test_a_run_on_the_cpu_or_with_other_events_is_no_figure_of_the_gpu(self):
        for spoil in ({"device": "cpu"}, {"events": 7}):
            made = parts()
            made["pyg-0.json"] |= spoil
            self.assertEqual(about(document(made), "PyG", "no rows"), ("not measured", None))
        made = parts()
        made["train-tgn-0.json"]["device"] = "cpu"
        found = document(made)
        self.assertEqual(about(found, "TGN trained", "no rows")[0], "not measured")
        self.assertEqual(about(found, "PyG", "no rows")[0], "not measured")

    def test_a_cache_that_is_only_as_good_as_another_is_not_ahead(self):
        made = parts()
        made["cache.json"]["streams"].append(copy.deepcopy(made["cache.json"]["streams"][0]) | {"stream": "o.csv"})
        made["cache.json"]["streams"][1]["accesses"][0]["sizes"][1]["hit_ratio"] = hits(lfu=0.5)
        found = document(made)
        self.assertEqual(about(found, "row cache", "w.csv.gz")[0], "met")
        expected = "not in 1 of 8, such as lfu at 20.0%, recent_1x10 of edges"
        self.assertEqual(about(found, "row cache", "o.csv"), ("missed", expected))


class Table(unittest.TestCase):
    def test_peers_stand_beside_ours_and_reasons_at_the_end(self):
        steps = [{"step": "tests", "ok": True}, {"step": "racecheck", "skipped": "not installed"},
                 {"step": "pyg-0", "ok": False, "why": "torch_geometric is not installed"}]
        table = report.table(document(parts(), steps))
        self.assertIn("tf32 4.0 0.80x, fp32 10.0 2.00x", table)
        self.assertIn("a search over a table of all edges: batches/s eager 2,000; ours is 12.50 times", table)
        self.assertIn("on the GPU      0.9512\non the CPU not measured", table)
        self.assertIn("skipped racecheck: not installed", table)
        self.assertIn("FAILED  pyg-0: torch_geometric is not installed", table)

    def test_half_a_file_is_no_figure(self):
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, "rows.json"), "w", encoding="utf-8") as file:
                file.write('{"rows": [')
            self.assertNotIn("rows", report.gather(folder))


# A program in the place of ours: fails where it is told to, and else writes what a run would to the file after --json.
PROGRAM = """#!/bin/sh
echo "ok    cuda: made up, $*"
case "$*" in *"$FAILS"*) echo "error: made to fail"; exit 1 ;; esac
while [ "$#" != 0 ]; do [ "$1" != --json ] || cp "$FIGURES/${2##*/}" "$2"; shift; done
"""


class Script(unittest.TestCase):
    """`gpu-check.sh` with a bundle and a driver that are made up."""

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        here = os.path.dirname(os.path.abspath(__file__))
        self.bundle, self.figures, self.bin = (self.make(name) for name in ("bundle", "figures", "bin"))
        for name in os.listdir(here):
            if name.endswith(".py"):
                shutil.copy(os.path.join(here, name), self.bundle)
        shutil.copy(os.path.join(here, "..", "..", "scripts", "gpu-check.sh"), self.bundle)
        for name in ("it", "evergraph"):
            with gzip.open(os.path.join(self.bundle, f"{name}.gz"), "wt") as file:
                file.write(PROGRAM)
        self.program("nvidia-smi", "#!/bin/sh\necho GPU 0: made up\n")
        for name, content in parts().items():
            with open(os.path.join(self.figures, name), "w", encoding="utf-8") as file:
                json.dump(content, file)

    def make(self, name):
        path = os.path.join(self.folder.name, name)
        os.mkdir(path)
        return path

    def program(self, name, text):
        path = os.path.join(self.bin, name)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(path, 0o755)

    def check(self, *steps, fails="nothing at all", **environment):
        out = os.path.join(self.folder.name, "out")
        given = os.environ | {"PATH": f"{self.bin}:{os.environ['PATH']}", "FIGURES": self.figures, "FAILS": fails,
                              "OUT": out} | environment
        done = subprocess.run(["bash", os.path.join(self.bundle, "gpu-check.sh"), *steps], env=given, text=True,
                              capture_output=True, check=False)
        found = report.read(os.path.join(out, "gpu-check.json"))
        return done, found, {step["step"]: step for step in found.get("steps", [])}

    def test_all_steps_are_run_and_told(self):
        done, found, steps = self.check(fails="--model tgat")
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertEqual(steps["train-tgat-0"], {"step": "train-tgat-0", "ok": False, "why": "error: made to fail"})
        self.assertTrue(all(steps[name]["ok"] for name in ("check", "tests", "rows", "train-tgn-0", "eval", "cache")))
        self.assertIn("tgat-0           not measured", done.stdout)
        self.assertEqual(about(found, "TGN trained", "172"), ("met", "550,000"))
        self.assertIn("cuda: made up", found["check"][0])

    def test_named_steps_alone_are_run_and_figures_of_earlier_calls_are_kept(self):
        kept = {"PARTS": os.path.join(self.folder.name, "parts")}
        done, found, steps = self.check("train", "cache", **kept)
        self.assertEqual((done.returncode, len(steps)), (0, 7), done.stderr)
        self.assertEqual(about(found, "kernels agree")[0], "not measured")
        done, found, steps = self.check("tests", **kept)
        self.assertEqual((done.returncode, len(steps)), (0, 8), done.stderr)
        self.assertEqual(about(found, "kernels agree")[0], "met")
        self.assertEqual(about(found, "TGN trained", "no rows")[0], "met")
        self.assertEqual(about(found, "PyG", "no rows")[0], "not measured")

    def test_without_a_driver_nothing_is_checked(self):
        self.program("nvidia-smi", "#!/bin/sh\necho no devices were found\n")
        done, found, _ = self.check()
        self.assertEqual((done.returncode, found), (2, {}))
        self.assertIn("the driver shows no GPU: no devices were found", done.stderr)


class Streams(unittest.TestCase):
    def test_what_is_made_up_has_the_shape_of_wikipedia(self):
        made = list(make_stream.rows())
        self.assertEqual(len(made), 157_474)
        self.assertTrue(all(src < 8_227 <= dst < 9_227 for src, dst, _ in made))
        times = [time for _, _, time in made]
        self.assertEqual(times, sorted(times))


if __name__ == "__main__":
    unittest.main()
