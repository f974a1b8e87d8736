import os
import threading

import pytest

from analysis.scaling.second_process import in_second_process

HERE = os.getpid()


@pytest.fixture
def two_cores(monkeypatch):
    if not hasattr(os, "sched_getaffinity"):
        pytest.skip("forks are for Linux")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr(threading, "active_count", lambda: 1)  # pytest-timeout has one of its own


def test_the_work_is_done_in_another_process_and_its_result_comes_back(two_cores, tmp_path):
    def work():
        (tmp_path / "pid").write_text(str(os.getpid()))
        return {"large": "x" * 300_000}

    result = in_second_process(work)

    assert result() == {"large": "x" * 300_000}
    assert int((tmp_path / "pid").read_text()) != HERE


def test_work_that_fails_there_is_done_here(two_cores):
    def work():
        if os.getpid() != HERE:
            raise RuntimeError("not in a fork")
        return "here"

    assert in_second_process(work)() == "here"


def test_an_error_of_the_work_is_raised_here(two_cores):
    def work():
        raise ValueError("no runs")

    with pytest.raises(ValueError, match="no runs"):
        in_second_process(work)()


def test_with_threads_or_one_core_nothing_is_forked(two_cores, monkeypatch):
    monkeypatch.setattr(os, "fork", lambda: pytest.fail("forked"))
    monkeypatch.setattr(threading, "active_count", lambda: 2)
    assert in_second_process(os.getpid)() == HERE
    monkeypatch.setattr(threading, "active_count", lambda: 1)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    assert in_second_process(os.getpid)() == HERE
