import multiprocessing
import os
import threading
import time
from functools import partial

import pytest

from analysis.scaling.second_process import in_second_process

HERE = os.getpid()


@pytest.fixture
def two_cores(monkeypatch):
    if not hasattr(os, "sched_getaffinity"):
        pytest.skip("forks are for Linux")
    for process in multiprocessing.active_children():
        process.join()  # of the test before
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr(threading, "active_count", lambda: 1)  # pytest-timeout has one of its own


def test_tasks_are_shared_and_results_come_back_in_their_order(two_cores):
    def task(i):
        return i, os.getpid(), "x" * 50_000

    results = in_second_process([partial(task, i) for i in range(12)])()

    assert [(i, len(text)) for i, _, text in results] == [(i, 50_000) for i in range(12)]
    assert len({pid for _, pid, _ in results} | {HERE}) <= 2


def test_what_is_not_asked_for_yet_is_done_in_the_other_process(two_cores, tmp_path):
    results = in_second_process([os.getpid, lambda: (tmp_path / "last").write_text("done")])
    while not (tmp_path / "last").exists():
        time.sleep(0.01)

    assert results()[0] != HERE


def test_tasks_that_fail_there_are_done_here(two_cores):
    def task():
        if os.getpid() != HERE:
            raise RuntimeError("not in a fork")
        return "here"

    assert in_second_process([task] * 3)() == ["here"] * 3


def test_tasks_of_a_process_that_was_killed_are_done_here(two_cores):
    def task():
        if os.getpid() != HERE:
            os._exit(9)
        return "here"

    assert in_second_process([task] * 3)() == ["here"] * 3


def test_an_error_of_a_task_is_raised_here(two_cores):
    def task():
        raise ValueError("no runs")

    with pytest.raises(ValueError, match="no runs"):
        in_second_process([task] * 2)()


def test_with_threads_or_one_core_or_one_task_nothing_is_forked(two_cores, monkeypatch):
    monkeypatch.setattr(os, "fork", lambda: pytest.fail("forked"))
    assert in_second_process([os.getpid])() == [HERE]
    monkeypatch.setattr(threading, "active_count", lambda: 2)
    assert in_second_process([os.getpid] * 2)() == [HERE] * 2
    monkeypatch.setattr(threading, "active_count", lambda: 1)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    assert in_second_process([os.getpid] * 2)() == [HERE] * 2


def test_no_second_process_shares_a_core_with_one_that_is_at_work(two_cores, tmp_path):
    def wait():
        while not (tmp_path / "go").exists():
            time.sleep(0.01)

    first = in_second_process([wait] * 2)

    assert in_second_process([os.getpid] * 2)() == [HERE] * 2
    (tmp_path / "go").touch()
    first()
