"""Name of the command as the reader can type it."""

import os
import shutil
import sys
from pathlib import Path


def command() -> str:
    """Return the name of this command if it is on the PATH, else the path that started it."""
    started = Path(sys.argv[0])
    if started.name != "memscale":
        return "memscale"
    found = shutil.which("memscale")
    if found and Path(found).resolve() == started.resolve():
        return "memscale"
    return os.path.relpath(started)
