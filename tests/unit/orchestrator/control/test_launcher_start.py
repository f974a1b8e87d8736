"""A launcher starts once, beside other work or when it is waited for, and its thread outlives the start."""

import ctypes
import os
import signal
import threading
from contextlib import closing

import pytest

from orchestrator.control.launcher_start import LauncherStart


class Launcher:
    def __init__(self, error=None):
        self.error, self.may_start, self.said = error, threading.Event(), []
        self.thread = None

    def start(self):
        self.thread = threading.current_thread()
        assert self.may_start.wait(10)
        if self.error:
            raise self.error
        self.said.append("started")

    def close(self):
        self.said.append("closed")


def test_what_began_goes_on_beside_and_its_thread_lives_until_it_is_closed():
    launcher = Launcher()
    start = LauncherStart(launcher)
    start.begin()
    assert launcher.said == []
    launcher.may_start.set()

    start.wait()

    assert launcher.said == ["started"]
    assert launcher.thread is not threading.current_thread()
    assert launcher.thread.is_alive(), "the kernel ends what it started together with it"
    start.close()
    start.close()
    assert not launcher.thread.is_alive()
    assert launcher.said == ["started", "closed", "closed"]


def test_a_signal_that_the_start_took_is_pythons_again():
    """A launcher that takes it in C, as Ray does: Python's own handler is set, and not called."""

    class Takes(Launcher):
        def start(self):
            super().start()
            libc = ctypes.CDLL(None)
            libc.signal.argtypes = [ctypes.c_int, ctypes.c_void_p]
            libc.signal(signal.SIGTERM, 1)  # SIG_IGN

    came, launcher = [], Takes()
    before = signal.signal(signal.SIGTERM, lambda number, frame: came.append(number))
    try:
        with closing(LauncherStart(launcher)) as start:
            start.begin()
            launcher.may_start.set()
            start.wait()
            os.kill(os.getpid(), signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)

    assert came == [signal.SIGTERM]


def test_without_a_begin_waiting_starts_it_here():
    launcher = Launcher()
    launcher.may_start.set()
    with closing(LauncherStart(launcher)) as start:
        start.wait()
        assert launcher.thread is threading.current_thread()
    assert launcher.said == ["started", "closed"]


def test_a_start_that_fails_is_told_where_it_is_waited_for():
    launcher = Launcher(ValueError("no room"))
    launcher.may_start.set()
    with closing(LauncherStart(launcher)) as start:
        start.begin()
        with pytest.raises(ValueError, match="no room"):
            start.wait()
    assert launcher.said == ["closed"]


def test_closing_waits_for_a_start_that_goes_on():
    launcher = Launcher()
    start = LauncherStart(launcher)
    start.begin()
    threading.Timer(0.05, launcher.may_start.set).start()
    start.close()
    assert launcher.said == ["started", "closed"]
