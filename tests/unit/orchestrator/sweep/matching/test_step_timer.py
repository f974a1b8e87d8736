"""Questions to a process that times steps, and what becomes of it. The processes here time nothing."""

import sys
import textwrap

import pytest

from orchestrator.records.errors import ExperimentError
from orchestrator.sweep.matching.step_timer import StepTimeError, StepTimer


def timer(script: str, *, answer_s: float = 30.0) -> StepTimer:
    command = (sys.executable, "-I", "-S", "-c", textwrap.dedent(script))
    return StepTimer(command, answer_s=answer_s)


ECHO = """
    import json, os, sys
    for line in sys.stdin:
        print(json.dumps({"seconds": [[1.0]], "asked": json.loads(line), "pid": os.getpid()}), flush=True)
"""


def test_one_process_answers_every_question_and_ends_with_the_block():
    with timer(ECHO) as asked:
        first, second = asked.time({"models": ["ä"]}), asked.time({"models": []})
        process = asked._process

    assert first["asked"] == {"models": ["ä"]}
    assert first["pid"] == second["pid"] == process.pid
    assert process.returncode == 0


def test_nothing_starts_without_a_question():
    with StepTimer(("no such program",)) as asked:
        assert asked._process is None


def test_what_cannot_be_measured_is_an_error_and_the_process_goes_on():
    script = """
        import json, sys
        for line in sys.stdin:
            answer = {"error": "CUDA out of memory"} if "large" in line else {"seconds": []}
            print(json.dumps(answer), flush=True)
    """
    with timer(script) as asked:
        with pytest.raises(ExperimentError, match=r"could not be measured: CUDA out of memory$"):
            asked.time({"models": "large"})
        assert asked.time({"models": "small"}) == {"seconds": []}


def test_the_fix_is_what_the_process_names_as_one():
    script = """
        import json, sys
        sys.stdin.readline()
        print(json.dumps({"error": "no GPU; none at all", "fix": "use cpu"}), flush=True)
    """
    with timer(script) as asked, pytest.raises(StepTimeError) as raised:
        asked.time({})

    assert raised.value.message == "step times could not be measured: no GPU; none at all"
    assert raised.value.fix == "use cpu"


def test_a_process_that_ends_is_quoted_and_another_one_started():
    script = """
        import sys
        sys.stdin.readline()
        sys.exit("No module named torch")
    """
    with timer(script) as asked:
        for _ in range(2):
            with pytest.raises(ExperimentError, match=r"No module named torch \(exit status 1\)"):
                asked.time({})


def test_a_process_that_is_killed_is_told():
    with (
        timer("import os, signal; os.kill(os.getpid(), signal.SIGKILL)") as asked,
        pytest.raises(ExperimentError, match="killed by signal 9"),
    ):
        asked.time({"models": "x" * 2**20})


def test_a_process_that_does_not_answer_is_ended():
    asked = timer("import sys, time; sys.stdin.readline(); time.sleep(60)", answer_s=0.05)

    with pytest.raises(ExperimentError, match=r"no answer within 0 s; make the models smaller"):
        asked.time({})

    assert asked._process is None
