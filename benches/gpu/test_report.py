"""Tests of verdicts and table on made-up figures: `python -m unittest` in this folder. Standard library only."""

import gzip
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path
from unittest import mock

import make_stream
import peer_rows
import peer_training
import publish
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


# How a run on a GPU used it.
GPU_USE = {"graph_steps": 1_600, "graphs_updated": 1_590, "graphs_built": 10, "steps_ahead": 1_400, "direct_steps": 0,
            "failed_steps": 0, "kept_bytes": 1, "edge_rows_hit": 900, "edge_rows_missed": 100, "edge_rows_bypassed": 0,
            "samples_on_gpu": 1_600, "samples_on_cpu": 0, "bus_bytes_to_gpu_per_event": 700.4}


def trained(rate, device="cuda", width=0):
    """A run whose first epoch was slow."""
    epochs = [{"seconds": 100.0}] + [{"seconds": 1000 / rate}] * 3
    phases = {"forward": 0.01, "gate": 0.0}
    return {"device": device, "events": 1000, "row_dimension": width, "each_epoch": epochs, "loss": 1.25,
            "phase_seconds": phases, "cpu_seconds_per_million_events": 7.25,
            "gpu_joules_per_million_events": 1234.5} | ({"gpu_use": GPU_USE} if device == "cuda" else {})


def peer(rate, width=0):
    return {"peer": "PyG 9", "device": "cuda", "events": 1000, "row_dimension": width, "events_per_second": rate,
            "loss": 1.3}


def daemon(rate, seconds, width=0):
    """A run of a daemon whose rounds took so many seconds."""
    rounds = [{"acknowledged_seconds": seconds / 2, "learned_seconds": each * seconds} for each in (0.9, 1, 1.1)]
    return {"device": "cuda:0: made up", "events": 600_000, "events_per_second": rate, "row_dimension": width,
            "phase_seconds": {"forward": 1.5, "exchange": 0.0}, "skipped_events": 0, "round_events": 5_000,
            "batch_events": 600, "lag_events_median": 900, 
            "learned_seconds": spread(seconds), "each_round": rounds}


def retrained(*seconds, width=0):
    return {"peer": "PyG 9", "device": "cuda", "events": 100_000, "round_events": 5_000, "retrained_seconds": seconds,
            "batch_events": 600, "row_dimension": width, "continued_seconds": [0.5]}


