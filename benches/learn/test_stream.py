"""Tests of what the peers read and draw: `python -m unittest` in this folder, with the peers' packages."""

import gzip
import tempfile
import unittest
from pathlib import Path

import numpy as np
import stream
from peer_torch_graphmixer import RecentEdges


def write(folder, name, header, rows):
    path = Path(folder) / f"{name}.csv.gz"
    path.parent.mkdir(exist_ok=True)
    with gzip.open(path, "wt") as file:
        file.write("\n".join([header, *(",".join(map(str, row)) for row in rows)]) + "\n")


class Draws(unittest.TestCase):
    def test_numbers_are_those_of_the_rust_side(self):
        # The known values of src/device/rng.rs.
        self.assertEqual(int(stream.random(1, 2, 3, np.array([4]))[0]), 0x9490_76E1_E3EF_A0D0)
        self.assertEqual(int(stream.random(0, 0, 0, np.zeros(1))[0]), 0x4534_183A_9817_A9A3)
        largest = np.array([2**64 - 1, 2**63, 0], np.uint64)
        self.assertEqual(stream.below(largest, 10).tolist(), [9, 5, 0])

    def test_average_precision_counts_ties_as_one(self):
        precision = lambda positive, negative: stream.average_precision(np.array(positive), np.array(negative))
        self.assertAlmostEqual(precision([0.9, 0.7], [0.8, 0.1]), (1 + 2 / 3) / 2)
        self.assertAlmostEqual(precision([0.5, 0.5], [0.5, 0.5]), 0.5)
        self.assertAlmostEqual(precision([2.0, 1.0], [0.0, -1.0]), 1.0)


class Parts(unittest.TestCase):
    def setUp(self):
        # 40 events, one a tick, of users 1 to 4 and pages 10 to 14; page 12 is masked.
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        events = [(1 + time % 4, 10 + time % 5, time) for time in range(40)]
        write(folder.name, "some", "src,dst,ts", events)
        write(folder.name, "protocol/some-masked-nodes", "node", [(12,)])
        for part, rows in (("val", events[28:34]), ("test", events[34:])):
            write(folder.name, f"protocol/some-{part}-rnd", "neg_src,neg_dst", [(src, 14) for src, _, _ in rows])
        self.stream = stream.Stream(self.folder, "some", 0)

    def test_parts_are_those_of_the_protocol(self):
        self.assertEqual((self.stream.validation, self.stream.test, self.stream.nodes), (28, 34, 9))
        self.assertEqual(self.stream.train.tolist(), [time for time in range(28) if time % 5 != 2])
        self.assertEqual(self.stream.names[self.stream.pool].tolist(), [10, 11, 13, 14])
        self.assertEqual(self.stream.names[self.stream.given["test"]].tolist(), [14] * 6)
        self.stream.write_train(self.folder / "train.csv")
        lines = (self.folder / "train.csv").read_text().splitlines()
        self.assertEqual((lines[0], lines[1], len(lines)), ("src,dst,ts", "1,10,0", 1 + 22))

    def test_batches_have_a_negative_for_each_event_that_follows_from_the_epoch(self):
        drawn = lambda epoch: [against.tolist() for _, against in self.stream.batches("train", 10, epoch)]
        self.assertEqual([len(batch) for batch in drawn(1)], [10, 10, 2])
        self.assertEqual(drawn(1), drawn(1))
        self.assertNotEqual(drawn(1), drawn(2))
        self.assertTrue(set(sum(drawn(1), [])) <= set(self.stream.pool.tolist()))
        rows = np.concatenate([rows for rows, _ in self.stream.batches("test", 4)])
        self.assertEqual(rows.tolist(), list(range(34, 40)))

    def test_negatives_of_other_events_are_refused(self):
        write(self.folder, "protocol/some-test-rnd", "neg_src,neg_dst", [(10, 14)] * 6)
        with self.assertRaisesRegex(SystemExit, "some-test-rnd"):
            stream.Stream(self.folder, "some", 0)


class Neighbors(unittest.TestCase):
    def test_recent_edges_are_the_last_ones_strictly_before(self):
        numbers = stream.random(1, 2, 3, np.arange(600))
        src, dst, times = stream.below(numbers, 2**20).reshape(3, 200) % np.array([[7], [7], [50]])
        times.sort()
        edges = RecentEdges(src, dst, times)
        nodes, when = np.repeat(np.arange(7), 52), np.tile(np.arange(52), 7)
        since, there = edges.since(nodes, when, 5)
        for node, time, ages, found in zip(nodes, when, since, there):
            own = [t for u, v, t in zip(src, dst, times) if node in (u, v) and t < time]
            self.assertEqual(ages[found].tolist(), [time - t for t in own[::-1][:5]])
            self.assertEqual(found.tolist(), [slot < min(5, len(own)) for slot in range(5)])


if __name__ == "__main__":
    unittest.main()
