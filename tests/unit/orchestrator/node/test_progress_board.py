"""What a rank leaves for its supervisor, read by another process; and phrases from stacks."""

import os
import signal
import subprocess
import sys
import time

from orchestrator.node.progress_board import (
    STACKS_SIGNAL,
    ProgressReader,
    ProgressWriter,
    RankProgress,
    innermost_call,
)

WRITER = """
import threading, time
from orchestrator.node.progress_board import ProgressWriter, RankProgress

def stuck():
    threading.Event().wait()

board = ProgressWriter()
board.dump_on_signal()
for step in range(1, 4):
    board.write(RankProgress(n_reports=step, step=step, steps=70, phase="train", step_s=0.25))
threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
print("ready", flush=True)
stuck()
"""


def wait_for(look, timeout_s=60.0):
    deadline = time.monotonic() + timeout_s
    while not (found := look()):
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.01)
    return found


def dumped(pid, look):
    before = len(look.stacks())
    os.kill(pid, STACKS_SIGNAL)
    wait_for(lambda: look.stacks()[before:].rstrip().endswith("in <module>"))
    return innermost_call(look.stacks())


def test_progress_and_stacks_of_a_stuck_process_are_read_from_outside_and_outlive_it():
    with subprocess.Popen([sys.executable, "-c", WRITER], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout.readline() == b"ready\n"
            look = ProgressReader(process.pid)
            assert look.progress() == RankProgress(
                n_reports=3, step=3, steps=70, phase="train", step_s=0.25
            )
            assert look.stacks() == ""
            # It said that it is ready a moment before it waits.
            wait_for(lambda: dumped(process.pid, look).startswith("wait (threading.py:"))
        finally:
            process.kill()
    stacks = look.stacks()
    assert stacks.count("(most recent call first)") >= 2
    assert innermost_call(stacks).startswith("wait (threading.py:")
    assert str(look.progress()) == "after step 3 of 70 (train)"
    look.close()


def test_a_process_without_a_file_has_said_nothing():
    look = ProgressReader(1)

    assert (look.progress(), look.stacks()) == (None, "")


def test_a_board_that_nobody_wrote_on_says_nothing():
    board, look = ProgressWriter(), ProgressReader(os.getpid())

    assert look.progress() is None
    board.write(RankProgress(n_reports=1, step=0, steps=7, phase="data", step_s=None))
    assert look.progress() == RankProgress(n_reports=1, step=0, steps=7, phase="data", step_s=None)
    look.close()
    board.close()


def test_a_stopped_process_is_told_from_one_that_is_only_stuck():
    with subprocess.Popen(["sleep", "600"]) as process:
        try:
            # While it is being started it may wait for the disk.
            assert wait_for(lambda: ProgressReader(process.pid).unresponsive_reason() is None)
            process.send_signal(signal.SIGSTOP)
            assert wait_for(
                lambda: (
                    ProgressReader(process.pid).unresponsive_reason()
                    == "it was stopped by a signal"
                )
            )
        finally:
            process.kill()


def test_place_names_the_innermost_call_and_the_line_of_ours_that_led_there():
    stacks = """Thread 0x1 (most recent call first):
  File "/usr/lib/python3/site-packages/tqdm/monitor.py", line 60 in run

Current thread 0x2 (most recent call first):
  File "/v/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 3252 in all_reduce
  File "/home/a/workloads/distributed/process_group.py", line 63 in sum_
  File "/home/a/workloads/train.py", line 175 in run
"""
    assert (
        innermost_call(stacks)
        == "all_reduce (distributed_c10d.py:3252), called in distributed/process_group.py:63 (sum_)"
    )
    assert innermost_call('T:\n  File "/home/a/job.py", line 3 in f\n') == "f (job.py:3)"
    assert innermost_call("") is None