def parts():
    """What all steps leave where everything is well."""
    sample = {"policy": "recent", "layers": 1, "fanout": 10, "pages": [4, 0], "batches_per_second": spread(25e3),
              "waited_batches_per_second": spread(9e3)}
    layer = {"id": "linear m=600 k=200 n=100", "op": "linear", "direction": "forward", "seconds": spread(5e-6)}
    figures = {"id": layer["id"], "direction": "forward", "ways_seconds": {"tf32": 4e-6, "fp32": 1e-5}}
    slow = {"pinned_copy": 75e-6, "zero_copy": 80e-6, "cpu_gather_and_copy": 200e-6}
    rows = [row(16, 100, zero_copy=99e-6), row(344, 1_000), row(688, 1_000), row(4096, 1_000, **slow)]
    return {
        "rows.json": {"rows": rows, "layers": [layer]},
        "torch-rows.json": {"rows": [{"row_bytes": 688, "rows": 1_000, "device_seconds": 7e-6, "host_seconds": 70e-6}]},
        "torch-layers.json": {"rows": [figures]},
        "samples.json": {"seeds_per_batch": 1800, "measurements": [sample], "recent_1x10_batches_per_second": 25e3,
                         "uniform_2x10_batches_per_second": 6e3},
        "torch-samples.json": {"peer": "torch 9, a search", "recent_1x10_batches_per_second": 2e3,
                               "ways_batches_per_second": {"eager": 2e3}},
        "train-tgn-0.json": trained(600e3), "train-tgn-172.json": trained(550e3, width=172),
        "train-tgat-0.json": trained(9e3), "train-graphmixer-0.json": trained(8e3),
        "pyg-0.json": peer(30e3), "pyg-172.json": peer(20e3, 172),
        "train-tgn-0-served.json": trained(400e3), "train-tgn-172-served.json": trained(300e3, width=172),
        "learn-0.json": daemon(250e3, 0.05), "learn-172.json": daemon(210e3, 0.1, 172),
        "pyg-continual-0.json": retrained(9, 11, 10), "pyg-continual-172.json": retrained(12, 12, 12, width=172),
        "eval.json": {"device": "cuda:0", "mean_average_precision": 0.9512}, "eval-cpu.json": {"mean_average_precision": 0.9500},
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
        self.assertEqual(about(found, "TGN trained", "no features"), ("met", "600,000"))
        self.assertEqual(about(found, "beside PyG's TGN on", "172"), ("met", "27.5, PyG 20,000 events/s"))
        self.assertEqual(about(found, "call of 1,000")[1], "30.0 µs at worst, 1,000 rows of 344 B")
        self.assertEqual(about(found, "gather by the CPU")[1], "57% at worst, 1,000 rows of 688 B")
        self.assertEqual(about(found, "daemon ingests", "no features"), ("met", "250,000"))
        self.assertEqual(about(found, "daemon has learned", "no features"),
                         ("met", "200: 5,000 events in 0.050 s, PyG 10.0 s"))
        self.assertIn("16 of 16 met, 0 missed, 0 not measured", report.table(found))
        rounds = "rounds of 5,000: acknowledged after 0.025 s (0.025 to 0.025), learned after 0.050 s (0.045 to 0.055)"
        self.assertIn(rounds, report.table(found))
        use = ("1,600 steps as graphs (1,590 updated, 10 built, 1,400 recorded ahead), 0 kernel by kernel, 0 failed; "
               "90.0% of 1,000 edge rows hit")
        self.assertIn(use, report.table(found))
        costs = "for a million events: 7.2 s of the CPU, 1,234 J of the GPU, over the bus 700 MB to the GPU, nan MB to the host"
        self.assertIn(costs, report.table(found))

    def test_nothing_is_said_of_what_was_not_measured(self):
        found = document({}, steps=[])
        self.assertEqual({each for each in said(found).values()}, {(targets.UNKNOWN, None)})
        table = report.table(found)
        self.assertIn("0 of 16 met, 0 missed, 16 not measured", table)
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
        self.assertEqual(about(found, "512 B or more", "a copy of"), 
                         ("missed", "45% at worst, 100 rows of 512 B; from 1,000 rows on 90%, 1,000 rows of 688 B"))
        self.assertEqual(about(found, "256 B or more")[0], "missed")
        self.assertEqual(about(found, "call of 1,000")[0], "met")
        made["rows.json"]["rows"].append(row(1376, 1_000, zero_copy=41e-6))
        self.assertEqual(about(document(made), "call of 1,000")[0], "missed")

    def test_the_faster_gather_by_the_cpu_is_the_one_to_beat(self):
        made = parts()
        made["torch-rows.json"]["rows"][0]["host_seconds"] = 40e-6
        self.assertEqual(about(document(made), "gather by the CPU")[0], "missed")
        del made["torch-rows.json"]
        self.assertEqual(about(document(made), "torch was not measured")[0], "met")

    def test_slow_runs_and_slow_samples_are_missed(self):
        made = parts()
        made["train-tgn-0.json"] = trained(499e3)
        made["pyg-172.json"] = peer(60e3, 172)
        made["samples.json"]["uniform_2x10_batches_per_second"] = 4_999
        found = document(made, steps=[{"step": "tests", "ok": True}, {"step": "tests", "ok": False}])
        self.assertEqual(about(found, "TGN trained", "no features"), ("missed", "499,000"))
        self.assertEqual(about(found, "beside PyG's TGN on", "172")[0], "missed")
        self.assertEqual(about(found, "beside PyG's TGN on", "no features")[0], "met")
        self.assertEqual(about(found, "uniform"), ("missed", "4,999"))
        self.assertEqual(about(found, "kernels agree")[0], "missed", "the last run of a step counts")

    def test_a_run_on_the_cpu_or_with_other_events_is_no_figure_of_the_gpu(self):
        for spoil in ({"device": "cpu"}, {"events": 7}):
            made = parts()
            made["pyg-0.json"] |= spoil
            self.assertEqual(about(document(made), "beside PyG's TGN on", "no features"), ("not measured", None))
        made = parts()
        made["train-tgn-0.json"]["device"] = "cpu"
        found = document(made)
        self.assertEqual(about(found, "TGN trained", "no features")[0], "not measured")
        self.assertEqual(about(found, "beside PyG's TGN on", "no features")[0], "not measured")

    def test_a_daemon_is_beside_a_peer_with_the_same_rounds_on_the_same_gpu(self):
        made = parts()
        made["learn-0.json"] = daemon(199e3, 0.5)
        found = document(made)
        self.assertEqual(about(found, "daemon ingests", "no features"), ("missed", "199,000"))
        self.assertEqual(about(found, "daemon has learned", "no features")[0], "missed")
        for spoil in ({"device": "cpu"}, {"round_events": 7}):
            made = parts()
            made["pyg-continual-0.json"] |= spoil
            self.assertEqual(about(document(made), "daemon has learned", "no features"), ("not measured", None))
        for spoil in ({"device": "cpu: no libcuda.so.1"}, {"skipped_events": 1}, {"batch_events": 200}, {"row_dimension": 5}):
            made = parts()
            made["learn-0.json"] |= spoil
            self.assertEqual(about(document(made), "daemon ingests", "no features"), ("not measured", None))

    def test_a_daemon_whose_rounds_failed_has_its_rate(self):
        made = parts()
        made["learn-0.json"] |= {"each_round": [], "learned_seconds": {"median": None, "min": None, "max": None}}
        found = document(made)
        self.assertEqual(about(found, "daemon ingests", "no features")[0], "met")
        self.assertEqual(about(found, "daemon has learned", "no features"), ("not measured", None))
        self.assertEqual(about(found, "daemon has learned", "172")[0], "met")
        self.assertIn("rounds: not measured", report.table(found))

    def test_precision_that_differs_from_the_cpus_is_missed(self):
        made = parts()
        made["eval.json"]["mean_average_precision"] = 0.9399
        self.assertEqual(about(document(made), "average precision"), ("missed", "0.9399, CPU 0.9500"))
        made["eval.json"]["device"] = "cpu"
        self.assertEqual(about(document(made), "average precision"), ("not measured", None))

    def test_tests_of_which_none_ran_have_shown_nothing(self):
        for count, expected in ((80, ("met", "80 passed")), (0, ("missed", "0 passed"))):
            result = f"test result: ok. {count} passed; 0 failed; 0 ignored; 0 measured; 566 filtered out"
            steps = [{"step": step, "ok": True, "result": result} for step in ("smoke", "tests")]
            self.assertEqual(about(document({}, steps), "kernels agree"), expected)
            self.assertEqual(report.verified(steps, {"files": {"a.cu": "1f"}}, False), {"a.cu": "1f"} if count else {})

    def test_an_odd_figure_takes_only_its_own_verdicts_and_its_own_part_of_the_table(self):
        for name, spoil in (("pyg-172.json", {"events_per_second": None}), ("train-tgn-172.json", {"each_epoch": []}),
                            ("rows.json", {"rows": [row(16, 100) | {"bytes": None}]}),
                            ("learn-0.json", {"each_round": 7})):
            made = parts()
            made[name] |= spoil
            found = document(made)
            self.assertEqual(len(found["targets"]), 16, name)
            self.assertEqual(about(found, "average precision")[0], "met", name)
            self.assertEqual(about(found, "uniform")[0], "met", name)
            self.assertEqual(about(found, "TGN trained", "no features")[0], "met", name)
            table = report.table(found)
            self.assertIn("a figure is missing or of another form", table, name)
            self.assertIn("on the GPU 0.9512", table, name)
            self.assertIn("Traceback", found["fault"], name)


class Table(unittest.TestCase):
    def test_peers_stand_beside_ours_and_reasons_at_the_end(self):
        steps = [{"step": "tests", "ok": True}, {"step": "racecheck", "skipped": "not installed"},
                 {"step": "pyg-0", "ok": False, "why": "torch_geometric is not installed"}]
        table = report.table(document(parts(), steps))
        self.assertIn("tf32 4.0 0.80x, fp32 10.0 2.00x", table)
        self.assertIn("a search over a table of all edges: batches/s eager 2,000; ours is 12.50 times", table)
        self.assertIn("on the GPU 0.9512\non the CPU 0.9500", table)
        self.assertIn("skipped racecheck: not installed", table)
        self.assertIn("FAILED  pyg-0: torch_geometric is not installed", table)

    def test_half_a_file_is_no_figure(self):
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, "rows.json"), "w", encoding="utf-8") as file:
                file.write('{"rows": [')
            self.assertNotIn("rows", report.gather(folder))

    def test_each_skipped_test_is_listed_once_and_briefly(self):
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "skips.txt").write_text(f"gpu::a: no peer\ngpu::b: {'long ' * 99}\ngpu::a: no peer\n")
            lines = report.step_lines(report.gather(folder))
        self.assertEqual((lines[0], len(lines), len(lines[1])), ("skipped gpu::a: no peer", 2, 200))


