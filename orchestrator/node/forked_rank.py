"""Rank as its fork server keeps it: what it runs, and what it may run next."""

import json
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(kw_only=True)
class ForkedRank:
    """A process that was forked and not yet reaped."""

    key: str | None
    """What it runs; None: it waits for its next trial, or was ended while it did."""
    kind: str | None
    """Of the trials that it takes (`kind_of`); None: it takes no further one."""
    link: socket.socket | None
    """Brings DONE from it, and the next command to it (`rank_process.py`)."""
    idle_s: float = 0.0
    """How long it may wait for its next trial."""
    idle_until: float = 0.0
    """Monotonic seconds."""

    @property
    def idle(self) -> bool:
        """Whether it waits for its next trial."""
        return self.key is None and self.kind is not None

    def finished(self) -> bool:
        """Whether it has said that it is done and waits."""
        if self.link is None or self.key is None:
            return False
        try:
            said = self.link.recv(64, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except ConnectionError:
            said = b""
        if not said:  # it has ended, or is about to
            self.close()
        return bool(said)

    def take(self, command: Mapping[str, Any]) -> bool:
        """Send it its next trial; return False if it has just died."""
        assert self.link is not None, "a rank that waits has a link"
        try:
            self.link.sendall(json.dumps(command).encode() + b"\n")
        except OSError:
            return False
        self.key = command["start"]
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
