"""Tests of the page and its plots on a made-up document: `python -m unittest` in this folder. Standard library only."""

import json
import tempfile
import unittest
import xml.etree.ElementTree as xml
from pathlib import Path

import measure
import report


def report_of(peer, seconds, **more):
    """What one program reports of one round: a point of each direction, the backward of twice the seconds."""
    rows = []
    for direction, scale in (("forward", 1), ("backward", 2)):
        row = {"id": "gather_rows/rows=1,cache=warm", "op": "gather_rows", "direction": direction, "runs": 30}
        row |= {"seconds": seconds * scale, "p95_seconds": seconds * scale * 1.5}
        if peer:
            row |= {"way": "index_select", "largest_relative_error": 2e-7}
        else:
            row |= {"params": {"rows": 1}, "threads": 2, "cache": "warm", "shape": [1, 1], "ceiling": "copy"}
            row |= {"ratio_to_ceiling": 0.5, "useful_bytes_per_second": 1e9, "bytes_moved": 8, "flops": 0}
        rows.append(row)
    machine = {"cpu": "some", "cores": 2, "threads": 2, "memory_bytes": 2**34, "version": "0.1.0"}
    facts = {"machine": machine, "ceilings": {"copy_bytes_per_second": 2e10}} if not peer else {"version": "1"}
    return {"peer": peer, "threads": 2, "rows": rows} | facts | more


def document(rounds):
    facts = {"measured": "2026-01-01", "trial": False, "load_average_before": 0.1, "rounds": 3, "device": "cpu"}
    return measure.merge(rounds) | facts


class Page(unittest.TestCase):
    def test_rounds_become_medians_and_slow_points_are_listed(self):
        ours = [report_of(None, seconds) for seconds in (1e-3, 9e-3, 2e-3)]
        torch = [report_of("torch", seconds) for seconds in (1e-3, 1e-3, 5e-3)]
        made = document(ours + torch)
        forward = made["rows"][0]
        self.assertEqual((forward["ours"]["seconds"], forward["peers"]["torch"]["seconds"]), (2e-3, 1e-3))
        self.assertEqual((report.ratio(forward), forward["ours"]["runs"]), (0.5, 90))
        page = report.page(made)
        self.assertIn("| torch | forward | 1 | **0 %** | **0.5** | 0.5 | 0.5 |", page)
        self.assertIn("| `gather_rows/rows=1,cache=warm` | backward | torch | 0.5 | index_select |", page)
        self.assertIn("The largest difference found is 2e-07.", page)

    def test_a_slow_point_has_a_reason_where_one_is_known_or_seen(self):
        apart = [report_of(None, seconds) for seconds in (2e-3, 3e-3)] + [report_of("torch", 1e-3), report_of("torch", 1e-3)]
        self.assertIn("| 0.4 | index_select | not known |", report.page(document(apart)))
        mixed = [report_of(None, seconds) for seconds in (2e-3, 4e-3)] + [report_of("torch", s) for s in (1e-3, 3e-3)]
        expected = "no difference seen: rounds from 2 ms to 4 ms, the peer's from 1 ms to 3 ms |"
        self.assertIn(expected, report.page(document(mixed)))

    def test_where_nothing_is_slower_the_page_says_so(self):
        page = report.page(document([report_of(None, 1e-3), report_of("torch", 4e-3), report_of("pyg", 8e-3)]))
        self.assertIn("## Slower than a peer\n\nNone.", page)
        self.assertIn("| torch | backward | 1 | **100 %** | **4** | 4 | 4 |", page)
        self.assertIn("| PyG | forward | 1 | **100 %** | **8** | 8 | 8 |", page)

    def test_points_that_differ_are_reported_first(self):
        differing = report_of("torch", 1e-3, disagreements=[{"id": "linear/m=1", "reason": "linear/m=1: out differs"}])
        page = report.page(document([report_of(None, 1e-3), differing]))
        self.assertIn("**1 points differ and were not timed:**\n\n- linear/m=1: out differs", page)

    def test_a_row_that_evergraph_did_not_time_is_an_error(self):
        stray = report_of("torch", 1e-3)
        stray["rows"][0]["id"] = "gather_rows/other"
        with self.assertRaisesRegex(SystemExit, "gather_rows/other"):
            measure.merge([report_of(None, 1e-3), stray])

    def test_files_are_written_and_plots_are_well_formed(self):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            (folder / "ops.json").write_text(json.dumps(document([report_of(None, 1e-3), report_of("torch", 4e-3)])))
            report.write(folder)
            for plot in ("ops-ratio.svg", "ops-ceiling.svg"):
                marks = xml.fromstring((folder / plot).read_text()).iter("{http://www.w3.org/2000/svg}circle")
                self.assertEqual(len([mark for mark in marks]), 2 + 2, "two points and two in the legend")
            self.assertTrue(all(made == target.read_text() for target, made in report.files(folder)))


class Reasons(unittest.TestCase):
    def test_every_reason_is_of_an_operation_and_a_direction(self):
        reasons = json.loads((Path(report.__file__).parent / "reasons.json").read_text())
        for key, reason in reasons.items():
            op, _, direction = key.partition(" ")
            self.assertTrue(op.isidentifier() and direction in ("", *report.DIRECTIONS) and reason, key)


if __name__ == "__main__":
    unittest.main()
