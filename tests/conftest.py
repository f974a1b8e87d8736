"""Settings of all tests."""

import gc
import os
import re
import shutil
import signal
import tomllib
from collections import Counter
from collections.abc import Generator, Iterator
from fnmatch import fnmatch
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import HealthCheck, settings

# Before torch is there: models here are so small that a second thread only waits, and test processes share the cores.
# Plugins may import numpy before, whose threads are then there: hence the same in the Makefile.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Records are written for good (fsync), and tests would wait for the disk each time: a lost tracker is rebuilt in 18 s on a
# disk and in 7 s in memory. Containers often forbid programs there, or have little of it.
MEMORY = Path("/dev/shm")
NEEDED_BYTES = 2**30
if (
    os.access(MEMORY, os.W_OK)
    and not os.statvfs(MEMORY).f_flag & os.ST_NOEXEC
    and shutil.disk_usage(MEMORY).free > NEEDED_BYTES
):
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))

# Background jobs of a shell ignore SIGINT, and those of nohup SIGHUP. What tests start would inherit
# that, but not a handler.
for number in (signal.SIGINT, signal.SIGHUP):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, lambda *_: None)

# `make test` draws the same examples every time, so that a red run is red for everybody. `make test-long`
# draws others (HYPOTHESIS_PROFILE=explore) from the seed that it prints.
# How long one takes is no test: it depends on what else the machine does.
settings.register_profile(
    "repeatable",
    derandomize=True,
    deadline=None,
    max_examples=16,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile(
    "explore", settings.get_profile("repeatable"), derandomize=False, max_examples=128
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))

EXPECTED_SKIPS = Path(__file__).with_name("expected_skips.toml")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option by which continuous integration notices tests that stopped running."""
    text = f"fail if a test is skipped that {EXPECTED_SKIPS.name} does not list"
    parser.addoption("--strict-skips", action="store_true", help=text)


def unexpected_skips(
    skips: dict[str, str], expected: list[dict[str, str]]
) -> tuple[dict[str, str], Counter[str]]:
    """Return the skips that no entry lists, and how many tests each entry's reason skipped.

    Args:
        skips: Test -> why it was skipped.
        expected: Entries with `tests` (a pattern of the file), `reason` (a regular expression), `why`.
    """
    unexpected: dict[str, str] = {}
    counts: Counter[str] = Counter()
    for test, reason in skips.items():
        file = test.partition("::")[0]
        for entry in expected:
            if fnmatch(file, entry["tests"]) and re.search(entry["reason"], reason):
                counts[entry["why"]] += 1
                break
        else:
            unexpected[test] = reason
    return unexpected, counts


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Spare the garbage collector what imports and collection made: it stays until the end anyway.

    After that it looks less often, which saves a twelfth of the time.
    """
    gc.disable()
    found = yield
    gc.freeze()
    gc.set_threshold(50_000)
    gc.enable()
    return found


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Say how many tests were skipped and why; fail on one that is not listed, if asked to."""
    terminal = session.config.pluginmanager.get_plugin("terminalreporter")
    if terminal is None or not session.config.getoption("strict_skips"):
        return
    # A file that is skipped as a whole is reported by every worker.
    skips = {r.nodeid: r.longrepr[2] for r in terminal.stats.get("skipped", [])}
    expected = tomllib.loads(EXPECTED_SKIPS.read_text(encoding="utf-8"))["skip"]
    unexpected, counts = unexpected_skips(skips, expected)
    terminal.ensure_newline()
    terminal.section("skips")
    for why, n_tests in counts.most_common():
        terminal.write_line(f"{n_tests} skipped: {why}")
    for test, reason in unexpected.items():
        terminal.write_line(f"not in {EXPECTED_SKIPS.name}: {test}: {reason}", red=True)
    terminal.write_line(f"{len(skips)} skipped, {len(unexpected)} of them not listed")
    if unexpected and session.exitstatus in (
        pytest.ExitCode.OK,
        pytest.ExitCode.NO_TESTS_COLLECTED,
    ):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.fixture(scope="session")
def stats() -> ModuleType:
    """scipy.stats; importing it takes a second, which test processes that do not ask are spared."""
    import scipy.stats

    return scipy.stats


@pytest.fixture
def poisoned() -> Iterator[None]:
    """Fill fresh buffers with NaN or the largest integer, so that an element that nobody wrote shows."""
    import torch

    # As torch.use_deterministic_algorithms, which also imports the compiler: two seconds.
    torch.set_deterministic_debug_mode("error")
    yield
    torch.set_deterministic_debug_mode("default")
