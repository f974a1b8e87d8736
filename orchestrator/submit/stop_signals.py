"""Stop signals of `memscale submit`: Ctrl-C, SIGTERM, and the end of its terminal.

A terminal ends by SIGHUP (it is closed, an SSH session drops), or by an error where output goes: to
a pipe whose reader is gone, to a terminal that hung up. All of them ask for checkpoints and an end.
"""

import errno
import math
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

GONE = frozenset({errno.EPIPE, errno.EIO})
"""How writing to a pipe or a terminal fails that nobody reads any more."""
TOGETHER_S = 0.5
"""Signals within this time are one request. `timeout` sends one to the command and one to its
process group, and a second request would kill what checkpoints."""


class StopSignals:
    """Which stop signals came, and what they lead to."""

    def __init__(
        self, stop: Callable[[], None], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Prepare.

        Args:
            stop: Called at every request; safe in a signal handler.
            clock: Seconds since whenever.
        """
        self._stop, self._clock = stop, clock
        self._heard_at = -math.inf
        # A terminal that hung up is none any more, so it is noted before.
        self._terminals = [descriptor for descriptor in (1, 2) if os.isatty(descriptor)]
        self.came: list[int] = []

    def on_signal(self, number: int, frame: object = None) -> None:
        """Handle a signal."""
        if number == signal.SIGHUP:
            self._leave(self._terminals)
            if self.came:  # shell and kernel send one each, at any distance
                return
        now = self._clock()
        if now - self._heard_at < TOGETHER_S:
            return
        self._heard_at = now
        self.came.append(number)
        self._stop()

    @contextmanager
    def output(self) -> Iterator[None]:
        """Take an error of writing output in the block for a SIGHUP, if nobody reads any more."""
        try:
            yield
        except SystemExit:  # rich's answer to a broken pipe
            pass
        except OSError as error:
            if error.errno not in GONE or error.filename is not None:
                raise
        else:
            return
        self._leave([1, 2])
        self.on_signal(signal.SIGHUP)

    def _leave(self, descriptors: list[int]) -> None:
        nothing = os.open(os.devnull, os.O_WRONLY)
        for descriptor in descriptors:
            os.dup2(nothing, descriptor)
        os.close(nothing)


@contextmanager
def stop_signals(
    stop: Callable[[], None], *, clock: Callable[[], float] = time.monotonic
) -> Iterator[StopSignals]:
    """Call `stop` at Ctrl-C, SIGTERM and SIGHUP. A SIGHUP that is ignored (nohup) stays ignored."""
    signals = StopSignals(stop, clock=clock)
    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    before: Mapping[int, object] = {n: signal.signal(n, signals.on_signal) for n in numbers}
    try:
        yield signals
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
