"""Guard that ends a process group with its parent: `process_group_guard.py PGID`.

The parent holds the guard's standard input and never writes, so the group ends when the parent
does, however that happens. Needed for programs that start processes of their own: a parent-death
signal reaches only the first.
"""

import contextlib
import os
import signal
import sys
import time

GRACE_S = 5.0
"""Between SIGTERM and SIGKILL."""


def main(group: int) -> None:
    """Wait for the end of standard input, then end the group."""
    # Ctrl-C in the terminal is for the parent, which then closes the pipe.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.stdin.buffer.read()
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGTERM)
        deadline = time.monotonic() + GRACE_S
        while time.monotonic() < deadline:
            os.killpg(group, 0)
            time.sleep(0.05)
        os.killpg(group, signal.SIGKILL)


if __name__ == "__main__":
    main(int(sys.argv[1]))
