"""A skipped test that is not on the list fails a run with `--strict-skips`."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
LIST = """
[[skip]]
tests = "test_one.py"
reason = "no moon"
why = "the moon is down"
"""


@pytest.fixture
def run(tmp_path):
    for name in ("conftest.py", "expected_skips.toml"):
        shutil.copy(TESTS / name, tmp_path)
    (tmp_path / "expected_skips.toml").write_text(LIST)

    def pytest_on(reason, *options):
        test = f"import pytest\ndef test_it(): pytest.skip({reason!r})\n"
        (tmp_path / "test_one.py").write_text(test)
        quick = (
            "-q",
            *(f"-pno:{name}" for name in ("xdist", "cacheprovider", "jaxtyping", "anyio")),
        )
        command = [sys.executable, "-m", "pytest", *quick, *options]
        # Without the options of the run that this test is part of.
        env = {name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"}
        done = subprocess.run(
            command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False
        )
        return done.returncode, done.stdout

    return pytest_on


def test_a_skip_on_the_list_is_counted_with_its_reason(run):
    status, output = run("there is no moon tonight", "--strict-skips")

    assert status == 0
    assert "1 skipped: the moon is down" in output


def test_another_skip_fails_the_run_and_is_named(run):
    status, output = run("there is no sun", "--strict-skips")

    assert status == 1
    assert "not in expected_skips.toml: test_one.py::test_it: Skipped: there is no sun" in output
    assert run("there is no sun")[0] == 0
