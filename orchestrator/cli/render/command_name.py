"""How the reader can type `memscale`."""

import os
import shutil
import sys
from pathlib import Path


def command() -> str:
    """Return how the reader can type this command: its name if it is on the PATH, else the path it was started by."""
    started = Path(sys.argv[0])
    if started.name != "memscale":
        return "memscale"
    found = shutil.which("memscale")
    if found and Path(found).resolve() == started.resolve():
        return "memscale"
    return os.path.relpath(started)
