"""Tests of within.py on shells that print what libtest prints: `python -m unittest` in this folder."""

import os
import signal
import subprocess
import sys
import time
import unittest
from pathlib import Path

from within import processes

HERE = Path(__file__).parent


def within(seconds, script):
    command = [sys.executable, "-B", HERE / "within.py", str(seconds), "bash", "-c", script]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=30)


def left(command):
    """What still runs of it, with a moment for those that were sent a signal to end."""
    for _ in range(100):
        if not (found := [line for line in processes() if line.endswith(command)]):
            break
        time.sleep(0.02)
    return found


class Within(unittest.TestCase):
    def test_what_ends_in_time_keeps_its_output_and_its_status(self):
        for status in (0, 7):
            done = within(20, f"echo test a ... ok; echo other >&2; exit {status}")
            self.assertEqual((done.returncode, done.stdout), (status, "test a ... ok\nother\n"))

    def test_a_test_that_hangs_beside_others_is_named_and_ended_with_what_it_started(self):
        script = """echo 'test a::slow has been running for over 60 seconds'
            echo 'test a::hangs has been running for over 60 seconds'
            echo 'test a::slow ... ok'; echo 'test b::quick ... ok'
            trap '' TERM; sleep 4321 & wait"""
        begun = time.monotonic()
        done = within(1, script)
        self.assertEqual(done.returncode, 124)
        self.assertIn("test a::hangs ... FAILED: it hangs\n", done.stdout)
        self.assertNotIn("slow ... FAILED", done.stdout)
        self.assertNotIn("quick ... FAILED", done.stdout)
        self.assertIn("sleep 4321", done.stdout, "what ran is listed")
        self.assertLess(time.monotonic() - begun, 20)
        self.assertFalse(left("sleep 4321"))

    def test_a_test_that_hangs_alone_is_named_whatever_it_printed(self):
        script = "echo 'test a::done ... 5 rows'; echo ok; printf 'test a::hangs ... '; echo some rows; sleep 60"
        done = within(1, script)
        self.assertEqual(done.returncode, 124)
        self.assertIn("test a::hangs ... FAILED: it hangs\n", done.stdout)
        self.assertNotIn("a::done ... FAILED", done.stdout)

    def test_who_ends_it_ends_all(self):
        command = [sys.executable, "-B", HERE / "within.py", "60", "bash", "-c", "echo here; sleep 4322"]
        running = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.assertEqual(running.stdout.readline(), "here\n")
        os.kill(running.pid, signal.SIGTERM)
        self.assertEqual(running.wait(20), 128 + signal.SIGTERM)
        running.stdout.close()
        self.assertFalse(left("sleep 4322"))

    def test_whenever_it_is_ended_nothing_is_left(self):
        command = [sys.executable, "-B", HERE / "within.py", "60", "sleep", "4323"]
        for number in range(40):
            running = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            time.sleep(number * 0.004)
            os.kill(running.pid, signal.SIGTERM)
            running.wait(20)
            self.assertFalse(left("sleep 4323"), f"ended after {number * 4} ms")


if __name__ == "__main__":
    unittest.main()
