"""Progress board: a rank's progress and stacks in shared memory.

It is readable whatever state the rank is in. A rank that hangs answers nobody, and one whose disk
is full can write nothing down. So every rank keeps a file in memory (memfd) that its supervisor
opens through /proc. It holds the progress, and behind it the stacks of the rank's threads, which
`faulthandler` writes on SIGUSR1 without needing the interpreter.
"""

import faulthandler
import os
import re
import signal
import struct
from dataclasses import dataclass
from pathlib import Path

STACKS_SIGNAL = signal.SIGUSR1
"""Makes a rank write its stacks."""
_NAME = "memscale-progress"
_FRONT = struct.Struct("<qqqd24s")
_STACKS_AT = 64
_FRAME = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+) in (?P<function>.*)$', re.M)
_STATES = {
    "T": "it was stopped by a signal",
    "D": "the kernel waits for a disk or a device on its behalf",
}
"""States of /proc/PID/stat in which a process handles no signal."""


@dataclass(frozen=True, kw_only=True)
class RankProgress:
    """How far a rank got."""

    n_reports: int
    """Reports of progress so far: after every step, and within evaluations."""
    step: int
    steps: int
    phase: str
    """data, train, evaluate or checkpoint."""
    step_s: float | None
    """Median seconds of a step; None until that was measured."""

    def __str__(self) -> str:
        return f"after step {self.step} of {self.steps} ({self.phase})"


class ProgressWriter:
    """The rank's side of the board."""

    def __init__(self) -> None:
        """Make the file."""
        self._file = os.memfd_create(_NAME)
        os.ftruncate(self._file, _STACKS_AT)
        os.lseek(self._file, _STACKS_AT, os.SEEK_SET)

    def dump_on_signal(self) -> None:
        """Write the stacks of all threads whenever STACKS_SIGNAL comes."""
        faulthandler.register(STACKS_SIGNAL, file=self._file, all_threads=True)

    def write(self, progress: RankProgress) -> None:
        """Replace what is said about the progress."""
        front = _FRONT.pack(
            progress.n_reports,
            progress.step,
            progress.steps,
            progress.step_s or 0.0,
            progress.phase.encode()[:24],
        )
        os.pwrite(self._file, front, 0)

    def close(self) -> None:
        """Stop catching STACKS_SIGNAL."""
        faulthandler.unregister(STACKS_SIGNAL)
        os.close(self._file)


class ProgressReader:
    """The supervisor's side: one rank of the same machine. What was opened outlives the rank."""

    def __init__(self, pid: int) -> None:
        """Open nothing yet: a rank that has just been forked has no file."""
        self._pid = pid
        self._file: int | None = None

    def progress(self) -> RankProgress | None:
        """Return how far the rank got; None if it has reported nothing yet."""
        file = self._opened()
        front = b"" if file is None else os.pread(file, _FRONT.size, 0)
        if len(front) < _FRONT.size:
            return None
        n_reports, step, steps, step_s, phase = _FRONT.unpack(front)
        if not n_reports:
            return None
        return RankProgress(
            n_reports=n_reports,
            step=step,
            steps=steps,
            phase=phase.rstrip(b"\0").decode(errors="replace"),
            step_s=step_s or None,
        )

    def stacks(self) -> str:
        """Return the stacks as far as the rank has written them."""
        file = self._opened()
        if file is None:
            return ""
        size = max(0, os.fstat(file).st_size - _STACKS_AT)
        return os.pread(file, size, _STACKS_AT).decode(errors="replace")

    def unresponsive_reason(self) -> str | None:
        """Return why the rank cannot write its stacks, if the kernel says so."""
        return _STATES.get(self._state())

    def waits_for_disk(self) -> bool:
        """Whether the kernel waits for a disk or a device on the rank's behalf."""
        return self._state() == "D"

    def _state(self) -> str:
        """Return the state that /proc shows; empty if there is no such process."""
        try:
            stat = Path(f"/proc/{self._pid}/stat").read_text()
        except OSError:
            return ""
        return stat[stat.rindex(")") + 2]

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _opened(self) -> int | None:
        if self._file is None:
            try:
                for link in Path(f"/proc/{self._pid}/fd").iterdir():
                    if str(link.readlink()).startswith(f"/memfd:{_NAME}"):
                        self._file = os.open(link, os.O_RDONLY)
                        break
            except OSError:  # the rank has just ended, or just closed that descriptor
                return None
        return self._file


def innermost_call(stacks: str) -> str | None:
    """Return where the main thread was: the innermost call, and the line of ours that led there.

    `all_reduce (distributed_c10d.py:3000), called in distributed/process_group.py:72 (sum_)`.
    """
    threads = [block for block in stacks.split("\n\n") if _FRAME.search(block)]
    if not threads:
        return None
    # The interpreter lists its threads newest first.
    frames = [found.groupdict() for found in _FRAME.finditer(threads[-1])]
    inner = frames[0]
    innermost = f"{inner['function']} ({_short(inner['file'], 1)}:{inner['line']})"
    ours = next((frame for frame in frames[1:] if is_ours(frame["file"])), None)
    if ours is None or is_ours(inner["file"]):
        return innermost
    return f"{innermost}, called in {_short(ours['file'], 2)}:{ours['line']} ({ours['function']})"


def is_ours(file: str) -> bool:
    """Whether a file belongs neither to Python nor to a library, and no compiler wrote it."""
    generated = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    return not (
        "site-packages" in file
        or file.startswith(str(Path(os.__file__).parent))
        or file[:1] == "<"
        or (generated and Path(file).is_relative_to(generated))
    )


def _short(file: str, parts: int) -> str:
    return "/".join(Path(file).parts[-parts:])