# In the place of PyG's TGN: responds to as many words as it is asked to, and then fails.
PEER = """import json, sys
words = sys.stdin.read().split()
replies = [{"version": "9", "device": "cuda", "parameters": 5}] + [{"events": 600, "seconds": 2.0, "loss": 1.5}] * 9
for _, reply in zip(words[:int(sys.argv[1])], replies):
    print(json.dumps(reply), flush=True)
sys.exit(int(sys.argv[1]) < len(words))
"""


class Peers(unittest.TestCase):
    """What peers leave when they do not come to their end."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.out = os.path.join(folder.name, "out.json")

    def train(self, words):
        command = [sys.executable, "-c", PEER, str(words)]
        with mock.patch.object(peer_training, "pyg_command", return_value=command):
            peer_training.main("events.csv", "172", self.out)

    def test_an_epoch_is_written_when_it_is_over(self):
        self.train(3)
        whole = report.read(self.out)
        self.assertEqual((whole["events_per_second"], whole["row_dimension"], whole["loss"]), (300, 172, 1.5))
        os.remove(self.out)
        with mock.patch.object(peer_training, "EPOCHS", 3), self.assertRaises(SystemExit):
            self.train(4)
        self.assertEqual(report.read(self.out)["events_per_second_of_epochs"], [300, 300])

    def test_a_point_of_rows_is_written_when_it_is_timed(self):
        rows = Path(self.out + ".rows")
        points = [row(16, 100), row(344, 1_000)]
        rows.write_text(json.dumps({"rows": points}))
        with mock.patch.object(peer_rows, "torch_on_gpu", return_value=(mock.Mock(__version__="9"), "cpu")), \
                mock.patch.object(peer_rows, "Rows") as made, self.assertRaises(KeyboardInterrupt):
            made.return_value.seconds.side_effect = [(1e-6, 2e-6), KeyboardInterrupt]
            peer_rows.main(rows, self.out)
        self.assertEqual(made.call_args.args[2], 9_999 * 344, "the largest table")
        written = report.read(self.out)["rows"]
        self.assertEqual(written, [{"row_bytes": 16, "rows": 100, "device_seconds": 1e-6, "host_seconds": 2e-6}])


# A program in the place of ours: fails where it has to, hangs where it has to, and else writes what a run would
# to the file after --json and to the one that fingerprints go to.
PROGRAM = """#!/bin/sh
case "$*" in *"gpu:: --list") printf 'gpu::a: test\ngpu::b: test\ngpu::c: test\n'; exit ;; esac
echo "ok    cuda: made up, $*"
case "$*" in *"$HANGS"*) echo $$ >"$PIDS"; sleep 600 ;; esac
case "$*" in *"$FAILS"* | *"--exact ${FAILS_ALONE:-none} "*) echo "error: made to fail"; exit 1 ;; esac
[ -z "$EVERGRAPH_GPU_FINGERPRINTS" ] || printf '{"architecture": "sm_90", "files": {"a.cu": "1f"}}' >"$EVERGRAPH_GPU_FINGERPRINTS"
case "$1" in gpu::*) echo "test result: ok. ${PASSED:-7} passed; 0 failed; 0 ignored" ;; esac
while [ "$#" != 0 ]; do [ "$1" != --json ] || cp "$FIGURES/${2##*/}" "$2"; shift; done
"""
# A command on a lent machine ends after ten minutes, transfers included.
GROUP_SECONDS_MAX = 480
OURS = {"smoke", "check", "tests", "train-tgn-0", "train-tgn-0-ahead", "train-tgn-0-graph", "train-tgn-0-direct",
        "train-tgn-172", "train-tgn-172-ahead", "train-tgn-172-graph", "train-tgn-172-direct", "train-tgn-0-served",
        "train-tgn-172-served", "train-tgat-0", "train-graphmixer-0", "samples", "rows", "eval", "learn-0", "learn-172"}


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
        self.out = os.path.join(self.folder.name, "out")
        made = parts()
        for name in ("tgn-0", "tgn-172"):
            for launch in ("ahead", "graph", "direct"):
                made[f"train-{name}-{launch}.json"] = made[f"train-{name}.json"]
        for name, content in made.items():
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

    def environment(self, fails="nothing at all", hangs="nothing at all", **more):
        return os.environ | {"PATH": f"{self.bin}:{os.environ['PATH']}", "FIGURES": self.figures, "FAILS": fails,
                             "HANGS": hangs, "PIDS": os.path.join(self.folder.name, "pid"), "OUT": self.out} | more

    def command(self, *arguments):
        return ["bash", os.path.join(self.bundle, "gpu-check.sh"), *arguments]

    def check(self, *arguments, **environment):
        done = subprocess.run(self.command(*arguments), env=self.environment(**environment), text=True,
                              capture_output=True, check=False)
        return done, *self.found()

    def found(self):
        found = report.read(os.path.join(self.out, "gpu-check.json"))
        return found, {step["step"]: step for step in found.get("steps", [])}

    def hung(self, *arguments, **environment):
        """A run whose step hangs, and the process that does."""
        pids = Path(self.folder.name, "pid")
        pids.unlink(missing_ok=True)
        run = subprocess.Popen(self.command(*arguments), env=self.environment(**environment), text=True,
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
        for _ in range(600):
            if pids.exists() and pids.read_text():
                return run, int(pids.read_text())
            time.sleep(0.1)
        os.killpg(run.pid, signal.SIGKILL)
        raise AssertionError("no step hangs")

    def test_all_steps_are_run_and_reported(self):
        done, found, steps = self.check(fails="--model tgat")
        self.assertEqual(done.returncode, 1, done.stderr)
        failed = steps["train-tgat-0"]
        self.assertEqual((failed["group"], failed["ok"], failed["why"]), ("C", False, "error: made to fail"))
        self.assertEqual({name for name in OURS if steps[name].get("ok")}, OURS - {"train-tgat-0"})
        self.assertIn("tgat-0           not measured", done.stdout)
        self.assertEqual(about(found, "TGN trained", "172"), ("met", "550,000"))
        self.assertEqual(found["verified"], {"a.cu": "1f"})
        self.assertIn("cuda: made up", found["check"][0])
        with open(os.path.join(self.out, "gpu-check.log"), encoding="utf-8") as log:
            self.assertIn("== train-tgat-0\n", log.read())

    def test_a_failure_in_group_a_ends_the_run_and_prints_its_log(self):
        self.program("compute-sanitizer", """#!/bin/sh
