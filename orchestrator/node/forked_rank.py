"""Rank as its fork server keeps it: what it runs, and what it may run next."""

import json
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

DONE = b"done\n"
"""What a rank says whose trial is done."""
READY = b"ready\n"
"""What it says then, once its process is as it was before."""


@dataclass(kw_only=True)
class ForkedRank:
    """A process that was forked and not yet reaped."""

    key: str | None
    """What it runs; None: it is done with that, or was ended afterwards."""
    kind: str | None
    """Of the trials that it takes (`kind_of`); None: it takes no further one."""
    link: socket.socket | None
    """Brings DONE and READY from it, and the next command to it (`rank_process.py`)."""
    idle_s: float = 0.0
    """How long it may wait for its next trial."""
    idle_until: float = 0.0
    """Monotonic seconds."""
    ready: bool = False
    """Whether it has put its process in order since the last trial."""
    next: Mapping[str, Any] | None = None
    """A command that it takes once it is ready, or another one if it ends before."""

    @property
    def idle(self) -> bool:
        """Whether it is done with its trial and takes another one."""
        return self.key is None and self.kind is not None

    def done(self) -> bool:
        """Take in what it said; return whether it is done with its trial."""
        if self.link is None:
            return False
        try:
            said = self.link.recv(64, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except ConnectionError:
            said = b""
        if not said:  # it has ended, or is about to
            self.close()
        self.ready |= READY in said
        return DONE in said

    def take(self, command: Mapping[str, Any]) -> bool:
        """Send it its next trial; return False if it has just died."""
        assert self.link is not None, "a rank that waits has a link"
        try:
            self.link.sendall(json.dumps(command).encode() + b"\n")
        except OSError:
            return False
        self.key, self.ready = command["start"], False
        return True

    def close(self) -> None:
        """Let go of it: a rank that waits ends then."""
        if self.link is not None:
            self.link.close()
            self.link = None


def kind_of(command: Mapping[str, Any]) -> str | None:
    """Return what two commands must share to run in one process; None: it takes one only."""
    if command.get("alike") is None:
        return None
    request = {k: v for k, v in command["request"].items() if k not in ("trial_path", "attempt")}
    return json.dumps([command["alike"], command["env"], request], sort_keys=True)
