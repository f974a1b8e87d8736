"""What asks `memscale submit` to stop: signals, and the end of its terminal or pipe."""

import errno
import itertools
import os
import signal

import pytest

from orchestrator.submit.stop_signals import TOGETHER_S, stop_signals


@pytest.fixture(autouse=True)
def hangups_are_heard():
    """Also where the tests themselves run under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.fixture
def asked():
    return []


@pytest.fixture
def kept_output(capfd):
    """Descriptors 1 and 2, restored after a test that lets go of them."""
    kept = [os.dup(1), os.dup(2)]
    yield
    for descriptor, copy in zip((1, 2), kept, strict=True):
        os.dup2(copy, descriptor)
        os.close(copy)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_every_signal_asks_to_stop(asked, number):
    before = signal.getsignal(number)

    with stop_signals(lambda: asked.append("stop")) as stops:
        signal.raise_signal(number)

    assert (stops.came, asked) == ([number], ["stop"])
    assert signal.getsignal(number) is before


def test_a_second_ctrl_c_asks_again_a_second_hangup_does_not(asked):
    now = itertools.count()
    with stop_signals(lambda: asked.append("stop"), clock=lambda: float(next(now))):
        for number in (signal.SIGHUP, signal.SIGHUP):
            signal.raise_signal(number)
        assert asked == ["stop"], "twice would kill what checkpoints"
        signal.raise_signal(signal.SIGINT)

    assert asked == ["stop", "stop"]


def test_signals_at_once_ask_once(asked):
    """As `timeout` sends them, to the command and to its group."""
    now = [0.0]
    with stop_signals(lambda: asked.append("stop"), clock=lambda: now[0]):
        for now[0] in (0.0, TOGETHER_S / 2, TOGETHER_S * 0.9):
            signal.raise_signal(signal.SIGTERM)
        assert asked == ["stop"]
        now[0] = 1.1 * TOGETHER_S
        signal.raise_signal(signal.SIGTERM)

    assert asked == ["stop", "stop"]


def test_under_nohup_a_hangup_is_ignored(asked):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stop_signals(lambda: asked.append("stop")):
            signal.raise_signal(signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)

    assert asked == []


@pytest.mark.parametrize(
    "error", [OSError(errno.EIO, "hung up"), BrokenPipeError(errno.EPIPE, "…"), SystemExit(1)]
)
def test_output_that_nobody_reads_asks_to_stop_once(asked, kept_output, error):
    with stop_signals(lambda: asked.append("stop")) as stops:
        for _ in range(2):
            with stops.output():
                raise error
        os.write(1, b"to nobody")

    assert asked == ["stop"]


def test_other_errors_of_output_go_through(asked):
    with stop_signals(lambda: asked.append("stop")) as stops:
        with pytest.raises(OSError, match="full"), stops.output():
            raise OSError(errno.ENOSPC, "full")
        with pytest.raises(OSError, match="disk"), stops.output():
            raise OSError(errno.EIO, "disk", "/runs/s/x.json")

    assert asked == []