case "$*" in "--tool memcheck --report-api-errors no --print-limit 5 "*"/it --exact gpu::b --nocapture") ;; *) exit 9 ;; esac
[ "$EVERGRAPH_GPU" = small ] && echo line of gpu::b
""")
        done, found, steps = self.check(fails="gpu:: --test-threads", FAILS_ALONE="gpu::b")
        self.assertEqual((done.returncode, set(steps)), (1, {"smoke", "check", "tests", "tests-apart"}), done.stderr)
        self.assertIn("error: made to fail", done.stderr)
        self.assertIn("line of gpu::b", done.stderr, "what fails alone is run under memcheck")
        self.assertEqual(steps["tests-apart"]["why"], "of 3 tests apart 0 were not run, and 1 fail: gpu::b")
        self.assertEqual(about(found, "kernels agree")[0], "missed")
        self.assertEqual(found["verified"], {}, "what failed a test is not verified")
        done, _, steps = self.check("--go-on", fails="gpu:: --test-threads")
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertEqual({name for name in OURS if steps[name].get("ok")}, OURS - {"tests"})
        self.assertTrue(steps["tests-apart"]["ok"], "each test passes by itself")
        _, _, steps = self.check("--resume", "A")
        self.assertIn("pass in one process", steps["tests-apart"]["skipped"])

    def test_a_step_that_ran_no_test_verifies_nothing(self):
        _, found, _ = self.check("A", PASSED="0")
        self.assertEqual((about(found, "kernels agree"), found["verified"]), (("missed", "0 passed"), {}))

    def test_after_the_first_failure_tests_run_apart_at_once(self):
        done, _, steps = self.check(fails="gpu::smoke", FAILS_ALONE="gpu::c")
        self.assertEqual((done.returncode, set(steps)), (1, {"smoke", "tests-apart"}), done.stderr)
        self.assertIn("1 fail: gpu::c", steps["tests-apart"]["why"])

    def test_a_bundle_of_another_version_is_not_run(self):
        scripts = self.make("scripts")
        target = os.path.join(self.folder.name, "target")
        os.mkdir(target)
        shutil.copy(os.path.join(self.bundle, "gpu-check.sh"), scripts)
        os.rename(self.bundle, os.path.join(target, "gpu"))
        with open(os.path.join(target, "gpu", "gpu-check.sh"), "a", encoding="utf-8") as script:
            script.write("# another\n")
        done = subprocess.run(["bash", os.path.join(scripts, "gpu-check.sh")], env=self.environment(), text=True,
                              capture_output=True, check=False)
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn("is not of this version", done.stderr)

    def test_kernels_are_profiled_where_the_profiler_may(self):
        self.program("ncu", """#!/bin/sh
