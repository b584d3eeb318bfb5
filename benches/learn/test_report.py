"""Tests of the page and its plot on made-up figures: `python -m unittest` in this folder. Standard library only."""

import json
import tempfile
import unittest
import xml.etree.ElementTree as xml
from pathlib import Path

import measure
import report

# Of a peer that is fastest with one thread.
ONE_THREAD = {"setting": "1 thread, f32", "events_per_second_in_other_settings": {"2 threads, bf16 allowed": 2_500}}


def side(speeds, precision, **more):
    """What one side measured in as many rounds as there are speeds, as the half of a row that `measure.py` makes."""
    phases = ("sample", "forward", "backward", "optimizer", "memory")
    rounds = [
        {"events": 80_000, "seconds": 8e4 / speed, "phase_seconds": dict.fromkeys(phases, 1e4 / speed)}
        for speed in speeds
    ]
    facts = {"parameters": 341_601, "matmul_precision": "bf16"}
    facts |= {"average_precision": precision, "pooled_average_precision": precision - 0.001}
    return measure.rates(rounds) | facts | {"val_average_precision_by_epoch": [precision], "best_epoch": 1} | more


def row(name, ours, theirs):
    settings = measure.PAIRS[name]
    settings = {key: settings[key] for key in ("model", "batch", "peer", "warm", "turns")}
    return {"name": name, "epochs": 4, "ours": ours, "theirs": theirs | {"version": "9"} | ONE_THREAD} | settings


def document(rows):
    machine = {"cpu": "some", "cores": 2, "memory_bytes": 2**34, "version": "0.1.0"}
    stream = {"name": "wikipedia", "nodes": 9, "train_events": 80_000, "val_events": 7, "test_events": 6}
    facts = {"measured": "2026-01-01", "trial": False, "load_average_before": 0.1, "machine": machine, "threads": 2}
    return facts | {"rounds": 3, "stream": stream, "learning_rate": 1e-3, "width": 100, "rows": rows}


class Page(unittest.TestCase):
    def test_rounds_become_medians_with_their_range(self):
        made = row("tgn-200", side([90e3, 60e3, 70e3], 0.97), side([9e3, 10e3, 11e3], 0.93))
        self.assertEqual(made["ours"]["events_per_second"], 70e3)
        self.assertAlmostEqual(made["ours"]["seconds_per_event"], 1 / 70e3)
        page = report.page(document([made]))
        self.assertIn("| TGN | 200 | Evergraph | **70,000** | 60,000 to 90,000 | **7** | 0.9690 | 0.9700 |", page)
        self.assertIn("| TGN | 200 | PyG | **10,000** | 9,000 to 11,000 |  | 0.9290 | 0.9300 |", page)
        self.assertIn("All targets are met.", page)
        self.assertIn("PyG in batches of 200 is fastest with 1 thread, f32; events/s with 2 threads, bf16 allowed: 2,500.", page)

    def test_what_is_missed_is_said(self):
        slow = row("tgn-600", side([30e3] * 3, 0.92), side([10e3] * 3, 0.93))
        fast = row("graphmixer-200", side([5e3] * 3, 0.95), side([1e3] * 3, 0.95))
        page = report.page(document([slow, fast]))
        self.assertIn("| TGN | 600 | 50,000 events/s | 30,000 | **missed** |", page)
        self.assertIn("| TGN | 600 | 5 times PyG | 3 | **missed** |", page)
        self.assertIn("| TGN | 600 | AP at least PyG's 0.9290 | 0.9190 | **missed** |", page)
        self.assertIn("| GraphMixer | 200 | 5 times torch | 5 | met |", page)
        self.assertIn("3 of 5 targets are missed: TGN in batches of 600, 50,000 events/s: 30,000;", page)

    def test_phases_that_a_side_has_not_are_left_blank(self):
        made = row("tgn-200", side([10e3] * 3, 0.97), side([5e3] * 3, 0.93))
        made["ours"]["phase_seconds_per_event"] |= {"gather": 3e-6, "wait": 1e-6}
        page = report.page(document([made]))
        self.assertIn("| TGN | 200 | Evergraph | 100 | 12.5 | 3 | 1 | 12.5 | 12.5 | 12.5 | 12.5 |", page)
        self.assertIn("| TGN | 200 | PyG | 200 | 25 |  |  | 25 | 25 | 25 | 25 |", page)

    def test_files_are_written_and_the_plot_is_well_formed(self):
        with tempfile.TemporaryDirectory() as name:
            folder, rows = Path(name), [row(pair, side([9e3], 0.9), side([3e3], 0.9)) for pair in measure.PAIRS]
            (folder / "learn.json").write_text(json.dumps(document(rows)))
            report.write(folder)
            bars = list(xml.fromstring((folder / "learn.svg").read_text()).iter("{http://www.w3.org/2000/svg}rect"))
            self.assertEqual(len(bars), 1 + 2 * len(rows), "the ground, and one for everybody")
            self.assertTrue(all(made == target.read_text() for target, made in report.files(folder)))


if __name__ == "__main__":
    unittest.main()
