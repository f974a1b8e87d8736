"""Cap on the size of a trial's log: its beginning and its latest lines are kept."""

import logging
import os
from pathlib import Path

LOG = logging.getLogger(__name__)
LIMIT_BYTES = 64 << 20
"""Size at which the middle of a log is left out."""
HEAD_BYTES = 1 << 20
TAIL_BYTES = 16 << 20
"""What is kept of its beginning and of its end."""
SENTENCE = (
    "── this log exceeded {limit:,} bytes: of what was written here, only the beginning above and "
    "the latest lines below are kept ──\n"
)


def cap(log: Path) -> None:
    """Leave out the middle of a log that exceeds LIMIT_BYTES.

    Ranks append to it meanwhile, and go on at its new end; what they write just then may be lost.
    """
    try:
        if log.stat().st_size > LIMIT_BYTES:
            _leave_out_middle(log)
    except FileNotFoundError:
        return
    except OSError as error:  # storage that fails; the next look tries again
        LOG.warning("%s: could not be shortened (%s)", log, error)


def _leave_out_middle(log: Path) -> None:
    with log.open("r+b") as file:
        head = file.read(HEAD_BYTES)
        file.seek(-TAIL_BYTES, os.SEEK_END)
        tail = file.read(TAIL_BYTES)
        tail = tail[tail.find(b"\n") + 1 :]
        # An earlier sentence stood just after the head, so there is never more than one.
        file.truncate(head.rfind(b"\n") + 1 or HEAD_BYTES)
    with log.open("ab") as file:
        file.write(SENTENCE.format(limit=LIMIT_BYTES).encode() + tail)