case "$*" in *"--cache-control none --metrics gpu__time_duration.sum --print-units base --launch-skip 8000 --launch-count"*\
"300 --kill yes --csv --log-file "*"/profile-tgn-0.csv "*"/evergraph bench train "*" --launch direct") ;; *) exit 9 ;; esac
while [ "$1" != --log-file ]; do shift; done
cat >"$2" <<CSV
==PROF== Connected to process 7
==PROF== Profiling "adam" - 0: 0%....50%....100% - 1 pass
"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Section Name","Metric Name","Metric Unit",\
"Metric Value"
"0","7","evergraph","host","adam","1","7","Command line profiler metrics","gpu__time_duration.sum","ns","1,500"
"1","7","evergraph","host","bce","1","7","Command line profiler metrics","gpu__time_duration.sum","ns","6,000"
"2","7","evergraph","host","adam","1","7","Command line profiler metrics","gpu__time_duration.sum","ns","2,500"
"3","7","evergraph","host","adam","1","7","Command line profiler metrics","gpu__time_duration.sum","ns","n/a"
CSV
exit 1
""")
        done, _, steps = self.check("profile-tgn-0")
        self.assertTrue(steps["profile-tgn-0"]["ok"], done.stderr)
        with open(os.path.join(self.out, "gpu-check.log"), encoding="utf-8") as log:
            lines = [line.split() for line in log.read().splitlines()]
        self.assertIn("bce 60.0% 1 6.0 6.0".split(), lines)
        self.assertIn("adam 40.0% 2 4.0 2.0".split(), lines)
        self.program("ncu", '#!/bin/sh\nwhile [ "$1" != --log-file ]; do shift; done\necho "==ERROR== denied" >"$2"\n')
        _, _, steps = self.check("profile-tgn-0")
        self.assertEqual(steps["profile-tgn-0"]["skipped"], "==ERROR== denied")
        self.program("ncu", "#!/bin/sh\nexit 1\n")
        _, _, steps = self.check("profile-tgn-0")
        self.assertIn("reports nothing", steps["profile-tgn-0"]["skipped"], "figures of an earlier run are not taken")

    def test_named_groups_alone_are_run_and_figures_of_earlier_calls_are_kept(self):
        done, found, steps = self.check("samples", "train-tgat")
        self.assertEqual((done.returncode, {step["group"] for step in steps.values()}), (0, {"B", "C"}), done.stderr)
        self.assertEqual(about(found, "kernels agree")[0], "not measured")
        done, found, steps = self.check("A")
        self.assertEqual((done.returncode, "samples" in steps), (0, True), done.stderr)
        self.assertEqual(about(found, "kernels agree")[0], "met")
        self.assertEqual(about(found, "recent 1x10")[0], "met")
        self.assertEqual(about(found, "TGN trained", "no features")[0], "not measured")

    def test_a_killed_run_leaves_what_it_measured_and_another_goes_on_from_its_parts(self):
        run, hanging = self.hung(hangs="--model tgat")
        os.killpg(run.pid, signal.SIGKILL)
        run.wait()
        os.killpg(os.getpgid(hanging), signal.SIGKILL)
        found, steps = self.found()
        self.assertEqual(about(found, "TGN trained", "172"), ("met", "550,000"), "measured before the kill")
        self.assertNotIn("ok", steps["train-tgat-0"])
        self.assertNotIn("train-graphmixer-0", steps)
        self.assertIn("interrupted train-tgat-0", report.table(found))
        # On another machine, with nothing but what came back of the first.
        shutil.rmtree(os.path.join(self.bundle, "parts"))
        shutil.copy(os.path.join(self.out, "parts.tar.gz"), self.bundle)
        done, found, steps = self.check("--resume")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("done    train-tgn-172, by an earlier run", done.stderr)
        self.assertIn("ok      train-tgat-0", done.stderr)
        self.assertEqual({name for name in OURS if steps[name].get("ok")}, OURS)
        self.assertEqual(about(found, "TGN trained", "172"), ("met", "550,000"))

    def test_a_signal_ends_the_step_that_runs_and_its_log_is_kept(self):
        self.program("compute-sanitizer", "#!/bin/sh\necho made up\necho $$ >\"$PIDS\"\nsleep 600\n")
        work = self.make("work")
        for step in ("train-tgat-0", "sanitizer-memcheck"):
            run, hanging = self.hung(step, "train-graphmixer-0", hangs="--model tgat", TMPDIR=work)
            run.terminate()
            self.assertEqual(run.wait(30), 143)
            with self.assertRaises(ProcessLookupError):
                os.kill(hanging, 0)
            found, steps = self.found()
            self.assertNotIn("ok", steps[step])
            self.assertIn(f"interrupted {step}", report.table(found))
            self.assertEqual(os.listdir(work), [])
            with open(os.path.join(self.out, "gpu-check.log"), encoding="utf-8") as log:
                self.assertRegex(log.read(), f"== {step}\n.*made up")

    def test_a_call_ends_within_its_seconds(self):
        self.check("train-graphmixer-0", "train-tgat-0", fails="--model tgat")
        started = time.monotonic()
        done, found, steps = self.check("--seconds", "25", "B", hangs="--model tgn --row-dimension 172")
        self.assertLess(time.monotonic() - started, 25)
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertTrue(steps["train-tgn-0"]["ok"])
        self.assertRegex(steps["train-tgn-172"]["why"], "^it took more than [0-9]+ s; the 25 s of this call are over$")
        for name in ("samples", "learn-172"):
            self.assertEqual(steps[name]["skipped"], "the 25 s of this call are over")
        self.assertEqual((steps["train-graphmixer-0"]["ok"], steps["train-tgat-0"]["ok"]), (True, False), "as before")
        self.assertEqual(about(found, "TGN trained", "no features")[0], "met")
        _, _, steps = self.check("--seconds=9", "samples")
        self.assertIn("the 9 s of this call", steps["samples"]["skipped"])
        for wrong in ("--seconds", "--seconds=", "--seconds=1m", "--seconds=0"):
            self.assertEqual(self.check(wrong)[0].returncode, 2, wrong)

    def test_what_was_measured_by_another_run_of_this_gpu_counts_and_nothing_else_does(self):
        _, found, _ = self.check("--quick", "A", "B")
        self.assertEqual(found["verified"], {}, "a quick run has not run every test")
        _, found, steps = self.check("--resume", "A")
        self.assertFalse(found["quick"])
        self.assertEqual((found["verified"], found["architecture"]), ({"a.cu": "1f"}, "sm_90"))
        self.assertEqual(set(steps), {"smoke", "check", "tests"}, "tiny sizes are not resumed")
        self.program("nvidia-smi", "#!/bin/sh\n[ \"$1\" = -L ] && echo GPU 0: made up || echo another\n")
        done, _, steps = self.check("--resume", "B")
        self.assertIn("starting anew", done.stderr)
        self.assertNotIn("smoke", steps, "those of another GPU are not resumed")
        before = report.read_lines(os.path.join(self.bundle, "parts.before", "steps.jsonl"))
        self.assertEqual({step["step"] for step in report.steps_of(before)}, {"smoke", "check", "tests"})
        first = os.path.join(self.folder.name, "first.tar.gz")
        shutil.copy(os.path.join(self.out, "parts.tar.gz"), first)
        self.check("A")
        shutil.copy(first, os.path.join(self.bundle, "parts.tar.gz"))
        _, _, steps = self.check("--resume", "check")
        self.assertEqual(("samples" in steps, "tests" in steps), (True, False), "what was brought back takes the place")

    def test_a_step_that_fails_leaves_no_figure_of_an_earlier_run(self):
        self.check("train-tgn-0")
        _, found, steps = self.check("train-tgn-0", fails="--row-dimension 0")
        self.assertFalse(steps["train-tgn-0"]["ok"])
        self.assertEqual(about(found, "TGN trained", "no features")[0], "not measured")
        self.assertEqual(found["training"], {})

    def test_a_figure_of_an_unknown_form_stops_no_step(self):
        with open(os.path.join(self.figures, "rows.json"), "w", encoding="utf-8") as file:
            file.write('{"rows": [{}], "layers": []}')
        done, found, steps = self.check("B")
        self.assertTrue(steps["rows"]["ok"] and steps["eval"]["ok"], done.stderr)
        self.assertIn("KeyError", found["fault"])
        self.assertEqual(about(found, "recent 1x10")[0], "met")
        self.assertIn("row_table: a figure is missing or of another form: KeyError(", done.stdout)

    def test_a_sanitizer_that_cannot_attach_has_not_measured_and_one_that_finds_something_has_failed(self):
        self.program("compute-sanitizer", """#!/bin/sh
case "$*" in *"--error-exitcode 9 --report-api-errors no"*) ;; *) echo "no such flags: $*"; exit 9 ;; esac
case "$2" in
memcheck) echo "========= ERROR SUMMARY: 0 errors" ;;
racecheck) echo "========= RACECHECK SUMMARY: 2 hazards displayed (2 errors, 0 warnings)"; exit 9 ;;
initcheck) echo "========= Error: Device not supported"; echo "test result: FAILED"; exit 1 ;;
synccheck) echo "Unable to attach to a child"; echo "========= ERROR SUMMARY: 10 errors"; exit 9 ;;
esac
""")
        done, _, steps = self.check("E")
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertTrue(steps["sanitizer-memcheck"]["ok"])
        self.assertFalse(steps["sanitizer-racecheck"]["ok"])
        self.assertIn("Device not supported", steps["sanitizer-initcheck"]["skipped"])
        self.assertFalse(steps["sanitizer-synccheck"]["ok"])
        self.program("compute-sanitizer", """#!/bin/sh
case "$2" in
memcheck) echo "========= Error: Target application terminated before first instrumented API call" ;;
racecheck) echo "Aborted"; exit 134 ;;
initcheck) echo "test result: FAILED"; echo "========= ERROR SUMMARY: 0 errors"; exit 101 ;;
synccheck) echo "========= Barrier error detected"; kill -9 $$ ;;
esac
""")
        _, _, steps = self.check("E")
        self.assertIn("instrumented", steps["sanitizer-memcheck"]["skipped"])
        for tool in ("racecheck", "initcheck", "synccheck"):
            self.assertFalse(steps[f"sanitizer-{tool}"]["ok"], tool)

    def test_the_steps_are_listed_without_a_gpu_and_each_group_fits_a_call(self):
        self.program("nvidia-smi", "#!/bin/sh\nexit 1\n")
        done, _, _ = self.check("--list")
        lines = [line.split() for line in done.stdout.splitlines()]
        self.assertEqual({line[0] for line in lines}, set("ABCDE"), done.stderr)
        self.assertTrue(OURS < {line[1] for line in lines})
        judged = {"train-tgn-0", "train-tgn-172", "learn-0", "learn-172", "samples", "rows", "eval"}
        self.assertEqual({line[1] for line in lines if line[0] == "B"}, judged, "what has a target comes first")
        self.assertTrue(all(0 < int(line[2]) <= GROUP_SECONDS_MAX for line in lines))
        with open(os.path.join(self.bundle, "gpu-check.sh"), encoding="utf-8") as script:
            groups = re.findall(r"^group ([A-E]) (\d+)$", script.read(), re.MULTILINE)
        self.assertTrue(len(groups) == 5 and all(int(limit) <= GROUP_SECONDS_MAX for _, limit in groups), groups)

    def test_without_a_driver_nothing_is_checked(self):
        self.program("nvidia-smi", "#!/bin/sh\necho no devices were found\n")
        done, found, _ = self.check()
        self.assertEqual((done.returncode, found), (2, {}))
        self.assertIn("the driver lists no GPU: no devices were found", done.stderr)


class Published(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root, self.out = Path(folder.name), Path(folder.name) / "out"
        self.out.mkdir()
        (self.root / "kernels").mkdir()
        (self.root / "README.md").write_text(f"# A\n{publish.BEGIN}\nold\n{publish.END}\nmore\n")
        self.gpu = self.root / "docs" / "benchmarks" / "gpu"

    def leave(self, made, steps, **more):
        found = document(made, steps)
        facts = {"version": "v1", "measured": "2026-12-01", "quick": False, "events": "w.csv.gz",
                 "machine": {"gpu": {"name": "NVIDIA H100 80GB"}, "cpu": "c", "cores": 2}}
        (self.out / "gpu-check.json").write_text(json.dumps(facts | found | more))
        (self.out / "gpu-check.log").write_text("log\n")

    def test_without_a_run_every_target_is_open(self):
        publish.main(self.root, [])
        self.assertIn("No run on a GPU has been published yet", (self.gpu / "README.md").read_text())
        self.assertIn("has not run on a GPU yet", (self.root / "README.md").read_text())
        self.assertTrue((self.root / "README.md").read_text().endswith("\nmore\n"))

    def test_a_run_is_published_with_what_it_missed_and_what_it_verified(self):
        made = parts() | {"train-tgn-0.json": trained(400e3), "fingerprints.json": {"architecture": "sm_90", "files": {"a.cu": "1f", "b.cu": "2e"}}}
        steps = [{"step": "smoke", "ok": True}, {"step": "tests", "ok": True}]
        self.leave(made, steps)
        publish.main(self.root, [str(self.out)])
        page = (self.gpu / "README.md").read_text()
        self.assertIn("| TGN trained, batches of 600, no features | 500,000 events/s | 400,000 | missed |", page)
        self.assertTrue((self.gpu / "nvidia-h100-80gb-2026-12-01.log").exists())
        verified = report.read(self.root / "kernels" / "verified.json")
        self.assertEqual(verified["b.cu"]["sm_90"]["fingerprint"], "2e")
        self.assertEqual(verified["b.cu"]["sm_90"]["date"], "2026-12-01")
        publish.main(self.root, ["--check"])
        (self.gpu / "README.md").write_text(page.replace("missed", "met"))
        with self.assertRaises(SystemExit):
            publish.main(self.root, ["--check"])
        # A later run whose tests failed verifies nothing and takes nothing back.
        self.leave(made, [{"step": "smoke", "ok": True}, {"step": "tests", "ok": False}], measured="2026-12-02")
        publish.main(self.root, [str(self.out)])
        self.assertEqual(report.read(self.root / "kernels" / "verified.json"), verified)
        self.assertIn("2026-12-02", (self.root / "README.md").read_text())

    def test_a_later_run_of_the_same_day_takes_the_place_only_of_one_with_no_further_steps(self):
        steps = [{"step": step, "ok": True} for step in ("smoke", "tests", "rows")]
        self.leave(parts(), steps)
        publish.main(self.root, [str(self.out)])
        self.leave(parts(), [*steps[:1], {"step": "rows", "skipped": "the 550 s of this call are over"}])
        with self.assertRaises(SystemExit) as refused:
            publish.main(self.root, [str(self.out)])
        for said_there in ("lacks: rows, tests.", "PARTS", "--replace"):
            self.assertIn(said_there, refused.exception.code)
        stored = self.gpu / "nvidia-h100-80gb-2026-12-01.json"
        self.assertEqual(publish.ran(report.read(stored)), {"smoke", "tests", "rows"})
        publish.main(self.root, [str(self.out), "--replace"])
        self.assertEqual(publish.ran(report.read(stored)), {"smoke"})
        self.leave(parts(), steps)
        publish.main(self.root, [str(self.out)])
        self.assertEqual(publish.ran(report.read(stored)), {"smoke", "tests", "rows"})

    def test_a_quick_run_is_not_published(self):
        self.leave(parts(), [], quick=True)
        with self.assertRaises(SystemExit):
            publish.main(self.root, [str(self.out)])

    def test_a_bundle_of_files_that_no_commit_has_is_published_on_request_only(self):
        self.leave(parts(), [], version="1a2b3c-dirty")
        with self.assertRaises(SystemExit) as refused:
            publish.main(self.root, [str(self.out)])
        self.assertIn("1a2b3c-dirty", refused.exception.code)
        publish.main(self.root, [str(self.out), "--replace"])
        self.assertIn("1a2b3c-dirty", (self.gpu / "README.md").read_text())


class Streams(unittest.TestCase):
    def test_what_is_made_up_has_the_shape_of_wikipedia(self):
        made = list(make_stream.rows())
        self.assertEqual(len(made), 157_474)
        self.assertTrue(all(src < 8_227 <= dst < 9_227 for src, dst, _ in made))
        times = [time for _, _, time in made]
        self.assertEqual(times, sorted(times))


if __name__ == "__main__":
    unittest.main()
